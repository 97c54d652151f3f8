//! Where a thread sleeps until an emulated device is ready, and where the time is returned to the caller instead. A
//! sleeping thread is lost to other work, and a process has few threads that may block.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    /// `None`: the thread sleeps itself. Otherwise the time until which its work so far must wait.
    static OWED: Cell<Option<Option<Instant>>> = const { Cell::new(None) };
}

/// Puts back what was there before, also when unwinding.
struct Scope(Option<Option<Instant>>);

impl Drop for Scope {
    fn drop(&mut self) {
        OWED.set(self.0);
    }
}

/// Does `work` without sleeping in it. Also returns the time until which the caller must wait, or `None`.
pub fn deferred<T>(work: impl FnOnce() -> T) -> (T, Option<Instant>) {
    let scope = Scope(OWED.replace(Some(None)));
    let done = work();
    let owed = OWED.get().flatten();
    drop(scope);
    (done, owed)
}

/// The last work would have been ready at `until`. Waits, if that is at least `worth` away, or adds it to the time that
/// [`deferred`] returns.
pub fn owe(until: Instant, worth: Duration) {
    match OWED.get() {
        Some(before) => OWED.set(Some(before.max(Some(until)))),
        None => {
            let left = until.saturating_duration_since(Instant::now());
            if left >= worth {
                std::thread::sleep(left);
            }
        }
    }
}

/// Until when what was done so far in this [`deferred`] is owed.
pub(crate) fn owed() -> Option<Instant> {
    OWED.get().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owed_time_is_waited_for_or_returned() {
        let now = Instant::now();
        let (far, near) = (now + Duration::from_secs(86_400), now + Duration::from_millis(1));
        let (done, until) = deferred(|| {
            owe(far, Duration::ZERO);
            owe(near, Duration::ZERO);
            let inner = deferred(|| owe(near, Duration::ZERO));
            assert_eq!(inner.1, Some(near), "the inner one has its own");
            owed()
        });
        assert_eq!((done, until), (Some(far), Some(far)));
        assert_eq!(deferred(|| 7), (7, None));
        owe(near, Duration::ZERO);
        assert!(Instant::now() >= near, "nobody else waits");
        let caught = std::panic::catch_unwind(|| deferred(|| panic!("on purpose")));
        assert!(caught.is_err() && OWED.get().is_none());
    }
}
