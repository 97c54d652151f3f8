//! Long lists of aggregates over all rows of one table, as queries side by side.
//!
//! Each such result is one row, whatever the others are, so that parts of the list can be queries of their own whose rows are put side by side. DataFusion looks for each expression's columns among all columns, at every
//! step of planning, on the host and on each drive: parts see only the columns that they name, and what grew with the square of the list grows with the list. A part reads the slices of its own columns, so
//! that this is for lists whose parts name different columns.

use std::collections::HashSet;

use datafusion::common::Column;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Aggregate, Join, JoinType, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::SelectItem;

use crate::in_parts;
use crate::select_shape::{is_of_one_table, is_ungrouped, put_list, take_list};

/// Results of a part.
pub(crate) const PART: usize = 250;

/// Lists up to this length are no long ones.
const SHORT: usize = 300;

/// How often a column may be read, on average: the parts' columns by all columns.
const AGAIN: f64 = 1.25;

/// The plan of `statement` if it is a long list of aggregates over one table, without a condition or groups, whose parts name different columns; `None` for all others. `sees` gives the session
/// for a part, which need not know columns that it does not name, and may be given its text.
pub(crate) async fn plan(statement: &mut Statement, sees: impl Fn(&str, &Statement) -> Option<SessionState>) -> Option<LogicalPlan> {
    let items = take_list(statement, SHORT, |select| is_of_one_table(select) && is_ungrouped(select) && select.selection.is_none())?;
    let planned = of_parts(statement, &items, sees).await;
    put_list(statement, items)?;
    planned
}

async fn of_parts(empty: &Statement, items: &[SelectItem], sees: impl Fn(&str, &Statement) -> Option<SessionState>) -> Option<LogicalPlan> {
    let (mut parts, mut names, mut columns, mut read) = (Vec::new(), HashSet::new(), HashSet::<Column>::new(), 0);
    for items in items.chunks(PART) {
        let mut part = empty.clone();
        put_list(&mut part, items.to_vec())?;
        let state = sees(&part.to_string(), &part)?;
        let plan = match in_parts::plan(&mut part, &state).await {
            Some(plan) => plan,
            None => state.statement_to_plan(part).await.ok()?,
        };
        let own: HashSet<Column> = calls(&plan)?.aggr_expr.iter().flat_map(|call| call.column_refs().into_iter().cloned()).collect();
        read += own.len();
        columns.extend(own);
        if !plan.schema().fields().iter().all(|field| names.insert(field.name().clone())) {
            return None;
        }
        parts.push(plan);
    }
    if read as f64 > columns.len() as f64 * AGAIN {
        return None;
    }
    side_by_side(parts)
}

/// The aggregate of `plan`, results over all rows of a table.
fn calls(plan: &LogicalPlan) -> Option<&Aggregate> {
    let LogicalPlan::Projection(projection) = plan else { return None };
    let LogicalPlan::Aggregate(aggregate) = projection.input.as_ref() else { return None };
    let mut below = aggregate.input.as_ref();
    while let LogicalPlan::SubqueryAlias(alias) = below {
        below = alias.input.as_ref();
    }
    (aggregate.group_expr.is_empty() && matches!(below, LogicalPlan::TableScan(_))).then_some(aggregate)
}

/// The rows of `parts`, one each, as one. In pairs: a schema is made for each.
fn side_by_side(mut parts: Vec<LogicalPlan>) -> Option<LogicalPlan> {
    while parts.len() > 1 {
        let mut pairs = parts.into_iter();
        parts = Vec::new();
        while let Some(left) = pairs.next() {
            parts.push(match pairs.next() {
                Some(right) => LogicalPlanBuilder::from(left).cross_join(right).ok()?.build().ok()?,
                None => left,
            });
        }
    }
    parts.pop()
}

/// Whether `join` puts rows side by side.
pub(crate) fn is_beside(join: &Join) -> bool {
    join.join_type == JoinType::Inner && join.on.is_empty() && join.filter.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int64Array};
    use datafusion::arrow::record_batch::RecordBatch;
    use datafusion::common::config::Dialect;
    use datafusion::prelude::SessionContext;

    fn context() -> SessionContext {
        let context = SessionContext::new();
        let columns = (0..700i64).map(|c| (format!("c{c}"), Arc::new(Int64Array::from_iter_values((0..20).map(|r| r * c % 17))) as ArrayRef));
        context.register_batch("t", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
        context
    }

    fn list(of: impl Fn(usize) -> String) -> String {
        (0..650).map(of).collect::<Vec<_>>().join(", ")
    }

    async fn beside(sql: &str, context: &SessionContext) -> Option<LogicalPlan> {
        let state = context.state();
        let mut statement = state.sql_to_statement(sql, &Dialect::Generic).unwrap();
        let before = statement.clone();
        let planned = plan(&mut statement, |_, _| Some(state.clone())).await;
        assert_eq!(statement, before);
        planned
    }

    #[tokio::test]
    async fn the_answer_is_that_of_one_query() {
        let context = context();
        for sql in [
            format!("SELECT {} FROM t", list(|c| format!("sum(c{c})"))),
            format!("SELECT {}, count(*) AS n FROM t AS u", list(|c| format!("max(u.c{c}) - min(c{c}) + 1 AS x{c}"))),
            format!("SELECT {} FROM t", list(|c| format!("sum(c{c}) FILTER (WHERE c{} > 3) AS s{c}", c / 10))),
        ] {
            let plan = beside(&sql, &context).await.unwrap_or_else(|| panic!("{}", &sql[..80]));
            let whole = context.sql(&sql).await.unwrap();
            let (found, expected): (Vec<_>, Vec<_>) = (plan.schema().field_names(), whole.schema().field_names());
            assert_eq!(found, expected);
            let ours = context.execute_logical_plan(plan).await.unwrap().collect().await.unwrap();
            let theirs = whole.collect().await.unwrap();
            let columns = |batches: &[RecordBatch]| batches.iter().filter(|b| b.num_rows() > 0).flat_map(|b| b.columns().to_vec()).collect::<Vec<_>>();
            assert_eq!(columns(&ours), columns(&theirs));
        }
    }

    #[tokio::test]
    async fn others_are_planned_as_they_are() {
        let context = context();
        for sql in [
            "SELECT sum(c1) FROM t".to_owned(),
            format!("SELECT {} FROM t", list(|c| format!("c{c}"))),
            format!("SELECT {} FROM t WHERE c1 > 2", list(|c| format!("sum(c{c})"))),
            format!("SELECT {} FROM t GROUP BY c1", list(|c| format!("sum(c{c})"))),
            format!("SELECT {} FROM t HAVING sum(c1) > 2", list(|c| format!("sum(c{c})"))),
            format!("SELECT {} FROM t LIMIT 1", list(|c| format!("sum(c{c})"))),
            format!("SELECT {} FROM t, t AS u", list(|c| format!("sum(t.c{c})"))),
            format!("SELECT {} FROM (SELECT * FROM t) AS u", list(|c| format!("sum(c{c})"))),
            // Each part would read the same columns again; some are no aggregates; a name comes twice.
            format!("SELECT {} FROM t", list(|c| format!("sum(c{} + {c}) AS s{c}", c % 20))),
            format!("SELECT {} FROM t", list(|c| if c < 400 { format!("sum(c{c})") } else { format!("{c} AS n{c}") })),
            format!("SELECT {}, sum(c0) FROM t", list(|c| format!("sum(c{c})"))),
            format!("SELECT {}, sum(CAST(c0 AS DOUBLE)) FROM t", list(|c| format!("sum(c{c})"))),
        ] {
            assert!(beside(&sql, &context).await.is_none(), "{}", &sql[..80]);
        }
    }
}
