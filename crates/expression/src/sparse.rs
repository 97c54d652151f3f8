//! The common part of the aggregates over the sparse rows of a matrix, `name(idx, val, block, spec)` or
//! `name(idx, val, block, gene_id, spec)`: their arguments, the cells of a block, and each row once.
//!
//! A row is one gene's nonzeros in one block of cells; cells of the block that are not in `idx` count as zeros. Merging
//! and finishing never ask the [`CellSource`], so only the node that reads rows needs the cells.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, ListArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, UInt16Type, UInt32Type};
use datafusion::logical_expr::AggregateUDF;
use datafusion::physical_plan::PhysicalExpr;
use skytether_common::{Detail, Error, Result};

use crate::aggregate::{Call, Input, Store, aggregate, is_text, passes, text_literal};
use crate::cells::CellSource;
use crate::groups::{Prepared, PreparedCache};
use crate::kernel::{Block, Fault, Tabulated, Value, has_avx2};
use crate::log1p::shared_table;
use crate::spec::MomentsSpec;
use crate::transform::Transform;

/// What an aggregate does with its rows. A value of it exists once the cells are known.
pub(crate) trait OverRows: Debug + Send + Sync + Sized + 'static {
    /// The name in queries.
    const NAME: &'static str;
    /// Whether the number of each row's gene comes before the spec.
    const WITH_GENE: bool = false;
    /// The literal argument.
    type Spec: Debug + Send + Sync;
    /// What is kept of the rows.
    type Store: Store;

    /// Reads the text of a spec.
    fn read(text: &str) -> Result<Self::Spec>;
    /// Cells, groups and transform.
    fn cells(spec: &Self::Spec) -> &MomentsSpec;
    /// What there is before the first row.
    fn begin(spec: &Self::Spec, prepared: &Prepared) -> Result<Self>;
    /// Makes room for `rows` rows of the aggregate, before some with values of type `values`.
    fn reserve(&mut self, spec: &Self::Spec, prepared: &Prepared, store: &mut Self::Store, rows: usize, values: &DataType) -> Result<()>;
    /// Takes `row` into row `at` of the aggregate.
    fn row<T: Value>(&mut self, spec: &Self::Spec, store: &mut Self::Store, at: usize, row: &Row<'_, T>) -> Result<()>;
    /// Bytes of memory, without those of the cells.
    fn size(&self) -> usize;
}

/// A row of a matrix.
pub(crate) struct Row<'a, T> {
    /// Its block of cells.
    pub(crate) number: u32,
    /// Its gene; 0 for an aggregate that does not ask for it.
    pub(crate) gene: u32,
    /// The cells of the block.
    pub(crate) block: &'a Block<'a>,
    /// The nonzeros' cells and values.
    pub(crate) idx: &'a [u32],
    pub(crate) val: &'a [T],
    pub(crate) prepared: &'a Prepared,
    place: usize,
    of: &'a MomentsSpec,
}

impl<T> Row<'_, T> {
    /// The numbers of the block's cells.
    pub(crate) fn cells(&self) -> std::ops::Range<usize> {
        cells_of(self.prepared, self.number)
    }

    /// The error that `fault` is.
    pub(crate) fn failed(&self, fault: Fault) -> Error {
        explain(fault, self.place, self.number, self.of, self.prepared)
    }
}

/// The aggregate `R`, which learns about cells from `source`.
pub(crate) fn udaf<R: OverRows>(source: Arc<dyn CellSource>) -> AggregateUDF {
    let cache = source.prepared();
    aggregate(Over::<R> { source, cache, of: PhantomData })
}

#[derive(Debug)]
struct Over<R> {
    source: Arc<dyn CellSource>,
    cache: Arc<PreparedCache>,
    of: PhantomData<R>,
}

/// What the arguments of `R` are.
fn usage<R: OverRows>() -> Error {
    let (gene, of_gene) = if R::WITH_GENE { (", gene_id", ", a gene (UInt32)") } else { ("", "") };
    Error::invalid(format!(
        "{}(idx, val, block{gene}, spec) takes a list of cell numbers (List<UInt32>), a list of values (List of UInt16, UInt32, Float32 or Float64), \
         a block (UInt32){of_gene} and a spec (text)",
        R::NAME
    ))
}

impl<R: OverRows> Call for Over<R> {
    const NAME: &'static str = R::NAME;
    type Input = SparseRows<R>;

    fn source(&self) -> &Arc<dyn CellSource> {
        &self.source
    }

    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let (idx, val, spec) = match types {
            [DataType::List(idx), DataType::List(val), DataType::UInt32, spec] if !R::WITH_GENE => (idx, val, spec),
            [DataType::List(idx), DataType::List(val), DataType::UInt32, DataType::UInt32, spec] if R::WITH_GENE => (idx, val, spec),
            _ => return Err(usage::<R>()),
        };
        let is_value = matches!(val.data_type(), DataType::UInt16 | DataType::UInt32 | DataType::Float32 | DataType::Float64);
        if idx.data_type() == &DataType::UInt32 && is_value && is_text(spec) { Ok(types.to_vec()) } else { Err(usage::<R>()) }
    }

    fn input(&self, args: &[Arc<dyn PhysicalExpr>]) -> Result<SparseRows<R>> {
        let [.., spec] = args else { return Err(usage::<R>()) };
        let text = text_literal(spec)?.ok_or_else(|| Error::invalid(format!("the spec of {} must be a text, not NULL", R::NAME)))?;
        Ok(SparseRows::new(R::read(&text)?, Arc::clone(&self.source), Arc::clone(&self.cache)))
    }
}

/// What exists once the first rows have come.
#[derive(Debug)]
struct Ready<R> {
    prepared: Arc<Prepared>,
    /// The block that was last in use and its table: rows come ordered by block.
    table: Option<(u32, Arc<Tabulated>)>,
    own: R,
}

/// Sparse rows as input.
#[derive(Debug)]
pub(crate) struct SparseRows<R: OverRows> {
    spec: Arc<R::Spec>,
    source: Arc<dyn CellSource>,
    cache: Arc<PreparedCache>,
    ready: Option<Ready<R>>,
}

impl<R: OverRows> SparseRows<R> {
    /// Input of a call with this spec, before any row.
    pub(crate) fn new(spec: R::Spec, source: Arc<dyn CellSource>, cache: Arc<PreparedCache>) -> Self {
        Self { spec: Arc::new(spec), source, cache, ready: None }
    }

    fn typed<T>(&mut self, store: &mut R::Store, columns: &Columns<'_>, groups: &[usize], filter: Option<&BooleanArray>) -> Result<()>
    where
        T: ArrowPrimitiveType,
        T::Native: Value,
    {
        let Some(Ready { prepared, table, own }) = &mut self.ready else { return Err(Error::internal("the cells are not known")) };
        let of = R::cells(&self.spec);
        let val = columns.val.values().as_primitive::<T>().values();
        let idx = columns.idx.values().as_primitive::<UInt32Type>().values();
        let mut block: Option<(u32, Block<'_>)> = None;
        for (i, &at) in groups.iter().enumerate() {
            if !passes(filter, i) {
                continue;
            }
            let number = columns.block[i];
            if block.as_ref().is_none_or(|(n, _)| *n != number) {
                block = Some((number, open_block(prepared, number, table, of)?));
            }
            let Some((_, open)) = &block else { continue };
            let cells = columns.idx.value_offsets()[i] as usize..columns.idx.value_offsets()[i + 1] as usize;
            let values = columns.val.value_offsets()[i] as usize..columns.val.value_offsets()[i + 1] as usize;
            let gene = columns.genes.map_or(0, |genes| genes[i]);
            let row = Row { number, gene, block: open, idx: &idx[cells], val: &val[values], prepared, place: i, of };
            own.row(&self.spec, store, at, &row)?;
        }
        Ok(())
    }
}

impl<R: OverRows> Input for SparseRows<R> {
    type Store = R::Store;

    fn update(&mut self, store: &mut R::Store, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, rows: usize) -> Result<()> {
        let columns = Columns::open::<R>(values)?;
        if self.ready.is_none() {
            let prepared = self.cache.get(R::cells(&self.spec), self.source.as_ref())?;
            let own = R::begin(&self.spec, &prepared)?;
            self.ready = Some(Ready { prepared, table: None, own });
        }
        let kind = columns.val.value_type();
        if let Some(Ready { prepared, own, .. }) = &mut self.ready {
            own.reserve(&self.spec, prepared, store, rows, &kind)?;
        }
        match kind {
            DataType::UInt16 => self.typed::<UInt16Type>(store, &columns, groups, filter),
            DataType::UInt32 => self.typed::<UInt32Type>(store, &columns, groups, filter),
            DataType::Float32 => self.typed::<Float32Type>(store, &columns, groups, filter),
            DataType::Float64 => self.typed::<Float64Type>(store, &columns, groups, filter),
            _ => Err(usage::<R>()),
        }
    }

    fn size(&self) -> usize {
        self.ready.as_ref().map_or(0, |r| r.own.size() + r.prepared.size() + r.table.as_ref().map_or(0, |(_, t)| t.size()))
    }

    fn fresh(&self) -> Self {
        Self { spec: Arc::clone(&self.spec), source: Arc::clone(&self.source), cache: Arc::clone(&self.cache), ready: None }
    }
}

/// The numbers of the cells of block `number`; none if there is no such block.
fn cells_of(prepared: &Prepared, number: u32) -> std::ops::Range<usize> {
    let cells = prepared.blocks.of(number);
    cells.start as usize..(cells.end as usize).min(prepared.codes.len())
}

/// The cells of block `number`; its table is that of the last call where the block is the same.
fn open_block<'a>(prepared: &'a Prepared, number: u32, last: &mut Option<(u32, Arc<Tabulated>)>, spec: &MomentsSpec) -> Result<Block<'a>> {
    let cells = cells_of(prepared, number);
    if cells.is_empty() {
        return Err(Error::corrupt(format!(
            "a row of {}.{} belongs to block {number}, which is none of its blocks here; the data set has {} cells",
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
            let table = shared_table(formula, totals, cells.start, cells.len(), has_avx2());
            let table = Arc::new(Tabulated::new(&prepared.codes, cells.clone(), table).ok_or_else(unlike)?);
            *last = Some((number, Arc::clone(&table)));
            Some(table)
        }
    };
    Block::of(&prepared.codes, cells, table).ok_or_else(unlike)
}

/// The error that `fault` is, in row `row` of a batch.
fn explain(fault: Fault, row: usize, block: u32, spec: &MomentsSpec, prepared: &Prepared) -> Error {
    let matrix = format!("{}.{}", spec.dataset, spec.matrix);
    match fault {
        Fault::Lengths => Error::corrupt(format!("row {row} (block {block}) of a batch of {matrix} has not as many values as cell numbers")),
        Fault::Outside(cell) => Error::corrupt(format!("row {row} (block {block}) of a batch of {matrix} names cell {cell}, which is not in the block")),
        Fault::Group(group) => Error::internal(format!("cells of {matrix} are in group {group}, but there are {} groups", prepared.width())),
        Fault::Value { cell, value } => {
            let total = prepared.totals.as_ref().map(|totals| totals.values().get(cell as usize).copied().unwrap_or(f32::NAN));
            let text = match (total, spec.transform) {
                (None, _) | (_, None) => format!(
                    "cell {cell} (counted from 0) of {matrix} has the value {value}, which has no finite moments: it or its square \
                     is beyond the largest number; remove or scale it"
                ),
                (Some(total), Some(transform)) if transform.needs_totals() => format!(
                    "{transform} needs values that are not negative, in cells with a positive total: cell {cell} (counted from 0) \
                     of {matrix} has the value {value} and the total {total}; use transform NULL if the values are already normalised"
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
struct Columns<'a> {
    idx: &'a ListArray,
    val: &'a ListArray,
    block: &'a [u32],
    genes: Option<&'a [u32]>,
}

impl<'a> Columns<'a> {
    /// The arguments of `R`.
    fn open<R: OverRows>(values: &'a [ArrayRef]) -> Result<Self> {
        let lists = |at: usize| values.get(at).and_then(|of| of.as_list_opt::<i32>()).ok_or_else(usage::<R>);
        let numbers = |at: usize| values.get(at).and_then(|of| of.as_primitive_opt::<UInt32Type>()).ok_or_else(usage::<R>);
        let (idx, val, block, genes) = (lists(0)?, lists(1)?, numbers(2)?, if R::WITH_GENE { Some(numbers(3)?) } else { None });
        if idx.values().data_type() != &DataType::UInt32 {
            return Err(usage::<R>());
        }
        let nulls = [idx.null_count(), val.null_count(), block.null_count(), idx.values().null_count(), val.values().null_count()];
        if nulls.iter().sum::<usize>() + genes.map_or(0, |genes| genes.null_count()) > 0 {
            return Err(Error::invalid(format!("{} takes no NULLs: sparse rows have none", R::NAME)));
        }
        Ok(Self { idx, val, block: block.values(), genes: genes.map(|genes| &genes.values()[..]) })
    }
}
