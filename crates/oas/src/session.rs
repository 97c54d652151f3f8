//! A session with a target, or without one: descriptors there, the same operations here where that fails.
//!
//! Calls block; several threads may call at once. Inside runs a runtime of its own.
//!
//! See also: [`crate::operations`] for the calls that most programs want.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_common::{Error, Kind, Result};
use skytether_offload::codes::{MOST_RESULT, descriptor_flag};
use skytether_offload::operations::registry;
use skytether_offload::{Capabilities, Descriptor, ExecResult, Extent, Item, Object, Offload, Options};
use skytether_volume::Exec;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::carrier::Disk;
use crate::files::{Content, Files, FilesDevice};
use crate::group::{Group, Maps, key};
use crate::input::{Input, Part};
use crate::node::Node;
use crate::output_file::OutputFile;
use crate::path::{Caller, Path};
use crate::places::OpenFile;
use crate::remote::Remote;
use crate::request::Request;
use crate::same_disk::SameDisk;
use crate::scsi::ScsiPath;
use crate::threads::Threads;
use crate::url::Url;

/// How often an operation is repeated whose files changed meanwhile.
const TRIES: usize = 3;

/// How long a target that could not be reached is not asked again.
const PAUSE: Duration = Duration::from_secs(5);

/// How long a target may take to say what it can do.
const GREETING: Duration = Duration::from_secs(30);

/// How operations are carried out.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether what the target can't do is done here.
    pub here: bool,
    /// The longest time of one descriptor, waiting and answering included.
    pub time: Duration,
    /// Descriptors under way at the same time.
    pub parallel: NonZeroUsize,
    /// Inputs of a descriptor.
    pub batch: NonZeroUsize,
    /// The longest result that is taken, in bytes.
    pub result: usize,
}

impl Default for Settings {
    fn default() -> Self {
        let number = |n| NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN);
        Self { here: true, time: Duration::from_secs(600), parallel: number(4), batch: number(64), result: 4 << 20 }
    }
}

/// Where something was computed.
#[derive(Debug, Clone)]
pub enum Ran {
    /// In the target.
    There,
    /// In this process.
    Here {
        /// Why not in the target; `None` where there is none.
        why: Option<Arc<Error>>,
    },
}

impl Ran {
    /// Whether it was in the target.
    #[must_use]
    pub fn is_there(&self) -> bool {
        matches!(self, Self::There)
    }
}

/// What came out.
#[derive(Debug)]
pub struct Done<T> {
    /// The answer, or why there is none.
    pub value: Result<T>,
    /// Where it was computed.
    pub ran: Ran,
}

impl<T> Done<T> {
    /// Takes the answer further.
    pub fn and_then<U>(self, next: impl FnOnce(T) -> Result<U>) -> Done<U> {
        Done { value: self.value.and_then(next), ran: self.ran }
    }

    fn failed(error: Error, ran: Ran) -> Self {
        Self { value: Err(error), ran }
    }
}

struct Target {
    path: Arc<dyn Path>,
    known: Mutex<Known>,
    disk: SameDisk,
}

#[derive(Default)]
struct Known {
    capabilities: Option<Arc<Capabilities>>,
    /// Why it could not be reached, and until when it is not asked again.
    unreachable: Option<(Error, Instant)>,
}

/// A session.
pub struct Session {
    threads: Arc<Threads>,
    target: Option<Arc<Target>>,
    /// Why there is no target, where one was looked for.
    why: Option<Arc<Error>>,
    local: Arc<dyn Exec>,
    settings: Settings,
    stop: CancellationToken,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("target", &self.name()).field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What computes here: the operations of crate `offload`, without an engine for queries.
///
/// # Errors
/// None that are not defects.
pub fn local_operations() -> Result<Arc<dyn Exec>> {
    Ok(Arc::new(Offload::new(registry(None)?, local_options())?))
}

/// The limits of computing here: those of the machine, not of a drive.
#[must_use]
pub fn local_options() -> Options {
    Options {
        running: std::thread::available_parallelism().map_or(2, NonZeroUsize::get),
        waiting: usize::MAX,
        // The caller's time is what counts.
        time: Duration::from_secs(30 * 24 * 3600),
        memory: 256 << 20,
        result: MOST_RESULT as u32,
        bytes: i64::MAX as u64,
        ..Options::default()
    }
}

impl Session {
    /// A session with the target of `url`, which is reached with the first operation.
    ///
    /// # Errors
    /// `Invalid` for a URL that is none; what the system says where a device node can't be opened.
    pub fn open(url: &str, settings: Settings) -> Result<Self> {
        let path: Arc<dyn Path> = match url.parse()? {
            Url::Iscsi(url) => Arc::new(ScsiPath::new(Remote::new(url))),
            Url::Node(node) => Arc::new(ScsiPath::new(Node::open(node)?)),
        };
        Self::with(Some(path), local_operations()?, settings)
    }

    /// A session with the disk that carries a file, where the kernel has its target: an iSCSI disk, for example.
    /// Commands go through its device node.
    ///
    /// # Errors
    /// `Unsupported` where the target can't be told from the file: its URL must be given then.
    pub fn of_file(file: &OpenFile, settings: Settings) -> Result<Self> {
        let places = file.places()?;
        let name = &places.carrier.name;
        let node = match &places.carrier.disk {
            Disk::Scsi { node, .. } => node.clone(),
            Disk::Loop { file } => {
                return Err(Error::unsupported(format!("{name} is the file {}; give the URL of the target that has it", file.display())));
            }
            Disk::Nvme { .. } => return Err(Error::unsupported(format!("{name} is an NVMe disk, which has no way to its target yet; give a URL"))),
            Disk::Other => return Err(Error::unsupported(format!("{name} does not tell its target; give the target's URL"))),
        };
        Self::with(Some(Arc::new(ScsiPath::new(Node::open(node)?))), local_operations()?, settings)
    }

    /// As [`Session::of_file`], or without a target where the disk below can't be told and things may be done here.
    /// Answers have that reason then.
    ///
    /// # Errors
    /// Those of [`Session::of_file`], if nothing may be done here.
    pub fn below(file: &OpenFile, settings: Settings) -> Result<Self> {
        match Self::of_file(file, settings.clone()) {
            Err(error) if settings.here => Ok(Self { why: Some(Arc::new(error)), ..Self::local(settings)? }),
            found => found,
        }
    }

    /// A session without a target: everything is done here.
    ///
    /// # Errors
    /// `Unavailable` where threads can't be started.
    pub fn local(settings: Settings) -> Result<Self> {
        Self::with(None, local_operations()?, settings)
    }

    /// A session over any way to a target, and with any operations here: with an engine for queries, for example.
    ///
    /// # Errors
    /// `Unavailable` where threads can't be started.
    pub fn with(path: Option<Arc<dyn Path>>, local: Arc<dyn Exec>, settings: Settings) -> Result<Self> {
        let target = path.map(|path| Arc::new(Target { path, known: Mutex::default(), disk: SameDisk::default() }));
        Ok(Self { threads: Arc::new(Threads::start()?), target, why: None, local, settings, stop: CancellationToken::new() })
    }

    /// The same session, for calls that end with an error when `stop` is cancelled.
    #[must_use]
    pub fn stopped_by(&self, stop: CancellationToken) -> Self {
        let Self { threads, target, why, local, settings, .. } = self;
        Self { threads: threads.clone(), target: target.clone(), why: why.clone(), local: local.clone(), settings: settings.clone(), stop }
    }

    /// The same session, in which nothing is done here.
    #[must_use]
    pub fn only_there(&self) -> Self {
        let mut only = self.stopped_by(self.stop.clone());
        only.settings.here = false;
        only
    }

    /// Why there is no target, where one was looked for.
    #[must_use]
    pub fn why(&self) -> Option<Arc<Error>> {
        self.why.clone()
    }

    /// Waits for work of the runtime, until the session is stopped.
    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.threads.wait(async {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => Err(Error::unavailable("the call was interrupted")),
                done = work => done,
            }
        })
    }

    /// The target's name.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        self.target.as_ref().map(|target| target.path.name())
    }

    /// How operations are carried out.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn target(&self) -> Result<&Target> {
        self.target.as_deref().ok_or_else(|| Error::not_found("there is no target"))
    }

    /// What the target can do.
    ///
    /// # Errors
    /// `NotFound` without a target, `Unsupported` where it has no EXEC, `Unavailable` where it can't be reached.
    pub fn capabilities(&self) -> Result<Arc<Capabilities>> {
        let target = self.target()?;
        // Others wait: they ask for the same.
        let mut known = target.known.lock();
        if let Some(capabilities) = &known.capabilities {
            return Ok(capabilities.clone());
        }
        if let Some((error, until)) = &known.unreachable
            && Instant::now() < *until
        {
            return Err(error.flattened());
        }
        let deadline = Instant::now() + self.settings.time.min(GREETING);
        match self.wait(target.path.capabilities(Caller { deadline })) {
            Ok(capabilities) => Ok(known.capabilities.insert(Arc::new(capabilities)).clone()),
            Err(error) if self.stop.is_cancelled() => Err(error),
            Err(error) => {
                known.unreachable = Some((error.flattened(), Instant::now() + PAUSE));
                Err(error)
            }
        }
    }

    /// Has a descriptor carried out in the target: the form for programs that know the places themselves.
    ///
    /// # Errors
    /// Those of the target; `Unavailable` for an answer that is none. `Corrupt` is what the target itself found.
    pub fn exec(&self, descriptor: &Descriptor) -> Result<ExecResult> {
        let target = self.target()?;
        let capabilities = self.capabilities()?;
        let most = self.settings.result.min(capabilities.limits.result as usize).min(MOST_RESULT);
        let mut descriptor = descriptor.clone();
        if descriptor.time == 0 {
            descriptor.time = self.settings.time.as_millis().min(u32::MAX.into()) as u32;
        }
        if descriptor.result == 0 {
            descriptor.result = most as u64;
        }
        let bytes = descriptor.encode()?;
        if bytes.len() > capabilities.limits.descriptor as usize {
            return Err(Error::exhausted(format!("{}: a descriptor of {} bytes is too long for it", target.path.name(), bytes.len())));
        }
        let caller = Caller { deadline: Instant::now() + self.settings.time };
        let result = self.wait(target.path.exec(bytes, most, caller))?;
        decode(&result, &descriptor).map_err(|error| error.named(&target.path.name()))
    }

    /// Carries out a request on each input alone, in the target where that is possible. Answers are in the inputs'
    /// order. Inputs go in batches, several at the same time.
    #[must_use]
    pub fn run_each(&self, request: &Request, inputs: &[Input]) -> Vec<Done<Item>> {
        let batches: Vec<&[Input]> = inputs.chunks(self.settings.batch.get()).collect();
        let next = AtomicUsize::new(0);
        let found: Vec<Mutex<Vec<Done<Item>>>> = batches.iter().map(|_| Mutex::default()).collect();
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let (Some(inputs), Some(place)) = (batches.get(number), found.get(number)) else { return };
                *place.lock() = self.run_batch(request, inputs);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.settings.parallel.get().min(batches.len()) {
                scope.spawn(work);
            }
            work();
        });
        found.into_iter().flat_map(Mutex::into_inner).collect()
    }

    fn run_batch(&self, request: &Request, inputs: &[Input]) -> Vec<Done<Item>> {
        let mut slots: Vec<Slot> = inputs.iter().map(|_| Slot::default()).collect();
        if self.target.is_some() {
            self.batch_there(request, inputs, &mut slots);
        }
        let finish = |(slot, input): (Slot, &Input)| match (slot.found, slot.why) {
            (Some(item), _) => Done { value: Ok(item), ran: Ran::There },
            (None, Some(error)) if !self.may_run_here(&error) => Done::failed(error.flattened(), Ran::There),
            (None, why) => {
                let value = self.here(request, std::slice::from_ref(input), &[]).and_then(|result| only(result.items));
                Done { value, ran: Ran::Here { why: why.or_else(|| self.why.clone()) } }
            }
        };
        slots.into_iter().zip(inputs).map(finish).collect()
    }

    /// Damage must be told, and not be hidden by a cache that still has the bytes.
    fn may_run_here(&self, error: &Error) -> bool {
        self.settings.here && error.kind() != Kind::Corrupt
    }

    fn batch_there(&self, request: &Request, inputs: &[Input], slots: &mut [Slot]) {
        let mut wanted: Vec<usize> = (0..inputs.len()).collect();
        let (capabilities, disk) = match self.able(request).and_then(|capabilities| Ok((capabilities, &self.target()?.disk))) {
            Ok(able) => able,
            Err(error) => return refuse(slots, &wanted, error),
        };
        for _ in 0..TRIES {
            let mut maps = Maps::new(disk);
            let (mut groups, mut group): (Vec<Group>, Group) = (Vec::new(), Group::default());
            for &at in &wanted {
                match maps.object(&inputs[at]) {
                    Ok(object) => {
                        if !group.inputs.is_empty() && !group.fits(&object, &capabilities, self.settings.result) {
                            groups.push(std::mem::take(&mut group));
                        }
                        group.push(at, object);
                    }
                    Err(error) => slots[at].why = Some(Arc::new(error)),
                }
            }
            groups.push(group);
            for group in groups.into_iter().filter(|group| !group.inputs.is_empty()) {
                self.group_there(request, group, slots);
            }
            let changed = maps.changed();
            wanted.retain(|at| slots[*at].found.is_some() && changed.contains(&key(&inputs[*at])));
            if wanted.is_empty() {
                return;
            }
            wanted.iter().for_each(|at| slots[*at].found = None);
        }
        refuse(slots, &wanted, Error::conflict("the file changes all the time while it is computed on"));
    }

    fn group_there(&self, request: &Request, group: Group, slots: &mut [Slot]) {
        let descriptor = Descriptor { inputs: group.objects, ..request.descriptor() };
        match self.exec(&descriptor).and_then(|result| items(result, &descriptor)) {
            Err(error) => refuse(slots, &group.inputs, error),
            Ok(items) => {
                let several = items.len() > 1;
                for ((at, item), object) in group.inputs.into_iter().zip(items).zip(descriptor.inputs) {
                    match item.done().err() {
                        None => slots[at].found = Some(item),
                        // Others may have taken the room, or the time.
                        Some(error) if several && error.kind() == Kind::Exhausted => {
                            let mut alone = Group::default();
                            alone.push(at, object);
                            self.group_there(request, alone, slots);
                        }
                        Some(error) => slots[at].why = Some(Arc::new(error)),
                    }
                }
            }
        }
    }

    /// What the target can do, where it can do this.
    fn able(&self, request: &Request) -> Result<Arc<Capabilities>> {
        request.check()?;
        let capabilities = self.capabilities()?;
        if capabilities.has(request.opcode) {
            return Ok(capabilities);
        }
        let name = self.name().unwrap_or_default();
        Err(Error::unsupported(format!("{name} does not have operation {:#06x}", request.opcode)))
    }

    /// Carries out a request on all inputs together. Answers have an item for each input, or one for all, as the
    /// operation has it, and the lengths of the outputs.
    #[must_use]
    pub fn run_whole(&self, request: &Request, inputs: &[Input], outputs: &[&OutputFile]) -> Done<ExecResult> {
        let why = match self.target {
            None => self.why.clone(),
            Some(_) => match self.whole_there(request, inputs, outputs) {
                Ok(result) => return Done { value: Ok(result), ran: Ran::There },
                Err(error) if !self.may_run_here(&error) => return Done::failed(error, Ran::There),
                Err(error) => Some(Arc::new(error)),
            },
        };
        Done { value: self.here(request, inputs, outputs), ran: Ran::Here { why } }
    }

    fn whole_there(&self, request: &Request, inputs: &[Input], outputs: &[&OutputFile]) -> Result<ExecResult> {
        self.able(request)?;
        let disk = &self.target()?.disk;
        for output in outputs {
            disk.check(&output.file().places()?.carrier).map_err(|error| error.named(&output.path().display().to_string()))?;
            disk.prove(output, |descriptor| self.exec(descriptor))?;
        }
        for _ in 0..TRIES {
            let mut maps = Maps::new(disk);
            let mut descriptor = request.descriptor();
            descriptor.inputs = inputs.iter().map(|input| maps.object(input)).collect::<Result<_>>()?;
            descriptor.outputs = outputs.iter().map(|output| output.object()).collect::<Result<_>>()?;
            if !outputs.is_empty() {
                descriptor.flags |= descriptor_flag::TO_OUTPUT | descriptor_flag::DURABLE;
            }
            let result = self.exec(&descriptor)?;
            result.done()?;
            result.items.iter().try_for_each(|item| item.done().map(|_| ()))?;
            if maps.changed().is_empty() {
                outputs.iter().zip(&result.outputs).try_for_each(|(output, written)| output.forget(*written))?;
                return Ok(result);
            }
        }
        Err(Error::conflict("files change all the time while they are computed on"))
    }

    /// The same, in this process.
    fn here(&self, request: &Request, inputs: &[Input], outputs: &[&OutputFile]) -> Result<ExecResult> {
        request.check()?;
        let mut files = Files::new();
        let mut places = std::collections::HashMap::new();
        let mut descriptor = request.descriptor();
        for input in inputs {
            let (base, size) = match places.get(&key(input)) {
                Some(found) => *found,
                None => {
                    let size = input.file.size()?;
                    let found = (files.add(Content::File(input.file.clone()), size)?, size);
                    places.insert(key(input), found);
                    found
                }
            };
            descriptor.inputs.push(input.here(base, size)?);
        }
        for output in outputs {
            let base = files.add(Content::File(output.file().clone()), output.room())?;
            descriptor.outputs.push(Object::new(output.room(), vec![Extent::new(base, output.room())]));
        }
        if !outputs.is_empty() {
            descriptor.flags |= descriptor_flag::TO_OUTPUT;
        }
        self.here_over(files, &descriptor)
    }

    fn here_over(&self, files: Files, descriptor: &Descriptor) -> Result<ExecResult> {
        let device = Arc::new(FilesDevice::new(files));
        let result = self.wait(self.local.run(device, descriptor.encode()?, self.stop.child_token()))?;
        let result = decode(&result, descriptor)?;
        result.done()?;
        Ok(result)
    }

    /// Carries out a request on parts of any contents, in this process. Each content has its length.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn run_contents(&self, request: &Request, contents: Vec<(Content, u64, Part)>) -> Result<ExecResult> {
        let mut files = Files::new();
        let mut descriptor = request.descriptor();
        for (content, length, part) in contents {
            let base = files.add(content, length)?;
            let extents = if length == 0 { Vec::new() } else { vec![Extent::new(base, length.next_multiple_of(512))] };
            descriptor.inputs.push(part.of(&Object::new(length, extents))?);
        }
        self.here_over(files, &descriptor)
    }

    /// Carries out a request on a part of bytes in memory, in this process.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn run_bytes(&self, request: &Request, bytes: Bytes, part: Part) -> Result<Item> {
        let length = bytes.len() as u64;
        only(self.run_contents(request, vec![(Content::Memory(bytes), length, part)])?.items)
    }
}

/// What is known of an input.
#[derive(Default)]
struct Slot {
    found: Option<Item>,
    /// Why the target did not compute it.
    why: Option<Arc<Error>>,
}

fn refuse(slots: &mut [Slot], wanted: &[usize], error: Error) {
    let error = Arc::new(error);
    wanted.iter().for_each(|at| slots[*at].why = Some(error.clone()));
}

/// A result that belongs to a descriptor. Another one says nothing of the data, so the error is not that of damage.
fn decode(bytes: &Bytes, descriptor: &Descriptor) -> Result<ExecResult> {
    let result = ExecResult::decode(bytes).map_err(|error| Error::unavailable("the target's answer is no result of EXEC").with_source(error))?;
    if result.opcode != descriptor.opcode {
        return Err(Error::unavailable(format!("the target's answer is that of operation {:#06x}, not {:#06x}", result.opcode, descriptor.opcode)));
    }
    if result.failure.is_none() && result.outputs.len() != descriptor.outputs.len() {
        return Err(Error::unavailable(format!("the target's answer has {} outputs for {}", result.outputs.len(), descriptor.outputs.len())));
    }
    if result.outputs.iter().zip(&descriptor.outputs).any(|(written, output)| *written > output.length) {
        return Err(Error::unavailable("the target's answer has an output that is longer than its room"));
    }
    Ok(result)
}

/// The items, one for each input.
fn items(result: ExecResult, descriptor: &Descriptor) -> Result<Vec<Item>> {
    result.done()?;
    if result.items.len() != descriptor.inputs.len() {
        return Err(Error::unavailable(format!("the target's answer has {} items for {} inputs", result.items.len(), descriptor.inputs.len())));
    }
    Ok(result.items)
}

fn only(items: Vec<Item>) -> Result<Item> {
    let count = items.len();
    match <[Item; 1]>::try_from(items) {
        Ok([item]) => {
            item.done()?;
            Ok(item)
        }
        Err(_) => Err(Error::unavailable(format!("an answer has {count} items for one input"))),
    }
}
