//! `EXTRACT(YEAR FROM t)` of times in nanoseconds, compared with years that such times cannot have.
//!
//! DataFusion turns `EXTRACT(YEAR FROM t) < 9999` into a comparison of `t` with a time that it cannot write, and takes
//! that for NULL. It does so after it has merged projections, computed constants and split `BETWEEN`. This rule
//! therefore writes the year of nanoseconds as `abs(EXTRACT(YEAR FROM t))` wherever it does not stand next to constants
//! of years within. Such years are above 0, and DataFusion does not look through `abs`.

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions::math::expr_fn::abs;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Between, BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan};

use crate::float_keys::compares;
use crate::rewriting::{input_columns, map_whole};

/// The first and the last year that are whole years of timestamps of nanoseconds.
const YEARS: (i64, i64) = (1678, 2261);

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let schema = input_columns(&node);
        map_whole(node, |e| hidden(e, &schema))
    })
    .data()
}

fn hidden(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let stays = match &e {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(*op) => {
            (is_year(left, schema) && is_within(right)) || (is_within(left) && is_year(right, schema))
        }
        Expr::Between(Between { expr, low, high, .. }) => is_year(expr, schema) && is_within(low) && is_within(high),
        Expr::InList(InList { expr, list, .. }) => is_year(expr, schema) && list.iter().all(is_within),
        // It is written so already.
        Expr::ScalarFunction(call) => call.func.name() == "abs" && call.args.first().is_some_and(|e| is_call(e, schema)),
        _ => false,
    };
    if stays {
        return Ok(Transformed::no(e));
    }
    let e = e.map_children(|child| hidden(child, schema))?;
    Ok(if is_call(&e.data, schema) { Transformed::yes(abs(e.data)) } else { e })
}

/// Whether `e` is the year of a time in nanoseconds, below casts.
fn is_year(e: &Expr, schema: &DFSchema) -> bool {
    match e {
        Expr::Cast(Cast { expr, .. }) => is_year(expr, schema),
        other => is_call(other, schema),
    }
}

fn is_call(e: &Expr, schema: &DFSchema) -> bool {
    let Expr::ScalarFunction(call) = e else { return false };
    let [Expr::Literal(part, _), of] = call.args.as_slice() else { return false };
    let is_year = || part.try_as_str().flatten().is_some_and(|part| part.trim_matches('\'').eq_ignore_ascii_case("year"));
    call.func.name() == "date_part" && is_year() && matches!(of.get_type(schema), Ok(DataType::Timestamp(TimeUnit::Nanosecond, _)))
}

/// Whether `e` is a constant year that times in nanoseconds can have.
fn is_within(e: &Expr) -> bool {
    match e {
        Expr::Literal(value, _) => {
            let year = value.cast_to(&DataType::Int64).ok();
            matches!(year, Some(ScalarValue::Int64(Some(year))) if (YEARS.0..=YEARS.1).contains(&year))
        }
        Expr::Cast(Cast { expr, .. }) => is_within(expr),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::AsArray;
    use datafusion::prelude::SessionContext;

    #[tokio::test]
    async fn years_beyond_nanoseconds_are_compared() {
        let context = SessionContext::new();
        context.add_analyzer_rule(super::super::rule("years", rewrite));
        context
            .sql("CREATE TABLE t AS SELECT arrow_cast(column1, 'Timestamp(Nanosecond, None)') AS t FROM (VALUES ('2001-02-03'), ('1969-12-31T23:59:59.9'))")
            .await
            .unwrap();
        for (condition, rows) in [
            ("extract(year FROM t) BETWEEN 1000 AND 9999", 2),
            ("extract(year FROM t) NOT BETWEEN 3000 AND 9999", 2),
            ("extract(year FROM t) NOT IN (9999, 2001)", 1),
            ("extract(year FROM t) < 9998 + 1", 2),
            ("extract(year FROM t) > -(5000)", 2),
            ("extract(year FROM t) = 1969", 1),
            ("extract(year FROM t) IN (1969, 1970)", 1),
            ("9999 >= extract(year FROM t)", 2),
        ] {
            for query in [
                format!("SELECT count(*) FROM t WHERE {condition}"),
                format!("SELECT count(*) FILTER (WHERE {condition}) FROM t"),
                format!("SELECT count(*) FROM (SELECT {condition} AS b FROM t) x WHERE b"),
                format!("SELECT count(*) FROM (SELECT extract(year FROM t) AS y FROM t) x WHERE {}", condition.replace("extract(year FROM t)", "y")),
            ] {
                let batches = context.sql(&query).await.unwrap().collect().await.unwrap();
                assert_eq!(batches[0].column(0).as_primitive::<datafusion::arrow::datatypes::Int64Type>().value(0), rows, "{query}");
            }
        }
    }

    #[tokio::test]
    async fn years_next_to_constants_within_stay() {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT now() AS t").await.unwrap();
        for (condition, stays) in
            [("extract(year FROM t) >= 2020", true), ("extract(year FROM t) BETWEEN 2000 AND 2020", true), ("extract(year FROM t) < 9999", false)]
        {
            let plan = context.state().create_logical_plan(&format!("SELECT 1 FROM t WHERE {condition}")).await.unwrap();
            assert_eq!(rewrite(plan.clone(), &ConfigOptions::default()).unwrap() == plan, stays, "{condition}");
        }
    }
}
