//! Conditions on one value by several `IN` lists, with SQL's three values.
//!
//! DataFusion merges `x NOT IN (1) OR x NOT IN (2)` into `x NOT IN ()`, which it takes for true; it is NULL where `x`
//! is. The same goes for `x IN (1) AND x IN (2)`, and for `x IN (1) AND x NOT IN (1, 2)`. This rule merges such lists
//! before, where nothing is left of them.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRewriter};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::utils::{split_binary, split_binary_owned};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator, binary_expr, lit};

use crate::rewriting::{decided, map_whole, tree};

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| map_whole(node, |e| e.rewrite(&mut Chains::default()))).data()
}

/// Looks at each chain once, from its topmost operator.
#[derive(Default)]
struct Chains {
    /// The operators from the root to here; none for what is not AND or OR.
    above: Vec<Option<Operator>>,
}

impl TreeNodeRewriter for Chains {
    type Node = Expr;

    fn f_down(&mut self, e: Expr) -> Result<Transformed<Expr>> {
        self.above.push(match &e {
            Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or), .. }) => Some(*op),
            _ => None,
        });
        Ok(Transformed::no(e))
    }

    fn f_up(&mut self, e: Expr) -> Result<Transformed<Expr>> {
        let own = self.above.pop().flatten();
        if own.is_none() || self.above.last() == Some(&own) { Ok(Transformed::no(e)) } else { merged(e) }
    }
}

/// The most lists of one chain that are compared with each other.
const MAX_LISTS: usize = 1_000;

/// `e`, a chain of one operator, with the pairs of lists in it that exclude each other as what they are for NULL.
fn merged(e: Expr) -> Result<Transformed<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or), .. }) = &e else { return Ok(Transformed::no(e)) };
    let op = *op;
    let lists: Vec<&Expr> = split_binary(&e, op).into_iter().filter(|term| matches!(term, Expr::InList(_))).collect();
    let pair = |one: &&Expr| lists.iter().any(|other| !std::ptr::eq(*one, *other) && exclude(one, other, op));
    if lists.len() < 2 || lists.len() > MAX_LISTS || !lists.iter().any(pair) {
        return Ok(Transformed::no(e));
    }
    let mut terms = split_binary_owned(e, op);
    let mut at = 0;
    while at < terms.len() {
        if let Some(other) = (at + 1..terms.len()).find(|other| exclude(&terms[at], &terms[*other], op)) {
            let list = terms.swap_remove(other);
            if let Expr::InList(InList { expr, .. }) = list {
                // False under AND and true under OR.
                terms[at] = decided(*expr, op == Operator::Or);
            }
        }
        at += 1;
    }
    let joined = tree(terms, |left, right| binary_expr(left, op, right));
    Ok(Transformed::yes(joined.unwrap_or_else(|| lit(op == Operator::And))))
}

/// Whether no value is in what both lists allow (AND), or none is in what both forbid (OR).
fn exclude(one: &Expr, other: &Expr, op: Operator) -> bool {
    let (Expr::InList(one), Expr::InList(other)) = (one, other) else { return false };
    if one.expr != other.expr || one.expr.is_volatile() {
        return false;
    }
    let (Some(a), Some(b)) = (values(one), values(other)) else { return false };
    let disjoint = || a.iter().all(|value| !b.contains(value));
    match (op, one.negated, other.negated) {
        (Operator::And, false, false) | (Operator::Or, true, true) => disjoint(),
        (Operator::And, false, true) => a.iter().all(|value| b.contains(value)),
        (Operator::And, true, false) => b.iter().all(|value| a.contains(value)),
        (Operator::Or, true, false) => a.iter().all(|value| b.contains(value)),
        (Operator::Or, false, true) => b.iter().all(|value| a.contains(value)),
        _ => false,
    }
}

/// The values of a list of literals that are not NULL.
fn values(list: &InList) -> Option<Vec<&ScalarValue>> {
    list.list
        .iter()
        .map(|e| match e {
            Expr::Literal(value, _) if !value.is_null() => Some(value),
            _ => None,
        })
        .collect()
}
