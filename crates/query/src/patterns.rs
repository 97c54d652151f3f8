//! `LIKE ... ESCAPE` and `SIMILAR TO`, in the forms that the engine has.
//!
//! The engine's `LIKE` escapes by `\` and nothing else, and it takes the pattern of `SIMILAR TO` for a regular
//! expression that may match anywhere. So the patterns are rewritten where they are written out: one with another
//! escape as one with `\`, and one of `SIMILAR TO` as a regular expression of the whole text. A column of the result is
//! called by the text of the query all the same.

use std::iter::Peekable;
use std::ops::ControlFlow;
use std::str::Chars;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, Select, SelectItem, Value, ValueWithSpan, VisitMut, VisitorMut, visit_expressions, visit_expressions_mut,
};
use skytether_common::{Error, Result};

/// Rewrites the patterns of `statement`.
///
/// # Errors
/// Unsupported for a pattern with another escape, or of `SIMILAR TO`, that is not written out; Invalid for one that
/// ends in its escape or is none, and for an escape of several characters.
pub(crate) fn rewrite(statement: &mut Statement) -> Result<()> {
    let Statement::Statement(statement) = statement else { return Ok(()) };
    let _ = VisitMut::visit(statement.as_mut(), &mut Names);
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

/// Gives results that are rewritten the name that they have.
struct Names;

impl VisitorMut for Names {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let is_rewritten = |e: &Expr| match e {
            Expr::Like { escape_char, .. } | Expr::ILike { escape_char, .. } => escape_char.is_some(),
            e => matches!(e, Expr::SimilarTo { .. }),
        };
        for item in &mut select.projection {
            let SelectItem::UnnamedExpr(e) = item else { continue };
            if visit_expressions(e, |e| if is_rewritten(e) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }).is_break() {
                *item = SelectItem::ExprWithAlias { alias: Ident::with_quote('"', e.to_string()), expr: e.clone() };
            }
        }
        ControlFlow::Continue(())
    }
}

fn is_null(e: &Expr) -> bool {
    match e {
        Expr::Value(value) => value.value == Value::Null,
        Expr::Nested(inner) => is_null(inner),
        _ => false,
    }
}

fn pattern(e: &mut Expr) -> Result<()> {
    let null = || Box::new(Expr::value(Value::Null));
    match e {
        Expr::Like { pattern, escape_char, .. } | Expr::ILike { pattern, escape_char, .. }
            if is_null(pattern) || escape_char.as_ref().is_some_and(|escape| escape.value == Value::Null) =>
        {
            (*pattern, *escape_char) = (null(), None);
        }
        Expr::SimilarTo { negated, expr, pattern, escape_char }
            if is_null(pattern) || escape_char.as_ref().is_some_and(|escape| escape.value == Value::Null) =>
        {
            let expr = std::mem::replace(expr, null());
            *e = Expr::Like { negated: *negated, any: false, expr, pattern: null(), escape_char: None };
        }
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
    let wrong = |what: &str| Error::invalid(format!("SIMILAR TO {pattern:?}: {what}; write the escape character before a character that stands alone"));
    let mut out = String::from("(?s)^(?:");
    let mut chars = pattern.chars().peekable();
    let (mut open, mut repeatable) = (0_usize, false);
    while let Some(c) = chars.next() {
        if Some(c) == escape {
            quote(chars.next().ok_or_else(|| ends_in_escape(pattern))?, &mut out);
            repeatable = true;
            continue;
        }
        match c {
            // The engine's expressions have flags behind a parenthesis, and lazy forms behind a repetition.
            '*' | '+' | '?' | '{' if !repeatable => return Err(wrong(&format!("nothing stands before {c} that could be repeated"))),
            '*' | '+' | '?' => out.push(c),
            '{' => out.push_str(&times(&mut chars).ok_or_else(|| wrong("{ begins a number of repetitions, such as {2} or {2,5}"))?),
            '(' => {
                open += 1;
                out.push_str("(?:");
            }
            ')' => {
                open = open.checked_sub(1).ok_or_else(|| wrong("a parenthesis is closed that is not open"))?;
                out.push(c);
            }
            '|' => out.push(c),
            '[' => out.push_str(&bracket(&mut chars, escape).ok_or_else(|| wrong("[ begins a list of characters, such as [a-z] or [[:alpha:]]"))?),
            '%' => out.push_str(".*"),
            '_' => out.push('.'),
            _ => quote(c, &mut out),
        }
        repeatable = !matches!(c, '*' | '+' | '?' | '{' | '(' | '|');
    }
    if open > 0 {
        return Err(wrong("a parenthesis is not closed"));
    }
    out.push_str(")$");
    Ok(out)
}

/// The rest of a number of repetitions, with its braces.
fn times(chars: &mut Peekable<Chars<'_>>) -> Option<String> {
    let mut inner = String::new();
    loop {
        match chars.next()? {
            '}' => break,
            c => inner.push(c),
        }
    }
    let (least, most) = inner.split_once(',').unwrap_or((&inner, ""));
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (number(least) && (most.is_empty() || number(most))).then(|| format!("{{{inner}}}"))
}

/// The rest of a list of characters, with its brackets. `%` and `_` are characters like others there.
fn bracket(chars: &mut Peekable<Chars<'_>>, escape: Option<char>) -> Option<String> {
    const CLASSES: [&str; 12] = ["alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "xdigit"];
    let mut out = String::from("[");
    out.extend(chars.next_if_eq(&'^'));
    let begin = out.len();
    // Whether a range may begin with what is last.
    let mut single = false;
    loop {
        let next = chars.next()?;
        let was_single = std::mem::replace(&mut single, true);
        match next {
            c if Some(c) == escape => quote(chars.next()?, &mut out),
            ']' if out.len() > begin => break,
            '[' => match chars.peek() {
                Some(':') => {
                    chars.next();
                    let name: String = chars.take_while(|c| *c != ':').collect();
                    (CLASSES.contains(&name.as_str()) && chars.next() == Some(']')).then_some(())?;
                    out.push_str(&format!("[:{name}:]"));
                    single = false;
                }
                Some('=' | '.') => return None,
                _ => quote('[', &mut out),
            },
            // `--` alone would be a difference of sets.
            '-' if was_single && chars.peek().is_some_and(|end| *end != ']') => {
                let end = chars.next()?;
                out.push('-');
                quote(if Some(end) == escape { chars.next()? } else { end }, &mut out);
                single = false;
            }
            c => quote(c, &mut out),
        }
    }
    out.push(']');
    Some(out)
}

/// Adds `c` as itself to a regular expression. Behind `\`, others than these have a meaning: `\<` begins a word.
fn quote(c: char, out: &mut String) {
    if r"\.+*?()|[]{}^$#&-~".contains(c) {
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
            assert_eq!(rewritten(&format!("x WHERE {given}")).unwrap(), format!("x WHERE {expected}"), "{given}");
        }
        for refused in ["s LIKE p ESCAPE '!'", "s LIKE 'a!' ESCAPE '!'", "s LIKE 'a' ESCAPE 'ab'", "s SIMILAR TO p"] {
            rewritten(refused).unwrap_err();
        }
    }

    #[test]
    fn similar_to_becomes_an_expression_of_the_whole_text() {
        for (given, expected) in [
            ("foo(_|%|bar)%", r"(?s)^(?:foo(?:.|.*|bar).*)$"),
            ("a.b^c$", r"(?s)^(?:a\.b\^c\$)$"),
            (r"10\%<b>", r"(?s)^(?:10%<b>)$"),
            ("[%_a-z]+", "(?s)^(?:[%_a-z]+)$"),
            ("[[:alpha:]0-9]+", "(?s)^(?:[[:alpha:]0-9]+)$"),
            ("[^][&~]", r"(?s)^(?:[^\]\[\&\~])$"),
            ("a{2}b{1,}c{0,3}]}", r"(?s)^(?:a{2}b{1,}c{0,3}\]\})$"),
        ] {
            assert_eq!(similar(given, Some('\\')).unwrap(), expected, "{given}");
        }
        let name = "\"NOT s SIMILAR TO 'a%' AND t\"";
        assert_eq!(rewritten("NOT s SIMILAR TO 'a%' AND t").unwrap(), format!("NOT ((s) ~ '(?s)^(?:a.*)$') AND t AS {name}"));
    }

    #[test]
    fn patterns_that_are_none_are_refused() {
        for pattern in ["b)|(a", "(a", "a)", "(?i)a", "a*?", "a**", "*a", "a|+", "a{", "a{2", "a{x}", "a{,2}", "[a", "[[:alfa:]]", "[[=a=]]", "[]"] {
            let error = similar(pattern, Some('\\')).unwrap_err();
            assert!(error.message().starts_with("SIMILAR TO"), "{error}");
        }
    }

    #[test]
    fn null_as_pattern_or_escape_gives_null() {
        for (given, expected) in [
            ("x WHERE s LIKE 'a' ESCAPE NULL", "x WHERE s LIKE NULL"),
            ("x WHERE s LIKE NULL ESCAPE '!'", "x WHERE s LIKE NULL"),
            ("x WHERE s NOT SIMILAR TO NULL", "x WHERE s NOT LIKE NULL"),
            ("x WHERE s SIMILAR TO 'a' ESCAPE NULL", "x WHERE s LIKE NULL"),
        ] {
            assert_eq!(rewritten(given).unwrap(), expected);
        }
    }

    #[test]
    fn results_keep_the_names_of_their_texts() {
        let given = "s LIKE 'a!%' ESCAPE '!', s LIKE 'a%'";
        assert_eq!(rewritten(given).unwrap(), r#"s LIKE 'a\%' AS "s LIKE 'a!%' ESCAPE '!'", s LIKE 'a%'"#);
    }
}
