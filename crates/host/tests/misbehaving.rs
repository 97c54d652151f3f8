//! Drives that misbehave: whatever they do, the query ends with an error that names them, and in time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use skytether_common::{DatasetName, Detail, Error, Key, Kind, Result};
use skytether_device::{Annotation, Capabilities, Cse, CseInfo, DeliveryStream, ResultMessage, Storage, SubPlan};
use skytether_host::{Catalog, DatasetKind, Founding, Host, HostOptions, Placement, Pushdown, QueryOptions};
use skytether_store::memory::MemoryStore;
use skytether_store::{Entry, Op, SliceStore, Usage, Version};
use tokio::sync::Semaphore;
use uuid::Uuid;

#[path = "../../plan/tests/common/proto.rs"]
mod proto;

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
    /// Misses something that is no part of the data set, whatever its text names.
    LacksSomethingElse,
    /// Fails in the middle.
    Fails,
    DoesNotRun,
}

#[derive(Debug)]
struct TestDrive {
    info: CseInfo,
    store: MemoryStore,
    behaviour: Mutex<Behaviour>,
    storage_hangs: Mutex<bool>,
    /// What becomes of the next root record that is put.
    commit: Mutex<Commit>,
}

#[derive(Debug, Clone)]
enum Commit {
    Works,
    /// Says that it has begun, and waits for leave.
    Waits(Arc<Semaphore>, Arc<Semaphore>),
    /// Is carried out and answered with an error all the same.
    Loses(Kind),
}

/// No sessions, no verification where values lie, no indexes.
fn capabilities() -> Capabilities {
    Capabilities { sessions: false, verify: false, indexes: false, ..Capabilities::default() }
}

impl Storage for TestDrive {
    fn info(&self) -> &CseInfo {
        &self.info
    }
    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let root = batch.iter().any(|op| matches!(op, Op::Put { key, .. } if key.as_str().matches('/').count() == 1));
            let commit = if root { self.commit.lock().clone() } else { Commit::Works };
            match commit {
                Commit::Works => self.store.apply(batch),
                Commit::Waits(begun, leave) => {
                    begun.add_permits(1);
                    leave.acquire().await.unwrap().forget();
                    self.store.apply(batch)
                }
                Commit::Loses(kind) => {
                    self.store.apply(batch)?;
                    Err(match kind {
                        Kind::Exhausted => Error::exhausted("no room for the answer"),
                        Kind::Corrupt => Error::corrupt("the answer is garbled"),
                        Kind::Unavailable => Error::unavailable("the answer was lost"),
                        _ => Error::internal("the answer panicked"),
                    })
                }
            }
        })
    }
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let hangs = *self.storage_hangs.lock();
            if hangs {
                std::future::pending::<()>().await;
            }
            self.store.get(key)
        })
    }
    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { self.store.stat(key) })
    }
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { self.store.list(prefix, after, limit) })
    }
    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.store.usage() })
    }
}

fn rows() -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([("id", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef, false)]).unwrap()
}

fn other_rows() -> RecordBatch {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    RecordBatch::try_from_iter_with_nullable([("id", texts.clone(), false), ("more", texts, false)]).unwrap()
}

impl Cse for TestDrive {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let behaviour = *self.behaviour.lock();
            let batch = |batch| Ok(ResultMessage::Batch { epoch: 0, batch });
            let complete = || Ok(ResultMessage::EpochComplete { epoch: 0 });
            let done = || Ok(ResultMessage::Done(Annotation { cse: self.info.name.clone(), rows_out: 2, ..Annotation::default() }));
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
                Behaviour::HasLostIt => {
                    let key = plan.partitions["data"].key()?;
                    return Err(Error::not_found("a part is gone").with_detail(Detail::missing_key(&key)));
                }
                Behaviour::LacksSomethingElse => {
                    let key = plan.partitions["data"].key()?;
                    return Err(Error::not_found(format!("there is no {key}")).with_detail(Detail::MissingColumn { column: "x".into() }));
                }
                Behaviour::DoesNotRun => return Err(Error::unavailable("too much to do").with_detail(Detail::NotRun)),
                Behaviour::Fails => stream::iter(vec![batch(rows()), Err(Error::corrupt("slice 3 is damaged"))]).boxed(),
            };
            Ok(DeliveryStream { schema, messages })
        })
    }
}

async fn fleet() -> (Host, Vec<Arc<TestDrive>>, DatasetName) {
    fleet_with(Duration::from_millis(300)).await
}

/// A fleet whose drives may take so long for what they are asked to store.
async fn fleet_with(storage_deadline: Duration) -> (Host, Vec<Arc<TestDrive>>, DatasetName) {
    let drives: Vec<_> = (0..2).map(|n| another(n + 1, &format!("drive-{n}"))).collect();
    let mut options =
        HostOptions { storage_deadline, begin_deadline: Duration::from_millis(300), silence_deadline: Duration::from_millis(300), ..HostOptions::default() };
    options.slices.target_bytes = 4 << 10;
    let (host, _) = Host::join(drives.iter().map(|d| Arc::clone(d) as Arc<dyn Cse>).collect(), options, Founding::EmptyDrives).await.unwrap();
    let name: DatasetName = "lab.t".parse().unwrap();
    let mut writer = host.writer(&name, DatasetKind::Table, false).await.unwrap();
    // Enough for several slices, so that both drives have some.
    let many = (0..20).map(|b| {
        RecordBatch::try_from_iter_with_nullable([("id", Arc::new(Int64Array::from_iter_values((0..1000).map(|i| i * i * 7919 + b))) as ArrayRef, false)])
            .map_err(|e| Error::internal("a batch").with_source(e))
    });
    writer.write_table("data", Placement::Spread, rows().schema(), many).await.unwrap();
    assert!(writer.commit().await.unwrap().slices > 1);
    (host, drives, name)
}

async fn run(host: &Host, sql: &str) -> Result<usize> {
    let query = host.sql(sql, &QueryOptions { cut: Pushdown::Raw, ..QueryOptions::default() }).await?;
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
        // The root record still names it, so no other writer has replaced or dropped the data set.
        (Behaviour::HasLostIt, Kind::Corrupt),
        (Behaviour::LacksSomethingElse, Kind::NotFound),
        (Behaviour::Fails, Kind::Corrupt),
    ] {
        *drives[1].behaviour.lock() = behaviour;
        let error = run(&host, "SELECT id FROM lab.t").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{behaviour:?}: {error}");
        assert!(error.to_string().contains("drive-1"), "{behaviour:?}: {error}");
    }
    *drives[1].behaviour.lock() = Behaviour::Good;
    assert_eq!(run(&host, "SELECT id FROM lab.t").await.unwrap(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drives_that_do_not_run_a_plan_are_read_instead() {
    let (host, drives, _) = fleet().await;
    for drive in &drives {
        *drive.behaviour.lock() = Behaviour::DoesNotRun;
    }
    let query = host.sql("SELECT id FROM lab.t", &QueryOptions { cut: Pushdown::Raw, ..QueryOptions::default() }).await.unwrap();
    let batches = query.collect().await.unwrap();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_that_hangs_is_named_in_time() {
    let (host, drives, name) = fleet().await;
    let home = host.catalog().home(&name);
    *drives[home].storage_hangs.lock() = true;
    let error = run(&host, "SELECT id FROM lab.t").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains(&format!("drive-{home}")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cleanup_deletes_only_what_no_root_record_names() {
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
    let info =
        CseInfo { id: Uuid::from_u128(1), name: "drive-0".into(), format: 1, memory_limit: 1, profile: None, device: None, capabilities: capabilities() };
    let drive: Arc<dyn Storage> = Arc::new(TestDrive {
        info,
        store: MemoryStore::new(),
        behaviour: Mutex::new(Behaviour::Good),
        storage_hangs: Mutex::new(false),
        commit: Mutex::new(Commit::Works),
    });
    assert_eq!(Catalog::new(vec![Arc::clone(&drive), drive], deadline).unwrap_err().kind(), Kind::Invalid);
}

async fn written(host: &Host, name: &DatasetName) -> skytether_host::DatasetWriter {
    let mut writer = host.writer(name, DatasetKind::Table, false).await.unwrap();
    writer.write_table("data", Placement::Spread, rows().schema(), [Ok(rows())].into_iter()).await.unwrap();
    writer
}

fn slices_of(drives: &[Arc<TestDrive>], prefix: &str) -> usize {
    drives.iter().map(|d| d.store.list(prefix, None, 100).unwrap().len()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_wait_does_not_stop_a_commit() {
    let (host, drives, _) = fleet_with(Duration::from_secs(60)).await;
    let name: DatasetName = "lab.left".parse().unwrap();
    let (begun, leave) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    for drive in &drives {
        *drive.commit.lock() = Commit::Waits(Arc::clone(&begun), Arc::clone(&leave));
    }
    let writer = written(&host, &name).await;
    let slices = slices_of(&drives, "lab/left/");
    let committing = tokio::spawn(writer.commit());
    begun.acquire().await.unwrap().forget();
    committing.abort();
    assert!(committing.await.unwrap_err().is_cancelled());
    leave.add_permits(1);
    // The record comes with the commit's own task, which the drive's deadline bounds.
    let comes = async {
        loop {
            match host.catalog().read(&name).await {
                Ok((record, _)) => break record,
                Err(e) => assert_eq!(e.kind(), Kind::NotFound),
            }
            tokio::task::yield_now().await;
        }
    };
    let record = tokio::time::timeout(Duration::from_secs(60), comes).await.expect("the commit was stopped");
    assert_eq!(record.tables["data"].rows, 2);
    assert_eq!(slices_of(&drives, "lab/left/"), slices, "slices of a committed data set were deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_keeps_its_slices() {
    let (host, drives, _) = fleet().await;
    for (n, kind) in [Kind::Unavailable, Kind::Internal, Kind::Exhausted, Kind::Corrupt].into_iter().enumerate() {
        let name: DatasetName = format!("lab.lost{n}").parse().unwrap();
        for drive in &drives {
            *drive.commit.lock() = Commit::Loses(kind);
        }
        let writer = written(&host, &name).await;
        let slices = slices_of(&drives, &name.prefix());
        assert_eq!(writer.commit().await.unwrap_err().kind(), kind);
        assert_eq!(slices_of(&drives, &name.prefix()), slices, "{kind:?}");
        assert_eq!(host.catalog().collect_garbage().await.unwrap(), 0);
        assert_eq!(host.catalog().read(&name).await.unwrap().0.tables["data"].rows, 2);
    }
}

fn again(drives: &[&Arc<TestDrive>]) -> Vec<Arc<dyn Cse>> {
    drives.iter().map(|d| Arc::clone(*d) as Arc<dyn Cse>).collect()
}

fn another(id: u128, name: &str) -> Arc<TestDrive> {
    let info =
        CseInfo { id: Uuid::from_u128(id), name: name.into(), format: 1, memory_limit: 1 << 20, profile: None, device: None, capabilities: capabilities() };
    Arc::new(TestDrive {
        info,
        store: MemoryStore::new(),
        behaviour: Mutex::new(Behaviour::Good),
        storage_hangs: Mutex::new(false),
        commit: Mutex::new(Commit::Works),
    })
}

/// The error names the drive that is missing, or that is of no use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_number_of_drives_is_refused_and_deletes_nothing() {
    let (_, drives, name) = fleet().await;
    let whole = slices_of(&drives, "");
    let join = |drives: Vec<Arc<dyn Cse>>| Host::join(drives, HostOptions::default(), Founding::EmptyDrives);
    for one in &drives {
        let error = join(again(&[one])).await.unwrap_err();
        let other = drives.iter().find(|d| d.info.id != one.info.id).unwrap();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(
            error.to_string().contains("missing") && error.to_string().contains(&other.info.id.to_string()) && error.to_string().contains(&other.info.name),
            "{error}"
        );
        let catalog = Catalog::new(vec![Arc::clone(one) as Arc<dyn Storage>], Duration::from_secs(1)).unwrap();
        assert_eq!(catalog.collect_garbage().await.unwrap_err().kind(), Kind::Invalid);
    }
    let more = another(9, "drive-9");
    let error = join(again(&[&more, &drives[0], &drives[1]])).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("not of this fleet: drive-9"), "{error}");
    assert_eq!((slices_of(&drives, ""), more.store.usage().unwrap().keys), (whole, 0));

    // Another order is the same fleet.
    let (host, deleted) = join(again(&[&drives[1], &drives[0]])).await.unwrap();
    assert_eq!((deleted, slices_of(&drives, "")), (0, whole));
    assert_eq!(host.catalog().read(&name).await.unwrap().0.name, name);

    // What a crash in the middle of founding left undone is done by the next start.
    let key = Key::new(skytether_host::MEMBERSHIP_KEY).unwrap();
    drives[1].store.apply(vec![Op::Delete { key: key.clone(), expect: skytether_store::Expect::Any }]).unwrap();
    join(again(&[&drives[0], &drives[1]])).await.unwrap();
    assert!(drives[1].store.stat(&key).unwrap().is_some());

    // Drives with data that know no fleet are not adopted from a typed list.
    for drive in &drives {
        drive.store.apply(vec![Op::Delete { key: key.clone(), expect: skytether_store::Expect::Any }]).unwrap();
    }
    let error = join(again(&[&drives[0], &drives[1]])).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("does not know its fleet"), "{error}");
}

#[test]
fn two_drives_of_one_name_are_refused() {
    let error = Host::new(again(&[&another(1, "a"), &another(2, "a")]), HostOptions::default()).unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("--name"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_root_record_hides_no_other_and_can_be_dropped() {
    let (host, drives, name) = fleet().await;
    let broken: DatasetName = "lab.broken".parse().unwrap();
    let newer: DatasetName = "lab.newer".parse().unwrap();
    let whole = slices_of(&drives, "");
    let put = |name: &DatasetName, value: &'static [u8]| {
        let op = Op::Put { key: name.root_key(), value: Bytes::from_static(value), expect: skytether_store::Expect::Any };
        drives[host.catalog().home(name)].store.apply(vec![op]).unwrap();
    };
    put(&broken, b"{ no json");
    put(&newer, br#"{"format": 77}"#);
    let list = host.catalog().list().await.unwrap();
    assert_eq!(
        list.iter().map(|d| (d.name.to_string(), d.error.is_some())).collect::<Vec<_>>(),
        [("lab.broken".to_owned(), true), ("lab.newer".into(), true), (name.to_string(), false)]
    );
    assert!(list[1].error.as_ref().unwrap().contains("newer version"), "{list:?}");
    host.catalog().drop_dataset(&broken).await.unwrap();
    assert_eq!(host.catalog().drop_dataset(&newer).await.unwrap_err().kind(), Kind::Unsupported);
    assert_eq!(slices_of(&drives, ""), whole + 1);
}

/// Threads of hosts have stacks of 32 MiB. The longest allowed chains must fit with space to spare.
#[test]
fn the_deepest_query_fits_the_stack_of_a_host() {
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_stack_size(32 << 20).enable_all().build().unwrap();
        let task = runtime.spawn(async {
            let (host, _, _) = fleet().await;
            let limit = skytether_host::MAX_OPERATORS - 8;
            for chain in [" + id", " || 'x'", "::bigint", " IS NULL", " OR id % 7 = 3"] {
                let n = limit / if chain.starts_with(" OR") { 3 } else { 1 };
                // What comes of it does not matter, only that it ends.
                let _ = host.explain(&format!("SELECT id{} FROM lab.t", chain.repeat(n)), false, &QueryOptions::default()).await;
            }
            host.explain(&format!("SELECT id{} AS n FROM lab.t", " + id".repeat(limit)), false, &QueryOptions::default()).await.map(drop)
        });
        runtime.block_on(task).unwrap()
    };
    run().unwrap();
}

/// The same for plans of strangers: whatever a plan of a megabyte says, it is planned or refused, on
/// the stack that a host has.
#[test]
fn foreign_plans_do_not_overflow_the_stack_of_a_host() {
    use prost::Message;
    use proto::{I64_TYPE, aggregate, call, field, number, plan, project, read, set, shared, text};

    let t = || read(&["lab", "t"], &[("id", I64_TYPE)]);
    let many = |n: usize, of: fn(usize) -> datafusion_substrait::substrait::proto::Expression| (0..n).map(of).collect::<Vec<_>>();
    let texts = |i: usize| if i.is_multiple_of(2) { text("x") } else { field(0) };
    let tests = |i: usize| call(1, vec![field(0), number(i as i64)]);
    let mut plans = vec![
        ("concat of most", true, plan(&["concat:str"], vec![], project(t(), vec![call(0, many(65_536, texts))]))),
        ("least of most", true, plan(&["least:i64"], vec![], project(t(), vec![call(0, many(65_536, |_| field(0)))]))),
        ("concat", false, plan(&["concat:str"], vec![], project(t(), vec![call(0, many(2000, texts))]))),
        ("least", false, plan(&["least:i64"], vec![], project(t(), vec![call(0, many(2000, |_| field(0)))]))),
        ("or", false, plan(&["or:bool", "equal:any_any"], vec![], project(t(), vec![call(0, many(2000, tests))]))),
        ("or of most", true, plan(&["or:bool", "equal:any_any"], vec![], project(t(), vec![call(0, many(65_536, tests))]))),
    ];
    for op in [1, 3, 4, 5, 6] {
        plans.push(("set", false, plan(&[], vec![], set(op, (0..300).map(|_| t()).collect()))));
    }
    // A chain of projections, which the optimiser merges to one expression. The first one is as deep as is allowed, the
    // second deeper.
    for n in [18, 90] {
        let first = project(t(), vec![field(0)]);
        let more = |i: i32| project(shared(i - 1), vec![(0..25).fold(field(1), |e, _| call(0, vec![e, number(1)]))]);
        let chain = (0..n).map(|i| if i == 0 { first.clone() } else { more(i) }).collect();
        plans.push(("chain", n > 18, plan(&["add:i64_i64"], chain, shared(n - 1))));
    }
    let sums = || (0..4096).map(|_| (0, vec![field(0)])).collect();
    plans.push(("sums", false, plan(&["sum:i64"], vec![], aggregate(t(), vec![field(0)], vec![vec![0]], sums()))));
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_stack_size(32 << 20).enable_all().build().unwrap();
        let task = runtime.spawn(async move {
            let (host, _, _) = fleet().await;
            for (what, refused, plan) in plans {
                let done = host.explain(Bytes::from(plan.encode_to_vec()), false, &QueryOptions::default()).await;
                match done {
                    Ok(text) => assert!(text.contains("super-plan"), "{what}"),
                    Err(e) if !refused => panic!("{what}: {}", e.report()),
                    Err(e) => assert!(matches!(e.kind(), Kind::Invalid | Kind::Unsupported), "{what}: {}", e.report()),
                }
            }
        });
        runtime.block_on(task).unwrap();
    };
    run();
}
