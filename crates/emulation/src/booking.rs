//! Servers that do one job at a time (cores, a disk, one direction of a link), and the time when each job is done.
//! Pure: times come in and go out, counted from any fixed moment.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// What was booked so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accounted {
    /// Jobs.
    pub jobs: u64,
    /// How long they take together, apart from waiting for one another.
    pub busy: Duration,
    /// How long they waited for their turn, together.
    pub queued: Duration,
}

/// Some servers with one queue: each job goes to the one that is free first.
#[derive(Debug, Clone)]
pub struct Servers {
    /// When each is free; at least one.
    free: BinaryHeap<Reverse<Duration>>,
    accounted: Accounted,
}

impl Servers {
    /// This number of servers, at least one, all free.
    #[must_use]
    pub fn new(servers: u32) -> Self {
        Self { free: vec![Reverse(Duration::ZERO); servers.max(1) as usize].into(), accounted: Accounted::default() }
    }

    /// Books a job that may begin at `ready` and takes `takes`; when it is done.
    pub fn book(&mut self, ready: Duration, takes: Duration) -> Duration {
        let free = self.free.pop().map_or(Duration::ZERO, |Reverse(free)| free);
        let begin = free.max(ready);
        let done = begin.saturating_add(takes);
        self.free.push(Reverse(done));
        self.accounted.jobs += 1;
        self.accounted.busy += takes;
        self.accounted.queued += begin - ready;
        done
    }

    /// What was booked so far.
    #[must_use]
    pub fn accounted(&self) -> Accounted {
        self.accounted
    }
}

/// `amount` at `per_second`, as a time; at most a century.
#[must_use]
pub fn takes(amount: f64, per_second: f64) -> Duration {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    Duration::try_from_secs_f64(amount / per_second).unwrap_or(CENTURY).min(CENTURY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn one_server_does_one_job_after_the_other() {
        let mut one = Servers::new(1);
        assert_eq!(one.book(MS(0), MS(10)), MS(10));
        assert_eq!(one.book(MS(2), MS(5)), MS(15), "it waits for the first");
        assert_eq!(one.book(MS(40), MS(5)), MS(45), "idle time is not saved up");
        assert_eq!(one.accounted(), Accounted { jobs: 3, busy: MS(20), queued: MS(8) });
    }

    #[test]
    fn several_servers_share_a_queue() {
        let mut two = Servers::new(2);
        let done: Vec<Duration> = (0..6).map(|_| two.book(MS(0), MS(10))).collect();
        assert_eq!(done, [10, 10, 20, 20, 30, 30].map(MS));
        assert_eq!(two.book(MS(100), MS(1)), MS(101));
        assert_eq!(two.accounted().busy, MS(61));
    }

    #[test]
    fn infinite_durations_are_valid_times() {
        assert_eq!(takes(1e6, 1e9), MS(1));
        assert!(takes(1e300, 1e-300) > MS(1) && takes(f64::NAN, 1.0) > MS(1));
        let mut one = Servers::new(0);
        for _ in 0..3 {
            one.book(takes(1e300, 1e-300), takes(1e300, 1e-300));
        }
    }
}
