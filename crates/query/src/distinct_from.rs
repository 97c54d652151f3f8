//! What `IS [NOT] DISTINCT FROM` compares with, as in PostgreSQL.
//!
//! sqlparser takes everything behind `FROM` as the right operand: `x IS DISTINCT FROM y AND z` becomes
//! `x IS DISTINCT FROM (y AND z)`. Parentheses that the text has are nodes of their own in the tree. So the tree of
//! operators that bind as weakly as `IS`, or more weakly, can be laid out in the order of the text, and built again by
//! precedence.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, UnaryOperator, Value, visit_expressions_mut};

/// sqlparser's precedences.
const OR: u8 = 5;
const AND: u8 = 10;
const NOT: u8 = 15;
const IS: u8 = 17;

/// One step of an expression in the order of the text.
enum Item {
    /// Anything that binds more strongly than `IS`, or has parentheses around it.
    Operand(Expr),
    /// `NOT`.
    Not,
    /// `AND`, `OR`.
    Binary(BinaryOperator, u8),
    /// `IS DISTINCT FROM`; `true` with `NOT`.
    Distinct(bool),
    /// `IS NULL` and its relatives: what makes the expression from its operand.
    Postfix(fn(Box<Expr>) -> Expr),
}

/// Binds the right operands of `IS [NOT] DISTINCT FROM` in `statement` as PostgreSQL does.
pub(crate) fn bind(statement: &mut Statement) {
    let Statement::Statement(statement) = statement else { return };
    let mut found = false;
    let _ = visit_expressions_mut(statement.as_mut(), |e| {
        found |= matches!(e, Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..));
        ControlFlow::<()>::Continue(())
    });
    if !found {
        return;
    }
    // An expression is visited after what it consists of; each is laid out and built again. Those that are right
    // already stay as they are.
    let _ = visit_expressions_mut(statement.as_mut(), |e| {
        if is_weak(e) {
            let mut items = Vec::new();
            lay_out(std::mem::replace(e, Expr::value(Value::Null)), &mut items);
            let mut items = items.into_iter().peekable();
            *e = build(&mut items, 0);
        }
        ControlFlow::<()>::Continue(())
    });
}

/// Whether `e` is an operator that binds as weakly as `IS`, or more weakly.
fn is_weak(e: &Expr) -> bool {
    match e {
        Expr::BinaryOp { op, .. } => weak(op).is_some(),
        Expr::UnaryOp { op, .. } => *op == UnaryOperator::Not,
        Expr::IsDistinctFrom(..) | Expr::IsNotDistinctFrom(..) => true,
        other => postfix(other).is_some(),
    }
}

fn weak(op: &BinaryOperator) -> Option<u8> {
    match op {
        BinaryOperator::Or => Some(OR),
        BinaryOperator::And => Some(AND),
        _ => None,
    }
}

fn postfix(e: &Expr) -> Option<fn(Box<Expr>) -> Expr> {
    Some(match e {
        Expr::IsNull(_) => Expr::IsNull,
        Expr::IsNotNull(_) => Expr::IsNotNull,
        Expr::IsTrue(_) => Expr::IsTrue,
        Expr::IsNotTrue(_) => Expr::IsNotTrue,
        Expr::IsFalse(_) => Expr::IsFalse,
        Expr::IsNotFalse(_) => Expr::IsNotFalse,
        Expr::IsUnknown(_) => Expr::IsUnknown,
        Expr::IsNotUnknown(_) => Expr::IsNotUnknown,
        _ => return None,
    })
}

/// Adds `e` to `items` in the order of the text.
fn lay_out(e: Expr, items: &mut Vec<Item>) {
    let form = postfix(&e);
    match e {
        Expr::BinaryOp { left, op, right } if weak(&op).is_some() => {
            let strength = weak(&op).unwrap_or(AND);
            lay_out(*left, items);
            items.push(Item::Binary(op, strength));
            lay_out(*right, items);
        }
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => {
            items.push(Item::Not);
            lay_out(*expr, items);
        }
        Expr::IsDistinctFrom(left, right) => {
            lay_out(*left, items);
            items.push(Item::Distinct(false));
            lay_out(*right, items);
        }
        Expr::IsNotDistinctFrom(left, right) => {
            lay_out(*left, items);
            items.push(Item::Distinct(true));
            lay_out(*right, items);
        }
        Expr::IsNull(inner)
        | Expr::IsNotNull(inner)
        | Expr::IsTrue(inner)
        | Expr::IsNotTrue(inner)
        | Expr::IsFalse(inner)
        | Expr::IsNotFalse(inner)
        | Expr::IsUnknown(inner)
        | Expr::IsNotUnknown(inner) => {
            lay_out(*inner, items);
            items.extend(form.map(Item::Postfix));
        }
        other => items.push(Item::Operand(other)),
    }
}

/// The expression that `items` begin with, as far as its operators bind more strongly than `least`.
fn build(items: &mut std::iter::Peekable<std::vec::IntoIter<Item>>, least: u8) -> Expr {
    let mut e = match items.next() {
        Some(Item::Not) => Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(build(items, NOT)) },
        Some(Item::Operand(operand)) => operand,
        // A tree begins with an operand; `lay_out` adds no other.
        _ => Expr::value(Value::Null),
    };
    while let Some(strength) = items.peek().and_then(strength).filter(|strength| *strength > least) {
        e = match items.next() {
            Some(Item::Binary(op, _)) => Expr::BinaryOp { left: Box::new(e), op, right: Box::new(build(items, strength)) },
            Some(Item::Distinct(false)) => Expr::IsDistinctFrom(Box::new(e), Box::new(build(items, strength))),
            Some(Item::Distinct(true)) => Expr::IsNotDistinctFrom(Box::new(e), Box::new(build(items, strength))),
            Some(Item::Postfix(form)) => form(Box::new(e)),
            _ => return e,
        };
    }
    e
}

fn strength(item: &Item) -> Option<u8> {
    match item {
        Item::Binary(_, strength) => Some(*strength),
        Item::Distinct(_) | Item::Postfix(_) => Some(IS),
        Item::Operand(_) | Item::Not => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn bound(condition: &str) -> String {
        let mut statement = DFParser::parse_sql(&format!("SELECT {condition}")).unwrap().pop_front().unwrap();
        bind(&mut statement);
        statement.to_string()
    }

    /// Each with the same in parentheses, as PostgreSQL's grammar has them.
    #[test]
    fn right_operand_ends_where_weaker_operators_begin() {
        for (plain, nested) in [
            ("x IS DISTINCT FROM y AND z", "(x IS DISTINCT FROM y) AND z"),
            ("x IS NOT DISTINCT FROM y OR z", "(x IS NOT DISTINCT FROM y) OR z"),
            ("a AND x IS DISTINCT FROM y OR b", "(a AND (x IS DISTINCT FROM y)) OR b"),
            ("NOT x IS DISTINCT FROM y AND z", "(NOT (x IS DISTINCT FROM y)) AND z"),
            ("x IS DISTINCT FROM NOT y AND z", "(x IS DISTINCT FROM (NOT y)) AND z"),
            ("x IS DISTINCT FROM y IS NULL", "(x IS DISTINCT FROM y) IS NULL"),
            ("x IS DISTINCT FROM y IS NOT DISTINCT FROM z OR w", "((x IS DISTINCT FROM y) IS NOT DISTINCT FROM z) OR w"),
            ("x IS DISTINCT FROM y + 1 AND z > 1", "(x IS DISTINCT FROM (y + 1)) AND (z > 1)"),
            ("x IS DISTINCT FROM y = z AND w", "(x IS DISTINCT FROM (y = z)) AND w"),
            ("x IS DISTINCT FROM 'a' AND y BETWEEN 1 AND 2 OR z", "((x IS DISTINCT FROM 'a') AND (y BETWEEN 1 AND 2)) OR z"),
            ("x IS DISTINCT FROM (y AND z)", "x IS DISTINCT FROM (y AND z)"),
            ("x IS DISTINCT FROM (y IS DISTINCT FROM z AND w)", "x IS DISTINCT FROM ((y IS DISTINCT FROM z) AND w)"),
            ("CASE WHEN x IS DISTINCT FROM y AND z THEN 1 END", "CASE WHEN (x IS DISTINCT FROM y) AND z THEN 1 END"),
        ] {
            let bare = |text: String| text.chars().filter(|c| !matches!(c, '(' | ')')).collect::<String>();
            // The same operators in the same order, and the same tree.
            assert_eq!(bare(bound(plain)), bare(format!("SELECT {plain}")), "{plain}");
            assert_eq!(shape(plain), shape(nested), "{plain}");
        }
    }

    /// The tree of a condition, without the nodes of parentheses.
    fn shape(condition: &str) -> String {
        let mut statement = DFParser::parse_sql(&format!("SELECT {condition}")).unwrap().pop_front().unwrap();
        bind(&mut statement);
        let Statement::Statement(inner) = &mut statement else { unreachable!() };
        let _ = visit_expressions_mut(inner.as_mut(), |e| {
            while let Expr::Nested(within) = e {
                *e = within.as_ref().clone();
            }
            ControlFlow::<()>::Continue(())
        });
        let text = format!("{inner:?}");
        // Where in the text a token was.
        text.split("Location(").map(|part| part.split_once(')').map_or(part, |(_, rest)| rest)).collect()
    }
}
