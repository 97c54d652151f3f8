//! Each source file belongs to a target. A test in a file that no `mod` declares would never run, without any message.

use std::collections::BTreeSet;
use std::path::Path;

use crate::imports::{Sources, undeclared};
use crate::workspace::{Member, members, read_sources, root};

/// Directories of a crate that cargo compiles from.
const DIRECTORIES: &[&str] = &["src", "tests", "examples", "benches"];

/// The directory of a crate, relative to the workspace's.
fn below(workspace: &Path, member: &Member) -> String {
    member.directory.strip_prefix(workspace).unwrap().to_str().unwrap().replace(std::path::MAIN_SEPARATOR, "/")
}

/// The Rust sources of all targets of `members`, named relative to `workspace`.
pub(crate) fn sources(workspace: &Path, members: &[Member]) -> Sources {
    let mut sources = Sources::new();
    for member in members {
        for directory in DIRECTORIES.iter().map(|name| member.directory.join(name)).filter(|directory| directory.is_dir()) {
            read_sources(workspace, &directory, &mut sources);
        }
    }
    sources
}

#[test]
fn each_source_file_is_declared() {
    let members = members();
    let sources = sources(&root(), &members);
    let roots: Vec<String> = members.iter().flat_map(|member| member.all_roots.iter().map(move |file| format!("{}/{file}", below(&root(), member)))).collect();
    for known in ["crates/house/tests/declared.rs", "crates/skytether/tests/fleet/dst.rs", "fuzz/tests/replay.rs"] {
        assert!(sources.contains_key(known), "{known} is not among the {} files that this test looks at", sources.len());
    }
    let found = undeclared(&sources, &roots).unwrap_or_else(|e| panic!("{e}"));
    let lines: Vec<String> = found.iter().map(|file| format!("{file}: no `mod` and no target declares it; declare or remove it")).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn undeclared_files_of_tests_are_found() {
    let sources: Sources = [
        ("a/src/lib.rs", "mod used;"),
        ("a/src/used.rs", "#[cfg(test)] mod tests;"),
        ("a/src/used/tests.rs", ""),
        ("a/src/left.rs", "#[test] fn never_runs() {}"),
        ("a/tests/a/main.rs", "mod declared; #[path = \"../../../b/tests/shared.rs\"] mod shared;"),
        ("a/tests/a/declared.rs", "// mod forgotten;"),
        ("a/tests/a/forgotten.rs", "#[test] fn never_runs() {}"),
        ("a/tests/alone.rs", "#[test] fn never_runs() {}"),
        ("b/tests/shared.rs", ""),
    ]
    .map(|(name, text)| (name.to_owned(), text.to_owned()))
    .into();
    let roots = ["a/src/lib.rs", "a/tests/a/main.rs"].map(str::to_owned);
    let expected = ["a/src/left.rs", "a/tests/a/forgotten.rs", "a/tests/alone.rs"].map(str::to_owned);
    assert_eq!(undeclared(&sources, &roots), Ok(BTreeSet::from(expected)));
}
