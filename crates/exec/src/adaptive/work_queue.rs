//! Queues in front of the host's lanes: slices that drives sent raw, or rows that drives filtered, each of an epoch.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use skytether_engine::meter::{CpuSample as Time, Meter};
use skytether_scheduler::message::EpochId;
use tokio::sync::{Mutex as Turns, mpsc};

use crate::adaptive::local_worker::{Tell, WorkDone};

/// Items of epochs that wait for lanes, which take them one by one. The queue reports an epoch when all of its items
/// are done.
pub(crate) struct Queue<T> {
    sender: mpsc::UnboundedSender<(EpochId, T)>,
    receiver: Arc<Turns<mpsc::UnboundedReceiver<(EpochId, T)>>>,
    left: Arc<Mutex<Left>>,
    tell: Tell,
}

/// The work that is not done yet.
#[derive(Default)]
struct Left {
    /// For each epoch how many of its things are not done, and the processor seconds of the others.
    epochs: BTreeMap<EpochId, (usize, f64)>,
    /// Whether all receivers have stopped.
    over: bool,
}

impl<T> Queue<T> {
    pub(crate) fn new(tell: Tell) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver: Arc::new(Turns::new(receiver)), left: Arc::default(), tell }
    }

    pub(crate) fn push(&self, epoch: EpochId, things: Vec<T>) {
        if things.is_empty() {
            (self.tell)(WorkDone::Epoch(epoch, 0.0));
            return;
        }
        self.left.lock().epochs.insert(epoch, (things.len(), 0.0));
        for thing in things {
            // Lanes that failed have reported that.
            let _ = self.sender.send((epoch, thing));
        }
    }

    /// For one more lane; it does not keep the queue open.
    pub(crate) fn line(&self) -> Waiting<T> {
        Waiting { receiver: Arc::clone(&self.receiver), left: Arc::clone(&self.left), tell: Arc::clone(&self.tell) }
    }
}

/// A lane's place at the queue, before the lane begins.
pub(crate) struct Waiting<T> {
    receiver: Arc<Turns<mpsc::UnboundedReceiver<(EpochId, T)>>>,
    left: Arc<Mutex<Left>>,
    tell: Tell,
}

impl<T> Waiting<T> {
    /// The place of a lane whose time `meter` counts.
    pub(crate) fn metered(self, meter: Arc<Meter>) -> Arc<WorkerHandle<T>> {
        let now = meter.read(true);
        Arc::new(WorkerHandle { waiting: self, working: Mutex::new((None, now)), meter })
    }
}

/// A lane's place at the queue.
pub(crate) struct WorkerHandle<T> {
    waiting: Waiting<T>,
    /// The epoch in process, and the lane's time when that began.
    working: Mutex<(Option<EpochId>, Time)>,
    meter: Arc<Meter>,
}

impl<T> fmt::Debug for WorkerHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerHandle").finish_non_exhaustive()
    }
}

impl<T> WorkerHandle<T> {
    fn working(&self) -> MutexGuard<'_, (Option<EpochId>, Time)> {
        self.working.lock()
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.waiting.left.lock()
    }

    /// The lane's next work; `None` at the end, and after the task has stopped.
    pub(crate) async fn next(self: Arc<Self>) -> Option<T> {
        let (epoch, thing) = self.waiting.receiver.lock().await.recv().await?;
        if self.left().over {
            return None;
        }
        *self.working() = (Some(epoch), self.meter.read(true));
        Some(thing)
    }

    /// Reports the work that the lane took last as processed, and all that comes after it, unread: a plan may end
    /// before its input does, as a join with a table without rows, or a limit.
    pub(crate) async fn rest(self: Arc<Self>) {
        self.done();
        while Arc::clone(&self).next().await.is_some() {
            self.done();
        }
    }

    /// Reports the work that the lane took last, if any, as processed.
    pub(crate) fn done(&self) {
        let now = self.meter.read(true);
        let mut working = self.working();
        let cpu = now.since(working.1).cpu.as_secs_f64();
        working.1 = now;
        let Some(epoch) = working.0.take() else { return };
        drop(working);
        let mut all = self.left();
        let Some((left, sum)) = all.epochs.get_mut(&epoch) else { return };
        *left -= 1;
        *sum += cpu;
        if *left == 0 {
            let sum = *sum;
            all.epochs.remove(&epoch);
            drop(all);
            if !(self.waiting.tell)(WorkDone::Epoch(epoch, sum)) {
                self.left().over = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lane_that_ends_early_reports_all_epochs_as_done() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let queue = Queue::new(Arc::new(move |done| {
            if let WorkDone::Epoch(epoch, _) = done {
                tells.lock().push(epoch);
            }
            true
        }));
        queue.push(EpochId(1), vec![1, 2]);
        queue.push(EpochId(2), vec![3]);
        let place = queue.line().metered(Arc::default());
        assert_eq!(Arc::clone(&place).next().await, Some(1));
        drop(queue);
        place.rest().await;
        assert_eq!(*told.lock(), [EpochId(1), EpochId(2)]);
    }
}
