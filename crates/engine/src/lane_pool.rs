//! Lanes of an engine over its own store. The engine is a drive's, or the fallback executor of a drive that is down.
//!
//! An epoch has as many lanes as the device has cores (without a device, as the engine has threads). Each lane waits
//! for a permit, takes a slice and processes it; the next slices are prefetched where that is possible.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use futures::FutureExt;
use futures::future::{BoxFuture, poll_immediate};
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Error, Result};
use skytether_device::Annotation;
use skytether_device::size::batch_bytes;
use skytether_scheduler::drive::{Meters, Next};
use skytether_scheduler::message::{EpochId, PushdownLevel, Seconds, SliceCost, SliceId};
use skytether_scheduler::profile::Profile;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use crate::execute::Engine;
use crate::feed::{FetchedSlice, SliceFeed};
use crate::meter::{CpuSample, Meter};
use crate::session::{Lane, Worker};
use crate::split_execution::SplitExecution;

/// Lanes of an epoch at most, whatever a device has.
const MAX_LANES: u32 = 64;

/// Least processor time of a load measurement; less means nothing.
const TELLING: Duration = Duration::from_millis(1);

/// The lanes of a sub-plan.
pub struct LanePool {
    engine: Arc<Engine>,
    execution: SplitExecution,
    lanes: usize,
    /// Speed of a core, relative to this machine's.
    speed: f64,
    taken: Mutex<Taken>,
    /// Slices that are read before a lane asks for them, and at which rung.
    reads: Mutex<BTreeMap<(PushdownLevel, SliceId), JoinHandle<Result<FetchedSlice>>>>,
}

impl fmt::Debug for LanePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LanePool").field("execution", &self.execution).finish_non_exhaustive()
    }
}

/// What lanes have taken.
#[derive(Debug, Default)]
struct Taken {
    /// Processor time of lanes that have ended.
    over: CpuSample,
    /// Meters of the other lanes, by number.
    meters: BTreeMap<u64, Arc<Meter>>,
    next: u64,
    running: BTreeMap<(EpochId, SliceId), (Arc<Meter>, CpuSample)>,
    /// The load when it was last measured, and what had been taken then.
    load: Option<f64>,
    counted: CpuSample,
}

fn plus(a: CpuSample, b: CpuSample) -> CpuSample {
    CpuSample { cpu: a.cpu + b.cpu, wall: a.wall + b.wall }
}

impl LanePool {
    /// Lanes of `engine` over `execution`, on a device that is like `profile`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, execution: SplitExecution, profile: Option<&Profile>) -> Arc<Self> {
        let (lanes, speed) = profile.map_or((engine.threads(), 1.0), |profile| (profile.cores.min(MAX_LANES) as usize, profile.speed_per_core.min(1.0)));
        Arc::new(Self { engine, execution, lanes, speed, taken: Mutex::default(), reads: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock()
    }

    fn reads(&self) -> MutexGuard<'_, BTreeMap<(PushdownLevel, SliceId), JoinHandle<Result<FetchedSlice>>>> {
        self.reads.lock()
    }

    /// The pushdown level whose plan gives the columns to read.
    fn reads_at(&self, rung: PushdownLevel) -> PushdownLevel {
        if self.execution.has_upper() { rung } else { PushdownLevel::Full }
    }
}

impl Meters for LanePool {
    fn load(&self) -> f64 {
        let mut taken = self.taken();
        let all = taken.meters.values().fold(taken.over, |sum, meter| plus(sum, meter.read(false)));
        let new = all.since(taken.counted);
        if new.cpu >= TELLING {
            taken.counted = all;
            taken.load = Some((new.wall.as_secs_f64() / new.cpu.as_secs_f64()).clamp(1.0, 1000.0));
        }
        taken.load.unwrap_or(1.0)
    }

    fn cpu(&self, epoch: EpochId, slice: SliceId) -> Seconds {
        self.taken().running.get(&(epoch, slice)).map_or(0.0, |(meter, before)| meter.read(false).since(*before).cpu.as_secs_f64() / self.speed)
    }
}

impl Worker for LanePool {
    fn execution(&self) -> &SplitExecution {
        &self.execution
    }

    fn lanes(&self) -> usize {
        self.lanes
    }

    fn annotation(&self) -> Annotation {
        self.execution.annotation()
    }

    fn ahead(&self, next: &[(PushdownLevel, SliceId)]) {
        let wanted: BTreeSet<_> = next.iter().map(|(rung, slice)| (self.reads_at(*rung), *slice)).collect();
        let mut reads = self.reads();
        reads.retain(|slice, read| {
            wanted.contains(slice) || {
                read.abort();
                false
            }
        });
        for (rung, slice) in wanted {
            // Before its first lane has planned it nothing is read.
            let Ok(fetcher) = self.execution.fetcher(rung).cloned() else { continue };
            reads.entry((rung, slice)).or_insert_with(|| tokio::spawn(async move { fetcher.fetch(slice.0).await }));
        }
    }

    fn forgotten(&self, epoch: EpochId) {
        self.taken().running.retain(|(of, _), _| *of != epoch);
    }

    fn work(self: Arc<Self>, lane: Lane) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let meter = Arc::new(Meter::default());
            let metered = Metered::begin(&self, &meter);
            let given = Arc::new(Mutex::new((0u64, 0u64)));
            let lane = Arc::new(lane);
            let feeding = Arc::new(Feeding {
                lanes: Arc::clone(&self),
                lane: Arc::clone(&lane),
                meter: Arc::clone(&meter),
                permit: Mutex::default(),
                current: Mutex::default(),
                ended: AtomicBool::new(false),
                last: Mutex::default(),
                given: Arc::clone(&given),
            });
            self.execution.ready(lane.rung()).await?;
            let mut rows = self.execution.lane(lane.rung(), Arc::new(LaneFeed(Arc::clone(&feeding))), meter)?;
            while let Some(batch) = rows.next().await? {
                {
                    let mut sums = given.lock();
                    *sums = (sums.0 + batch.num_rows() as u64, sums.1 + batch_bytes(&batch));
                }
                if !feeding.send(batch).await {
                    return Ok(());
                }
            }
            self.execution.ended(lane.rung(), &rows);
            feeding.rest().await;
            drop(metered);
            Ok(())
        })
    }
}

/// Counts a lane's meter for as long as the lane lives, and what it read for ever.
struct Metered {
    lanes: Arc<LanePool>,
    number: u64,
}

impl Metered {
    fn begin(lanes: &Arc<LanePool>, meter: &Arc<Meter>) -> Self {
        let mut taken = lanes.taken();
        let number = taken.next;
        taken.next += 1;
        taken.meters.insert(number, Arc::clone(meter));
        Self { lanes: Arc::clone(lanes), number }
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let mut taken = self.lanes.taken();
        if let Some(meter) = taken.meters.remove(&self.number) {
            taken.over = plus(taken.over, meter.read(false));
        }
    }
}

/// Gives a lane its slices.
#[derive(Debug)]
struct LaneFeed(Arc<Feeding>);

#[derive(Debug)]
struct Feeding {
    lanes: Arc<LanePool>,
    lane: Arc<Lane>,
    meter: Arc<Meter>,
    /// While it works on a slice, and does not wait for its reader.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// The slice that it works on.
    current: Mutex<Option<u32>>,
    /// Whether there are no more slices.
    ended: AtomicBool,
    /// When its last slice was done.
    last: Mutex<CpuSample>,
    /// Rows and bytes that the lane has given since then.
    given: Arc<Mutex<(u64, u64)>>,
}

impl Feeding {
    /// Waits for a turn; `None` if the drive is shutting down.
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let waiting = Instant::now();
        let permit = Arc::clone(self.lanes.engine.turns()).acquire_owned().await.ok()?;
        // The meter counts seconds of this machine's cores. A second of waiting on the device is `speed` of those.
        self.meter.waited(waiting.elapsed().mul_f64(self.lanes.speed));
        Some(permit)
    }

    /// Sends what came of slices; whether the epoch is still wanted. A lane that waits for its reader has no turn: a
    /// reader that rests must not keep others from the drive.
    async fn send(&self, batch: RecordBatch) -> bool {
        let mut sending = pin!(self.lane.send(batch));
        if let Some(wanted) = poll_immediate(&mut sending).await {
            return wanted;
        }
        let had_turn = self.permit.lock().take().is_some();
        let wanted = sending.await;
        if had_turn && wanted {
            let turn = self.turn().await;
            let goes_on = turn.is_some();
            *self.permit.lock() = turn;
            return goes_on;
        }
        wanted
    }

    /// Waits for a slice and a turn; `None` at the end of the epoch.
    async fn take(&self) -> Option<SliceId> {
        let Self { lanes, lane, .. } = self;
        loop {
            let permit = self.turn().await?;
            let changed = lane.changed();
            let next = lane.next(|slice| {
                let last = *self.last.lock();
                lanes.taken().running.insert((lane.epoch(), slice), (Arc::clone(&self.meter), last));
            });
            match next {
                Next::Slice(slice) => {
                    *self.permit.lock() = Some(permit);
                    *self.current.lock() = Some(slice.0);
                    return Some(slice);
                }
                Next::End => {
                    self.ended.store(true, Ordering::Relaxed);
                    return None;
                }
                Next::Wait => {
                    drop(permit);
                    changed.await;
                }
            }
        }
    }

    /// Takes a slice and reads it; `None` at the end of the epoch.
    async fn next(self: Arc<Self>) -> Option<Result<FetchedSlice>> {
        let Self { lanes, lane, .. } = &*self;
        let slice = self.take().await?;
        let rung = lanes.reads_at(lane.rung());
        let read = lanes.reads().remove(&(rung, slice));
        lane.ahead();
        Some(match read {
            Some(read) => read.await.unwrap_or_else(|e| Err(Error::internal("a task that reads the store stopped").with_source(e))),
            None => match lanes.execution.fetcher(rung) {
                Ok(fetcher) => fetcher.fetch(slice.0).await,
                Err(error) => Err(error),
            },
        })
    }

    /// Ends the slices that are left. A plan may end before its input does: a join with a table without rows, or a
    /// limit. It needs none of them, and the epoch ends when all are done.
    async fn rest(&self) {
        let begun = self.current.lock().take();
        if let Some(stripe) = begun {
            self.done(stripe);
        }
        // A plan that has read all has been told so. To ask again would wait for another turn, behind other epochs.
        while !self.ended.load(Ordering::Relaxed)
            && let Some(slice) = self.take().await
        {
            self.lane.ahead();
            self.done(slice.0);
        }
    }

    /// `stripe` is processed.
    fn done(&self, stripe: u32) {
        let Self { lanes, lane, meter, permit, current, last, given, .. } = self;
        permit.lock().take();
        current.lock().take();
        let now = meter.read(true);
        let before = std::mem::replace(&mut *last.lock(), now);
        let (rows_out, bytes_out) = std::mem::take(&mut *given.lock());
        let slice = SliceId(stripe);
        lanes.taken().running.remove(&(lane.epoch(), slice));
        let cpu = now.since(before).cpu.as_secs_f64() / lanes.speed;
        lane.done(SliceCost { slice, cpu, rows_out, bytes_out }, (0, lanes.execution.memory()));
    }
}

impl SliceFeed for LaneFeed {
    fn next(&self) -> BoxFuture<'static, Option<Result<FetchedSlice>>> {
        Arc::clone(&self.0).next().boxed()
    }

    fn done(&self, stripe: u32) {
        self.0.done(stripe);
    }
}
