//! The indexes of a drive, and their use by a scan: before a slice is read, an index gives the rows of each stripe that
//! may match.
//!
//! The result is one-sided, as that of [`crate::prune`]: it may have too many rows, never too few, and the filters
//! still run above the scan (I14). A damaged index is not used, and [`Indexes::damaged`] reports it to the drive.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::logical_expr::Expr;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Context, Error, Kind, PartitionName, Result};
use skytether_device::annotation::IndexNote;
use skytether_index::lean::lean;
use skytether_index::{Head, Interval};
use skytether_slice::metadata::ipc;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::prefilter::FEW;
use crate::ranges::Columns;
use crate::reader::{Partition, Reader};

mod cost;
#[cfg(test)]
mod tests;

pub use cost::Costs;
use cost::{ReadCost, Stripe, pays, reach};

/// Bytes between two pages that are read along.
const GAP: u64 = 64 << 10;

/// Bytes of pages that a search reads at most, and rows that it finds.
const MOST_BYTES: u64 = 32 << 20;
const MOST_ROWS: u64 = 2 << 20;

/// What a search takes at most: for each row of its pages its place, once in order with where its values are; and each
/// byte of pages with values as it was read, decoded, and put together again.
const ROW_BYTES: u64 = 8;
const HELD_ROW_BYTES: u64 = 64;
const HELD_COPIES: u64 = 3;

/// Searches that read at the same time.
const SEARCHES: usize = 4;

/// Processor time for a row of an index's page.
const ROW_S: f64 = 20e-9;

/// An index as far as it is built.
#[derive(Debug, Clone)]
pub struct Ready {
    /// The partition that it is of.
    pub of: PartitionName,
    /// Its name.
    pub name: String,
    /// The partition of its bytes.
    pub at: PartitionName,
    /// The heads of its segments, by number.
    pub segments: Vec<Arc<Head>>,
}

/// The slice that has the head of a segment.
#[must_use]
pub fn head_slice(segment: u32) -> u32 {
    segment << 10
}

/// The slice that has a file of a segment's pages.
#[must_use]
pub fn file_slice(segment: u32, file: u32) -> u32 {
    segment << 10 | (file + 1)
}

/// The most files of a segment.
pub const MAX_FILES: usize = 1023;

/// The indexes of a drive that are there to be used.
#[derive(Debug)]
pub struct Indexes {
    ready: Mutex<HashMap<PartitionName, BTreeMap<String, Arc<Ready>>>>,
    damaged: Mutex<Vec<(PartitionName, String)>>,
    /// The drive's memory, and the part of it that searches may take.
    memory: [Arc<dyn MemoryPool>; 2],
    turns: Semaphore,
}

/// Memory of a search, and of what it found.
#[derive(Debug)]
struct SearchMemory([MemoryReservation; 2]);

impl SearchMemory {
    /// Reduces the reservation to `bytes`.
    fn shrink_to(&self, bytes: usize) {
        self.0.iter().for_each(|of| of.shrink(of.size().saturating_sub(bytes)));
    }
}

impl Indexes {
    /// None yet. Searches take their memory from `pool`, at most `most` bytes of it together.
    #[must_use]
    pub fn new(pool: Arc<dyn MemoryPool>, most: usize) -> Self {
        let memory: [Arc<dyn MemoryPool>; 2] = [pool, Arc::new(GreedyMemoryPool::new(most))];
        Self { ready: Mutex::default(), damaged: Mutex::default(), memory, turns: Semaphore::new(SEARCHES) }
    }

    /// A permit to search, and memory for it. `None` where memory is missing: the scan then runs without an index.
    async fn turn(&self, bytes: u64) -> Option<(SemaphorePermit<'_>, SearchMemory)> {
        let turn = self.turns.acquire().await.ok()?;
        let bytes = usize::try_from(bytes).ok()?;
        let room = SearchMemory(self.memory.each_ref().map(|pool| MemoryConsumer::new("a search of an index").register(pool)));
        room.0.iter().all(|of| of.try_grow(bytes).is_ok()).then_some((turn, room))
    }

    fn ready(&self) -> MutexGuard<'_, HashMap<PartitionName, BTreeMap<String, Arc<Ready>>>> {
        self.ready.lock()
    }

    /// Has an index used from now on, in place of what was there of that name.
    pub fn put(&self, index: Ready) {
        self.ready().entry(index.of.clone()).or_default().insert(index.name.clone(), Arc::new(index));
    }

    /// It is used no more.
    pub fn remove(&self, of: &PartitionName, name: &str) {
        let mut ready = self.ready();
        if let Some(indexes) = ready.get_mut(of) {
            indexes.remove(name);
            if indexes.is_empty() {
                ready.remove(of);
            }
        }
    }

    /// The indexes that were found damaged since the last call.
    pub fn damaged(&self) -> Vec<(PartitionName, String)> {
        std::mem::take(&mut *self.damaged.lock())
    }

    fn of(&self, partition: &PartitionName) -> Vec<Arc<Ready>> {
        self.ready().get(partition).map(|indexes| indexes.values().cloned().collect()).unwrap_or_default()
    }

    /// Reading `index` failed.
    fn spoilt(&self, index: &Arc<Ready>, error: &Error) {
        // An I/O error may pass. An index that was dropped or rebuilt since the search began is not damaged.
        let lasting = matches!(error.kind(), Kind::Corrupt | Kind::NotFound);
        if !lasting || !self.of(&index.of).iter().any(|there| Arc::ptr_eq(there, index)) {
            tracing::info!("index {} of {} is not used: {}", index.name, index.of.dataset, error.report());
            return;
        }
        tracing::warn!("index {} of {} is damaged, and built again: {}", index.name, index.of.dataset, error.report());
        self.remove(&index.of, &index.name);
        self.damaged.lock().push((index.of.clone(), index.name.clone()));
    }
}

/// What a search found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Per indexed stripe, the rows that may match, ascending.
    rows: BTreeMap<u32, Vec<u32>>,
    /// Whether each stripe is in it.
    known: Vec<bool>,
    /// All those rows, where their values are in the index.
    pub(crate) values: Option<RecordBatch>,
    pub(crate) note: IndexNote,
    /// What that takes, as long as it is there.
    _room: SearchMemory,
}

impl Found {
    /// The rows of a stripe that may match; `None` where the index does not know it.
    pub(crate) fn rows(&self, stripe: u32) -> Option<&[u32]> {
        let known = self.known.get(stripe as usize).copied().unwrap_or(false);
        known.then(|| self.rows.get(&stripe).map_or(&[][..], Vec::as_slice))
    }

    /// Whether slices of a stripe must be read.
    pub(crate) fn wants(&self, stripe: u32) -> bool {
        match self.rows(stripe) {
            Some(rows) => !rows.is_empty() && self.values.is_none(),
            None => true,
        }
    }
}

/// A scan that might use an index.
struct Scan<'a> {
    /// The stripes that statistics leave over.
    kept: &'a [bool],
    /// The columns that it reads.
    columns: &'a [usize],
    /// What it reads without an index.
    reading: ReadCost,
}

impl<'a> Scan<'a> {
    /// A scan of `partition`. It decodes the `first` leading columns before the others, if given.
    fn new(partition: &Partition, kept: &'a [bool], columns: &'a [usize], first: Option<usize>, costs: Costs) -> Self {
        let metadata = &partition.metadata;
        let groups = metadata.groups.split(columns);
        let disk = |n: usize| {
            let (mut seconds, mut before) = (0.0, None::<usize>);
            for (group, places) in &groups {
                seconds += before.map_or(0.0, |before| costs.way(group.abs_diff(before)));
                seconds += costs.slice(&partition.ranges_read(metadata.slice_of(n, *group), places).unwrap_or_default());
                before = Some(*group);
            }
            seconds
        };
        let stripe = |n: usize| Stripe { number: n as u32, disk: disk(n), rows: metadata.stripe_rows(n).unwrap_or(0) as f64 };
        let stripes = (0..kept.len()).filter(|n| kept[*n]).map(stripe).collect();
        let group = |at: Option<&(usize, Vec<usize>)>| at.map_or(0, |(group, _)| *group);
        let reach = reach(metadata.groups.len(), group(groups.first()), group(groups.last()));
        Self { kept, columns, reading: ReadCost { costs, stripes, reach, columns: columns.len(), first } }
    }

    /// Whether to use the result of `asked`, after the search is paid for. Before, pages only gave the number of rows
    /// in a range, and not their stripes.
    fn pays(&self, asked: Asking, found: &Found) -> bool {
        let share = |stripe: &Stripe| if found.wants(stripe.number) { 1.0 } else { 0.0 };
        found.values.is_some() || pays(self.reading.seconds(share, asked.few), asked.without)
    }
}

/// What is expected of a search.
#[derive(Debug, Clone, Copy)]
struct Asking {
    /// Seconds with it.
    seconds: f64,
    /// Seconds without.
    without: f64,
    /// Whether few of the rows pass.
    few: bool,
}

/// Which pages of an index to read.
struct Asked {
    index: Arc<Ready>,
    boxes: Vec<Vec<Interval>>,
    /// The pages of each segment.
    pages: Vec<Vec<usize>>,
    /// Whether the values are in them.
    holds: bool,
    expected: Asking,
    /// The most that the search takes, and what it finds.
    memory: u64,
}

impl Asked {
    fn new(index: Arc<Ready>, filters: &[Expr], schema: &SchemaRef, scan: &Scan<'_>) -> Option<Self> {
        let head = index.segments.first()?;
        let columns = head.header.columns.iter().map(|(name, order)| Some((name.as_str(), schema.field_with_name(name).ok()?.data_type(), order)));
        let boxes = Columns(columns.collect::<Option<Vec<_>>>()?).boxes(filters)?;
        let pages: Vec<Vec<usize>> = index.segments.iter().map(|head| head.meets(&boxes)).collect();
        let (mut rows, mut bytes, mut reads, mut found) = (0u64, 0u64, 0usize, 0.0f64);
        for (head, pages) in index.segments.iter().zip(&pages) {
            let of = |at: &usize| head.pages.get(*at);
            rows += pages.iter().filter_map(of).map(|page| u64::from(page.rows)).sum::<u64>();
            bytes += pages.iter().filter_map(of).map(|page| u64::from(page.len)).sum::<u64>();
            reads += runs(head, pages).len();
            found += pages.iter().map(|at| head.expects(*at, &boxes)).sum::<f64>();
        }
        if rows > MOST_ROWS || bytes > MOST_BYTES {
            return None;
        }
        let holds = scan.columns.iter().all(|at| head.header.held.contains(schema.field(*at).name()));
        let costs = &scan.reading.costs;
        let searching = reads as f64 * costs.seek_s + bytes as f64 / costs.bytes_per_s + ROW_S * rows as f64 / costs.speed;
        // The stripes that the index covers.
        let known = known(&index, scan.kept.len());
        let knows = |stripe: &Stripe| known.get(stripe.number as usize).copied().unwrap_or(false);
        let here: Vec<&Stripe> = scan.reading.stripes.iter().filter(|stripe| knows(stripe)).collect();
        // A query for a single value mostly asks for one that exists.
        let found = if rows > 0 { found.max(1.0) } else { 0.0 };
        let few = found * FEW as f64 <= here.iter().map(|stripe| stripe.rows).sum::<f64>();
        let hit = 1.0 - (-found / here.len().max(1) as f64).exp();
        let share = |stripe: &Stripe| match (knows(stripe), holds) {
            (true, true) => 0.0,
            (true, false) => hit,
            (false, _) => 1.0,
        };
        let expected = Asking { seconds: searching + scan.reading.seconds(share, few), without: scan.reading.all(few), few };
        let memory = if holds { HELD_COPIES * bytes + HELD_ROW_BYTES * rows } else { bytes + ROW_BYTES * rows };
        Some(Self { index, boxes, pages, holds, expected, memory })
    }

    /// Whether the search is expected to save time.
    fn pays(&self) -> bool {
        pays(self.expected.seconds, self.expected.without)
    }

    /// Reads the pages, within `room`. Blocks.
    fn search(&self, reader: &Reader, kept: &[bool], schema: &SchemaRef, room: SearchMemory) -> Result<Found> {
        let (mut rows, mut values, mut order) = (BTreeMap::<u32, Vec<u32>>::new(), Vec::new(), Vec::new());
        let mut note = IndexNote { name: self.index.name.clone(), covers: self.holds, ..IndexNote::default() };
        for ((number, head), pages) in (0u32..).zip(&self.index.segments).zip(&self.pages) {
            for (file, run) in runs(head, pages) {
                let start = run.first().and_then(|at| head.pages.get(*at)).map_or(0, |page| u64::from(page.start));
                let end = run.last().and_then(|at| head.pages.get(*at)).map_or(0, |page| u64::from(page.start) + u64::from(page.len));
                let read = reader.part_of(&self.index.at.slice_key(file_slice(number, file))?, start..end)?;
                note.bytes += end - start;
                note.pages += run.len() as u64;
                for at in run {
                    let place = head.pages.get(at).ok_or_else(|| Error::internal("there is no such page of an index"))?;
                    let from = (u64::from(place.start) - start) as usize;
                    let bytes = read.get(from..from + place.len as usize).ok_or_else(|| Error::corrupt("a file of an index is cut short"))?;
                    let page = head.page(at, bytes)?;
                    let matching = page.within(&self.boxes);
                    if self.holds && !matching.is_empty() {
                        let (_, batch) = ipc::read(bytes.get(page.values..).unwrap_or_default())?;
                        let batch = batch.filter(|batch| batch.num_rows() == page.rows.len());
                        values.push(batch.ok_or_else(|| Error::corrupt("a page of an index has no values"))?);
                    }
                    for at in matching {
                        let (stripe, row) = head.place(page.rows.get(at).copied().unwrap_or(0));
                        if kept.get(stripe as usize).copied().unwrap_or(false) {
                            rows.entry(stripe).or_default().push(row);
                            note.rows += 1;
                            if self.holds {
                                order.push((stripe, row, values.len().saturating_sub(1), at));
                            }
                        }
                    }
                }
            }
        }
        for of in rows.values_mut() {
            of.sort_unstable();
            of.shrink_to_fit();
        }
        let values = if self.holds { Some(put_together(&values, order, schema)?) } else { None };
        room.shrink_to(4 * note.rows as usize + values.as_ref().map_or(0, RecordBatch::get_array_memory_size));
        Ok(Found { rows, known: known(&self.index, kept.len()), values, note, _room: room })
    }
}

/// The rows at `order`, by stripe and row, with the columns of `schema`.
fn put_together(values: &[RecordBatch], mut order: Vec<(u32, u32, usize, usize)>, schema: &SchemaRef) -> Result<RecordBatch> {
    order.sort_unstable();
    let wrong = || Error::corrupt("a page of an index has other columns than its table");
    let column = |batch: &RecordBatch| {
        let columns = schema.fields().iter().map(|field| batch.column_by_name(field.name()).filter(|c| c.data_type() == field.data_type()).cloned());
        RecordBatch::try_new(Arc::clone(schema), columns.collect::<Option<Vec<_>>>().ok_or_else(wrong)?).map_err(|e| wrong().with_source(e))
    };
    let batches = values.iter().map(column).collect::<Result<Vec<_>>>()?;
    if batches.is_empty() {
        return Ok(RecordBatch::new_empty(Arc::clone(schema)));
    }
    let places: Vec<(usize, usize)> = order.into_iter().map(|(_, _, batch, row)| (batch, row)).collect();
    let rows = interleave_record_batch(&batches.iter().collect::<Vec<_>>(), &places).and_then(|rows| lean(&rows));
    rows.map_err(|e| Error::internal("cannot put rows of an index together").with_source(e))
}

/// Runs of pages that are read together, each with its file.
fn runs(head: &Head, pages: &[usize]) -> Vec<(u32, Vec<usize>)> {
    let mut runs: Vec<(u32, Vec<usize>)> = Vec::new();
    let mut end = 0;
    for &at in pages {
        let Some(page) = head.pages.get(at) else { continue };
        match runs.last_mut() {
            Some((file, run)) if *file == page.file && u64::from(page.start) <= end + GAP => run.push(at),
            _ => runs.push((page.file, vec![at])),
        }
        end = u64::from(page.start) + u64::from(page.len);
    }
    runs
}

/// Which stripes are in an index.
fn known(index: &Ready, stripes: usize) -> Vec<bool> {
    let mut known = vec![false; stripes];
    for head in &index.segments {
        for n in 0..head.header.stripes.len() {
            if let Some(known) = known.get_mut(head.header.first as usize + n) {
                *known = true;
            }
        }
    }
    known
}

/// The drive's indexes as one sub-plan asks them.
#[derive(Debug)]
pub(crate) struct IndexLookup {
    indexes: Arc<Indexes>,
    /// What reading costs without them.
    costs: Costs,
    /// What they answered this sub-plan already, which is planned more than once.
    answers: Mutex<HashMap<String, Option<Arc<Found>>>>,
}

impl IndexLookup {
    pub(crate) fn new(indexes: Arc<Indexes>, costs: Costs) -> Self {
        Self { indexes, costs, answers: Mutex::default() }
    }

    /// The earlier answer to `asked`, if there is one.
    fn answer(&self, asked: &str) -> Option<Option<Arc<Found>>> {
        self.answers.lock().get(asked).cloned()
    }

    fn keep_answer(&self, asked: String, found: Option<Arc<Found>>) {
        self.answers.lock().insert(asked, found);
    }
}

/// Searches the best index of `partition` for rows that may match `filters`, in the stripes `kept`, where the columns
/// `projection` are wanted. `None` if no index would save time.
///
/// The scan decodes the `first` leading columns before the others, if given.
pub(crate) async fn search(
    lookup: &IndexLookup,
    reader: &Arc<Reader>,
    partition: &Arc<Partition>,
    filters: &[Expr],
    kept: &[bool],
    projection: &[usize],
    first: Option<usize>,
) -> Option<Arc<Found>> {
    let IndexLookup { indexes, costs, .. } = lookup;
    let ready = indexes.of(&partition.name);
    if ready.is_empty() || filters.is_empty() || projection.is_empty() || !kept.contains(&true) {
        return None;
    }
    let asked = format!("{} {projection:?} {filters:?}", partition.key);
    if let Some(found) = lookup.answer(&asked) {
        return found;
    }
    let mut columns = projection.to_vec();
    columns.sort_unstable();
    columns.dedup();
    let scan = Scan::new(partition, kept, &columns, first, *costs);
    let schema = &partition.metadata.schema;
    let asked_of = ready.into_iter().filter_map(|index| Asked::new(index, filters, schema, &scan));
    let worth = asked_of.filter(Asked::pays).min_by(|a, b| a.expected.seconds.total_cmp(&b.expected.seconds));
    let found = match worth {
        None => None,
        Some(best) => match indexes.turn(best.memory).await {
            None => {
                tracing::debug!("index {} of {} is not used: there is no memory for {} bytes of a search", best.index.name, partition.key, best.memory);
                None
            }
            Some((turn, room)) => {
                let projected = Arc::new(schema.project(projection).ok()?);
                let (on, kept, index, expected) = (Arc::clone(reader), kept.to_vec(), Arc::clone(&best.index), best.expected);
                let read = reader.blocking(move || best.search(&on, &kept, &projected, room).context(|| format!("index {}", best.index.name))).await;
                drop(turn);
                match read {
                    Ok(found) if scan.pays(expected, &found) => Some(Arc::new(found)),
                    Ok(found) => {
                        tracing::debug!("index {} of {} is not used: its {} rows lie in too many stripes", index.name, partition.key, found.note.rows);
                        None
                    }
                    Err(error) => {
                        indexes.spoilt(&index, &error);
                        None
                    }
                }
            }
        },
    };
    lookup.keep_answer(asked, found.clone());
    found
}
