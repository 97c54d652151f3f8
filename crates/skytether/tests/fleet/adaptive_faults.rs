//! Messages are lost, duplicated, late or garbled, and drives die or hang: incomplete epochs count for nothing, and the
//! answer is right.

use futures::future::BoxFuture;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use skytether::{AdaptiveMode, HostOptions, QueryOptions};
use skytether_aggregator::Aggregator;
use skytether_common::{Error, Kind, Result};
use skytether_device::session::Message;
use skytether_device::{Cse, CseInfo, Layer, OpenReply, Session, Storage, SubPlan};
use skytether_drive::{Drive, DriveOptions};
use skytether_host::{Founding, Host};
use skytether_scheduler::message::{PushdownLevel, SliceId, Up, Why};
use skytether_scheduler::query::{Limits, Policy};
use skytether_store::disk::DriveIdentity;

use crate::util::{batches, lines, name};

/// Faults of the messages of a drive.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    /// The connection breaks after this many messages of a session, this many times.
    breaks: Option<(usize, usize)>,
    /// No message comes after this many messages of the first session.
    hangs: Option<usize>,
    /// Every `twice`th message comes twice.
    twice: Option<usize>,
    /// Every `late`th message comes after the next one.
    late: Option<usize>,
    /// The epoch of this number names a slice that it was not given.
    garbled: Option<usize>,
    /// This many first epochs are rejected in their middle.
    refuses: usize,
}

#[derive(Debug)]
struct Unsteady {
    drive: Arc<Drive>,
    fate: Fate,
    sessions: AtomicUsize,
    broken: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

type Messages = BoxStream<'static, Result<Message>>;

impl Layer for Unsteady {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            let session = self.sessions.fetch_add(1, Ordering::SeqCst);
            match self.drive.open(plan).await? {
                OpenReply::Whole(stream) => Ok(OpenReply::Whole(stream)),
                OpenReply::Session(opened) => {
                    let mut messages: Messages = self.refusing(self.garbling(opened.messages)).boxed();
                    let Fate { breaks, hangs, twice, late, .. } = self.fate;
                    if let Some(n) = twice {
                        let copies = move |(at, message): (usize, Result<Message>)| {
                            let copy = message.as_ref().ok().filter(|message| at % n == 0 && !matches!(message, Message::Done(_))).cloned();
                            stream::iter(std::iter::once(message).chain(copy.map(Ok)))
                        };
                        messages = messages.enumerate().flat_map(copies).boxed();
                    }
                    if let Some(n) = late {
                        messages = reordered(messages, n).boxed();
                    }
                    if let Some((after, times)) = breaks
                        && self.broken.fetch_add(1, Ordering::SeqCst) < times
                    {
                        let broken = stream::once(std::future::ready(Err(Error::unavailable("the connection broke"))));
                        messages = messages.take(after).chain(broken).boxed();
                    }
                    if let (Some(after), 0) = (hangs, session) {
                        messages = messages.take(after).chain(stream::pending()).boxed();
                    }
                    Ok(OpenReply::Session(Session { messages, ..opened }))
                }
            }
        })
    }
}

/// Every `n`th message after the one that follows it; the last one stays the last.
fn reordered(messages: Messages, n: usize) -> impl Stream<Item = Result<Message>> {
    stream::unfold((messages, VecDeque::new(), 0usize), move |(mut messages, mut ready, at)| async move {
        if let Some(message) = ready.pop_front() {
            return Some((message, (messages, ready, at)));
        }
        let first = messages.next().await?;
        if at % n == 0 && !matches!(first, Ok(Message::Done(_)) | Err(_)) {
            // The next message may take long: heartbeats are sent every 50 ms.
            match tokio::time::timeout(std::time::Duration::from_millis(200), messages.next()).await {
                Ok(Some(second)) if !matches!(second, Ok(Message::Done(_)) | Err(_)) => {
                    ready.push_back(first);
                    return Some((second, (messages, ready, at + 1)));
                }
                Ok(Some(second)) => ready.push_back(second),
                Ok(None) | Err(_) => {}
            }
        }
        Some((first, (messages, ready, at + 1)))
    })
}

impl Unsteady {
    fn garbling(&self, messages: Messages) -> impl Stream<Item = Result<Message>> + use<> {
        let (ended, garbled) = (Arc::clone(&self.ended), self.fate.garbled);
        messages.map(move |message| match message {
            Ok(Message::Up(Up::EpochDone(mut end))) => {
                if Some(ended.fetch_add(1, Ordering::SeqCst)) == garbled {
                    end.slices.push(SliceId(77_777));
                }
                Ok(Message::Up(Up::EpochDone(end)))
            }
            other => other,
        })
    }

    fn refusing<S: Stream<Item = Result<Message>>>(&self, messages: S) -> impl Stream<Item = Result<Message>> + use<S> {
        let (refused, times) = (Arc::clone(&self.refused), self.fate.refuses);
        messages.map(move |message| match message {
            Ok(Message::Up(Up::Progress { epoch, .. })) if refused.fetch_add(1, Ordering::SeqCst) < times => {
                Ok(Message::Up(Up::Refused { epoch, accepts: Some(PushdownLevel::Filter), again: 0.05, why: Why::Memory }))
            }
            other => other,
        })
    }
}

const DRIVES: usize = 3;

/// Drive `n` below `dir`, with these faults.
fn unsteady(dir: &Path, n: usize, fate: Fate) -> Arc<dyn Cse> {
    let dir = dir.join(n.to_string());
    let identity = (!dir.join("drive.json").exists()).then(|| DriveIdentity { id: uuid::Uuid::new_v4(), name: format!("drive-{n}") });
    let drive = Drive::open(&dir, identity, DriveOptions { memory_limit: 64 << 20, ..DriveOptions::default() }).unwrap();
    Arc::new(Unsteady { drive, fate, sessions: AtomicUsize::default(), broken: Arc::default(), ended: Arc::default(), refused: Arc::default() })
}

fn options(policy: Policy, limits: Limits) -> HostOptions {
    let mut options = HostOptions { moving: AdaptiveMode::Always(policy), limits, threads: 2, ..HostOptions::default() };
    options.slices.target_bytes = 8 << 10;
    options
}

/// A host over drives with these faults.
async fn host(dir: &Path, fates: [Fate; DRIVES], policy: Policy, limits: Limits) -> Host {
    let drives = fates.into_iter().enumerate().map(|(n, fate)| unsteady(dir, n, fate)).collect();
    Host::join(drives, options(policy, limits), Founding::EmptyDrives).await.unwrap().0
}

/// A host over the last drive, and an aggregator of all others.
async fn host_of_aggregator(dir: &Path, fates: [Fate; DRIVES], above: Policy, below: Policy, limits: Limits) -> Host {
    let mut drives: Vec<_> = fates.into_iter().enumerate().map(|(n, fate)| unsteady(dir, n, fate)).collect();
    let alone = drives.pop().unwrap();
    let aggregator = Aggregator::open("aggregator", drives, options(below, limits), Founding::EmptyDrives, None).await.unwrap();
    Host::join(vec![aggregator, alone], options(above, limits), Founding::EmptyDrives).await.unwrap().0
}

async fn fill(host: &Host) {
    let rows = batches(16, 1000);
    let mut writer = host.writer(&name("lab.plain"), skytether::DatasetKind::Table, false).await.unwrap();
    writer.write_table("data", skytether::Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
    writer.commit().await.unwrap();
}

const QUERIES: [&str; 3] = [
    "SELECT grp, count(*), sum(n), round(avg(x), 6), min(name) FROM lab.plain WHERE n > -50 GROUP BY grp ORDER BY grp",
    "SELECT count(*), sum(id) FROM lab.plain WHERE x IS NOT NULL",
    "SELECT id, name FROM lab.plain WHERE n % 50 = 3",
];

async fn answer(host: &Host, sql: &str) -> Result<Vec<String>> {
    let mut rows = lines(&host.sql(sql, &QueryOptions::default()).await?.collect().await?);
    rows.sort();
    Ok(rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_messages_change_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let first = host(dir.path(), [Fate::default(); DRIVES], Policy::Adaptive, Limits::default()).await;
    fill(&first).await;
    let mut expected = Vec::new();
    for sql in QUERIES {
        expected.push(answer(&first, sql).await.unwrap());
    }
    assert_eq!(expected[0].len(), 4);
    drop(first);
    let limits = Limits { pause: 0.01, ..Limits::default() };
    let none = Fate::default();
    let fates = [
        Fate { twice: Some(1), ..none },
        Fate { twice: Some(3), late: Some(2), ..none },
        Fate { late: Some(1), ..none },
        Fate { breaks: Some((0, 1)), ..none },
        Fate { breaks: Some((1, 2)), twice: Some(2), ..none },
        Fate { breaks: Some((3, 1)), late: Some(2), ..none },
        Fate { breaks: Some((8, 2)), ..none },
        Fate { breaks: Some((20, 1)), ..none },
        Fate { garbled: Some(0), ..none },
        Fate { garbled: Some(1), twice: Some(1), ..none },
        Fate { refuses: 2, ..none },
        Fate { refuses: 1, breaks: Some((6, 1)), late: Some(3), twice: Some(4), ..none },
    ];
    for policy in [Policy::Adaptive, Policy::Static(PushdownLevel::Full), Policy::Static(PushdownLevel::Filter)] {
        for (at, fate) in fates.into_iter().enumerate() {
            let mut all = [none; DRIVES];
            all[at % DRIVES] = fate;
            all[(at + 1) % DRIVES] = Fate { breaks: None, ..fate };
            let host = host(dir.path(), all, policy, limits).await;
            for (sql, expected) in QUERIES.iter().zip(&expected) {
                let given = answer(&host, sql).await.unwrap_or_else(|e| panic!("{policy:?}, {fate:?}: {sql}: {e}"));
                assert_eq!(&given, expected, "{policy:?}, {fate:?}: {sql}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_below_an_aggregator_change_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { pause: 0.01, silence: 2.0, ..Limits::default() };
    let none = Fate::default();
    let first = host_of_aggregator(dir.path(), [none; DRIVES], Policy::Adaptive, Policy::Adaptive, limits).await;
    fill(&first).await;
    let mut expected = Vec::new();
    for sql in QUERIES {
        expected.push(answer(&first, sql).await.unwrap());
    }
    drop(first);
    let fates = [
        Fate { twice: Some(2), late: Some(1), ..none },
        Fate { breaks: Some((0, 1)), ..none },
        Fate { breaks: Some((3, 2)), late: Some(2), ..none },
        Fate { breaks: Some((8, 2)), ..none },
        Fate { garbled: Some(1), twice: Some(1), ..none },
        Fate { refuses: 2, ..none },
        Fate { hangs: Some(3), ..none },
    ];
    let (full, filter, adaptive) = (Policy::Static(PushdownLevel::Full), Policy::Static(PushdownLevel::Filter), Policy::Adaptive);
    for (above, below) in [(adaptive, adaptive), (full, full), (full, filter), (filter, full)] {
        for (at, fate) in fates.into_iter().enumerate() {
            let mut all = [none; DRIVES];
            all[at % 2] = fate;
            let host = host_of_aggregator(dir.path(), all, above, below, limits).await;
            for (sql, expected) in QUERIES.iter().zip(&expected) {
                let given = answer(&host, sql).await.unwrap_or_else(|e| panic!("{above:?} over {below:?}, {fate:?}: {sql}: {}", e.report()));
                assert_eq!(&given, expected, "{above:?} over {below:?}, {fate:?}: {sql}");
            }
        }
    }
    // The error names a drive that always breaks, also two levels below the host.
    let fates = [none, Fate { breaks: Some((1, usize::MAX)), ..none }, none];
    let host = host_of_aggregator(dir.path(), fates, full, full, limits).await;
    let error = answer(&host, QUERIES[0]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.report().contains("drive-1") && error.report().contains("the connection broke"), "{}", error.report());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_drive_is_retried_and_then_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = host(dir.path(), [Fate::default(); DRIVES], Policy::Adaptive, Limits::default()).await;
    fill(&first).await;
    let expected = answer(&first, QUERIES[0]).await.unwrap();
    drop(first);
    let limits = Limits { pause: 0.01, silence: 1.5, ..Limits::default() };
    for after in [0, 2, 5] {
        let fates = [Fate::default(), Fate { hangs: Some(after), ..Fate::default() }, Fate::default()];
        let host = host(dir.path(), fates, Policy::Static(PushdownLevel::Full), limits).await;
        assert_eq!(answer(&host, QUERIES[0]).await.unwrap(), expected, "after {after} messages");
    }
    // In the end the error names a drive that always breaks.
    let fates = [Fate::default(), Fate { breaks: Some((1, usize::MAX)), ..Fate::default() }, Fate::default()];
    let host = host(dir.path(), fates, Policy::Static(PushdownLevel::Full), limits).await;
    let error = answer(&host, QUERIES[0]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("drive-1") && error.report().contains("the connection broke"), "{}", error.report());
}

/// Set in a process that runs one test only, so that all of its threads are that test's.
const ALONE: &str = "SKYTETHER_TEST_ALONE";

#[test]
fn failed_and_dropped_queries_leak_nothing() {
    let ran = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "adaptive_faults::leak_check_child", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    assert!(ran.status.success() && String::from_utf8_lossy(&ran.stdout).contains("1 passed"), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// Threads of this process that process slices which drives send raw.
fn lanes_above() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "skytether-above").count()
}

/// Not a test by itself: the work of the process that the test above starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leak_check_child() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let host = host(dir.path(), [Fate::default(); DRIVES], Policy::Static(PushdownLevel::Raw), Limits::default()).await;
    fill(&host).await;
    let mut most = 0;
    for _ in 0..6 {
        let error = answer(&host, "SELECT grp, sum(100 / (id - 777)) FROM lab.plain GROUP BY grp").await.unwrap_err();
        assert!(error.report().contains("zero"), "{}", error.report());
        let query = host.sql("SELECT id, name FROM lab.plain", &QueryOptions::default()).await.unwrap();
        let mut stream = query.stream;
        stream.next().await.unwrap().unwrap();
        most = most.max(lanes_above());
        drop(stream);
    }
    assert!(most > 0, "there is something to be left");
    let deadline = Instant::now() + Duration::from_secs(20);
    while lanes_above() > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lanes_above(), 0);
}
