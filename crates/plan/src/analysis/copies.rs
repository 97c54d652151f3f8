//! How often a plan reads tables once its subqueries are written out.
//!
//! `IN` with three values is up to three joins over the same subquery ([`super::subqueries`]), and the simplifier
//! writes some values twice. A subquery within a subquery is copied with it, so ten levels of a query of 40 bytes read
//! tables 59,049 times. No planner ends with that.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan};
use skytether_common::Error;

use super::subqueries::is_join;
use crate::error::to_datafusion;

/// How many reads copies of subqueries may add.
const MAX_COPIES: u64 = 1000;

/// Joins over the values of an `IN` that is no condition of its own.
const MARKS: u64 = 3;

/// `plan` as it is.
///
/// # Errors
/// `Invalid` where copies of subqueries add more than [`MAX_COPIES`] reads.
pub(super) fn check(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let reads = Reads::of(&plan)?;
    let copies = reads.whole - reads.own;
    if copies > MAX_COPIES {
        let number = if reads.whole == u64::MAX { "too many".to_owned() } else { reads.whole.to_string() };
        return Err(to_datafusion(Error::invalid(format!(
            "the query reads {number} relations once its subqueries are written out, as subqueries of IN within one another are planned up to \
             {MARKS} times each: write them as joins, or store the result of one as a data set"
        ))));
    }
    Ok(plan)
}

/// Reads of tables and other leaves: as they are, and written out.
#[derive(Debug, Clone, Copy, Default)]
struct Reads {
    own: u64,
    whole: u64,
}

impl Reads {
    fn of(plan: &LogicalPlan) -> Result<Self> {
        let inputs = plan.inputs();
        let mut reads = if inputs.is_empty() { Self { own: 1, whole: 1 } } else { Self::default() };
        for input in &inputs {
            reads.add(Self::of(input)?, 1);
        }
        match (plan, inputs.as_slice()) {
            (LogicalPlan::Filter(filter), [input]) => {
                for conjunct in split_conjunction(&filter.predicate) {
                    reads.add(Self::of_conjunct(conjunct, input.schema())?, 1);
                }
            }
            _ => {
                plan.apply_expressions(|e| {
                    reads.add(Self::of_expr(e)?, 1);
                    Ok(TreeNodeRecursion::Continue)
                })?;
            }
        }
        Ok(reads)
    }

    fn of_conjunct(conjunct: &Expr, schema: &DFSchema) -> Result<Self> {
        if !is_join(conjunct, schema) {
            return Self::of_expr(conjunct);
        }
        let e = if let Expr::Not(inner) = conjunct { inner } else { conjunct };
        let Expr::InSubquery(of) = e else { return Self::of_expr(e) };
        let mut reads = Self::of(&of.subquery.subquery)?;
        reads.add(Self::of_expr(&of.expr)?, 1);
        Ok(reads)
    }

    fn of_expr(e: &Expr) -> Result<Self> {
        let mut reads = Self::default();
        // A value next to IN is in the condition and in its test for NULL.
        let times = match e {
            Expr::Between(_) | Expr::InSubquery(_) | Expr::SetComparison(_) => 2,
            Expr::ScalarFunction(call) if call.func.short_circuits() => 2,
            _ => 1,
        };
        e.apply_children(|child| {
            reads.add(Self::of_expr(child)?, times);
            Ok(TreeNodeRecursion::Continue)
        })?;
        match e {
            Expr::ScalarSubquery(subquery) => reads.add(Self::of(&subquery.subquery)?, 1),
            Expr::Exists(exists) => reads.add(Self::of(&exists.subquery.subquery)?, 1),
            Expr::InSubquery(of) => reads.add(Self::of(&of.subquery.subquery)?, MARKS),
            Expr::SetComparison(of) => reads.add(Self::of(&of.subquery.subquery)?, MARKS),
            _ => {}
        }
        Ok(reads)
    }

    fn add(&mut self, other: Self, times: u64) {
        self.own = self.own.saturating_add(other.own);
        self.whole = self.whole.saturating_add(other.whole.saturating_mul(times));
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;
    use crate::error::from_datafusion;

    /// What [`check`] says of `condition` over a table `t` with the number `x`. `{q}` in it is the query of the level
    /// below.
    async fn checked(condition: &str, levels: usize) -> skytether_common::Result<()> {
        let config = SessionConfig::new().set_usize("datafusion.sql_parser.recursion_limit", 500);
        let context = SessionContext::new_with_config(config);
        context.sql("CREATE TABLE t AS SELECT 1 AS x").await.unwrap().collect().await.unwrap();
        let mut query = "SELECT x FROM t".to_owned();
        for _ in 0..levels {
            query = format!("SELECT x FROM t WHERE {}", condition.replace("{q}", &query));
        }
        let plan = context.state().create_logical_plan(&query).await.unwrap();
        check(plan, &ConfigOptions::default()).map(drop).map_err(from_datafusion)
    }

    // docs/sql.md: relations that copies of its subqueries read, as `IN` below `OR` is planned three times
    #[tokio::test]
    async fn nested_subqueries_count_as_often_as_they_are_planned() {
        for (condition, most) in [
            ("x IN ({q}) OR x = 2", 5),
            ("NOT (x IN ({q}) AND x = 2)", 5),
            ("(x NOT IN ({q})) IS NULL", 5),
            ("CASE WHEN x IN ({q}) THEN true END", 5),
            ("({q}) BETWEEN 1 AND 2", 8),
            ("coalesce(({q}), 1) = 1", 8),
        ] {
            checked(condition, most).await.unwrap();
            let error = checked(condition, most + 1).await.unwrap_err();
            assert!(error.message().contains("relations once its subqueries are written out"), "{condition}: {error}");
            checked(condition, 20).await.unwrap_err();
        }
    }

    #[tokio::test]
    async fn conditions_that_are_joins_count_once() {
        for condition in ["x IN ({q})", "x NOT IN ({q})", "EXISTS ({q})", "NOT EXISTS ({q}) AND x = 1", "x = ({q})"] {
            checked(condition, 25).await.unwrap();
        }
    }
}
