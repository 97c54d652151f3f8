//! How many bytes rows take, from what is known of their tables.
//!
//! Types give the width of numbers. Texts, bytes and lists are as long as in the table: all of them together take at
//! most what the table's record says that its rows take in memory. A computed text may be of any length.

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{DFSchema, JoinType, TableReference};
use datafusion::logical_expr::{Expr, LogicalPlan, Window};

use crate::expressions::unaliased;
use crate::node::DriveScan;

/// The bytes of all rows of a table in memory, where known.
pub(crate) type Bytes<'a> = &'a dyn Fn(&TableReference) -> Option<u64>;

/// The most bytes that `rows` rows of `plan` take in memory; `None` where nothing bounds them.
pub(crate) fn most_bytes(plan: &LogicalPlan, rows: u64, bytes: Bytes<'_>) -> Option<u64> {
    let fixed: u64 = plan.schema().fields().iter().filter_map(|f| fixed_width(f.data_type())).sum();
    let others = plan.schema().fields().iter().filter(|f| is_long(f)).count() as u64;
    let long = if others == 0 { 0 } else { longest_column(plan, rows, bytes)?.saturating_mul(others) };
    Some(fixed.saturating_mul(rows).saturating_add(long))
}

/// Bytes of each value of this type, where they are as many for all.
pub(crate) fn fixed_width(of: &DataType) -> Option<u64> {
    Some(match of {
        DataType::Null | DataType::Boolean => 1,
        DataType::FixedSizeBinary(n) => u64::try_from(*n).ok()?,
        DataType::FixedSizeList(field, n) => fixed_width(field.data_type())?.checked_mul(u64::try_from(*n).ok()?)?,
        DataType::Struct(fields) => fields.iter().map(|f| fixed_width(f.data_type())).sum::<Option<u64>>()?,
        other => other.primitive_width()? as u64,
    })
}

fn is_long(field: &Field) -> bool {
    fixed_width(field.data_type()).is_none()
}

/// The most bytes that the values of any one column without a fixed width take together, in `rows` rows of `plan`.
fn longest_column(plan: &LogicalPlan, rows: u64, bytes: Bytes<'_>) -> Option<u64> {
    if let Some(scan) = DriveScan::of(plan) {
        // The sub-plan names tables as drives do: any of them may be the largest.
        let largest = scan.tables().map(bytes).collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
        return longest_column(&scan.sub_plan, rows, &|_| largest).filter(|_| scan.inputs.is_empty());
    }
    let below = || match plan.inputs().as_slice() {
        [input] => longest_column(input, rows, bytes),
        _ => None,
    };
    match plan {
        LogicalPlan::TableScan(scan) => bytes(&scan.table_name),
        LogicalPlan::Values(values) => Some(values.values.iter().flatten().map(literal).sum::<Option<u64>>()?),
        LogicalPlan::EmptyRelation(_) => Some(0),
        LogicalPlan::Filter(_) | LogicalPlan::Limit(_) | LogicalPlan::Sort(_) | LogicalPlan::SubqueryAlias(_) => below(),
        LogicalPlan::Projection(projection) => handed_on(&projection.expr, &projection.schema, rows, below()),
        LogicalPlan::Aggregate(aggregate) if aggregate.schema.fields()[aggregate.group_expr.len()..].iter().all(|f| !is_long(f)) => {
            handed_on(&aggregate.group_expr, &aggregate.schema, rows, below())
        }
        LogicalPlan::Window(window) if !repeats(window) => below(),
        LogicalPlan::Join(join) => match join.join_type {
            JoinType::LeftSemi | JoinType::LeftAnti => longest_column(&join.left, rows, bytes),
            JoinType::RightSemi | JoinType::RightAnti => longest_column(&join.right, rows, bytes),
            _ => None,
        },
        _ => None,
    }
}

/// Whether calls of `window` may return the same text for many rows, as `max(text)` does: then all of them together
/// have no bound. `lag` and `lead` return each row's text at most once, except for their default.
pub(crate) fn repeats(window: &Window) -> bool {
    let own = &window.schema.fields()[window.input.schema().fields().len()..];
    window.window_expr.iter().zip(own).any(|(expr, field)| {
        let once = || match unaliased(expr) {
            Expr::WindowFunction(call) if matches!(call.fun.name(), "lag" | "lead") => {
                call.params.args.get(2).is_none_or(|otherwise| matches!(otherwise, Expr::Literal(value, _) if value.is_null()))
            }
            _ => false,
        };
        is_long(field) && !once()
    })
}

/// As [`longest_column`], of `exprs` (the first columns of `schema`). `below` is the longest column of their input.
fn handed_on(exprs: &[Expr], schema: &DFSchema, rows: u64, below: Option<u64>) -> Option<u64> {
    let mut most = 0;
    for (expr, _) in exprs.iter().zip(schema.fields()).filter(|(_, field)| is_long(field)) {
        most = most.max(match unaliased(expr) {
            Expr::Column(_) => below?,
            constant => literal(constant)?.saturating_mul(rows),
        });
    }
    Some(most)
}

fn literal(expr: &Expr) -> Option<u64> {
    match expr {
        Expr::Literal(value, _) => Some(value.size() as u64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};
    use datafusion::arrow::record_batch::RecordBatch;
    use datafusion::prelude::SessionContext;
    use std::sync::Arc;

    /// The bound for 10 rows of `sql` over `t` (k BIGINT, text, more VARCHAR); all rows of `t` take 500 bytes.
    async fn bound(sql: &str) -> Option<u64> {
        let context = SessionContext::new();
        let columns: [(&str, ArrayRef); 3] =
            [("k", Arc::new(Int64Array::from(vec![1]))), ("text", Arc::new(StringArray::from(vec!["a"]))), ("more", Arc::new(StringArray::from(vec!["b"])))];
        context.register_batch("t", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
        let plan = context.sql(sql).await.unwrap().into_optimized_plan().unwrap();
        most_bytes(&plan, 10, &|table| (table.table() == "t").then_some(500))
    }

    #[tokio::test]
    async fn texts_take_no_more_than_their_table() {
        for (sql, expected) in [
            ("SELECT k, k + 1 AS l FROM t", Some(160)),
            ("SELECT k, k > 1 AS l FROM t", Some(90)),
            ("SELECT text FROM t WHERE k > 0 LIMIT 5", Some(500)),
            ("SELECT text, more, k FROM t", Some(1080)),
            ("SELECT text AS a, count(*) FROM t GROUP BY text", Some(580)),
            ("SELECT k FROM t WHERE text IN (SELECT more FROM t WHERE k > 3)", Some(80)),
            ("SELECT k, lag(text) OVER (ORDER BY k) FROM t", Some(580)),
            ("SELECT k, lead(text, 2, NULL) OVER (ORDER BY k) FROM t", Some(580)),
            ("SELECT text, rank() OVER (ORDER BY k) FROM t", Some(580)),
            ("SELECT text, count(*) FROM (SELECT more AS text FROM t) GROUP BY text ORDER BY text", Some(580)),
        ] {
            assert_eq!(bound(sql).await, expected, "{sql}");
        }
    }

    #[tokio::test]
    async fn computed_texts_have_no_bound() {
        for sql in [
            "SELECT repeat(text, 1000) FROM t",
            "SELECT max(text) FROM t",
            "SELECT text, first_value(text) OVER (PARTITION BY k) FROM t",
            "SELECT k, lag(text, 5, 'a long text for every row') OVER (ORDER BY k) FROM t",
            "SELECT k, string_agg(text, ',') FROM t GROUP BY k",
            "SELECT a.text FROM t a JOIN t b USING (k)",
        ] {
            assert_eq!(bound(sql).await, None, "{sql}");
        }
        // But constants.
        assert!(bound("SELECT k, 'a constant' AS c FROM t").await.is_some_and(|bytes| (180..2000).contains(&bytes)));
        assert!(bound("SELECT * FROM (VALUES (1, 'a'), (2, 'b'))").await.is_some_and(|bytes| (80..1000).contains(&bytes)));
    }
}
