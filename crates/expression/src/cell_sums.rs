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

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, UInt16Type, UInt32Type};
use datafusion::logical_expr::AggregateUDF;
use datafusion::physical_plan::PhysicalExpr;
use skytether_common::{Error, Result};

use crate::aggregate::{Call, Input, aggregate, passes, text_literal};
use crate::cells::CellSource;
use crate::groups::{Prepared, PreparedCache};
use crate::kernel::{Fault, Tabulated, Value, each_cell};
use crate::moments::{Columns, coerced, explain, open_block};

pub use self::spec::{CellSum, CellSumsSpec, SumOf};
pub use self::store::CellStore;

/// The name of the aggregate in queries.
pub const CELL_SUMS: &str = "cell_sums";

/// The aggregate `cell_sums`, which learns about cells from `source`.
#[must_use]
pub fn cell_sums_udaf(source: Arc<dyn CellSource>) -> AggregateUDF {
    let cache = source.prepared();
    aggregate(CellSums { source, cache })
}

#[derive(Debug)]
struct CellSums {
    source: Arc<dyn CellSource>,
    cache: Arc<PreparedCache>,
}

fn usage() -> Error {
    Error::invalid(
        "cell_sums(idx, val, block, gene_id, spec) takes the columns of sparse rows (List<UInt32>, List of UInt16, UInt32, Float32 or Float64, UInt32, UInt32) and a spec (text)",
    )
}

impl Call for CellSums {
    const NAME: &'static str = CELL_SUMS;
    type Input = SparseRows;

    fn source(&self) -> &Arc<dyn CellSource> {
        &self.source
    }

    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        with_gene(CELL_SUMS, types).map_err(|_| usage())
    }

    fn input(&self, args: &[Arc<dyn PhysicalExpr>]) -> Result<SparseRows> {
        let [_, _, _, _, spec] = args else { return Err(usage()) };
        let text = text_literal(spec)?.ok_or_else(|| Error::invalid("the spec of cell_sums must be a text, not NULL"))?;
        let spec = Arc::new(CellSumsSpec::from_literal(&text)?);
        Ok(SparseRows { spec, source: Arc::clone(&self.source), cache: Arc::clone(&self.cache), ready: None })
    }
}

/// The types of the arguments of an aggregate over sparse rows and their genes, `name(idx, val, block, gene_id, spec)`.
pub(crate) fn with_gene(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    match types {
        [idx, val, block, DataType::UInt32, spec] => coerced(name, &[idx.clone(), val.clone(), block.clone(), spec.clone()]).map(|_| types.to_vec()),
        _ => Err(Error::invalid(format!("{name} takes five arguments"))),
    }
}

/// The genes of sparse rows, the fourth argument.
pub(crate) fn genes_of<'a>(name: &str, values: &'a [ArrayRef]) -> Result<&'a [u32]> {
    let genes = values.get(3).and_then(|genes| genes.as_primitive_opt::<UInt32Type>()).filter(|genes| genes.null_count() == 0);
    genes.map(|genes| &genes.values()[..]).ok_or_else(|| Error::invalid(format!("{name} needs the number of each row's gene, as its fourth argument")))
}

/// What exists once the first rows have come.
#[derive(Debug)]
struct Ready {
    prepared: Arc<Prepared>,
    weights: Vec<Option<Vec<f32>>>,
    top: Arc<[u32]>,
    table: Option<(u32, Arc<Tabulated>)>,
    /// The values of a row: places in the block and numbers.
    row: Vec<(u32, f64)>,
}

/// Sparse rows as input.
#[derive(Debug)]
struct SparseRows {
    spec: Arc<CellSumsSpec>,
    source: Arc<dyn CellSource>,
    cache: Arc<PreparedCache>,
    ready: Option<Ready>,
}

impl SparseRows {
    fn typed<T>(&mut self, store: &mut CellStore, columns: &Columns<'_>, genes: &[u32], groups: &[usize], filter: Option<&BooleanArray>) -> Result<()>
    where
        T: ArrowPrimitiveType,
        T::Native: Value,
    {
        let Some(Ready { prepared, weights, top, table, row }) = &mut self.ready else { return Err(Error::internal("the cells are not known")) };
        if !top.is_empty() && !T::Native::COUNTS {
            return Err(Error::invalid(format!(
                "the largest values of a cell are added up for counts only, and {}.{} holds {}: leave top out",
                self.spec.of.dataset,
                self.spec.of.matrix,
                T::DATA_TYPE
            )));
        }
        let val = columns.val.values().as_primitive::<T>().values();
        let idx = columns.idx.values().as_primitive::<UInt32Type>().values();
        let (mut block, mut of_gene) = (None, Vec::<f64>::new());
        for (i, &group) in groups.iter().enumerate() {
            if !passes(filter, i) {
                continue;
            }
            let number = columns.block[i];
            if block.as_ref().is_none_or(|(n, _, _)| *n != number) {
                let open = open_block(prepared, number, table, &self.spec.of)?;
                let first = number as usize * crate::groups::BLOCK as usize;
                let cells = (prepared.codes.len() - first).min(crate::groups::BLOCK as usize);
                block = Some((number, open, cells));
            }
            let Some((_, open, cells)) = &block else { continue };
            let (from, to) = (columns.idx.value_offsets()[i] as usize, columns.idx.value_offsets()[i + 1] as usize);
            let (idx, val) = (&idx[from..to], &val[columns.val.value_offsets()[i] as usize..columns.val.value_offsets()[i + 1] as usize]);
            let sums = store.open(group, number, *cells, self.spec.sums.len(), top)?;
            let gene = genes[i] as usize;
            of_gene.clear();
            of_gene.extend(weights.iter().map(|weights| match weights {
                None => 1.0,
                Some(weights) => weights.get(gene).copied().map_or(0.0, f64::from),
            }));
            if !of_gene.is_empty() && of_gene.iter().all(|&weight| weight == 0.0) {
                continue;
            }
            row.clear();
            let placed = each_cell(open, idx, val, |at, y| row.push((at as u32, y)));
            placed.map_err(|fault: Fault| explain(fault, i, number, &self.spec.of, prepared))?;
            for ((sum, asked), &weight) in sums.sums.iter_mut().zip(&self.spec.sums).zip(of_gene.iter()) {
                if weight == 0.0 {
                    continue;
                }
                sum.resize(*cells, 0.0);
                // A multiplication by 1 changes nothing, so all weights share this loop.
                match asked.of {
                    SumOf::Values => row.iter().for_each(|&(at, y)| sum[at as usize] += weight * y),
                    SumOf::Nonzeros => row.iter().for_each(|&(at, _)| sum[at as usize] += weight),
                }
            }
            if let Some(tops) = &mut sums.tops {
                row.iter().for_each(|&(at, y)| tops.add(at, y as u32));
            }
        }
        Ok(())
    }
}

impl Input for SparseRows {
    type Store = CellStore;

    fn update(&mut self, store: &mut CellStore, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, rows: usize) -> Result<()> {
        let columns = Columns::open(CELL_SUMS, values)?;
        let genes = genes_of(CELL_SUMS, values)?;
        if self.ready.is_none() {
            let prepared = self.cache.get(&self.spec.of, self.source.as_ref())?;
            self.ready = Some(Ready { prepared, weights: self.spec.weights()?, top: self.spec.top.clone().into(), table: None, row: Vec::new() });
        }
        store.reserve(rows);
        match columns.val.values().data_type() {
            DataType::UInt16 => self.typed::<UInt16Type>(store, &columns, genes, groups, filter),
            DataType::UInt32 => self.typed::<UInt32Type>(store, &columns, genes, groups, filter),
            DataType::Float32 => self.typed::<Float32Type>(store, &columns, genes, groups, filter),
            DataType::Float64 => self.typed::<Float64Type>(store, &columns, genes, groups, filter),
            _ => Err(usage()),
        }
    }

    fn size(&self) -> usize {
        self.ready.as_ref().map_or(0, |r| {
            let weights: usize = r.weights.iter().flatten().map(|w| w.len() * size_of::<f32>()).sum();
            weights + r.prepared.size() + r.row.capacity() * size_of::<(u32, f64)>() + r.table.as_ref().map_or(0, |(_, t)| t.size())
        })
    }

    fn fresh(&self) -> Self {
        Self { spec: Arc::clone(&self.spec), source: Arc::clone(&self.source), cache: Arc::clone(&self.cache), ready: None }
    }
}

#[cfg(test)]
mod tests;
