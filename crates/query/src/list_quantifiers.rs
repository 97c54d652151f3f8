//! `x = ANY(list)` and its relatives with three values.
//!
//! DataFusion asks whether the list has the value, or compares with its least or largest one: NULLs in the list count
//! for nothing, and the answer is false where SQL has NULL. Its `ALL` knows NULLs. So `x < ANY(list)` becomes `NOT x >=
//! ALL(list)`, and `x = ANY(list)` asks for the value first, which indexes and statistics know: a list of constants
//! becomes `x IN (...)`. Subqueries are left as they are.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::helpers::attached_token::AttachedToken;
use datafusion::sql::sqlparser::ast::{
    Array, BinaryOperator, CaseWhen, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, ObjectName, UnaryOperator,
    Value, Visit, Visitor, visit_expressions_mut,
};
use skytether_common::{Error, Result};

/// How many quantifiers may be within one another. Each is planned with several copies of its operands.
const MAX_NESTING: usize = 3;

/// Writes the `ANY` and `ALL` of lists in `statement` in other words.
///
/// # Errors
/// Invalid for more of them within one another than [`MAX_NESTING`].
pub(crate) fn rewrite(statement: &mut Statement) -> Result<()> {
    let Statement::Statement(statement) = statement else { return Ok(()) };
    let mut nesting = Nesting::default();
    let _ = statement.visit(&mut nesting);
    if nesting.most > MAX_NESTING {
        return Err(Error::invalid(format!(
            "more than {MAX_NESTING} ANY and ALL of lists are within one another: compute the inner ones as columns of a subquery in FROM"
        )));
    }
    let _ = visit_expressions_mut(statement.as_mut(), |e| {
        let written = match e {
            Expr::AnyOp { left, compare_op, right, .. } if !is_subquery(right) => any(left, compare_op, right),
            Expr::AllOp { left, compare_op: BinaryOperator::NotEq, right } => constants(right).map(|list| among(left, list, true)),
            _ => None,
        };
        if let Some(written) = written {
            *e = Expr::Nested(Box::new(written));
        }
        ControlFlow::<()>::Continue(())
    });
    Ok(())
}

/// How many quantifiers of lists are within one another.
#[derive(Default)]
struct Nesting {
    now: usize,
    most: usize,
}

impl Visitor for Nesting {
    type Break = ();

    fn pre_visit_expr(&mut self, e: &Expr) -> ControlFlow<()> {
        self.now += usize::from(is_quantifier(e));
        self.most = self.most.max(self.now);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, e: &Expr) -> ControlFlow<()> {
        self.now -= usize::from(is_quantifier(e));
        ControlFlow::Continue(())
    }
}

fn is_quantifier(e: &Expr) -> bool {
    matches!(e, Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } if !is_subquery(right))
}

fn is_subquery(e: &Expr) -> bool {
    matches!(e, Expr::Subquery(_))
}

fn any(left: &Expr, op: &BinaryOperator, right: &Expr) -> Option<Expr> {
    let opposite = match op {
        BinaryOperator::Eq => return Some(constants(right).map_or_else(|| has(left, right), |list| among(left, list, false))),
        BinaryOperator::NotEq => BinaryOperator::Eq,
        BinaryOperator::Lt => BinaryOperator::GtEq,
        BinaryOperator::LtEq => BinaryOperator::Gt,
        BinaryOperator::Gt => BinaryOperator::LtEq,
        BinaryOperator::GtEq => BinaryOperator::Lt,
        // Other operators are refused with their names.
        _ => return None,
    };
    let all = Expr::AllOp { left: Box::new(left.clone()), compare_op: opposite, right: Box::new(right.clone()) };
    Some(Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(all) })
}

/// The elements of a list that is written as one, and has some.
fn constants(list: &Expr) -> Option<&[Expr]> {
    match list {
        Expr::Array(Array { elem, .. }) if !elem.is_empty() && !elem.iter().any(|e| matches!(e, Expr::Array(_))) => Some(elem),
        Expr::Nested(inner) => constants(inner),
        _ => None,
    }
}

fn among(x: &Expr, list: &[Expr], negated: bool) -> Expr {
    Expr::InList { expr: Box::new(x.clone()), list: list.to_vec(), negated }
}

/// `array_has(list, x) OR CASE WHEN array_position(list, NULL) IS NULL THEN false END`: true, false where no element is
/// NULL, else NULL.
fn has(x: &Expr, list: &Expr) -> Expr {
    let null_at = call("array_position", [list.clone(), Expr::value(Value::Null)]);
    let no_null = CaseWhen { condition: Expr::IsNull(Box::new(null_at)), result: Expr::value(Value::Boolean(false)) };
    let or_null =
        Expr::Case { case_token: AttachedToken::empty(), end_token: AttachedToken::empty(), operand: None, conditions: vec![no_null], else_result: None };
    let left = call("array_has", [list.clone(), x.clone()]);
    Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::Or, right: Box::new(or_null) }
}

fn call(name: &str, args: [Expr; 2]) -> Expr {
    let args = args.into_iter().map(|e| FunctionArg::Unnamed(FunctionArgExpr::Expr(e))).collect();
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn written(condition: &str) -> String {
        let mut statement = DFParser::parse_sql(&format!("SELECT {condition}")).unwrap().pop_front().unwrap();
        rewrite(&mut statement).unwrap();
        statement.to_string().trim_start_matches("SELECT ").to_owned()
    }

    #[test]
    fn lists_are_asked_with_three_values() {
        for (condition, expected) in [
            ("x < ANY(l)", "(NOT x >= ALL(l))"),
            ("x <> ANY(l)", "(NOT x = ALL(l))"),
            ("x = ANY(l)", "(array_has(l, x) OR CASE WHEN array_position(l, NULL) IS NULL THEN false END)"),
            ("x = ANY(ARRAY[1, NULL])", "(x IN (1, NULL))"),
            ("x <> ALL([1, 2])", "(x NOT IN (1, 2))"),
            ("x <> ALL(l)", "x <> ALL(l)"),
            ("x = ANY(SELECT y FROM t)", "x = ANY(SELECT y FROM t)"),
        ] {
            assert_eq!(written(condition), expected);
        }
    }
}
