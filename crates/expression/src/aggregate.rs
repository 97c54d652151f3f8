//! The common part of the aggregates over a matrix: all but reading their rows and what they keep of them.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result as DfResult, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::PhysicalExpr;
use skytether_common::{Error, Result};

use crate::cells::CellSource;
use crate::df_error::through;
use crate::spec::shorten;

/// An aggregate over a matrix: its name, its arguments, and the rows that these make.
pub(crate) trait Call: Send + Sync + Debug + 'static {
    /// The name in queries.
    const NAME: &'static str;
    /// Takes rows in.
    type Input: Input + 'static;

    /// Where it learns about cells. Calls are equal that learn from the same.
    fn source(&self) -> &Arc<dyn CellSource>;
    /// The types that arguments of these types are cast to.
    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>>;
    /// What takes the rows in, for a call with these arguments.
    fn input(&self, args: &[Arc<dyn PhysicalExpr>]) -> Result<Self::Input>;
}

/// The aggregate function of `call`.
pub(crate) fn aggregate(call: impl Call) -> AggregateUDF {
    AggregateUDF::new_from_impl(Aggregate { call, signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug)]
struct Aggregate<C> {
    call: C,
    signature: Signature,
}

impl<C: Call> PartialEq for Aggregate<C> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.call.source(), other.call.source())
    }
}

impl<C: Call> Eq for Aggregate<C> {}

impl<C: Call> Hash for Aggregate<C> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        C::NAME.hash(state);
    }
}

impl<C: Call> Aggregate<C> {
    fn start(&self, args: &AccumulatorArgs<'_>) -> DfResult<Folding<C::Input>> {
        refuse_modifiers(C::NAME, args).and_then(|()| self.call.input(args.exprs)).map(Folding::new).map_err(through)
    }
}

impl<C: Call> AggregateUDFImpl for Aggregate<C> {
    fn name(&self) -> &str {
        C::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        self.call.coerce(types).map_err(through)
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(Kept::<C>::result_type())
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        let field = |(part, of)| Arc::new(Field::new(format_state_name(args.name, part), of, true));
        Ok(Kept::<C>::state_types().into_iter().map(field).collect())
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

/// Whether columns of this type hold texts.
pub(crate) fn is_text(t: &DataType) -> bool {
    matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// DISTINCT and ORDER BY inside the call mean nothing here; better an error than an answer to another question.
fn refuse_modifiers(name: &str, args: &AccumulatorArgs<'_>) -> Result<()> {
    if args.is_distinct || !args.order_bys.is_empty() {
        return Err(Error::invalid(format!("{name} knows neither DISTINCT nor ORDER BY inside the call")));
    }
    Ok(())
}

/// The text of a literal argument; `None` for NULL.
pub(crate) fn text_literal(expr: &Arc<dyn PhysicalExpr>) -> Result<Option<String>> {
    let literal = expr.downcast_ref::<Literal>().map(Literal::value);
    match literal {
        Some(ScalarValue::Null) => Ok(None),
        Some(value) if value.try_as_str().is_some() => Ok(value.try_as_str().flatten().map(str::to_owned)),
        _ => Err(Error::invalid(format!("{} must be a text that stands in the query itself", shorten(&expr.to_string())))),
    }
}

/// What a call keeps of its rows.
type Kept<C> = <<C as Call>::Input as Input>::Store;

/// What an aggregate keeps of its rows, a place for each of its own rows.
pub(crate) trait Store: Default + Debug + Send + Sync + 'static {
    /// The type of the result.
    fn result_type() -> DataType;
    /// Names and types of the state's columns.
    fn state_types() -> Vec<(&'static str, DataType)>;
    /// The result of the rows that are emitted, of `rows` in all.
    fn result(&mut self, emit: EmitTo, rows: usize) -> Result<ArrayRef>;
    /// The state of the rows that are emitted, of `rows` in all.
    fn state(&mut self, emit: EmitTo, rows: usize) -> Result<Vec<ArrayRef>>;
    /// Merges states, each into the row that `groups` says, of `rows` in all.
    fn merge(&mut self, states: &[ArrayRef], groups: &[usize], rows: usize) -> Result<()>;
    /// Bytes of memory.
    fn size(&self) -> usize;
}

/// Takes rows of an aggregate's input into a store.
pub(crate) trait Input: Send + Sync + Debug {
    /// What is kept of them.
    type Store: Store;

    /// Adds the rows for which `filter` holds.
    fn update(&mut self, store: &mut Self::Store, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, rows: usize) -> Result<()>;
    /// Bytes of memory.
    fn size(&self) -> usize;
    /// The same without anything taken in.
    fn fresh(&self) -> Self;
}

/// Whether row `i` passes.
pub(crate) fn passes(filter: Option<&BooleanArray>, i: usize) -> bool {
    filter.is_none_or(|f| !f.is_null(i) && f.value(i))
}

/// An aggregate over a store, for many groups or one.
#[derive(Debug)]
struct Folding<I: Input> {
    input: I,
    store: I::Store,
    rows: usize,
}

impl<I: Input> Folding<I> {
    fn new(input: I) -> Self {
        Self { input, store: I::Store::default(), rows: 0 }
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
        self.store.merge(values, groups, rows).map_err(through)
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
