//! Seeded storms: hosts and drives die, answers get lost, disks are full, at any step of ingest, replacement, drop and scrub, and hosts take the fleet from one another. After each, every data set is as it was or as it was to be, whole, and
//! nothing is left behind.
//!
//! Drives are real ones over stores in memory; each host sees them through [`Link`]s, which end with it: what a dead host has still under way reaches no drive. A storm follows from its seed but for the order in which threads come to
//! the drives. `SKYTETHER_STORMS=FROM..TO` runs other seeds than the tests do; `benches/storms.py` runs ten thousand.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use bytes::Bytes;
use skytether_common::{DatasetName, Error, Key, Kind, PartitionName, Result};
use skytether_drive::{Cse, Drive, DriveOptions, Storage};
use skytether_fleet::{Cut, DatasetKind, HostOptions, Placement, QueryOptions, ScrubOptions};
use skytether_host::{Founding, Host};
use skytether_store::before::Before;
use skytether_store::memory::MemoryStore;
use skytether_store::{Op, SliceStore, Version};
use skytether_wire::decorated::{Decorated, Decorator};
use skytether_wire::{CseInfo, DeliveryStream, Opened, SubPlan};
use tokio::sync::Notify;

use crate::util::{Random, lines};

/// Seeds of the tests.
const SEEDS: std::ops::Range<u64> = 0..300;

/// What is done in a storm.
const STEPS: usize = 6;

/// Data sets of a fleet.
const NAMES: [&str; 3] = ["lab.a", "lab.b", "lab.c"];

/// What befalls the drive that is asked for something, or the host that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strike {
    /// The host dies, before or after the change is made.
    Host { after: bool },
    /// The drive is gone until it is brought back, before or after the change is made.
    Drive { after: bool },
    /// The change is made, and the answer lost.
    Answer,
    /// The disk is full.
    Full,
    /// The drive fails this once.
    Once,
}

/// What is to befall whom: counted are the changes and reads of all hosts.
#[derive(Debug, Default)]
struct Weather {
    asked: AtomicU64,
    strikes: Mutex<BTreeMap<u64, Strike>>,
    struck: Mutex<Vec<Strike>>,
    /// How many drives may be gone at a time.
    most: AtomicU64,
    gone: AtomicU64,
}

impl Weather {
    fn strike(&self) -> Option<Strike> {
        let at = self.asked.fetch_add(1, Ordering::SeqCst);
        let strike = self.strikes.lock().unwrap().remove(&at)?;
        if matches!(strike, Strike::Drive { .. }) {
            // No more than the fleet survives; but where it survives none, one that is back for the next step.
            let most = self.most.load(Ordering::SeqCst).max(1);
            self.gone.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |gone| (gone < most).then_some(gone + 1)).ok()?;
        }
        self.struck.lock().unwrap().push(strike);
        Some(strike)
    }
}

/// What a drive stores, while it is there.
#[derive(Debug)]
struct Sky {
    name: String,
    store: MemoryStore,
    gone: AtomicBool,
}

impl Before for Sky {
    fn behind(&self) -> Result<&dyn SliceStore> {
        if self.gone.load(Ordering::SeqCst) { Err(Error::unavailable(format!("{} is gone", self.name))) } else { Ok(&self.store) }
    }
}

/// Whether a host lives.
#[derive(Debug, Default)]
struct Life {
    over: AtomicBool,
    ended: Notify,
}

impl Life {
    fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.ended.notify_waiters();
    }

    async fn over(&self) {
        let ended = self.ended.notified();
        if !self.over.load(Ordering::SeqCst) {
            ended.await;
        }
    }
}

/// A host's way to a drive.
#[derive(Debug)]
struct Link {
    drive: Arc<Drive>,
    sky: Arc<Sky>,
    life: Arc<Life>,
    weather: Arc<Weather>,
}

impl Link {
    fn living(&self) -> Result<()> {
        if self.life.over.load(Ordering::SeqCst) { Err(Error::unavailable("the host is dead")) } else { Ok(()) }
    }

    async fn asked<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.living()?;
        let lost = || Error::unavailable(format!("{} was lost", self.sky.name));
        match self.weather.strike() {
            None => work.await,
            Some(Strike::Host { after }) => {
                if after {
                    let _ = work.await;
                }
                self.life.end();
                std::future::pending().await
            }
            Some(Strike::Drive { after }) => {
                if after {
                    let _ = work.await;
                }
                self.sky.gone.store(true, Ordering::SeqCst);
                Err(lost())
            }
            Some(Strike::Answer) => {
                let _ = work.await;
                Err(lost())
            }
            Some(Strike::Full) => Err(Error::exhausted(format!("{} is full", self.sky.name))),
            Some(Strike::Once) => Err(lost()),
        }
    }
}

#[async_trait]
impl Decorator for Link {
    fn behind(&self) -> &dyn Cse {
        self.drive.as_ref()
    }

    /// As over a wire: it can be lost, and several hosts can reach it.
    fn away(&self) -> bool {
        true
    }

    async fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.asked(self.drive.apply(batch)).await
    }

    async fn get(&self, key: &Key) -> Result<Bytes> {
        self.asked(self.drive.get(key)).await
    }

    async fn execute(&self, plan: SubPlan) -> Result<DeliveryStream> {
        self.asked(self.drive.execute(plan)).await
    }

    async fn open(&self, plan: SubPlan) -> Result<Opened> {
        self.living()?;
        self.drive.open(plan).await
    }
}

/// A host, for as long as it lives.
struct Living {
    host: Host,
    life: Arc<Life>,
}

impl Drop for Living {
    fn drop(&mut self) {
        self.life.end();
    }
}

/// What a data set holds: rows that count, and all say, `version`.
fn rows(version: usize) -> RecordBatch {
    let n = 150 + version % 7 * 40;
    let random = &mut Random(version as u64);
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from_iter_values(0..n as i64))),
        ("version", Arc::new(Int64Array::from_iter_values((0..n).map(|_| version as i64)))),
        ("noise", Arc::new(Int64Array::from_iter_values((0..n).map(|_| random.below(1 << 50) as i64)))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// What [`Storm::holds`] tells of it.
fn told(version: usize) -> String {
    let rows = rows(version);
    let noise: i64 = rows.column(2).as_any().downcast_ref::<Int64Array>().unwrap().values().iter().sum();
    let n = rows.num_rows() as i64;
    format!("{n} | {version} | {version} | {} | {noise}", n * (n - 1) / 2)
}

struct Storm {
    random: Random,
    redundancy: &'static str,
    skies: Vec<Arc<Sky>>,
    drives: Vec<Arc<Drive>>,
    weather: Arc<Weather>,
    /// The version that each data set has, as far as it has one.
    known: BTreeMap<&'static str, usize>,
    /// What else a data set may turn out to be once all drives are back: of a change whose outcome nobody knew a drive that is away may have the record.
    pending: BTreeMap<&'static str, Vec<Option<usize>>>,
    versions: usize,
    log: Vec<String>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let (redundancy, drives, most) = [("none", 3, 0), ("replicas:2", 3, 1), ("ec:2+1", 4, 1), ("ec:2+2", 4, 2)][random.below(4)];
        let weather = Arc::new(Weather { most: AtomicU64::new(most), ..Weather::default() });
        let id = |n: usize| uuid::Uuid::from_u128(u128::from(seed) << 16 | n as u128 + 1);
        let skies: Vec<_> =
            (0..drives).map(|n| Arc::new(Sky { name: format!("drive-{n}"), store: MemoryStore::new(), gone: AtomicBool::new(false) })).collect();
        let drive = |(n, sky): (usize, &Arc<Sky>)| {
            let info = CseInfo { id: id(n), name: sky.name.clone(), format: 1, memory_limit: 64 << 20, profile: None };
            Drive::new(Arc::clone(sky) as _, info, DriveOptions { memory_limit: 64 << 20, ..DriveOptions::default() }).unwrap()
        };
        let drives = skies.iter().enumerate().map(drive).collect();
        Self { random, redundancy, skies, drives, weather, known: BTreeMap::new(), pending: BTreeMap::new(), versions: 0, log: Vec::new() }
    }

    /// A new host, as a new process.
    async fn host(&self) -> Result<Living> {
        let life = Arc::new(Life::default());
        let link = |(drive, sky): (&Arc<Drive>, &Arc<Sky>)| {
            let link = Link { drive: Arc::clone(drive), sky: Arc::clone(sky), life: Arc::clone(&life), weather: Arc::clone(&self.weather) };
            Arc::new(Decorated(link)) as Arc<dyn Cse>
        };
        let drives = self.drives.iter().zip(&self.skies).map(link).collect();
        let mut options = HostOptions { storage_deadline: Duration::from_secs(20), redundancy: self.redundancy.parse().unwrap(), ..HostOptions::default() };
        options.slices.target_bytes = 1 << 10;
        let host = tokio::select! {
            joined = Host::join(drives, options, Founding::EmptyDrives) => joined?.0,
            () = life.over() => return Err(Error::unavailable("the host died while it began")),
        };
        Ok(Living { host, life })
    }

    /// Lets so many strikes befall the next steps.
    fn brew(&mut self, strikes: usize) {
        let asked = self.weather.asked.load(Ordering::SeqCst);
        let mut all = BTreeMap::new();
        for _ in 0..strikes {
            let after = self.random.below(2) == 0;
            let strike = match self.random.below(8) {
                0..=2 => Strike::Host { after },
                3 | 4 => Strike::Drive { after },
                5 => Strike::Answer,
                6 => Strike::Full,
                _ => Strike::Once,
            };
            all.insert(asked + self.random.below(90) as u64, strike);
        }
        *self.weather.strikes.lock().unwrap() = all;
    }

    /// No more strikes; what befell is noted. Drives come back, but for those that the fleet does without, if they are to stay away.
    fn calm(&mut self, back: bool) {
        self.weather.strikes.lock().unwrap().clear();
        let struck = std::mem::take(&mut *self.weather.struck.lock().unwrap());
        if !struck.is_empty() {
            self.log.push(format!("  struck: {struck:?}"));
        }
        if back || self.weather.most.load(Ordering::SeqCst) == 0 {
            self.skies.iter().for_each(|sky| sky.gone.store(false, Ordering::SeqCst));
            self.weather.gone.store(0, Ordering::SeqCst);
        } else {
            self.log.push(format!("  away: {:?}", self.away()));
        }
    }

    fn away(&self) -> Vec<usize> {
        (0..self.skies.len()).filter(|at| self.skies[*at].gone.load(Ordering::SeqCst)).collect()
    }

    /// What a data set holds; nothing where there is none.
    async fn holds(host: &Host, name: &str) -> Result<Option<String>> {
        let sql = format!("SELECT count(*), min(version), max(version), sum(id), sum(noise) FROM {name}");
        let asked = async { host.sql(&sql, &QueryOptions { cut: Cut::Full, ..QueryOptions::default() }).await?.collect().await };
        match asked.await {
            Ok(rows) => Ok(Some(lines(&rows).remove(0))),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn store(host: &Living, name: &str, version: usize) -> Result<()> {
        let work = async {
            let mut writer = host.host.writer(&name.parse()?, DatasetKind::Table, true).await?;
            let rows = rows(version);
            writer.write_table("data", Placement::Spread, rows.schema(), [Ok(rows)].into_iter()).await?;
            writer.commit().await.map(drop)
        };
        tokio::select! { done = work => done, () = host.life.over() => Err(Error::unavailable("the host died")) }
    }

    async fn remove(host: &Living, name: &str) -> Result<()> {
        let name: DatasetName = name.parse()?;
        let work = async { host.host.catalog().drop_dataset(&name).await };
        tokio::select! { done = work => done, () = host.life.over() => Err(Error::unavailable("the host died")) }
    }

    /// That `name` is as one of `may` says, which it is taken for from now on.
    async fn settle(&mut self, host: &Host, name: &'static str, may: &[Option<usize>]) {
        let holds = Self::holds(host, name).await.unwrap_or_else(|e| panic!("{}\n{name}: {}", self.log.join("\n"), e.full_text()));
        if may.len() == 1 && may[0] != self.known.get(name).copied() {
            // A change that was acknowledged, which drives that are away have missed.
            self.pending.remove(name);
        }
        let mut all = may.to_vec();
        all.extend(self.pending.get(name).into_iter().flatten());
        let is = all.iter().copied().find(|version| version.map(told) == holds);
        let Some(is) = is else { panic!("{}\n{name} holds {holds:?}, but may be {all:?}", self.log.join("\n")) };
        self.log.push(format!("  {name} is {is:?}"));
        match is {
            Some(version) => drop(self.known.insert(name, version)),
            None => drop(self.known.remove(name)),
        }
        if self.away().is_empty() {
            self.pending.remove(name);
        } else if all.len() > 1 {
            self.pending.insert(name, all);
        }
    }

    /// That nothing is stored but what root records name.
    async fn nothing_leaks(&self, host: &Host) {
        let mut generations = BTreeMap::new();
        for name in host.catalog().names().await.unwrap() {
            generations.insert(name.clone(), host.catalog().read(&name).await.unwrap().0.generation);
        }
        for sky in &self.skies {
            for entry in sky.store.list("", None, usize::MAX).unwrap() {
                let named = match PartitionName::parse(&entry.key) {
                    Some((partition, _)) => generations.get(&partition.dataset) == Some(&partition.generation),
                    None => !entry.key.as_str().contains('/') || generations.keys().any(|name| name.root_key() == entry.key),
                };
                assert!(named, "{}\n{} still has {}", self.log.join("\n"), sky.name, entry.key);
            }
        }
    }

    async fn step(&mut self) {
        let name = NAMES[self.random.below(NAMES.len())];
        let before = self.known.get(name).copied();
        let what = self.random.below(10);
        let strikes = self.random.below(4);
        // A host that begins is struck as well.
        let early = self.random.below(3) == 0;
        self.versions += 2;
        let (one, other) = (self.versions, self.versions + 1);
        if early {
            self.brew(strikes);
        }
        self.log.push(format!(
            "{what} {name} {before:?} -> {one}; strikes: {strikes}{}; {}",
            if early { ", also while it begins" } else { "" },
            self.redundancy
        ));
        let mut may = vec![before];
        match self.host().await {
            Err(e) => {
                assert!(early, "{}\na host can't begin: {}", self.log.join("\n"), e.full_text());
                self.log.push(format!("  {}", e.full_text()));
            }
            Ok(host) => {
                if !early {
                    self.brew(strikes);
                }
                match what {
                    0..=4 => match Self::store(&host, name, one).await {
                        Ok(()) => may = vec![Some(one)],
                        Err(e) => {
                            self.log.push(format!("  {}", e.full_text()));
                            may.push(Some(one));
                        }
                    },
                    5 => match Self::remove(&host, name).await {
                        Ok(()) => may = vec![None],
                        Err(e) => {
                            self.log.push(format!("  {}", e.full_text()));
                            may.push(None);
                        }
                    },
                    // Two writers of one host: one wins, or one after the other.
                    6 | 7 => {
                        let done = tokio::join!(Self::store(&host, name, one), Self::store(&host, name, other));
                        self.won(&done, (one, other), &mut may);
                    }
                    // A second host takes the fleet over in the middle.
                    8 => {
                        let (first, second) = tokio::join!(Self::store(&host, name, one), async {
                            let newer = self.host().await?;
                            let done = Self::store(&newer, name, other).await;
                            Ok::<_, Error>((done, newer))
                        });
                        let second = second.and_then(|(done, _)| done);
                        self.won(&(first, second), (one, other), &mut may);
                    }
                    _ => {
                        let scrubbed = async { host.host.scrub(&ScrubOptions::default(), &|_| ()).await };
                        let report = tokio::select! { done = scrubbed => done, () = host.life.over() => Err(Error::unavailable("the host died")) };
                        match report {
                            Ok(report) => self.log.push(format!("  {report}")),
                            Err(e) => self.log.push(format!("  {}", e.full_text())),
                        }
                    }
                }
            }
        }
        let back = self.random.below(3) > 0;
        self.calm(back);
        let host = self.host().await.unwrap_or_else(|e| panic!("{}\nno host can begin: {}", self.log.join("\n"), e.full_text()));
        self.settle(&host.host, name, &may).await;
        for other in NAMES.iter().filter(|other| **other != name) {
            let known = self.known.get(other).copied();
            self.settle(&host.host, other, &[known]).await;
        }
        if self.away().is_empty() {
            self.nothing_leaks(&host.host).await;
        }
    }

    /// What may be there after two writers: what the one that won wrote, or, where neither knows, anything of it.
    fn won(&mut self, done: &(Result<()>, Result<()>), (one, other): (usize, usize), may: &mut Vec<Option<usize>>) {
        for result in [&done.0, &done.1] {
            if let Err(e) = result {
                self.log.push(format!("  {}", e.full_text()));
            }
        }
        let unknown = |result: &Result<()>| matches!(result, Err(e) if e.kind() != Kind::Conflict);
        match (done.0.is_ok(), done.1.is_ok()) {
            (false, false) => may.extend([Some(one), Some(other)]),
            _ => {
                may.clear();
                may.extend((done.0.is_ok() || unknown(&done.0)).then_some(Some(one)));
                may.extend((done.1.is_ok() || unknown(&done.1)).then_some(Some(other)));
            }
        }
    }

    async fn rage(&mut self) {
        for name in NAMES {
            self.versions += 1;
            let host = self.host().await.unwrap();
            Self::store(&host, name, self.versions).await.unwrap();
            self.known.insert(name, self.versions);
        }
        for _ in 0..STEPS {
            self.step().await;
        }
        self.calm(true);
        let host = self.host().await.unwrap();
        for name in NAMES {
            let known = self.known.get(name).copied();
            self.settle(&host.host, name, &[known]).await;
        }
        if self.redundancy != "none" {
            let report = host.host.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
            assert!(report.left() == 0 && report.skipped.is_empty(), "{}\n{report}", self.log.join("\n"));
            let again = host.host.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
            assert!(again.damaged == 0, "{}\n{again}", self.log.join("\n"));
        }
        for name in self.known.keys().copied().collect::<Vec<_>>() {
            Self::remove(&host, name).await.unwrap();
        }
        self.known.clear();
        self.nothing_leaks(&host.host).await;
    }
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(given) = std::env::var("SKYTETHER_STORMS") else { return SEEDS };
    let (from, to) = given.split_once("..").expect("SKYTETHER_STORMS=FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn after_every_storm_all_is_old_or_new_and_nothing_leaks() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (next, struck) = (Arc::new(AtomicU64::new(seeds().start)), Arc::new(AtomicU64::new(0)));
    let lanes: Vec<_> = (0..2)
        .map(|_| {
            let (next, struck) = (Arc::clone(&next), Arc::clone(&struck));
            runtime.spawn(async move {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds().end {
                        return;
                    }
                    let storm = async {
                        let mut storm = Storm::new(seed);
                        storm.rage().await;
                        struck.fetch_add(storm.log.iter().filter(|line| line.contains("struck")).count() as u64, Ordering::SeqCst);
                    };
                    let limit = Duration::from_secs(120);
                    let ended =
                        tokio::time::timeout(limit, std::panic::AssertUnwindSafe(futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(storm)))).await;
                    match ended {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => panic!("seed {seed}: SKYTETHER_STORMS={seed}..{}", seed + 1),
                        Err(_) => panic!("seed {seed} takes more than {limit:?}: SKYTETHER_STORMS={seed}..{}", seed + 1),
                    }
                }
            })
        })
        .collect();
    runtime.block_on(async {
        for lane in lanes {
            lane.await.unwrap();
        }
    });
    let steps = (seeds().end - seeds().start) * STEPS as u64;
    println!("{} of {steps} steps were struck", struck.load(Ordering::SeqCst));
    assert!(struck.load(Ordering::SeqCst) * 4 > steps, "storms that strike nothing show nothing");
}
