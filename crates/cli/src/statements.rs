//! Cuts a text of SQL into its statements, which have semicolons between them.
//!
//! Semicolons in texts, quoted names and comments are no ends. What is no SQL is passed on as it is: the host says what
//! is wrong with it.

/// What a text is within, at some place.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Within {
    Nothing,
    /// Until this character; doubled it is a part of the text.
    Quoted(char),
    /// Until this text.
    Dollars(String),
    LineComment,
    /// That many comments, one in the other.
    Comment(u32),
}

/// The statements of `text`, without the semicolons.
pub(crate) fn split(text: &str) -> Vec<String> {
    cut(text).0
}

/// Whether `text` ends behind a semicolon, so that none of its statements goes on.
pub(crate) fn is_complete(text: &str) -> bool {
    cut(text).1
}

/// The statements of `text`, and whether the last one is ended.
fn cut(text: &str) -> (Vec<String>, bool) {
    let mut found = Vec::new();
    let (mut begin, mut said) = (0, false);
    let mut within = Within::Nothing;
    let mut at = 0;
    while let Some(rest) = text.get(at..) {
        let Some(c) = rest.chars().next() else { break };
        let mut step = c.len_utf8();
        match &mut within {
            Within::Nothing => match c {
                '\'' | '"' | '`' => (within, said) = (Within::Quoted(c), true),
                '-' if rest.starts_with("--") => within = Within::LineComment,
                '/' if rest.starts_with("/*") => (within, step) = (Within::Comment(1), 2),
                '$' => {
                    said = true;
                    if let Some(tag) = tag(rest) {
                        step = tag.len();
                        within = Within::Dollars(tag.to_owned());
                    }
                }
                ';' => {
                    if said {
                        found.push(text.get(begin..at).unwrap_or_default().trim().to_owned());
                    }
                    (begin, said) = (at + 1, false);
                }
                c => said |= !c.is_whitespace(),
            },
            Within::Quoted(end) if c == *end => {
                if rest.get(step..).is_some_and(|rest| rest.starts_with(*end)) {
                    step *= 2;
                } else {
                    within = Within::Nothing;
                }
            }
            Within::Dollars(tag) if rest.starts_with(tag.as_str()) => {
                step = tag.len();
                within = Within::Nothing;
            }
            Within::LineComment if c == '\n' => within = Within::Nothing,
            Within::Comment(depth) if rest.starts_with("/*") => (*depth, step) = (*depth + 1, 2),
            Within::Comment(depth) if rest.starts_with("*/") => {
                step = 2;
                *depth -= 1;
                if *depth == 0 {
                    within = Within::Nothing;
                }
            }
            _ => {}
        }
        at += step;
    }
    let is_complete = !said && begin > 0 && matches!(within, Within::Nothing | Within::LineComment);
    if said {
        found.push(text.get(begin..).unwrap_or_default().trim().to_owned());
    }
    (found, is_complete)
}

/// `$$` or `$tag$` at the beginning of `rest`; a parameter (`$1`) is none.
fn tag(rest: &str) -> Option<&str> {
    let inner = rest.get(1..)?;
    let end = inner.find('$')?;
    let name = inner.get(..end)?;
    let is_tag = name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.starts_with(|c: char| c.is_ascii_digit());
    if is_tag { rest.get(..end + 2) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semicolons_within_texts_and_comments_are_no_ends() {
        let text = "SELECT ';', 'it''s;' -- a; b\n, \"x;\"\"y\" /* ; /* ; */ ; */ FROM t; \n;; SELECT $$;$$, $a$;$b$;$a$, $1;\nSELECT 2";
        let found = split(text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].ends_with("FROM t") && found[1].starts_with("SELECT $$") && found[1].ends_with("$1") && found[2] == "SELECT 2");
    }

    #[test]
    fn a_text_is_complete_behind_its_last_semicolon() {
        for (text, complete) in [
            ("SELECT 1;\n", true),
            ("SELECT 1; -- done\n", true),
            ("SELECT 1", false),
            ("SELECT 1; SELECT 2", false),
            ("SELECT ';\n", false),
            ("SELECT 1; /* more", false),
            ("-- nothing\n", false),
        ] {
            assert_eq!(is_complete(text), complete, "{text}");
        }
    }

    #[test]
    fn comments_alone_are_no_statement() {
        assert!(split("-- nothing\n /* at all; */ ;").is_empty());
        assert_eq!(split("-- first\nSELECT 1"), ["-- first\nSELECT 1"]);
    }
}
