//! [`RowRouter`]: distributes the rows of a table over its partitions, round robin by slices, or by key.

use arrow::record_batch::RecordBatch;
use skytether_common::Result;
use skytether_partitioning::Placement;
use skytether_partitioning::{self as partition, Key};
use skytether_slice::{Encoded, TableSlicer};

use crate::partition_writer::PartitionWriter;
use skytether_catalog::records::partition::PartitionedBy;
use skytether_catalog::records::root::TableRecord;
use skytether_catalog::root_store::Catalog;

/// Limit of waiting rows, in slice sizes per partition. All partitions together hold no more than that, or than a table
/// that is distributed round robin holds.
const WAITING: usize = 2;

/// The partitions of one table while they are written.
pub(crate) struct RowRouter<'a> {
    placement: Placement,
    partitions: Vec<PartitionWriter<'a>>,
    keys: Vec<Key>,
    /// One for all partitions; by key, one for each.
    slicers: Vec<TableSlicer>,
    next: usize,
}

impl<'a> RowRouter<'a> {
    /// Without `keys`, slices are distributed round robin.
    pub(crate) fn new(placement: Placement, partitions: Vec<PartitionWriter<'a>>, keys: Vec<Key>, slicer: impl Fn() -> TableSlicer) -> Self {
        let slicers = if keys.is_empty() { 1 } else { partitions.len() };
        Self { placement, partitions, keys, slicers: (0..slicers).map(|_| slicer()).collect(), next: 0 }
    }

    pub(crate) fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.keys.is_empty() {
            let slices = self.slicers[0].push(batch)?;
            return self.round_robin(&slices);
        }
        for (at, rows) in partition::split(batch, &self.keys, self.partitions.len())?.iter().enumerate() {
            if rows.num_rows() > 0 {
                let slices = self.slicers[at].push(rows)?;
                self.add(at, &slices)?;
            }
        }
        self.make_room()
    }

    /// Closes the slices of the fullest partitions until the rows that wait take no more memory than they may.
    fn make_room(&mut self) -> Result<()> {
        let one = &self.slicers[0];
        let most = one.most_held().max(one.target().saturating_mul(WAITING * self.slicers.len()));
        let mut held: Vec<_> = self.slicers.iter().map(TableSlicer::held).collect();
        while held.iter().sum::<usize>() > most
            && let Some(fullest) = (0..held.len()).max_by_key(|at| held[*at])
        {
            let slices = self.slicers[fullest].flush()?;
            self.add(fullest, &slices)?;
            held[fullest] = 0;
        }
        Ok(())
    }

    fn round_robin(&mut self, slices: &[Encoded]) -> Result<()> {
        for slice in slices {
            let at = self.next % self.partitions.len();
            self.next += 1;
            self.partitions[at].add(slice)?;
        }
        Ok(())
    }

    fn add(&mut self, at: usize, slices: &[Encoded]) -> Result<()> {
        slices.iter().try_for_each(|slice| self.partitions[at].add(slice))
    }

    /// A drive without a slice has no partition. There are two exceptions: the first partition, since an empty table
    /// has a schema too, and partitions by key, which sub-plans of co-located joins name.
    pub(crate) fn finish(mut self, catalog: &Catalog, memory_bytes: u64) -> Result<TableRecord> {
        let by_key = !self.keys.is_empty();
        for (at, slicer) in std::mem::take(&mut self.slicers).into_iter().enumerate() {
            let slices = slicer.finish()?;
            if by_key { self.add(at, &slices)? } else { self.round_robin(&slices)? }
        }
        let partitioned_by = if by_key { Some(PartitionedBy::new(&self.keys)?) } else { None };
        let (placement, mut rows, mut records) = (self.placement, 0, Vec::new());
        for (at, partition) in self.partitions.into_iter().enumerate() {
            if at == 0 || partition.slices > 0 || by_key {
                rows += partition.rows;
                records.extend(partition.finish(catalog)?);
            }
        }
        Ok(TableRecord {
            generation: None,
            placement,
            rows,
            matrix: None,
            part: None,
            memory_bytes: Some(memory_bytes),
            partitioned_by,
            partitions: records,
            redundancy: None,
        })
    }
}
