//! The aggregate `moments(idx, val, block, spec)` over the sparse rows of a matrix.
//!
//! A row is one gene's nonzeros in one block of cells; cells of the block that are not in `idx` count as zeros. `spec` is the literal of
//! [`MomentsSpec`]. The result and the state are those of [`crate::store`]. Merging and finishing never ask the [`CellSource`]: groups' names travel in
//! the state, so only the level that sees rows needs to know the cells.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, ListArray};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type, UInt16Type, UInt32Type};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::PhysicalExpr;
use skytether_common::{Error, Result};

use crate::cells::CellSource;
use crate::groups::{BLOCK, Prepared, PreparedCache};
use crate::kernel::{Block, Fault, Kernel, Value, has_avx2};
use crate::log1p::{Table, shared_table};
use crate::spec::{MomentsSpec, shorten};
use crate::store::{MomentStore, result_type, state_types};
use crate::through;
use crate::ttest::GroupMoments;

/// The name of the aggregate in queries.
pub const MOMENTS: &str = "moments";

/// The aggregate `moments`, which learns about cells from `source`.
#[must_use]
pub fn moments_udaf(source: Arc<dyn CellSource>) -> AggregateUDF {
    AggregateUDF::new_from_impl(Moments { source, cache: Arc::default(), signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug)]
struct Moments {
    source: Arc<dyn CellSource>,
    cache: Arc<PreparedCache>,
    signature: Signature,
}

impl PartialEq for Moments {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.source, &other.source)
    }
}

impl Eq for Moments {}

impl Hash for Moments {
    fn hash<H: Hasher>(&self, state: &mut H) {
        MOMENTS.hash(state);
    }
}

impl Moments {
    fn start(&self, args: &AccumulatorArgs<'_>) -> DfResult<Folding<SparseRows>> {
        refuse_modifiers(MOMENTS, args)?;
        let [_, _, _, spec] = args.exprs else { return Err(through(usage())) };
        let text = text_literal(spec)?.ok_or_else(|| through(Error::invalid("the spec of moments(idx, val, block, spec) must be a text, not NULL")))?;
        let spec = MomentsSpec::from_literal(&text).map_err(through)?;
        Ok(Folding::new(SparseRows { spec: Arc::new(spec), source: Arc::clone(&self.source), cache: Arc::clone(&self.cache), ready: None }))
    }
}

fn usage() -> Error {
    Error::invalid(
        "moments(idx, val, block, spec) takes a list of cell numbers (List<UInt32>), a list of values (List of UInt16, UInt32, Float32 or Float64), a block (UInt32) and a spec (text)",
    )
}

impl AggregateUDFImpl for Moments {
    fn name(&self) -> &str {
        MOMENTS
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let fits = match types {
            [DataType::List(idx), DataType::List(val), DataType::UInt32, spec] => {
                idx.data_type() == &DataType::UInt32
                    && matches!(val.data_type(), DataType::UInt16 | DataType::UInt32 | DataType::Float32 | DataType::Float64)
                    && is_text(spec)
            }
            _ => false,
        };
        if fits { Ok(types.to_vec()) } else { Err(through(usage())) }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(result_type())
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        Ok(state_fields(args.name))
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        Ok(Box::new(self.start(&args)?))
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs<'_>) -> bool {
        true
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(self.start(&args)?))
    }
}

pub(crate) fn is_text(t: &DataType) -> bool {
    matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

pub(crate) fn state_fields(name: &str) -> Vec<FieldRef> {
    state_types().into_iter().map(|(part, of)| Arc::new(Field::new(format_state_name(name, part), of, true))).collect()
}

/// DISTINCT and ORDER BY inside the call mean nothing for moments; better an error than an answer to another question.
pub(crate) fn refuse_modifiers(name: &str, args: &AccumulatorArgs<'_>) -> DfResult<()> {
    if args.is_distinct || !args.order_bys.is_empty() {
        return Err(through(Error::invalid(format!("{name} knows neither DISTINCT nor ORDER BY inside the call"))));
    }
    Ok(())
}

/// The text of a literal argument; `None` for NULL.
pub(crate) fn text_literal(expr: &Arc<dyn PhysicalExpr>) -> DfResult<Option<String>> {
    let literal = expr.downcast_ref::<Literal>().map(Literal::value);
    match literal {
        Some(ScalarValue::Null) => Ok(None),
        Some(value) if value.try_as_str().is_some() => Ok(value.try_as_str().flatten().map(str::to_owned)),
        _ => Err(through(Error::invalid(format!("{} must be a text that stands in the query itself", shorten(&expr.to_string()))))),
    }
}

/// Takes rows of an aggregate's input into a store.
pub(crate) trait Input: Send + Sync + Debug {
    /// Adds the rows for which `filter` holds.
    fn update(&mut self, store: &mut MomentStore, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, rows: usize) -> Result<()>;
    /// Bytes of memory.
    fn size(&self) -> usize;
    /// The same without anything taken in.
    fn fresh(&self) -> Self;
}

/// Whether row `i` passes.
pub(crate) fn passes(filter: Option<&BooleanArray>, i: usize) -> bool {
    filter.is_none_or(|f| !f.is_null(i) && f.value(i))
}

/// An aggregate over a [`MomentStore`], for many groups or one.
#[derive(Debug)]
pub(crate) struct Folding<I> {
    input: I,
    store: MomentStore,
    rows: usize,
}

impl<I: Input> Folding<I> {
    pub(crate) fn new(input: I) -> Self {
        Self { input, store: MomentStore::default(), rows: 0 }
    }

    fn left(&mut self, emit: EmitTo) -> usize {
        let rows = self.rows;
        self.rows = match emit {
            EmitTo::All => 0,
            EmitTo::First(n) => rows.saturating_sub(n),
        };
        rows
    }
}

impl<I: Input + 'static> GroupsAccumulator for Folding<I> {
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, rows: usize) -> DfResult<()> {
        self.rows = rows;
        self.input.update(&mut self.store, values, groups, filter, rows).map_err(through)
    }

    fn evaluate(&mut self, emit: EmitTo) -> DfResult<ArrayRef> {
        let rows = self.left(emit);
        self.store.result(emit, rows).map_err(through)
    }

    fn state(&mut self, emit: EmitTo) -> DfResult<Vec<ArrayRef>> {
        let rows = self.left(emit);
        self.store.state(emit, rows).map_err(through)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], rows: usize) -> DfResult<()> {
        self.rows = rows;
        self.store.merge_states(values, groups, rows).map_err(through)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> DfResult<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, |v| v.len());
        let mut each = Self::new(self.input.fresh());
        GroupsAccumulator::update_batch(&mut each, values, &(0..rows).collect::<Vec<_>>(), filter, rows)?;
        GroupsAccumulator::state(&mut each, EmitTo::All)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.store.size() + self.input.size()
    }
}

impl<I: Input + 'static> Accumulator for Folding<I> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let rows = values.first().map_or(0, |v| v.len());
        GroupsAccumulator::update_batch(self, values, &vec![0; rows], None, 1)
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        self.rows = 1;
        ScalarValue::try_from_array(&GroupsAccumulator::evaluate(self, EmitTo::All)?, 0)
    }

    fn size(&self) -> usize {
        GroupsAccumulator::size(self)
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        self.rows = 1;
        GroupsAccumulator::state(self, EmitTo::All)?.iter().map(|a| ScalarValue::try_from_array(a, 0)).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let rows = states.first().map_or(0, |v| v.len());
        GroupsAccumulator::merge_batch(self, states, &vec![0; rows], 1)
    }
}

/// What exists once the first rows have come.
#[derive(Debug)]
struct Ready {
    prepared: Arc<Prepared>,
    kernel: Kernel,
    /// The block that was last in use and its table: rows come ordered by block.
    table: Option<(u32, Arc<Table>)>,
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
            let sums = ready.kernel.row(open, &idx[cells], &val[values]).map_err(|fault| explain(fault, i, number, &self.spec, &prepared))?;
            for (g, (sums, &n)) in sums.iter().zip(&prepared.counts[number as usize]).enumerate() {
                if n > 0 {
                    store.merge(group, g, &GroupMoments::of_sums(u64::from(n), sums[2] as u64, sums[0], sums[1]));
                }
            }
        }
        Ok(())
    }
}

/// The cells of block `number`; its table is that of the last call where the block is the same.
fn open_block<'a>(prepared: &'a Prepared, number: u32, last: &mut Option<(u32, Arc<Table>)>, spec: &MomentsSpec) -> Result<Block<'a>> {
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
    let table = prepared.totals.as_ref().map(|totals| match last {
        Some((of, table)) if *of == number => Arc::clone(table),
        _ => {
            let table = shared_table(totals, start, end - start, has_avx2());
            *last = Some((number, Arc::clone(&table)));
            table
        }
    });
    Ok(Block { first: start as u32, codes: &prepared.codes[start..end], table })
}

fn explain(fault: Fault, row: usize, block: u32, spec: &MomentsSpec, prepared: &Prepared) -> Error {
    let matrix = format!("{}.{}", spec.dataset, spec.matrix);
    match fault {
        Fault::Lengths => Error::corrupt(format!("row {row} (block {block}) of a batch of {matrix} has not as many values as cell numbers")),
        Fault::Outside(cell) => Error::corrupt(format!("row {row} (block {block}) of a batch of {matrix} names cell {cell}, which is not in the block")),
        Fault::Value { cell, value } => match &prepared.totals {
            None => {
                Error::invalid(format!("the value {value} of cell {cell} in row {row} (block {block}) of a batch of {matrix} has no finite moments: remove it"))
            }
            Some(totals) => Error::invalid(format!(
                "log1p_cp10k needs values that are not negative, in cells with a positive total: cell {cell} with total {} has the value {value} in row {row} (block {block}) of a batch of {matrix}; use transform NULL if the values are already normalised",
                totals.values().get(cell as usize).copied().unwrap_or(f32::NAN)
            )),
        },
    }
}

/// The columns of sparse rows.
struct Columns<'a> {
    idx: &'a ListArray,
    val: &'a ListArray,
    block: &'a [u32],
}

impl<'a> Columns<'a> {
    fn open(values: &'a [ArrayRef]) -> Result<Self> {
        let [idx, val, block, ..] = values else { return Err(usage()) };
        let (Some(idx), Some(val), Some(block)) = (idx.as_list_opt::<i32>(), val.as_list_opt::<i32>(), block.as_primitive_opt::<UInt32Type>()) else {
            return Err(usage());
        };
        if idx.values().data_type() != &DataType::UInt32 {
            return Err(usage());
        }
        if idx.null_count() + val.null_count() + block.null_count() + idx.values().null_count() + val.values().null_count() > 0 {
            return Err(Error::invalid("moments(idx, val, block, spec) takes no NULLs: sparse rows have none"));
        }
        Ok(Self { idx, val, block: block.values() })
    }
}

impl Input for SparseRows {
    fn update(&mut self, store: &mut MomentStore, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, rows: usize) -> Result<()> {
        let columns = Columns::open(values)?;
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
            _ => Err(usage()),
        }
    }

    fn size(&self) -> usize {
        // The table is shared by the process and bounded there.
        self.ready.as_ref().map_or(0, |r| r.kernel.size() + r.prepared.size())
    }

    fn fresh(&self) -> Self {
        Self { spec: Arc::clone(&self.spec), source: Arc::clone(&self.source), cache: Arc::clone(&self.cache), ready: None }
    }
}
