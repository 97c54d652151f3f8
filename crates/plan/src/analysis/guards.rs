//! Conditions of `CASE` that keep errors away.
//!
//! `CASE WHEN b <> 0 THEN a / b > 1 END` must not divide by zero. DataFusion writes a `CASE` of truths with AND and OR,
//! whose parts come in any order, and moves a comparison of a `CASE` with constants into its results. It does neither
//! to a `CASE` with a value before its first `WHEN`. So `CASE WHEN x` becomes `CASE true WHEN x` where a later part can
//! fail. All others stay as they are, because drives prune by AND and OR.
//!
//! `coalesce`, `nvl` and `nvl2` of truths become such a `CASE` likewise, as DataFusion itself writes them.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{BinaryExpr, Case, Cast, Expr, ExprSchemable, LogicalPlan, Operator, lit};

use crate::failing::{cast_can_fail, may_be_zero};
use crate::float_keys::FLOAT_KEY;
use crate::instants::{INSTANT, LENGTH};
use crate::masked_structs::MASKED;
use crate::opaque_values::OPAQUE;
use crate::rewriting::map_typed;

/// Functions without errors, whatever their arguments are.
const SAFE: [&str; 25] = [
    FLOAT_KEY,
    INSTANT,
    LENGTH,
    MASKED,
    OPAQUE,
    "btrim",
    "ceil",
    "character_length",
    "coalesce",
    "contains",
    "ends_with",
    "floor",
    "get_field",
    "isnan",
    "iszero",
    "lower",
    "ltrim",
    "nullif",
    "nvl",
    "nvl2",
    "octet_length",
    "rtrim",
    "starts_with",
    "strpos",
    "upper",
];

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, guarded)
}

fn guarded(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match e {
        Expr::Case(case) if needs_guard(&case, schema) => Transformed::yes(Expr::Case(Case { expr: Some(Box::new(lit(true))), ..case })),
        Expr::ScalarFunction(call) => match chosen(&call) {
            Some(case) if needs_guard(&case, schema) => Transformed::yes(Expr::Case(Case { expr: Some(Box::new(lit(true))), ..case })),
            _ => Transformed::no(Expr::ScalarFunction(call)),
        },
        other => Transformed::no(other),
    })
}

/// A choice of the first value that is not NULL, as a `CASE`.
fn chosen(call: &ScalarFunction) -> Option<Case> {
    let unless_null = |value: &Expr, then: &Expr| (Box::new(value.clone().is_not_null()), Box::new(then.clone()));
    let (when_then_expr, last) = match (call.name(), call.args.as_slice()) {
        ("coalesce" | "nvl", [first @ .., last]) if !first.is_empty() => (first.iter().map(|value| unless_null(value, value)).collect(), last),
        ("nvl2", [of, known, last]) => (vec![unless_null(of, known)], last),
        _ => return None,
    };
    Some(Case { expr: None, when_then_expr, else_expr: Some(Box::new(last.clone())) })
}

/// Whether a part that a condition keeps away can fail, or has another value each time that it is computed.
fn needs_guard(case: &Case, schema: &DFSchema) -> bool {
    let Case { expr: None, when_then_expr, else_expr } = case else { return false };
    // What has no columns is decided before the query runs, and leaves a plain condition that prunes.
    if when_then_expr.iter().all(|(when, _)| !when.any_column_refs() && !when.is_volatile()) {
        return false;
    }
    let results = || when_then_expr.iter().map(|(_, then)| then).chain(else_expr);
    let is_truth = || results().any(|result| matches!(result.get_type(schema), Ok(DataType::Boolean)));
    let later = || when_then_expr.iter().skip(1).map(|(when, _)| when);
    let first = || when_then_expr.iter().take(1).map(|(when, _)| when);
    later().any(|when| can_fail(when, schema)) || (is_truth() && (results().any(|result| can_fail(result, schema)) || first().any(|when| when.is_volatile())))
}

/// Whether to compute `e` can be an error, or gives another value each time.
fn can_fail(e: &Expr, schema: &DFSchema) -> bool {
    let mut found = false;
    let walked = e.apply(|e| {
        // What aggregates and windows compute is there already.
        if matches!(e, Expr::AggregateFunction(_) | Expr::WindowFunction(_)) {
            return Ok(TreeNodeRecursion::Jump);
        }
        found = found || fails_itself(e, schema);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.is_err() || found
}

fn fails_itself(e: &Expr, schema: &DFSchema) -> bool {
    let of = |e: &Expr| e.get_type(schema).unwrap_or(DataType::Null);
    match e {
        Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, right, .. }) => !of(e).is_floating() && may_be_zero(right),
        // Integers wrap around. Decimals and times do not.
        Expr::BinaryExpr(BinaryExpr { op: Operator::Plus | Operator::Minus | Operator::Multiply, .. }) => !of(e).is_floating() && !of(e).is_integer(),
        Expr::BinaryExpr(BinaryExpr {
            op: Operator::RegexMatch | Operator::RegexIMatch | Operator::RegexNotMatch | Operator::RegexNotIMatch, right, ..
        }) => right.as_literal().is_none(),
        Expr::Cast(Cast { expr, field }) => !matches!(**expr, Expr::Literal(..)) && cast_can_fail(&of(expr), field.data_type()),
        Expr::ScalarFunction(call) => !SAFE.contains(&call.name()),
        Expr::HigherOrderFunction(_) | Expr::Unnest(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::SessionContext;

    use super::*;

    async fn context() -> SessionContext {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT * FROM (VALUES (1, 0, '1'), (2, 5, 'x'), (3, -1, '25')) AS v (a, b, s)").await.unwrap();
        context.add_analyzer_rule(super::super::rule("guards", rewrite));
        context
    }

    #[tokio::test]
    async fn conditions_keep_errors_of_later_parts_away() {
        let context = context().await;
        for (expression, expected) in [
            ("CASE WHEN b <> 0 THEN a / b > 0 END", " false false"),
            ("CASE WHEN b = 0 THEN false ELSE a / b >= 0 END", "false true false"),
            ("CASE WHEN s ~ '^[0-9]+$' THEN CAST(s AS BIGINT) > 10 ELSE false END", "false false true"),
            ("CASE WHEN b >= 0 THEN sqrt(b) > 2 END", "false true "),
            ("CASE WHEN b = 0 THEN 'z' WHEN a / b >= 0 THEN 'p' ELSE 'n' END = 'p'", "false true false"),
            ("CASE WHEN b = 0 THEN true WHEN a / b >= 0 THEN false END", "true false "),
            ("coalesce(CASE WHEN b = 0 THEN false END, a / b >= 0)", "false true false"),
            ("nvl2(nullif(b = 0, true), a / b >= 0, true)", "true true false"),
        ] {
            let rows = context.sql(&format!("SELECT {expression} AS x FROM t ORDER BY a")).await.unwrap().collect().await.unwrap();
            let text = pretty_format_batches(&rows).unwrap().to_string();
            let got: Vec<&str> = text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.trim_matches(['|', ' '])).collect();
            assert_eq!(got.join(" "), expected, "{expression}");
        }
    }

    #[tokio::test]
    async fn conditions_that_keep_no_error_away_stay() {
        let context = context().await;
        for (condition, stays) in [
            ("CASE WHEN a > 1 THEN b > 2 ELSE b < 3 END", true),
            ("CASE WHEN a > 1 THEN b / 2 > 2 ELSE CAST(b AS DOUBLE) + 1 < 3 END", true),
            ("CASE WHEN a > 1 THEN a / b ELSE 0 END > 1", true),
            ("coalesce(a > 1, b > 1)", true),
            ("CASE WHEN a > 1 THEN CAST(s AS INT) > 2 END", false),
            ("CASE WHEN random() < 0.5 THEN a > 1 ELSE a < 2 END", false),
        ] {
            let plan = context.sql(&format!("SELECT a FROM t WHERE {condition}")).await.unwrap().into_optimized_plan().unwrap();
            let text = plan.display_indent().to_string();
            assert_eq!(!text.contains("CASE Boolean(true)"), stays, "{text}");
        }
    }
}
