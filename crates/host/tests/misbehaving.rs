//! Drives that misbehave: whatever they do, the query ends with an error that names them, and in time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use skytether_common::{DatasetName, Error, Key, Kind, Result};
use skytether_host::{Catalog, Cut, DatasetKind, Host, HostOptions, Placement, QueryOptions};
use skytether_store::memory::MemoryStore;
use skytether_store::{Entry, Op, SliceStore, Usage, Version};
use skytether_wire::{Annotation, Cse, CseInfo, Delivery, DeliveryStream, Storage, SubPlan};
use uuid::Uuid;

/// What the drive does with a sub-plan.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    /// Gives two rows and its annotation.
    Good,
    /// Never takes the sub-plan.
    NeverBegins,
    /// Gives a batch and then nothing, for ever.
    FallsSilent,
    /// Ends after a batch as if it had died.
    EndsEarly,
    /// Says that it is done in the middle of an epoch.
    ForgetsTheEpoch,
    /// Answers with other columns.
    OtherColumns,
    /// Announces the right columns and sends others.
    OtherBatches,
    /// Does not find what it holds.
    HasLostIt,
    /// Fails in the middle.
    Fails,
}

#[derive(Debug)]
struct TestDrive {
    info: CseInfo,
    store: MemoryStore,
    behaviour: Mutex<Behaviour>,
    storage_hangs: Mutex<bool>,
}

#[async_trait]
impl Storage for TestDrive {
    fn info(&self) -> &CseInfo {
        &self.info
    }
    async fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.store.apply(batch)
    }
    async fn get(&self, key: &Key) -> Result<Bytes> {
        let hangs = *self.storage_hangs.lock().unwrap();
        if hangs {
            std::future::pending::<()>().await;
        }
        self.store.get(key)
    }
    async fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        self.store.stat(key)
    }
    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        self.store.list(prefix, after, limit)
    }
    async fn usage(&self) -> Result<Usage> {
        self.store.usage()
    }
}

fn rows() -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([("id", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef, false)]).unwrap()
}

fn other_rows() -> RecordBatch {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    RecordBatch::try_from_iter_with_nullable([("id", texts.clone(), false), ("more", texts, false)]).unwrap()
}

#[async_trait]
impl Cse for TestDrive {
    async fn execute(&self, _: SubPlan) -> Result<DeliveryStream> {
        let behaviour = *self.behaviour.lock().unwrap();
        let batch = |batch| Ok(Delivery::Batch { epoch: 0, batch });
        let complete = || Ok(Delivery::EpochComplete { epoch: 0 });
        let done = || Ok(Delivery::Done(Annotation { cse: self.info.name.clone(), rows_out: 2, ..Annotation::default() }));
        let mut schema = rows().schema();
        let messages = match behaviour {
            Behaviour::Good => stream::iter(vec![batch(rows()), complete(), done()]).boxed(),
            Behaviour::NeverBegins => std::future::pending().await,
            Behaviour::FallsSilent => stream::iter(vec![batch(rows())]).chain(stream::pending()).boxed(),
            Behaviour::EndsEarly => stream::iter(vec![batch(rows())]).boxed(),
            Behaviour::ForgetsTheEpoch => stream::iter(vec![batch(rows()), done()]).boxed(),
            Behaviour::OtherColumns => {
                schema = other_rows().schema();
                stream::iter(vec![batch(other_rows()), complete(), done()]).boxed()
            }
            Behaviour::OtherBatches => stream::iter(vec![batch(other_rows()), complete(), done()]).boxed(),
            Behaviour::HasLostIt => return Err(Error::not_found("no such partition")),
            Behaviour::Fails => stream::iter(vec![batch(rows()), Err(Error::corrupt("slice 3 is damaged"))]).boxed(),
        };
        Ok(DeliveryStream { schema, messages })
    }
}

async fn fleet() -> (Host, Vec<Arc<TestDrive>>, DatasetName) {
    let drives: Vec<_> = (0..2)
        .map(|n| {
            let info = CseInfo { id: Uuid::from_u128(n + 1), name: format!("drive-{n}"), format: 1, memory_limit: 1 << 20 };
            Arc::new(TestDrive { info, store: MemoryStore::new(), behaviour: Mutex::new(Behaviour::Good), storage_hangs: Mutex::new(false) })
        })
        .collect();
    let mut options = HostOptions {
        storage_deadline: Duration::from_millis(300),
        begin_deadline: Duration::from_millis(300),
        silence_deadline: Duration::from_millis(300),
        ..HostOptions::default()
    };
    options.slices.target_bytes = 4 << 10;
    let host = Host::new(drives.iter().map(|d| Arc::clone(d) as Arc<dyn Cse>).collect(), options).unwrap();
    let name: DatasetName = "lab.t".parse().unwrap();
    let mut writer = host.writer(&name, DatasetKind::Table, false).await.unwrap();
    // Enough for several slices, so that both drives have some.
    let many = (0..20).map(|b| RecordBatch::try_from_iter_with_nullable([("id", Arc::new(Int64Array::from_iter_values((0..1000).map(|i| i * i * 7919 + b))) as ArrayRef, false)]).map_err(|e| Error::internal("a batch").because(e)));
    writer.write_table("data", Placement::Spread, rows().schema(), many).await.unwrap();
    assert!(writer.commit().await.unwrap().slices > 1);
    (host, drives, name)
}

async fn run(host: &Host, sql: &str) -> Result<usize> {
    let query = host.sql(sql, &QueryOptions { cut: Cut::Raw, ..QueryOptions::default() }).await?;
    Ok(query.collect().await?.iter().map(RecordBatch::num_rows).sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_misbehaviour_is_an_error_that_names_the_drive() {
    let (host, drives, _) = fleet().await;
    assert_eq!(run(&host, "SELECT id FROM lab.t").await.unwrap(), 4);
    for (behaviour, kind) in [
        (Behaviour::NeverBegins, Kind::Unavailable),
        (Behaviour::FallsSilent, Kind::Unavailable),
        (Behaviour::EndsEarly, Kind::Unavailable),
        (Behaviour::ForgetsTheEpoch, Kind::Internal),
        (Behaviour::OtherColumns, Kind::Internal),
        (Behaviour::OtherBatches, Kind::Internal),
        (Behaviour::HasLostIt, Kind::Conflict),
        (Behaviour::Fails, Kind::Corrupt),
    ] {
        *drives[1].behaviour.lock().unwrap() = behaviour;
        let error = run(&host, "SELECT id FROM lab.t").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{behaviour:?}: {error}");
        assert!(error.to_string().contains("drive-1"), "{behaviour:?}: {error}");
    }
    *drives[1].behaviour.lock().unwrap() = Behaviour::Good;
    assert_eq!(run(&host, "SELECT id FROM lab.t").await.unwrap(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_that_hangs_is_named_in_time() {
    let (host, drives, name) = fleet().await;
    let home = host.catalog().home(&name);
    *drives[home].storage_hangs.lock().unwrap() = true;
    let error = run(&host, "SELECT id FROM lab.t").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains(&format!("drive-{home}")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_what_no_root_record_names_and_nothing_else() {
    let (host, drives, _) = fleet().await;
    let count = || drives.iter().map(|d| d.store.usage().unwrap().keys).sum::<u64>();
    let whole = count();
    let put = |key: &str, value: &'static [u8]| Op::Put { key: Key::new(key).unwrap(), value: Bytes::from_static(value), expect: skytether_store::Expect::Any };
    let stray = ["lab/t/0000000000000001.data.0", "lab/t/0000000000000001.data.0;00000000", "gone/away/00000000000000ff.data.1;00000003"];
    drives[0].store.apply(stray.iter().map(|k| put(k, b"x")).collect()).unwrap();
    // A data set of a newer version, with a partition of its own, at its home.
    let newer: DatasetName = "lab.newer".parse().unwrap();
    let home = host.catalog().home(&newer);
    drives[home].store.apply(vec![put("lab/newer", br#"{"format": 77}"#), put("lab/newer/0000000000000002.data.0", b"y")]).unwrap();
    assert_eq!(host.catalog().collect_garbage().await.unwrap(), 3);
    assert_eq!(count(), whole + 2);
    assert_eq!(host.catalog().collect_garbage().await.unwrap(), 0);
    assert_eq!(host.catalog().read(&newer).await.unwrap_err().kind(), Kind::Unsupported);
    let replacing = host.writer(&newer, DatasetKind::Table, true).await.unwrap_err();
    assert_eq!(replacing.kind(), Kind::Unsupported, "a newer version's data set would have been replaced");
}

#[test]
fn a_host_refuses_no_drive_and_one_drive_twice() {
    let deadline = Duration::from_secs(1);
    assert_eq!(Catalog::new(vec![], deadline).unwrap_err().kind(), Kind::Invalid);
    let info = CseInfo { id: Uuid::from_u128(1), name: "drive-0".into(), format: 1, memory_limit: 1 };
    let drive: Arc<dyn Storage> = Arc::new(TestDrive { info, store: MemoryStore::new(), behaviour: Mutex::new(Behaviour::Good), storage_hangs: Mutex::new(false) });
    assert_eq!(Catalog::new(vec![Arc::clone(&drive), drive], deadline).unwrap_err().kind(), Kind::Invalid);
}
