//! Conditions on one value by several `IN` lists, with SQL's three values.
//!
//! DataFusion merges lists over one value. From `x IN (1) AND x IN (2)` it makes `x IN ()`, which it takes for false,
//! and from `x NOT IN (1) OR x NOT IN (2)` it makes `x NOT IN ()`, true. Both are NULL where `x` is. It merges lists
//! that it makes itself as well: from `x = 1 OR x = 2`, from constants that it computes, and from what stands below
//! casts. It compares the values of two lists as they are written: NULL equals NULL, and a column equals nothing else.
//! `x IN (1, 2) AND x NOT IN (1, NULL)` becomes `x IN (2)`, and `x IN (k, 1) AND x IN (2, 3)` is false.
//!
//! This rule first takes all but constants out of lists: `x IN (1, k, NULL)` becomes `x IN (1) OR x = k OR NULL`. It
//! then writes such a list so that it is NULL for NULL whatever becomes of it within:
//! `(x IN (1) OR x IS NULL) AND (x IS NOT NULL OR NULL)`. Lists whose merging changes nothing stay as they are: those
//! that allow, below `OR`, and those that forbid, below `AND`. A condition need not tell false from NULL, so in it only
//! lists that forbid count.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Operator, TryCast, binary_expr, lit};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

use crate::opaque_values::opaque;
use crate::rewriting::{input_columns, map_typed, map_whole, tree};

pub(super) fn rewrite(plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
    let constants = ExprSimplifier::new(SimplifyContext::builder().with_config_options(Arc::new(config.clone())).build());
    let plan = map_typed(plan, |e, _| Ok(of_constants(e, &constants)))?;
    plan.transform_up_with_subqueries(|node| {
        let schema = input_columns(&node);
        let is_condition = matches!(node, LogicalPlan::Filter(_) | LogicalPlan::Join(_));
        map_whole(node, |e| within(e, is_condition, &schema))
    })
    .data()
}

/// A list of constants, and what it had besides as comparisons of their own.
fn of_constants(e: Expr, constants: &ExprSimplifier) -> Transformed<Expr> {
    let Expr::InList(InList { expr, list, negated }) = e else { return Transformed::no(e) };
    if list.iter().all(is_known) {
        return Transformed::no(Expr::InList(InList { expr, list, negated }));
    }
    let of_parts = |list| Expr::InList(InList { expr: expr.clone(), list, negated });
    if expr.is_volatile() || list.iter().any(Expr::is_volatile) {
        return Transformed::yes(opaque(of_parts(list)));
    }
    // An error in a constant is left to the execution.
    let list = list.into_iter().map(|e| if is_known(&e) || !is_constant(&e) { e } else { constants.simplify(e.clone()).unwrap_or(e) });
    let (known, others): (Vec<_>, Vec<_>) = list.partition(is_known);
    let (nulls, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|e| e.as_literal().is_some_and(ScalarValue::is_null));
    let (equal, join): (_, fn(Expr, Expr) -> Expr) = if negated { (Operator::NotEq, Expr::and) } else { (Operator::Eq, Expr::or) };
    let list = (!known.is_empty()).then(|| of_parts(known));
    let compared = others.into_iter().map(|e| binary_expr(expr.as_ref().clone(), equal, e));
    let null = (!nulls.is_empty()).then(|| lit(ScalarValue::Boolean(None)));
    let parts = list.into_iter().chain(compared).chain(null).collect();
    Transformed::yes(tree(parts, join).unwrap_or_else(|| lit(negated)))
}

/// Whether `e` is a constant other than NULL.
fn is_known(e: &Expr) -> bool {
    e.as_literal().is_some_and(|value| !value.is_null())
}

/// `e` with its lists kept apart. `is_condition` says that false and NULL are the same in its place.
fn within(e: Expr, is_condition: bool, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !is_connective(&e) {
        return e.map_children(|child| within(child, false, schema));
    }
    let mut lists = HashMap::new();
    collect(&e, Place { holds: true, and: false, or: false }, &mut lists);
    let merges = |lists: &Lists| lists.count > 1 && (lists.forbid_below_or || lists.allow_below_and && !is_condition);
    let apart: HashSet<Expr> =
        lists.into_iter().filter(|(value, lists)| merges(lists) && value.nullable(schema).unwrap_or(true)).map(|(value, _)| value.clone()).collect();
    connected(e, &apart, schema)
}

/// The lists over one value.
#[derive(Default)]
struct Lists {
    count: usize,
    allow_below_and: bool,
    forbid_below_or: bool,
}

/// Where a list stands: whether it allows, and what joins it with others. `NOT` turns all of it around.
#[derive(Clone, Copy)]
struct Place {
    holds: bool,
    and: bool,
    or: bool,
}

/// The lists of a tree of AND, OR and NOT, by the values that they are about.
fn collect<'e>(e: &'e Expr, place: Place, lists: &mut HashMap<&'e Expr, Lists>) {
    match e {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }) => {
            let is_and = (*op == Operator::And) == place.holds;
            let below = Place { and: place.and || is_and, or: place.or || !is_and, ..place };
            collect(left, below, lists);
            collect(right, below, lists);
        }
        Expr::Not(inner) => collect(inner, Place { holds: !place.holds, ..place }, lists),
        other => {
            if let Some((value, negated)) = listed(other) {
                let lists = lists.entry(value).or_default();
                let allows = place.holds != negated;
                lists.count += 1;
                lists.allow_below_and |= allows && place.and;
                lists.forbid_below_or |= !allows && place.or;
            }
        }
    }
}

/// A tree of AND, OR and NOT, with the lists over the values `apart` kept apart.
fn connected(e: Expr, apart: &HashSet<Expr>, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if is_connective(&e) {
        return e.map_children(|child| connected(child, apart, schema));
    }
    if let Some((value, _)) = listed(&e)
        && apart.contains(value)
    {
        return Ok(Transformed::yes(null_for_null(e)));
    }
    within(e, false, schema)
}

fn is_connective(e: &Expr) -> bool {
    matches!(e, Expr::Not(_) | Expr::BinaryExpr(BinaryExpr { op: Operator::And | Operator::Or, .. }))
}

/// What a comparison with constants is about, below its casts, and whether it forbids them.
fn listed(e: &Expr) -> Option<(&Expr, bool)> {
    let (value, negated) = match e {
        Expr::InList(InList { expr, list, negated }) if list.iter().all(is_constant) => (expr.as_ref(), *negated),
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Eq | Operator::NotEq), right }) => {
            let value = if is_constant(right) { left } else { right };
            let other = if is_constant(right) { right } else { left };
            if !is_constant(other) {
                return None;
            }
            (value.as_ref(), *op == Operator::NotEq)
        }
        _ => return None,
    };
    let mut value = value;
    while let Expr::Cast(Cast { expr, .. }) | Expr::TryCast(TryCast { expr, .. }) = value {
        value = expr;
    }
    (!is_constant(value) && !value.is_volatile()).then_some((value, negated))
}

fn is_constant(e: &Expr) -> bool {
    let varies = |e: &Expr| matches!(e, Expr::Column(_) | Expr::OuterReferenceColumn(..) | Expr::ScalarSubquery(_) | Expr::Placeholder(_));
    !e.is_volatile() && !e.exists(|e| Ok(varies(e))).unwrap_or(true)
}

/// A comparison of a value with constants, in a form that stays NULL where the value is.
fn null_for_null(e: Expr) -> Expr {
    let value = match &e {
        Expr::InList(InList { expr, .. }) => expr.as_ref().clone(),
        Expr::BinaryExpr(BinaryExpr { left, right, .. }) => if is_constant(right) { left } else { right }.as_ref().clone(),
        _ => return e,
    };
    e.or(value.clone().is_null()).and(value.is_not_null().or(lit(ScalarValue::Boolean(None))))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    /// The values of a condition over NULL, 1, 2, 3 and 4, which DataFusion computes from what the rule made of it.
    async fn values(condition: &str) -> Vec<Option<bool>> {
        use datafusion::arrow::array::AsArray;
        let context = SessionContext::new();
        context.add_analyzer_rule(super::super::rule("in_lists", rewrite));
        let query = format!("SELECT {condition} AS b, k FROM (VALUES (NULL, 0), (1, 1), (2, 2), (3, 3), (4, 4)) t (k, i) ORDER BY i");
        let batches = context.sql(&query).await.unwrap().collect().await.unwrap();
        batches.iter().flat_map(|batch| batch.column(0).as_boolean().iter().collect::<Vec<_>>()).collect()
    }

    #[tokio::test]
    async fn lists_over_one_value_are_null_for_null() {
        let (yes, no) = (Some(true), Some(false));
        for (condition, expected) in [
            ("k IN (1) AND k IN (2)", [None, no, no, no, no]),
            ("k NOT IN (1) OR k NOT IN (2)", [None, yes, yes, yes, yes]),
            ("(k = 1 OR k = 2) AND (k = 3 OR k = 4)", [None, no, no, no, no]),
            ("NOT (k IN (1, 2) AND k IN (2, 3) AND k IN (1, 3))", [None, yes, yes, yes, yes]),
            ("k IN (1, 2) AND k NOT IN (1, 2)", [None, no, no, no, no]),
            ("k IN (1 + 1, 1) AND CAST(k AS BIGINT) IN (3, 4)", [None, no, no, no, no]),
            ("k IN (1, NULL) AND k IN (2)", [None, no, None, no, no]),
            ("k NOT IN (1, NULL) OR k NOT IN (2)", [None, yes, None, yes, yes]),
            ("k IN (1, 2) OR k IN (2, 3)", [None, yes, yes, yes, no]),
            ("k IN (1, 2, 3, 4) AND k NOT IN (1, NULL)", [None, no, None, None, None]),
            ("NOT (k IN (1, 2, 3, 4) AND k NOT IN (1, nullif(1, 1)))", [None, yes, None, None, None]),
            ("(k = 1 OR k = 2) AND k NOT IN (2, NULL)", [None, None, no, no, no]),
            ("k IN (i, 5, 6, 7, 8) AND k IN (1, 9, 10, 11, 12)", [None, yes, no, no, no]),
            ("k NOT IN (i, 5, 6, 7, 8) OR k NOT IN (1, 9, 10, 11, 12)", [None, no, yes, yes, yes]),
            ("k IN (i, 3, 4, 5, 6) AND k NOT IN (i)", [None, no, no, no, no]),
            ("3 IN (k, i) AND 3 IN (k, 5)", [None, no, no, yes, no]),
            ("k IN (NULL)", [None, None, None, None, None]),
            ("coalesce(k IN (1) AND k IN (2), true)", [yes, no, no, no, no]),
            ("(k <> 1 OR k <> 2) IS NULL", [yes, no, no, no, no]),
        ] {
            assert_eq!(values(condition).await, expected, "{condition}");
        }
    }

    #[tokio::test]
    async fn lists_whose_merging_is_right_stay() {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t (k INT)").await.unwrap();
        let unchanged = |plan: LogicalPlan| rewrite(plan.clone(), &ConfigOptions::default()).unwrap() == plan;
        for (query, stays) in [
            ("SELECT k FROM t WHERE k IN (1) AND k IN (2)", true),
            ("SELECT k FROM t WHERE k NOT IN (1) AND k NOT IN (2)", true),
            ("SELECT k IN (1) OR k IN (2) FROM t", true),
            ("SELECT CASE WHEN k = 1 THEN 2 WHEN k = 2 THEN 1 END FROM t", true),
            ("SELECT k FROM t WHERE k NOT IN (1) OR k NOT IN (2)", false),
            ("SELECT k IN (1) AND k IN (2) FROM t", false),
        ] {
            let plan = context.state().create_logical_plan(query).await.unwrap();
            assert_eq!(unchanged(plan), stays, "{query}");
        }
    }
}
