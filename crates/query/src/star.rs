//! `SELECT *` of one table, planned without naming its columns.
//!
//! DataFusion expands a star and then looks for nested calls, duplicates and types column by column among all columns.
//! For 2,000 columns that takes half a second, and the time grows with the square of their number. But all columns of
//! one input in its own order are just that input. So a constant is planned in place of the star, and its projection is
//! removed afterwards.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, SelectItem, Value, WildcardAdditionalOptions};

use crate::select_shape::{is_of_one_table, is_ungrouped, plain_select};

/// Puts a constant in place of the star if `statement` is `SELECT * FROM table` with nothing but a condition and a
/// limit. Returns whether it did.
pub(crate) fn take_out(statement: &mut Statement) -> bool {
    let Some(select) = plain_select(statement) else { return false };
    let star = match select.projection.as_slice() {
        [SelectItem::Wildcard(options)] => *options == WildcardAdditionalOptions { wildcard_token: options.wildcard_token.clone(), ..Default::default() },
        _ => false,
    };
    let lifts = star && is_of_one_table(select) && is_ungrouped(select);
    if lifts {
        select.projection = vec![SelectItem::UnnamedExpr(Expr::value(Value::Null))];
    }
    lifts
}

/// The plan of what [`take_out`] has changed, with all columns again.
///
/// # Errors
/// Internal, where there is no such projection.
pub(crate) fn put_back(plan: LogicalPlan) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::Projection(projection) => Ok(projection.input.as_ref().clone()),
        LogicalPlan::Limit(_) => plan.map_children(|input| put_back(input).map(Transformed::yes)).map(|plan| plan.data),
        other => internal_err!("a star was taken out of a plan that begins with {}", other.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::prelude::SessionContext;

    fn taken(sql: &str) -> bool {
        take_out(&mut SessionContext::new().state().sql_to_statement(sql, &datafusion::common::config::Dialect::Generic).unwrap())
    }

    #[test]
    fn only_a_star_of_one_table_is_taken_out() {
        for sql in ["SELECT * FROM a.b", "SELECT * FROM a.b t WHERE t.x > 1 LIMIT 3", "SELECT * FROM a.b WHERE x IN (SELECT y FROM c) LIMIT 2 OFFSET 1"] {
            assert!(taken(sql), "{sql}");
        }
        for sql in [
            "SELECT *, 1 FROM t",
            "SELECT t.* FROM t",
            "SELECT x FROM t",
            "SELECT DISTINCT * FROM t",
            "SELECT * EXCLUDE (x) FROM t",
            "SELECT * REPLACE (1 AS x) FROM t",
            "SELECT * FROM t, u",
            "SELECT * FROM t JOIN u USING (x)",
            "SELECT * FROM t AS s(a, b)",
            "SELECT * FROM (SELECT 1)",
            "SELECT * FROM generate_series(1, 3)",
            "SELECT * FROM t ORDER BY x",
            "SELECT * FROM t GROUP BY x",
            "SELECT * FROM t HAVING x > 1",
            "SELECT * FROM t QUALIFY row_number() OVER () = 1",
            "WITH t AS (SELECT 1) SELECT * FROM t",
            "SELECT * FROM t UNION SELECT * FROM t",
        ] {
            assert!(!taken(sql), "{sql}");
        }
    }
}
