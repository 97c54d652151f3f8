//! A blocking [`SliceStore`] over an asynchronous [`Storage`], for readers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use skytether_common::{Error, Key, Result};
use skytether_device::Storage;
use skytether_runtime::waiting;
use skytether_store::{Entry, Op, SliceStore, Usage, Version};
use tokio::runtime::Handle;

/// Reads what another CSE stores. Its calls wait for tasks of a runtime; they are better made by other
/// threads than the runtime's own.
#[derive(Debug)]
pub struct RemoteStore {
    storage: Arc<dyn Storage>,
    runtime: Handle,
    deadline: Duration,
}

impl RemoteStore {
    /// What `storage` has, read by tasks of the present runtime; a call may take as long as `deadline`.
    ///
    /// # Panics
    /// Outside a runtime.
    #[must_use]
    pub fn new(storage: Arc<dyn Storage>, deadline: Duration) -> Self {
        Self { storage, runtime: Handle::current(), deadline }
    }

    fn wait<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(&self, call: impl FnOnce(Arc<dyn Storage>) -> F) -> Result<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let (call, deadline) = (call(Arc::clone(&self.storage)), self.deadline);
        let name = self.storage.info().name.clone();
        let silent = Error::unavailable(format!("{name} has not answered for {} s", deadline.as_secs_f64()));
        self.runtime.spawn(async move {
            let answer = tokio::time::timeout(deadline, call).await.unwrap_or(Err(silent));
            let _ = sender.send(answer);
        });
        // The task above may be one of this thread's.
        waiting(|| receiver.recv()).unwrap_or_else(|_| Err(Error::unavailable(format!("{name} was not heard to the end: this process is shutting down"))))
    }
}

impl SliceStore for RemoteStore {
    fn apply(&self, _: Vec<Op>) -> Result<Vec<Version>> {
        Err(Error::unsupported("a store that is read from elsewhere is not written to"))
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        let key = key.clone();
        self.wait(|storage| async move { storage.get(&key).await })
    }

    /// The storage may reconstruct the value from other drives.
    fn get_mended(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        self.get_expected(key, len, crc32c)
    }

    fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (key, ranges) = (key.clone(), ranges.to_vec());
        self.wait(|storage| async move { storage.get_ranges_unverified(&key, &ranges).await })
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        let key = key.clone();
        self.wait(|storage| async move { storage.stat(&key).await })
    }

    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.wait(move |storage| async move { storage.list(&prefix, after.as_ref(), limit).await })
    }

    fn usage(&self) -> Result<Usage> {
        self.wait(|storage| async move { storage.usage().await })
    }
}
