//! Functional dependencies must not pass through `UNNEST`.
//!
//! DataFusion knows that the groups of an aggregate determine all of its columns. It keeps this through `UNNEST`, which
//! makes many rows of one. Two errors follow above it:
//! - The SQL planner takes `GROUP BY g` for `GROUP BY g, u`, and chooses another frame for windows that are ordered by
//!   `g`.
//! - The rules take `GROUP BY g, u` for `GROUP BY g`, and order by `g` alone where the query says `g, u`.
//!
//! So a node without functional dependencies stands above each such `UNNEST` while the rules rewrite a plan. While a
//! text is planned, it stands above each relation that has an `UNNEST`. It lets filters, limits and unwanted columns
//! pass, and is removed before the cut.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, FunctionalDependencies, Result, plan_err};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::sql::sqlparser::ast::TableFactor;

use crate::bare_tables::BareTable;

/// The rows of its input, without functional dependencies.
#[derive(Debug, Clone)]
struct Unnested {
    input: LogicalPlan,
    schema: DFSchemaRef,
}

impl Unnested {
    fn over(input: LogicalPlan) -> Result<Self> {
        let schema = input.schema().as_ref().clone().with_functional_dependencies(FunctionalDependencies::empty())?;
        Ok(Self { input, schema: Arc::new(schema) })
    }

    fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }
}

thread_local! {
    /// Whether DataFusion's own planner plans the next relation of this thread.
    static PLAIN: Cell<bool> = const { Cell::new(false) };
}

/// Plans relations as DataFusion does, and puts the node above those that need it.
#[derive(Debug)]
pub(crate) struct Relations;

impl RelationPlanner for Relations {
    fn plan_relation(&self, relation: TableFactor, context: &mut dyn RelationPlannerContext) -> Result<RelationPlanning> {
        // A lateral relation refers to other relations of the query, and stays as it is for DataFusion's own planner.
        if PLAIN.take() || matches!(relation, TableFactor::Derived { lateral: true, .. }) {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        // It begins with this very planner; relations within this one come here again.
        let bare = BareTable::of(&relation, context);
        let mut plain = |relation| {
            PLAIN.set(true);
            context.plan(relation)
        };
        let plan = match (plain(relation), bare) {
            (Err(e), Some(bare)) if plain(bare.only()).is_err() => return Err(bare.missing().unwrap_or(e)),
            (planned, _) => planned?,
        };
        let plan = if is_from_wrong(&plan) { Unnested::over(plan)?.into_plan() } else { plan };
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, None))))
    }
}

/// Whether functional dependencies of `plan` may come from an `UNNEST`.
fn is_from_wrong(plan: &LogicalPlan) -> bool {
    !plan.schema().functional_dependencies().is_empty()
        && (is_wrong(plan) || (!matches!(plan, LogicalPlan::Aggregate(_)) && plan.inputs().into_iter().any(is_from_wrong)))
}

/// Whether rows of `plan` are thought to be determined by what determined the rows that they were made of.
fn is_wrong(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Unnest(unnest) if !unnest.schema.functional_dependencies().is_empty())
}

/// `plan` with a node above each `UNNEST` that needs it.
///
/// # Errors
/// Those of DataFusion for a plan that does not hold together.
pub(crate) fn marked(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut needed = false;
    plan.apply_with_subqueries(|node| {
        needed |= is_wrong(node);
        Ok(if needed { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !needed {
        return Ok(plan);
    }
    let mark = |node: LogicalPlan| {
        // The nodes above have schemas from before.
        let node = node.recompute_schema()?;
        if is_wrong(&node) {
            return Ok(Transformed::yes(Unnested::over(node)?.into_plan()));
        }
        Ok(Transformed::yes(node))
    };
    Ok(plan.transform_up_with_subqueries(mark)?.data)
}

/// `plan` without these nodes.
///
/// # Errors
/// None of its own.
pub(crate) fn unmarked(plan: LogicalPlan) -> Result<LogicalPlan> {
    let unmark = |node: LogicalPlan| {
        if let LogicalPlan::Extension(extension) = &node
            && let Some(unnested) = extension.node.as_any().downcast_ref::<Unnested>()
        {
            return Ok(Transformed::yes(unnested.input.clone()));
        }
        Ok(Transformed::no(node))
    };
    Ok(plan.transform_up_with_subqueries(unmark)?.data)
}

impl UserDefinedLogicalNodeCore for Unnested {
    fn name(&self) -> &'static str {
        "Unnested"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        HashSet::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unnested")
    }

    fn with_exprs_and_inputs(&self, expressions: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        let mut inputs = inputs.into_iter();
        match (inputs.next(), inputs.next()) {
            (Some(input), None) if expressions.is_empty() => Self::over(input),
            _ => plan_err!("it has one input and no expressions"),
        }
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        Some(vec![output_columns.to_vec()])
    }

    fn supports_limit_pushdown(&self) -> bool {
        true
    }
}

impl PartialEq for Unnested {
    fn eq(&self, other: &Self) -> bool {
        self.input == other.input
    }
}

impl Eq for Unnested {}

impl Hash for Unnested {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.input.hash(state);
    }
}

impl PartialOrd for Unnested {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.input.partial_cmp(&other.input)
    }
}
