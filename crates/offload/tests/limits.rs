//! Limits, stops, and what happens when a device fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::{Error, Kind, Result};
use skytether_offload::codes::descriptor_flag::{DURABLE, TO_OUTPUT};
use skytether_offload::codes::{opcode, tag};
use skytether_offload::job::Input;
use skytether_offload::output::Sink;
use skytether_offload::{
    Arguments, Capabilities, Descriptor, ExecResult, Extent, Item, Object, ObjectWork, Offload, Operation, Options, Plan, Registry, operations,
};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, DeviceInfo, Durability, Exec, Zeros};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::util::{Disk, exec, exec_with, wait};

fn hole(len: u64) -> Object {
    Object::new(len, vec![Extent::hole(len)])
}

/// A device that counts, waits, and fails at a place.
#[derive(Debug)]
struct Odd {
    inner: MemoryDevice,
    read_only: bool,
    bad: Option<u64>,
    gate: Option<Arc<Semaphore>>,
    reads: AtomicUsize,
    under_way: AtomicUsize,
    most_under_way: AtomicUsize,
    writes: AtomicUsize,
    /// Each write waits for this.
    write_gate: Option<Arc<Semaphore>>,
    /// Writes that began.
    writing: AtomicUsize,
    flushed: AtomicBool,
    outside: AtomicBool,
    allowed: Vec<Extent>,
}

impl Odd {
    fn new(size: u64) -> Self {
        Self {
            inner: MemoryDevice::new("odd", size),
            read_only: false,
            bad: None,
            gate: None,
            reads: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            write_gate: None,
            writing: AtomicUsize::new(0),
            flushed: AtomicBool::new(false),
            outside: AtomicBool::new(false),
            allowed: Vec::new(),
        }
    }
}

/// A read that is under way, until it ends or is dropped.
struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BlockDevice for Odd {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { read_only: self.read_only, ..self.inner.info() }
    }

    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let under_way = 1 + self.under_way.fetch_add(1, Ordering::SeqCst);
            self.most_under_way.fetch_max(under_way, Ordering::SeqCst);
            let _under_way = UnderWay(&self.under_way);
            if let Some(gate) = &self.gate {
                gate.acquire().await.unwrap().forget();
            }
            if self.bad.is_some_and(|bad| at <= bad && bad < at + u64::from(len)) {
                return Err(Error::corrupt(format!("odd: damage at {at}, which is told in many words: {}", "it is damaged ".repeat(9))));
            }
            self.inner.read(at, len).await
        }
        .boxed()
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<()>> {
        async move {
            let within = |extent: &Extent| extent.place <= at && at + data.len() as u64 <= extent.place + extent.length;
            if !self.allowed.iter().any(within) {
                self.outside.store(true, Ordering::SeqCst);
            }
            self.writing.fetch_add(1, Ordering::SeqCst);
            if let Some(gate) = &self.write_gate {
                gate.acquire().await.unwrap().forget();
            }
            self.inner.write(at, data, durability).await?;
            self.writes.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
        .boxed()
    }

    fn compare_and_write(&self, at: u64, expected: Bytes, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<Option<u32>>> {
        self.inner.compare_and_write(at, expected, data, durability)
    }

    fn zero(&self, at: u64, len: u64, how: Zeros, durability: Durability) -> BoxFuture<'_, Result<()>> {
        self.inner.zero(at, len, how, durability)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.flushed.store(true, Ordering::SeqCst);
        self.inner.flush()
    }

    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<skytether_volume::Extent>>> {
        self.inner.extents(at, len)
    }
}

impl Odd {
    /// Waits until that many reads began.
    async fn has_begun(&self, reads: usize) {
        while self.reads.load(Ordering::SeqCst) < reads {
            tokio::task::yield_now().await;
        }
    }
}

/// A block that is read, and zeros without end.
fn endless() -> Object {
    Object::new(1 << 39, vec![Extent::new(0, 512), Extent::hole(1 << 39)])
}

async fn run(exec: &Offload, device: Arc<Odd>, descriptor: &Descriptor) -> ExecResult {
    ExecResult::decode(&exec.run(device, descriptor.encode().unwrap(), CancellationToken::new()).await.unwrap()).unwrap()
}

async fn failure(descriptor: &Descriptor, options: Options) -> skytether_offload::Failure {
    Disk::new(1 << 20).exec(&exec_with(options), descriptor).await.failure.unwrap()
}

#[test]
fn places_beyond_the_device_or_that_overlap_are_refused() {
    wait(async {
        let object = |place, length| Object::new(1, vec![Extent::new(place, length)]);
        let ask = |input, outputs: Vec<Object>| {
            let ask = Descriptor::new(opcode::COMPRESS_ZSTD).with(TO_OUTPUT).input(input);
            outputs.into_iter().fold(ask, Descriptor::output)
        };
        for ask in [
            Descriptor::new(opcode::MD5).input(object(1 << 20, 512)),
            ask(object(0, 4096), vec![object((1 << 20) - 512, 1024)]),
            ask(object(0, 4096), vec![object(2048, 512)]),
            ask(object(4096, 4096), vec![object(0, 4608)]),
            ask(object(0, 512), vec![object(4096, 4096), object(7680, 512)]),
            ask(object(0, 512), vec![object(4096, 512), object(8192, 512)]),
            Descriptor::new(opcode::MD5).with(TO_OUTPUT).input(object(0, 512)),
            Descriptor::new(opcode::MD5).input(object(0, 512)).output(object(512, 512)),
        ] {
            let failure = failure(&ask, Options::default()).await;
            assert_eq!(failure.kind, Kind::Invalid, "{}", failure.text);
        }
    });
}

#[test]
fn read_only_devices_refuse_outputs_and_are_read() {
    wait(async {
        let device = Arc::new(Odd { read_only: true, ..Odd::new(1 << 20) });
        let ask = Descriptor::new(opcode::COMPRESS_LZ4).input(hole(512));
        assert!(run(&exec(), device.clone(), &ask).await.failure.is_none());
        let ask = ask.with(TO_OUTPUT).output(Object::new(512, vec![Extent::new(0, 512)]));
        assert_eq!(run(&exec(), device, &ask).await.failure.unwrap().kind, Kind::Conflict);
    });
}

/// Outputs of several extents: nothing is written elsewhere, and DURABLE flushes.
#[test]
fn outputs_are_written_within_their_extents() {
    wait(async {
        let extents = vec![Extent::new(65_536, 512), Extent::new(4096, 8192), Extent::new(131_072, 65_536)];
        let device = Arc::new(Odd { allowed: extents.clone(), ..Odd::new(1 << 20) });
        let room = Object::new(60_000, extents);
        let ask = Descriptor::new(opcode::DECOMPRESS_ZSTD).input(Object::default());
        let run_with = async |ask: Descriptor| run(&exec(), device.clone(), &ask.with(TO_OUTPUT).output(room.clone())).await;
        assert_eq!(run_with(ask).await.outputs, [0]);
        assert!(!device.flushed.load(Ordering::SeqCst));
        let ask = Descriptor::new(opcode::SORT_RECORDS).number(tag::RECORD, 7).input(hole(57_344)).with(DURABLE);
        assert_eq!(run_with(ask).await.outputs, [57_344]);
        let ask = Descriptor::new(opcode::SORT_RECORDS).number(tag::RECORD, 64).input(hole(65_536));
        assert_eq!(run_with(ask).await.failure.unwrap().kind, Kind::Exhausted);
        assert!(!device.outside.load(Ordering::SeqCst) && device.flushed.load(Ordering::SeqCst));
        assert!(device.writes.load(Ordering::SeqCst) > 3);
    });
}

#[test]
fn durable_without_outputs_flushes_the_device() {
    wait(async {
        let device = Arc::new(Odd::new(1 << 20));
        let ask = Descriptor::new(opcode::MD5).input(hole(512));
        assert!(run(&exec(), device.clone(), &ask).await.failure.is_none() && !device.flushed.load(Ordering::SeqCst));
        assert!(run(&exec(), device.clone(), &ask.with(DURABLE)).await.failure.is_none() && device.flushed.load(Ordering::SeqCst));
    });
}

#[test]
fn damage_of_one_object_does_not_hide_the_others() {
    wait(async {
        let device = Arc::new(Odd { bad: Some(150_000), ..Odd::new(1 << 20) });
        let object = |place| Object::new(100_000, vec![Extent::new(place, 100_352)]);
        let ask = [0, 102_400, 204_800].into_iter().fold(Descriptor::new(opcode::CRC32C), |ask, place| ask.input(object(place)));
        let result = run(&exec(), device, &ask).await;
        assert!(result.failure.is_none());
        assert_eq!(result.items[1].failure.as_ref().unwrap().kind, Kind::Corrupt);
        assert!(result.items[1].failure.as_ref().unwrap().text.contains("input object 1"));
        assert!(result.items[0].data.len() == 4 && result.items[0] == result.items[2]);
    });
}

/// Where a text does not fit, it is cut. Its kind says what the client can do.
#[test]
fn failures_keep_their_kind_where_texts_do_not_fit() {
    wait(async {
        let device = Arc::new(Odd { bad: Some(0), ..Odd::new(1 << 20) });
        let ask = Descriptor { result: 512, ..Descriptor::new(opcode::DECOMPRESS_ZSTD) };
        let object = Object::new(512, vec![Extent::new(0, 512)]);
        let result = run(&exec_with(Options { result: 512, ..Options::default() }), device, &(0..4).fold(ask, |ask, _| ask.input(object.clone()))).await;
        for item in &result.items {
            let failure = item.failure.as_ref().unwrap();
            assert_eq!(failure.kind, Kind::Corrupt, "{}", failure.text);
            assert!(failure.text.starts_with("input object"), "{}", failure.text);
        }
    });
}

#[test]
fn computations_that_take_too_long_are_ended() {
    wait(async {
        let ask = Descriptor { time: 1000, ..Descriptor::new(opcode::SHA256) };
        let result = Disk::new(1 << 20).exec(&exec(), &ask.input(hole(512)).input(hole(1 << 39)).input(hole(512))).await;
        assert!(result.items[0].failure.is_none());
        assert_eq!(result.items[1].failure.as_ref().unwrap().kind, Kind::Exhausted);
        assert_eq!(result.items[2].failure.as_ref().unwrap().kind, Kind::Exhausted);
    });
}

/// Also where a read never ends, and where the descriptor waits for its turn.
#[test]
fn cancelled_computations_end_soon() {
    wait(async {
        let exec = exec_with(Options { running: 1, ..Options::default() });
        let stuck = Object::new(512, vec![Extent::new(0, 512)]);
        for (object, gate) in [(endless(), None), (stuck, Some(Arc::new(Semaphore::new(0))))] {
            let device = Arc::new(Odd { gate, ..Odd::new(1 << 20) });
            let ask = Descriptor::new(opcode::SHA256).input(object).encode().unwrap();
            let (cancel, waits) = (CancellationToken::new(), CancellationToken::new());
            let running = exec.run(device.clone(), ask.clone(), cancel.clone());
            let waiting = exec.run(device.clone(), ask, waits.clone());
            let ends = async {
                device.has_begun(1).await;
                waits.cancel();
                cancel.cancel();
            };
            let (running, waiting, ()) = tokio::join!(running, waiting, ends);
            assert_eq!((running.unwrap_err().kind(), waiting.unwrap_err().kind()), (Kind::Unavailable, Kind::Unavailable));
        }
        // Nothing holds its turn any more.
        let ask = Descriptor::new(opcode::SHA256).input(hole(512));
        assert!(run(&exec, Arc::new(Odd::new(1 << 20)), &ask).await.failure.is_none());
    });
}

#[test]
fn a_dropped_computation_gives_its_turn_back() {
    wait(async {
        let exec = exec_with(Options { running: 1, ..Options::default() });
        let device = Arc::new(Odd::new(1 << 20));
        let ask = Descriptor::new(opcode::SHA256).input(endless()).encode().unwrap();
        tokio::select! {
            _ = exec.run(device.clone(), ask, CancellationToken::new()) => panic!("it ended"),
            () = device.has_begun(1) => {}
        }
        let ask = Descriptor::new(opcode::SHA256).input(hole(512));
        assert!(run(&exec, device, &ask).await.failure.is_none());
    });
}

/// Also where the caller does not wait for it: the next computation begins when nothing is written any more.
#[test]
fn a_dropped_computation_keeps_its_turn_until_it_wrote() {
    wait(async {
        let exec = exec_with(Options { running: 1, block: 4096, ..Options::default() });
        let gate = Arc::new(Semaphore::new(0));
        let extent = Extent::new(0, 1 << 20);
        let device = Arc::new(Odd { write_gate: Some(gate.clone()), allowed: vec![extent], ..Odd::new(1 << 20) });
        let ask = Descriptor::new(opcode::SORT_RECORDS).number(tag::RECORD, 64).input(hole(1 << 20)).with(TO_OUTPUT);
        let ask = ask.output(Object::new(1 << 20, vec![extent])).encode().unwrap();
        tokio::select! {
            _ = exec.run(device.clone(), ask, CancellationToken::new()) => panic!("it ended"),
            () = async { while device.writing.load(Ordering::SeqCst) < 2 { tokio::task::yield_now().await } } => {}
        }
        let ask = Descriptor { time: 300, ..Descriptor::new(opcode::SHA256).input(hole(512)) };
        let early = run(&exec, device.clone(), &ask).await.failure.unwrap();
        assert_eq!((early.kind, device.writes.load(Ordering::SeqCst)), (Kind::Exhausted, 0));
        gate.add_permits(1000);
        let ask = Descriptor { time: 10_000, ..ask };
        assert!(run(&exec, device.clone(), &ask).await.failure.is_none());
        let (began, ended) = (device.writing.load(Ordering::SeqCst), device.writes.load(Ordering::SeqCst));
        assert!(began == ended && began < 10, "{began} {ended}");
    });
}

#[test]
fn further_computations_than_may_wait_are_refused() {
    wait(async {
        let exec = exec_with(Options { running: 1, waiting: 2, ..Options::default() });
        let gate = Arc::new(Semaphore::new(0));
        let device = Arc::new(Odd { gate: Some(gate.clone()), ..Odd::new(1 << 20) });
        let ask = Descriptor::new(opcode::MD5).input(Object::new(512, vec![Extent::new(0, 512)])).encode().unwrap();
        let mut all: futures::stream::FuturesUnordered<_> = (0..4).map(|_| exec.run(device.clone(), ask.clone(), CancellationToken::new())).collect();
        let refused = futures::StreamExt::next(&mut all).await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), Kind::Exhausted);
        gate.add_permits(3);
        for _ in 0..3 {
            assert!(futures::StreamExt::next(&mut all).await.unwrap().is_ok());
        }
    });
}

#[test]
fn bytes_memory_and_results_are_bounded() {
    wait(async {
        let sum = |objects: usize, len| (0..objects).fold(Descriptor::new(opcode::MD5), |ask, _| ask.input(hole(len)));
        let options = || Options { bytes: 1 << 20, result: 4096, ..Options::default() };
        assert_eq!(failure(&sum(3, 512 << 10), options()).await.kind, Kind::Exhausted);
        assert_eq!(failure(&sum(100, 512), options()).await.kind, Kind::Exhausted);
        assert_eq!(failure(&Descriptor { result: 100, ..sum(1, 512) }, options()).await.kind, Kind::Exhausted);
        let merge = (0..3000).fold(Descriptor { memory: 1 << 20, ..Descriptor::new(opcode::MERGE_LINES) }, |ask, _| ask.input(hole(512)));
        assert_eq!(failure(&merge, Options::default()).await.kind, Kind::Exhausted);
        let sort = Descriptor::new(opcode::SORT_RECORDS).number(tag::RECORD, 512).input(hole(8192));
        assert_eq!(failure(&sort, options()).await.kind, Kind::Exhausted);
    });
}

/// While the first block is waited for, as many reads are under way as may be, and never more.
#[test]
fn reads_ahead_are_bounded() {
    wait(async {
        let gate = Arc::new(Semaphore::new(0));
        let device = Arc::new(Odd { gate: Some(gate.clone()), ..Odd::new(16 << 20) });
        let exec = exec_with(Options { block: 4096, ahead: 5, ..Options::default() });
        let ask = Descriptor::new(opcode::CRC32C).input(Object::new(4 << 20, vec![Extent::new(0, 4 << 20)]));
        let opens = async {
            device.has_begun(5).await;
            gate.add_permits(1024);
        };
        let (result, ()) = tokio::join!(run(&exec, device.clone(), &ask), opens);
        assert!(result.failure.is_none());
        assert_eq!(device.most_under_way.load(Ordering::SeqCst), 5);
    });
}

/// What a search does not want any more is not read.
#[test]
fn objects_that_end_early_are_not_read_on() {
    wait(async {
        let device = Arc::new(Odd::new(16 << 20));
        device.inner.write(0, Bytes::from(b"a\n".repeat(256)), Durability::Cached).await.unwrap();
        let exec = exec_with(Options { block: 4096, ahead: 4, ..Options::default() });
        let object = Object::new(8 << 20, vec![Extent::new(0, 8 << 20)]);
        let ask = Descriptor::new(opcode::SEARCH).bytes(tag::STRING, &b"a"[..]).number(tag::MOST, 3).input(object).input(hole(512));
        let result = run(&exec, device.clone(), &ask).await;
        assert_eq!((result.items[0].values[0], result.items[1].values[0]), (3, 0));
        assert!(device.reads.load(Ordering::SeqCst) < 100);
    });
}

/// Also reads ahead that the operation has no use for.
#[test]
fn nothing_is_read_once_the_result_is_there() {
    wait(async {
        let gate = Arc::new(Semaphore::new(2));
        let device = Arc::new(Odd { gate: Some(gate.clone()), ..Odd::new(16 << 20) });
        let exec = exec_with(Options { block: 4096, ahead: 6, ..Options::default() });
        device.inner.write(0, Bytes::from(b"b\na\n".repeat(128)), Durability::Cached).await.unwrap();
        let object = Object::new(1 << 20, vec![Extent::new(0, 1 << 20)]);
        let search = Descriptor::new(opcode::SEARCH).bytes(tag::STRING, &b"a"[..]).number(tag::MOST, 3).input(object.clone());
        assert_eq!(run(&exec, device.clone(), &search).await.items[0].values[0], 3);
        assert_eq!(device.under_way.load(Ordering::SeqCst), 0);
        gate.add_permits(1);
        let merge = Descriptor { time: 10_000, ..Descriptor::new(opcode::MERGE_LINES).input(object) };
        assert_eq!(run(&exec, device.clone(), &merge).await.failure.unwrap().kind, Kind::Invalid);
        assert_eq!(device.under_way.load(Ordering::SeqCst), 0);
    });
}

/// An operation that others add: it gives back what it got, and panics where it finds a 1.
#[derive(Debug)]
struct Copy;

struct CopyWork;

impl Operation for Copy {
    fn opcode(&self) -> u16 {
        opcode::OTHERS
    }

    fn name(&self) -> &'static str {
        "copy"
    }

    fn plan(&self, _: &mut Arguments<'_>, _: &Descriptor) -> Result<Plan> {
        Ok(Plan::Objects(Box::new(CopyWork)))
    }
}

impl ObjectWork for CopyWork {
    fn run(&mut self, input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Item> {
        while let Some(block) = input.next_block()? {
            assert!(!block.contains(&1), "a one");
            sink.write(&block)?;
        }
        Ok(Item::default())
    }
}

#[test]
fn operations_of_others_run_and_their_panics_are_caught() {
    wait(async {
        let mut registry = operations::registry(None).unwrap();
        registry.add(Arc::new(Copy)).unwrap();
        assert_eq!(registry.add(Arc::new(Copy)).unwrap_err().kind(), Kind::Conflict);
        let exec = Offload::new(registry, Options::default()).unwrap();
        assert!(Capabilities::decode(&exec.capabilities()).unwrap().has(opcode::OTHERS));
        let mut disk = Disk::new(1 << 20);
        let ask = Descriptor::new(opcode::OTHERS).input(disk.put(b"some").await).input(disk.put(&[1]).await).input(disk.put(b"more").await);
        let items = disk.exec(&exec, &ask).await.items;
        assert_eq!((&items[0].data[..], &items[2].data[..]), (&b"some"[..], &b"more"[..]));
        assert_eq!(items[1].failure.as_ref().unwrap().kind, Kind::Internal);
    });
}

#[test]
fn unknown_operations_and_arguments_are_refused_by_name() {
    wait(async {
        let disk = Disk::new(1 << 20);
        let unknown = disk.try_exec(&exec(), &Descriptor::new(0x7000)).await.unwrap_err();
        assert_eq!(unknown.kind(), Kind::Unsupported);
        assert!(unknown.message().contains("0x7000"), "{unknown}");
        let failure = failure(&Descriptor::new(opcode::MD5).number(999, 1), Options::default()).await;
        assert_eq!(failure.kind, Kind::Unsupported);
        assert!(failure.text.contains("999"), "{}", failure.text);
    });
}

#[test]
fn limits_under_which_nothing_runs_are_refused() {
    for options in [
        Options { running: 0, ..Options::default() },
        Options { block: 100, ..Options::default() },
        Options { memory: 0, ..Options::default() },
        Options { result: 10, ..Options::default() },
    ] {
        assert_eq!(Offload::new(Registry::empty(), options).unwrap_err().kind(), Kind::Invalid);
    }
    assert!(Capabilities::decode(&exec().capabilities()).unwrap().operations.len() >= 18);
    assert!(exec().capabilities().len() <= 2048);
}
