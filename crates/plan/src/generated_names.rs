//! Names that rules generate, such as `__common_expr_3`: another number in each copy of a CTE.
//!
//! [`numbered`] numbers the generated names of a plan by their first occurrence in it. Copies that differ in nothing
//! else are equal then. Such a plan is compared and never run.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, TableReference};
use datafusion::logical_expr::{Expr, LogicalPlan, SubqueryAlias};

use crate::node::DriveScan;

/// What generated names begin with, before their number.
const PREFIXES: [&str; 10] =
    ["__common_expr_", "__correlated_sq_", "__tied_sq_", "__scalar_sq_", "__mark_", "__tie_", "__found_", "__kept_", "__sort_key_", "__result_"];

/// Whether a column or relation of `plan` has a generated name.
pub(crate) fn has_some(plan: &LogicalPlan) -> Result<bool> {
    let generated = |text: &str| PREFIXES.iter().any(|prefix| text.contains(prefix));
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= match DriveScan::of(node) {
            Some(scan) => has_some(&scan.sub_plan)?,
            None => node.schema().iter().any(|(of, field)| generated(field.name()) || of.is_some_and(|of| generated(of.table()))),
        };
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// `plan` with its generated names numbered from 0.
///
/// # Errors
/// Those of DataFusion for a plan that does not hold together.
pub(crate) fn numbered(plan: &LogicalPlan) -> Result<LogicalPlan> {
    Names::default().plan(plan.clone())
}

/// The new form of each generated name.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    fn plan(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        plan.transform_up(|node| self.node(node)).data()
    }

    fn node(&mut self, node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        if let Some(scan) = DriveScan::of(&node) {
            let sub_plan = self.plan(scan.sub_plan.as_ref().clone())?;
            let scan = DriveScan::new(scan.table.clone(), sub_plan, scan.rung, scan.placement).with_inputs(scan.inputs.clone()).with_tables(scan.with.clone());
            return Ok(Transformed::yes(scan.into_plan()));
        }
        match node {
            LogicalPlan::TableScan(_) | LogicalPlan::EmptyRelation(_) | LogicalPlan::Extension(_) => Ok(Transformed::no(node)),
            LogicalPlan::SubqueryAlias(SubqueryAlias { input, alias, .. }) => {
                let alias = self.relation(alias);
                Ok(Transformed::yes(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(input, alias)?)))
            }
            node => {
                let renamed = node.map_expressions(|e| e.transform_up(|e| Ok(self.expr(e))))?.data;
                Ok(Transformed::yes(renamed.recompute_schema()?))
            }
        }
    }

    fn expr(&mut self, expr: Expr) -> Transformed<Expr> {
        match expr {
            Expr::Column(mut column) => {
                column.relation = column.relation.map(|of| self.relation(of));
                column.name = self.text(&column.name);
                Transformed::yes(Expr::Column(column))
            }
            Expr::Alias(mut alias) => {
                alias.relation = alias.relation.map(|of| self.relation(of));
                alias.name = self.text(&alias.name);
                Transformed::yes(Expr::Alias(alias))
            }
            other => Transformed::no(other),
        }
    }

    fn relation(&mut self, of: TableReference) -> TableReference {
        match of {
            TableReference::Bare { table } => TableReference::Bare { table: Arc::from(self.text(&table)) },
            other => other,
        }
    }

    /// `text` with each generated name in it in its new form. Names of columns are texts of expressions, so they may
    /// hold several.
    fn text(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((at, prefix)) = PREFIXES.iter().filter_map(|prefix| Some((rest.find(prefix)?, prefix))).min() {
            let (before, from) = rest.split_at(at);
            let digits = from[prefix.len()..].bytes().take_while(u8::is_ascii_digit).count();
            let (name, after) = from.split_at(prefix.len() + digits);
            let next = self.0.len();
            out.push_str(before);
            // No name in a query has this character.
            out.push_str(self.0.entry(name.to_owned()).or_insert_with(|| format!("{prefix}\u{1}{next}")));
            rest = after;
        }
        out.push_str(rest);
        out
    }
}
