//! Every crate's `lib.rs` explains the crate, and every example in documentation is run.
//!
//! `make test` runs examples with `cargo test --doc`, which takes about a second for each crate. A crate without an
//! example therefore says `doctest = false`, and a crate with one must not say so.

use std::fs;
use std::path::Path;

use crate::workspace::{Member, members};

/// No part of the documented system: targets of fuzzers.
const UNCHECKED: &[&str] = &["fuzz"];
/// Explain themselves in a few words: they have no interface.
const BRIEF: &[&str] = &["house"];

/// Whether documentation in `source` has an example that is code to run.
fn has_example(source: &str) -> bool {
    let mut open = false;
    for line in source.lines().map(str::trim_start) {
        let Some(doc) = line.strip_prefix("//!").or_else(|| line.strip_prefix("///")) else {
            open = false;
            continue;
        };
        if let Some(language) = doc.trim().strip_prefix("```") {
            // The fence that ends a block has no language either.
            if !open && matches!(language, "" | "rust" | "should_panic" | "no_run") {
                return true;
            }
            open = !open;
        }
    }
    false
}

/// What is wrong with the documentation of a crate whose `lib.rs` is `source`.
fn unexplained(name: &str, source: &str) -> Option<String> {
    let docs: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).collect();
    if docs.is_empty() {
        return Some(format!("{name}: lib.rs does not begin with `//!`: say what the crate is for, and what it may not do"));
    }
    // A line may end between the two words.
    let seen = docs.join(" ").split_whitespace().collect::<Vec<_>>().windows(2).any(|two| two[0].eq_ignore_ascii_case("see") && two[1] == "also");
    (!seen && !BRIEF.contains(&name)).then(|| format!("{name}: lib.rs names no document: end it with `See also`, a section or a file"))
}

/// Whether a Rust file at `path` or below it has an example.
fn any_example(path: &Path) -> bool {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        return entries.map(|entry| entry.unwrap().path()).any(|entry| any_example(&entry));
    }
    path.extension().is_some_and(|ending| ending == "rs") && has_example(&fs::read_to_string(path).unwrap())
}

/// Members of the system with a library.
fn libraries() -> Vec<Member> {
    let all: Vec<Member> = members().into_iter().filter(|member| member.directory.join("src/lib.rs").exists()).collect();
    assert!(all.len() > 30, "only {} crates have a library", all.len());
    all.into_iter().filter(|member| !UNCHECKED.contains(&member.name.as_str())).collect()
}

#[test]
fn each_crate_explains_itself() {
    let source = |member: &Member| fs::read_to_string(member.directory.join("src/lib.rs")).unwrap();
    let found: Vec<String> = libraries().iter().filter_map(|member| unexplained(&member.name, &source(member))).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn doctests_are_on_where_there_are_examples() {
    let mut found = Vec::new();
    for member in libraries() {
        match (any_example(&member.directory.join("src")), member.doctest) {
            (true, false) => found.push(format!("{0}: its examples are not run: remove `doctest = false` from Cargo.toml of {0}", member.name)),
            (false, true) => found.push(format!("{0}: it has no example: say `doctest = false` in [lib] of Cargo.toml of {0}", member.name)),
            _ => {}
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn examples_are_told_from_other_blocks() {
    assert!(has_example("//! Text.\n//!\n//! ```\n//! assert!(true);\n//! ```\n"));
    assert!(has_example("    /// ```rust\n    /// ```\n"));
    assert!(has_example("//! ```text\n//! a\n//! ```\n//! ```\n//! b\n//! ```\n"));
    assert!(!has_example("//! ```text\n//! a\n//! ```\npub mod a;\n"));
    assert!(!has_example("// ```\nlet text = \"```\";\n"));
}

#[test]
fn crates_without_documents_are_named() {
    assert_eq!(unexplained("a", "//! A crate.\n//!\n//! See\n//! also `README.md`.\n"), None);
    assert!(unexplained("a", "pub mod a;\n").unwrap().contains("does not begin"));
    assert!(unexplained("a", "//! A crate.\n\npub mod a;\n").unwrap().contains("names no document"));
    assert_eq!(unexplained("house", "//! A crate.\n"), None);
}
