//! What tests of volumes share, whatever they are on.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use skytether_volume::{BlockDevice, Options, VolumeName};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Small bounds, so that tests reach them.
pub(crate) fn small() -> Options {
    Options {
        extent: 64 << 10,
        segment_bytes: MIB + 8192,
        journal_bytes: 4 * (MIB + 8192),
        cache_bytes: 512 * KIB,
        dirty_extents: 512,
        merge_bytes: 256 * KIB,
        idle: Duration::from_secs(3600),
        stall: Duration::from_secs(20),
        discard_journal: Vec::new(),
        flush_merges: false,
    }
}

pub(crate) fn name(text: &str) -> VolumeName {
    text.parse().unwrap()
}

/// Runs `test` on a runtime with two threads, with a deadline.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let done = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(if is_soak() { 10_000 } else { 240 }), test).await });
    done.expect("a test hangs")
}

/// Bytes that follow from `seed`, not of a short period.
pub(crate) fn bytes(seed: u64, len: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut data = vec![0; len];
    random.fill(&mut data);
    data.into()
}

pub(crate) async fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let size = device.info().size;
    let mut all = Vec::new();
    while (all.len() as u64) < size {
        let len = (size - all.len() as u64).min(768 * KIB) as u32;
        all.extend_from_slice(&device.read(all.len() as u64, len).await.unwrap());
    }
    all
}

/// The first block in which the two differ.
pub(crate) fn differs(a: &[u8], b: &[u8]) -> Option<usize> {
    assert_eq!(a.len(), b.len());
    a.chunks(4096).zip(b.chunks(4096)).position(|(a, b)| a != b)
}

pub(crate) fn is_soak() -> bool {
    std::env::var_os("SKYTETHER_SOAK").is_some()
}

/// What a [`Backing`](skytether_volume::Backing) over another one, its field 0, passes on: all but changes and reads of
/// parts.
macro_rules! passes_on {
    () => {
        fn name(&self) -> String {
            self.0.name()
        }
        fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
            self.0.get(key)
        }
        fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
            self.0.stat(key)
        }
        fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
            self.0.list(prefix, after, limit)
        }
        fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
            self.0.verify(asked)
        }
        fn links(&self) -> bool {
            self.0.links()
        }
    };
}
pub(crate) use passes_on;
