//! Comparisons of times in a coarse unit with a constant in a finer one. Of two columns see [`super::time_pairs`].
//!
//! DataFusion compares a column of seconds with `TIMESTAMP '2024-01-01 00:00:00.5'` by casting the constant to
//! seconds. That cuts it, and makes the column equal to it. This rule compares with the last whole second before, by
//! the operator that gives the right answer, and decides what no whole second can be.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::{conjunction, disjunction};
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Operator, Volatility, binary_expr, lit};
use datafusion::optimizer::simplify_expressions::{ExprSimplifier, SimplifyExpressions};

use crate::rewriting::{decided, input_columns, map_expressions, map_typed};
use crate::wrapped_rules::{Rule, wrapped};

pub(super) fn rewrite(plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
    let options = Arc::new(config.clone());
    map_typed(plan, |e, schema| compared(e, schema, &options))
}

/// `rules`, the one that drops casts from comparisons after this one: a filter that moved below a union or a projection
/// compares a coarser column than it did before.
pub(super) fn before_simplifying(rules: Vec<Rule>) -> Vec<Rule> {
    wrapped(rules, &SimplifyExpressions::new(), |rule, plan, config| {
        let is_cast = |e: &Expr| matches!(e, Expr::Cast(cast) if matches!(cast.field.data_type(), DataType::Timestamp(..)));
        if !plan.expressions().iter().any(|e| e.exists(|e| Ok(is_cast(e))).unwrap_or(false)) {
            return rule.rewrite(plan, config);
        }
        let (schema, options) = (input_columns(&plan), config.options());
        let compared = map_expressions(plan, |e| compared(e, &schema, &options))?;
        let simplified = rule.rewrite(compared.data, config)?;
        Ok(Transformed::new_transformed(simplified.data, simplified.transformed || compared.transformed))
    })
}

fn compared(e: Expr, schema: &DFSchema, options: &Arc<ConfigOptions>) -> Result<Transformed<Expr>> {
    match e {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => Ok(match either_way(&left, op, &right, schema, options)? {
            Some(new) => Transformed::yes(new),
            None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
        }),
        Expr::Between(between) => as_two(between, schema, options),
        Expr::InList(list) => without_fractions(list, schema, options),
        other => Ok(Transformed::no(other)),
    }
}

/// The time below a cast to a finer unit, and how many of the finer make one of it.
fn coarse<'e>(e: &'e Expr, schema: &DFSchema) -> Result<Option<(&'e Expr, i64)>> {
    let Expr::Cast(Cast { expr, field }) = e else { return Ok(None) };
    let (DataType::Timestamp(from, _), DataType::Timestamp(to, _)) = (expr.get_type(schema)?, field.data_type()) else { return Ok(None) };
    let (from, to) = (per_second(from), per_second(*to));
    Ok((from < to && !is_constant(expr)).then(|| (expr.as_ref(), to / from)))
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// Whether `e` is written as one value for every row and every run.
fn is_constant(e: &Expr) -> bool {
    let varies = e.exists(|e| {
        Ok(match e {
            Expr::ScalarFunction(call) => call.func.signature().volatility != Volatility::Immutable,
            Expr::Literal(..) | Expr::Alias(_) | Expr::BinaryExpr(_) | Expr::Cast(_) | Expr::TryCast(_) | Expr::Negative(_) => false,
            _ => true,
        })
    });
    !varies.unwrap_or(true)
}

/// The value of a time that is the same for all rows, counted in its unit. An error in it is left to the execution.
///
/// A call may be a constant although it names columns, as `coalesce(TIMESTAMP '...', c)`. DataFusion simplifies it and
/// casts it in one rule, so this looks at the outcome.
fn value(e: &Expr, schema: &DFSchema, options: &Arc<ConfigOptions>) -> Option<Option<i64>> {
    if !e.exists(|e| Ok(matches!(e, Expr::Literal(..)))).unwrap_or(false) || e.is_volatile() {
        return None;
    }
    let Some(Expr::Literal(value, _)) = simplified(e, schema, options) else { return None };
    match value {
        ScalarValue::TimestampSecond(at, _)
        | ScalarValue::TimestampMillisecond(at, _)
        | ScalarValue::TimestampMicrosecond(at, _)
        | ScalarValue::TimestampNanosecond(at, _) => Some(at),
        _ => None,
    }
}

/// What DataFusion's simplifier makes of `e`, which can't fail in it.
fn simplified(e: &Expr, schema: &DFSchema, options: &Arc<ConfigOptions>) -> Option<Expr> {
    // A table may have thousands of columns, and a list thousands of constants.
    let schema = if is_constant(e) { DFSchema::empty() } else { schema.clone() };
    let context = SimplifyContext::builder().with_config_options(Arc::clone(options)).with_schema(Arc::new(schema)).build();
    ExprSimplifier::new(context).simplify(e.clone()).ok()
}

/// Whether `e` is a call or a `CASE` with a cast of a time in it.
fn may_be_cast(e: &Expr) -> bool {
    let of_time = |e: &Expr| matches!(e, Expr::Cast(cast) if matches!(cast.field.data_type(), DataType::Timestamp(..)));
    matches!(e, Expr::ScalarFunction(_) | Expr::Case(_)) && !e.is_volatile() && e.exists(|e| Ok(of_time(e))).unwrap_or(false)
}

/// As [`with_constant`], whichever side is the constant.
fn either_way(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema, options: &Arc<ConfigOptions>) -> Result<Option<Expr>> {
    if let Some(new) = with_constant(left, op, right, schema, options)? {
        return Ok(Some(new));
    }
    op.swap().map_or(Ok(None), |swapped| with_constant(right, swapped, left, schema, options))
}

/// `left op right`, where `left` is coarse and `right` a constant that is not whole in its unit.
fn with_constant(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema, options: &Arc<ConfigOptions>) -> Result<Option<Expr>> {
    let direct = coarse(left, schema)?;
    if direct.is_none() && !may_be_cast(left) {
        return Ok(None);
    }
    let Some(Some(at)) = value(right, schema, options) else { return Ok(None) };
    // As with constants: `coalesce(NULL, c)` is a cast of the column once it is simplified.
    let shown = if direct.is_none() { simplified(left, schema, options) } else { None };
    let shown = shown.as_ref().map_or(Ok(None), |shown| coarse(shown, schema))?;
    let Some((time, ratio)) = direct.or(shown) else { return Ok(None) };
    if at % ratio == 0 {
        return Ok(None);
    }
    let of = time.get_type(schema)?;
    // The cast to the coarse unit cuts towards zero, which is up for times before 1970.
    let floor = ScalarValue::Int64(Some(at.div_euclid(ratio))).cast_to(&of)?;
    let compare = |op: Operator| binary_expr(time.clone(), op, lit(floor.clone()));
    Ok(match op {
        Operator::Eq => Some(decided(time.clone(), false)),
        Operator::NotEq => Some(decided(time.clone(), true)),
        Operator::IsDistinctFrom => Some(lit(true)),
        Operator::IsNotDistinctFrom => Some(lit(false)),
        Operator::Lt | Operator::LtEq => Some(compare(Operator::LtEq)),
        Operator::Gt | Operator::GtEq => Some(compare(Operator::Gt)),
        _ => None,
    })
}

/// `BETWEEN` as its two comparisons, if one of them has to change.
fn as_two(between: Between, schema: &DFSchema, options: &Arc<ConfigOptions>) -> Result<Transformed<Expr>> {
    let (from, to) = if between.negated { (Operator::Lt, Operator::Gt) } else { (Operator::GtEq, Operator::LtEq) };
    let low = either_way(&between.expr, from, &between.low, schema, options)?;
    let high = either_way(&between.expr, to, &between.high, schema, options)?;
    if (low.is_none() && high.is_none()) || between.expr.is_volatile() {
        return Ok(Transformed::no(Expr::Between(between)));
    }
    let Between { expr, negated, low: least, high: most } = between;
    let plain = |op: Operator, bound: Box<Expr>| binary_expr(expr.as_ref().clone(), op, *bound);
    let (low, high) = (low.unwrap_or_else(|| plain(from, least)), high.unwrap_or_else(|| plain(to, most)));
    Ok(Transformed::yes(if negated { low.or(high) } else { low.and(high) }))
}

/// A list without the constants that no whole unit equals.
fn without_fractions(list: InList, schema: &DFSchema, options: &Arc<ConfigOptions>) -> Result<Transformed<Expr>> {
    let Some((time, ratio)) = coarse(&list.expr, schema)? else { return of_columns(list, schema, options) };
    let time = time.clone();
    let whole = |e: &Expr| !matches!(value(e, schema, options), Some(Some(at)) if at % ratio != 0);
    let before = list.list.len();
    let InList { expr, list, negated } = list;
    let kept: Vec<Expr> = list.into_iter().filter(whole).collect();
    if kept.is_empty() {
        return Ok(Transformed::yes(decided(time, negated)));
    }
    let changed = kept.len() < before;
    Ok(Transformed::new_transformed(Expr::InList(InList { expr, list: kept, negated }), changed))
}

/// A constant in a list of columns, as comparisons with each, if one of them has to change.
fn of_columns(list: InList, schema: &DFSchema, options: &Arc<ConfigOptions>) -> Result<Transformed<Expr>> {
    let op = if list.negated { Operator::NotEq } else { Operator::Eq };
    let changed = list.list.iter().map(|e| with_constant(e, op, &list.expr, schema, options)).collect::<Result<Vec<_>>>()?;
    if changed.iter().all(Option::is_none) {
        return Ok(Transformed::no(Expr::InList(list)));
    }
    let InList { expr, list, negated } = list;
    let compared = changed.into_iter().zip(list).map(|(new, e)| new.unwrap_or_else(|| binary_expr(expr.as_ref().clone(), op, e)));
    let all = if negated { conjunction(compared) } else { disjunction(compared) };
    Ok(Transformed::yes(all.unwrap_or_else(|| lit(negated))))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;

    use super::*;

    /// The rows of `t` for which `condition` is true, and for which it is NULL, by their number.
    async fn holds(context: &SessionContext, condition: &str) -> (Vec<String>, Vec<String>) {
        let mut found = Vec::new();
        for sql in [
            format!("SELECT n FROM t WHERE {condition} ORDER BY n"),
            format!("SELECT n FROM (SELECT n, {condition} AS c FROM t) AS u WHERE c IS NULL ORDER BY n"),
        ] {
            let rows = context.sql(&sql).await.unwrap().collect().await.unwrap();
            let text = pretty_format_batches(&rows).unwrap().to_string();
            found.push(text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.trim_matches(['|', ' ']).to_owned()).collect());
        }
        let nulls = found.pop().unwrap();
        (found.pop().unwrap(), nulls)
    }

    #[tokio::test]
    async fn constant_between_two_units_equals_neither() {
        let state = SessionStateBuilder::new().with_default_features().with_analyzer_rule(super::super::rule("time_units", rewrite)).build();
        let context = SessionContext::new_with_state(state);
        // Rows 1 to 4: a second before 1970, 1970, a second after, NULL.
        for (unit, one) in [("s", 1), ("ms", 1_000), ("us", 1_000_000)] {
            let rows = format!("(VALUES (1, -{one}), (2, 0), (3, {one}), (4, NULL)) AS v (n, x)");
            let create = format!("CREATE OR REPLACE TABLE t AS SELECT n, arrow_cast(CAST(x AS BIGINT), 'Timestamp({unit})') AS at FROM {rows}");
            context.sql(&create).await.unwrap().collect().await.unwrap();
            let before = "TIMESTAMP '1969-12-31 23:59:59.9999999'";
            let after = "to_timestamp('1970-01-01 00:00:00.0000001')";
            for (condition, rows, null) in [
                (format!("at = {after}"), "", "4"),
                (format!("{after} = at"), "", "4"),
                (format!("at <> {after}"), "123", "4"),
                (format!("at < {after}"), "12", "4"),
                (format!("at <= {after}"), "12", "4"),
                (format!("at > {after}"), "3", "4"),
                (format!("{after} <= at"), "3", "4"),
                (format!("at < {before}"), "1", "4"),
                (format!("at >= {before}"), "23", "4"),
                (format!("at IS DISTINCT FROM {before}"), "1234", ""),
                (format!("at IS NOT DISTINCT FROM {before}"), "", ""),
                (format!("at BETWEEN {before} AND {after}"), "2", "4"),
                (format!("at NOT BETWEEN {before} AND {after}"), "13", "4"),
                (format!("{after} BETWEEN at AND TIMESTAMP '1970-01-02'"), "12", "4"),
                (format!("{after} BETWEEN TIMESTAMP '1960-01-01' AND at"), "3", "4"),
                (format!("{before} NOT BETWEEN at AND at"), "123", "4"),
                (format!("{after} IN (at, TIMESTAMP '1970-01-01')"), "", "4"),
                (format!("{before} NOT IN (at, at)"), "123", "4"),
                (format!("at IN ({before}, TIMESTAMP '1970-01-01', {after})"), "2", "4"),
                (format!("at NOT IN ({before}, {after})"), "123", "4"),
                (format!("at IN ({before}, NULL)"), "", "1234"),
                (format!("coalesce({after}, at) = at"), "", "4"),
                (format!("at < CASE WHEN true THEN {after} ELSE at END"), "12", "4"),
                (format!("at IN (coalesce({after}, at), nullif({before}, NULL))"), "", "4"),
                (format!("coalesce(CAST(NULL AS TIMESTAMP), at) = {after}"), "", "4"),
                (format!("CASE WHEN true THEN CAST(at AS TIMESTAMP) ELSE {after} END < {after}"), "12", "4"),
                ("at = TIMESTAMP '1970-01-01'".to_owned(), "2", "4"),
                ("at = NULL".to_owned(), "", "1234"),
            ] {
                let (found, nulls) = holds(&context, &condition).await;
                assert_eq!((found.concat().as_str(), nulls.concat().as_str()), (rows, null), "{unit}: {condition}");
            }
        }
    }
}
