//! From stripes to batches: reads on threads that may block, decodes, orders, and joins small stripes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::AsArray;
use arrow::compute::{TakeOptions, concat_batches, take};
use arrow::datatypes::{SchemaRef, UInt32Type};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_plan::metrics::{Count, Time};
use skytether_common::{Error, Result};

use crate::dense::Expansion;
use crate::reader::{Part, Reader, SliceBatches};
use crate::scan_spec::{ScanSpec, Shape};
use crate::stripe::Stripe;
use crate::stripe_coalescing::Run;

/// What reads the stripes of a scan.
pub(crate) struct Fetching {
    pub(crate) spec: Arc<ScanSpec>,
    /// The stored columns to read, ascending.
    pub(crate) stored: Vec<usize>,
    pub(crate) read: Count,
    pub(crate) told: Count,
    /// Rows that late materialisation skipped.
    pub(crate) passed_over: Count,
    pub(crate) bytes_read: Count,
    pub(crate) time: Time,
}

impl Fetching {
    /// The number of slices that it has read, and of those that metadata answered.
    pub(crate) fn counted(&self) -> (u64, u64) {
        (self.read.value() as u64, self.told.value() as u64)
    }

    /// The run that others call `number`.
    pub(crate) fn run(&self, number: u32) -> Run {
        Run::of(number, self.spec.partition.metadata.stripes())
    }

    /// The wanted bytes of the stripes of `run`, verified. No bytes where only the number of rows is wanted.
    pub(crate) async fn fetch(self: Arc<Self>, run: Run) -> Result<Fetched> {
        if self.spec.projection.is_empty()
            && let Some(rows) = run.stripes().map(|n| self.spec.counted(n)).sum::<Option<u64>>()
        {
            self.told.add(self.spec.partition.metadata.groups.len() * run.len());
            return Ok(Fetched::Rows(rows));
        }
        let reader = Arc::clone(&self.spec.reader);
        let read = reader.blocking(move || {
            let started = Instant::now();
            let read = |n| {
                let parts = self.spec.reader.stripe(&self.spec.partition, n, &self.stored)?;
                let rows: Option<Arc<[u32]>> = self.spec.found().and_then(|found| found.rows(n)).map(Into::into);
                let parts: Vec<Part> = parts.into_iter().map(|part| part.only(rows.clone())).collect();
                self.read.add(parts.len());
                self.bytes_read.add(parts.iter().map(Part::len).sum());
                Ok(parts)
            };
            let stripes = run.stripes().map(read).collect::<Result<Vec<_>>>()?;
            self.time.add_duration(started.elapsed());
            Ok(Fetched::Stripes(stripes))
        });
        read.await
    }
}

/// What a stripe's batches need on their way.
pub(crate) struct Work {
    pub(crate) fetching: Arc<Fetching>,
    pub(crate) schema: SchemaRef,
    pub(crate) batch_rows: usize,
    pub(crate) time: Time,
    pub(crate) pool: Arc<dyn MemoryPool>,
}

impl Work {
    pub(crate) fn load(self: &Arc<Self>, fetched: Fetched) -> Result<Loaded> {
        match fetched {
            Fetched::Rows(left) => Ok(Loaded::Rows { schema: Arc::clone(&self.schema), left }),
            Fetched::Stripes(mut stripes) if stripes.len() == 1 => self.open(stripes.pop().unwrap_or_default()),
            Fetched::Stripes(stripes) => Ok(Loaded::Run(Box::new(Joining {
                left: stripes.into_iter(),
                open: None,
                emptied: Vec::new(),
                ready: VecDeque::new(),
                work: Arc::clone(self),
            }))),
        }
    }

    /// One stripe.
    fn open(self: &Arc<Self>, parts: Vec<Part>) -> Result<Loaded> {
        let _timer = self.time.timer();
        if self.fetching.spec.partition.metadata.groups.len() > 1 {
            let stripe = Stripe::decode(&self.fetching.spec.partition, parts, self.batch_rows, &self.pool)?;
            return Ok(Loaded::Stripe(stripe, Arc::clone(self)));
        }
        let part = parts.into_iter().next().ok_or_else(|| Error::internal("a stripe has no slice"))?;
        let part = match &self.fetching.spec.first {
            Some(first) => match first.rows(&self.fetching.spec.partition, &part, self.batch_rows)? {
                Some(rows) => {
                    let all = self.fetching.spec.partition.metadata.stripe_rows(part.number() as usize).unwrap_or(0);
                    self.fetching.passed_over.add(usize::try_from(all).unwrap_or(usize::MAX).saturating_sub(rows.len()));
                    if rows.is_empty() {
                        return Ok(Loaded::Rows { schema: Arc::clone(&self.schema), left: 0 });
                    }
                    part.only(Some(rows))
                }
                None => part,
            },
            None => part,
        };
        let batches = Reader::decode(&self.fetching.spec.partition, part, self.batch_rows)?;
        Ok(match &self.fetching.spec.shape {
            Shape::Dense(dense) => Loaded::Dense(Box::new(dense.expand(Arc::clone(&self.schema), batches, self.batch_rows)), self.time.clone()),
            Shape::Stored | Shape::Rows { .. } => Loaded::Batches(Box::new(batches), Arc::clone(self)),
        })
    }

    /// The wanted columns in the wanted order.
    fn arranged(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let stored = |column: usize| {
            let at = self.fetching.stored.binary_search(&column).map_err(|_| Error::internal(format!("column {column} was not read")))?;
            Ok::<_, Error>(batch.column(at))
        };
        let mut columns = Vec::with_capacity(self.fetching.spec.projection.len());
        for &column in &self.fetching.spec.projection {
            columns.push(match &self.fetching.spec.shape {
                Shape::Rows { genes } if column == 0 => {
                    let genes = genes.as_ref().ok_or_else(|| Error::internal("sparse rows have no gene names"))?;
                    let numbers = stored(self.fetching.spec.partition.column("gene_id")?)?;
                    let numbers = numbers.as_primitive_opt::<UInt32Type>().ok_or_else(|| Error::corrupt("\"gene_id\" of a matrix is not UInt32"))?;
                    take(genes, numbers, Some(TakeOptions { check_bounds: true }))
                        .map_err(|e| Error::corrupt("a matrix has a gene without a name").with_source(e))?
                }
                Shape::Rows { .. } => Arc::clone(stored(column - 1)?),
                _ => Arc::clone(stored(column)?),
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|e| Error::corrupt(format!("a slice of {} does not have its table's columns", self.fetching.spec.partition.title())).with_source(e))
    }
}

/// Stripes of a run before they are decoded.
#[derive(Debug)]
pub(crate) enum Fetched {
    Rows(u64),
    /// The wanted slices of each stripe.
    Stripes(Vec<Vec<Part>>),
}

/// The batches of a run of stripes.
pub(crate) enum Loaded {
    Run(Box<Joining>),
    Rows { schema: SchemaRef, left: u64 },
    Batches(Box<SliceBatches>, Arc<Work>),
    Stripe(Stripe, Arc<Work>),
    Dense(Box<Expansion>, Time),
}

impl Iterator for Loaded {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Loaded::Run(stripes) => stripes.next().transpose(),
            Loaded::Rows { left: 0, .. } => None,
            Loaded::Rows { schema, left } => {
                // Rows without columns cost nothing, but their number must fit Arrow's lengths.
                let n = (*left).min(1 << 30);
                *left -= n;
                let options = RecordBatchOptions::new().with_row_count(usize::try_from(n).ok());
                Some(
                    RecordBatch::try_new_with_options(Arc::clone(schema), Vec::new(), &options)
                        .map_err(|e| Error::internal("cannot count rows").with_source(e)),
                )
            }
            Loaded::Batches(batches, work) => {
                let _timer = work.time.timer();
                batches.next().map(|batch| work.arranged(&batch?))
            }
            Loaded::Stripe(stripe, work) => {
                let _timer = work.time.timer();
                stripe.next().map(|batch| work.arranged(&batch))
            }
            Loaded::Dense(rows, time) => {
                let _timer = time.timer();
                rows.next()
            }
        }
    }
}

/// Stripes that are decoded one after the other, and their rows joined to batches as large as others are.
pub(crate) struct Joining {
    left: std::vec::IntoIter<Vec<Part>>,
    /// The stripe that gives rows now.
    open: Option<Loaded>,
    /// Those whose rows are on their way: they hold memory for them.
    emptied: Vec<Loaded>,
    ready: VecDeque<RecordBatch>,
    work: Arc<Work>,
}

impl Joining {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        if self.ready.is_empty() {
            self.emptied.clear();
            let small = self.gather()?;
            let _timer = self.work.time.timer();
            // What can't be joined (dictionaries that have too many values together) goes as it is.
            match small.as_slice() {
                [] | [_] => self.ready.extend(small),
                several => match concat_batches(&self.work.schema, several) {
                    Ok(joined) => self.ready.push_back(joined),
                    Err(_) => self.ready.extend(small),
                },
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Batches for the next one. Those of the dense view are large by themselves.
    fn gather(&mut self) -> Result<Vec<RecordBatch>> {
        let dense = matches!(self.work.fetching.spec.shape, Shape::Dense(_));
        let (mut small, mut rows) = (Vec::new(), 0);
        loop {
            let Some(open) = &mut self.open else {
                let Some(parts) = self.left.next() else { return Ok(small) };
                self.open = Some(self.work.open(parts)?);
                continue;
            };
            match open.next().transpose()? {
                Some(batch) => {
                    rows += batch.num_rows();
                    small.push(batch);
                    if dense || rows >= self.work.batch_rows {
                        return Ok(small);
                    }
                }
                None => self.emptied.extend(self.open.take()),
            }
        }
    }
}
