//! Frames of windows in the order of bytes, times, durations and structs.
//!
//! The frame of a window without one is `RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW`. DataFusion takes no
//! `RANGE` in the order of these types, because it has no arithmetic for offsets. A frame without offsets needs none:
//! it has the rows of a `GROUPS` frame, with peers in either. This rule comes before DataFusion's coercion, which
//! refuses. A frame with an offset is refused here, also in the order of texts, for which DataFusion makes something
//! up.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, not_impl_err};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, WindowFrame, WindowFrameBound, WindowFrameUnits};

use crate::rewriting::map_typed;

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, in_groups)
}

fn in_groups(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::WindowFunction(mut call) = e else { return Ok(Transformed::no(e)) };
    let frame = &call.params.window_frame;
    let key = call.params.order_by.first().map(|key| key.expr.get_type(schema)).transpose()?;
    let Some(key) = key.filter(|key| frame.units == WindowFrameUnits::Range && !has_offsets(key)) else {
        return Ok(Transformed::no(Expr::WindowFunction(call)));
    };
    if !without_offset(&frame.start_bound) || !without_offset(&frame.end_bound) {
        return not_impl_err!("a RANGE frame with an offset in the order of {key}: order by a number or a timestamp, or count rows with ROWS");
    }
    if takes_ranges(&key) {
        return Ok(Transformed::no(Expr::WindowFunction(call)));
    }
    call.params.window_frame = WindowFrame::new_bounds(WindowFrameUnits::Groups, frame.start_bound.clone(), frame.end_bound.clone());
    Ok(Transformed::yes(Expr::WindowFunction(call)))
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
}
