//! Drives that only store: sub-plans run on the host over their slices.

use futures::future::BoxFuture;
use std::sync::Arc;

use skytether::{DatasetKind, Placement, QueryOptions, ScrubOptions};
use skytether_common::{Error, Kind, Result};
use skytether_device::{Batches, Capabilities, CseInfo, DeliveryStream, Layer, OpenReply, SubPlan};
use skytether_drive::{Cse, Drive, Storage};
use skytether_host::{Founding, Host};
use skytether_store::memory::MemoryStore;

use crate::repair::{holds, options, rows, store};
use crate::util::{batches, lines, name, small_drive};

/// A drive that offers only its storage.
#[derive(Debug)]
struct StorageOnly {
    drive: Arc<Drive>,
    capabilities: Capabilities,
}

impl StorageOnly {
    fn refused(&self) -> Error {
        Error::internal(format!("{} was asked to run a program that it has no capability for", self.drive.info().name))
    }
}

impl Layer for StorageOnly {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn execute(&self, _: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move { Err(self.refused()) })
    }

    fn open(&self, _: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move { Err(self.refused()) })
    }
}

fn drives(capabilities: &Capabilities) -> Vec<Arc<dyn Cse>> {
    let drive = |n| Arc::new(StorageOnly { drive: small_drive(n, Arc::new(MemoryStore::new())), capabilities: capabilities.clone() }) as Arc<dyn Cse>;
    (0..3).map(drive).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sub_plans_of_storage_only_drives_run_on_the_host() {
    for redundancy in ["none", "ec:2+1"] {
        let capabilities = Capabilities { heartbeats: true, ..Capabilities::storage_only() };
        let host = Host::join(drives(&capabilities), options(redundancy), Founding::EmptyDrives).await.unwrap().0;
        store(&host, "lab.t", 40).await.unwrap();
        assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(40), "{redundancy}");
        let query = host.sql("SELECT grp, sum(n) FROM lab.t GROUP BY grp", &QueryOptions::default()).await.unwrap();
        let receipt = query.receipt.clone();
        assert_eq!(lines(&query.collect().await.unwrap()).len(), 4);
        let receipt = receipt.receipt();
        let served: Vec<_> = receipt.drives.iter().filter_map(|drive| drive.served_by_fallback.as_deref()).collect();
        assert!(!served.is_empty() && served.iter().all(|why| why.contains("it runs no sub-plans")), "{redundancy}: {receipt}");
        // Without the capability, values are verified by reading them.
        let scrubbed = host.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
        assert!(scrubbed.values > 0 && scrubbed.damaged == 0 && scrubbed.skipped.is_empty(), "{redundancy}: {scrubbed:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drives_without_atomic_batches_are_refused() {
    let capabilities = Capabilities { batches: Batches::PerKey, ..Capabilities::default() };
    let error = Host::join(drives(&capabilities), options("none"), Founding::EmptyDrives).await.err().unwrap();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().starts_with("drive-0: "), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_ingested_over_storage_only_drives_is_read_by_whole_ones() {
    let whole: Vec<Arc<Drive>> = (0..3).map(|n| small_drive(n, Arc::new(MemoryStore::new()))).collect();
    let only = |drive: &Arc<Drive>| Arc::new(StorageOnly { drive: Arc::clone(drive), capabilities: Capabilities::storage_only() }) as Arc<dyn Cse>;
    let host = Host::join(whole.iter().map(only).collect(), options("none"), Founding::EmptyDrives).await.unwrap().0;
    let mut writer = host.writer(&name("lab.t"), DatasetKind::Table, false).await.unwrap();
    let written = batches(4, 40);
    writer.write_table("data", Placement::Spread, written[0].schema(), written.into_iter().map(Ok)).await.unwrap();
    writer.commit().await.unwrap();
    drop(host);
    let host = Host::join(whole.into_iter().map(|drive| drive as _).collect(), options("none"), Founding::KnownList).await.unwrap().0;
    assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(40));
}
