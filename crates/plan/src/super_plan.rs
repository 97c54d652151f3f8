//! What a super-plan contains: its scans, the work that is left to its operators, and operators that only follow
//! another one.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};
use skytether_common::plan_words::FOLLOWS;

use crate::classify::operator_name;
use crate::node::DriveScan;
use crate::partial::is_merge;

/// The work that is left to `node` of a super-plan, where the drives do most of it or where the cut put the node there;
/// `None` for all others.
#[must_use]
pub fn remainder(node: &LogicalPlan) -> Option<&'static str> {
    match node {
        LogicalPlan::Aggregate(aggregate) => {
            let merges = aggregate.aggr_expr.iter().any(|e| matches!(e.clone().unalias(), Expr::AggregateFunction(call) if is_merge(&call.func)));
            let groups = aggregate.group_expr.iter().flat_map(Expr::column_refs).any(|c| c.relation.is_none() && is_group(&c.name));
            (merges || groups).then_some("it merges what the drives have aggregated, each its own rows")
        }
        LogicalPlan::Projection(p) => {
            (remainder(&p.input).is_some() && matches!(*p.input, LogicalPlan::Aggregate(_))).then_some("it gives merged columns their names back")
        }
        LogicalPlan::Limit(_) => {
            ends_in(node, |plan| matches!(plan, LogicalPlan::Limit(_))).then_some("of the rows that the drives give, each its first ones, it takes the first")
        }
        LogicalPlan::Sort(sort) => ends_in(node, |plan| matches!(plan, LogicalPlan::Sort(_))).then_some(match sort.fetch {
            Some(_) => "of the first rows of each drive it takes the first of all",
            None => "it merges the drives' rows, which come sorted",
        }),
        LogicalPlan::Union(_) => Some("its branches go down one by one, and what they give comes together here"),
        _ => None,
    }
}

/// Why an operator over `input`, which ends on the host, is there as well. The reason names the lowest operator on the
/// way to the drives, and whether it stayed there or finishes the work of the drives.
#[must_use]
pub fn follows(input: &LogicalPlan) -> String {
    let mut at = input;
    loop {
        let finishes = match at {
            LogicalPlan::Aggregate(_) => remainder(at).map(|_| "the merge of the drives' states"),
            LogicalPlan::Sort(_) => remainder(at).map(|_| "the merge of the drives' sorted rows"),
            LogicalPlan::Limit(_) => remainder(at).map(|_| "the limit over the rows of all drives"),
            _ => None,
        };
        if let Some(what) = finishes {
            return format!("{FOLLOWS}{what}");
        }
        match at.inputs().as_slice() {
            [input] if DriveScan::of(input).is_none() && !input.inputs().is_empty() => at = input,
            _ => break,
        }
    }
    let what = match at {
        LogicalPlan::Join(_) => "join".to_owned(),
        LogicalPlan::Union(_) => "union".to_owned(),
        LogicalPlan::Window(_) => "window".to_owned(),
        other => operator_name(other).to_lowercase(),
    };
    format!("{FOLLOWS}the {what} on the host")
}

/// A group's name in what drives send: `__g0`.
fn is_group(name: &str) -> bool {
    name.strip_prefix("__g").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a sub-plan right below `node`, or below the union there, is of such a `kind` at its root.
fn ends_in(node: &LogicalPlan, kind: fn(&LogicalPlan) -> bool) -> bool {
    node.inputs().into_iter().any(|input| match (DriveScan::of(input), input) {
        (Some(scan), _) => kind(&scan.sub_plan),
        // A union's branches may be renamed.
        (None, LogicalPlan::Union(_) | LogicalPlan::Projection(_)) => ends_in(input, kind),
        _ => false,
    })
}

/// The scans in a super-plan, in the order of its text; also those in subqueries.
#[must_use]
pub fn scans(plan: &LogicalPlan) -> Vec<DriveScan> {
    let mut found = vec![];
    // The closure never fails, so neither does the walk.
    let _ = plan.apply_with_subqueries(|node| {
        found.extend(DriveScan::of(node).cloned());
        Ok(TreeNodeRecursion::Continue)
    });
    found
}
