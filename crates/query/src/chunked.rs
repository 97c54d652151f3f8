//! Long lists of results, planned in parts.
//!
//! DataFusion's SQL planner compares each expression of a `SELECT` with all others several times. For 1,000 aggregates
//! that takes half a second, and the time grows with the square of their number. But each result depends only on the
//! rows and groups, not on the other results. So each part of the list is planned as a query of its own over the same
//! input. One aggregate and one projection are made of the parts.
//!
//! Over one table each part is planned with the columns that it names. The rules for logical plans rewrite the parts
//! before they are joined ([`crate::chunk_merge`]), several in parallel.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNode;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Projection};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::SelectItem;
use skytether_plan::wide_projection::{aggregate, projection};
use tokio::task::JoinSet;

use crate::chunk_merge::{Part, Rules};
use crate::dense::calls_cell_moments;
use crate::narrow_table::OneTable;
use crate::select_shape::{put_list, take_list};

/// Results that are planned at once.
const PART: usize = 50;

/// Results of one part over one table: a part then has few columns.
const SMALL_PART: usize = 25;

/// The longest text, in bytes, outside of the list: each small part must plan all of it.
const REST: usize = 4 << 10;

/// Lists up to this length are planned as they are.
const SHORT: usize = 2 * PART;

/// A plan that was made of parts.
#[derive(Debug)]
pub(crate) struct InParts {
    pub(crate) plan: LogicalPlan,
    /// Whether it has been through the rules for logical plans.
    pub(crate) optimised: bool,
}

/// The plan of `statement` if it is a long list of results, each with an expression of its own, over tables, a
/// condition and groups. `None` for other statements, and where the parts do not fit together or one has an error:
/// DataFusion's planner then gets the whole. The plan is optimised too, if `optimise` is set and that can be done in
/// parts.
pub(crate) async fn plan(statement: &mut Statement, state: &SessionState, optimise: bool) -> Option<InParts> {
    let items = take_list(statement, SHORT, |_| true)?;
    let optimised = if optimise { optimised(statement, &items, state).await } else { None };
    let planned = match optimised {
        Some(plan) => Some(InParts { plan, optimised: true }),
        None => of_parts(statement, &items, state).await.map(|plan| InParts { plan, optimised: false }),
    };
    put_list(statement, items)?;
    planned
}

/// The optimised plan of `empty`, which reads one table and has no results, with `items`.
async fn optimised(empty: &mut Statement, items: &[SelectItem], state: &SessionState) -> Option<LogicalPlan> {
    if empty.to_string().len() > REST {
        return None;
    }
    let table = OneTable::of(empty, state).await?;
    let mut once = state.clone();
    // As for the whole: see `passes`.
    once.config_mut().options_mut().optimizer.max_passes = 1;
    let list = Arc::new(List { empty: empty.clone(), table, rules: Rules::of(state)?, state: once });
    let mut parts = items.chunks(SMALL_PART).map(<[SelectItem]>::to_vec).collect::<Vec<_>>();
    // The first part shows whether such a list can be planned this way at all.
    let first = list.part(parts.remove(0)).await?;
    let threads = state.config().target_partitions().clamp(1, parts.len().max(1));
    let mut tasks = JoinSet::new();
    let share = parts.len().div_ceil(threads).max(1);
    for (at, share) in parts.chunks_mut(share).enumerate() {
        let (list, share) = (Arc::clone(&list), share.iter_mut().map(std::mem::take).collect::<Vec<_>>());
        tasks.spawn(async move {
            let mut done = Vec::with_capacity(share.len());
            for items in share {
                done.push(list.part(items).await?);
            }
            Some((at, done))
        });
    }
    let mut done = Vec::new();
    while let Some(share) = tasks.join_next().await {
        done.push(share.ok()??);
    }
    done.sort_unstable_by_key(|(at, _)| *at);
    let parts = std::iter::once(first).chain(done.into_iter().flat_map(|(_, parts)| parts)).collect();
    list.rules.joined(parts, &list.table, &list.state)
}

/// What all parts of a list over one table share.
struct List {
    empty: Statement,
    table: OneTable,
    rules: Rules,
    state: SessionState,
}

impl List {
    /// The part with `items`.
    async fn part(&self, items: Vec<SelectItem>) -> Option<Part> {
        let mut part = self.empty.clone();
        put_list(&mut part, items)?;
        let state = self.table.seen_by(&part, &self.state)?;
        let plan = state.statement_to_plan(part).await.ok()?;
        // The dense view of a matrix must be rewritten first.
        if calls_cell_moments(&plan).ok()? || has_more_to_come(&plan) {
            return None;
        }
        self.rules.part(plan, &state)
    }
}

/// Whether `plan` has parameters, which have no value yet, or queries of their own in its expressions.
fn has_more_to_come(plan: &LogicalPlan) -> bool {
    let more = |e: &Expr| matches!(e, Expr::Placeholder(_) | Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_));
    let within = |expr: &Expr| expr.exists(|e| Ok(more(e))).unwrap_or(true);
    plan.exists(|node| Ok(node.expressions().iter().any(within))).unwrap_or(true)
}

/// The plan of `empty`, which has no results, with `items`.
async fn of_parts(empty: &Statement, items: &[SelectItem], state: &SessionState) -> Option<LogicalPlan> {
    let mut parts = Vec::with_capacity(items.len().div_ceil(PART));
    for items in items.chunks(PART) {
        let mut part = empty.clone();
        put_list(&mut part, items.to_vec())?;
        let LogicalPlan::Projection(projection) = state.statement_to_plan(part).await.ok()? else { return None };
        parts.push(projection);
    }
    let input = match joined(&parts)? {
        Some(aggregate) => Arc::new(LogicalPlan::Aggregate(aggregate)),
        None => Arc::clone(&parts.first()?.input),
    };
    let results: Vec<Expr> = parts.into_iter().flat_map(|part| part.expr).collect();
    let mut names = HashSet::new();
    if !results.iter().all(|result| names.insert(result.schema_name().to_string())) {
        return None;
    }
    projection(results, input).map(LogicalPlan::Projection).ok()
}

/// One aggregate for those of all `parts`; `Some(None)` where no part has one; `None` where the parts differ in their
/// input.
fn joined(parts: &[Projection]) -> Option<Option<Aggregate>> {
    let (first, others) = parts.split_first()?;
    let LogicalPlan::Aggregate(model) = first.input.as_ref() else {
        return others.iter().all(|part| part.input == first.input).then_some(None);
    };
    let (mut calls, mut names) = (Vec::new(), HashMap::new());
    for part in parts {
        let LogicalPlan::Aggregate(own) = part.input.as_ref() else { return None };
        if own.group_expr != model.group_expr || own.input != model.input {
            return None;
        }
        // The results refer to them by name, which has no casts: of two calls of one name only the
        // planner knows what to say.
        for call in &own.aggr_expr {
            match names.entry(call.schema_name().to_string()) {
                Entry::Vacant(new) => calls.push(Expr::clone(new.insert(call))),
                Entry::Occupied(known) if *known.get() == call => {}
                Entry::Occupied(_) => return None,
            }
        }
    }
    aggregate(Arc::clone(&model.input), model.group_expr.clone(), calls).ok().map(Some)
}

/// How often the rules for logical plans go through `plan` at most: once for long lists of results over one table,
/// which DataFusion's rules leave as they are in a second pass over all of them; `passes` times for all others.
pub(crate) fn passes(plan: &LogicalPlan, passes: usize) -> usize {
    if results(plan).is_some_and(|results| results > SHORT) { 1 } else { passes }
}

/// The results of a list over one table; `None` for other plans.
fn results(plan: &LogicalPlan) -> Option<usize> {
    let (mut at, mut most) = (plan, 0);
    loop {
        at = match at {
            LogicalPlan::Projection(projection) => {
                most = most.max(projection.expr.len());
                &projection.input
            }
            LogicalPlan::Aggregate(aggregate) => &aggregate.input,
            LogicalPlan::Filter(filter) => &filter.input,
            LogicalPlan::SubqueryAlias(alias) => &alias.input,
            LogicalPlan::TableScan(_) => return Some(most),
            _ => return None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::arrow::record_batch::RecordBatch;
    use datafusion::common::config::Dialect;
    use datafusion::prelude::SessionContext;

    pub(crate) fn context() -> SessionContext {
        let context = SessionContext::new();
        let columns = (0..300i64).map(|c| (format!("c{c}"), Arc::new(Int64Array::from_iter_values((0..20).map(|r| r % (c + 2)))) as ArrayRef));
        context.register_batch("t", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
        context
    }

    pub(crate) fn list(of: impl Fn(usize) -> String) -> String {
        (0..240).map(of).collect::<Vec<_>>().join(", ")
    }

    async fn in_parts(sql: &str, state: &SessionState) -> Option<LogicalPlan> {
        let mut statement = state.sql_to_statement(sql, &Dialect::Generic).unwrap();
        let before = statement.clone();
        let planned = plan(&mut statement, state, false).await;
        assert_eq!(statement, before);
        planned.map(|planned| planned.plan)
    }

    #[tokio::test]
    async fn parts_make_the_plan_of_the_whole() {
        let state = context().state();
        for sql in [
            format!("SELECT {} FROM t", list(|c| format!("sum(c{c})"))),
            format!("SELECT {} FROM t WHERE c1 > 0", list(|c| format!("c{c} + 1 AS x{c}"))),
            format!("SELECT c5, {} FROM t GROUP BY c5, c6 % 2", list(|c| format!("sum(c{c}) / count(c{}) AS x{c}", c % 60))),
            format!("SELECT {} FROM t a JOIN t b ON a.c1 = b.c1", list(|c| format!("min(a.c{c}) AS x{c}"))),
            format!("SELECT {} FROM t WHERE c3 IN (SELECT c4 FROM t)", list(|c| format!("max(c{c}) FILTER (WHERE c1 > 0)"))),
            format!("SELECT {} FROM (SELECT sum(c1) AS s, c2 FROM t GROUP BY c2)", list(|c| format!("s + {c}"))),
        ] {
            let whole = state.statement_to_plan(state.sql_to_statement(&sql, &Dialect::Generic).unwrap()).await.unwrap();
            let parts = in_parts(&sql, &state).await.unwrap_or_else(|| panic!("{sql}"));
            assert_eq!(parts.display_indent_schema().to_string(), whole.display_indent_schema().to_string());
            assert_eq!(parts, whole);
        }
    }

    #[tokio::test]
    async fn a_second_pass_of_rules_changes_nothing_of_long_lists() {
        let state = context().state();
        let usual = state.config_options().optimizer.max_passes;
        assert!(usual > 1);
        for sql in [
            format!("SELECT {} FROM t", list(|c| format!("sum(c{c}), avg(c{c}) AS a{c}"))),
            format!("SELECT {} FROM t AS u WHERE c1 + 1 > 3 AND u.c2 IN (1, 2)", list(|c| format!("sum(c{c}) / count(c{}) AS x{c}", c % 7))),
            format!("SELECT c5, {} FROM t WHERE c5 > 2 GROUP BY c5, c6 % 2", list(|c| format!("max(c{c} * c{}) AS x{c}", c % 9))),
            format!("SELECT {} FROM (SELECT * FROM t WHERE c7 = 1) WHERE c8 = 2", list(|c| format!("c{c} + c9 * 2 AS x{c}"))),
        ] {
            let plan = state.statement_to_plan(state.sql_to_statement(&sql, &Dialect::Generic).unwrap()).await.unwrap();
            assert_eq!(passes(&plan, usual), 1, "{sql}");
            let optimised = |max_passes| {
                // States count the names that they make up.
                let mut state = context().state();
                state.config_mut().options_mut().optimizer.max_passes = max_passes;
                state.optimize(&plan).unwrap().display_indent_schema().to_string()
            };
            assert_eq!(optimised(1), optimised(usual));
        }
        for sql in [
            "SELECT c1, c2 FROM t".to_owned(),
            format!("SELECT {} FROM t a JOIN t b ON a.c1 = b.c1", list(|c| format!("a.c{c}"))),
            format!("SELECT {} FROM t LIMIT 1", list(|c| format!("c{c}"))),
        ] {
            let plan = state.statement_to_plan(state.sql_to_statement(&sql, &Dialect::Generic).unwrap()).await.unwrap();
            assert_eq!(passes(&plan, usual), usual, "{sql}");
        }
    }

    #[tokio::test]
    async fn unsplittable_queries_are_planned_whole() {
        let state = context().state();
        for sql in [
            "SELECT sum(c1) FROM t".to_owned(),
            format!("SELECT {}, * FROM t", list(|c| format!("c{c} AS x{c}"))),
            // Aggregates in some parts only.
            format!("SELECT {}, 1 AS one, {} FROM t", list(|c| format!("{c} AS x{c}")), list(|c| format!("sum(c{c}) AS s{c}"))),
            // Groups that are results: by their places, by their names, or all of them.
            format!("SELECT c1, {} FROM t GROUP BY 1", list(|c| format!("sum(c{c}) AS s{c}"))),
            format!("SELECT c1 + 1 AS g, {} FROM t GROUP BY g", list(|c| format!("sum(c{c}) AS s{c}"))),
            format!("SELECT c1, {} FROM t GROUP BY ALL", list(|c| format!("sum(c{c}) AS s{c}"))),
            format!("SELECT {} FROM t HAVING sum(c1) > 0", list(|c| format!("sum(c{c})"))),
            format!("SELECT DISTINCT {} FROM t", list(|c| format!("c{c}"))),
            format!("SELECT {} FROM t ORDER BY 1", list(|c| format!("c{c}"))),
            format!("SELECT {} FROM t LIMIT 3", list(|c| format!("c{c}"))),
            format!("SELECT {} FROM t", list(|c| format!("row_number() OVER (ORDER BY c{c})"))),
            // One name twice, and one that there is not.
            format!("SELECT {}, sum(c0) FROM t", list(|c| format!("sum(c{c})"))),
            format!("SELECT {}, sum(nix) FROM t", list(|c| format!("sum(c{c})"))),
            // Calls that differ in a cast only, which names don't show.
            format!("SELECT {}, sum(CAST(c0 AS DOUBLE)) AS other FROM t", list(|c| format!("sum(c{c}) AS s{c}"))),
            format!("SELECT {}, count(TRY_CAST(c0 AS INT)) AS other FROM t", list(|c| format!("count(c{c}) AS n{c}"))),
        ] {
            assert!(in_parts(&sql, &state).await.is_none(), "{sql}");
        }
    }
}
