//! A window of slices and parities that drives verify together. Each drive reads its own values. It reports damaged
//! ones, and one sum of digests for each place in groups of one shape.
//!
//! The sums of the parities' digests must be the parity of the sums of the data's digests. One comparison so covers
//! many groups. Damaged values are taken out of the sums. Where the sums disagree, the host checks the groups one by
//! one.

use std::collections::BTreeMap;
use std::sync::Arc;

use skytether_common::{Error, Key, PartitionName, Result};
use skytether_device::verify::{Expected, Found, Item, MAX_SUMS, Summed};
use skytether_device::{Verified, Verify};
use skytether_erasure::code::{BLOCK, encode};
use skytether_erasure::digest::{Digest, consistent};
use skytether_erasure::map::{CodeMap, Members, Role, Shard};
use skytether_erasure::scrub::{Report, Verdict, judge};
use skytether_erasure::{Code, code};
use skytether_slice::Metadata;

use crate::scrub::{Scrub, map_key};
use skytether_catalog::records::code_map::{Level, StoredMap};
use skytether_catalog::records::root::RootRecord;
use skytether_recovery::degraded_storage::damaged;
use skytether_recovery::repair_io::is;
use skytether_recovery::shard::role;

/// Limits of one request to a drive: least and most bytes, and the seconds that it takes at a given rate.
const BYTES: (u64, u64, u64) = (4 << 20, 32 << 20, 4);

/// Values that a drive verifies for one request.
const ITEMS: usize = 8192;

/// Groups whose digests are requested one by one at a time.
const SINGLY: usize = 64;

/// A table that is scrubbed.
pub(crate) struct Table {
    pub(crate) record: Arc<RootRecord>,
    /// One of its partitions.
    pub(crate) partition: PartitionName,
    pub(crate) coded: Option<ScrubGroup>,
}

/// A table's code groups, on one level.
pub(crate) struct ScrubGroup {
    pub(crate) level: Level,
    /// The map's drives among the host's.
    pub(crate) places: Vec<Option<usize>>,
}

/// A request to a drive.
#[derive(Default)]
struct WindowLane {
    items: Vec<Item>,
    whose: Vec<Whose>,
    bytes: u64,
}

/// What a value is: a shard, or a slice without a group.
enum Whose {
    /// The shard at a place of a group of the window.
    Shard { group: usize, place: usize },
    /// A slice of a table without parities; other drives may have copies.
    Slice { table: Arc<Table>, copies: Arc<[usize]> },
}

/// A group of the window.
struct Group {
    table: Arc<Table>,
    number: u32,
    /// The sums that have its digests, if all its shards can be read.
    shape: Option<usize>,
    turn: u16,
}

/// Groups of one shape, whose digests are added up.
#[derive(Clone, Copy)]
struct Shape {
    code: Code,
    /// Data shards.
    count: usize,
    /// The number of the sum of the first place.
    first: u32,
}

/// Values of the next verification.
pub(crate) struct ScrubBatch {
    lanes: Vec<WindowLane>,
    groups: Vec<Group>,
    shapes: Vec<Shape>,
    /// Bytes for one request.
    bytes: u64,
    /// Groups so far, in this window and before.
    turns: u64,
}

impl ScrubBatch {
    pub(crate) fn new(drives: usize, bytes_per_s: Option<u64>) -> Self {
        let bytes = bytes_per_s.map_or(BYTES.1, |rate| rate.saturating_mul(BYTES.2).clamp(BYTES.0, BYTES.1));
        Self { lanes: (0..drives).map(|_| WindowLane::default()).collect(), groups: Vec::new(), shapes: Vec::new(), bytes, turns: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lanes.iter().any(|lane| lane.bytes >= self.bytes || lane.items.len() >= ITEMS)
            || self.shapes.last().is_some_and(|last| last.first as usize + 2 * (last.count + last.code.parity()) > MAX_SUMS as usize)
    }

    fn push(&mut self, at: usize, item: Item, whose: Whose) {
        // Drives may join during a scrub.
        if at >= self.lanes.len() {
            self.lanes.resize_with(at + 1, WindowLane::default);
        }
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.bytes += item.expected.map_or(0, |expected| expected.len);
            lane.items.push(item);
            lane.whose.push(whose);
        }
    }

    /// The sums for groups of this shape; `None` where there would be too many.
    fn shape(&mut self, code: Code, count: usize) -> Option<usize> {
        if let Some(known) = self.shapes.iter().position(|shape| shape.code == code && shape.count == count) {
            return Some(known);
        }
        let first = self.shapes.last().map_or(0, |last| last.first + (last.count + last.code.parity()) as u32);
        if first as usize + count + code.parity() > MAX_SUMS as usize {
            return None;
        }
        self.shapes.push(Shape { code, count, first });
        Some(self.shapes.len() - 1)
    }
}

impl Group {
    fn coded(&self) -> Result<(&ScrubGroup, Members<'_>)> {
        let coded = self.table.coded.as_ref().ok_or_else(|| Error::internal("a table without groups has one"))?;
        let members = coded.level.map().group(self.number as usize).ok_or_else(|| Error::internal("a code map has lost a group"))?;
        Ok((coded, members))
    }
}

fn expected(shard: &Shard) -> Expected {
    Expected { len: shard.len, crc32c: shard.crc32c }
}

/// Describes a finding in words.
fn words(found: &Found) -> String {
    match found {
        Found::Missing => "is missing".to_owned(),
        Found::Damaged(why) => damaged(why),
        Found::Other(is) | Found::Told(is) => format!("is another one, of {} bytes", is.len),
    }
}

impl Scrub<'_> {
    /// Puts a group of a table into the window.
    pub(crate) fn push_group(&mut self, table: &Arc<Table>, number: u32) -> Result<()> {
        self.window.turns += 1;
        // Neighbours differ by an odd number, so that 65,536 groups in a row have turns of their own.
        let turn = (self.window.turns.wrapping_mul(40_503) & 0xffff) as u16;
        let mut group = Group { table: Arc::clone(table), number, shape: None, turn };
        let (coded, members) = group.coded()?;
        let count = members.data.len();
        let at: Vec<Option<usize>> =
            members.all().iter().map(|shard| coded.places.get(shard.drive as usize).copied().flatten().filter(|at| !self.is_skipped(*at))).collect();
        let shards: Vec<Shard> = members.all().to_vec();
        let level = coded.level.clone();
        let shape = if at.iter().all(Option::is_some) { self.window.shape(coded.level.map().code(), count) } else { None };
        let first = shape.and_then(|shape| self.window.shapes.get(shape)).map(|shape| shape.first);
        group.shape = shape;
        self.report.groups += u64::from(shape.is_some());
        let n = self.window.groups.len();
        for (place, (at, shard)) in at.into_iter().zip(&shards).enumerate() {
            let Some(at) = at else {
                self.report.unverified += 1;
                continue;
            };
            let key = level.key(&table.partition, shard, role(place, count))?;
            let summed = first.map(|first| Summed { sum: first + place as u32, turn });
            self.window.push(at, Item { key, expected: Some(expected(shard)), summed }, Whose::Shard { group: n, place });
        }
        self.window.groups.push(group);
        Ok(())
    }

    /// Puts a slice of a table without parities into the window, as it is at drive `at`.
    pub(crate) fn push_slice(&mut self, at: usize, table: &Arc<Table>, key: &Key, expected: Expected, copies: &Arc<[usize]>) {
        if self.is_skipped(at) {
            self.report.unverified += 1;
            return;
        }
        let whose = Whose::Slice { table: Arc::clone(table), copies: Arc::clone(copies) };
        self.window.push(at, Item { key: key.clone(), expected: Some(expected), summed: None }, whose);
    }

    fn asked(&self, items: Vec<Item>) -> Verify {
        Verify { seed: self.seed, bytes_per_s: self.options.bytes_per_s, items }
    }

    /// Has drives verify all values of the window, and repairs damage.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        let next = ScrubBatch { turns: self.window.turns, ..ScrubBatch::new(self.window.lanes.len(), self.options.bytes_per_s) };
        let ScrubBatch { lanes, groups, shapes, .. } = std::mem::replace(&mut self.window, next);
        let bytes = lanes.iter().map(|lane| lane.bytes).sum();
        let asked: Vec<_> =
            lanes.iter().enumerate().filter(|(_, lane)| !lane.items.is_empty()).map(|(at, lane)| (at, self.asked(lane.items.clone()))).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let all = asked.len();
        let mut answers = self.verified(asked).await;
        let mut bad: BTreeMap<usize, BTreeMap<usize, Found>> = BTreeMap::new();
        let mut slices = Vec::new();
        let heard = answers.len() == all;
        for (at, lane) in lanes.into_iter().enumerate() {
            let Some(answer) = answers.get_mut(&at) else {
                self.report.unverified += lane.items.len() as u64;
                continue;
            };
            self.report.values += lane.items.len() as u64;
            for (place, (item, whose)) in lane.items.into_iter().zip(lane.whose).enumerate() {
                let Some(found) = answer.found.remove(&(place as u32)) else { continue };
                match whose {
                    Whose::Shard { group, place } => drop(bad.entry(group).or_default().insert(place, found)),
                    Whose::Slice { table, copies } => slices.push((at, item, table, copies, found)),
                }
            }
        }
        // Sums are incomplete without a drive that was lost during the request.
        let odd = if heard { self.compare(&groups, &shapes, &bad, answers).await? } else { Vec::new() };
        for (n, bad) in bad {
            if let Some(group) = groups.get(n) {
                let bad = bad.into_iter().map(|(place, found)| (place, words(&found))).collect();
                self.mend_group(&group.table, group.number, &bad).await?;
            }
        }
        for (n, suspects) in odd {
            if let Some(group) = groups.get(n) {
                self.mend_parities(&group.table, group.number, &suspects).await?;
            }
        }
        for (at, item, table, copies, found) in slices {
            self.mend_slice(at, &item, &table, &copies, &words(&found)).await?;
        }
        self.advance(bytes);
        Ok(())
    }

    /// Compares the sums of digests. Gives the groups whose parities do not match their data, and the shards that may
    /// be wrong.
    async fn compare(
        &mut self,
        groups: &[Group],
        shapes: &[Shape],
        bad: &BTreeMap<usize, BTreeMap<usize, Found>>,
        answers: BTreeMap<usize, Verified>,
    ) -> Result<Vec<(usize, Vec<usize>)>> {
        let mut sums = BTreeMap::new();
        answers.into_values().try_for_each(|answer| add(&mut sums, answer))?;
        // In groups with damage the whole shards are in the sums too, and are taken out.
        let mut asked: BTreeMap<usize, Vec<Item>> = BTreeMap::new();
        for (n, bad) in bad {
            let Some(group) = groups.get(*n) else { continue };
            let Some(shape) = group.shape.and_then(|shape| shapes.get(shape)) else { continue };
            for (at, place, item) in items(group, |place| shape.first + place as u32)? {
                if !bad.contains_key(&place) {
                    asked.entry(at).or_default().push(item);
                }
            }
        }
        if !asked.is_empty() {
            let asked = asked.into_iter().map(|(at, items)| (at, self.asked(items))).collect();
            for answer in self.verified(asked).await.into_values() {
                add(&mut sums, answer)?;
            }
        }
        let mut odd = Vec::new();
        for (n, shape) in shapes.iter().enumerate() {
            let whole: Vec<usize> = (0..groups.len()).filter(|at| groups[*at].shape == Some(n) && !bad.contains_key(at)).collect();
            let digests: Vec<Digest> =
                (shape.first..shape.first + (shape.count + shape.code.parity()) as u32).filter_map(|sum| sums.get(&sum).cloned()).collect();
            if whole.is_empty() || (digests.len() == shape.count + shape.code.parity() && digests_agree(*shape, digests)?) {
                continue;
            }
            for some in whole.chunks(SINGLY.min(MAX_SUMS as usize / (shape.count + shape.code.parity()).max(1)).max(1)) {
                odd.extend(self.check_individually(groups, *shape, some).await?);
            }
        }
        Ok(odd)
    }

    /// Verifies groups one by one.
    async fn check_individually(&mut self, groups: &[Group], shape: Shape, some: &[usize]) -> Result<Vec<(usize, Vec<usize>)>> {
        let shards = shape.count + shape.code.parity();
        let mut asked: BTreeMap<usize, Vec<Item>> = BTreeMap::new();
        for (n, group) in some.iter().enumerate() {
            for (at, _, item) in items(&groups[*group], |place| (n * shards + place) as u32)? {
                asked.entry(at).or_default().push(item);
            }
        }
        let asked = asked.into_iter().map(|(at, items)| (at, self.asked(items))).collect();
        let mut sums: BTreeMap<u32, Digest> = BTreeMap::new();
        self.verified(asked).await.into_values().try_for_each(|answer| add(&mut sums, answer))?;
        let mut odd = Vec::new();
        for (n, group) in some.iter().enumerate() {
            let (_, members) = groups[*group].coded()?;
            let report = |(place, shard): (usize, &Shard)| Some(Report { crc32c: shard.crc32c, digest: sums.get(&((n * shards + place) as u32))?.clone() });
            let reports: Vec<Option<Report>> = members.all().iter().enumerate().map(report).collect();
            // New damage is left to the next scrub.
            if let Verdict::Mismatched(suspects) = judge(shape.code, members, &reports)? {
                odd.push((*group, suspects));
            }
        }
        Ok(odd)
    }

    /// Reconstructs the damaged shards of a group.
    async fn mend_group(&mut self, table: &Arc<Table>, number: u32, bad: &BTreeMap<usize, String>) -> Result<()> {
        let group = Group { table: Arc::clone(table), number, shape: None, turn: 0 };
        let (coded, members) = group.coded()?;
        if !self.still(&table.record).await? {
            return Ok(());
        }
        let wanted: Vec<usize> = bad.keys().copied().collect();
        let made = if self.options.check { None } else { Some(self.reconstructor.regroup(&table.partition, &coded.level, number, &wanted, &[]).await) };
        let (mut values, error) = match made {
            None => (Vec::new().into_iter(), None),
            Some(Ok((values, read))) => {
                self.report.bytes_mending += read;
                (values.into_iter(), None)
            }
            Some(Err(e)) => (Vec::new().into_iter(), Some(e)),
        };
        for (place, what) in bad {
            let Some(shard) = members.all().get(*place) else { continue };
            let Some(at) = coded.places.get(shard.drive as usize).copied().flatten() else { continue };
            let key = coded.level.key(&table.partition, shard, role(*place, members.data.len()))?;
            let mended = match (values.next(), &error) {
                (Some(value), _) => self.write(&table.record, at, &key, value).await,
                (None, Some(e)) => Err(e.flattened()),
                (None, None) => Ok(false),
            };
            self.found_of(&table.record, at, &key, what, mended).await?;
        }
        Ok(())
    }

    /// Repairs a group whose shards all match the code map, but whose parities do not match the data. If the metadata
    /// slices confirm the data, the parities are encoded again and the code map is written with them.
    async fn mend_parities(&mut self, table: &Arc<Table>, number: u32, suspects: &[usize]) -> Result<()> {
        let group = Group { table: Arc::clone(table), number, shape: None, turn: 0 };
        let (coded, members) = group.coded()?;
        if !self.still(&table.record).await? {
            return Ok(());
        }
        let what = match suspects {
            [] => "does not fit the data of its group".to_owned(),
            some => format!("does not fit the data of its group, of which one of {} shards may be wrong", some.len()),
        };
        let reencoded = match (self.options.check, coded.level.is_one_of_two()) {
            (true, _) => None,
            // What is right on one level would be wrong on the other.
            (false, true) => Some(Err(Error::corrupt(format!("it is on two levels: drop {} and ingest it again", table.record.name)))),
            (false, false) => Some(self.reencoded(table, coded, members, number).await),
        };
        let Some(reencoded) = reencoded else {
            return self.each_parity(table, coded, members, &what, |_| Ok(false));
        };
        let (map, changed) = match reencoded {
            Ok(reencoded) => reencoded,
            Err(e) => return self.each_parity(table, coded, members, &what, |_| Err(e.flattened())),
        };
        let key = map_key(&table.partition)?;
        let bytes = map.encode()?;
        for place in map.holders(0) {
            let at = coded.places.get(place).copied().flatten().filter(|at| !self.is_skipped(*at));
            if let Some(at) = at
                && !self.write(&table.record, at, &key, bytes.clone()).await?
            {
                return Ok(());
            }
        }
        self.reconstructor.remember(&key, &map);
        let repaired = Arc::new(Table {
            record: Arc::clone(&table.record),
            partition: table.partition.clone(),
            coded: Some(ScrubGroup { level: Level::across(&map), places: coded.places.clone() }),
        });
        let bad = changed.into_iter().map(|place| (place, what.clone())).collect();
        self.mend_group(&repaired, number, &bad).await
    }

    fn each_parity(&mut self, table: &Table, coded: &ScrubGroup, members: Members<'_>, what: &str, mended: impl Fn(usize) -> Result<bool>) -> Result<()> {
        for (n, shard) in members.parity.iter().enumerate() {
            let Some(at) = coded.places.get(shard.drive as usize).copied().flatten() else { continue };
            let key = coded.level.key(&table.partition, shard, Role::Parity)?;
            self.found(Some(&table.record.name), at, &key, what, mended(n));
        }
        Ok(())
    }

    /// The code map with the checksums of the parities that a group's data have, and these parities.
    async fn reencoded(&mut self, table: &Table, coded: &ScrubGroup, members: Members<'_>, number: u32) -> Result<(Arc<StoredMap>, Vec<usize>)> {
        let mut data = Vec::with_capacity(members.data.len());
        for shard in members.data {
            let slot = PartitionName { slot: shard.home, ..table.partition.clone() };
            let mut parts = self.reconstructor.shard(&coded.level, &table.partition, shard, Role::Data, None).await?;
            let value = parts.pop().unwrap_or_default();
            self.report.bytes_mending += value.len() as u64;
            let metadata = match coded.places.get(shard.drive as usize).copied().flatten() {
                Some(at) => self.cluster.drives()[at].get(&slot.key()?).await?,
                None => return Err(Error::unavailable("a drive of its group is not among this host's")),
            };
            self.report.bytes_mending += metadata.len() as u64;
            let metadata = Metadata::decode(&metadata)?;
            if !metadata.slices.get(shard.number as usize).is_some_and(|slice| is(&value, slice.len, slice.crc32c)) {
                return Err(Error::corrupt(format!("nobody can tell which is right: {} is not what its metadata name", slot.slice_key(shard.number)?)));
            }
            data.push(value);
        }
        let own = coded.level.map().code();
        let parities = self.reconstructor.decoding(move || encode(own, &data)).await?;
        let sums: Vec<u32> = parities.iter().map(|parity| skytether_common::checksum::crc32c(parity)).collect();
        let groups: Vec<(Vec<Shard>, Vec<Shard>)> = coded
            .level
            .map()
            .iter()
            .enumerate()
            .map(|(n, members)| {
                let mut parity = members.parity.to_vec();
                if n == number as usize {
                    parity.iter_mut().zip(&sums).for_each(|(shard, sum)| shard.crc32c = *sum);
                }
                (members.data.to_vec(), parity)
            })
            .collect();
        let map = CodeMap::new(own, groups.iter().map(|(data, parity)| (data.as_slice(), parity.as_slice())))?;
        let changed = members.parity.iter().zip(&sums).enumerate().filter(|(_, (shard, sum))| shard.crc32c != **sum);
        let changed = changed.map(|(n, _)| members.data.len() + n).collect();
        Ok((Arc::new(StoredMap { drives: coded.level.stored.drives.clone(), map, within: None }), changed))
    }

    /// Repairs a slice of a table without parities from a copy, if there is one.
    async fn mend_slice(&mut self, at: usize, item: &Item, table: &Table, copies: &[usize], what: &str) -> Result<()> {
        if !self.still(&table.record).await? {
            return Ok(());
        }
        let mended = if self.options.check { Ok(false) } else { self.copied(at, item, table, copies).await };
        self.found_of(&table.record, at, &item.key, what, mended).await
    }

    async fn copied(&mut self, at: usize, item: &Item, table: &Table, copies: &[usize]) -> Result<bool> {
        if copies.len() < 2 {
            return Err(Error::corrupt(format!("it is stored once, without redundancy: drop {} and ingest it again", table.record.name)));
        }
        let others: Vec<usize> = copies.iter().copied().filter(|other| *other != at && !self.is_skipped(*other)).collect();
        for other in others {
            let read = self.reconstructor.ask(other, "read a copy", self.reconstructor.drives[other].get(&item.key)).await;
            if let Ok(value) = read
                && item.expected.is_some_and(|expected| is(&value, expected.len, expected.crc32c))
            {
                self.report.bytes_mending += value.len() as u64;
                return self.write(&table.record, at, &item.key, value).await;
            }
        }
        Err(Error::corrupt("no whole copy of it is left"))
    }
}

/// Adds the sums of an answer to `sums`.
fn add(sums: &mut BTreeMap<u32, Digest>, answer: Verified) -> Result<()> {
    for (sum, digest) in answer.sums {
        match sums.get_mut(&sum) {
            Some(sum) => sum.add(&digest)?,
            None => drop(sums.insert(sum, digest)),
        }
    }
    Ok(())
}

/// Whether the sums of groups of a shape match. Their lengths are those of the longest shards; the lengths of all
/// shards were compared before.
fn digests_agree(shape: Shape, digests: Vec<Digest>) -> Result<bool> {
    let longest = digests.iter().map(Digest::shard_len).max().unwrap_or(0).next_multiple_of(BLOCK as u64);
    let digests: Vec<Digest> = digests.into_iter().map(|digest| digest.padded(longest)).collect();
    let (data, parity) = digests.split_at(shape.count);
    debug_assert_eq!(code::parity_len(shape.code, longest as usize) as u64, longest);
    consistent(shape.code, data, parity)
}

/// All shards of a group, with their drives and requests; `sum` gives the sum of each.
fn items(group: &Group, sum: impl Fn(usize) -> u32) -> Result<Vec<(usize, usize, Item)>> {
    let (coded, members) = group.coded()?;
    let mut items = Vec::with_capacity(members.all().len());
    for (place, shard) in members.all().iter().enumerate() {
        let Some(at) = coded.places.get(shard.drive as usize).copied().flatten() else { continue };
        let key = coded.level.key(&group.table.partition, shard, role(place, members.data.len()))?;
        items.push((at, place, Item { key, expected: Some(expected(shard)), summed: Some(Summed { sum: sum(place), turn: group.turn }) }));
    }
    Ok(items)
}
