//! Scrubs: which copies of records and which shards are damaged or missing, and extents that are written again.
//!
//! Each drive verifies its own values. An extent that lacks a shard is read, decoded where needed, and written as a new
//! generation on drives that are up. The commit of its record has the condition that no merge came between.

use std::collections::BTreeMap;

use futures::future::join_all;
use skytether_catalog::volume_records::PREFIX as RECORDS;
use skytether_common::{Error, Key, Kind, Result};
use skytether_device::negotiate::verify_or_read;
use skytether_device::verify::{Expected, Found, Item, Pace, Verified, Verify};
use skytether_store::{Expect, Op};

use crate::backing::FleetBacking;
use crate::keys;
use crate::layout::{ExtentRecord, Shape};

/// Extents that are verified at a time.
const AT_ONCE: usize = 64;

/// Records that are listed at a time.
const PAGE: usize = 512;

/// What is wrong with one record, or with a shard of an extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The drive that has it, or should.
    pub drive: String,
    /// What is wrong.
    pub what: String,
}

/// A record with what is wrong with it, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    /// The key of the record.
    pub key: Key,
    /// At least one.
    pub faults: Vec<Fault>,
    /// Whether it is as it should be again.
    pub repaired: bool,
    /// Why it is not, if that was tried.
    pub error: Option<String>,
}

/// What a scrub of all volumes found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetScrubbed {
    /// Volumes with records.
    pub volumes: u64,
    /// Copies of records, and shards.
    pub values: u64,
    /// Bytes that drives read.
    pub bytes: u64,
    /// What is wrong.
    pub damaged: Vec<Damaged>,
}

/// What is asked of the drives about one record.
#[derive(Default)]
struct Asked {
    faults: Vec<Fault>,
    record: Option<ExtentRecord>,
    /// How many homes were asked, and how many do not have the record.
    homes: usize,
    missing: usize,
    /// What the whole copies are, by drives.
    copies: BTreeMap<usize, Expected>,
}

impl FleetBacking {
    /// Verifies the records of these keys, and their shards: what is wrong with each, the bytes that drives read, and
    /// how many values that were. `None` where the record is not there any more.
    async fn examine(&self, records: &[Key]) -> Result<(Vec<Option<Vec<Fault>>>, u64, u64)> {
        let writable = self.catalog.health().writable().len();
        let mut asked: Vec<Asked> = Vec::new();
        // By drives: what to verify there, and the record that it is a copy or a shard of.
        let mut each: BTreeMap<usize, Vec<(usize, Option<usize>, Item)>> = BTreeMap::new();
        let read = |key: &Key| {
            let key = key.clone();
            async move { if keys::is_extent(&keys::volume_key(&key)?) { self.stored_record(&key).await } else { Ok(None) } }
        };
        let stored = join_all(records.iter().map(read)).await;
        for ((n, key), stored) in records.iter().enumerate().zip(stored) {
            let mut one = Asked::default();
            for home in self.catalog.homes_of_record(key)? {
                if !self.catalog.health().is_down(home) {
                    one.homes += 1;
                    each.entry(home).or_default().push((n, None, Item { key: key.clone(), expected: None, summed: None }));
                }
            }
            match stored {
                Ok(Some((record, _))) => one.record = Some((*record).clone()),
                Ok(None) => {}
                Err(error) if error.kind() == Kind::Corrupt => one.faults.push(Fault { drive: "all home drives".to_owned(), what: error.report() }),
                Err(error) => return Err(error),
            }
            if let Some(record) = &one.record {
                let shard_key = keys::shard(key, record.generation)?;
                for (at, shard) in record.shards.iter().enumerate() {
                    match self.place(&shard.drive).filter(|at| !self.catalog.health().is_outside(*at)) {
                        None => one.faults.push(Fault { drive: shard.drive.to_string(), what: format!("has left the fleet, with shard {at}") }),
                        // It may come back with it. A scrub leaves out what is on it, as of data sets.
                        Some(drive) if self.catalog.health().is_down(drive) => {}
                        Some(drive) => {
                            let expected = Some(Expected { len: shard.len.into(), crc32c: shard.crc32c });
                            each.entry(drive).or_default().push((n, Some(at), Item { key: shard_key.clone(), expected, summed: None }));
                        }
                    }
                }
                if Shape::of(self.scheme, record.len as usize, writable).is_ok_and(|shape| shape.parity > record.parity()) {
                    let text = format!("was written while drives were lost, and survives the loss of {} of its drives", record.parity());
                    one.faults.push(Fault { drive: "the fleet".to_owned(), what: text });
                }
            }
            asked.push(one);
        }
        let verify = |(at, items): (usize, Vec<(usize, Option<usize>, Item)>)| async move {
            let asked = Verify { seed: 0, bytes_per_s: None, items: items.iter().map(|(_, _, item)| item.clone()).collect() };
            let verified = self.catalog.ask(at, "verify parts of volumes", verify_or_read(self.catalog.bare(at), asked)).await;
            (at, items, verified)
        };
        let (mut bytes, mut values) = (0, 0);
        for (at, items, verified) in join_all(each.into_iter().map(verify)).await {
            let verified = match verified {
                Ok(verified) => verified,
                Err(error) => {
                    self.catalog.may_lose(at, error)?;
                    // What is on it is left out.
                    for (n, shard, _) in items {
                        asked[n].homes -= usize::from(shard.is_none());
                    }
                    continue;
                }
            };
            bytes += verified.bytes;
            values += items.len() as u64;
            for (place, (n, shard, item)) in items.into_iter().enumerate() {
                let what = match (verified.found.get(&(place as u32)), shard) {
                    (Some(Found::Told(is)), None) => {
                        asked[n].copies.insert(at, *is);
                        continue;
                    }
                    (None | Some(Found::Told(_)), _) => continue,
                    (Some(Found::Missing), None) => {
                        asked[n].missing += 1;
                        "lacks its copy of the record".to_owned()
                    }
                    (Some(Found::Missing), Some(shard)) => format!("lacks shard {shard}"),
                    (Some(Found::Damaged(why)), None) => format!("has its copy of the record damaged ({why})"),
                    (Some(Found::Damaged(why)), Some(shard)) => format!("has shard {shard} damaged ({why})"),
                    (Some(Found::Other(_)), _) => format!("has other bytes under {}", item.key),
                };
                asked[n].faults.push(Fault { drive: self.drive_name(at).to_owned(), what });
            }
        }
        let mut found = Vec::with_capacity(records.len());
        for (key, mut one) in records.iter().zip(asked) {
            if one.copies.values().any(|copy| Some(copy) != one.copies.values().next()) {
                // A change may have been between two homes.
                match self.catalog.copies_differ(key).await {
                    Ok(true) => one.faults.push(Fault { drive: self.names(one.copies.keys()), what: "have different copies of the record".to_owned() }),
                    Ok(false) => {}
                    Err(error) if error.kind() == Kind::Corrupt => {}
                    Err(error) => return Err(error),
                }
            }
            if one.missing == one.homes && one.homes > 0 {
                found.push(None);
            } else if one.faults.is_empty() {
                found.push(Some(Vec::new()));
            } else {
                // A merge that came between has changed both.
                let now = match (&one.record, self.stored_record(key).await) {
                    (Some(_), Ok(now)) => now.map(|(record, _)| record),
                    _ => None,
                };
                let is_same = one.record.as_ref().is_none_or(|record| now.is_some_and(|now| now.generation == record.generation));
                found.push(Some(if is_same { one.faults } else { Vec::new() }));
            }
        }
        Ok((found, bytes, values))
    }

    fn names<'a>(&self, drives: impl Iterator<Item = &'a usize>) -> String {
        drives.map(|at| self.drive_name(*at)).collect::<Vec<_>>().join(" and ")
    }

    /// As [`Verify`] asks, over the extents of volumes: an extent is damaged that lacks anything.
    pub(crate) async fn verify_all(&self, asked: Verify) -> Result<Verified> {
        let (mut verified, mut pace, mut place) = (Verified::default(), Pace::new(asked.bytes_per_s), 0);
        for items in asked.items.chunks(AT_ONCE) {
            let records = items.iter().map(|item| keys::record_key(&item.key)).collect::<Result<Vec<_>>>()?;
            let (found, bytes, _) = self.examine(&records).await?;
            verified.bytes += bytes;
            for faults in found {
                match faults {
                    None => drop(verified.found.insert(place, Found::Missing)),
                    Some(faults) if faults.is_empty() => {}
                    Some(faults) => drop(verified.found.insert(place, Found::Damaged(text(&faults)))),
                }
                place += 1;
            }
            pace.passed(bytes).await;
        }
        Ok(verified)
    }

    /// Verifies all volumes, and repairs what is damaged unless it is to `check` alone. `tell` gets the bytes that were
    /// verified since its last call.
    ///
    /// # Errors
    /// `Unavailable`. Damage is no error.
    pub async fn scrub(&self, check: bool, bytes_per_s: Option<u64>, tell: &mut (dyn FnMut(u64) + Send)) -> Result<FleetScrubbed> {
        let (mut scrubbed, mut pace) = (FleetScrubbed::default(), Pace::new(bytes_per_s));
        let mut after: Option<Key> = None;
        let mut group = String::new();
        loop {
            let page = self.catalog.list_records(RECORDS, after.as_ref(), PAGE).await?;
            let Some(last) = page.last() else { return Ok(scrubbed) };
            after = Some(last.key.clone());
            let records: Vec<Key> = page.into_iter().map(|entry| entry.key).collect();
            for some in records.chunks(AT_ONCE) {
                let (found, bytes, values) = self.examine(some).await?;
                scrubbed.bytes += bytes;
                scrubbed.values += values;
                for (key, faults) in some.iter().zip(found) {
                    let own: String = key.as_str().splitn(3, '/').take(2).collect::<Vec<_>>().join("/");
                    if own != group {
                        scrubbed.volumes += u64::from(!own.contains("/~"));
                        group = own;
                    }
                    if let Some(faults) = faults.filter(|faults| !faults.is_empty()) {
                        let repaired = if check { Ok(false) } else { self.write_again(key).await };
                        let error = repaired.as_ref().err().map(Error::report);
                        scrubbed.damaged.push(Damaged { key: key.clone(), faults, repaired: repaired.unwrap_or(false), error });
                    }
                }
                tell(bytes);
                pace.passed(bytes).await;
            }
        }
    }

    /// Writes what has this record again: the record on all its home drives, and an extent as a new generation. Whether
    /// that was done: not where it is gone, or was written by a merge meanwhile.
    ///
    /// # Errors
    /// Those of a read and of a write.
    pub(crate) async fn write_again(&self, key: &Key) -> Result<bool> {
        let done = self.try_again(key).await;
        match done {
            Err(error) if error.kind() == Kind::Conflict => Ok(false),
            done => done,
        }
    }

    async fn try_again(&self, key: &Key) -> Result<bool> {
        // The header record of a volume that is open must keep its version.
        let is_there = self.catalog.copy_record(key).await?;
        if !is_there || !keys::is_extent(&keys::volume_key(key)?) {
            return Ok(is_there);
        }
        self.renew(key).await.map(|renewed| renewed.is_some())
    }

    /// Writes an extent again, as a new generation on drives that take data: its length. `None` where it is gone.
    ///
    /// # Errors
    /// `Conflict` where a merge came between; those of a read and of a write.
    pub(crate) async fn renew(&self, key: &Key) -> Result<Option<u64>> {
        let open = self.catalog.health().open_generations(key);
        let Some((record, change)) = self.stored_record(key).await? else { return Ok(None) };
        let extent = self.read_extent(key, &record).await?;
        let placed = self.store(vec![(key.clone(), extent)]).await?;
        let done = match placed.first() {
            Some(placed) => {
                let put = Op::Put { key: key.clone(), value: placed.record.encode()?, expect: Expect::Version(change) };
                self.catalog.commit_records(vec![put]).await
            }
            None => Ok(Vec::new()),
        };
        // Also where the outcome is unknown.
        self.forget(key);
        match done {
            Ok(_) => {
                self.written(&placed);
                self.catalog.health().close_generations(key, &open);
                self.delete_shards(&[(key.clone(), (*record).clone())]).await;
                Ok(Some(record.len.into()))
            }
            Err(error) if error.kind() == Kind::Conflict => {
                self.discard(&placed).await;
                Err(error)
            }
            Err(error) => {
                self.over(&placed, Some(&error));
                Err(error)
            }
        }
    }
}

/// Faults as one text.
fn text(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("{} {}", fault.drive, fault.what)).collect::<Vec<_>>().join("; ")
}
