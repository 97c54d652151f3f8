//! What determined a row before `UNNEST` does not after it.
//!
//! DataFusion knows of an aggregate that its groups determine all of its columns, and hands that on through `UNNEST`, which makes many rows of one: `GROUP BY g, u` above it would become `GROUP BY g`, and `ORDER BY g, u`
//! be done by `g` alone. While its rules rewrite a plan, a node that says nothing of the kind stands above each such `UNNEST`; it lets filters, limits and unwanted columns pass, and is gone before the cut.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, FunctionalDependencies, Result, plan_err};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};

/// The rows of its input, of which nothing is known.
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
        // What stands above was made before.
        let node = node.recompute_schema()?;
        if is_wrong(&node) {
            let node = Unnested::over(node)?;
            return Ok(Transformed::yes(LogicalPlan::Extension(Extension { node: Arc::new(node) })));
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
