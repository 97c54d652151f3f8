//! One EXEC on its thread: inputs, outputs, limits, and the items that come out.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use skytether_common::{Error, Result};
use skytether_volume::BlockDevice;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::codes::item_flag;
use crate::descriptor::{Descriptor, Object};
use crate::input::{Blocks, ObjectReader};
use crate::limits::{Limits, Stop};
use crate::operation::{Arguments, ObjectWork, Operation, Plan};
use crate::output::{Output, Sink};
use crate::result::{ExecResult, HEADER, ITEM, Item};

/// Bytes of the result that each item has for sure: its header, some values and a digest, or a short text.
pub(crate) const SURE: usize = 112;

/// What an operation on all inputs works with.
#[derive(Debug)]
pub struct Job {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) descriptor: Arc<Descriptor>,
    pub(crate) limits: Limits,
    pub(crate) stop: Stop,
    pub(crate) runtime: Handle,
    /// What is read and written. It is over before the result is given.
    pub(crate) tracker: TaskTracker,
    pub(crate) outputs: Vec<Output>,
    blocks: Option<Blocks>,
}

impl Job {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, descriptor: Arc<Descriptor>, limits: Limits, stop: Stop, tracker: &TaskTracker) -> Self {
        let runtime = Handle::current();
        let outputs = descriptor.outputs.iter().enumerate();
        let outputs = outputs
            .map(|(number, object)| Output::new(device.clone(), object.clone(), number, limits.block, tracker.clone(), stop.clone(), runtime.clone()))
            .collect();
        Self { device, descriptor, limits, stop, runtime, tracker: tracker.clone(), outputs, blocks: None }
    }

    /// What was asked for.
    #[must_use]
    pub fn descriptor(&self) -> &Arc<Descriptor> {
        &self.descriptor
    }

    /// What it may take.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// When it has to end.
    #[must_use]
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// The runtime, for operations that wait for something. Operations are on threads that may block.
    #[must_use]
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// An input, to be read anywhere.
    #[must_use]
    pub fn reader(&self, input: usize) -> Option<ObjectReader> {
        self.descriptor.inputs.get(input).map(|object| ObjectReader::new(self.device.clone(), object.clone(), self.limits.block))
    }

    /// A part of an output object, to be read again.
    #[must_use]
    pub fn reader_of_output(&self, output: usize, range: Range<u64>) -> Option<ObjectReader> {
        let object = self.descriptor.outputs.get(output)?;
        let object = Object { length: range.end, begin: range.start, ..object.clone() };
        Some(ObjectReader::new(self.device.clone(), object, self.limits.block))
    }

    /// An output object.
    pub fn output(&mut self, output: usize) -> Option<&mut Output> {
        self.outputs.get_mut(output)
    }

    /// Where the bytes of the only item go: output object 0, if there is one, or the result.
    pub fn sink(&mut self) -> Sink<'_> {
        let most = self.limits.result.saturating_sub(HEADER + 8 * self.outputs.len() + SURE);
        match self.outputs.first_mut() {
            Some(output) => Sink::Output(output),
            None => Sink::Inline(Vec::new(), most),
        }
    }

    /// An input that is read from begin to end. Inputs are asked for in ascending order.
    ///
    /// # Errors
    /// `Internal` for one that is not there.
    pub fn input(&mut self, number: usize) -> Result<Input<'_>> {
        let object = self.descriptor.inputs.get(number).ok_or_else(|| Error::internal(format!("there is no input object {number}")))?;
        let blocks = self.blocks.get_or_insert_with(|| {
            Blocks::new(self.device.clone(), self.descriptor.inputs.clone().into(), &self.limits, self.stop.clone(), (&self.tracker, &self.runtime))
        });
        let element = self.limits.element;
        Ok(Input { number, object, blocks, limits: &self.limits, stop: &self.stop, device: &self.device, element, share: u64::MAX })
    }
}

/// An input that is read from begin to end.
#[derive(Debug)]
pub struct Input<'a> {
    number: usize,
    object: &'a Object,
    blocks: &'a mut Blocks,
    limits: &'a Limits,
    stop: &'a Stop,
    device: &'a Arc<dyn BlockDevice>,
    element: usize,
    share: u64,
}

impl Input<'_> {
    /// Its number among the inputs, from 0.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> &Object {
        self.object
    }

    /// What the EXEC may take.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.limits
    }

    /// The longest head, and the longest tail, that the result has room for.
    #[must_use]
    pub fn element(&self) -> usize {
        self.element
    }

    /// Bytes of data after which an operation that can go on later should end, so that later inputs have room, too.
    #[must_use]
    pub fn share(&self) -> u64 {
        self.share
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// Those of the device, and of a stop.
    pub fn next_block(&mut self) -> Result<Option<Bytes>> {
        self.blocks.next(self.number)
    }

    /// Whether the computation goes on.
    ///
    /// # Errors
    /// Those of [`Stop::check`].
    pub fn check(&self) -> Result<()> {
        self.stop.check()
    }

    /// When the computation has to end.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// The same input, to be read anywhere.
    #[must_use]
    pub fn reader(&self) -> ObjectReader {
        ObjectReader::new(self.device.clone(), self.object.clone(), self.limits.block)
    }
}

/// Runs an operation. Its panics become errors.
pub(crate) fn run(operation: &dyn Operation, job: &mut Job) -> ExecResult {
    let mut result = ExecResult { opcode: job.descriptor.opcode, ..ExecResult::default() };
    let done = guarded(|| plan(operation, &job.descriptor)).and_then(|plan| match plan {
        Plan::Objects(work) => {
            run_objects(work, job, &mut result);
            Ok(())
        }
        Plan::Whole(work) => guarded(|| work.run(job)).map(|items| result.items = items),
    });
    if let Err(error) = done {
        result.failure = Some((&error).into());
        return result;
    }
    if result.encoded_length() > job.limits.result {
        result.items = Vec::new();
        result.failure = Some((&Error::exhausted(format!("the result is longer than {} bytes; give an output object", job.limits.result))).into());
    }
    for output in &mut job.outputs {
        match output.finish() {
            Ok(written) => result.outputs.push(written),
            Err(error) => {
                result.outputs.push(0);
                result.failure.get_or_insert_with(|| (&error).into());
            }
        }
    }
    if job.descriptor.has(crate::codes::descriptor_flag::DURABLE)
        && let Err(error) = job.runtime.block_on(job.device.flush())
    {
        result.failure.get_or_insert_with(|| (&error.context("what was written may not be durable")).into());
    }
    result
}

fn plan(operation: &dyn Operation, descriptor: &Descriptor) -> Result<Plan> {
    let mut arguments = Arguments::new(operation.name(), descriptor);
    let plan = operation.plan(&mut arguments, descriptor)?;
    arguments.finish()?;
    if matches!(plan, Plan::Objects(_)) && !descriptor.outputs.is_empty() && descriptor.outputs.len() != descriptor.inputs.len() {
        let (inputs, outputs) = (descriptor.inputs.len(), descriptor.outputs.len());
        return Err(Error::invalid(format!("{}: {inputs} input objects need as many output objects, not {outputs}", operation.name())));
    }
    Ok(plan)
}

fn run_objects(mut work: Box<dyn ObjectWork>, job: &mut Job, result: &mut ExecResult) {
    let count = job.descriptor.inputs.len();
    let most = job.limits.result;
    // Outputs are taken out, so that an input can borrow the job.
    let mut outputs = std::mem::take(&mut job.outputs);
    let mut used = HEADER + 8 * outputs.len();
    for number in 0..count {
        let room = most.saturating_sub(used + (count - number) * SURE);
        let mut sink = match outputs.get_mut(number) {
            Some(output) => Sink::Output(output),
            // What is sure holds a digest even where there is no room.
            None => Sink::Inline(Vec::new(), (room / 2).max(64)),
        };
        let done = job.input(number).and_then(|mut input| {
            input.element = input.element.min(room / 4);
            if matches!(sink, Sink::Inline(..)) {
                input.share = (room / 2 / (count - number)) as u64;
            }
            let item = guarded(|| work.run(&mut input, &mut sink))?;
            input.check()?;
            Ok(item)
        });
        let done = done.and_then(|mut item| {
            match sink {
                Sink::Inline(data, _) if !data.is_empty() => item.data = data.into(),
                Sink::Inline(..) => {}
                Sink::Output(output) => {
                    output.finish()?;
                    item.flags |= item_flag::IN_OUTPUT;
                }
            }
            Ok(item)
        });
        let mut item = done.unwrap_or_else(|error| Item::failed(&error.context(format!("input object {number}"))));
        let left = most.saturating_sub(used + (count - number - 1) * SURE);
        if item.encoded_length() > left {
            match &mut item.failure {
                // The kind stays: a client acts by it.
                Some(failure) => failure.text.truncate(failure.text.floor_char_boundary(left.saturating_sub(ITEM) / 8 * 8)),
                None => item = Item::failed(&Error::exhausted("the result is full; ask for fewer objects")),
            }
        }
        used += item.encoded_length();
        result.items.push(item);
    }
    job.outputs = outputs;
}

fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::internal(format!("the operation panicked: {}", text.unwrap_or_default())))
    })
}
