//! The aggregate `moments(idx, val, block, spec)` over the sparse rows of a matrix.
//!
//! A row is one gene's nonzeros in one block of cells; cells of the block that are not in `idx` count as zeros. `spec`
//! is the literal of [`MomentsSpec`]. The result and the state are those of [`crate::store`]. Merging and finishing
//! never ask the [`CellSource`]: groups' names travel in the state, so only the node that reads rows needs the cells.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, ListArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, UInt16Type, UInt32Type};
use datafusion::logical_expr::AggregateUDF;
use datafusion::physical_plan::PhysicalExpr;
use skytether_common::{Detail, Error, Result};

use crate::aggregate::{Call, Input, aggregate, is_text, passes, text_literal};
use crate::cells::CellSource;
use crate::groups::{BLOCK, Prepared, PreparedCache};
use crate::kernel::{Block, Fault, Kernel, Tabulated, Value, cancels, has_avx2, two_pass_moments};
use crate::log1p::shared_table;
use crate::spec::{MomentsSpec, Squares, Transform};
use crate::store::MomentStore;
use crate::ttest::GroupMoments;

/// The name of the aggregate in queries.
pub const MOMENTS: &str = "moments";

/// The aggregate `moments`, which learns about cells from `source`.
#[must_use]
pub fn moments_udaf(source: Arc<dyn CellSource>) -> AggregateUDF {
    let cache = source.prepared();
    aggregate(Moments { source, cache })
}

#[derive(Debug)]
struct Moments {
    source: Arc<dyn CellSource>,
    cache: Arc<PreparedCache>,
}

/// What the arguments of `name` are.
fn usage(name: &str) -> Error {
    Error::invalid(format!(
        "{name}(idx, val, block, spec) takes a list of cell numbers (List<UInt32>), a list of values (List of UInt16, UInt32, Float32 or Float64), a block (UInt32) and a spec (text)"
    ))
}

/// The types of the arguments of `name`, an aggregate over sparse rows.
///
/// # Errors
/// Invalid where there are others.
pub(crate) fn coerced(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    let fits = match types {
        [DataType::List(idx), DataType::List(val), DataType::UInt32, spec] => {
            idx.data_type() == &DataType::UInt32
                && matches!(val.data_type(), DataType::UInt16 | DataType::UInt32 | DataType::Float32 | DataType::Float64)
                && is_text(spec)
        }
        _ => false,
    };
    if fits { Ok(types.to_vec()) } else { Err(usage(name)) }
}

impl Call for Moments {
    const NAME: &'static str = MOMENTS;
    type Input = SparseRows;

    fn source(&self) -> &Arc<dyn CellSource> {
        &self.source
    }

    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        coerced(MOMENTS, types)
    }

    fn input(&self, args: &[Arc<dyn PhysicalExpr>]) -> Result<SparseRows> {
        let [_, _, _, spec] = args else { return Err(usage(MOMENTS)) };
        let text = text_literal(spec)?.ok_or_else(|| Error::invalid("the spec of moments(idx, val, block, spec) must be a text, not NULL"))?;
        let spec = Arc::new(MomentsSpec::from_literal(&text)?);
        Ok(SparseRows { spec, source: Arc::clone(&self.source), cache: Arc::clone(&self.cache), ready: None })
    }
}

/// What exists once the first rows have come.
#[derive(Debug)]
struct Ready {
    prepared: Arc<Prepared>,
    kernel: Kernel,
    /// The block that was last in use and its table: rows come ordered by block.
    table: Option<(u32, Arc<Tabulated>)>,
}

/// Sparse rows as input.
#[derive(Debug)]
struct SparseRows {
    spec: Arc<MomentsSpec>,
    source: Arc<dyn CellSource>,
    cache: Arc<PreparedCache>,
    ready: Option<Ready>,
}

impl SparseRows {
    fn typed<T>(&mut self, store: &mut MomentStore, columns: &Columns<'_>, groups: &[usize], filter: Option<&BooleanArray>) -> Result<()>
    where
        T: ArrowPrimitiveType,
        T::Native: Value,
    {
        let Some(ready) = &mut self.ready else { return Err(Error::internal("the groups are not resolved")) };
        let prepared = Arc::clone(&ready.prepared);
        let val = columns.val.values().as_primitive::<T>().values();
        let idx = columns.idx.values().as_primitive::<UInt32Type>().values();
        let exact = self.spec.squares == Squares::Float64;
        let mut block: Option<(u32, Block<'_>)> = None;
        for (i, &group) in groups.iter().enumerate() {
            if !passes(filter, i) {
                continue;
            }
            let number = columns.block[i];
            if block.as_ref().is_none_or(|(n, _)| *n != number) {
                block = Some((number, open_block(&prepared, number, &mut ready.table, &self.spec)?));
            }
            let Some((_, open)) = &block else { continue };
            let cells = columns.idx.value_offsets()[i] as usize..columns.idx.value_offsets()[i + 1] as usize;
            let values = columns.val.value_offsets()[i] as usize..columns.val.value_offsets()[i + 1] as usize;
            let (idx, val, counts) = (&idx[cells], &val[values], &prepared.counts[number as usize]);
            let sums = ready.kernel.row(open, idx, val).map_err(|fault| explain(fault, i, number, &self.spec, &prepared))?;
            let mut again: Option<Vec<GroupMoments>> = None;
            for (g, (sums, &n)) in sums.iter().zip(counts).enumerate() {
                if n > 0 {
                    let mut moments = GroupMoments::of_sums(u64::from(n), sums[2] as u64, sums[0], sums[1]);
                    // Squares in float32 mean that the query wants scanpy's rounding as it is.
                    if exact && cancels(&moments, sums[1]) {
                        moments = again.get_or_insert_with(|| two_pass_moments(open, idx, val, counts))[g];
                    }
                    store.merge(group, g, &moments);
                }
            }
        }
        Ok(())
    }
}

/// The cells of block `number`; its table is that of the last call where the block is the same.
pub(crate) fn open_block<'a>(prepared: &'a Prepared, number: u32, last: &mut Option<(u32, Arc<Tabulated>)>, spec: &MomentsSpec) -> Result<Block<'a>> {
    let start = number as usize * BLOCK as usize;
    let end = prepared.codes.len().min(start.saturating_add(BLOCK as usize));
    if start >= end {
        return Err(Error::corrupt(format!(
            "a row of {}.{} belongs to block {number}, but the data set has {} cells",
            spec.dataset,
            spec.matrix,
            prepared.codes.len()
        )));
    }
    let unlike = || Error::internal(format!("the table of block {number} of {}.{} is not that of its cells", spec.dataset, spec.matrix));
    let table = match (&prepared.totals, last) {
        (None, _) => None,
        (Some(_), Some((of, table))) if *of == number => Some(Arc::clone(table)),
        (Some(totals), last) => {
            let formula = prepared.formula.ok_or_else(unlike)?;
            let table = shared_table(formula, totals, start, end - start, has_avx2());
            let table = Arc::new(Tabulated::new(&prepared.codes, start..end, table).ok_or_else(unlike)?);
            *last = Some((number, Arc::clone(&table)));
            Some(table)
        }
    };
    Block::of(&prepared.codes, start..end, table).ok_or_else(unlike)
}

/// The error that `fault` is, in row `row` of a batch.
pub(crate) fn explain(fault: Fault, row: usize, block: u32, spec: &MomentsSpec, prepared: &Prepared) -> Error {
    let matrix = format!("{}.{}", spec.dataset, spec.matrix);
    match fault {
        Fault::Lengths => Error::corrupt(format!("row {row} (block {block}) of a batch of {matrix} has not as many values as cell numbers")),
        Fault::Outside(cell) => Error::corrupt(format!("row {row} (block {block}) of a batch of {matrix} names cell {cell}, which is not in the block")),
        Fault::Group(group) => Error::internal(format!("cells of {matrix} are in group {group}, but there are {} groups", prepared.width())),
        Fault::Value { cell, value } => {
            let total = prepared.totals.as_ref().map(|totals| totals.values().get(cell as usize).copied().unwrap_or(f32::NAN));
            let text = match (total, spec.transform) {
                (None, _) | (_, None) => format!(
                    "cell {cell} (counted from 0) of {matrix} has the value {value}, which has no finite moments: it or its square is beyond the largest number; remove or scale it"
                ),
                (Some(total), Some(transform)) if transform.needs_totals() => format!(
                    "{transform} needs values that are not negative, in cells with a positive total: cell {cell} (counted from 0) of {matrix} has the value {value} and the total {total}; use transform NULL if the values are already normalised"
                ),
                (Some(_), Some(transform)) => format!(
                    "{transform} has no finite value for {value}, which cell {cell} (counted from 0) of {matrix} has; use transform NULL for values as they are"
                ),
            };
            let total = total.filter(|_| spec.transform.is_some_and(Transform::needs_totals));
            Error::invalid(text).with_detail(Detail::UnfitValue { cell, value, total: total.map(f64::from) })
        }
    }
}

/// The columns of sparse rows.
pub(crate) struct Columns<'a> {
    pub(crate) idx: &'a ListArray,
    pub(crate) val: &'a ListArray,
    pub(crate) block: &'a [u32],
}

impl<'a> Columns<'a> {
    /// The arguments of `name`.
    pub(crate) fn open(name: &str, values: &'a [ArrayRef]) -> Result<Self> {
        let [idx, val, block, ..] = values else { return Err(usage(name)) };
        let (Some(idx), Some(val), Some(block)) = (idx.as_list_opt::<i32>(), val.as_list_opt::<i32>(), block.as_primitive_opt::<UInt32Type>()) else {
            return Err(usage(name));
        };
        if idx.values().data_type() != &DataType::UInt32 {
            return Err(usage(name));
        }
        if idx.null_count() + val.null_count() + block.null_count() + idx.values().null_count() + val.values().null_count() > 0 {
            return Err(Error::invalid(format!("{name}(idx, val, block, spec) takes no NULLs: sparse rows have none")));
        }
        Ok(Self { idx, val, block: block.values() })
    }
}

impl Input for SparseRows {
    type Store = MomentStore;

    fn update(&mut self, store: &mut MomentStore, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, rows: usize) -> Result<()> {
        let columns = Columns::open(MOMENTS, values)?;
        if self.ready.is_none() {
            let prepared = self.cache.get(&self.spec, self.source.as_ref())?;
            let kernel = Kernel::new(prepared.width(), self.spec.squares);
            self.ready = Some(Ready { prepared, kernel, table: None });
        }
        if let Some(ready) = &self.ready {
            store.reserve(&ready.prepared.names, rows)?;
            if store.names() != Some(&ready.prepared.names) {
                return Err(Error::internal("rows and states of different groups met in one accumulator"));
            }
        }
        match columns.val.values().data_type() {
            DataType::UInt16 => self.typed::<UInt16Type>(store, &columns, groups, filter),
            DataType::UInt32 => self.typed::<UInt32Type>(store, &columns, groups, filter),
            DataType::Float32 => self.typed::<Float32Type>(store, &columns, groups, filter),
            DataType::Float64 => self.typed::<Float64Type>(store, &columns, groups, filter),
            _ => Err(usage(MOMENTS)),
        }
    }

    fn size(&self) -> usize {
        self.ready.as_ref().map_or(0, |r| r.kernel.size() + r.prepared.size() + r.table.as_ref().map_or(0, |(_, t)| t.size()))
    }

    fn fresh(&self) -> Self {
        Self { spec: Arc::clone(&self.spec), source: Arc::clone(&self.source), cache: Arc::clone(&self.cache), ready: None }
    }
}
