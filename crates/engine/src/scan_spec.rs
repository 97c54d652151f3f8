//! What a scan of slices reads: the stripes and columns of a partition, with what narrows them.
//!
//! The operator ([`crate::scan`]) and the reading of its stripes ([`crate::slice_loader`]) share it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use skytether_common::{PartitionName, Result};
use skytether_device::session::Stripe;
use skytether_slice::Layout;

use crate::dense::Dense;
use crate::indexed::Found;
use crate::prefilter::Prefilter;
use crate::prune;
use crate::reader::{Partition, Reader};
use crate::stripe_coalescing::{self, Run};

/// A slice manifest has at least this many runs, if there are as many stripes: the scheduler needs something to
/// decide about.
const DECISIONS: usize = 32;

/// Bytes of a column, as it is stored, in a batch of a wide table.
const COLUMN_BYTES: u64 = 2 << 10;

/// The most bytes of a batch of a wide table, as they are stored.
const WIDEST_BATCH: u64 = 16 << 20;

/// How stored rows become rows of the table.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    /// They are.
    Stored,
    /// The gene's name is the first column, if it is wanted.
    Rows {
        /// Names by gene number.
        genes: Option<ArrayRef>,
    },
    /// The dense view.
    Dense(Arc<Dense>),
}

/// What a scan reads of one partition.
#[derive(Debug)]
pub(crate) struct ScanSpec {
    pub(crate) reader: Arc<Reader>,
    pub(crate) partition: Arc<Partition>,
    pub(crate) shape: Shape,
    /// Columns of the table, in order.
    pub(crate) projection: Vec<usize>,
    /// The stripes to read, in runs, for each of the output partitions.
    pub(crate) runs: Vec<Vec<Run>>,
    /// The rows that an index keeps.
    found: Option<Arc<Found>>,
    /// Which columns are decoded first.
    pub(crate) first: Option<Prefilter>,
}

impl ScanSpec {
    /// Columns `projection` of `partition` in this shape, out of these `stripes`, in at most `partitions` output
    /// partitions. With a `limit` or without columns each run is a stripe.
    pub(crate) fn new(
        reader: Arc<Reader>,
        partition: Arc<Partition>,
        shape: Shape,
        projection: Vec<usize>,
        stripes: Vec<u32>,
        partitions: usize,
        limit: Option<usize>,
    ) -> Self {
        let stored = stored(&partition, &shape, &projection);
        let all = match stored {
            // A limit must not read more than it asks for. The number of rows alone is in the
            // metadata, stripe by stripe.
            Ok(stored) if limit.is_none() && !projection.is_empty() => {
                stripe_coalescing::join(&sized(&partition, &stored, &stripes), partition.metadata.stripes(), partitions)
            }
            _ => stripes.into_iter().map(Run::single).collect(),
        };
        let partitions = partitions.min(all.len()).max(1);
        let mut runs = vec![Vec::new(); partitions];
        for (at, run) in all.into_iter().enumerate() {
            runs[at % partitions].push(run);
        }
        Self { reader, partition, shape, projection, runs, found: None, first: None }
    }

    /// The same scan, narrowed to the rows that an index keeps; it reads only their stripes.
    pub(crate) fn indexed(self, found: Option<Arc<Found>>) -> Self {
        Self { found, ..self }
    }

    /// The same scan, which decodes the columns of some conditions first.
    pub(crate) fn first(self, first: Option<Prefilter>) -> Self {
        Self { first, ..self }
    }

    /// The rows that an index keeps.
    pub(crate) fn found(&self) -> Option<&Found> {
        self.found.as_deref()
    }

    /// The runs of stripes in storage order, each with its rows and the bytes that are read of it as they are stored.
    /// `None` where an index holds rows itself, or metadata lacks a number. Unless `joined`, each run is a stripe.
    pub(crate) fn slice_manifest(&self, joined: bool) -> Option<Vec<Stripe>> {
        // Rows that an index has itself are of no stripe.
        if self.found().is_some_and(|found| found.values.is_some()) {
            return None;
        }
        let metadata = &self.partition.metadata;
        let stored = self.stored().ok()?;
        let sized = sized(&self.partition, &stored, &self.stripes());
        let groups = metadata.groups.split(&stored);
        let read = |n: usize| groups.iter().map(|(group, places)| self.partition.bytes_read(metadata.slice_of(n, *group), places)).sum::<Option<u64>>();
        let mut left = sized.iter();
        let surveyed = |run: Run| {
            let stripes = left.by_ref().take(run.len());
            // All rows, even if an index keeps only some. A parent that gets the stripe raw decodes all of them, and
            // measurements soon show how many rows the drive skips.
            let rows_and_bytes = stripes.map(|(n, _)| Some((metadata.stripe_rows(*n as usize)?, read(*n as usize)?)));
            let (rows, bytes) = rows_and_bytes.collect::<Option<Vec<_>>>()?.into_iter().fold((0, 0), |(rows, bytes), (r, b)| (rows + r, bytes + b));
            Some(Stripe { stripe: run.number(), rows, bytes })
        };
        let runs = if joined && !self.projection.is_empty() {
            stripe_coalescing::join(&sized, metadata.stripes(), DECISIONS)
        } else {
            sized.iter().map(|(n, _)| Run::single(*n)).collect()
        };
        runs.into_iter().map(surveyed).collect()
    }

    /// The numbers of all stripes that it reads, in storage order.
    pub(crate) fn stripes(&self) -> Vec<u32> {
        let mut stripes: Vec<u32> = self.runs.iter().flatten().flat_map(|run| run.stripes()).collect();
        stripes.sort_unstable();
        stripes
    }

    /// The partition whose stripes it reads.
    pub(crate) fn partition(&self) -> &PartitionName {
        &self.partition.name
    }

    /// Whether that is one of a matrix.
    pub(crate) fn is_sparse(&self) -> bool {
        matches!(self.partition.metadata.layout, Layout::Sparse { .. })
    }

    /// The groups of columns that it reads.
    fn groups(&self) -> Result<Vec<usize>> {
        Ok(self.partition.metadata.groups.split(&self.stored()?).into_iter().map(|(group, _)| group).collect())
    }

    /// The numbers of the slices of a stripe that it reads.
    ///
    /// # Errors
    /// Internal only.
    pub(crate) fn slices_of(&self, stripe: u32) -> Result<Vec<u32>> {
        let metadata = &self.partition.metadata;
        Ok(self.groups()?.into_iter().filter_map(|group| u32::try_from(metadata.slice_of(stripe as usize, group)).ok()).collect())
    }

    /// How many slices the table has here, read or not.
    pub(crate) fn slices(&self) -> usize {
        self.partition.metadata.slices.len()
    }

    /// The stored columns to read, ascending.
    pub(crate) fn stored(&self) -> Result<Vec<usize>> {
        match &self.shape {
            Shape::Dense(dense) if self.projection.is_empty() && self.uncounted(dense).next().is_none() => Ok(Vec::new()),
            shape => stored(&self.partition, shape, &self.projection),
        }
    }

    /// How many slices of a stripe have one of these columns; without columns it is one.
    pub(crate) fn groups_of(&self, stored: &[usize]) -> usize {
        self.partition.metadata.groups.split(stored).len().max(1)
    }

    /// The number of dense rows of stripe `n`, if metadata alone determines it.
    fn count(&self, dense: &Dense, n: u32) -> Option<u64> {
        let (min, max) = prune::bounds(&self.partition, "block")?;
        if min.is_null(n as usize) || max.is_null(n as usize) {
            return None;
        }
        let rows = self.partition.metadata.stripe_rows(n as usize)?;
        dense.count(u32::try_from(rows).ok()?, min.value(n as usize), max.value(n as usize))
    }

    /// The stripes whose dense rows metadata alone does not count.
    fn uncounted<'a>(&'a self, dense: &'a Dense) -> impl Iterator<Item = u32> + 'a {
        self.runs.iter().flatten().flat_map(|run| run.stripes()).filter(|&n| self.count(dense, n).is_none())
    }

    /// Rows without columns, where nothing has to be read for them.
    pub(crate) fn counted(&self, n: u32) -> Option<u64> {
        match &self.shape {
            Shape::Dense(dense) => self.count(dense, n),
            Shape::Stored | Shape::Rows { .. } => self.partition.metadata.stripe_rows(n as usize),
        }
    }

    /// Rows per batch, so that a batch of wide rows stays at a few megabytes.
    pub(crate) fn batch_rows(&self, wanted: usize, stored: &[usize]) -> usize {
        match self.shape {
            Shape::Dense(_) => wanted,
            Shape::Stored | Shape::Rows { .. } => wanted.min(rows_for_width(&self.partition, stored)).max(1),
        }
    }
}

/// The stored columns of `partition` that columns `projection` of a table of this shape need, ascending.
fn stored(partition: &Partition, shape: &Shape, projection: &[usize]) -> Result<Vec<usize>> {
    let mut columns = match shape {
        Shape::Stored => projection.to_vec(),
        Shape::Rows { .. } => {
            projection.iter().map(|&column| if column == 0 { partition.column("gene_id") } else { Ok(column - 1) }).collect::<Result<Vec<_>>>()?
        }
        Shape::Dense(dense) => dense.stored_columns().iter().map(|name| partition.column(name)).collect::<Result<Vec<_>>>()?,
    };
    columns.sort_unstable();
    columns.dedup();
    Ok(columns)
}

/// `stripes` with their bytes as they are stored, of the slices that have one of the columns `stored`.
fn sized(partition: &Partition, stored: &[usize], stripes: &[u32]) -> Vec<(u32, u64)> {
    let metadata = &partition.metadata;
    let groups: Vec<usize> = metadata.groups.split(stored).into_iter().map(|(group, _)| group).collect();
    let bytes = |n: u32| groups.iter().filter_map(|group| metadata.slices.get(metadata.slice_of(n as usize, *group))).map(|slice| slice.len).sum();
    stripes.iter().map(|&n| (n, bytes(n))).collect()
}

/// How many rows of `columns`, ascending stored columns of `partition`, make a batch of a few megabytes once decoded.
pub(crate) fn rows_for_width(partition: &Partition, columns: &[usize]) -> usize {
    let (metadata, groups) = (&partition.metadata, partition.metadata.groups);
    let width = if groups.len() == 1 {
        // Which of the columns are the long ones is not known, so that all of them count.
        metadata.slices.iter().map(|s| s.len).sum::<u64>().checked_div(metadata.rows)
    } else {
        let of = |(group, wanted): (usize, Vec<usize>)| {
            let bytes: u64 = metadata.slices.iter().skip(group).step_by(groups.len()).map(|s| s.len).sum();
            bytes.checked_mul(wanted.len() as u64)?.checked_div(groups.columns(group).len() as u64)?.checked_div(metadata.rows)
        };
        groups.split(columns).into_iter().map(of).sum()
    };
    // Encoded bytes; decoded ones are three to six times as many. Of many columns each has to be worth its handling.
    let wanted = (2u64 << 20).max(COLUMN_BYTES.saturating_mul(columns.len() as u64).min(WIDEST_BATCH));
    usize::try_from(wanted / width.unwrap_or(0).max(1)).unwrap_or(usize::MAX).max(1)
}
