//! [`Offload`]: carries out descriptors over devices.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use skytether_volume::{BlockDevice, DeviceInfo, Exec, ExecLimits};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::capabilities::Capabilities;
use crate::codes::{MOST_DESCRIPTOR, MOST_RESULT, descriptor_flag};
use crate::descriptor::{Descriptor, Extent};
use crate::job::{self, Job, SURE};
use crate::limits::{LEAST_MEMORY, Limits, Options, Stop, cancelled};
use crate::operation::{Operation, Registry, check_chunks};
use crate::result::{ExecResult, HEADER};

/// What EXEC computes: the operations of a registry, within the limits of a target.
///
/// Invariants:
/// - Nothing is kept of a descriptor once its result is given.
/// - At most [`Options::running`] descriptors are computed at a time, others wait in their order.
/// - When [`Exec::run`] returns, the descriptor reads and writes nothing any more. Where its future is dropped, it ends
///   soon, and has its turn until then.
pub struct Offload {
    registry: Registry,
    options: Options,
    running: Arc<Semaphore>,
    waiting: AtomicUsize,
}

impl Debug for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offload").field("options", &self.options).finish_non_exhaustive()
    }
}

struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Offload {
    /// With these operations and limits.
    ///
    /// # Errors
    /// `Invalid` for limits under which nothing can run.
    pub fn new(registry: Registry, options: Options) -> Result<Self> {
        let blocks = options.block.is_multiple_of(4096) && options.block > 0;
        if options.running == 0 || !blocks || options.memory < LEAST_MEMORY || !(512..=MOST_RESULT).contains(&(options.result as usize)) {
            return Err(Error::invalid(format!("limits of EXEC: nothing can run with {options:?}")));
        }
        let running = Arc::new(Semaphore::new(options.running));
        Ok(Self { registry, options, running, waiting: AtomicUsize::new(0) })
    }

    async fn carry_out(&self, device: Arc<dyn BlockDevice>, descriptor: Bytes, cancel: CancellationToken) -> Result<Bytes> {
        let descriptor = Descriptor::decode(&descriptor)?;
        let operation = self.registry.get(descriptor.opcode)?.clone();
        // Ends with this future, also where a caller drops it.
        let token = cancel.child_token();
        let _guard = token.clone().drop_guard();
        let deadline = Instant::now()
            + self.options.time.min(std::time::Duration::from_millis(match descriptor.time {
                0 => u64::MAX,
                time => time.into(),
            }));
        let (stop, opcode) = (Stop::new(token, deadline), descriptor.opcode);
        let result = match self.compute(device, operation, descriptor, stop).await {
            Ok(result) => result,
            Err(Refusal::Busy(error)) => return Err(error),
            Err(Refusal::Wrong(error)) => ExecResult { opcode, failure: Some((&error).into()), ..ExecResult::default() },
        };
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        result.encode()
    }

    async fn compute(
        &self,
        device: Arc<dyn BlockDevice>,
        operation: Arc<dyn Operation>,
        descriptor: Descriptor,
        stop: Stop,
    ) -> std::result::Result<ExecResult, Refusal> {
        let limits = Limits::of(&self.options, &descriptor);
        self.check(&device.info(), &*operation, &descriptor, &limits)?;
        let permit = match self.running.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let waits = self.waiting.fetch_add(1, Ordering::Relaxed);
                let _waits = Waits(&self.waiting);
                if waits >= self.options.waiting {
                    return Err(Refusal::Busy(Error::exhausted(format!("{waits} computations wait already; try again later"))));
                }
                tokio::select! {
                    permit = self.running.clone().acquire_owned() => permit.map_err(|_| Error::internal("no computation runs any more"))?,
                    error = stop.stopped() => return Err(error.into()),
                }
            }
        };
        let tracker = TaskTracker::new();
        let mut job = Job::new(device, Arc::new(descriptor), limits, stop, &tracker);
        // A task of its own, which goes on where a caller drops this future.
        let work = tokio::spawn(async move {
            let done = tokio::task::spawn_blocking(move || job::run(&*operation, &mut job)).await;
            // Writes may still be under way after an error, and reads ahead. They outlive neither answer nor turn.
            tracker.close();
            tracker.wait().await;
            drop(permit);
            done
        });
        let done = work.await.and_then(|done| done);
        Ok(done.map_err(|error| Error::internal("the computation ended badly").with_source(error))?)
    }

    /// Refuses what is wrong before anything is read or written.
    fn check(&self, info: &DeviceInfo, operation: &dyn Operation, descriptor: &Descriptor, limits: &Limits) -> Result<()> {
        check_chunks(operation, &descriptor.inputs)?;
        let least = HEADER + 8 * descriptor.outputs.len() + SURE * descriptor.inputs.len();
        if least > limits.result {
            return Err(Error::exhausted(format!("results of {} bytes are too short for the objects: at least {least} are needed", limits.result)));
        }
        let bytes = descriptor.inputs.iter().fold(0u64, |sum, object| sum.saturating_add(object.seen()));
        if bytes > self.options.bytes {
            return Err(Error::exhausted(format!("inputs of {bytes} bytes are too many, {} are the most; ask for fewer at a time", self.options.bytes)));
        }
        if descriptor.has(descriptor_flag::TO_OUTPUT) == descriptor.outputs.is_empty() {
            return Err(Error::invalid("output objects and the flag TO_OUTPUT belong together"));
        }
        if info.read_only && !descriptor.outputs.is_empty() {
            return Err(Error::conflict(format!("{}: is read-only and can't have output objects", info.name)));
        }
        check_places(info, descriptor)
    }
}

/// All extents are on the device. Those of outputs overlap with no other extent.
fn check_places(info: &DeviceInfo, descriptor: &Descriptor) -> Result<()> {
    let places = |objects: &[crate::descriptor::Object]| -> Vec<Extent> {
        objects.iter().flat_map(|object| &object.extents).filter(|extent| !extent.is_hole()).copied().collect()
    };
    let (inputs, mut outputs) = (places(&descriptor.inputs), places(&descriptor.outputs));
    if let Some(extent) = inputs.iter().chain(&outputs).find(|extent| extent.place + extent.length > info.size) {
        let Extent { place, length } = extent;
        return Err(Error::invalid(format!("{}: {length} bytes at {place} are beyond its {} bytes", info.name, info.size)));
    }
    outputs.sort_unstable_by_key(|extent| extent.place);
    let overlap = |a: &Extent, b: &Extent| {
        Error::invalid(format!("{}: {} bytes at {} are an output and overlap with {} bytes at {}", info.name, b.length, b.place, a.length, a.place))
    };
    for (one, next) in outputs.iter().zip(outputs.iter().skip(1)) {
        if one.place + one.length > next.place {
            return Err(overlap(one, next));
        }
    }
    for extent in &inputs {
        let after = outputs.partition_point(|output| output.place + output.length <= extent.place);
        if let Some(output) = outputs.get(after).filter(|output| output.place < extent.place + extent.length) {
            return Err(overlap(extent, output));
        }
    }
    Ok(())
}

/// Why nothing was computed.
enum Refusal {
    /// The target has no room.
    Busy(Error),
    /// The descriptor asks for what can't be.
    Wrong(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Wrong(error)
    }
}

impl Exec for Offload {
    fn limits(&self) -> ExecLimits {
        ExecLimits { descriptor: MOST_DESCRIPTOR as u32, result: self.options.result }
    }

    fn capabilities(&self) -> Bytes {
        let mut capabilities = Capabilities::new(self.limits());
        capabilities.time = self.options.time.as_millis().min(u32::MAX.into()) as u32;
        capabilities.memory = self.options.memory;
        capabilities.bytes = self.options.bytes;
        capabilities.operations = self.registry.opcodes().collect();
        capabilities.encode()
    }

    fn run(&self, device: Arc<dyn BlockDevice>, descriptor: Bytes, cancel: CancellationToken) -> BoxFuture<'_, Result<Bytes>> {
        self.carry_out(device, descriptor, cancel).boxed()
    }
}
