//! Rust sources as tokens, without comments and without test code.

/// A token: a word, a literal with its quotes, a lifetime, one of `::`, `..`, `->`, `=>`, or another single character.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    /// From 1 on.
    pub(crate) line: usize,
}

/// The tokens of a source.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let length = if first.is_whitespace() {
            first.len_utf8()
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some(skipped) = raw_identifier(rest) {
            let length = skipped + word(&rest[skipped..]);
            found.push(Token { text: &rest[skipped..length], line });
            length
        } else {
            let length = literal(rest).unwrap_or_else(|| match word(rest) {
                0 if ["::", "..", "->", "=>"].iter().any(|pair| rest.starts_with(pair)) => 2,
                0 => first.len_utf8(),
                length => length,
            });
            found.push(Token { text: &rest[..length], line });
            length
        };
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

/// The bytes of a word at the beginning: an identifier, a keyword or (part of) a number.
fn word(rest: &str) -> usize {
    rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len())
}

/// The bytes of the comment at the beginning, which may contain others.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The bytes of `r#`, if it begins an identifier.
fn raw_identifier(rest: &str) -> Option<usize> {
    let name = rest.strip_prefix("r#")?;
    name.starts_with(|c: char| c.is_alphabetic() || c == '_').then_some(2)
}

/// The bytes of a string, a character or a lifetime at the beginning.
fn literal(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c"].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix);
        after.is_some_and(|after| after.starts_with('"') || (prefix.ends_with('r') && after.starts_with('#')) || (*prefix == "b" && after.starts_with('\'')))
    });
    let start = prefix.map_or(0, str::len);
    let body = &rest[start..];
    if prefix.is_some_and(|prefix| prefix.ends_with('r')) {
        let hashes = body.len() - body.trim_start_matches('#').len();
        let text = body[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(start + hashes + 1 + text.find(&end).map_or(text.len(), |at| at + end.len()));
    }
    if body.starts_with('"') {
        return Some(start + quoted(body, '"'));
    }
    let name = body.strip_prefix('\'')?;
    let mut characters = name.chars();
    let first = characters.next()?;
    // 'a' is a character, 'a without a quote behind it a lifetime.
    if first == '\\' || characters.next() == Some('\'') { Some(start + quoted(body, '\'')) } else { Some(start + 1 + word(name)) }
}

/// The bytes of the literal at the beginning, with the `quote`s around it.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The index behind the bracket that closes the one at `open`, or the number of tokens.
pub(crate) fn behind(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// The tokens without the items, statements and fields that only tests compile, and whether only tests compile the
/// whole file.
pub(crate) fn without_tests<'a>(tokens: &[Token<'a>]) -> (Vec<Token<'a>>, bool) {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at].text == "#" && text(tokens, at + 1) == "!" && text(tokens, at + 2) == "[" {
            if is_test(&tokens[at + 3..behind(tokens, at + 2) - 1]) {
                return (Vec::new(), true);
            }
        } else if tokens[at].text == "#" && text(tokens, at + 1) == "[" {
            let (mut end, mut test) = (at, false);
            while text(tokens, end) == "#" && text(tokens, end + 1) == "[" {
                let next = behind(tokens, end + 1);
                test |= is_test(&tokens[end + 2..(next - 1).max(end + 2)]);
                end = next;
            }
            if test {
                at = behind_item(tokens, end);
            } else {
                kept.extend_from_slice(&tokens[at..end]);
                at = end;
            }
            continue;
        }
        kept.push(tokens[at]);
        at += 1;
    }
    (kept, false)
}

fn text<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    tokens.get(at).map_or("", |token| token.text)
}

/// Whether an attribute, without its brackets, leaves its item to tests: `cfg(test)`, `cfg(all(test, ..))`, `test`,
/// `tokio::test(..)`.
fn is_test(attribute: &[Token<'_>]) -> bool {
    let texts: Vec<&str> = attribute.iter().map(|token| token.text).collect();
    match texts.as_slice() {
        ["cfg", "(", "test", ")"] => true,
        ["cfg", "(", "all", "(", inner @ .., ")", ")"] => {
            let mut depth = 0;
            inner.iter().any(|text| {
                depth += i32::from(*text == "(") - i32::from(*text == ")");
                depth == 0 && *text == "test"
            })
        }
        _ => {
            let path = texts.iter().position(|text| *text == "(").unwrap_or(texts.len());
            texts[..path].last() == Some(&"test") && !texts[..path].contains(&"=")
        }
    }
}

/// The index behind the item, statement, field or match arm that begins at `start`.
fn behind_item(tokens: &[Token<'_>], start: usize) -> usize {
    const ITEMS: &[&str] =
        &["fn", "async", "unsafe", "const", "static", "struct", "enum", "union", "trait", "impl", "type", "mod", "use", "extern", "macro_rules", "let"];
    let mut at = start;
    if text(tokens, at) == "pub" {
        at += 1;
        if text(tokens, at) == "(" {
            at = behind(tokens, at);
        }
    }
    let item = ITEMS.contains(&text(tokens, at));
    // A brace ends functions and the like; behind the braces of these a semicolon follows.
    let semicolon = ["use", "const", "static", "let", "type"].contains(&text(tokens, at)) && text(tokens, at + 1) != "fn";
    while at < tokens.len() {
        match tokens[at].text {
            "{" if !semicolon => return behind(tokens, at),
            "(" | "[" | "{" => at = behind(tokens, at),
            ")" | "]" | "}" => return at,
            ";" => return at + 1,
            "," if !item => return at + 1,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::{tokens, without_tests};

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    fn kept(source: &str) -> String {
        let tokens = tokens(source);
        without_tests(&tokens).0.iter().map(|token| token.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_no_tokens() {
        assert_eq!(texts("a // b\n/// c\n//! d\n/* e /* f */ g */ h /** i */"), ["a", "h"]);
        assert_eq!(texts("a /* open"), ["a"]);
    }

    #[test]
    fn literals_are_one_token_each() {
        assert_eq!(
            texts(r#"x("crate::a \" {", b'{', '"', '\'', '\u{7d}')"#),
            ["x", "(", r#""crate::a \" {""#, ",", "b'{'", ",", "'\"'", ",", r"'\''", ",", r"'\u{7d}'", ")"]
        );
        assert_eq!(texts("r\"a\\\" r#\"b\"c\"# br##\"d\"#\"## b\"e\" c\"f\""), ["r\"a\\\"", "r#\"b\"c\"#", "br##\"d\"#\"##", "b\"e\"", "c\"f\""]);
        assert_eq!(texts("'ä' 'é"), ["'ä'", "'é"]);
    }

    #[test]
    fn lifetimes_labels_and_raw_identifiers_are_no_literals() {
        assert_eq!(texts("&'a str"), ["&", "'a", "str"]);
        assert_eq!(texts("'outer: for r#type in bridge"), ["'outer", ":", "for", "type", "in", "bridge"]);
        assert_eq!(texts("<'a, 'b>"), ["<", "'a", ",", "'b", ">"]);
    }

    #[test]
    fn pairs_and_ranges() {
        assert_eq!(texts("0..a::b -> c => d.e"), ["0", "..", "a", "::", "b", "->", "c", "=>", "d", ".", "e"]);
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let lines: Vec<(&str, usize)> = tokens("a\n/*\n*/ b \"\n\" c").iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(lines, [("a", 1), ("b", 3), ("\"\n\"", 3), ("c", 4)]);
    }

    #[test]
    fn test_modules_are_left_out() {
        assert_eq!(kept("fn a() {} #[cfg(test)] mod tests { use crate::b; mod c { } } fn d() {}"), "fn a ( ) { } fn d ( ) { }");
        assert_eq!(kept("#[cfg(test)] mod tests; fn d() {}"), "fn d ( ) { }");
        assert_eq!(kept("#[cfg(test)] #[path = \"x.rs\"] pub(crate) mod tests; x"), "x");
    }

    #[test]
    fn other_test_items_are_left_out() {
        assert_eq!(kept("#[cfg(all(test, unix))] use a::{b, c}; x"), "x");
        assert_eq!(kept("#[tokio::test(flavor = \"multi_thread\")] async fn a<A, B>(a: [u8; 2]) -> C { d } x"), "x");
        assert_eq!(kept("#[cfg(test)] const A: B = B { c: 1 }; x"), "x");
        assert_eq!(kept("#[cfg(test)] pub const fn a() { b } x"), "x");
        assert_eq!(kept("struct S { #[cfg(test)] a: A, b: B, #[cfg(test)] c: C }"), "struct S { b : B , }");
        assert_eq!(kept("#[test] fn a() {} x"), "x");
    }

    #[test]
    fn code_not_only_for_tests_is_kept() {
        assert_eq!(kept("#[cfg(not(test))] mod a; x"), "# [ cfg ( not ( test ) ) ] mod a ; x");
        assert_eq!(kept("#[cfg(any(test, feature))] mod a;"), "# [ cfg ( any ( test , feature ) ) ] mod a ;");
        assert_eq!(kept("#[cfg(all(not(test), unix))] mod a;"), "# [ cfg ( all ( not ( test ) , unix ) ) ] mod a ;");
        assert_eq!(kept("#[serde(rename = \"test\")] a: A"), "# [ serde ( rename = \"test\" ) ] a : A");
    }

    #[test]
    fn a_file_may_be_a_test_as_a_whole() {
        let all = tokens("//! Doc\n#![cfg(test)]\nuse crate::a;");
        assert_eq!(without_tests(&all), (Vec::new(), true));
        let none = tokens("#![allow(dead_code)] x");
        assert!(!without_tests(&none).1);
    }
}
