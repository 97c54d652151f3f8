//! How long and how nested the text of a query may be.
//!
//! Parser and planner are recursive: a chain such as `1 + 1 + ...` becomes a tree as deep as the chain is long, and a
//! stack that overflows ends the process. (Parentheses are limited by the parser itself.)

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Function, ObjectNamePart, Statement, visit_expressions};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use skytether_common::{Error, Result};

use skytether_api::statement::MAX_REQUEST;

/// The longest text, in bytes, without literals: a literal may spell out groups of cells, and is only a value to the
/// parser.
pub const MAX_TEXT: usize = 1 << 20;

/// The most operators in one query. Tests show that chains of about this length are planned on stacks of 32 MiB, which
/// the threads of hosts have.
pub const MAX_OPERATORS: usize = 1000;

/// Refuses texts that parser and planner should not see.
///
/// # Errors
/// `Invalid`, with the limit.
pub(crate) fn check(text: &str) -> Result<()> {
    if text.len() > MAX_REQUEST {
        return Err(Error::invalid(format!("a query of {} bytes is too long: at most {MAX_REQUEST}", text.len())));
    }
    let bare = unquoted(text);
    if bare > MAX_TEXT {
        return Err(Error::invalid(format!(
            "a query of {bare} bytes besides its quoted texts is too long: at most {MAX_TEXT}; write long lists as a data set and join it"
        )));
    }
    // The parser refuses what is no sequence of tokens.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, text).tokenize() else { return Ok(()) };
    if let Some(name) = tokens.iter().find_map(|token| own_name(token)) {
        return Err(Error::invalid(format!("the name {name:?} begins like those that the planner makes: choose another")));
    }
    let operators = tokens.iter().filter(|t| nests(t)).count();
    if operators > MAX_OPERATORS {
        return Err(Error::invalid(format!(
            "a query with {operators} operators is too deep: at most {MAX_OPERATORS}; use IN for long lists of values, or a join"
        )));
    }
    Ok(())
}

/// Beginnings of names that rules give to columns. They look a column up by such a name, and would find another.
const OWN: [&str; 8] = ["__common_expr_", "__always_true", "__again_", "__order_", "__sort_key_", "__tie_", "__mark_", "__result_"];

/// The name that `token` is, if the planner may make it, too.
fn own_name(token: &Token) -> Option<&str> {
    let Token::Word(word) = token else { return None };
    OWN.iter().any(|own| word.value.starts_with(own)).then_some(word.value.as_str())
}

/// Whether a token may add a level to the tree: all operators and the words among them.
fn nests(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AND
                | Keyword::OR
                | Keyword::XOR
                | Keyword::NOT
                | Keyword::IS
                | Keyword::IN
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::RLIKE
                | Keyword::REGEXP
                | Keyword::SIMILAR
                | Keyword::BETWEEN
                | Keyword::COLLATE
                | Keyword::DIV
                | Keyword::OVERLAPS
                | Keyword::ZONE
                | Keyword::UNION
                | Keyword::EXCEPT
                | Keyword::INTERSECT
                | Keyword::MINUS
                | Keyword::JOIN
                | Keyword::SELECT
                | Keyword::FROM
                | Keyword::CASE
                | Keyword::INTERVAL
        ),
        Token::Whitespace(_)
        | Token::Comma
        | Token::LParen
        | Token::RParen
        | Token::Period
        | Token::SemiColon
        | Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::DoubleQuotedString(_)
        | Token::NationalStringLiteral(_)
        | Token::HexStringLiteral(_)
        | Token::EscapedStringLiteral(_)
        | Token::EOF => false,
        _ => true,
    }
}

/// Refuses a statement in which the parser took `NOT (x)` for a call. It does so where `x` is nested too deeply, and
/// what follows would bind otherwise: `NOT (a) = b` is `NOT (a = b)`.
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_operators(statement: &Statement) -> Result<()> {
    let is_operator = |call: &Function| match call.name.0.as_slice() {
        [ObjectNamePart::Identifier(name)] => name.quote_style.is_none() && name.value.eq_ignore_ascii_case("not"),
        _ => false,
    };
    let found = visit_expressions(statement, |e| match e {
        Expr::Function(call) if is_operator(call) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    if found.is_break() { Err(Error::invalid("the query is nested too deeply, below NOT")) } else { Ok(()) }
}

/// Bytes of `text` outside of quotes and comments.
fn unquoted(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut bare) = (0, 0);
    while at < bytes.len() {
        let end: &[u8] = match &bytes[at..] {
            [b'\'', ..] => b"'",
            [b'"', ..] => b"\"",
            [b'-', b'-', ..] => b"\n",
            [b'/', b'*', ..] => b"*/",
            _ => {
                bare += 1;
                at += 1;
                continue;
            }
        };
        let from = (at + end.len()).min(bytes.len());
        at = bytes[from..].windows(end.len()).position(|w| w == end).map_or(bytes.len(), |n| from + n + end.len());
    }
    bare
}

#[cfg(test)]
mod tests {
    use super::*;

    // docs/sql.md: bytes of its text, without literals
    // docs/sql.md: operators
    #[test]
    fn long_literals_and_long_lists_pass_and_long_chains_do_not() {
        check(&format!("SELECT moments('{}') FROM a.b.x", "QUJD".repeat(1 << 20))).unwrap();
        check(&format!("SELECT 1 FROM a.b WHERE id IN ({}1)", "17, ".repeat(50_000))).unwrap();
        check(&format!("SELECT 1{}", " + 1".repeat(MAX_OPERATORS - 1))).unwrap();
        for chain in [" + 1", " OR a", "::int", " IS NULL", " || 'x'", " UNION ALL SELECT 1", "[1]", " NOT"] {
            let error = check(&format!("SELECT 1{}", chain.repeat(MAX_OPERATORS + 1))).unwrap_err().to_string();
            assert!(error.contains("too deep"), "{chain}: {error}");
        }
        let error = check(&format!("SELECT 1 FROM a.b WHERE id IN ({}1)", "17, ".repeat(300_000))).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
    }

    #[test]
    fn not_that_was_read_as_a_call_is_refused() {
        let parsed = |text: &str| datafusion::sql::sqlparser::parser::Parser::parse_sql(&GenericDialect {}, text).unwrap().remove(0);
        check_operators(&parsed("SELECT NOT (a), NOT a FROM t WHERE NOT (a = 1 AND NOT (b IN (SELECT x FROM u)))")).unwrap();
        check_operators(&parsed("SELECT \"not\"(a)")).unwrap();
        // No operand of the operator.
        let error = check_operators(&parsed("SELECT (SELECT not(DISTINCT a)) FROM t")).unwrap_err();
        assert!(error.message().contains("nested too deeply"), "{error:?}");
    }

    #[test]
    fn quotes_and_comments_are_distinguished() {
        assert_eq!(unquoted("a 'it''s' b"), 4);
        assert_eq!(unquoted("a -- it's\n'b' c"), 4);
        assert_eq!(unquoted("a /* it's */ b"), 4);
        assert_eq!(unquoted("\"it's\" b"), 2);
        assert_eq!(unquoted("a 'open"), 2);
    }
}
