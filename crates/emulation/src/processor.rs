//! The cores of an emulated device.
//!
//! [`paced`] wraps a future or a stream. It books the processor time of each poll, by the thread's clock, on the
//! device's cores. Neither the poll's result nor the next poll comes before the device would have been ready.
//! [`Processor::work`] does the same for work that blocks. Everything over one [`Processor`] shares its cores.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures::Stream;
use parking_lot::{Mutex, MutexGuard};
use skytether_scheduler::profile::Profile;

use crate::booking::{Accounted, Servers, takes};
use crate::timer::{Sleep, sleep_until};
use crate::wait::{deferred, owe, owed};

/// What is owed is paid from here on: less is not worth a timer, and is not forgotten.
const WORTH_WAITING: Duration = Duration::from_micros(500);

/// How late a waiting task may wake without the device having idled meanwhile.
const LATE: Duration = Duration::from_millis(20);

/// A device's cores.
#[derive(Debug)]
pub struct Processor {
    start: Instant,
    speed: f64,
    cores: Mutex<Servers>,
}

impl Processor {
    /// The cores of `profile`. A speed above this machine's cannot be emulated: then it is this machine's.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        Self { start: Instant::now(), speed: profile.speed_per_core.min(1.0), cores: Mutex::new(Servers::new(profile.cores)) }
    }

    /// Since some fixed moment.
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn cores(&self) -> MutexGuard<'_, Servers> {
        // A booking is whole or was not begun.
        self.cores.lock()
    }

    /// Books `spent` seconds of this machine's processor time that could begin at `ready`; when
    /// the device is done with it.
    fn book(&self, ready: Duration, spent: Duration) -> Duration {
        let takes = takes(spent.as_secs_f64(), self.speed);
        self.cores().book(ready, takes)
    }

    /// What was booked so far; the times are the device's.
    #[must_use]
    pub fn accounted(&self) -> Accounted {
        self.cores().accounted()
    }

    /// Does `work`, which may block, and waits until the device would have done it. Within
    /// [`deferred`](crate::wait::deferred) the caller waits instead.
    pub fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        let (done, spent) = metered(work);
        if let Some(spent) = spent {
            // What was read comes before what is done with it.
            let ready = self.now().saturating_sub(spent).max(self.since_start(owed()));
            owe(self.start + self.book(ready, spent), WORTH_WAITING);
        }
        done
    }

    fn since_start(&self, moment: Option<Instant>) -> Duration {
        moment.map_or(Duration::ZERO, |moment| moment.saturating_duration_since(self.start))
    }
}

thread_local! {
    /// Whether this thread's time is being measured, so that nothing is paid twice where one paced thing polls another.
    static METERED: Cell<bool> = const { Cell::new(false) };
}

/// Sets [`METERED`] back, also when unwinding.
struct Metered;

impl Drop for Metered {
    fn drop(&mut self) {
        METERED.set(false);
    }
}

/// Does `work`, and returns the processor time that this thread spent on it. `None` within another measurement.
fn metered<T>(work: impl FnOnce() -> T) -> (T, Option<Duration>) {
    if METERED.replace(true) {
        return (work(), None);
    }
    let _guard = Metered;
    let before = thread_time();
    let done = work();
    (done, Some(thread_time().saturating_sub(before)))
}

/// Processor time of this thread so far; 0 on systems that do not measure it.
#[must_use]
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the struct that it is given, which lives here.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    if failed != 0 {
        return Duration::ZERO;
    }
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// `inner` on the cores of `processor`; without one just as it is.
pub fn paced<T>(processor: Option<Arc<Processor>>, inner: T) -> Paced<T> {
    Paced { inner: Box::pin(inner), turn: processor.map(Turn::new) }
}

/// A future or stream that pays for its processor time; see [`paced`].
#[derive(Debug)]
#[must_use = "futures and streams do nothing unless polled"]
pub struct Paced<T> {
    inner: Pin<Box<T>>,
    turn: Option<Turn>,
}

impl<T> Paced<T> {
    /// What is paced.
    #[must_use]
    pub fn get_ref(&self) -> &T {
        &self.inner
    }
}

/// One line of work on a processor: one thing after the other.
#[derive(Debug)]
struct Turn {
    processor: Arc<Processor>,
    /// When the device is done with all that was polled so far.
    due: Duration,
    waiting: Option<Sleep>,
    /// Whether the last thing that happened was waiting for `due`.
    waited: bool,
}

impl Turn {
    fn new(processor: Arc<Processor>) -> Self {
        Self { processor, due: Duration::ZERO, waiting: None, waited: false }
    }

    /// Ready once the device's time for past work is over.
    fn paid(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Within another measurement, the outer one waits.
        if METERED.get() {
            return Poll::Ready(());
        }
        if self.waiting.is_none() && self.due >= self.processor.now() + WORTH_WAITING {
            self.waiting = Some(sleep_until(self.processor.start + self.due));
        }
        if let Some(sleep) = &mut self.waiting {
            ready!(Pin::new(sleep).poll(context));
            (self.waiting, self.waited) = (None, true);
        }
        Poll::Ready(())
    }

    /// Does a piece of work, and books it.
    fn work<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let now = self.processor.now();
        // A task that woke late was ready on time.
        let ready = self.due.max(if std::mem::take(&mut self.waited) { now.saturating_sub(LATE) } else { now });
        // Within another measurement, the outer one waits.
        if METERED.get() {
            return work();
        }
        let ((done, spent), owed) = deferred(|| metered(work));
        self.due = self.processor.book(ready.max(self.processor.since_start(owed)), spent.unwrap_or_default());
        done
    }
}

/// A stream whose items wait until they are paid for.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct PacedStream<S: Stream> {
    paced: Paced<S>,
    /// What came, and is not paid for.
    held: Option<Option<S::Item>>,
}

impl<S: Stream> Paced<S> {
    /// As a stream.
    pub fn stream(self) -> PacedStream<S> {
        PacedStream { paced: self, held: None }
    }
}

impl<S: Stream> Stream for PacedStream<S>
where
    S::Item: Unpin,
{
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let Self { paced: Paced { inner, turn }, held } = self.get_mut();
        let Some(turn) = turn else { return inner.as_mut().poll_next(context) };
        loop {
            ready!(turn.paid(context));
            if let Some(item) = held.take() {
                return Poll::Ready(item);
            }
            *held = Some(ready!(turn.work(|| inner.as_mut().poll_next(context))));
        }
    }
}

/// A future whose output waits until it is paid for.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct PacedFuture<F: Future> {
    paced: Paced<F>,
    held: Option<F::Output>,
}

impl<F: Future> IntoFuture for Paced<F>
where
    F::Output: Unpin,
{
    type Output = F::Output;
    type IntoFuture = PacedFuture<F>;

    fn into_future(self) -> PacedFuture<F> {
        PacedFuture { paced: self, held: None }
    }
}

impl<F: Future> Future for PacedFuture<F>
where
    F::Output: Unpin,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { paced: Paced { inner, turn }, held } = self.get_mut();
        let Some(turn) = turn else { return inner.as_mut().poll(context) };
        loop {
            ready!(turn.paid(context));
            if let Some(output) = held.take() {
                return Poll::Ready(output);
            }
            *held = Some(ready!(turn.work(|| inner.as_mut().poll(context))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};

    fn device(cores: u32, speed: f64) -> Arc<Processor> {
        Arc::new(Processor::new(&Profile { cores, speed_per_core: speed, ..Profile::shipped("server").unwrap() }))
    }

    /// Spends at least `least` of processor time; returns the measured time.
    fn spend(least: Duration) -> Duration {
        let before = thread_time();
        while thread_time() - before < least {
            std::hint::black_box((0..1000u64).sum::<u64>());
        }
        thread_time() - before
    }

    /// Uses the processor's bookings, which are exact: real clocks only bound the time from below.
    #[tokio::test]
    async fn a_stream_pays_for_its_polls_at_the_devices_speed() {
        let (processor, start) = (device(1, 0.25), Instant::now());
        let spent = Mutex::new(Duration::ZERO);
        let work = stream::iter(0..5).map(|n| {
            *spent.lock() += spend(Duration::from_millis(2));
            n
        });
        let came: Vec<i32> = paced(Some(Arc::clone(&processor)), work).stream().collect().await;
        assert_eq!(came, [0, 1, 2, 3, 4]);
        let (accounted, spent) = (processor.accounted(), *spent.lock());
        assert!(accounted.busy >= spent * 4 && accounted.busy < spent * 4 + Duration::from_millis(20), "{accounted:?} for {spent:?}");
        // All but the last less than a half millisecond was waited for.
        assert!(start.elapsed() + WORTH_WAITING >= accounted.busy, "{:?} for {accounted:?}", start.elapsed());
    }

    #[tokio::test]
    async fn cores_are_shared_by_all_that_runs() {
        let processor = device(2, 0.5);
        let start = Instant::now();
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let future = paced(Some(Arc::clone(&processor)), async { spend(Duration::from_millis(2)) }).into_future();
                tokio::spawn(future)
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        // Four pieces of 4 ms of the device on two cores.
        let accounted = processor.accounted();
        assert!(accounted.jobs == 4 && accounted.busy >= Duration::from_millis(16), "{accounted:?}");
        assert!(start.elapsed() + WORTH_WAITING >= accounted.busy / 2);
    }

    #[test]
    fn work_that_blocks_pays_too_and_nothing_is_paid_twice() {
        let processor = device(1, 0.5);
        let (inner, outer) = (Arc::clone(&processor), Instant::now());
        let spent = processor.work(|| {
            let inner_stream = paced(Some(Arc::clone(&inner)), stream::iter([1])).stream();
            assert_eq!(futures::executor::block_on(inner_stream.collect::<Vec<_>>()), [1]);
            inner.work(|| spend(Duration::from_millis(3)))
        });
        let accounted = processor.accounted();
        assert_eq!(accounted.jobs, 1, "the inner ones are part of it");
        assert!(accounted.busy >= spent * 2);
        assert!(outer.elapsed() + WORTH_WAITING >= accounted.busy);
    }

    #[test]
    fn deferred_work_is_paid_after_the_read_it_waits_for() {
        let processor = device(1, 0.5);
        let read = Instant::now() + Duration::from_secs(3600);
        let (spent, due) = deferred(|| {
            processor.work(|| {
                owe(read, Duration::ZERO);
                spend(Duration::from_millis(1))
            })
        });
        assert!(due.unwrap() >= read + spent * 2, "first the hour, then the work");
        // A poll that read something waits for it in the same way.
        let mut turn = Turn::new(Arc::clone(&processor));
        turn.work(|| owe(read + Duration::from_secs(60), Duration::ZERO));
        assert!(processor.start + turn.due >= read + Duration::from_secs(60));
    }

    #[tokio::test]
    async fn without_a_processor_nothing_is_measured() {
        assert_eq!(paced(None, stream::iter([1, 2])).stream().collect::<Vec<_>>().await, [1, 2]);
        assert_eq!(paced(None, async { 5 }).await, 5);
        assert!(!METERED.get());
    }

    #[test]
    fn a_panic_does_not_end_the_measuring() {
        let processor = device(1, 1.0);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| processor.work(|| panic!("on purpose")))).is_err());
        processor.work(|| ());
        assert_eq!(processor.accounted().jobs, 1);
    }

    #[test]
    fn no_device_is_faster_than_this_machine() {
        let processor = device(1, 1.0e3);
        assert_eq!(processor.book(Duration::ZERO, Duration::from_millis(5)), Duration::from_millis(5));
    }
}
