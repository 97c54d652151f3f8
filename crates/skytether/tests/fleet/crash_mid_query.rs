//! Drives with redundancy crash in the middle of a query or an ingest: the answer is right.

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use skytether::{AdaptiveMode, DatasetKind, HostOptions, Placement, Pushdown, QueryOptions};
use skytether_common::{Error, Kind, Result};
use skytether_device::{Capabilities, Cse, CseInfo, DeliveryStream, Layer, OpenReply, ResultMessage, Session, Storage, SubPlan};
use skytether_drive::{Drive, DriveOptions};
use skytether_host::{Founding, Host};
use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::query::Policy;
use skytether_store::disk::DriveIdentity;

use crate::util::{CUTS, batches, lines, name};

/// A drive that answers `left` times, messages of sub-plans included, and then never again.
#[derive(Debug)]
struct Mortal {
    drive: Arc<Drive>,
    left: Arc<AtomicUsize>,
}

impl Mortal {
    /// Takes one of the remaining answers.
    fn breathe(left: &AtomicUsize) -> Result<()> {
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::unavailable("the connection broke")),
        }
    }
}

impl Mortal {
    fn stream(&self, stream: DeliveryStream) -> DeliveryStream {
        let left = Arc::clone(&self.left);
        // A broken connection sends no further message.
        let messages = stream.messages.scan(false, move |broken, message: Result<ResultMessage>| {
            let next = (!*broken).then(|| Self::breathe(&left).and(message));
            *broken = matches!(next, Some(Err(_)));
            std::future::ready(next)
        });
        DeliveryStream { schema: stream.schema, messages: Box::pin(messages) }
    }
}

/// Each call takes an answer.
impl Layer for Mortal {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Self::breathe(&self.left)?;
        Ok(self.drive.as_ref())
    }

    /// Without heartbeats. A verification of values takes an answer for each value.
    fn capabilities(&self) -> Capabilities {
        Capabilities { verify: false, indexes: false, ..Capabilities::default() }
    }

    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move { Ok(self.stream(self.inner()?.execute(plan).await?)) })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            Ok(match self.inner()?.open(plan).await? {
                OpenReply::Whole(stream) => OpenReply::Whole(self.stream(stream)),
                OpenReply::Session(session) => {
                    let left = Arc::clone(&self.left);
                    let broken = |left: &AtomicUsize, message| Self::breathe(left).and(message);
                    let messages = session.messages.then(move |message| std::future::ready(broken(&left, message)));
                    let messages = stream::unfold(Some(Box::pin(messages)), |messages| async move {
                        let mut messages = messages?;
                        let next = messages.next().await?;
                        let go_on = next.is_ok().then_some(messages);
                        Some((next, go_on))
                    });
                    OpenReply::Session(Session { messages: Box::pin(messages), ..session })
                }
            })
        })
    }
}

const DRIVES: usize = 4;

/// A host over the drives below `dir`, each with its number of remaining answers.
async fn host(dir: &Path, breaths: BTreeMap<usize, Arc<AtomicUsize>>, moving: AdaptiveMode) -> Result<Host> {
    host_over(dir, (DRIVES, None), "ec:2+1", breaths, moving).await
}

/// A host over `count` drives below `dir`. With `each`, every node has this many drives in a row.
pub(crate) async fn host_over(
    dir: &Path,
    (count, each): (usize, Option<usize>),
    redundancy: &str,
    breaths: BTreeMap<usize, Arc<AtomicUsize>>,
    moving: AdaptiveMode,
) -> Result<Host> {
    let mut options = HostOptions { redundancy: redundancy.parse()?, moving, threads: 2, storage_deadline: Duration::from_secs(20), ..HostOptions::default() };
    options.slices.target_bytes = 8 << 10;
    options.limits.pause = 0.01;
    let mut drives: Vec<Arc<dyn Cse>> = Vec::new();
    for n in 0..count {
        let dir = dir.join(n.to_string());
        let identity = (!dir.join("drive.json").exists()).then(|| DriveIdentity { id: uuid::Uuid::new_v4(), name: format!("drive-{n}") });
        let drive = Drive::open(&dir, identity, DriveOptions { memory_limit: 64 << 20, ..DriveOptions::default() })?;
        if let Some(each) = each {
            options.nodes.insert(Storage::info(drive.as_ref()).id, format!("node-{}", n / each));
        }
        let left = breaths.get(&n).cloned().unwrap_or_else(|| Arc::new(AtomicUsize::new(usize::MAX)));
        drives.push(Arc::new(Mortal { drive, left }));
    }
    Ok(Host::join(drives, options, Founding::EmptyDrives).await?.0)
}

pub(crate) async fn fill(host: &Host) {
    let rows = batches(16, 1000);
    let mut writer = host.writer(&name("lab.t"), DatasetKind::Table, false).await.unwrap();
    writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
    writer.commit().await.unwrap();
    let rows = batches(4, 1000);
    let mut writer = host.writer(&name("lab.keyed"), DatasetKind::Table, false).await.unwrap();
    writer.write_partitioned("data", &["id".to_owned()], rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
    writer.commit().await.unwrap();
}

pub(crate) const QUERIES: [&str; 6] = [
    "SELECT grp, count(*), sum(n), round(avg(x), 6), min(name) FROM lab.t WHERE n > -50 GROUP BY grp ORDER BY grp",
    "SELECT id, name FROM lab.t WHERE n % 5 = 3 ORDER BY id",
    "SELECT id, x FROM lab.t ORDER BY x DESC NULLS LAST, id LIMIT 20",
    "SELECT grp, count(*) FROM lab.keyed GROUP BY grp ORDER BY grp",
    "SELECT k.grp, count(*), sum(l.n) FROM lab.keyed k JOIN lab.keyed l ON k.id = l.id GROUP BY k.grp ORDER BY k.grp",
    "SELECT count(*), max(id) FROM lab.t",
];

pub(crate) async fn answer(host: &Host, sql: &str, cut: Pushdown) -> Result<(Vec<String>, skytether::Receipt)> {
    let query = host.sql(sql, &QueryOptions { cut, ..QueryOptions::default() }).await?;
    let receipt = query.receipt.clone();
    let rows = lines(&query.collect().await?);
    Ok((rows, receipt.receipt()))
}

/// Fills the fleet of `host`, and gives the answer to each query while all drives are up.
pub(crate) async fn filled(host: Host) -> Vec<Vec<String>> {
    fill(&host).await;
    let mut whole = Vec::new();
    for sql in QUERIES {
        whole.push(answer(&host, sql, Pushdown::Full).await.unwrap().0);
    }
    whole
}

/// Runs queries while the drives `lost` of each round die after a number of answers from `breaths`.
async fn die_in_the_middle(redundancy: &str, breaths: &[usize], lost: impl Fn(usize) -> Vec<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let fleet = async |breaths, moving| host_over(dir.path(), (DRIVES, None), redundancy, breaths, moving).await.unwrap();
    let whole = filled(fleet(BTreeMap::new(), AdaptiveMode::AsNeeded).await).await;
    let mut served_by_fallback = 0;
    let movings =
        [AdaptiveMode::AsNeeded, AdaptiveMode::Never, AdaptiveMode::Always(Policy::Adaptive), AdaptiveMode::Always(Policy::Static(PushdownLevel::Raw))];
    for (round, breath) in breaths.iter().copied().enumerate() {
        let (moving, lost) = (movings[round % movings.len()], lost(round));
        for (at, (sql, whole)) in QUERIES.iter().zip(&whole).enumerate() {
            let lives: BTreeMap<usize, Arc<AtomicUsize>> = lost.iter().map(|n| (*n, Arc::new(AtomicUsize::new(usize::MAX)))).collect();
            let host = fleet(lives.clone(), moving).await;
            // Not all at the same moment.
            lives.values().enumerate().for_each(|(n, left)| left.store(breath + n, Ordering::SeqCst));
            let cut = CUTS[(at + round) % CUTS.len()];
            let what = format!("{redundancy}, {moving:?}, {cut}, {lost:?} after {breath}: {sql}");
            let (own, receipt) = answer(&host, sql, cut).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            assert_eq!(&own, whole, "{what}");
            let names: Vec<String> = lost.iter().map(|n| format!("drive-{n}")).collect();
            served_by_fallback +=
                receipt.drives.iter().filter(|d| d.served_by_fallback.is_some()).inspect(|d| assert!(names.contains(&d.name), "{d:?}")).count();
            // They stay down.
            lives.values().for_each(|left| left.store(0, Ordering::SeqCst));
            assert_eq!(&answer(&host, sql, Pushdown::Full).await.unwrap().0, whole, "{what}");
        }
    }
    assert!(served_by_fallback > breaths.len(), "{served_by_fallback}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_crash_mid_query_changes_no_answer() {
    die_in_the_middle("ec:2+1", &[0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 24], |round| vec![(round + round / 4) % DRIVES]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_crash_with_copies_changes_no_answer() {
    die_in_the_middle("replicas:2", &[0, 1, 3, 6, 10, 17], |round| vec![(round + round / 4) % DRIVES]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_drive_crashes_mid_query_change_no_answer() {
    die_in_the_middle("ec:2+2", &[0, 1, 2, 4, 7, 12], |round| vec![round % DRIVES, (round + 1 + round % 3) % DRIVES]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingest_that_loses_a_drive_fails_and_the_next_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let host = host(dir.path(), BTreeMap::from([(1, Arc::clone(&left))]), AdaptiveMode::AsNeeded).await.unwrap();
    fill(&host).await;
    let write = async |title: &str, replace: bool, rows: usize| {
        let rows = batches(8, rows);
        let mut writer = host.writer(&name(title), DatasetKind::Table, replace).await?;
        match writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await {
            Ok(()) => writer.commit().await.map(drop),
            Err(e) => {
                drop(writer.abort().await);
                Err(e)
            }
        }
    };
    let count = async |title: &str| answer(&host, &format!("SELECT count(*) FROM {title}"), Pushdown::Full).await.map(|(rows, _)| rows);
    // Wherever it dies, the data set is old or new.
    for breath in 0..14 {
        left.store(usize::MAX, Ordering::SeqCst);
        write("lab.u", true, 100).await.unwrap();
        left.store(breath, Ordering::SeqCst);
        let done = write("lab.u", true, 250).await;
        if let Err(e) = &done {
            assert_eq!(e.kind(), Kind::Unavailable, "after {breath}: {e}");
        }
        left.store(0, Ordering::SeqCst);
        let rows = count("lab.u").await.unwrap();
        assert!(rows == ["2000"] || (done.is_err() && rows == ["800"]), "after {breath}: {rows:?}, {done:?}");
        // Without it.
        if breath % 3 == 0 {
            host.catalog().drop_dataset(&name("lab.u")).await.unwrap_or_else(|e| panic!("after {breath}: {}", e.report()));
            assert_eq!(count("lab.u").await.unwrap_err().kind(), Kind::NotFound);
        }
        write("lab.u", true, 300).await.unwrap_or_else(|e| panic!("after {breath}: {}", e.report()));
        assert_eq!(count("lab.u").await.unwrap(), ["2400"]);
    }
    left.store(usize::MAX, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(2100)).await;
    // A query makes the host look for the drive.
    for _ in 0..50 {
        assert_eq!(count("lab.u").await.unwrap(), ["2400"]);
        if host.status().await.iter().all(|d| d.error.is_none()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(host.status().await.iter().all(|d| d.error.is_none()), "{:?}", host.status().await);
}
