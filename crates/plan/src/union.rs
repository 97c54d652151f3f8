//! The branches of a union, for operators that can be done in each of them first.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::{Expr, LogicalPlan, Projection, Union};

/// The branches of the union that `input` is, with what lies between it and the union done in each; `None` where there is no union.
pub(crate) fn branches(input: &LogicalPlan) -> Result<Option<Vec<LogicalPlan>>> {
    let mut between = vec![];
    let mut at = input;
    let union = loop {
        match at {
            LogicalPlan::Union(union) => break union,
            LogicalPlan::SubqueryAlias(alias) => {
                between.push(at);
                at = &alias.input;
            }
            LogicalPlan::Projection(projection) => {
                between.push(at);
                at = &projection.input;
            }
            _ => return Ok(None),
        }
    };
    let branches = union.inputs.iter().map(|branch| {
        let mut plan = named(branch.as_ref().clone(), &union.schema)?;
        for node in between.iter().rev() {
            plan = with_input((*node).clone(), plan)?;
        }
        Ok(plan)
    });
    branches.collect::<Result<Vec<_>>>().map(Some)
}

/// `plan` with the names of the columns of `wanted`: a union's are those of its first branch.
pub(crate) fn named(plan: LogicalPlan, wanted: &DFSchema) -> Result<LogicalPlan> {
    let same = plan.schema().iter().zip(wanted.iter()).all(|((qa, a), (qb, b))| qa == qb && a.name() == b.name());
    if same {
        return Ok(plan);
    }
    let columns = plan.schema().columns().into_iter().zip(wanted.iter());
    let columns = columns.map(|(from, (qualifier, field))| Expr::Alias(Alias::new(Expr::Column(from), qualifier.cloned(), field.name())));
    Ok(LogicalPlan::Projection(Projection::try_new(columns.collect(), Arc::new(plan))?))
}

/// All rows of `branches`, which have the same columns.
pub(crate) fn of(branches: Vec<LogicalPlan>) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Union(Union::try_new(branches.into_iter().map(Arc::new).collect())?))
}

/// `node`, which has one input, over `input`, which has the columns of the old one.
pub(crate) fn with_input(node: LogicalPlan, input: LogicalPlan) -> Result<LogicalPlan> {
    let mut input = Some(input);
    let plan = node.map_children(|old| Ok(Transformed::yes(input.take().unwrap_or(old))))?;
    Ok(plan.data)
}
