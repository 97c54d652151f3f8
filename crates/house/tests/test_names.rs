//! Names of tests have at most 60 characters ("Style" in CONTRIBUTING.md). The story of a test is in its doc comment.

use crate::declared::sources;
use crate::imports::tokens::{Token, tokens};
use crate::workspace::{members, root};

/// The longest name, in characters.
const LONGEST: usize = 60;

/// Whether the token at `at` ends the path of an attribute for tests: `#[test]`, `#[tokio::test(...)]`.
fn marks_a_test(tokens: &[Token<'_>], at: usize) -> bool {
    let text = |at: Option<usize>| at.and_then(|at| tokens.get(at)).map_or("", |token| token.text);
    let mut first = at;
    while text(first.checked_sub(1)) == "::" {
        first = first.saturating_sub(2);
    }
    let attribute = text(first.checked_sub(2)) == "#" && text(first.checked_sub(1)) == "[";
    attribute && tokens[at].text == "test" && matches!(text(Some(at + 1)), "]" | "(")
}

/// The names of the tests of a source, with their lines. Names that a macro's caller gives are left out.
fn tests(source: &str) -> Vec<(usize, String)> {
    let tokens = tokens(source);
    let marks = (0..tokens.len()).filter(|at| marks_a_test(&tokens, *at));
    let names = marks.filter_map(|at| tokens[at..].windows(2).find(|pair| pair[0].text == "fn").map(|pair| pair[1]));
    names.filter(|name| name.text != "$").map(|name| (name.line, name.text.to_owned())).collect()
}

#[test]
fn test_names_have_at_most_60_characters() {
    let sources = sources(&root(), &members());
    let found: Vec<_> = sources.iter().flat_map(|(file, source)| tests(source).into_iter().map(move |test| (file, test))).collect();
    assert!(found.len() > 1000, "only {} tests are found", found.len());
    let long = found.iter().filter(|(_, (_, name))| name.chars().count() > LONGEST);
    let lines: Vec<String> = long.map(|(file, (line, name))| format!("{file}:{line}: {name}; use at most {LONGEST} characters")).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn tests_of_every_form_are_found() {
    let source = "
        // #[test] fn comment() {}
        #[test]
        fn plain() {}
        #[tokio::test(flavor = \"multi_thread\")]
        async fn with_runtime() {}
        proptest! { #[test] fn with_input(n in 0..3) {} }
        macro_rules! each { ($name:ident) => { #[test] fn $name() {} } }
        #[cfg(test)] fn helper() {}
        #[test]
        #[should_panic]
        fn panics() { let test = [0]; test[0]; }
    ";
    let found: Vec<String> = tests(source).into_iter().map(|(_, name)| name).collect();
    assert_eq!(found, ["plain", "with_runtime", "with_input", "panics"]);
}
