//! Waits for less than a millisecond: tokio's timer has no shorter time, and a message takes less on most links.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// An alarm rings this much early, and the thread waits actively for the rest: waking a thread takes about that long.
const EARLY: Duration = Duration::from_micros(30);

/// Ready at some moment, within some ten microseconds unless all cores are busy.
#[derive(Debug)]
pub struct Sleep {
    until: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Fine(Arc<Mutex<Waker>>),
    /// The fallback without a timer thread.
    Coarse(Pin<Box<tokio::time::Sleep>>),
}

/// Waits until `until`.
#[must_use]
pub fn sleep_until(until: Instant) -> Sleep {
    Sleep { until, state: State::New }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let until = self.until;
        if reached(until) {
            return Poll::Ready(());
        }
        match &mut self.state {
            State::New => {
                let waker = Arc::new(Mutex::new(context.waker().clone()));
                if ask(Alarm { until, waker: Arc::clone(&waker) }) {
                    self.state = State::Fine(waker);
                    return Poll::Pending;
                }
                let mut coarse = Box::pin(tokio::time::sleep_until(until.into()));
                let polled = coarse.as_mut().poll(context);
                self.state = State::Coarse(coarse);
                polled
            }
            State::Fine(waker) => {
                waker.lock().clone_from(context.waker());
                // It may have rung just before.
                if reached(until) { Poll::Ready(()) } else { Poll::Pending }
            }
            State::Coarse(coarse) => coarse.as_mut().poll(context),
        }
    }
}

/// Whether `until` is over; waits actively if it is very close.
fn reached(until: Instant) -> bool {
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if left > EARLY {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

struct Alarm {
    until: Instant,
    waker: Arc<Mutex<Waker>>,
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    /// The earliest is the greatest: it is the first out of a heap.
    fn cmp(&self, other: &Self) -> Ordering {
        other.until.cmp(&self.until)
    }
}

/// The thread that rings, and the process that it is in: threads do not survive a fork.
static CLOCK: Mutex<Option<(u32, Sender<Alarm>)>> = Mutex::new(None);

/// Whether the alarm thread has accepted the alarm.
fn ask(alarm: Alarm) -> bool {
    let mut clock = CLOCK.lock();
    let process = std::process::id();
    if clock.as_ref().is_none_or(|(of, _)| *of != process) {
        let (sender, receiver) = mpsc::channel();
        match std::thread::Builder::new().name("skytether-timer".to_owned()).stack_size(128 << 10).spawn(move || ring(&receiver)) {
            Ok(_) => *clock = Some((process, sender)),
            Err(e) => {
                tracing::warn!("no thread for a fine timer, a coarse one does instead: {e}");
                return false;
            }
        }
    }
    clock.as_ref().is_some_and(|(_, sender)| sender.send(alarm).is_ok())
}

fn ring(asked: &Receiver<Alarm>) {
    fine_timers();
    let mut alarms: BinaryHeap<Alarm> = BinaryHeap::new();
    loop {
        let now = Instant::now() + EARLY;
        while alarms.peek().is_some_and(|next| next.until <= now) {
            if let Some(alarm) = alarms.pop() {
                alarm.waker.lock().wake_by_ref();
            }
        }
        let wait = alarms.peek().map_or(Duration::from_secs(3600), |next| next.until.saturating_duration_since(now));
        match asked.recv_timeout(wait) {
            Ok(alarm) => alarms.push(alarm),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Linux lets timers of ordinary threads be late by 50 microseconds, so as to save wake-ups.
fn fine_timers() {
    #[cfg(target_os = "linux")]
    // SAFETY: this call reads its arguments and changes the calling thread's timer slack, nothing else.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong, 0 as libc::c_ulong);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_sleeper_wakes_early_and_all_wake() {
        let start = Instant::now();
        let sleeps = (0..50u64).rev().map(|n| async move {
            let until = start + Duration::from_micros(n * 100);
            sleep_until(until).await;
            assert!(Instant::now() >= until);
            n
        });
        assert_eq!(futures::future::join_all(sleeps).await.len(), 50);
    }

    #[tokio::test]
    async fn a_sleep_that_moved_to_another_task_wakes_that() {
        let mut sleep = Box::pin(sleep_until(Instant::now() + Duration::from_millis(2)));
        assert!(futures::poll!(&mut sleep).is_pending());
        tokio::spawn(sleep).await.unwrap();
    }
}
