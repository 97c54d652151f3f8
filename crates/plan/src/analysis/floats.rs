//! One zero and one NaN, in all operators that compare, sort or group floats.
//!
//! DataFusion does so by Arrow's total order, or by bits: -0.0 and 0.0 are two values, and a NaN with a sign is below
//! all numbers. This rule puts [`float_keys`](crate::float_keys) around what these operators compare. Columns keep
//! their names, and values that are only passed on stay as they were stored.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{AggregateFunctionParams, Between, GroupingSet, InList, InSubquery, ScalarFunction, WindowFunctionParams};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{BinaryExpr, Case, Distinct, Expr, ExprSchemable, LogicalPlan, Projection, SortExpr, WindowFunctionDefinition};

use crate::float_keys::{compares, has_floats, key};
use crate::rewriting::map_typed;

/// Functions that compare their arguments, or elements of them.
const COMPARING: [&str; 20] = [
    "greatest",
    "least",
    "array_has",
    "array_has_all",
    "array_has_any",
    "array_position",
    "array_positions",
    "array_remove",
    "array_remove_n",
    "array_remove_all",
    "array_replace",
    "array_replace_n",
    "array_replace_all",
    "array_distinct",
    "array_union",
    "array_intersect",
    "array_except",
    "array_sort",
    "array_max",
    "array_min",
];

/// Aggregates that compare their first argument. `min` and `max` of groups are ours and need no key.
const COMPARING_AGGREGATES: [&str; 6] =
    ["median", "percentile_cont", "approx_median", "approx_percentile_cont", "approx_percentile_cont_with_weight", "approx_distinct"];

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, within)?.transform_up_with_subqueries(operator).data()
}

fn keys(of: Vec<Expr>, schema: &DFSchema) -> Result<Vec<Expr>> {
    of.into_iter().map(|e| key(e, schema)).collect()
}

fn boxed(e: Expr, schema: &DFSchema) -> Result<Box<Expr>> {
    key(e, schema).map(Box::new)
}

fn sorts(of: Vec<SortExpr>, schema: &DFSchema) -> Result<Vec<SortExpr>> {
    of.into_iter().map(|sort| Ok(SortExpr { expr: key(sort.expr, schema)?, ..sort })).collect()
}

/// The comparisons within an expression.
fn within(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(Transformed::yes(match e {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(op) => {
            Expr::BinaryExpr(BinaryExpr { left: boxed(*left, schema)?, op, right: boxed(*right, schema)? })
        }
        Expr::Between(Between { expr, negated, low, high }) => {
            Expr::Between(Between { expr: boxed(*expr, schema)?, negated, low: boxed(*low, schema)?, high: boxed(*high, schema)? })
        }
        Expr::InList(InList { expr, list, negated }) => Expr::InList(InList { expr: boxed(*expr, schema)?, list: keys(list, schema)?, negated }),
        Expr::InSubquery(of) => Expr::InSubquery(among(of, schema)?),
        Expr::Case(Case { expr: Some(expr), when_then_expr, else_expr }) => {
            let when_then_expr = when_then_expr.into_iter().map(|(when, then)| Ok((boxed(*when, schema)?, then))).collect::<Result<_>>()?;
            Expr::Case(Case { expr: Some(boxed(*expr, schema)?), when_then_expr, else_expr })
        }
        Expr::ScalarFunction(ScalarFunction { func, args }) if COMPARING.contains(&func.name()) => {
            Expr::ScalarFunction(ScalarFunction { args: keys(args, schema)?, func })
        }
        Expr::AggregateFunction(mut call) => {
            let compares = call.params.distinct || COMPARING_AGGREGATES.contains(&call.func.name());
            let AggregateFunctionParams { args, order_by, .. } = &mut call.params;
            if compares {
                *args = keys(std::mem::take(args), schema)?;
            }
            *order_by = sorts(std::mem::take(order_by), schema)?;
            Expr::AggregateFunction(call)
        }
        Expr::WindowFunction(mut call) => {
            let (name, is_aggregate) = (call.fun.name(), matches!(call.fun, WindowFunctionDefinition::AggregateUDF(_)));
            let compares = is_aggregate && (call.params.distinct || matches!(name, "min" | "max") || COMPARING_AGGREGATES.contains(&name));
            let WindowFunctionParams { args, partition_by, order_by, .. } = &mut call.params;
            if compares {
                *args = keys(std::mem::take(args), schema)?;
            }
            *partition_by = keys(std::mem::take(partition_by), schema)?;
            *order_by = sorts(std::mem::take(order_by), schema)?;
            Expr::WindowFunction(call)
        }
        other => return Ok(Transformed::no(other)),
    }))
}

/// `x IN (SELECT y ...)` by the keys of both.
fn among(mut of: InSubquery, schema: &DFSchema) -> Result<InSubquery> {
    if has_floats(&of.expr.get_type(schema)?) {
        of.expr = boxed(*of.expr, schema)?;
        of.subquery = of.subquery.with_plan(Arc::new(with_keys(Arc::clone(&of.subquery.subquery))?));
    }
    Ok(of)
}

/// `plan` with all of its columns by their keys.
fn with_keys(plan: Arc<LogicalPlan>) -> Result<LogicalPlan> {
    let schema = Arc::clone(plan.schema());
    let named = NamePreserver::new_for_projection();
    let columns = schema.columns().into_iter().map(|column| {
        let column = Expr::Column(column);
        let name = named.save(&column);
        Ok(name.restore(key(column, &schema)?))
    });
    Ok(LogicalPlan::Projection(Projection::try_new(columns.collect::<Result<_>>()?, plan)?))
}

/// The keys of an operator itself.
fn operator(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    Ok(Transformed::yes(match node {
        LogicalPlan::Sort(mut sort) => {
            sort.expr = sorts(sort.expr, sort.input.schema())?;
            LogicalPlan::Sort(sort)
        }
        LogicalPlan::Distinct(Distinct::All(input)) if input.schema().fields().iter().any(|field| has_floats(field.data_type())) => {
            LogicalPlan::Distinct(Distinct::All(Arc::new(with_keys(input)?)))
        }
        LogicalPlan::Distinct(Distinct::On(mut on)) => {
            on.on_expr = named_keys(on.on_expr, on.input.schema())?;
            on.sort_expr = on.sort_expr.map(|by| sorts(by, on.input.schema())).transpose()?;
            LogicalPlan::Distinct(Distinct::On(on))
        }
        LogicalPlan::Aggregate(mut aggregate) => {
            // The schema stays: the keys have the names and the types of what they are of.
            aggregate.group_expr = named_keys(aggregate.group_expr, aggregate.input.schema())?;
            LogicalPlan::Aggregate(aggregate)
        }
        LogicalPlan::Join(mut join) => {
            let both = |(left, right)| Ok((key(left, join.left.schema())?, key(right, join.right.schema())?));
            join.on = std::mem::take(&mut join.on).into_iter().map(both).collect::<Result<_>>()?;
            LogicalPlan::Join(join)
        }
        other => return Ok(Transformed::no(other)),
    }))
}

/// Keys under the names of what they are of, within grouping sets as well.
fn named_keys(of: Vec<Expr>, schema: &DFSchema) -> Result<Vec<Expr>> {
    let named = NamePreserver::new_for_projection();
    let each = |e: Expr| match e {
        Expr::GroupingSet(GroupingSet::Rollup(of)) => Ok(Expr::GroupingSet(GroupingSet::Rollup(named_keys(of, schema)?))),
        Expr::GroupingSet(GroupingSet::Cube(of)) => Ok(Expr::GroupingSet(GroupingSet::Cube(named_keys(of, schema)?))),
        Expr::GroupingSet(GroupingSet::GroupingSets(sets)) => {
            let sets = sets.into_iter().map(|set| named_keys(set, schema)).collect::<Result<_>>()?;
            Ok(Expr::GroupingSet(GroupingSet::GroupingSets(sets)))
        }
        e => {
            let name = named.save(&e);
            Ok(name.restore(key(e, schema)?))
        }
    };
    of.into_iter().map(each).collect()
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;

    /// The rows of a query over zeros and NaN with their signs, as they are shown.
    async fn rows(context: &SessionContext, sql: &str) -> Vec<String> {
        let batches = context.sql(sql).await.unwrap().collect().await.unwrap();
        let text = pretty_format_batches(&batches).unwrap().to_string();
        text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.replace(['|', ' '], "")).collect()
    }

    #[tokio::test]
    async fn every_operator_sees_one_zero_and_one_nan() {
        let mut state = SessionStateBuilder::new().with_default_features().with_analyzer_rule(super::super::rule("floats", super::rewrite)).build();
        crate::register_functions(&mut state).unwrap();
        let context = SessionContext::new_with_state(state);
        // Rows 1 to 5: 0.0, -0.0, NaN, NaN with a sign, infinity.
        let f = "CASE n WHEN 1 THEN 0e0 WHEN 2 THEN -0e0 WHEN 3 THEN arrow_cast('NaN', 'Float64') WHEN 4 THEN -arrow_cast('NaN', 'Float64') ELSE arrow_cast('inf', 'Float64') END";
        let create = format!("CREATE TABLE t AS SELECT n, {f} AS f FROM (VALUES (1), (2), (3), (4), (5)) AS v (n)");
        context.sql(&create).await.unwrap().collect().await.unwrap();
        for (sql, expected) in [
            ("SELECT n FROM t WHERE f = 0 ORDER BY n", "1 2"),
            ("SELECT n FROM t WHERE f >= 'inf' ORDER BY n", "3 4 5"),
            ("SELECT n FROM t WHERE f IS NOT DISTINCT FROM -arrow_cast('NaN', 'Float64') ORDER BY n", "3 4"),
            ("SELECT n FROM t WHERE f IN (-0e0, arrow_cast('NaN', 'Float64')) ORDER BY n", "1 2 3 4"),
            ("SELECT n FROM t WHERE f BETWEEN 0 AND 1 ORDER BY n", "1 2"),
            ("SELECT n FROM t ORDER BY f, n DESC", "2 1 5 4 3"),
            ("SELECT count(*) FROM t GROUP BY f ORDER BY 1", "1 2 2"),
            ("SELECT count(*) FROM t GROUP BY GROUPING SETS ((f), ()) ORDER BY 1", "1 2 2 5"),
            ("SELECT count(DISTINCT f) FROM t", "3"),
            ("SELECT count(*) FROM (SELECT DISTINCT f FROM t) AS d", "3"),
            ("SELECT DISTINCT ON (f) n FROM t ORDER BY f, n", "1 5 3"),
            ("SELECT rank() OVER (ORDER BY f) FROM t ORDER BY n", "1 1 4 4 3"),
            ("SELECT a.n FROM t AS a JOIN t AS b ON a.f = b.f AND a.n < b.n ORDER BY 1", "1 3"),
            ("SELECT n FROM t WHERE f IN (SELECT -f FROM t WHERE n IN (1, 3)) ORDER BY n", "1 2 3 4"),
            ("SELECT CASE f WHEN 0 THEN 'zero' WHEN 'NaN' THEN 'nan' ELSE 'other' END FROM t ORDER BY n", "zero zero nan nan other"),
            ("SELECT n FROM t WHERE [f] = [0e0] ORDER BY n", "1 2"),
            ("SELECT f FROM t WHERE n = 2", "-0.0"),
            ("SELECT nullif(f, 1e0) FROM t WHERE n < 3 ORDER BY f, n", "0.0 -0.0"),
        ] {
            assert_eq!(rows(&context, sql).await.join(" "), expected, "{sql}");
        }
    }
}
