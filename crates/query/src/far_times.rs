//! Times that nanoseconds cannot hold, where they are written out.
//!
//! `TIMESTAMP '9999-12-31'` has nanoseconds, which end in 2262. Such a constant gets microseconds instead, by the
//! syntax for that: `TIMESTAMP(6) '9999-12-31'`.

use std::ops::ControlFlow;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{DataType as SqlType, Expr, TypedString, visit_expressions_mut};

/// Gives the constants of `statement` the unit that holds them.
pub(crate) fn widen(statement: &mut Statement) {
    let Statement::Statement(statement) = statement else { return };
    let _ = visit_expressions_mut(statement.as_mut(), |e| {
        let (of, text) = match e {
            Expr::TypedString(TypedString { data_type, value, .. }) => (data_type, value.value.clone().into_string()),
            Expr::Cast { data_type, expr, .. } => match expr.as_ref() {
                Expr::Value(value) => (data_type, value.value.clone().into_string()),
                _ => return ControlFlow::<()>::Continue(()),
            },
            _ => return ControlFlow::Continue(()),
        };
        if let SqlType::Timestamp(precision @ None, _) = of
            && text.is_some_and(|text| needs_microseconds(&text))
        {
            *precision = Some(6);
        }
        ControlFlow::Continue(())
    });
}

fn needs_microseconds(text: &str) -> bool {
    let read = |unit: TimeUnit| ScalarValue::from(text).cast_to(&DataType::Timestamp(unit, None)).is_ok_and(|value| !value.is_null());
    !read(TimeUnit::Nanosecond) && read(TimeUnit::Microsecond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_years_beyond_nanoseconds_are_widened() {
        for (text, wide) in
            [("2262-04-11", false), ("2262-04-12", true), ("9999-12-31 23:59:59.999999", true), ("1677-09-21", true), ("1678-01-01", false), ("no time", false)]
        {
            assert_eq!(needs_microseconds(text), wide, "{text}");
        }
    }
}
