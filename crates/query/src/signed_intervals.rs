//! `-INTERVAL '1 month 2 days'` is minus both.
//!
//! DataFusion writes the sign in front of the interval's text, where it belongs to the first part alone: -1 month and
//! +2 days. In parentheses an interval is a value, whose parts all change their sign.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Expr, UnaryOperator, Value, visit_expressions_mut};

/// Puts parentheses around intervals of `statement` that have a minus.
pub(crate) fn keep_signs(statement: &mut Statement) {
    let Statement::Statement(statement) = statement else { return };
    let _ = visit_expressions_mut(statement.as_mut(), |e| {
        if let Expr::UnaryOp { op: UnaryOperator::Minus, expr } = e
            && matches!(expr.as_ref(), Expr::Interval(_))
        {
            let interval = std::mem::replace(expr.as_mut(), Expr::value(Value::Null));
            **expr = Expr::Nested(Box::new(interval));
        }
        ControlFlow::<()>::Continue(())
    });
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    #[test]
    fn a_minus_is_outside_of_an_interval() {
        let written = |sql: &str| {
            let mut statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
            keep_signs(&mut statement);
            statement.to_string()
        };
        assert_eq!(written("SELECT -INTERVAL '1 month 2 days', 1 - INTERVAL '1 day'"), "SELECT -(INTERVAL '1 month 2 days'), 1 - INTERVAL '1 day'");
        assert_eq!(written("SELECT 1 WHERE x > -INTERVAL '1' DAY"), "SELECT 1 WHERE x > -(INTERVAL '1' DAY)");
    }
}
