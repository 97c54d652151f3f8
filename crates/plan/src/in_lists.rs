//! Conditions on one value by several `IN` lists, with SQL's three values.
//!
//! DataFusion merges `x NOT IN (1) OR x NOT IN (2)` into `x NOT IN ()`, which it takes for true; it is NULL where `x`
//! is. The same goes for `x IN (1) AND x IN (2)`, and for `x IN (1) AND x NOT IN (1, 2)`. This rule merges such lists
//! before, where nothing is left of them.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRewriter};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator, lit};
use datafusion::optimizer::AnalyzerRule;

use crate::named::map_whole;

/// See the module. It runs after the types are known.
#[derive(Debug, Default)]
pub struct InLists;

impl AnalyzerRule for InLists {
    fn name(&self) -> &'static str {
        "in_lists"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| map_whole(node, |e| e.rewrite(&mut Chains::default()))).data()
    }
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
    let mut lists = Vec::new();
    lists_of(&e, op, &mut lists);
    let pair = |one: &&Expr| lists.iter().any(|other| !std::ptr::eq(*one, *other) && exclude(one, other, op));
    if lists.len() < 2 || lists.len() > MAX_LISTS || !lists.iter().any(pair) {
        return Ok(Transformed::no(e));
    }
    let mut terms = Vec::new();
    chain(e, op, &mut terms);
    let mut at = 0;
    while at < terms.len() {
        if let Some(other) = (at + 1..terms.len()).find(|other| exclude(&terms[at], &terms[*other], op)) {
            let list = terms.swap_remove(other);
            if let Expr::InList(InList { expr, .. }) = list {
                terms[at] = by_null(*expr, op);
            }
        }
        at += 1;
    }
    Ok(Transformed::yes(balanced(terms, op)))
}

/// The terms as a tree that is no deeper than it must be.
fn balanced(mut terms: Vec<Expr>, op: Operator) -> Expr {
    while terms.len() > 1 {
        let mut pairs = Vec::with_capacity(terms.len().div_ceil(2));
        let mut rest = terms.into_iter();
        while let Some(left) = rest.next() {
            pairs.push(match rest.next() {
                Some(right) => Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) }),
                None => left,
            });
        }
        terms = pairs;
    }
    terms.pop().unwrap_or_else(|| lit(op == Operator::And))
}

fn lists_of<'e>(e: &'e Expr, of: Operator, lists: &mut Vec<&'e Expr>) {
    match e {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if *op == of => {
            lists_of(left, of, lists);
            lists_of(right, of, lists);
        }
        Expr::InList(_) => lists.push(e),
        _ => {}
    }
}

fn chain(e: Expr, of: Operator, terms: &mut Vec<Expr>) {
    match e {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if op == of => {
            chain(*left, of, terms);
            chain(*right, of, terms);
        }
        other => terms.push(other),
    }
}

/// What a pair of lists that exclude each other is: false under AND and true under OR, and NULL where `x` is.
fn by_null(x: Expr, op: Operator) -> Expr {
    let (is, value) = (if op == Operator::And { x.is_null() } else { x.is_not_null() }, lit(ScalarValue::Boolean(None)));
    Expr::BinaryExpr(BinaryExpr { left: Box::new(is), op, right: Box::new(value) })
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
