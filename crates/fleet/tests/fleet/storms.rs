//! Seeded storms: hosts and drives die, drives flap and are slow, answers get lost, disks are full, at any step of ingest, replacement, drop, scrub (which has something to mend), repair, growth and retirement, and hosts take the fleet from one another. After
//! each, every data set is as it was or as it was to be, whole, and nothing is left behind.
//!
//! Drives are real ones over stores in memory; each host sees them through [`Link`]s, which end with it: what a dead host has still under way reaches no drive. A storm follows from its seed but for the order in which threads come to
//! the drives. `SKYTETHER_STORMS=FROM..TO` runs other seeds than the tests do; `benches/storms.py` runs ten thousand.

mod weather;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array};
use arrow::record_batch::RecordBatch;
use skytether_common::{DatasetName, Error, Kind, PartitionName, Result};
use skytether_drive::{Cse, Drive, DriveOptions, Storage};
use skytether_fleet::{Cut, DatasetKind, GrowthOptions, HostOptions, Placement, QueryOptions, RepairOptions, ScrubOptions};
use skytether_host::membership::Membership;
use skytether_host::{Founding, Host};
use skytether_store::SliceStore;
use skytether_wire::CseInfo;
use skytether_wire::decorated::Decorated;

use crate::util::{Random, lines};
use weather::{Life, Link, Sky, Strike, Weather};

/// Seeds of the tests.
const SEEDS: std::ops::Range<u64> = 0..300;

/// Drives that may come to a fleet.
const SPARES: usize = 2;

/// The record of the fleet.
const FLEET: &str = "skytether-fleet";

/// What is done in a storm.
const STEPS: usize = 6;

/// Of what fleets are made: their redundancy, how many drives and hosts they begin with, and how many drives may be lost.
const FLEETS: [(&str, usize, usize, u64); 5] = [("none", 3, 0, 0), ("replicas:2", 3, 0, 1), ("ec:2+1", 4, 0, 1), ("ec:2+2", 4, 0, 2), ("ec:2+1/2+1", 9, 3, 3)];

/// What strikes may befall.
const WORK: [&str; 9] = ["ingest", "replacement", "drop", "two writers", "two hosts", "scrub", "repair", "growth", "retirement"];

/// Which strikes befell which work, how often.
type Tally = BTreeMap<(&'static str, &'static str), u64>;

/// Data sets of a fleet.
const NAMES: [&str; 3] = ["lab.a", "lab.b", "lab.c"];

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
    seed: u64,
    random: Random,
    redundancy: &'static str,
    /// The drives with which it was founded, and spare ones behind them.
    skies: Vec<Arc<Sky>>,
    drives: Vec<Arc<Drive>>,
    founders: usize,
    /// How many hosts they are on, if it is known.
    hosts: usize,
    /// A drive that has something damaged, until that is mended.
    damaged: Option<usize>,
    tally: Tally,
    /// A drive that was lost for good, and is blank until it is rebuilt.
    blank: Option<usize>,
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
        let (redundancy, drives, hosts, most) = FLEETS[random.below(FLEETS.len())];
        let weather = Arc::new(Weather { most: AtomicU64::new(most), ..Weather::default() });
        let skies: Vec<_> = (0..drives + SPARES).map(|n| Sky::new(format!("drive-{n}"))).collect();
        let founders = drives;
        let drives = skies.iter().enumerate().map(|(n, sky)| Self::drive(seed, n, sky)).collect();
        Self {
            seed,
            random,
            redundancy,
            skies,
            drives,
            founders,
            hosts,
            damaged: None,
            tally: Tally::new(),
            blank: None,
            weather,
            known: BTreeMap::new(),
            pending: BTreeMap::new(),
            versions: 0,
            log: Vec::new(),
        }
    }

    fn drive(seed: u64, n: usize, sky: &Arc<Sky>) -> Arc<Drive> {
        let id = uuid::Uuid::from_u128(u128::from(seed) << 16 | n as u128 + 1);
        let info = CseInfo { id, name: sky.name.clone(), format: 1, memory_limit: 64 << 20, profile: None, device: None };
        Drive::new(Arc::clone(sky) as _, info, DriveOptions { memory_limit: 64 << 20, ..DriveOptions::default() }).unwrap()
    }

    /// Another drive in the place of drive `at`, with nothing on it; what is on its way to the old one is lost with that.
    fn put_blank(&mut self, at: usize) {
        self.skies[at].gone.store(true, Ordering::SeqCst);
        self.skies[at] = Sky::new(format!("drive-{at}"));
        self.drives[at] = Self::drive(self.seed, at, &self.skies[at]);
    }

    /// The drives of the fleet, as those say that somebody can ask.
    fn members(&self) -> BTreeSet<usize> {
        let there = self.skies.iter().filter(|sky| !sky.gone.load(Ordering::SeqCst));
        let records = there.filter_map(|sky| serde_json::from_slice::<Membership>(&sky.has(FLEET)?).ok());
        let Some(newest) = records.max_by_key(|record| record.change) else { return (0..self.founders).collect() };
        (0..self.drives.len()).filter(|at| newest.drives.iter().any(|member| member.id == self.drives[*at].info().id)).collect()
    }

    /// The host of a drive; spare ones come to the first.
    fn box_of(&self, at: usize) -> String {
        let each = self.founders / self.hosts.max(1);
        format!("host-{}", if at < self.founders { at / each } else { 0 })
    }

    fn link(&self, at: usize, life: &Arc<Life>) -> Arc<dyn Cse> {
        let (drive, sky) = (Arc::clone(&self.drives[at]), Arc::clone(&self.skies[at]));
        Arc::new(Decorated(Link { drive, sky, life: Arc::clone(life), weather: Arc::clone(&self.weather) }))
    }

    /// A new host, as a new process.
    async fn host(&self) -> Result<Living> {
        let life = Arc::new(Life::default());
        let drives = self.members().into_iter().map(|at| self.link(at, &life)).collect();
        let mut options = HostOptions { storage_deadline: Duration::from_secs(20), redundancy: self.redundancy.parse().unwrap(), ..HostOptions::default() };
        options.slices.target_bytes = 1 << 10;
        if self.hosts > 0 {
            options.hosts = self.drives[..self.founders].iter().enumerate().map(|(at, drive)| (drive.info().id, self.box_of(at))).collect();
        }
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
            let strike = match self.random.below(11) {
                0..=2 => Strike::Host { after },
                3 | 4 => Strike::Drive { after },
                5 => Strike::Answer,
                6 => Strike::Full,
                7 => Strike::Once,
                8 => Strike::Slow,
                _ => Strike::Flaps(1 + self.random.below(6) as u64),
            };
            // Some steps are over after fifty requests, and some take hundreds.
            let within = 60 << self.random.below(4);
            all.insert(asked + self.random.below(within) as u64, strike);
        }
        *self.weather.strikes.lock().unwrap() = all;
    }

    /// No more strikes; what befell is noted. Drives come back, but for those that the fleet does without, if they are to stay away.
    fn calm(&mut self, back: bool, work: &'static str) {
        self.weather.strikes.lock().unwrap().clear();
        self.skies.iter().for_each(|sky| sky.flaps.store(0, Ordering::SeqCst));
        let struck = std::mem::take(&mut *self.weather.struck.lock().unwrap());
        for strike in &struck {
            *self.tally.entry((work, strike.name())).or_default() += 1;
        }
        if !struck.is_empty() {
            self.log.push(format!("  struck: {struck:?}"));
        }
        if back || self.weather.most.load(Ordering::SeqCst) == 0 {
            self.skies.iter().for_each(|sky| sky.gone.store(false, Ordering::SeqCst));
        } else {
            self.log.push(format!("  away: {:?}", self.away()));
        }
        let lost = self.away().into_iter().chain(self.blank).chain(self.damaged).collect::<BTreeSet<_>>().len();
        self.weather.gone.store(lost as u64, Ordering::SeqCst);
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
        let members = self.members();
        for (_, sky) in self.skies.iter().enumerate().filter(|(at, _)| members.contains(at)) {
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
        let what = self.what();
        let mut work = WORK[match what {
            0..=4 => usize::from(before.is_some()),
            5 => 2,
            6 | 7 => 3,
            8 => 4,
            9 => 5,
            10 => 6,
            _ => 7,
        }];
        let strikes = self.random.below(4);
        // A host that begins is struck as well.
        let early = self.random.below(3) == 0;
        self.versions += 2;
        let (one, other) = (self.versions, self.versions + 1);
        if early {
            self.brew(strikes);
        }
        self.log.push(format!(
            "{work} {name} {before:?} -> {one}; strikes: {strikes}{}; {}",
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
                    9 => {
                        let scrubbed = async { host.host.scrub(&ScrubOptions::default(), &|_| ()).await };
                        let report = tokio::select! { done = scrubbed => done, () = host.life.over() => Err(Error::unavailable("the host died")) };
                        match report {
                            Ok(report) => {
                                self.log.push(format!("  {report}"));
                                if report.left() == 0 && report.skipped.is_empty() {
                                    self.damaged = None;
                                }
                            }
                            Err(e) => self.log.push(format!("  {}", e.full_text())),
                        }
                    }
                    _ => {
                        if self.other_drives(&host, what).await {
                            work = WORK[8];
                        }
                    }
                }
            }
        }
        if self.blank.is_some_and(|at| self.skies[at].has(FLEET).is_some()) {
            self.blank = None;
        }
        let back = self.random.below(3) > 0;
        self.calm(back, work);
        let host = self.host().await.unwrap_or_else(|e| panic!("{}\nno host can begin: {}", self.log.join("\n"), e.full_text()));
        self.settle(&host.host, name, &may).await;
        for other in NAMES.iter().filter(|other| **other != name) {
            let known = self.known.get(other).copied();
            self.settle(&host.host, other, &[known]).await;
        }
        if self.away().is_empty() && self.blank.is_none() {
            self.nothing_leaks(&host.host).await;
        }
    }

    /// What is done next: see [`Self::step`]. A drive that was lost for good is rebuilt before another one can be; it is lost when all others are here and know all.
    fn what(&mut self) -> usize {
        let what = self.random.below(17);
        match what {
            // A name that nothing has is free for an ingest.
            15 | 16 if self.blank.is_none() && self.damaged.is_none() => 5,
            _ if self.blank.is_some() => 10,
            _ if self.damaged.is_some() => 9,
            9 => {
                if self.redundancy != "none" && self.away().is_empty() {
                    self.damage();
                }
                9
            }
            10 | 11 if self.redundancy == "none" || !self.away().is_empty() => 12,
            10 | 11 => {
                let members: Vec<usize> = self.members().into_iter().collect();
                let at = members[self.random.below(members.len())];
                self.put_blank(at);
                self.blank = Some(at);
                self.weather.gone.fetch_add(1, Ordering::SeqCst);
                self.log.push(format!("drive-{at} is lost for good"));
                10
            }
            what => what,
        }
    }

    /// Something of a drive is damaged, or lost: slices, parity, or a root record.
    fn damage(&mut self) {
        let members: Vec<usize> = self.members().into_iter().collect();
        let at = members[self.random.below(members.len())];
        let entries = self.skies[at].store.list("", None, usize::MAX).unwrap();
        let keys: Vec<_> = entries.into_iter().map(|entry| entry.key).filter(|key| key.as_str().contains('/')).collect();
        if keys.is_empty() {
            return;
        }
        let (key, lost) = (&keys[self.random.below(keys.len())], self.random.below(2) == 0);
        self.skies[at].damage(key, lost);
        self.damaged = Some(at);
        self.weather.gone.fetch_add(1, Ordering::SeqCst);
        self.log.push(format!("drive-{at}: {key} is {}", if lost { "lost" } else { "damaged" }));
    }

    /// Repair, growth and retirement; whether it is the latter.
    async fn other_drives(&mut self, host: &Living, what: usize) -> bool {
        let mut retires = false;
        let members = self.members();
        let told = match what {
            10 => {
                let repaired = async { host.host.repair(&RepairOptions::default(), &|_| ()).await.map(|report| format!("{report}")) };
                tokio::select! { done = repaired => done, () = host.life.over() => Err(Error::unavailable("the host died")) }
            }
            _ => {
                let spare = (0..self.drives.len()).find(|at| !members.contains(at) && !self.skies[*at].gone.load(Ordering::SeqCst));
                let leaves = members.len() > self.founders || (members.len() == self.founders && self.redundancy == "ec:2+1" && self.random.below(2) == 0);
                let (new, retire) = match spare {
                    Some(at) if !leaves => {
                        // Whatever is left on one that left is the operator's to remove.
                        if self.skies[at].has(FLEET).is_some() {
                            self.put_blank(at);
                        }
                        (vec![self.link(at, &host.life)], Vec::new())
                    }
                    _ => {
                        let members: Vec<usize> = members.into_iter().collect();
                        (Vec::new(), vec![format!("drive-{}", members[self.random.below(members.len())])])
                    }
                };
                self.log.push(format!("  {} come, {retire:?} leave", new.len()));
                retires = new.is_empty();
                let to = (self.hosts > 0 && !retires).then(|| self.box_of(self.founders));
                let options = GrowthOptions { retire, host: to, ..GrowthOptions::default() };
                let resized = async { host.host.resize(new, &options, &|_| ()).await.map(|report| format!("{report}")) };
                tokio::select! { done = resized => done, () = host.life.over() => Err(Error::unavailable("the host died")) }
            }
        };
        self.log.push(match told {
            Ok(report) => format!("  {}", report.lines().last().unwrap_or_default()),
            Err(e) => format!("  {}", e.full_text()),
        });
        retires
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
        self.calm(true, WORK[0]);
        self.damaged = None;
        let host = self.host().await.unwrap_or_else(|e| panic!("{}\n{}", self.log.join("\n"), e.full_text()));
        if self.blank.take().is_some() {
            let report = host.host.repair(&RepairOptions::default(), &|_| ()).await.unwrap_or_else(|e| panic!("{}\n{}", self.log.join("\n"), e.full_text()));
            assert!(report.left.is_empty() && report.lost.is_empty() && report.drives.len() == 1, "{}\n{report}\n{:?}", self.log.join("\n"), report.left);
        }
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
    let tally = Arc::new(Mutex::new(Tally::new()));
    let lanes: Vec<_> = (0..2)
        .map(|_| {
            let (next, struck, tally) = (Arc::clone(&next), Arc::clone(&struck), Arc::clone(&tally));
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
                        for (what, times) in storm.tally {
                            *tally.lock().unwrap().entry(what).or_default() += times;
                        }
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
    let seeds = seeds().end - seeds().start;
    let (steps, struck) = (seeds * STEPS as u64, struck.load(Ordering::SeqCst));
    println!("{struck} of {steps} steps were struck");
    let tally = tally.lock().unwrap();
    println!("{:<12}{}", "", Strike::NAMES.map(|name| format!("{name:>16}")).concat());
    let counts = WORK.map(|work| Strike::NAMES.map(|strike| tally.get(&(work, strike)).copied().unwrap_or_default()));
    for (work, counts) in WORK.iter().zip(&counts) {
        println!("{work:<12}{}", counts.map(|count| format!("{count:>16}")).concat());
    }
    // Every work is struck, and by every strike something; in ten times as many storms as the tests have, everything by everything.
    let least = if seeds < 10 * SEEDS.end { 0 } else { 1 };
    assert!(seeds < SEEDS.end || counts.iter().all(|of| of.iter().sum::<u64>() > 0 && of.iter().all(|count| *count >= least)), "{counts:?}");
    assert!(seeds < SEEDS.end || (0..Strike::NAMES.len()).all(|strike| counts.iter().map(|of| of[strike]).sum::<u64>() > 0), "{counts:?}");
    assert!(struck * 4 > steps, "storms that strike nothing show nothing");
}
