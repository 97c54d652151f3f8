//! Frames of windows in the order of bytes, times, durations and structs, and offsets that a key does not hold.
//!
//! The frame of a window without one is `RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW`. DataFusion takes no
//! `RANGE` in the order of these types, because it has no arithmetic for offsets. A frame without offsets needs none:
//! it has the rows of a `GROUPS` frame, with peers in either. This rule comes before DataFusion's coercion, which
//! refuses. A frame with an offset is refused here, also in the order of texts, for which DataFusion makes something
//! up.
//!
//! Dates with an offset of hours are ordered as moments: DataFusion drops the hours. Numbers without a sign are ordered
//! as numbers with one: DataFusion takes 0 for what would be below 0.

use datafusion::arrow::datatypes::{DataType, IntervalUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, WindowFrame, WindowFrameBound, WindowFrameUnits, cast};

use crate::operand_types::MOMENT;
use crate::rewriting::map_typed;

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, in_groups)
}

fn in_groups(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::WindowFunction(mut call) = e else { return Ok(Transformed::no(e)) };
    let frame = &call.params.window_frame;
    let key = call.params.order_by.first().map(|key| key.expr.get_type(schema)).transpose()?;
    let Some(key) = key.filter(|_| frame.units == WindowFrameUnits::Range) else {
        return Ok(Transformed::no(Expr::WindowFunction(call)));
    };
    let offsets = !without_offset(&frame.start_bound) || !without_offset(&frame.end_bound);
    if has_offsets(&key) {
        let Some(wider) = wider(&key, frame).filter(|_| offsets) else { return Ok(Transformed::no(Expr::WindowFunction(call))) };
        for by in &mut call.params.order_by {
            by.expr = cast(by.expr.clone(), wider.clone());
        }
        return Ok(Transformed::yes(Expr::WindowFunction(call)));
    }
    if offsets {
        return not_impl_err!("a RANGE frame with an offset in the order of {key}: order by a number or a timestamp, or count rows with ROWS");
    }
    if takes_ranges(&key) {
        return Ok(Transformed::no(Expr::WindowFunction(call)));
    }
    call.params.window_frame = WindowFrame::new_bounds(WindowFrameUnits::Groups, frame.start_bound.clone(), frame.end_bound.clone());
    Ok(Transformed::yes(Expr::WindowFunction(call)))
}

/// The type that holds the sums of keys and the offsets of `frame`, where `key` does not. A frame with offsets has one
/// key.
fn wider(key: &DataType, frame: &WindowFrame) -> Option<DataType> {
    match key {
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => Some(DataType::Int64),
        DataType::UInt64 => Some(DataType::Decimal128(21, 0)),
        DataType::Date32 | DataType::Date64 => (has_hours(&frame.start_bound) || has_hours(&frame.end_bound)).then_some(MOMENT),
        DataType::Dictionary(_, value) => wider(value, frame),
        _ => None,
    }
}

/// Whether the offset of `bound` is an interval with less than days.
fn has_hours(bound: &WindowFrameBound) -> bool {
    let (WindowFrameBound::Preceding(offset) | WindowFrameBound::Following(offset)) = bound else { return false };
    let interval = match offset {
        // As the planner leaves them.
        ScalarValue::Utf8(Some(text)) => ScalarValue::try_from_string(text.clone(), &DataType::Interval(IntervalUnit::MonthDayNano)),
        offset => offset.cast_to(&DataType::Interval(IntervalUnit::MonthDayNano)),
    };
    matches!(interval, Ok(ScalarValue::IntervalMonthDayNano(Some(of))) if of.nanoseconds != 0)
}

fn without_offset(bound: &WindowFrameBound) -> bool {
    matches!(bound, WindowFrameBound::CurrentRow) || bound.is_unbounded()
}

/// Whether a value of this type and an offset have a sum.
fn has_offsets(key: &DataType) -> bool {
    match key {
        DataType::Dictionary(_, value) => has_offsets(value),
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => true,
        key => key.is_numeric(),
    }
}

/// Whether DataFusion takes a `RANGE` without offsets in the order of this type, which has none.
fn takes_ranges(key: &DataType) -> bool {
    match key {
        DataType::Dictionary(_, value) => takes_ranges(value),
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) | DataType::Boolean => true,
        key => key.is_string() || key.is_null(),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;

    use super::super::rules;

    async fn ranks(key: &str, frame: &str) -> datafusion::common::Result<Vec<String>> {
        let state = SessionStateBuilder::new().with_default_features().with_analyzer_rules(rules()).build();
        let context = SessionContext::new_with_state(state);
        let sql =
            format!("SELECT sum(x) OVER (ORDER BY {key}{frame}) AS s FROM (VALUES (1, '01:00:00'), (2, '01:00:00'), (3, '02:00:00')) AS v (x, t) ORDER BY s");
        let rows = context.sql(&sql).await?.collect().await?;
        let text = pretty_format_batches(&rows)?.to_string();
        Ok(text.lines().skip(3).filter(|l| l.starts_with('|')).map(|l| l.trim_matches(['|', ' ']).to_owned()).collect())
    }

    #[tokio::test]
    async fn frames_in_the_order_of_times_and_bytes_have_peers() {
        for key in ["CAST(t AS TIME)", "CAST(t AS BYTEA)", "named_struct('a', t)", "t"] {
            assert_eq!(ranks(key, "").await.unwrap(), ["3", "3", "6"], "{key}");
            assert_eq!(ranks(key, " RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING").await.unwrap(), ["3", "6", "6"], "{key}");
        }
    }

    #[tokio::test]
    async fn offset_in_the_order_of_times_or_texts_is_refused() {
        for (key, offset) in [("CAST(t AS TIME)", "INTERVAL '1 hour'"), ("t", "1"), ("x > 1", "1")] {
            let error = ranks(key, &format!(" RANGE BETWEEN {offset} PRECEDING AND CURRENT ROW")).await.unwrap_err();
            assert!(error.to_string().contains("RANGE frame with an offset"), "{error}");
        }
        assert_eq!(ranks("x", " RANGE BETWEEN 1 PRECEDING AND CURRENT ROW").await.unwrap(), ["1", "3", "5"]);
    }

    #[tokio::test]
    async fn offsets_below_zero_and_below_days_are_kept() {
        for unsigned in ["UInt8", "UInt64"] {
            let key = format!("arrow_cast(x, '{unsigned}')");
            assert_eq!(ranks(&key, " RANGE BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING").await.unwrap(), ["1", "", ""]);
            let down = format!("{key} DESC");
            assert_eq!(ranks(&down, " RANGE BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING").await.unwrap(), ["1", "", ""]);
        }
        let key = "DATE '2024-01-01' + CAST(x AS INT)";
        assert_eq!(ranks(key, " RANGE BETWEEN INTERVAL '36 hours' FOLLOWING AND UNBOUNDED FOLLOWING").await.unwrap(), ["3", "", ""]);
        assert_eq!(ranks(key, " RANGE BETWEEN INTERVAL '1 day' FOLLOWING AND UNBOUNDED FOLLOWING").await.unwrap(), ["3", "5", ""]);
    }
}
