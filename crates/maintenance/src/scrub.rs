//! Scrubs: every drive verifies its own values, the host judges by the reports, and repairs what is damaged.
//!
//! Drives verify slices and parities against the code map (`scrub_window`), and slices of tables without parities
//! against their metadata slice. The host compares all copies of root records, metadata slices and code maps. Where
//! copies differ, the copy counts that fits its owner: a code map its table, a metadata slice its slices. A scrub skips
//! drives that do not answer.

use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use skytether_common::{DatasetName, Error, Key, Kind, PartitionName, Result};
use skytether_device::verify::{Expected, Found, Item};
use skytether_device::{Verified, Verify};
use skytether_erasure::map::Role;
use skytether_partitioning::Placement;
use skytether_slice::Metadata;
use uuid::Uuid;

use crate::Maintenance;
use crate::scrub_window::{ScrubBatch, ScrubGroup, Table};
use skytether_api::scrub_report::{Finding, Progress, ScrubOptions, ScrubReport};
use skytether_catalog::records::code_map::{Level, RedundancyRecord, StoredMap, parity_of};
use skytether_catalog::records::membership::MEMBERSHIP_KEY;
use skytether_catalog::records::membership::newest;
use skytether_catalog::records::root::{RootRecord, TableRecord};
use skytether_cluster::cluster::Cluster;
use skytether_recovery::degraded_storage::damaged;
use skytether_recovery::reconstruct::Reconstructor;

/// Root records that are not alike are looked at so often: one may be changing just now.
const LOOKS: usize = 3;

/// A callback for the progress of a scrub.
pub(crate) type Tell<'a> = &'a (dyn Fn(&Progress) + Send + Sync);

/// A scrub under way.
pub(crate) struct Scrub<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) reconstructor: &'a Arc<Reconstructor>,
    pub(crate) options: &'a ScrubOptions,
    tell: Tell<'a>,
    pub(crate) report: ScrubReport,
    progress: Progress,
    /// Of all digests.
    pub(crate) seed: u64,
    pub(crate) window: ScrubBatch,
}

/// What lies under a partition's own key, on several drives.
struct Own {
    key: Key,
    slot: u32,
    holders: Vec<usize>,
    /// Whether the value itself is wanted.
    wanted: bool,
}

impl Maintenance {
    /// Has every drive verify its values, compares parities with data, and repairs damage. `tell` gets the progress.
    /// Queries and ingests continue. Dropping the future stops the scrub.
    ///
    /// # Errors
    /// `NotFound` for a named data set that does not exist; `Unavailable` where more drives are lost than the scheme
    /// covers. Damage is no error: the report counts it.
    pub fn scrub<'a>(&'a self, options: &'a ScrubOptions, tell: &'a (dyn Fn(&Progress) + Send + Sync)) -> BoxFuture<'a, Result<ScrubReport>> {
        Box::pin(async move {
            let started = Instant::now();
            let catalog = self.0.catalog();
            catalog.look_around().await?;
            let names = if options.datasets.is_empty() { catalog.names().await? } else { options.datasets.iter().cloned().collect() };
            let mut progress = Progress::default();
            for name in &names {
                match catalog.read(name).await {
                    // Data on two levels is verified on each level.
                    Ok((record, _)) => progress.total += record.bytes() * if record.is_on_two_levels() { 2 } else { 1 },
                    Err(e) if e.kind() == Kind::NotFound && !options.datasets.is_empty() => return Err(e),
                    // The report names an unreadable root record when its turn comes.
                    Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported | Kind::NotFound) => {}
                    Err(e) => return Err(e),
                }
            }
            let report = ScrubReport { check: options.check, ..ScrubReport::default() };
            let window = ScrubBatch::new(self.0.drives().len(), options.bytes_per_s);
            let mut scrub =
                Scrub { cluster: &self.0, reconstructor: self.0.reconstructor(), options, tell, report, progress, seed: self.0.options().ids.seed(), window };
            for at in catalog.health().down() {
                scrub.skip(at, &catalog.health().down_reason(at).unwrap_or_default());
            }
            scrub.membership().await?;
            for name in names {
                scrub.dataset(&name).await?;
            }
            scrub.flush().await?;
            if options.datasets.is_empty() {
                crate::volumes::scrub(catalog, options.check, options.bytes_per_s, &mut scrub.report).await?;
            }
            scrub.progress.done = scrub.progress.total;
            scrub.advance(0);
            Ok(ScrubReport { seconds: started.elapsed().as_secs_f64(), ..scrub.report })
        })
    }
}

impl Scrub<'_> {
    pub(crate) fn skip(&mut self, at: usize, why: &str) {
        self.report.skipped.entry(self.reconstructor.name(at).to_owned()).or_insert_with(|| why.to_owned());
    }

    /// Whether drive `at` is left out.
    pub(crate) fn is_skipped(&self, at: usize) -> bool {
        self.report.skipped.contains_key(self.reconstructor.name(at))
    }

    /// Adds `bytes` to the progress.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.progress.done = self.progress.done.saturating_add(bytes).min(self.progress.total);
        (self.tell)(&self.progress);
    }

    /// Has each of these drives verify the requested values. A drive that does not answer is missing in the result, and
    /// the scrub skips it from then on.
    pub(crate) async fn verified(&mut self, asked: Vec<(usize, Verify)>) -> BTreeMap<usize, Verified> {
        let moved: u64 = asked.iter().map(|(_, asked)| asked.encode().len() as u64).sum();
        let answers = join_all(asked.into_iter().map(async |(at, asked)| (at, self.reconstructor.verify(at, asked).await))).await;
        self.report.bytes_moved += moved;
        let mut verified = BTreeMap::new();
        for (at, answer) in answers {
            match answer {
                Ok(answer) => {
                    self.report.bytes_moved += answer.encode().len() as u64;
                    self.report.bytes_verified += answer.bytes;
                    verified.insert(at, answer);
                }
                Err(e) => self.skip(at, &e.report()),
            }
        }
        verified
    }

    pub(crate) fn found(&mut self, dataset: Option<&DatasetName>, at: usize, key: &Key, what: &str, mended: Result<bool>) {
        let (mended, error) = match mended {
            Ok(mended) => (mended, None),
            Err(e) => (false, Some(e.report())),
        };
        let drive = self.reconstructor.name(at).to_owned();
        if mended {
            tracing::info!("{key} at {drive} {what}; it is mended");
        } else {
            tracing::warn!("{key} at {drive} {what}{}", error.as_ref().map(|e| format!("; it could not be mended: {e}")).unwrap_or_default());
        }
        self.report.tell(Finding { dataset: dataset.cloned(), drive, key: key.as_str().to_owned(), what: what.to_owned(), mended, error });
    }

    /// Reports a damaged value of a data set, unless the data set was replaced meanwhile, so that no repair was
    /// possible.
    pub(crate) async fn found_of(&mut self, record: &RootRecord, at: usize, key: &Key, what: &str, mended: Result<bool>) -> Result<()> {
        if self.options.check || matches!(mended, Ok(true)) || self.still(record).await? {
            self.found(Some(&record.name), at, key, what, mended);
        }
        Ok(())
    }

    /// Whether the root record still names the generation of `record`. If it does not, the report says so.
    pub(crate) async fn still(&mut self, record: &RootRecord) -> Result<bool> {
        self.still_of(record, None).await
    }

    /// As [`Self::still`]. The generation of the partition of `key` is enough, where there is a key: a version keeps
    /// tables of the version before.
    async fn still_of(&mut self, record: &RootRecord, key: Option<&Key>) -> Result<bool> {
        let partition = key.and_then(PartitionName::parse);
        let still = match self.cluster.catalog().read(&record.name).await {
            Ok((now, _)) => now.generation == record.generation || partition.is_some_and(|(partition, _)| now.names_partition(&partition)),
            Err(e) if e.kind() == Kind::NotFound => false,
            Err(e) => return Err(e),
        };
        if !still {
            self.report.changed.insert(record.name.clone());
        }
        Ok(still)
    }

    /// The membership record, which every drive has.
    async fn membership(&mut self) -> Result<()> {
        let catalog = self.cluster.catalog();
        let key = Key::new(MEMBERSHIP_KEY)?;
        let _turn = catalog.health().membership_lock().await;
        let told = catalog.read_memberships(catalog.deadline()).await?;
        let Some(newest) = newest(&told) else { return Ok(()) };
        for (at, told) in told.iter().enumerate().filter(|(at, _)| !catalog.health().is_down(*at)) {
            let what = match told {
                Ok(Some(own)) if own == newest => continue,
                Ok(Some(_)) => "is an older one".to_owned(),
                Ok(None) => "is missing".to_owned(),
                Err(e) if e.kind() == Kind::Corrupt => damaged(&e.report()),
                Err(_) => continue,
            };
            let mended = if self.options.check { Ok(false) } else { self.reconstructor.put_back(at, &key, newest.encode()?).await.map(|_| true) };
            self.found(None, at, &key, &what, mended);
        }
        self.report.values += told.len() as u64;
        Ok(())
    }

    /// The home drives with another copy of a root record than the newest, and the difference. Empty where there is no
    /// record.
    async fn apart(&mut self, name: &DatasetName) -> Result<Vec<(usize, String)>> {
        let catalog = self.cluster.catalog();
        let mut copies = Vec::new();
        for at in catalog.homes(name).into_iter().filter(|at| !catalog.health().is_down(*at)) {
            match catalog.read_at(at, name).await {
                Ok(copy) => {
                    let bytes = copy.as_ref().map_or(0, |(bytes, _)| bytes.len() as u64);
                    self.report.bytes_verified += bytes;
                    self.report.bytes_moved += bytes;
                    copies.push((at, Ok(copy.map(|(bytes, _)| bytes))));
                }
                Err(e) if e.kind() == Kind::Corrupt => copies.push((at, Err(e))),
                Err(e) => catalog.may_lose(at, e)?,
            }
        }
        let mut best: Option<(u64, &Bytes)> = None;
        let mut judged = Vec::new();
        for (at, copy) in &copies {
            let what = match copy {
                Ok(Some(bytes)) => match RootRecord::decode(name, bytes) {
                    Ok(record) => {
                        best = best.filter(|(change, _)| *change >= record.change).or(Some((record.change, bytes)));
                        String::new()
                    }
                    // This program can't judge a record of a newer version.
                    Err(e) if e.kind() == Kind::Unsupported => return Ok(Vec::new()),
                    Err(e) => e.report(),
                },
                Ok(None) => "is missing".to_owned(),
                Err(e) => damaged(&e.report()),
            };
            judged.push((*at, copy, what));
        }
        if best.is_none() && judged.iter().all(|(_, copy, _)| matches!(copy, Ok(None))) {
            return Ok(Vec::new());
        }
        let best = best.map(|(_, bytes)| bytes);
        let differs = |(at, copy, what): (usize, &Result<Option<Bytes>>, String)| match copy {
            Ok(Some(own)) if Some(own) == best => None,
            _ if what.is_empty() => Some((at, "is an older one".to_owned())),
            _ => Some((at, what)),
        };
        Ok(judged.into_iter().filter_map(differs).collect())
    }

    /// Verifies that all copies of the root record of a data set are equal.
    async fn root(&mut self, name: &DatasetName) -> Result<()> {
        let catalog = self.cluster.catalog();
        let mut apart = self.apart(name).await?;
        for _ in 1..LOOKS {
            if apart.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            apart = self.apart(name).await?;
        }
        self.report.values += catalog.homes(name).len() as u64;
        if apart.is_empty() {
            return Ok(());
        }
        let mut left = apart.clone();
        if !self.options.check {
            let turn = catalog.health().membership_lock().await;
            catalog.reconcile_root_copies(name, &[]).await?;
            left = self.apart(name).await?;
            drop(turn);
        }
        for (at, what) in apart {
            let error = || Error::corrupt(format!("no copy of the root record of {name} is whole: drop it and ingest it again"));
            let mended = match left.iter().any(|(other, _)| *other == at) {
                false => Ok(true),
                true if self.options.check => Ok(false),
                true => Err(error()),
            };
            self.found(Some(name), at, &name.root_key(), &format!("(a root record) {what}"), mended);
        }
        Ok(())
    }

    async fn dataset(&mut self, name: &DatasetName) -> Result<()> {
        self.progress.what = name.to_string();
        self.root(name).await?;
        let record = match self.cluster.catalog().read(name).await {
            Ok((record, _)) => Arc::new(record),
            Err(e) if e.kind() == Kind::NotFound => {
                self.report.changed.insert(name.clone());
                return Ok(());
            }
            // The report already has what is wrong with the root record.
            Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => return Ok(()),
            Err(e) => return Err(e),
        };
        self.report.datasets += 1;
        for (title, table) in &record.tables {
            match (&table.redundancy, table.placement) {
                (Some(redundancy), _) => self.coded(&record, title, table, redundancy).await?,
                (None, placement) => self.plain(&record, title, table, placement == Placement::Everywhere).await?,
            }
        }
        Ok(())
    }

    fn places(&self, ids: impl Iterator<Item = Uuid>) -> Vec<Option<usize>> {
        ids.map(|id| self.reconstructor.drives().find(|at| self.reconstructor.drives[*at].info().id == id)).collect()
    }

    /// Verifies a table with parities.
    async fn coded(&mut self, record: &Arc<RootRecord>, title: &str, table: &TableRecord, redundancy: &RedundancyRecord) -> Result<()> {
        let partition = record.partition(title, 0);
        let holders = |own: &Self, slot: u32| own.places(redundancy.holders(slot)).into_iter().flatten().collect::<Vec<_>>();
        let key = parity_of(&partition, 0).key()?;
        let fits = |_: u32, bytes: &Bytes| fits_record(&Arc::new(StoredMap::decode(bytes)?), redundancy, table);
        let own = Own { key: key.clone(), slot: 0, holders: holders(self, 0), wanted: true };
        let Some(bytes) = self.copies(record, vec![own], &fits).await?.into_iter().next().flatten() else { return Ok(()) };
        let map = Arc::new(StoredMap::decode(&bytes)?);
        self.reconstructor.remember(&key, &map);
        let places = self.places(map.drives.iter().copied());
        let own: Result<Vec<Own>> = table
            .partitions
            .iter()
            .map(|p| Ok(Own { key: record.partition(title, p.slot).key()?, slot: p.slot, holders: holders(self, p.slot), wanted: false }))
            .collect();
        let fits = |slot: u32, bytes: &Bytes| fits_map(&Metadata::decode(bytes)?, slot, &map);
        self.copies(record, own?, &fits).await?;
        // Within nodes first: values that are repaired there are whole when the groups across nodes are verified.
        for level in Level::all(&map) {
            let (groups, two) = (level.map().len(), level.is_one_of_two());
            let coded = ScrubGroup { level, places: places.clone() };
            let table = Arc::new(Table { record: Arc::clone(record), partition: partition.clone(), coded: Some(coded) });
            for group in 0..groups {
                self.push_group(&table, group as u32)?;
                if self.window.is_full() {
                    self.flush().await?;
                }
            }
            if two {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Verifies a table without parities: copies of one partition, or partitions without a copy.
    async fn plain(&mut self, record: &Arc<RootRecord>, title: &str, table: &TableRecord, everywhere: bool) -> Result<()> {
        let mut holders: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for p in &table.partitions {
            holders.entry(p.slot).or_default().extend(self.places(std::iter::once(p.drive)).into_iter().flatten());
        }
        let partition = |slot: u32| record.partition(title, slot);
        let own: Result<Vec<Own>> =
            holders.iter().map(|(slot, holders)| Ok(Own { key: partition(*slot).key()?, slot: *slot, holders: holders.clone(), wanted: true })).collect();
        let fits = |slot: u32, bytes: &Bytes| fits_table(&Metadata::decode(bytes)?, slot, table);
        let found = self.copies(record, own?, &fits).await?;
        let known = Arc::new(Table { record: Arc::clone(record), partition: partition(0), coded: None });
        for ((slot, holders), bytes) in holders.into_iter().zip(found) {
            let Some(bytes) = bytes else { continue };
            let metadata = Metadata::decode(&bytes)?;
            let copies: Arc<[usize]> = if everywhere { holders.clone().into() } else { Arc::new([]) };
            for (n, slice) in metadata.slices.iter().enumerate() {
                let key = partition(slot).slice_key(u32::try_from(n).map_err(|_| Error::corrupt("a partition has too many slices"))?)?;
                let expected = Expected { len: slice.len, crc32c: slice.crc32c };
                for at in &holders {
                    self.push_slice(*at, &known, &key, expected, &copies);
                }
                if self.window.is_full() {
                    self.flush().await?;
                }
            }
        }
        Ok(())
    }

    /// Compares all copies of what is stored under some keys, and makes them equal to one that `fits`. Gives the wanted
    /// values, as far as a copy fits.
    async fn copies(
        &mut self,
        record: &Arc<RootRecord>,
        own: Vec<Own>,
        fits: &(dyn Fn(u32, &Bytes) -> Result<()> + Send + Sync),
    ) -> Result<Vec<Option<Bytes>>> {
        let mut asked: BTreeMap<usize, Vec<(usize, Item)>> = BTreeMap::new();
        for (n, own) in own.iter().enumerate() {
            for at in &own.holders {
                if self.is_skipped(*at) {
                    self.report.unverified += 1;
                } else {
                    asked.entry(*at).or_default().push((n, Item { key: own.key.clone(), expected: None, summed: None }));
                }
            }
        }
        // The lengths are unknown before the request, and so is the time of a drive that keeps to a rate. Both are
        // small.
        let of = |items: &[(usize, Item)]| Verify { bytes_per_s: None, items: items.iter().map(|(_, item)| item.clone()).collect(), ..Verify::default() };
        let requests = asked.iter().map(|(at, items)| (*at, of(items))).collect();
        let answers = self.verified(requests).await;
        let mut told: Vec<Vec<(usize, Found)>> = own.iter().map(|_| Vec::new()).collect();
        for (at, items) in asked {
            let Some(answer) = answers.get(&at) else {
                self.report.unverified += items.len() as u64;
                continue;
            };
            for (place, (n, _)) in items.into_iter().enumerate() {
                self.report.values += 1;
                let found = answer.found.get(&(place as u32)).cloned().unwrap_or(Found::Missing);
                told[n].push((at, found));
            }
        }
        let mut values = Vec::with_capacity(own.len());
        for (own, told) in own.into_iter().zip(told) {
            values.push(self.alike(record, &own, told, fits).await?);
        }
        Ok(values)
    }

    async fn alike(
        &mut self,
        record: &Arc<RootRecord>,
        own: &Own,
        told: Vec<(usize, Found)>,
        fits: &(dyn Fn(u32, &Bytes) -> Result<()> + Send + Sync),
    ) -> Result<Option<Bytes>> {
        let whole = |found: &Found| if let Found::Told(is) = found { Some(*is) } else { None };
        let first = told.iter().find_map(|(_, found)| whole(found));
        let alike = first.is_some() && told.iter().all(|(_, found)| whole(found) == first);
        if alike && !own.wanted {
            return Ok(None);
        }
        // The most frequent value comes first.
        let count = |is: &Expected| told.iter().filter(|(_, found)| whole(found) == Some(*is)).count();
        let mut candidates: Vec<(Expected, usize)> = told.iter().filter_map(|(at, found)| Some((whole(found)?, *at))).collect();
        candidates.sort_by_key(|(is, _)| std::cmp::Reverse(count(is)));
        let mut right = None;
        let mut wrong = BTreeMap::new();
        let mut tried = BTreeSet::new();
        for &(is, at) in &candidates {
            if tried.contains(&(is.len, is.crc32c)) {
                continue;
            }
            let read = self.reconstructor.ask(at, "read a value", self.reconstructor.drives[at].get(&own.key)).await;
            self.report.bytes_moved += read.as_ref().map_or(0, |value| value.len() as u64);
            if read.as_ref().is_err_and(|e| e.kind() == Kind::Unavailable) {
                // Another drive with an equal copy may answer.
                continue;
            }
            tried.insert((is.len, is.crc32c));
            match read.and_then(|value| fits(own.slot, &value).map(|()| value)) {
                Ok(value) => {
                    right = Some((is, value));
                    break;
                }
                Err(e) => drop(wrong.insert((is.len, is.crc32c), e.report())),
            }
        }
        if alike && right.is_some() {
            return Ok(right.map(|(_, value)| value));
        }
        if candidates.iter().any(|(is, _)| !tried.contains(&(is.len, is.crc32c))) && right.is_none() {
            // A value that no drive could read is not known to be damaged.
            self.report.unverified += told.len() as u64;
            return Ok(None);
        }
        if told.is_empty() || !self.still(record).await? {
            return Ok(None);
        }
        for (at, found) in told {
            let what = match (&found, &right) {
                (Found::Told(own), Some((is, _))) if own == is => continue,
                (Found::Told(own), _) => {
                    wrong.get(&(own.len, own.crc32c)).map_or_else(|| "is another than the others".to_owned(), |why| format!("is not what it should be ({why})"))
                }
                (Found::Missing, _) => "is missing".to_owned(),
                (Found::Damaged(why), _) => damaged(why),
                (Found::Other(_), _) => "is another".to_owned(),
            };
            let mended = match &right {
                _ if self.options.check => Ok(false),
                Some((_, value)) => self.write(record, at, &own.key, value.clone()).await,
                None => Err(Error::corrupt("no whole copy of it is left")),
            };
            self.found_of(record, at, &own.key, &what, mended).await?;
        }
        Ok(right.map(|(_, value)| value))
    }

    /// Writes a repaired value if its generation still exists. Gives whether it did.
    pub(crate) async fn write(&mut self, record: &RootRecord, at: usize, key: &Key, value: Bytes) -> Result<bool> {
        if !self.still_of(record, Some(key)).await? {
            return Ok(false);
        }
        let bytes = value.len() as u64;
        let version = self.reconstructor.put_back(at, key, value).await?;
        self.report.bytes_mending += bytes;
        self.reconstructor.forget(key);
        if self.still_of(record, Some(key)).await? {
            return Ok(true);
        }
        // The generation was replaced and deleted just before this write, so no later deletion would remove the value.
        self.reconstructor.take_back(at, key, version).await?;
        Ok(false)
    }
}

/// Whether a code map can be that of a table.
fn fits_record(stored: &Arc<StoredMap>, redundancy: &RedundancyRecord, table: &TableRecord) -> Result<()> {
    use skytether_catalog::records::code_map::Part;

    let named = |partitions: &[skytether_catalog::records::partition::PartitionRecord], part: Part| {
        partitions.iter().filter(|p| p.slices > 0).map(|p| ((part, p.slot), p.slices)).collect::<Vec<_>>()
    };
    let (slices, parity, inner) = (named(&table.partitions, Part::Slice), named(&redundancy.parity, Part::Parity), named(&redundancy.inner, Part::Inner));
    let mut right = stored.drives == redundancy.drives && stored.within.as_ref().map_or(&[][..], |within| &within.nodes) == redundancy.nodes;
    for level in Level::all(stored) {
        let mut counts: BTreeMap<(Part, u32), u32> = BTreeMap::new();
        for members in level.map().iter() {
            for (role, shards) in [(Role::Data, members.data), (Role::Parity, members.parity)] {
                shards.iter().for_each(|shard| *counts.entry(level.part(shard, role)).or_insert(0) += 1);
            }
        }
        let within = if level.is_within() { inner.as_slice() } else { &[] };
        right &= counts == slices.iter().chain(&parity).chain(within).copied().collect();
    }
    if right { Ok(()) } else { Err(Error::corrupt("it is the code map of another table")) }
}

/// Whether metadata are those of the slices of partition `slot` in a code map.
fn fits_map(metadata: &Metadata, slot: u32, stored: &StoredMap) -> Result<()> {
    let fits = |(n, slice): (usize, &skytether_slice::SliceEntry)| {
        let place = stored.map.find(Role::Data, slot, n as u32);
        place.and_then(|place| stored.map.shard(place)).is_some_and(|shard| shard.len == slice.len && shard.crc32c == slice.crc32c)
    };
    let all = metadata.slices.iter().enumerate().all(fits) && stored.map.find(Role::Data, slot, metadata.slices.len() as u32).is_none();
    if all { Ok(()) } else { Err(Error::corrupt("it is the metadata of other slices")) }
}

/// Whether metadata are those of partition `slot` in a root record.
fn fits_table(metadata: &Metadata, slot: u32, table: &TableRecord) -> Result<()> {
    let fits =
        |p: &&skytether_catalog::records::partition::PartitionRecord| p.slot == slot && p.rows == metadata.rows && p.slices as usize == metadata.slices.len();
    if table.partitions.iter().any(|p| fits(&p)) { Ok(()) } else { Err(Error::corrupt("it is the metadata of another partition")) }
}

/// The partition of parities that belongs to a table, by one of its partitions.
pub(crate) fn map_key(partition: &PartitionName) -> Result<Key> {
    parity_of(partition, 0).key()
}
