//! Reads partitions out of a store: metadata slices, slices, whole columns. Everything here blocks.
//!
//! Each sub-plan has a [`Reader`] of its own over shared caches, which counts every byte that it gets from the store.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, Float32Array};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use skytether_common::{Context, Detail, Error, Key, Kind, PartitionName, Result};
use skytether_emulation::Processor;
use skytether_expression::groups::PreparedCache;
use skytether_index::segment::Source;
use skytether_runtime::Threads;
use skytether_slice::{Batches, Layout, Metadata, Picked, Pieces};
use skytether_store::{SliceStore, Version};

use crate::cache::Cache;
use crate::threads::blocking_on;

/// Bytes of decoded metadata that a drive keeps.
const METADATA_CACHE: usize = 32 << 20;

/// Bytes of whole columns (names of genes and cells, obs columns, totals) that a drive keeps.
const COLUMN_CACHE: usize = 64 << 20;

/// The columns of a slice are read by themselves where they and the footer are at most this share of it. In
/// the page cache that pays up to 0.8 even where columns are apart (docs/benchmarks.md); disks like one
/// read better than several.
const WORTH_PICKING: f64 = 0.7;

/// A partition of this drive, with the content of its metadata slice.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) name: PartitionName,
    /// The metadata slice's key and version, which identify its content.
    pub(crate) key: Key,
    pub(crate) version: Version,
    pub(crate) metadata: Metadata,
}

impl Partition {
    /// `blood.pbmc3k/x`, for errors.
    pub(crate) fn title(&self) -> String {
        format!("{}/{}", self.name.dataset, self.name.table)
    }

    /// What to read of slice `n` for the columns at `places` of its group; nothing where it is not known, or the whole
    /// slice is read as quickly.
    fn picked(&self, n: usize, places: &[usize]) -> Option<Picked> {
        let len = self.metadata.slices.get(n)?.len;
        self.metadata.pick(n, places).filter(|picked| picked.bytes() as f64 <= len as f64 * WORTH_PICKING)
    }

    /// The bytes of slice `n` that are read for the columns at `places` of its group, ascending.
    pub(crate) fn ranges_read(&self, n: usize, places: &[usize]) -> Option<Vec<Range<u64>>> {
        let len = self.metadata.slices.get(n)?.len;
        Some(self.picked(n, places).map_or_else(|| std::iter::once(0..len).collect(), |picked| picked.ranges().to_vec()))
    }

    /// How many bytes of slice `n` are read for the columns at `places` of its group.
    pub(crate) fn bytes_read(&self, n: usize, places: &[usize]) -> Option<u64> {
        let len = self.metadata.slices.get(n)?.len;
        Some(self.picked(n, places).map_or(len, |picked| picked.bytes()))
    }

    /// The position of a column.
    pub(crate) fn column(&self, name: &str) -> Result<usize> {
        self.metadata.schema.index_of(name).map_err(|_| {
            let there: Vec<&str> = self.metadata.schema.fields().iter().take(50).map(|f| f.name().as_str()).collect();
            Error::not_found(format!("{} has no column {name:?}; it has {}", self.title(), there.join(", ")))
                .with_detail(Detail::MissingColumn { column: name.to_owned() })
        })
    }
}

/// What reads, with its caches.
#[derive(Debug)]
pub struct Reader {
    store: Arc<dyn SliceStore>,
    caches: Arc<Caches>,
    bytes_read: AtomicU64,
    /// The emulated device's processor, which the work over this reader pays for, if there is one.
    processor: Option<Arc<Processor>>,
    /// Where reading waits, if not on the runtime's threads.
    threads: Option<Arc<Threads>>,
}

#[derive(Debug)]
struct Caches {
    metadata: Cache<(Key, Version), Arc<Partition>>,
    columns: Cache<(Key, Version, String), ArrayRef>,
    totals: Cache<(Key, Version, String), Arc<Float32Array>>,
    /// Groups of cells that queries have used.
    prepared: Arc<PreparedCache>,
}

impl Reader {
    /// A reader over `store`, with empty caches.
    #[must_use]
    pub fn new(store: Arc<dyn SliceStore>) -> Self {
        Self::sharing(store, 1)
    }

    /// The same with caches of `1 / shares` of the bytes.
    #[must_use]
    pub fn sharing(store: Arc<dyn SliceStore>, shares: usize) -> Self {
        let of = |bytes: usize| bytes / shares.max(1);
        let (metadata, columns, totals) = (Cache::new(of(METADATA_CACHE)), Cache::new(of(COLUMN_CACHE)), Cache::new(of(COLUMN_CACHE)));
        let caches = Caches { metadata, columns, totals, prepared: Arc::default() };
        Self { store, caches: Arc::new(caches), bytes_read: AtomicU64::new(0), processor: None, threads: None }
    }

    /// The same reader on the cores of `processor`: reading through it, and engines over it, take the
    /// processor time of that device.
    #[must_use]
    pub fn paced(self, processor: Option<Arc<Processor>>) -> Self {
        Self { processor, ..self }
    }

    /// The same reader, whose reading waits on `threads`: for a store that others read for it.
    #[must_use]
    pub fn waiting_on(self, threads: Arc<Threads>) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// The bytes at `range` of a value, not verified.
    pub(crate) fn part_of(&self, key: &Key, range: Range<u64>) -> Result<Bytes> {
        let read = self.store.get_ranges_unverified(key, std::slice::from_ref(&range))?;
        self.bytes_read.fetch_add(range.end.saturating_sub(range.start), Ordering::Relaxed);
        read.into_iter().next().ok_or_else(|| Error::internal(format!("no bytes of {key} came")))
    }

    /// The cores that engines over this reader work on, where these are not just this machine's.
    #[must_use]
    pub fn processor(&self) -> Option<Arc<Processor>> {
        self.processor.clone()
    }

    /// Runs `work`, which reads, on a thread that may block.
    ///
    /// # Errors
    /// As [`blocking_on`].
    pub(crate) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        match &self.threads {
            Some(threads) => threads.run(work).await,
            None => blocking_on(self.processor(), work).await,
        }
    }

    /// The same reader with the same caches and a count of its own, from 0.
    pub(crate) fn counting(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            caches: Arc::clone(&self.caches),
            bytes_read: AtomicU64::new(0),
            processor: self.processor(),
            threads: self.threads.clone(),
        }
    }

    /// Bytes of values that came from the store; what a cache had is not among them.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Groups of cells that queries have used. An entry is valid only for the identical columns.
    pub(crate) fn prepared(&self) -> Arc<PreparedCache> {
        Arc::clone(&self.caches.prepared)
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        let bytes = self.store.get(key)?;
        self.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    /// The partition `name`.
    ///
    /// # Errors
    /// NotFound, Corrupt, Unavailable.
    pub(crate) fn partition(&self, name: &PartitionName) -> Result<Arc<Partition>> {
        let key = name.key()?;
        let Some(entry) = self.store.stat(&key)? else {
            return Err(Error::not_found(format!("there is no partition {key} here: the data set was replaced or dropped; ask again"))
                .with_detail(Detail::missing_key(&key)));
        };
        if let Some(known) = self.caches.metadata.get(&(key.clone(), entry.version)) {
            return Ok(known);
        }
        let bytes = self.get(&key)?;
        let metadata = Metadata::decode(&bytes).context(|| format!("cannot read the metadata of partition {key}"))?;
        let partition = Arc::new(Partition { name: name.clone(), key: key.clone(), version: entry.version, metadata });
        // Decoded statistics are about as long as their IPC form; entries and schema come on top.
        let weight = 4096 + 2 * bytes.len() + 64 * partition.metadata.slices.len();
        Ok(self.caches.metadata.put((key, entry.version), partition, weight))
    }

    /// Which content partition `name` has: what its metadata slice is.
    ///
    /// # Errors
    /// As [`Self::partition`].
    pub(crate) fn source(&self, name: &PartitionName) -> Result<Source> {
        let key = name.key()?;
        let entry = self.store.stat(&key)?.ok_or_else(|| {
            Error::not_found(format!("there is no partition {key} here: the data set was replaced or dropped")).with_detail(Detail::missing_key(&key))
        })?;
        Ok(Source { len: entry.len, crc32c: entry.crc32c })
    }

    /// Slice `n` of `partition`, as far as the columns at `places` of its group need it, and the number of bytes read.
    /// All of them are verified, and are of the slice that the metadata describes.
    ///
    /// # Errors
    /// NotFound, Unavailable; Corrupt where the key has another slice, or for damage in what was read.
    fn slice(&self, partition: &Partition, n: u32, places: &[usize]) -> Result<(Pieces, usize)> {
        let key = partition.name.slice_key(n)?;
        let expected = partition.metadata.slices.get(n as usize).ok_or_else(|| Error::internal(format!("partition {} has no slice {n}", partition.key)))?;
        let gone = |error: Error| match error.kind() {
            Kind::NotFound => Error::not_found(format!("slice {key} is gone: the data set was replaced or dropped; ask again"))
                .with_detail(Detail::missing_key(&key))
                .with_source(error),
            _ => error,
        };
        let other = || Error::corrupt(format!("slice {key} is not the one that its partition's metadata describes: drop the data set and ingest it again"));
        if let Some(picked) = partition.picked(n as usize, places) {
            let read = self.store.get_ranges_unverified(&key, picked.ranges());
            let pieces = match read {
                Ok(read) => picked.verify(&read).map(|pieces| (pieces, read.iter().map(Bytes::len).sum())),
                Err(error) => Err(gone(error)),
            };
            return match pieces {
                Ok(pieces) => {
                    self.bytes_read.fetch_add(picked.bytes(), Ordering::Relaxed);
                    Ok(pieces)
                }
                // Damage in these bytes, or those of another slice, or none any more: the store's index knows.
                Err(error) => match error.kind() {
                    Kind::Corrupt | Kind::Invalid => match self.store.stat(&key) {
                        Ok(Some(entry)) if entry.len != expected.len || entry.crc32c != expected.crc32c => Err(other()),
                        Ok(None) => Err(gone(Error::not_found("its store has no such key"))),
                        Ok(Some(_)) | Err(_) => match self.store.get_mended(&key, expected.len, expected.crc32c) {
                            Ok(Some(bytes)) => {
                                let read = bytes.len();
                                self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
                                Ok((bytes.into(), read))
                            }
                            Ok(None) | Err(_) => Err(error),
                        },
                    },
                    _ => Err(error),
                }
                .context(|| format!("cannot read slice {n} of partition {}", partition.key)),
            };
        }
        let bytes = self.store.get_expected(&key, expected.len, expected.crc32c).map_err(gone)?.ok_or_else(other)?;
        let read = bytes.len();
        self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        Ok((bytes.into(), read))
    }

    /// The slices of a stripe with the columns that are wanted, ascending: for each the places of its columns in it,
    /// and its bytes as far as those need them. Without columns the first.
    ///
    /// # Errors
    /// As [`Reader::slice`].
    pub(crate) fn stripe(&self, partition: &Partition, stripe: u32, columns: &[usize]) -> Result<Vec<Part>> {
        let mut wanted = partition.metadata.groups.split(columns);
        if wanted.is_empty() {
            wanted.push((0, Vec::new()));
        }
        let part = |(group, columns): (usize, Vec<usize>)| {
            let n = partition.metadata.slice_of(stripe as usize, group);
            let n = u32::try_from(n).map_err(|_| Error::corrupt(format!("partition {} has too many slices", partition.key)))?;
            let (stored, read) = self.slice(partition, n, &columns)?;
            Ok(Part { n, group, columns, stored, read, rows: None })
        };
        wanted.into_iter().map(part).collect()
    }

    /// A slice decoded batch by batch.
    ///
    /// # Errors
    /// Corrupt, naming slice and partition; so may the batches be.
    pub(crate) fn decode(partition: &Arc<Partition>, part: Part, batch_rows: usize) -> Result<SliceBatches> {
        let Part { n, group, columns, stored, rows, .. } = part;
        let metadata = &partition.metadata;
        let schema = metadata.groups.schema(&metadata.schema, group);
        let batches = match &rows {
            Some(rows) if metadata.layout == Layout::Table => skytether_slice::decode_rows(stored, &schema, &columns, batch_rows, rows),
            // Rows of a matrix's slice are neighbours.
            Some(rows) => {
                let wanted = rows.first().map_or(0..0, |&first| first as usize..first as usize + rows.len());
                skytether_slice::decode_range(stored, &metadata.layout, &schema, &columns, batch_rows, wanted)
            }
            None => skytether_slice::decode(stored, &metadata.layout, &schema, &columns, batch_rows),
        };
        let batches = batches.context(|| format!("cannot read slice {n} of partition {}", partition.key))?;
        let expected = match rows {
            Some(rows) => rows.len() as u64,
            None => metadata.slices.get(n as usize).map_or(0, |s| s.rows),
        };
        Ok(SliceBatches { partition: Arc::clone(partition), n, batches: Some(batches), rows: 0, expected })
    }

    /// The whole column `name`, in row order. The same array as long as it stays in the cache.
    ///
    /// # Errors
    /// NotFound where there is no such column; as [`Reader::slice`].
    pub(crate) fn column(&self, partition: &Arc<Partition>, name: &str) -> Result<ArrayRef> {
        let at = partition.column(name)?;
        let cached = (partition.key.clone(), partition.version, name.to_owned());
        if let Some(known) = self.caches.columns.get(&cached) {
            return Ok(known);
        }
        let mut parts = Vec::new();
        for stripe in 0..u32::try_from(partition.metadata.stripes()).unwrap_or(u32::MAX) {
            for part in self.stripe(partition, stripe, &[at])? {
                for batch in Self::decode(partition, part, 1 << 16)? {
                    parts.push(Arc::clone(batch?.column(0)));
                }
            }
        }
        let column = if parts.is_empty() {
            arrow::array::new_empty_array(partition.metadata.schema.field(at).data_type())
        } else {
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            arrow::compute::concat(&parts).map_err(|e| Error::internal(format!("cannot join column {name:?} of {}", partition.title())).with_source(e))?
        };
        let weight = column.get_array_memory_size();
        Ok(self.caches.columns.put(cached, column, weight))
    }

    /// The whole Float32 column `name`, without nulls. It is the same array as long as it stays in the cache, so
    /// callers may compare its address to validate what they derived from it.
    ///
    /// # Errors
    /// As [`Reader::column`]; Corrupt where the column has another type or nulls.
    pub(crate) fn totals(&self, partition: &Arc<Partition>, name: &str) -> Result<Arc<Float32Array>> {
        let cached = (partition.key.clone(), partition.version, name.to_owned());
        if let Some(known) = self.caches.totals.get(&cached) {
            return Ok(known);
        }
        let column = self.column(partition, name)?;
        match column.as_any().downcast_ref::<Float32Array>() {
            Some(totals) if totals.null_count() == 0 => Ok(self.caches.totals.put(cached, Arc::new(totals.clone()), column.get_array_memory_size())),
            _ => Err(Error::corrupt(format!("column {name:?} of {} has type {}, not Float32 without nulls", partition.title(), column.data_type()))),
        }
    }
}

/// A slice before it is decoded, and the wanted columns and rows.
#[derive(Debug)]
pub(crate) struct Part {
    /// Its number in the partition.
    n: u32,
    /// Its group of columns.
    group: usize,
    /// The wanted columns, by their places in it.
    columns: Vec<usize>,
    stored: Pieces,
    read: usize,
    /// The rows that are wanted, ascending, if not all.
    rows: Option<Arc<[u32]>>,
}

impl Part {
    /// Its group of columns.
    pub(crate) fn group(&self) -> usize {
        self.group
    }

    /// The wanted columns, by their places in it.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Its number in the partition.
    pub(crate) fn number(&self) -> u32 {
        self.n
    }

    /// Whether only some of its rows are wanted.
    pub(crate) fn is_narrowed(&self) -> bool {
        self.rows.is_some()
    }

    /// The same bytes with other columns wanted, among those that were read.
    pub(crate) fn with_columns(&self, columns: Vec<usize>) -> Self {
        Self { n: self.n, group: self.group, columns, stored: self.stored.clone(), read: self.read, rows: self.rows.clone() }
    }

    /// The same slice, with only `rows` wanted.
    pub(crate) fn only(self, rows: Option<Arc<[u32]>>) -> Self {
        Self { rows, ..self }
    }

    /// Bytes as they are stored.
    /// Only those that were read.
    pub(crate) fn len(&self) -> usize {
        self.read
    }
}

/// A slice's batches, in the end as many rows as the metadata says, or as were wanted of it.
#[derive(Debug)]
pub(crate) struct SliceBatches {
    partition: Arc<Partition>,
    n: u32,
    /// Nothing once it ended.
    batches: Option<Batches>,
    rows: u64,
    /// Rows that it is to give.
    expected: u64,
}

impl SliceBatches {
    /// Frees its memory early: the caller needs no more of it.
    pub(crate) fn end(&mut self) {
        self.batches = None;
    }
}

impl Iterator for SliceBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let key = &self.partition.key;
        match self.batches.as_mut()?.next() {
            Some(Ok(batch)) => {
                self.rows += batch.num_rows() as u64;
                Some(Ok(batch))
            }
            Some(Err(error)) => {
                self.batches = None;
                Some(Err(error.context(format!("cannot read slice {} of partition {key}", self.n))))
            }
            None => {
                self.batches = None;
                let (rows, expected) = (self.rows, self.expected);
                (rows != expected).then(|| Err(Error::corrupt(format!("slice {} of partition {key} has {rows} rows, its metadata says {expected}", self.n))))
            }
        }
    }
}

#[cfg(test)]
mod tests;
