//! Keys of sorts, windows and ordered aggregates, in a form that DataFusion's operators can rely on.
//!
//! - **Computed keys.** An operator asks whether its input is sorted by a key. To answer, DataFusion calculates with
//!   bounds of all parts of the key, and fails for parts of parts: `-length(s)` and `abs(x) > 1` are "not sorted" right
//!   above their own sort, and the plan is refused. Such keys are computed below, as columns. So are all computed keys
//!   of partitions: where a join made parts of them equal, DataFusion sorts by one and looks for the other.
//! - **Repeated keys.** DataFusion drops a key that comes a second time from an operator's order, and does not from the
//!   arguments of its aggregate. That is a panic. Keys that come out equal are given once.
//!
//! The change comes after the rules for logical plans, which make keys equal, and before the cut, so that drives
//! compute keys next to their rows.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::expr::{AggregateFunction, ScalarFunction, WindowFunction};
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Projection, SortExpr, Window};

use crate::float_keys::FLOAT_KEY;

/// `plan` with keys that are columns, constants, or functions of these, each once.
///
/// # Errors
/// None that the plan does not have already.
pub fn sort_keys(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut made = 0;
    plan.transform_up_with_subqueries(|node| {
        let mut keys = Keys { made: &mut made, columns: Vec::new(), changed: false };
        match node {
            LogicalPlan::Sort(mut sort) => {
                let schema = Arc::clone(sort.input.schema());
                keys.sorts(&mut sort.expr);
                if !keys.changed {
                    return Ok(Transformed::no(LogicalPlan::Sort(sort)));
                }
                let computed = !keys.columns.is_empty();
                sort.input = keys.below(sort.input)?;
                let sort = LogicalPlan::Sort(sort);
                Ok(Transformed::yes(if computed { named_as(sort, &schema)? } else { sort }))
            }
            LogicalPlan::Window(Window { input, window_expr, schema }) => {
                let rewritten = window_expr.iter().map(|e| keys.window(e.clone())).collect();
                if !keys.changed {
                    return Ok(Transformed::no(LogicalPlan::Window(Window { input, window_expr, schema })));
                }
                let (before, added) = (input.schema().fields().len(), keys.columns.len());
                let window = LogicalPlan::Window(Window::try_new(rewritten, keys.below(input)?)?);
                named_without(window, before..before + added, &schema).map(Transformed::yes)
            }
            LogicalPlan::Aggregate(mut aggregate) => {
                let rewritten = aggregate.aggr_expr.iter().map(|e| keys.aggregate(e.clone())).collect();
                if !keys.changed {
                    return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
                }
                let groups = std::mem::take(&mut aggregate.group_expr);
                let done = LogicalPlan::Aggregate(Aggregate::try_new(keys.below(Arc::clone(&aggregate.input))?, groups, rewritten)?);
                named_as(done, &aggregate.schema).map(Transformed::yes)
            }
            other => Ok(Transformed::no(other)),
        }
    })
    .data()
}

/// The keys of one operator.
struct Keys<'a> {
    /// How many columns were made in the whole plan.
    made: &'a mut usize,
    /// Computed keys, with the name of the column that each becomes.
    columns: Vec<(Expr, String)>,
    changed: bool,
}

impl Keys<'_> {
    /// The column that computes `key`, or `key` if it needs none.
    fn key(&mut self, key: Expr) -> Expr {
        let bare = bare(&key);
        if is_deep(&bare) { self.computed(bare) } else { key }
    }

    /// The column that computes the key of a window's partitions, or `key` if it is one.
    fn partition(&mut self, key: Expr) -> Expr {
        let bare = bare(&key);
        if matches!(bare, Expr::Column(_) | Expr::Literal(..)) { key } else { self.computed(bare) }
    }

    fn computed(&mut self, key: Expr) -> Expr {
        self.changed = true;
        let known = self.columns.iter().find(|(of, _)| *of == key).map(|(_, name)| name.clone());
        let name = known.unwrap_or_else(|| {
            *self.made += 1;
            let name = format!("__sort_key_{}", self.made);
            self.columns.push((key, name.clone()));
            name
        });
        Expr::Column(Column::new_unqualified(name))
    }

    fn sorts(&mut self, keys: &mut Vec<SortExpr>) {
        let before = keys.len();
        let mut seen = HashSet::new();
        keys.retain(|sort| seen.insert(bare(&sort.expr)));
        self.changed |= keys.len() < before;
        for sort in keys {
            sort.expr = self.key(std::mem::take(&mut sort.expr));
        }
    }

    fn window(&mut self, e: Expr) -> Expr {
        match e {
            Expr::Alias(mut alias) => {
                *alias.expr = self.window(std::mem::take(&mut alias.expr));
                Expr::Alias(alias)
            }
            Expr::WindowFunction(mut call) => {
                let WindowFunction { params, .. } = call.as_mut();
                params.partition_by = std::mem::take(&mut params.partition_by).into_iter().map(|key| self.partition(key)).collect();
                self.sorts(&mut params.order_by);
                Expr::WindowFunction(call)
            }
            other => other,
        }
    }

    fn aggregate(&mut self, e: Expr) -> Expr {
        match e {
            Expr::Alias(mut alias) => {
                *alias.expr = self.aggregate(std::mem::take(&mut alias.expr));
                Expr::Alias(alias)
            }
            // The key of DISTINCT, and of WITHIN GROUP, is the argument, and no order of the input.
            Expr::AggregateFunction(AggregateFunction { func, mut params }) => {
                if !params.distinct && !func.supports_within_group_clause() {
                    self.sorts(&mut params.order_by);
                }
                Expr::AggregateFunction(AggregateFunction { func, params })
            }
            other => other,
        }
    }

    /// `input` with the computed keys behind its columns.
    fn below(self, input: Arc<LogicalPlan>) -> Result<Arc<LogicalPlan>> {
        if self.columns.is_empty() {
            return Ok(input);
        }
        let columns = input.schema().columns().into_iter().map(Expr::Column);
        let keys = self.columns.into_iter().map(|(key, name)| key.alias(name));
        let all = columns.chain(keys).collect();
        Ok(Arc::new(LogicalPlan::Projection(Projection::try_new(all, input)?)))
    }
}

/// `key` without the names that rules gave its parts.
fn bare(key: &Expr) -> Expr {
    key.clone().unalias_nested().data
}

/// Whether a part of `key` has parts itself.
fn is_deep(key: &Expr) -> bool {
    if let Expr::ScalarFunction(ScalarFunction { func, args }) = key
        && func.name() == FLOAT_KEY
        && let [value] = args.as_slice()
    {
        return is_deep(value);
    }
    let has_parts = |e: &Expr| !matches!(e, Expr::Column(_) | Expr::Literal(..));
    let mut deep = false;
    let walked = key.apply_children(|part| {
        deep |= has_parts(part);
        Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
    });
    walked.is_ok() && deep
}

/// The first columns of `plan`, called as in `schema`.
fn named_as(plan: LogicalPlan, schema: &DFSchema) -> Result<LogicalPlan> {
    let columns = plan.schema().columns();
    named(plan, columns.into_iter().take(schema.fields().len()), schema)
}

/// The columns of `plan` without those in `left_out`, called as in `schema`.
fn named_without(plan: LogicalPlan, left_out: std::ops::Range<usize>, schema: &DFSchema) -> Result<LogicalPlan> {
    let columns = plan.schema().columns();
    named(plan, columns.into_iter().enumerate().filter(|(at, _)| !left_out.contains(at)).map(|(_, column)| column), schema)
}

fn named(plan: LogicalPlan, columns: impl Iterator<Item = Column>, schema: &DFSchema) -> Result<LogicalPlan> {
    let renamed = |(column, (qualifier, field)): (Column, (Option<&_>, &Arc<datafusion::arrow::datatypes::Field>))| {
        if column.relation.as_ref() == qualifier && column.name == *field.name() {
            Expr::Column(column)
        } else {
            Expr::Column(column).alias_qualified(qualifier.cloned(), field.name())
        }
    };
    let all = columns.zip(schema.iter()).map(renamed).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(all, Arc::new(plan))?))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    async fn keys(sql: &str) -> String {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT value AS x, CAST(value AS TEXT) AS s FROM generate_series(1, 30)").await.unwrap();
        let plan = context.sql(sql).await.unwrap().into_optimized_plan().unwrap();
        let done = sort_keys(plan.clone()).unwrap();
        assert_eq!(done.schema().columns(), plan.schema().columns(), "{sql}");
        done.display_indent().to_string()
    }

    #[tokio::test]
    async fn deep_keys_become_columns() {
        for sql in [
            "SELECT s FROM t ORDER BY -length(s)",
            "SELECT *, count(*) OVER (PARTITION BY abs(x) > 1 ORDER BY -length(s)) FROM t",
            "SELECT x, array_agg(s ORDER BY -length(s)), count(*) FROM t GROUP BY x",
        ] {
            let plan = keys(sql).await;
            assert!(plan.contains("AS __sort_key_1"), "{plan}");
            // It is used where the expression was.
            assert!(plan.matches("__sort_key_1").count() > 1, "{plan}");
        }
    }

    #[tokio::test]
    async fn keys_of_one_step_stay() {
        for sql in [
            "SELECT s FROM t ORDER BY length(s), x",
            "SELECT count(*) OVER (ORDER BY x + 1) FROM t",
            "SELECT array_agg(DISTINCT -abs(x) ORDER BY -abs(x)) FROM t",
        ] {
            let plan = keys(sql).await;
            assert!(!plan.contains("__sort_key"), "{plan}");
        }
    }

    #[tokio::test]
    async fn keys_that_come_out_equal_are_given_once() {
        let plan = keys("SELECT first_value(s ORDER BY CASE WHEN FALSE THEN x ELSE x END, x) FROM t").await;
        assert!(plan.contains("aggr=[[first_value(t.s) ORDER BY [t.x ASC NULLS LAST] AS "), "{plan}");
    }
}
