//! Window functions that replace DataFusion's of the same name.
//!
//! - `row_number`, `rank`, `dense_rank` and `ntile` give a BIGINT, as in other databases. DataFusion's are unsigned,
//!   and `row_number() OVER () / 2` a decimal with a fraction.
//! - `lead` and `lag` with `IGNORE NULLS` find the row that SQL means. DataFusion's `lead` loses count at a NULL.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, UInt64Array};
use datafusion::arrow::compute::{SortOptions, cast, concat, take};
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::functions_window::lead_lag::{lag_udwf, lead_udwf};
use datafusion::functions_window::ntile::ntile_udwf;
use datafusion::functions_window::rank::{dense_rank_udwf, rank_udwf};
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::function::{ExpressionArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::window_state::WindowAggState;
use datafusion::logical_expr::{Documentation, Expr, LimitEffect, PartitionEvaluator, ReversedUDWF, Signature, WindowUDF, WindowUDFImpl};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;

/// Registers them.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    for inner in [row_number_udwf(), rank_udwf(), dense_rank_udwf(), ntile_udwf(), lead_udwf(), lag_udwf()] {
        registry.register_udwf(replaced(inner))?;
    }
    Ok(())
}

/// `row_number()`, as it is registered.
#[must_use]
pub fn row_number() -> Expr {
    replaced(row_number_udwf()).call(Vec::new())
}

fn replaced(inner: Arc<WindowUDF>) -> Arc<WindowUDF> {
    Arc::new(WindowUDF::from(Replaced { inner }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Replaced {
    inner: Arc<WindowUDF>,
}

impl WindowUDFImpl for Replaced {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn expressions(&self, args: ExpressionArgs) -> Vec<Arc<dyn PhysicalExpr>> {
        self.inner.expressions(args)
    }

    fn partition_evaluator(&self, args: PartitionEvaluatorArgs) -> Result<Box<dyn PartitionEvaluator>> {
        if let Some(shift) = Shift::of(self.name(), &args)? {
            return Ok(Box::new(shift));
        }
        let inner = self.inner.partition_evaluator_factory(args)?;
        Ok(if self.is_number() { Box::new(Signed(inner)) } else { inner })
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        let field = self.inner.field(args)?;
        Ok(if self.is_number() { Arc::new(field.as_ref().clone().with_data_type(DataType::Int64)) } else { field })
    }

    fn sort_options(&self) -> Option<SortOptions> {
        self.inner.sort_options()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn reverse_expr(&self) -> ReversedUDWF {
        match self.inner.reverse_expr() {
            ReversedUDWF::Reversed(inner) => ReversedUDWF::Reversed(replaced(inner)),
            other => other,
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn limit_effect(&self, args: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        match self.name() {
            // How far it looks depends on where NULLs are; the limit does not know of IGNORE NULLS.
            "lead" => LimitEffect::Unknown,
            _ => self.inner.inner().limit_effect(args),
        }
    }
}

impl Replaced {
    /// Whether it numbers rows or groups of them.
    fn is_number(&self) -> bool {
        !matches!(self.name(), "lead" | "lag")
    }
}

/// The numbers of another evaluator as BIGINT. A partition never has 2^63 rows.
#[derive(Debug)]
struct Signed(Box<dyn PartitionEvaluator>);

impl PartitionEvaluator for Signed {
    fn memoize(&mut self, state: &mut WindowAggState) -> Result<()> {
        self.0.memoize(state)
    }

    fn get_range(&self, idx: usize, n_rows: usize) -> Result<Range<usize>> {
        self.0.get_range(idx, n_rows)
    }

    fn is_causal(&self) -> bool {
        self.0.is_causal()
    }

    fn evaluate_all(&mut self, values: &[ArrayRef], num_rows: usize) -> Result<ArrayRef> {
        Ok(cast(&self.0.evaluate_all(values, num_rows)?, &DataType::Int64)?)
    }

    fn evaluate(&mut self, values: &[ArrayRef], range: &Range<usize>) -> Result<ScalarValue> {
        self.0.evaluate(values, range)?.cast_to(&DataType::Int64)
    }

    fn evaluate_all_with_rank(&self, num_rows: usize, ranks: &[Range<usize>]) -> Result<ArrayRef> {
        Ok(cast(&self.0.evaluate_all_with_rank(num_rows, ranks)?, &DataType::Int64)?)
    }

    fn supports_bounded_execution(&self) -> bool {
        self.0.supports_bounded_execution()
    }

    fn uses_window_frame(&self) -> bool {
        self.0.uses_window_frame()
    }

    fn include_rank(&self) -> bool {
        self.0.include_rank()
    }
}

/// `lead` or `lag` with `IGNORE NULLS`, over a whole partition at once.
#[derive(Debug)]
struct Shift {
    /// How many values that are not NULL it goes ahead (or back, below 0); never 0.
    ahead: i64,
    /// What it gives where there are fewer.
    default: ScalarValue,
}

impl Shift {
    /// `None` for what is left to DataFusion: without `IGNORE NULLS`, by no row, or by an offset that is no constant.
    fn of(name: &str, args: &PartitionEvaluatorArgs) -> Result<Option<Self>> {
        let (true, Some(of)) = (matches!(name, "lead" | "lag") && args.ignore_nulls(), args.input_fields().first()) else { return Ok(None) };
        let constant = |at: usize| args.input_exprs().get(at).map(|e| e.downcast_ref::<Literal>().map(|literal| literal.value().clone()));
        let offset = match constant(1) {
            None => 1,
            Some(Some(offset)) => match offset.cast_to(&DataType::Int64) {
                Ok(ScalarValue::Int64(Some(offset))) => offset,
                _ => return Ok(None),
            },
            Some(None) => return Ok(None),
        };
        let default = match constant(2) {
            None => ScalarValue::try_from(of.data_type())?,
            Some(Some(default)) => default.cast_to(of.data_type())?,
            Some(None) => return Ok(None),
        };
        let ahead = if (name == "lead") == args.is_reversed() { offset.saturating_neg() } else { offset };
        Ok((ahead != 0 && !of.data_type().is_null()).then_some(Self { ahead, default }))
    }
}

impl PartitionEvaluator for Shift {
    fn evaluate_all(&mut self, values: &[ArrayRef], num_rows: usize) -> Result<ArrayRef> {
        let column = &values[0];
        // The default is the row behind the last one.
        let with_default = concat(&[column.as_ref(), self.default.to_array()?.as_ref()])?;
        let valid: Vec<usize> = (0..num_rows).filter(|row| column.is_valid(*row)).collect();
        let far = usize::try_from(self.ahead.unsigned_abs()).unwrap_or(usize::MAX);
        // How many of `valid` are before the row, and up to it.
        let (mut before, mut through) = (0, 0);
        let found = (0..num_rows).map(|row| {
            before = through;
            through += usize::from(column.is_valid(row));
            let at = if self.ahead > 0 { through.checked_add(far - 1) } else { before.checked_sub(far) };
            at.and_then(|at| valid.get(at)).copied().unwrap_or(num_rows) as u64
        });
        let found = UInt64Array::from_iter_values(found);
        Ok(take(&with_default, &found, None)?)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{AsArray, Int64Array};
    use datafusion::arrow::datatypes::Int64Type;

    use super::*;

    #[test]
    fn nulls_are_passed_over_in_both_directions() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(2), None, Some(4), Some(5), None]));
        let shifted = |ahead: i64, default: Option<i64>| {
            let found = Shift { ahead, default: ScalarValue::Int64(default) }.evaluate_all(&[Arc::clone(&column)], 6).unwrap();
            found.as_primitive::<Int64Type>().iter().collect::<Vec<_>>()
        };
        assert_eq!(shifted(1, None), [Some(2), Some(4), Some(4), Some(5), None, None]);
        assert_eq!(shifted(2, None), [Some(4), Some(5), Some(5), None, None, None]);
        assert_eq!(shifted(-1, None), [None, None, Some(2), Some(2), Some(4), Some(5)]);
        assert_eq!(shifted(-2, Some(0)), [Some(0), Some(0), Some(0), Some(0), Some(2), Some(4)]);
        assert_eq!(shifted(i64::MIN, None), [None; 6]);
    }
}
