//! The aggregate `cell_sums(idx, val, block, gene_id, spec)` over the sparse rows of a matrix, grouped by block: per
//! cell of the block weighted sums over genes.
//!
//! The spec names several sums: of (transformed) values or of the number of nonzeros, each over all genes or with a
//! weight per gene. A gene whose weights are all 0 counts nowhere. So one scan gives the totals of cells, their genes,
//! and the counts of sets of genes. With real weights they are scores and projections. For matrices of counts it also
//! gives the sum of the n largest values.
//!
//! The result is `List<Float64>`: for each sum the numbers of the block's cells, in their order, then for each `top`.
//! Sums are doubles. Those of integers are exact up to 2^53. Others depend on the order in which genes come, in their
//! last digits. Merging and finishing never ask the [`CellSource`].

mod bytes;
mod spec;
mod store;
mod tops;

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::logical_expr::AggregateUDF;
use skytether_common::{Error, Result};

use crate::cells::CellSource;
use crate::groups::Prepared;
use crate::kernel::{Value, each_cell};
use crate::sparse::{OverRows, Row, udaf};
use crate::spec::MomentsSpec;

pub use self::spec::{CellSum, CellSumsSpec, SumOf};
pub use self::store::CellStore;

/// The name of the aggregate in queries.
pub const CELL_SUMS: &str = "cell_sums";

/// The aggregate `cell_sums`, which learns about cells from `source`.
#[must_use]
pub fn cell_sums_udaf(source: Arc<dyn CellSource>) -> AggregateUDF {
    udaf::<CellSums>(source)
}

#[derive(Debug)]
struct CellSums {
    weights: Vec<Option<Vec<f32>>>,
    top: Arc<[u32]>,
    /// The values of a row: places in the block and numbers.
    row: Vec<(u32, f64)>,
    /// The weight of its gene in each sum.
    of_gene: Vec<f64>,
}

impl OverRows for CellSums {
    const NAME: &'static str = CELL_SUMS;
    const WITH_GENE: bool = true;
    type Spec = CellSumsSpec;
    type Store = CellStore;

    fn read(text: &str) -> Result<CellSumsSpec> {
        CellSumsSpec::from_literal(text)
    }

    fn cells(spec: &CellSumsSpec) -> &MomentsSpec {
        &spec.of
    }

    fn begin(spec: &CellSumsSpec, _: &Prepared) -> Result<Self> {
        Ok(Self { weights: spec.weights()?, top: spec.top.clone().into(), row: Vec::new(), of_gene: Vec::new() })
    }

    fn reserve(&mut self, spec: &CellSumsSpec, _: &Prepared, store: &mut CellStore, rows: usize, values: &DataType) -> Result<()> {
        if !self.top.is_empty() && !values.is_integer() {
            return Err(Error::invalid(format!(
                "the largest values of a cell are added up for counts only, and {}.{} holds {values}: leave top out",
                spec.of.dataset, spec.of.matrix
            )));
        }
        store.reserve(rows);
        Ok(())
    }

    fn row<T: Value>(&mut self, spec: &CellSumsSpec, store: &mut CellStore, at: usize, row: &Row<'_, T>) -> Result<()> {
        let here = row.cells();
        let cells = here.len();
        let sums = store.open(at, (row.number, here.start as u64), cells, spec.sums.len(), &self.top)?;
        self.of_gene.clear();
        self.of_gene.extend(self.weights.iter().map(|weights| match weights {
            None => 1.0,
            Some(weights) => weights.get(row.gene as usize).copied().map_or(0.0, f64::from),
        }));
        if !self.of_gene.is_empty() && self.of_gene.iter().all(|&weight| weight == 0.0) {
            return Ok(());
        }
        let values = &mut self.row;
        values.clear();
        each_cell(row.block, row.idx, row.val, |at, y| values.push((at as u32, y))).map_err(|fault| row.failed(fault))?;
        for ((sum, asked), &weight) in sums.sums.iter_mut().zip(&spec.sums).zip(self.of_gene.iter()) {
            if weight == 0.0 {
                continue;
            }
            sum.resize(cells, 0.0);
            // A multiplication by 1 changes nothing, so all weights share this loop.
            match asked.of {
                SumOf::Values => values.iter().for_each(|&(at, y)| sum[at as usize] += weight * y),
                SumOf::Nonzeros => values.iter().for_each(|&(at, _)| sum[at as usize] += weight),
            }
        }
        if let Some(tops) = &mut sums.tops {
            values.iter().for_each(|&(at, y)| tops.add(at, y as u32));
        }
        Ok(())
    }

    fn size(&self) -> usize {
        let weights: usize = self.weights.iter().flatten().map(|w| w.len() * size_of::<f32>()).sum();
        weights + self.row.capacity() * size_of::<(u32, f64)>()
    }
}

#[cfg(test)]
mod tests;
