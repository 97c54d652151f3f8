//! Writes a matrix as slices. One thread reads and encodes each range of genes; as many threads run as there are cores.

use std::ops::Range;

use skytether_common::parallel::in_parallel;
use skytether_common::{PartitionName, Result, Span};
use skytether_matrix::Transposed;
use skytether_slice::{Layout, SliceOptions, SparseSlicer, ValueType, Values, sparse_schema};

use crate::partition_writer::PartitionWriter;
use crate::stripe_encoder::StripeEncoder;
use crate::write_pipeline::WritePipeline;
use skytether_catalog::records::partition::PartitionRecord;
use skytether_catalog::root_store::Catalog;

/// Contiguous ranges of genes, at most `parts`, with about the same weight each; a gene weighs its
/// nonzeros and one for itself.
pub(crate) fn ranges(nnz_per_gene: &[u64], parts: usize) -> Vec<Range<u32>> {
    let total: u64 = nnz_per_gene.iter().map(|n| n + 1).sum();
    let mut ranges = Vec::new();
    let mut begin = 0;
    let mut weight = 0;
    for (gene, nnz) in nnz_per_gene.iter().enumerate() {
        weight += nnz + 1;
        let cuts = ranges.len() as u64 + 1;
        if cuts < parts as u64 && weight * parts as u64 >= total * cuts {
            ranges.push(begin..gene as u32 + 1);
            begin = gene as u32 + 1;
        }
    }
    if (begin as usize) < nnz_per_gene.len() {
        ranges.push(begin..nnz_per_gene.len() as u32);
    }
    ranges
}

/// The partitions that a matrix goes to.
pub(crate) struct To<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) writes: &'a WritePipeline,
    /// The host's drives, in the order of the partitions.
    pub(crate) drives: &'a [usize],
    pub(crate) coder: Option<&'a StripeEncoder<'a>>,
    /// The partition's name of a slot.
    pub(crate) name: &'a (dyn Fn(u32) -> PartitionName + Sync),
    /// The cells that those of the matrix become.
    pub(crate) span: Span,
    /// The type of the stored values, which holds those of the matrix.
    pub(crate) value: ValueType,
}

/// Writes all partitions of `matrix`; blocks, so call it where that is allowed.
pub(crate) fn write(to: &To<'_>, options: &SliceOptions, matrix: &Transposed) -> Result<Vec<PartitionRecord>> {
    let mut parts = ranges(matrix.nnz_per_gene(), to.drives.len());
    if parts.is_empty() {
        // No genes: one empty partition, so that the table has a schema.
        parts.push(0..0);
    }
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let parts = parts.into_iter().zip(to.drives).enumerate().collect();
    let records = in_parallel(threads, parts, "encodes a matrix", |(slot, (genes, drive))| write_range(to, options, slot as u32, *drive, matrix, genes))?;
    Ok(records.into_iter().flatten().collect())
}

fn write_range(to: &To<'_>, options: &SliceOptions, slot: u32, drive: usize, matrix: &Transposed, genes: Range<u32>) -> Result<Vec<PartitionRecord>> {
    let of = to.value;
    let layout = Layout::sparse_part(to.span, matrix.n_genes(), of);
    let mut partition = PartitionWriter::new(to.writes, (to.name)(slot), vec![drive], layout, sparse_schema(of)).coded(to.coder);
    let mut slicer = SparseSlicer::of_part(to.span, matrix.n_genes(), of, options.clone());
    let (mut cells, mut wide) = (Vec::new(), Wide::default());
    matrix.rows(genes, &mut |gene, block, idx, values| {
        // The cells of a part follow on those that are there, and so do its blocks.
        let idx = if to.span.cell == 0 {
            idx
        } else {
            cells.clear();
            cells.extend(idx.iter().map(|cell| cell.saturating_add(to.span.cell)));
            cells.as_slice()
        };
        let slice = slicer.push(gene, block.saturating_add(to.span.block), idx, wide.of(values, of))?;
        slice.map_or(Ok(()), |slice| partition.add(&slice))
    })?;
    if let Some(slice) = slicer.finish()? {
        partition.add(&slice)?;
    }
    partition.finish(to.catalog)
}

/// The values of a row in a wider type.
#[derive(Default)]
struct Wide {
    integers: Vec<u32>,
    floats: Vec<f32>,
    doubles: Vec<f64>,
}

impl Wide {
    /// `values` as `to`, if that holds them; else as they are.
    fn of<'a>(&'a mut self, values: Values<'a>, to: ValueType) -> Values<'a> {
        fn filled<T>(room: &mut Vec<T>, values: impl Iterator<Item = T>) -> &[T] {
            room.clear();
            room.extend(values);
            room
        }
        match (values, to) {
            (Values::U16(v), ValueType::UInt32) => Values::U32(filled(&mut self.integers, v.iter().map(|v| u32::from(*v)))),
            (Values::U16(v), ValueType::Float32) => Values::F32(filled(&mut self.floats, v.iter().map(|v| f32::from(*v)))),
            (Values::U16(v), ValueType::Float64) => Values::F64(filled(&mut self.doubles, v.iter().map(|v| f64::from(*v)))),
            (Values::U32(v), ValueType::Float64) => Values::F64(filled(&mut self.doubles, v.iter().map(|v| f64::from(*v)))),
            (Values::F32(v), ValueType::Float64) => Values::F64(filled(&mut self.doubles, v.iter().map(|v| f64::from(*v)))),
            (values, _) => values,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_genes_once_with_about_equal_weight() {
        let nnz: Vec<u64> = (0..1000).map(|g| (g * 7919) % 997).collect();
        let total: u64 = nnz.iter().map(|n| n + 1).sum();
        for parts in [1, 2, 3, 7, 64] {
            let ranges = ranges(&nnz, parts);
            assert_eq!(ranges.len(), parts);
            assert_eq!((ranges[0].start, ranges[parts - 1].end), (0, 1000));
            assert!(ranges.windows(2).all(|w| w[0].end == w[1].start));
            for r in &ranges {
                let weight: u64 = nnz[r.start as usize..r.end as usize].iter().map(|n| n + 1).sum();
                assert!(weight.abs_diff(total / parts as u64) <= 1000, "{r:?} weighs {weight}");
            }
        }
    }

    #[test]
    fn fewer_genes_than_drives_leave_drives_empty() {
        assert_eq!(ranges(&[5, 5], 4).len(), 2);
        assert!(ranges(&[], 4).is_empty());
        let skewed = ranges(&[1_000_000, 0, 0, 0], 4);
        assert_eq!(skewed.first().map(|r| r.start), Some(0));
        assert_eq!(skewed.last().map(|r| r.end), Some(4));
    }
}
