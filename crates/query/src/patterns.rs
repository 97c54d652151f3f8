//! `LIKE ... ESCAPE` and `SIMILAR TO`, in the forms that the engine has.
//!
//! The engine's `LIKE` escapes by `\` and nothing else, and it takes the pattern of `SIMILAR TO` for a regular
//! expression that may match anywhere. So the patterns are rewritten where they are written out: one with another
//! escape as one with `\`, and one of `SIMILAR TO` as a regular expression of the whole text.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Value, ValueWithSpan, visit_expressions_mut};
use skytether_common::{Error, Result};

/// Rewrites the patterns of `statement`.
///
/// # Errors
/// Unsupported for a pattern with another escape, or of `SIMILAR TO`, that is not written out; Invalid for one that
/// ends in its escape, and for an escape of several characters.
pub(crate) fn rewrite(statement: &mut Statement) -> Result<()> {
    let Statement::Statement(statement) = statement else { return Ok(()) };
    let mut failed = Ok(());
    let _ = visit_expressions_mut(statement.as_mut(), |e| match pattern(e) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Err(error);
            ControlFlow::Break(())
        }
    });
    failed
}

fn pattern(e: &mut Expr) -> Result<()> {
    match e {
        Expr::Like { pattern, escape_char, .. } | Expr::ILike { pattern, escape_char, .. } => {
            let Some(given) = escape_char.take() else { return Ok(()) };
            let escape = escape_of(&given)?;
            if escape != Some('\\') {
                let text =
                    literal(pattern).ok_or_else(|| Error::unsupported("LIKE with ESCAPE and a pattern that is not written out: use \\ in the pattern"))?;
                **pattern = text_of(like(&text, escape)?);
            }
        }
        Expr::SimilarTo { negated, expr, pattern, escape_char } => {
            let escape = escape_char.take().map_or(Ok(Some('\\')), |given| escape_of(&given))?;
            let text = literal(pattern)
                .ok_or_else(|| Error::unsupported("SIMILAR TO with a pattern that is not written out: use ~ with a regular expression, or LIKE"))?;
            let op = if *negated { BinaryOperator::PGRegexNotMatch } else { BinaryOperator::PGRegexMatch };
            let left = Expr::Nested(std::mem::replace(expr, Box::new(Expr::value(Value::Null))));
            *e = Expr::Nested(Box::new(Expr::BinaryOp { left: Box::new(left), op, right: Box::new(text_of(similar(&text, escape)?)) }));
        }
        _ => {}
    }
    Ok(())
}

fn text_of(text: String) -> Expr {
    Expr::value(Value::SingleQuotedString(text))
}

fn literal(e: &Expr) -> Option<String> {
    match e {
        Expr::Value(value) => value.value.clone().into_string(),
        Expr::Nested(inner) => literal(inner),
        _ => None,
    }
}

/// The escape character; `None` for `ESCAPE ''`, which turns escapes off.
fn escape_of(given: &ValueWithSpan) -> Result<Option<char>> {
    let text = given.value.clone().into_string().ok_or_else(|| Error::invalid("ESCAPE takes a text of one character"))?;
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (one, None) => Ok(one),
        _ => Err(Error::invalid(format!("ESCAPE {text:?}: write a text of one character, or '' for none"))),
    }
}

fn ends_in_escape(pattern: &str) -> Error {
    Error::invalid(format!("the pattern {pattern:?} ends in its escape character: write the character twice"))
}

/// `pattern` of `LIKE` with `escape`, as one with `\`.
fn like(pattern: &str, escape: Option<char>) -> Result<String> {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let (c, is_literal) = if Some(c) == escape { (chars.next().ok_or_else(|| ends_in_escape(pattern))?, true) } else { (c, false) };
        if c == '\\' || (is_literal && matches!(c, '%' | '_')) {
            out.push('\\');
        }
        out.push(c);
    }
    Ok(out)
}

/// `pattern` of `SIMILAR TO` with `escape`, as a regular expression of the whole text.
fn similar(pattern: &str, escape: Option<char>) -> Result<String> {
    let mut out = String::from("(?s)^(?:");
    let mut chars = pattern.chars();
    // Within brackets, `%` and `_` are characters like others.
    let mut bracket = false;
    while let Some(c) = chars.next() {
        if Some(c) == escape {
            let c = chars.next().ok_or_else(|| ends_in_escape(pattern))?;
            quote(c, &mut out);
            continue;
        }
        match c {
            '[' if !bracket => {
                bracket = true;
                out.push(c);
            }
            ']' if bracket => {
                bracket = false;
                out.push(c);
            }
            '\\' => out.push_str("\\\\"),
            _ if bracket && matches!(c, '[' | '&' | '~') => quote(c, &mut out),
            _ if bracket => out.push(c),
            '%' => out.push_str(".*"),
            '_' => out.push('.'),
            '|' | '*' | '+' | '?' | '{' | '}' | '(' | ')' => out.push(c),
            _ => quote(c, &mut out),
        }
    }
    out.push_str(")$");
    Ok(out)
}

/// Adds `c` as itself to a regular expression.
fn quote(c: char, out: &mut String) {
    if c.is_ascii_punctuation() {
        out.push('\\');
    }
    out.push(c);
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::parser::DFParser;

    fn rewritten(condition: &str) -> Result<String> {
        let mut statement = DFParser::parse_sql(&format!("SELECT {condition}")).unwrap().pop_front().unwrap();
        rewrite(&mut statement)?;
        Ok(statement.to_string().trim_start_matches("SELECT ").to_owned())
    }

    #[test]
    fn like_with_an_escape_is_like_with_a_backslash() {
        for (given, expected) in [
            ("s LIKE 'a!%b_' ESCAPE '!'", r"s LIKE 'a\%b_'"),
            ("s NOT LIKE 'a!!b' ESCAPE '!'", "s NOT LIKE 'a!b'"),
            (r"s ILIKE 'a\b%' ESCAPE '!'", r"s ILIKE 'a\\b%'"),
            (r"s LIKE 'a\b' ESCAPE ''", r"s LIKE 'a\\b'"),
            (r"s LIKE 'a\%' ESCAPE '\'", r"s LIKE 'a\%'"),
            (r"s LIKE p ESCAPE '\'", "s LIKE p"),
        ] {
            assert_eq!(rewritten(given).unwrap(), expected, "{given}");
        }
        for refused in ["s LIKE p ESCAPE '!'", "s LIKE 'a!' ESCAPE '!'", "s LIKE 'a' ESCAPE 'ab'", "s SIMILAR TO p"] {
            rewritten(refused).unwrap_err();
        }
    }

    #[test]
    fn similar_to_becomes_an_expression_of_the_whole_text() {
        for (given, expected) in [
            ("foo(_|%|bar)%", r"(?s)^(?:foo(.|.*|bar).*)$"),
            ("a.b^c$", r"(?s)^(?:a\.b\^c\$)$"),
            (r"10\%", r"(?s)^(?:10\%)$"),
            ("[%_a-z]+", "(?s)^(?:[%_a-z]+)$"),
        ] {
            assert_eq!(similar(given, Some('\\')).unwrap(), expected, "{given}");
        }
        assert_eq!(rewritten("NOT s SIMILAR TO 'a%' AND t").unwrap(), "NOT ((s) ~ '(?s)^(?:a.*)$') AND t");
    }
}
