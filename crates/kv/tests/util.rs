//! What the tests share.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use skytether_kv::{Change, Durability, Failed, KeyValues, Options};

/// Waits for a future in this thread.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(done) => return done,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Polls a future once and gives it up.
pub(crate) fn poll_once(future: impl Future) {
    let _ = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
}

/// Options of tests that lose no power.
pub(crate) fn quick() -> Options {
    Options { sync: false, ..Options::default() }
}

pub(crate) fn open(dir: &Path) -> KeyValues {
    KeyValues::open(dir, &quick()).unwrap()
}

pub(crate) fn write(store: &KeyValues, batch: Vec<Change>) -> Result<(), Failed> {
    wait(store.write(batch, Durability::Back))
}

pub(crate) fn put(store: &KeyValues, key: &[u8], value: &[u8]) {
    write(store, vec![Change::put(key.to_vec(), value.to_vec())]).unwrap();
}

/// The value of a key, which must be readable.
pub(crate) fn value(store: &KeyValues, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key).unwrap().map(|record| record.value.to_vec())
}

/// Bytes that follow from a seed.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

pub(crate) fn is_soak() -> bool {
    std::env::var_os("SKYTETHER_SOAK").is_some()
}

/// The end of what was written to a journal: all after it are the zeros of a hole.
pub(crate) fn written(journal: &[u8]) -> usize {
    journal.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)
}

/// Copies a directory. Of the 64 MiB of zeros at the end of a journal, a page remains.
pub(crate) fn copy_trimmed(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_trimmed(&entry.path(), &target);
            continue;
        }
        let mut content = std::fs::read(entry.path()).unwrap();
        if target.extension().is_some_and(|extension| extension == "jnl") {
            let len = content.len().min(written(&content) + 4096);
            content.truncate(len);
        }
        std::fs::write(target, content).unwrap();
    }
}
