//! Processor time.

use std::time::Duration;

/// Processor time that the calling thread has had since it began. Zero where the system does not tell.
#[must_use]
pub fn thread_time() -> Duration {
    #[cfg(unix)]
    {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a valid timespec for the call to write to.
        if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) } == 0 {
            return Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0));
        }
    }
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time_and_sleep_does_not() {
        let before = thread_time();
        let mut sum = 0u64;
        while thread_time() == before {
            sum = std::hint::black_box(sum.wrapping_mul(31) + 1);
        }
        assert!(thread_time() > before);
    }
}
