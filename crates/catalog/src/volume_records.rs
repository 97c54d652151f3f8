//! Records of volumes: small values on the home drives of their group, committed as root records are.
//!
//! A *group* is all records below `~fvol/<group>/`: those of one volume. Each record lies on the home drives of its
//! group, as a value of 8 bytes (the number of its last change, little-endian) and the record itself. A batch is made
//! at the first home that is up, in one step that decides, and then at the others, before it is acknowledged. Drives
//! that are down are noted as absent before ([`crate::rejoin`]), and get what they missed when they are back.
//!
//! Versions in conditions are numbers of changes, so they are the same on all homes, and never used twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::{BoxFuture, join_all};
use futures::{StreamExt, TryStreamExt, stream};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Key, Kind, Result};
use skytether_store::{Entry, Expect, Op, Version};

use crate::fencing::is_refusal;
use crate::root_store::Catalog;

/// With what the keys of all records begin. No domain begins so.
pub const PREFIX: &str = "~fvol/";

/// With what the keys of volumes' data on drives begin.
pub const DATA_PREFIX: &str = "~fext/";

/// Keys that are listed or copied at a time.
const PAGE: usize = 512;

/// Records that are read at the same time.
const READS: usize = 16;

/// How often a record that changes meanwhile is read again.
const ATTEMPTS: usize = 16;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The number of its last change.
    pub change: Version,
    /// What was put.
    pub body: Bytes,
}

impl Record {
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(8 + self.body.len());
        out.put_u64_le(self.change);
        out.put_slice(&self.body);
        out.freeze()
    }

    fn decode(key: &Key, bytes: &Bytes) -> Result<Self> {
        match bytes.split_first_chunk::<8>() {
            Some((change, _)) => Ok(Self { change: u64::from_le_bytes(*change), body: bytes.slice(8..) }),
            None => Err(Error::corrupt(format!("the record {key} is too short"))),
        }
    }
}

/// What became of one change of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The number of the change; 0 for deletes and checks.
    pub change: Version,
    /// What the first home had before, if it could be read.
    pub before: Option<Record>,
}

/// The group of a key: `~fvol/disk` of `~fvol/disk/header`.
fn group_of(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(PREFIX)?;
    Some(&key[..PREFIX.len() + rest.find('/')?])
}

fn conflict(key: &Key) -> Error {
    Error::conflict(format!("the record {key} has changed: another process has it"))
}

/// Whether a record that is `there` is as expected.
fn check(key: &Key, expect: Expect, there: Option<Version>) -> Result<()> {
    let holds = match expect {
        Expect::Any => true,
        Expect::Absent => there.is_none(),
        Expect::Version(version) => there == Some(version),
    };
    if holds { Ok(()) } else { Err(conflict(key)) }
}

/// A change as it is made at every home: what is put has its number.
struct Step {
    key: Key,
    /// Nothing where it is a check; `None` within where it is a delete.
    value: Option<Option<Bytes>>,
    changed: Changed,
}

impl Catalog {
    /// The homes of the group of `key` that are up, the deciding one first: at least one.
    fn record_homes(&self, key: &str) -> Result<Vec<usize>> {
        self.check_presence()?;
        let group = group_of(key).ok_or_else(|| Error::internal(format!("{key} is no key of a record")))?;
        let homes: Vec<_> = self.all_record_homes(group).into_iter().filter(|at| !self.health().is_down(*at)).collect();
        if homes.is_empty() { Err(Error::unavailable(format!("all drives that hold the records of {group} are lost"))) } else { Ok(homes) }
    }

    /// The home drives of the record of `key`, up or down.
    ///
    /// # Errors
    /// `Internal` for other keys.
    pub fn homes_of_record(&self, key: &Key) -> Result<Vec<usize>> {
        let group = group_of(key.as_str()).ok_or_else(|| Error::internal(format!("{key} is no key of a record")))?;
        Ok(self.all_record_homes(group))
    }

    /// Makes the copies of the record of `key` at all homes that are up the newest one. Whether there is one.
    ///
    /// # Errors
    /// `Corrupt` where all copies are damaged; those of the drives.
    pub fn copy_record<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            self.await_presence().await?;
            // No change is between two homes meanwhile.
            let _turn = self.health().membership_lock().await;
            let _still = self.health().record_write().await;
            let (copies, best) = self.copies_of(key).await?;
            let Some(best) = best else { return Ok(false) };
            for (home, _) in copies.into_iter().filter(|(_, copy)| copy.as_ref() != Some(&best)) {
                let put = Op::Put { key: key.clone(), value: best.encode(), expect: Expect::Any };
                self.ask(home, "take a record", self.bare(home).apply(vec![put])).await?;
            }
            Ok(true)
        })
    }

    /// Whether the copies of the record of `key` differ, at homes that are up, while no change is between two homes.
    ///
    /// # Errors
    /// As [`Self::copy_record`].
    pub fn copies_differ<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            self.await_presence().await?;
            let _turn = self.health().membership_lock().await;
            let _still = self.health().record_write().await;
            let (copies, best) = self.copies_of(key).await?;
            Ok(copies.iter().any(|(_, copy)| *copy != best))
        })
    }

    /// What each home that is up has under `key`, and the newest of that. A damaged copy is none.
    async fn copies_of(&self, key: &Key) -> Result<(Vec<(usize, Option<Record>)>, Option<Record>)> {
        let (mut copies, mut best, mut damage) = (Vec::new(), None::<Record>, None);
        for home in self.record_homes(key.as_str())? {
            let copy = match self.record_at(home, key).await {
                Ok(found) => found.map(|(record, _)| record),
                Err(e) if e.kind() == Kind::Corrupt => {
                    damage = Some(e);
                    None
                }
                Err(e) => return Err(e),
            };
            if copy.as_ref().is_some_and(|copy| best.as_ref().is_none_or(|best| copy.change > best.change)) {
                best.clone_from(&copy);
            }
            copies.push((home, copy));
        }
        match (best, damage) {
            (None, Some(damage)) => Err(damage),
            (best, _) => Ok((copies, best)),
        }
    }

    fn all_record_homes(&self, group: &str) -> Vec<usize> {
        self.homes_of_key(group, self.health().homes(), self.health().home_slots().as_deref(), self.health().failure_domains().as_deref())
    }

    /// The record that drive `at` has, with the version of that drive.
    async fn record_at(&self, at: usize, key: &Key) -> Result<Option<(Record, Version)>> {
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.ask(at, "look up a record", self.bare(at).stat(key)).await? else { return Ok(None) };
            match self.ask(at, "read a record", self.bare(at).get(key)).await {
                Ok(bytes) if bytes.len() as u64 == entry.len && crc32c(&bytes) == entry.crc32c => {
                    return Record::decode(key, &bytes).map(|record| Some((record, entry.version)));
                }
                Ok(_) => {}
                Err(e) if e.kind() == Kind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::conflict(format!("the record {key} changes all the time: try again")))
    }

    /// The record of `key`, from the first home that has it whole.
    ///
    /// # Errors
    /// `Corrupt` where all copies are damaged; `Unavailable`.
    pub fn read_record<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>>> {
        Box::pin(async move {
            self.await_presence().await?;
            let mut trouble = None;
            for home in self.record_homes(key.as_str())? {
                match self.ask(home, "read a record", self.bare(home).get(key)).await.and_then(|bytes| Record::decode(key, &bytes)) {
                    Ok(record) => return Ok(Some(record)),
                    // What a blank drive does not have says nothing.
                    Err(e) if e.kind() == Kind::NotFound && !self.is_blank(home).await => return Ok(None),
                    Err(e) if e.kind() == Kind::Unavailable => self.may_lose(home, e)?,
                    Err(e) => drop(trouble.get_or_insert(e)),
                }
            }
            self.check_presence()?;
            Err(trouble.unwrap_or_else(|| Error::unavailable(format!("no drive that has the record {key} answers"))))
        })
    }

    /// Keys below `prefix` after `after`, at most `limit`, in their order, with what a home knows of its copies.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn list_records<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move {
            self.await_presence().await?;
            if group_of(prefix).is_none() {
                return self.list_groups(prefix, after, limit).await;
            }
            for home in self.record_homes(prefix)? {
                match self.ask(home, "list records", self.bare(home).list(prefix, after, limit)).await {
                    Ok(page) if page.is_empty() && self.is_blank(home).await => {}
                    Ok(page) => return Ok(page),
                    Err(e) => self.may_lose(home, e)?,
                }
            }
            Err(Error::unavailable(format!("no drive that has the records below {prefix} answers")))
        })
    }

    /// As [`Self::list_records`], over several groups: every drive is asked. What a drive has of groups that it is no
    /// home of does not count. A resize leaves such records until they are collected, and they may fill pages.
    async fn list_groups(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        let (mut found, mut after) = (BTreeMap::<Key, Entry>::new(), after.cloned());
        loop {
            // Beyond the last key of a full page, its drive may have more: what others have there comes later.
            let mut bound: Option<Key> = None;
            for at in self.health().up() {
                let page = match self.ask(at, "list records", self.bare(at).list(prefix, after.as_ref(), PAGE)).await {
                    Ok(page) => page,
                    Err(e) => {
                        self.may_lose(at, e)?;
                        continue;
                    }
                };
                if let Some(last) = page.last().filter(|_| page.len() == PAGE).map(|entry| &entry.key)
                    && bound.as_ref().is_none_or(|bound| last < bound)
                {
                    bound = Some(last.clone());
                }
                let is_home = |entry: &Entry| group_of(entry.key.as_str()).is_some_and(|group| self.all_record_homes(group).contains(&at));
                found.extend(page.into_iter().filter(is_home).map(|entry| (entry.key.clone(), entry)));
            }
            if let Some(bound) = &bound {
                found.retain(|key, _| key <= bound);
            }
            if found.len() >= limit || bound.is_none() {
                return Ok(found.into_values().take(limit).collect());
            }
            after = bound;
        }
    }

    /// Carries out `batch` of one group as one; what became of each change. The homes that are up have it then.
    ///
    /// # Errors
    /// `Conflict` where a condition does not hold: nothing was changed. `Unavailable`: all of it may have been.
    pub fn commit_records(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Changed>>> {
        Box::pin(async move {
            let Some(first_key) = batch.first().map(|op| op.key().as_str().to_owned()) else { return Ok(Vec::new()) };
            let group = group_of(&first_key).map(str::to_owned);
            if batch.iter().any(|op| group_of(op.key().as_str()) != group.as_deref() || matches!(op, Op::Link { .. })) {
                return Err(Error::internal("a batch of records has changes of several groups, or links"));
            }
            self.await_presence().await?;
            // The same order as where the homes change.
            let _turn = self.health().membership_lock().await;
            let _still = self.health().record_write().await;
            // Whether a home was asked to make it. One that gave no answer may have, whatever the next one says.
            let mut asked = false;
            let (first, steps) = loop {
                let before = asked;
                let unknown = |e: Error| {
                    if !before || e.kind() == Kind::Unavailable {
                        return e;
                    }
                    Error::unavailable(format!("it is unknown whether records of {first_key} were changed: a drive that was to change them is lost"))
                        .with_source(e)
                };
                self.record_absent().await.map_err(unknown)?;
                let home = self.record_homes(&first_key).map_err(unknown)?.first().copied().unwrap_or(0);
                match self.decide(home, &batch, &mut asked).await {
                    Ok(steps) => break (home, steps),
                    Err(e) => self.may_lose(home, e.context("records of a volume can't be changed")).map_err(unknown)?,
                }
            };
            for home in self.record_homes(&first_key)?.into_iter().filter(|home| *home != first) {
                if let Err(e) = self.follow_records(home, &steps).await {
                    // It is made by then, so no error may say that nothing was changed.
                    let behind = |e: Error| {
                        Error::unavailable(format!("records of {first_key} were changed, but {} could not note it", self.drives()[home].info().name))
                            .with_source(e)
                    };
                    self.may_lose(home, e).map_err(behind)?;
                    self.record_absent().await.map_err(behind)?;
                }
            }
            Ok(steps.into_iter().map(|step| step.changed).collect())
        })
    }

    /// Makes `batch` at drive `at`, if its conditions hold there. `asked` is set before the drive may change anything.
    ///
    /// The drive gets conditions on all that was read here: a batch that comes late to it, because its answer was given
    /// up, changes nothing once a later one is made.
    async fn decide(&self, at: usize, batch: &[Op], asked: &mut bool) -> Result<Vec<Step>> {
        for _ in 0..ATTEMPTS {
            let (ops, steps) = self.steps(at, batch).await?;
            *asked = true;
            match self.ask(at, "change records", self.bare(at).apply(ops)).await {
                Ok(_) => return Ok(steps),
                // What was read has changed. The caller's conditions may hold all the same.
                Err(e) if e.kind() == Kind::Conflict && !is_refusal(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::unavailable(format!("records on {} change all the time: try again", self.drives()[at].info().name)))
    }

    /// The changes of `batch` as drive `at` is to make them, if the conditions hold there.
    async fn steps(&self, at: usize, batch: &[Op]) -> Result<(Vec<Op>, Vec<Step>)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        let read = |op: &Op| {
            let (key, expect) = (op.key().clone(), op.expect());
            async move {
                let found = match self.record_at(at, &key).await {
                    // Damage. The other homes have it, and this copy is written again.
                    Err(e) if e.kind() == Kind::Corrupt => {
                        let entry = self.ask(at, "look up a record", self.bare(at).stat(&key)).await?;
                        let record = self.read_record(&key).await.or_else(|e| if expect == Expect::Any { Ok(None) } else { Err(e) })?;
                        entry.map(|entry| (record, entry.version))
                    }
                    found => found?.map(|(record, version)| (Some(record), version)),
                };
                let there = found.as_ref().map(|(record, _)| record.as_ref().map_or(0, |record| record.change));
                check(&key, expect, there)?;
                Ok::<_, Error>(found)
            }
        };
        let found: Vec<_> = stream::iter(batch.iter().map(read)).buffered(READS).try_collect().await?;
        let (mut ops, mut steps) = (Vec::new(), Vec::new());
        for (op, found) in batch.iter().zip(found) {
            let expect = found.as_ref().map_or(Expect::Absent, |(_, version)| Expect::Version(*version));
            let key = op.key().clone();
            let before = found.and_then(|(record, _)| record);
            let step = match op {
                Op::Put { value, .. } => {
                    let change = before.as_ref().map_or(0, |before| before.change).saturating_add(1).max(now);
                    let value = Record { change, body: value.clone() }.encode();
                    ops.push(Op::Put { key: key.clone(), value: value.clone(), expect });
                    Step { key, value: Some(Some(value)), changed: Changed { change, before } }
                }
                Op::Delete { .. } => {
                    ops.push(Op::Delete { key: key.clone(), expect });
                    Step { key, value: Some(None), changed: Changed { change: 0, before } }
                }
                _ => {
                    ops.push(Op::Check { key: key.clone(), expect });
                    Step { key, value: None, changed: Changed { change: 0, before } }
                }
            };
            steps.push(step);
        }
        Ok((ops, steps))
    }

    /// Makes changes at drive `at` that the deciding home has made.
    async fn follow_records(&self, at: usize, steps: &[Step]) -> Result<()> {
        let op = |step: &Step| {
            let (key, expect) = (step.key.clone(), Expect::Any);
            match &step.value {
                Some(Some(value)) => Some(Op::Put { key, value: value.clone(), expect }),
                Some(None) => Some(Op::Delete { key, expect }),
                None => None,
            }
        };
        self.ask(at, "note a change of records", self.bare(at).apply(steps.iter().filter_map(op).collect())).await.map(drop)
    }

    /// The groups that have any record on drive `at`.
    async fn groups_at(&self, at: usize) -> Result<Vec<String>> {
        let (mut groups, mut after) = (Vec::new(), None);
        loop {
            let page = self.ask(at, "list records", self.bare(at).list(PREFIX, after.as_ref(), 1)).await?;
            let Some(first) = page.into_iter().next() else { return Ok(groups) };
            // No part of a key begins with `~`: all other keys of this group are passed over at once.
            after = Some(match group_of(first.key.as_str()) {
                Some(group) => {
                    groups.push(group.to_owned());
                    Key::new(format!("{group}/~"))?
                }
                None => first.key,
            });
        }
    }

    async fn groups(&self, drives: &[usize]) -> Result<BTreeSet<String>> {
        Ok(join_all(drives.iter().map(|at| self.groups_at(*at))).await.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Makes all copies of all records equal: a crash between two homes leaves them different. The newest copy counts.
    /// Drives in `back` were away: what they have does not count.
    ///
    /// # Errors
    /// Those of the drives.
    pub async fn reconcile_records(&self, back: &[usize]) -> Result<()> {
        let drives: Vec<usize> = self.health().up().into_iter().chain(back.iter().copied()).collect();
        for group in self.groups(&drives).await? {
            let homes = self.all_record_homes(&group);
            let (to, from): (Vec<usize>, Vec<usize>) = homes.into_iter().partition(|at| back.contains(at));
            let from: Vec<usize> = from.into_iter().filter(|at| !self.health().is_down(*at)).collect();
            // Where no other home is up, too many are lost, which is an error elsewhere.
            if !from.is_empty() && (back.is_empty() || !to.is_empty()) {
                self.mirror_group(&group, &from, &to).await?;
            }
        }
        Ok(())
    }

    /// Has the homes of all groups that `after` gives what the present homes have.
    ///
    /// # Errors
    /// Those of the drives.
    pub async fn hand_records_on(&self, after: impl Fn(&str) -> Vec<usize>) -> Result<()> {
        for group in self.groups(&self.health().up()).await? {
            let from: Vec<usize> = self.all_record_homes(&group).into_iter().filter(|at| !self.health().is_down(*at)).collect();
            let to: Vec<usize> = after(&group).into_iter().filter(|at| !from.contains(at) && !self.health().is_down(*at)).collect();
            if !from.is_empty() && !to.is_empty() {
                self.mirror_group(&group, &from, &to).await?;
            }
        }
        Ok(())
    }

    /// Makes the copies at `from` equal, and those at `to` the same, also where they have more.
    async fn mirror_group(&self, group: &str, from: &[usize], to: &[usize]) -> Result<()> {
        let prefix = format!("{group}/");
        let mut after: Option<Key> = None;
        loop {
            let all: Vec<usize> = from.iter().chain(to).copied().collect();
            let list = |at: &usize| self.ask(*at, "list records", self.bare(*at).list(&prefix, after.as_ref(), PAGE));
            let pages: Vec<Vec<Entry>> = join_all(all.iter().map(list)).await.into_iter().collect::<Result<_>>()?;
            // Beyond the last key of a full page, its drive may have more.
            let bound = pages.iter().filter(|page| page.len() == PAGE).filter_map(|page| page.last()).map(|entry| entry.key.clone()).min();
            let mut copies: BTreeMap<Key, BTreeMap<usize, (u64, u32)>> = BTreeMap::new();
            for (at, page) in all.iter().zip(pages) {
                for entry in page.into_iter().filter(|entry| bound.as_ref().is_none_or(|bound| entry.key <= *bound)) {
                    copies.entry(entry.key).or_default().insert(*at, (entry.len, entry.crc32c));
                }
            }
            let differ = copies.into_iter().filter(|(_, copies)| copies.len() < all.len() || copies.values().any(|copy| Some(copy) != copies.values().next()));
            let mend = |(key, copies): (Key, BTreeMap<usize, (u64, u32)>)| self.mend_record(key, copies, (from, to));
            let mended: Vec<Vec<(usize, Op)>> = stream::iter(differ.map(mend)).buffered(READS).try_collect().await?;
            let mut each: BTreeMap<usize, Vec<Op>> = BTreeMap::new();
            for (at, op) in mended.into_iter().flatten() {
                each.entry(at).or_default().push(op);
            }
            for (at, ops) in each {
                self.ask(at, "take records", self.bare(at).apply(ops)).await?;
            }
            after = match bound {
                Some(bound) => Some(bound),
                None => return Ok(()),
            };
        }
    }

    /// The changes that make all copies of a record equal.
    async fn mend_record(&self, key: Key, copies: BTreeMap<usize, (u64, u32)>, (from, to): (&[usize], &[usize])) -> Result<Vec<(usize, Op)>> {
        let mut best: Option<(Record, (u64, u32))> = None;
        let mut seen = BTreeSet::new();
        for (at, copy) in copies.iter().filter(|(at, _)| from.contains(at)) {
            if !seen.insert(*copy) {
                continue;
            }
            match self.record_at(*at, &key).await {
                Ok(Some((record, _))) if best.as_ref().is_none_or(|(best, _)| record.change > best.change) => best = Some((record, *copy)),
                Ok(_) => {}
                Err(e) if e.kind() == Kind::Corrupt => tracing::warn!("a copy of a record of a volume is damaged: {}", e.report()),
                Err(e) => return Err(e),
            }
        }
        let expect = Expect::Any;
        Ok(match best {
            Some((record, copy)) => {
                let value = record.encode();
                let behind = from.iter().chain(to).filter(|at| copies.get(at) != Some(&copy));
                behind.map(|at| (*at, Op::Put { key: key.clone(), value: value.clone(), expect })).collect()
            }
            // None is whole: which one it was is unknown, and none is touched.
            None if copies.keys().any(|at| from.contains(at)) => Vec::new(),
            None => to.iter().filter(|at| copies.contains_key(at)).map(|at| (*at, Op::Delete { key: key.clone(), expect })).collect(),
        })
    }
}
