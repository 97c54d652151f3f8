//! Keys of grouping sets that share a name.
//!
//! A cast has the name of its operand, so `CUBE (k, CAST(k AS BIGINT))` makes two columns of one name, and what is
//! above them may read either. DataFusion refuses this in a plain `GROUP BY`, and does not look into grouping sets.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::utils::grouping_set_to_exprlist;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};
use skytether_common::Error;

use crate::error::to_datafusion;

/// `plan` as it is.
///
/// # Errors
/// `Invalid` where two keys of grouping sets have the same name.
pub(super) fn check(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node {
            within(aggregate)?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(plan)
}

fn within(aggregate: &Aggregate) -> Result<()> {
    if !matches!(aggregate.group_expr.as_slice(), [Expr::GroupingSet(_)]) {
        return Ok(());
    }
    let mut named: HashMap<String, &Expr> = HashMap::new();
    for key in grouping_set_to_exprlist(&aggregate.group_expr)? {
        match named.entry(key.schema_name().to_string()) {
            Entry::Occupied(other) if *other.get() != key => {
                return Err(to_datafusion(Error::invalid(format!(
                    "{} and {key} are two keys of grouping sets with one name: compute one of them with a name of its own in a subquery under FROM",
                    other.get()
                ))));
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(place) => drop(place.insert(key)),
        }
    }
    Ok(())
}
