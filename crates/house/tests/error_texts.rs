//! No code outside of tests decides by the text of an error: it asks for the kind and the detail.
//!
//! What is found: the text of an error (`e.message()`, `e.report()`, `e.to_string()`, `str(e)`), or a variable that
//! has it, which is searched, split, compared or matched. What `assert!` looks at is left out. A function that gets a
//! text as an argument is not found: do not write one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::imports::tokens::{Token, behind, tokens, without_tests};
use crate::workspace::root;

/// Files that look at the texts of errors, how often, and why. A figure may only shrink.
const ALLOWED: &[(&str, usize, &str)] = &[
    ("crates/common/src/error.rs", 3, "puts texts together: says nothing twice"),
    ("crates/exec/src/drive_reader.rs", 1, "names the drive in front of a text that does not"),
    ("crates/formats/src/json_file.rs", 1, "the JSON reader says in its text only what is wrong, with a line of its own count"),
    ("crates/formats/src/separated.rs", 2, "the number of a line is only in the text of Arrow's CSV reader"),
    ("crates/offload/src/operations/compress.rs", 1, "the zstd library tells a frame that it can't read from a damaged one by its text only"),
    ("python/msgexpress/_write_h5ad.py", 1, "HDF5 has the system's error number in its text only; it is put into words"),
];

/// Methods that give the text of an error, whatever they are called on.
const GIVE: &[&str] = &["message", "report", "strip_backtrace"];

/// Variables that hold an error. `to_string` of others gives any text.
const ERRORS: &[&str] = &["e", "err", "error", "cause", "failed", "failure", "inner", "other"];

/// Methods that give the same text.
const SAME: &[&str] = &["as_str", "as_ref", "as_bytes", "clone", "to_owned", "to_string", "to_lowercase", "to_uppercase", "trim", "trim_end", "trim_start"];

/// Methods that look into a text.
const LOOK: &[&str] = &[
    "contains",
    "starts_with",
    "ends_with",
    "find",
    "rfind",
    "matches",
    "match_indices",
    "strip_prefix",
    "strip_suffix",
    "split",
    "splitn",
    "split_once",
    "rsplit",
    "rsplit_once",
    "eq",
    "eq_ignore_ascii_case",
    "parse",
];

/// Methods of an error that look into its text.
const LOOK_INTO: &[&str] = &["mentions"];

fn text<'a>(tokens: &[Token<'a>], at: usize) -> &'a str {
    tokens.get(at).map_or("", |token| token.text)
}

/// The tokens without the arguments of `assert!` and the like.
fn without_asserts<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let is_assert = tokens[at].text.starts_with("assert") || tokens[at].text.starts_with("debug_assert");
        at = if is_assert && text(tokens, at + 1) == "!" { behind(tokens, at + 2) } else { at + 1 };
        if let Some(token) = tokens.get(at - 1).filter(|_| !is_assert) {
            kept.push(*token);
        }
    }
    kept
}

/// Whether `.NAME(` is at `at`, with one of these names.
fn calls(tokens: &[Token<'_>], at: usize, names: &[&str]) -> bool {
    text(tokens, at) == "." && names.contains(&text(tokens, at + 1)) && text(tokens, at + 2) == "("
}

/// The index behind the calls at `at` that give the same text.
fn behind_same(tokens: &[Token<'_>], mut at: usize) -> usize {
    while calls(tokens, at, SAME) {
        at = behind(tokens, at + 2);
    }
    at
}

/// The lines on which Rust code looks into the text of an error.
fn rust_findings(source: &str) -> Vec<usize> {
    let (tokens, _) = without_tests(&tokens(source));
    let tokens = without_asserts(&tokens);
    let mut found = Vec::new();
    // Variables that have a text, and up to which token.
    let mut texts: BTreeMap<&str, usize> = BTreeMap::new();
    for at in 0..tokens.len() {
        let gives = calls(&tokens, at, GIVE) || (calls(&tokens, at, &["to_string"]) && at > 0 && ERRORS.contains(&tokens[at - 1].text));
        let formats = || text(&tokens, at) == "format" && text(&tokens, at + 1) == "!" && formats_an_error(&tokens[at + 2..behind(&tokens, at + 2)]);
        let end = if gives || formats() {
            Some(behind(&tokens, at + 2))
        } else if texts.get(tokens[at].text).is_some_and(|until| at < *until) && text(&tokens, at.wrapping_sub(1)) != "." && text(&tokens, at + 1) != ":" {
            Some(at + 1)
        } else {
            None
        };
        if calls(&tokens, at, LOOK_INTO) {
            found.push(tokens[at].line);
        }
        if let Some(variable) = bound_by_pattern(&tokens, at) {
            texts.insert(variable, at + 40);
        }
        let Some(end) = end else { continue };
        let end = behind_same(&tokens, end);
        let (before, after) = (expression_start(&tokens, at), [text(&tokens, end), text(&tokens, end + 1)]);
        let is_compared =
            after == ["=", "="] || after == ["!", "="] || (text(&tokens, before.wrapping_sub(1)) == "=" && text(&tokens, before.wrapping_sub(2)) == "=");
        if calls(&tokens, end, LOOK) || is_compared || (text(&tokens, before.wrapping_sub(1)) == "match" && text(&tokens, end) == "{") {
            found.push(tokens[at].line);
        } else if text(&tokens, end) == ";"
            && text(&tokens, before.wrapping_sub(1)) == "="
            && let Some(variable) = let_before(&tokens, before - 1)
        {
            texts.insert(variable, tokens.len());
        }
    }
    found
}

/// Whether the arguments of `format!` are an error: `"{e}"`, `"{e:?}"`, or `"{}", e`.
fn formats_an_error(arguments: &[Token<'_>]) -> bool {
    arguments.iter().any(|token| {
        let inner = token.text.trim_matches('"');
        ERRORS.contains(&token.text) || ERRORS.iter().any(|error| inner == format!("{{{error}}}") || inner == format!("{{{error}:?}}"))
    })
}

/// Where the expression begins whose method is called at `at`, or whose only word is there.
fn expression_start(tokens: &[Token<'_>], mut at: usize) -> usize {
    let is_part = |token: &str| token == "." || token == "&" || token == "self" || token.chars().all(|c| c.is_alphanumeric() || c == '_');
    while at > 0 && is_part(tokens[at - 1].text) && !["match", "if", "return", "let", "in", "else"].contains(&tokens[at - 1].text) {
        at -= 1;
    }
    at
}

/// The variable of `let VARIABLE [: TYPE] =`, whose `=` is at `at`.
fn let_before<'a>(tokens: &[Token<'a>], at: usize) -> Option<&'a str> {
    let start = (at.saturating_sub(8)..at).rev().find(|start| tokens[*start].text == "let")?;
    let name = if text(tokens, start + 1) == "mut" { start + 2 } else { start + 1 };
    (name + 1 == at || text(tokens, name + 1) == ":").then(|| tokens[name].text)
}

/// The variable of a pattern `SomeError::Variant(VARIABLE)` at `at`.
fn bound_by_pattern<'a>(tokens: &[Token<'a>], at: usize) -> Option<&'a str> {
    let is_error = tokens[at].text.ends_with("Error") && text(tokens, at + 1) == "::" && text(tokens, at + 3) == "(" && text(tokens, at + 5) == ")";
    let name = text(tokens, at + 4);
    (is_error && name.starts_with(|c: char| c.is_ascii_lowercase())).then_some(name)
}

/// The lines on which Python code looks into the text of an exception.
fn python_findings(source: &str) -> Vec<usize> {
    const EXCEPTIONS: &[&str] = &["e", "ex", "err", "error", "exc", "exception", "failed", "cause", "replaced"];
    const METHODS: &[&str] = &["startswith", "endswith", "find", "rfind", "index", "partition", "rpartition", "count"];
    let mut found = Vec::new();
    let mut texts: Vec<String> = EXCEPTIONS.iter().map(|name| format!("str({name})")).collect();
    texts.extend(EXCEPTIONS.iter().map(|name| format!("{name}.args[0]")));
    // Variables of one function.
    let mut variables: Vec<String> = Vec::new();
    for (number, line) in (1..).zip(source.lines()) {
        let code = line.trim_start();
        if code.starts_with("def ") || code.starts_with("class ") {
            variables.clear();
        }
        let looks = texts.iter().chain(&variables).any(|text| {
            line.match_indices(text.as_str()).any(|(at, _)| {
                let (before, after) = (&line[..at], &line[at + text.len()..]);
                let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.' || c == '"' || c == '\'';
                if before.ends_with(is_word) || (!text.ends_with(')') && !text.ends_with(']') && after.starts_with(|c: char| c.is_alphanumeric() || c == '_')) {
                    return false;
                }
                METHODS.iter().any(|method| after.starts_with(&format!(".{method}(")))
                    || after.trim_start().starts_with("==")
                    || before.trim_end().ends_with("==")
                    || (before.trim_end().ends_with(" in") && !after.starts_with('.'))
                    || ["re.search(", "re.match(", "re.fullmatch(", "re.findall("].iter().any(|call| before.contains(call))
            })
        });
        if looks {
            found.push(number);
        }
        if let Some((name, value)) = code.split_once(" = ")
            && texts.iter().any(|text| value.starts_with(text.as_str()) && !value[text.len()..].starts_with('.'))
        {
            variables.push(name.to_owned());
        }
    }
    found
}

/// The files below `directory` with this ending, but for those of tests.
fn files(directory: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap_or_else(|e| panic!("cannot read {}: {e}", directory.display())) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" && name != "target" {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|found| found == ending) && name != "tests.rs" {
            found.push(path);
        }
    }
}

#[test]
fn no_code_decides_by_the_text_of_an_error() {
    let mut all = Vec::new();
    files(&root().join("crates"), "rs", &mut all);
    files(&root().join("python"), "py", &mut all);
    assert!(all.len() > 200, "{} files", all.len());
    let mut problems = Vec::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for path in all {
        let source = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let found = if name.ends_with(".py") { python_findings(&source) } else { rust_findings(&source) };
        let most = ALLOWED.iter().find(|(file, ..)| *file == name).map_or(0, |(_, most, _)| *most);
        if found.len() > most {
            problems.push(format!("{name}: lines {found:?} look into the text of an error, {most} may: decide by kind() and detail()"));
        }
        seen.insert(name, found.len());
    }
    for (file, most, why) in ALLOWED {
        let found = seen.get(*file).copied().unwrap_or(0);
        if found < *most {
            problems.push(format!("{file}: {found} lines look into the text of an error, {most} may ({why}): lower the number in ALLOWED"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn decisions_by_text_are_found_in_rust() {
    for code in [
        r#"fn f(e: Error) { if e.message().contains("x") {} }"#,
        r#"fn f() { error.report().to_lowercase().starts_with("x") }"#,
        r#"fn f() { let text = e.report(); g(); text.contains("x") }"#,
        r#"fn f() { let text: String = error.to_string(); match text.strip_prefix("x") {} }"#,
        r#"fn f() { match e.message() { "x" => 1, _ => 2 } }"#,
        r#"fn f() { match error.to_string().as_str() { "x" => 1, _ => 2 } }"#,
        r#"fn f() { if e.message() == "x" {} }"#,
        r#"fn f() { if "x" == e.message() {} }"#,
        r#"fn f() { if e.to_string() != "x" {} }"#,
        r#"fn f() { match x { Err(DataFusionError::Plan(text)) if text.starts_with("x") => 1 } }"#,
        r#"fn f() { let text = error.strip_backtrace(); LIST.iter().find_map(|x| text.strip_prefix(x)) }"#,
        r#"fn f() { if self.mentions("x") {} }"#,
        r#"fn f() { if format!("{e}").contains("x") {} }"#,
        r#"fn f() { let text = format!("{}", error); text.starts_with("x") }"#,
        "fn f() {\n    e\n        .message()\n        .split_once(\":\")\n}",
    ] {
        assert_eq!(rust_findings(code).len(), 1, "{code}");
    }
}

#[test]
fn code_that_passes_texts_on_is_not_found_in_rust() {
    for code in [
        r#"fn f() { log(e.report()); Err(Error::invalid(format!("x: {}", e.message()))) }"#,
        r#"fn f() { let text = e.report(); Error::corrupt(text) }"#,
        r#"fn f() { let text: String = e.report().chars().take(9).collect(); Note { epoch, text: text } }"#,
        r#"fn f() { name.to_string().contains("x") }"#,
        r#"fn f() { format!("{name}").contains("x") }"#,
        r#"fn f() { assert!(e.to_string().contains("x"), "{e}"); assert_eq!(e.message(), "x") }"#,
        r#"#[cfg(test)] mod tests { fn f() { e.message().contains("x") } }"#,
        "// e.message().contains(\"x\")\nfn f() { \"e.message().contains(x)\" }",
        r#"fn f() { match stream.message().await? { None => 1 } }"#,
        r#"fn f() { match e { ArrowError::CastError(text) => text.clone() } }"#,
    ] {
        assert_eq!(rust_findings(code), Vec::<usize>::new(), "{code}");
    }
}

#[test]
fn decisions_by_text_are_found_in_python() {
    for code in [
        "if \"x\" in str(e):",
        "if \"x\" not in str(error):",
        "if not str(e).startswith(\"x\"):",
        "found = re.search(r\"x\", str(e))",
        "if e.args[0] == \"x\":",
        "text = str(e)\nif text.startswith(\"x\"):",
        "text = str(e)\nif \"x\" in text:",
    ] {
        assert_eq!(python_findings(code).len(), 1, "{code}");
    }
    for code in [
        "raise InvalidError(f\"x: {e}\") from e",
        "text = str(e)\nprint(text)",
        "text = str(e)\ndef g(text):\n    return \"x\" in text",
        "return \" \".join(str(error).split())",
        "for line in str(e).splitlines():",
        "name = str(value)\nif \".\" in name:",
    ] {
        assert_eq!(python_findings(code), Vec::<usize>::new(), "{code}");
    }
}
