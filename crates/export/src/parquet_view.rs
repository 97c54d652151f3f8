//! [`ParquetView`]: a table as one Parquet file, made of its stored slices (`docs/internals/parquet-view.md`).
//!
//! [`ParquetView::open`] makes the file's footer from the footers of the slices. [`ParquetView::read`] gives any range
//! of bytes, and reads no more than the parts of slices in that range. [`ParquetView::export`] gives the whole file
//! from front to end. All of them read as queries do. Slices of a lost drive are reconstructed, and every byte is
//! verified by the checksums of the metadata slice.

use futures::future::BoxFuture;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use skytether_common::checksum::crc32c;
use skytether_common::{DatasetName, Error, Generation, Key, Kind, PartitionName, Result};
use skytether_device::Storage;
use skytether_partitioning::Placement;
use skytether_slice::plain::{Assembly, Footer, MAGIC};
use skytether_slice::{Metadata, Picked, Pieces};
use uuid::Uuid;

use crate::virtual_file::VirtualFile;
use crate::virtual_file::{Part, Slice, Tail};

use skytether_catalog::record_source::RecordSource;
use skytether_catalog::records::root::RootRecord;
use skytether_catalog::root_store::Catalog;
use skytether_catalog::table_view::{View, choose};
use skytether_runtime::within;

/// Limit of slices that are read at the same time.
const AT_ONCE: usize = 16;

/// Bytes of those slices together, unless a single one has more.
const ON_THE_WAY: u64 = 64 << 20;

/// Slices that are read at the same time. With very long rows, slices may be many times their usual length.
fn at_once(parts: &[Part]) -> usize {
    let longest = parts.iter().flat_map(|part| &part.metadata.slices).map(|entry| entry.len).max().unwrap_or(0);
    usize::try_from(ON_THE_WAY / longest.max(1)).unwrap_or(AT_ONCE).clamp(1, AT_ONCE)
}

/// Bytes at the end of a slice that are read for its footer, if its metadata does not have the footer's length.
const LIKELY_TAIL: u64 = 16 << 10;

/// Columns are read alone if they are at most this share of the slice; drives use the same share.
const WORTH_PICKING: f64 = 0.7;

/// The destination of an exported file.
pub trait Sink: Send {
    /// Announces the file's length in bytes, without the footer.
    fn begin(&mut self, bytes: u64);

    /// The next bytes.
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = Result<()>> + Send;
}

/// What an export wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Rows.
    pub rows: u64,
    /// Row groups, which are the stripes that were stored.
    pub row_groups: u64,
    /// Slices.
    pub slices: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Reads tables as files, over a catalog in this process or behind a connection.
#[derive(Debug, Clone)]
pub struct ParquetView {
    catalog: Catalog,
    /// The source of root records.
    records: Arc<dyn RecordSource>,
}

/// The parts of a file that is being opened.
struct Plan {
    name: DatasetName,
    /// The generation that wrote the table, or the last part of the matrix.
    generation: Generation,
    parts: Vec<Part>,
    /// The stripes in the order of the file: partitions and their stripes.
    stripes: Vec<(usize, usize)>,
}

impl Plan {
    /// All slices in the order of the file.
    fn slices(&self) -> Vec<Slice> {
        let of = |(part, stripe): &(usize, usize)| {
            let metadata = &self.parts[*part].metadata;
            let (part, stripe) = (*part, *stripe);
            (0..metadata.groups.len()).map(move |group| Slice { part, stripe, n: metadata.slice_of(stripe, group) })
        };
        self.stripes.iter().flat_map(of).collect()
    }

    fn assembly(&self) -> Result<Assembly> {
        let first = self.parts.first().ok_or_else(|| Error::corrupt(format!("the root record of {} names no partition", self.name)))?;
        Ok(Assembly::new(Arc::clone(&first.metadata.schema), first.metadata.groups))
    }
}

impl ParquetView {
    /// Over the drives of `catalog`. Root records come from `records`: the catalog itself, or the host through which
    /// the drives are reached.
    pub fn new(catalog: Catalog, records: Arc<dyn RecordSource>) -> Self {
        Self { catalog, records }
    }

    async fn record(&self, name: &DatasetName) -> Result<RootRecord> {
        self.records.record(name).await
    }

    /// Whether `file` still has the generation of its table.
    ///
    /// # Errors
    /// `NotFound` where the data set was dropped; errors of the drives.
    pub fn is_current<'a>(&'a self, file: &'a VirtualFile) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let now = self.record(&file.name).await?;
            // An append adds a part to a matrix, and keeps the others.
            let tables = file.parts.first().map_or_else(Vec::new, |part| now.parts(part.name.whole()));
            let none_is_new = tables.iter().all(|table| file.parts.iter().any(|part| part.name.table == *table));
            Ok(none_is_new && file.parts.iter().all(|part| now.names_partition(&part.name)))
        })
    }

    /// Opens the table `domain.dataset`, or `domain.dataset.table` of an expression data set, as a file.
    ///
    /// # Errors
    /// `NotFound` for an unknown table; `Unsupported` for the dense view of a matrix, which no drive stores; `Corrupt`
    /// for damage beyond repair; `Exhausted` for a table that is too wide; `Conflict` where the data set is replaced
    /// meanwhile; `Unavailable`.
    pub fn open<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<VirtualFile>> {
        Box::pin(async move {
            let plan = self.plan(table).await?;
            let slices = plan.slices();
            let mut assembly = plan.assembly()?;
            let (mut tails, mut stripe) = (Vec::with_capacity(slices.len()), Vec::new());
            {
                let mut footers = std::pin::pin!(stream::iter(slices.iter().copied()).map(|slice| self.footer(&plan, slice)).buffered(AT_ONCE));
                for slice in &slices {
                    let (footer, tail) = footers.try_next().await?.ok_or_else(|| Error::internal("fewer footers than slices"))?;
                    tails.push(tail);
                    stripe.push(footer);
                    add(&plan, &mut assembly, slice, &mut stripe)?;
                }
            }
            let generation = plan.generation;
            VirtualFile::new(plan.name, generation, plan.parts, slices, tails, assembly.finish()?)
        })
    }

    /// Bytes `range` of `file`.
    ///
    /// # Errors
    /// `Invalid` for a range that is not within the file; `Conflict` where the data set was replaced or dropped since;
    /// `Corrupt`, `Unavailable`.
    pub fn read<'a>(&'a self, file: &'a VirtualFile, range: Range<u64>) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            if range.start > range.end || range.end > file.len() {
                return Err(Error::invalid(format!("bytes {} to {} of {} are not within its {}", range.start, range.end, file.name, file.len())));
            }
            let mut parts: Vec<(usize, Range<u64>)> = file.within(&range).collect();
            if let [(at, part)] = parts.as_mut_slice()
                && range.end <= file.footer_at()
            {
                return self.part(file, *at, part.clone()).await;
            }
            let mut all = BytesMut::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
            let mut read = std::pin::pin!(stream::iter(parts).map(|(at, part)| self.part(file, at, part)).buffered(at_once(&file.parts)));
            while let Some(bytes) = read.try_next().await? {
                all.extend_from_slice(&bytes);
            }
            all.extend_from_slice(file.of_footer(&range));
            Ok(all.freeze())
        })
    }

    /// Writes all bytes of the file of `table`, in order, to `sink`: the same bytes that [`Self::open`] and
    /// [`Self::read`] give.
    ///
    /// # Errors
    /// As these; the sink's.
    pub async fn export(&self, table: &str, sink: &mut impl Sink) -> Result<Exported> {
        let plan = self.plan(table).await?;
        let slices = plan.slices();
        let mut assembly = plan.assembly()?;
        sink.begin(slices.iter().filter_map(|slice| slice.entry(&plan.parts)).map(|entry| entry.len).sum());
        let mut whole = std::pin::pin!(stream::iter(slices.iter().copied()).map(|slice| self.whole(&plan.parts, slice)).buffered(at_once(&plan.parts)));
        let (mut stripe, mut written) = (Vec::new(), 0u64);
        for slice in &slices {
            let bytes = whole.try_next().await?.ok_or_else(|| Error::internal("fewer slices came than there are"))?;
            stripe.push(Footer::read(&plan.parts[slice.part].metadata, slice.n, &bytes.clone().into())?);
            add(&plan, &mut assembly, slice, &mut stripe)?;
            written += bytes.len() as u64;
            sink.write(bytes).await?;
        }
        let footer = assembly.finish()?;
        let bytes = written + footer.len() as u64;
        sink.write(footer).await?;
        let rows = plan.stripes.iter().filter_map(|(part, stripe)| plan.parts[*part].metadata.stripe_rows(*stripe)).sum();
        Ok(Exported { rows, row_groups: plan.stripes.len() as u64, slices: slices.len() as u64, bytes })
    }

    async fn plan(&self, table: &str) -> Result<Plan> {
        let (name, shown) = split(table)?;
        let record = self.record(&name).await?;
        let (stored, _, view) = choose(&record, shown)?;
        if view == View::Dense {
            return Err(Error::unsupported(format!(
                "{name}.{stored} is a view of a matrix, which nobody stores as such: take its rows, {name}.{stored}_rows, or ask for it by SQL"
            )));
        }
        let table = record.table(&stored)?;
        let mut homes: Vec<(PartitionName, Vec<Uuid>)> = Vec::new();
        // The parts of a matrix follow on one another.
        let tables = record.parts(&stored);
        for of in &tables {
            homes.extend(self.homes(&record, of)?);
        }
        let generation = record.generation_of(tables.last().unwrap_or(&stored));
        let mut parts = Vec::with_capacity(homes.len());
        for (partition, drives) in homes {
            let key = partition.key()?;
            let bytes = self.ask_any(&partition, &drives, "read a table's metadata", |drive| {
                let key = key.clone();
                async move { drive.get(&key).await }
            });
            let metadata = Metadata::decode(&bytes.await?).map_err(|e| e.context(format!("the metadata slice {key} can't be read")))?;
            parts.push(Part { name: partition, drives, metadata });
        }
        let round_robin = table.placement == Placement::Spread && table.partitioned_by.is_none() && table.matrix.is_none();
        let stripes = order(&parts, round_robin);
        Ok(Plan { name, generation, parts, stripes })
    }

    /// The partitions of the table `stored`, each with the drives that have it.
    fn homes(&self, record: &RootRecord, stored: &str) -> Result<Vec<(PartitionName, Vec<Uuid>)>> {
        let table = record.table(stored)?;
        let mut homes: Vec<(u32, Vec<Uuid>)> = Vec::new();
        for partition in &table.partitions {
            match homes.iter_mut().find(|(slot, _)| *slot == partition.slot && table.placement == Placement::Everywhere) {
                Some((_, drives)) => drives.push(partition.drive),
                None => homes.push((partition.slot, vec![partition.drive])),
            }
        }
        homes.sort_by_key(|(slot, _)| *slot);
        if table.placement == Placement::Everywhere {
            homes.truncate(1);
            for (_, drives) in &mut homes {
                let first = self.catalog.choose(&record.name, stored, drives);
                drives.rotate_left(first);
            }
        }
        Ok(homes.into_iter().map(|(slot, drives)| (record.partition(stored, slot), drives)).collect())
    }

    /// Asks `drives` in turn, until one gives the value. `NotFound` only if all of them say so.
    async fn ask_any<T, F: Future<Output = Result<T>>>(
        &self,
        partition: &PartitionName,
        drives: &[Uuid],
        what: &str,
        ask: impl Fn(Arc<dyn Storage>) -> F,
    ) -> Result<T> {
        let name = &partition.dataset;
        let mut failed: Option<(String, Error)> = None;
        for id in drives {
            let (drive, error) = match self.catalog.drive(id, name) {
                Ok(at) => {
                    let drive = &self.catalog.drives()[at];
                    match within(self.catalog.deadline(), &drive.info().name, what, ask(Arc::clone(drive))).await {
                        Ok(done) => return Ok(done),
                        Err(e) => (drive.info().name.clone(), e),
                    }
                }
                Err(e) => (format!("drive {id}"), e),
            };
            // A drive that did not answer may have it.
            if failed.as_ref().is_none_or(|(_, before)| before.kind() == Kind::NotFound && error.kind() != Kind::NotFound) {
                failed = Some((drive, error));
            }
        }
        let (drive, error) = failed.ok_or_else(|| Error::internal("a part of a table is on no drive"))?;
        if error.kind() != Kind::NotFound {
            return Err(error.context(format!("{drive} could not give a part of {name}")));
        }
        Err(match self.record(name).await {
            Ok(now) if now.names_partition(partition) => {
                Error::corrupt(format!("{name} is incomplete, {drive} lacks a part of it (drop {name} and ingest it again)")).with_source(error)
            }
            Err(e) if e.kind() != Kind::NotFound => e.context(format!("{drive} lacks a part of {name}, and nobody can tell whether that was replaced")),
            _ => Error::conflict(format!("{name} was replaced or dropped while it was read as a file: open it again")).with_source(error),
        })
    }

    /// Slice `slice`, verified.
    async fn whole(&self, parts: &[Part], slice: Slice) -> Result<Bytes> {
        let part = &parts[slice.part];
        let (key, entry) = (slice.key(parts)?, slice.entry(parts).ok_or_else(|| Error::internal("a slice that is in no metadata"))?);
        let bytes = self.ask_any(&part.name, &part.drives, "read a slice", |drive| get(drive, key.clone())).await?;
        if bytes.len() as u64 != entry.len || crc32c(&bytes) != entry.crc32c {
            return Err(Error::corrupt(format!(
                "slice {key} is not the one that its partition's metadata describes: drop {} and ingest it again",
                part.name.dataset
            )));
        }
        Ok(bytes)
    }

    /// Verified sections of `slice` for some columns. `None` where they are damaged: then the slice is read whole.
    async fn picked(&self, parts: &[Part], slice: Slice, picked: &Picked) -> Result<Option<Pieces>> {
        let read = self.ranges(parts, slice, picked.ranges()).await?;
        match picked.verify(&read) {
            Err(e) if e.kind() == Kind::Corrupt => Ok(None),
            pieces => pieces.map(Some),
        }
    }

    async fn ranges(&self, parts: &[Part], slice: Slice, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let key = slice.key(parts)?;
        self.ask_any(&parts[slice.part].name, &parts[slice.part].drives, "read parts of a slice", |drive| {
            let (key, ranges) = (key.clone(), ranges.to_vec());
            async move { drive.get_ranges_unverified(&key, &ranges).await }
        })
        .await
    }

    /// A slice's footer, and its bytes where no checksum verified them.
    async fn footer(&self, plan: &Plan, slice: Slice) -> Result<(Footer, Option<Tail>)> {
        let parts = &plan.parts;
        let entry = slice.entry(parts).ok_or_else(|| Error::internal("a slice that is in no metadata"))?;
        let metadata = &parts[slice.part].metadata;
        if let Some(picked) = metadata.pick(slice.n, &[]) {
            let pieces = match self.picked(parts, slice, &picked).await? {
                Some(pieces) => pieces,
                None => self.whole(parts, slice).await?.into(),
            };
            return Ok((Footer::read(metadata, slice.n, &pieces)?, None));
        }
        let read = match self.tail(plan, slice).await? {
            Some((bytes, tail)) => Footer::read(metadata, slice.n, &Pieces::part(entry.len, tail.start, bytes)?).map(|footer| (footer, Some(tail))),
            None => Err(no_parquet(slice, parts)),
        };
        match read {
            // The footer seems damaged. A whole slice is verified, and reconstructed if need be.
            Err(e) if e.kind() == Kind::Corrupt => Ok((Footer::read(metadata, slice.n, &self.whole(parts, slice).await?.into())?, None)),
            read => read,
        }
    }

    /// The last bytes of a slice whose metadata lacks the length of its footer: the footer, not verified. `None` where
    /// they are no footer.
    async fn tail(&self, plan: &Plan, slice: Slice) -> Result<Option<(Bytes, Tail)>> {
        let parts = &plan.parts;
        let entry = slice.entry(parts).ok_or_else(|| Error::internal("a slice that is in no metadata"))?;
        let mut from = entry.len.saturating_sub(LIKELY_TAIL);
        loop {
            let read = self.ranges(parts, slice, std::slice::from_ref(&(from..entry.len))).await?;
            let bytes = read.into_iter().next().unwrap_or_default();
            let Some(start) = tail_length(&bytes).and_then(|length| entry.len.checked_sub(length)) else { return Ok(None) };
            if start >= from {
                let bytes = bytes.slice((start - from) as usize..);
                let tail = Tail { start, crc32c: crc32c(&bytes) };
                return Ok(Some((bytes, tail)));
            }
            from = start;
        }
    }

    /// Bytes `range` of slice `at` of `file`.
    async fn part(&self, file: &VirtualFile, at: usize, range: Range<u64>) -> Result<Bytes> {
        if let Some(bytes) = file.cached(at, &range) {
            return Ok(bytes);
        }
        let slice = file.slices[at];
        let metadata = &file.parts[slice.part].metadata;
        let entry = slice.entry(&file.parts).ok_or_else(|| Error::internal("a slice that is in no metadata"))?;
        let missing = file.missing(at, &range);
        if let Some(picked) = missing.as_ref().and_then(|places| metadata.pick(slice.n, places))
            && picked.bytes() as f64 <= entry.len as f64 * WORTH_PICKING
            && let Some(pieces) = self.picked(&file.parts, slice, &picked).await?
        {
            file.keep_sections(at, missing.as_deref().unwrap_or_default(), &pieces)?;
            if let Some(bytes) = file.cached(at, &range) {
                return Ok(bytes);
            }
        }
        let bytes = self.whole(&file.parts, slice).await?;
        if let Some(tail) = &file.tails[at]
            && bytes.get(tail.start as usize..).is_none_or(|end| crc32c(end) != tail.crc32c)
        {
            let what = "is damaged where it lies, as the other drives' shards show: export the table, which reads all of it verified";
            return Err(Error::corrupt(format!("the footer of slice {} {what}", slice.key(&file.parts)?)));
        }
        let wanted = bytes.slice(range.start as usize..range.end as usize);
        file.keep(at, bytes);
        Ok(wanted)
    }
}

async fn get(drive: Arc<dyn Storage>, key: Key) -> Result<Bytes> {
    drive.get(&key).await
}

/// Adds the footer of a slice. The footers of a whole stripe form a row group of the file.
fn add(plan: &Plan, assembly: &mut Assembly, slice: &Slice, stripe: &mut Vec<Footer>) -> Result<()> {
    let part = &plan.parts[slice.part];
    if stripe.len() < part.metadata.groups.len() {
        return Ok(());
    }
    assembly
        .add(&part.metadata, slice.stripe, std::mem::take(stripe))
        .map_err(|e| e.context(format!("{} can't be read as a file, for partition {}", plan.name, part.name.slot)))
}

/// The stripes in the order of the file. Stripes that were distributed round robin come in ingest order, others
/// partition by partition.
fn order(parts: &[Part], round_robin: bool) -> Vec<(usize, usize)> {
    let count = |part: &Part| part.metadata.stripes();
    if !round_robin {
        return parts.iter().enumerate().flat_map(|(at, part)| (0..count(part)).map(move |stripe| (at, stripe))).collect();
    }
    let most = parts.iter().map(count).max().unwrap_or(0);
    (0..most).flat_map(|stripe| parts.iter().enumerate().filter(move |(_, part)| stripe < count(part)).map(move |(at, _)| (at, stripe))).collect()
}

/// The data set and the table of a name.
fn split(table: &str) -> Result<(DatasetName, Option<String>)> {
    match table.splitn(3, '.').collect::<Vec<_>>().as_slice() {
        [domain, dataset, table] => Ok((DatasetName::new(*domain, *dataset)?, Some((*table).to_owned()))),
        _ => Ok((table.parse()?, None)),
    }
}

/// The length of a Parquet footer in bytes, from the last bytes of the file.
fn tail_length(end: &[u8]) -> Option<u64> {
    let (rest, magic) = end.split_last_chunk::<4>()?;
    let (_, length) = rest.split_last_chunk::<4>()?;
    (magic == MAGIC).then(|| u64::from(u32::from_le_bytes(*length)) + 8)
}

fn no_parquet(slice: Slice, parts: &[Part]) -> Error {
    Error::corrupt(format!("slice {} of {} is no Parquet file", slice.n, parts[slice.part].name.dataset))
}
