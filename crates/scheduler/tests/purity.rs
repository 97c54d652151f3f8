//! The decisions are pure: no code of this crate can use a clock, a file, a socket or randomness. A host, a drive and
//! the simulator therefore decide the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

/// What it has of the standard library: nothing that can do more than compute.
const STD: [&str; 3] = ["collections", "error", "mem"];

/// Words that it does not have: what is outside, what waits, and collections that are in another order in each process.
const WITHOUT: [&str; 14] =
    ["HashMap", "HashSet", "async", "await", "dbg!", "env!", "eprint!", "eprintln!", "extern", "option_env!", "print!", "println!", "thread_local!", "unsafe"];

/// Its dependencies: serialisation of text from elsewhere, and errors.
const CRATES: [&str; 3] = ["serde", "thiserror", "toml"];

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The words in `source` that could look at something outside, each with its line; comments and the tests
/// at the end are left out.
fn outside(source: &str) -> Vec<String> {
    let end = source.find("#[cfg(test)]\nmod tests {").unwrap_or(source.len());
    let mut found = Vec::new();
    for (number, line) in (1..).zip(source[..end].lines()) {
        let code = line.split("//").next().unwrap_or_default();
        for library in ["std::", "core::", "alloc::"] {
            for (at, _) in code.match_indices(library) {
                let module = code[at + library.len()..].split(|c: char| !is_word(c)).next().unwrap_or_default();
                let allowed = code[..at].ends_with(is_word) || (library == "std::" && STD.contains(&module));
                if !allowed {
                    found.push(format!("{number}: {library}{module}"));
                }
            }
        }
        let words = code.split(|c: char| !is_word(c) && c != '!').map(|word| word.trim_start_matches('!'));
        found.extend(words.filter(|word| WITHOUT.contains(word)).map(|word| format!("{number}: {word}")));
    }
    found
}

/// The Rust files below `dir`.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let each = entries.map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    each.flatten().filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

#[test]
fn decisions_use_only_their_arguments() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(sources.iter().any(|path| path.ends_with("query/decide.rs")) && sources.len() > 10, "{sources:?}");
    for path in sources {
        let found = outside(&std::fs::read_to_string(&path).unwrap());
        assert!(found.is_empty(), "{}: {found:?}", path.display());
    }
}

#[test]
fn impure_code_is_found() {
    for line in [
        "use std::time::Instant;",
        "let now = std::time::SystemTime::now();",
        "use std::{fs, net::TcpStream};",
        "std::thread::sleep(pause);",
        "let seed = ::std::env::var(\"SEED\");",
        "use core::arch::x86_64::_rdtsc;",
        "use std::collections::{BTreeMap, HashMap};",
        "println!(\"{plan:?}\");",
        "async fn ask(&self) {}",
        "let plan = told.await;",
        "unsafe { ask() }",
    ] {
        assert_eq!(outside(&format!("fn quiet() {{}}\n{line}\n")).len(), 1, "{line}");
    }
    let quiet = "//! As std::time::Instant.\nuse std::collections::BTreeMap;\nlet cores = score::of(std::mem::take(&mut left)); // not std::fs\n";
    assert_eq!(outside(&format!("{quiet}\n#[cfg(test)]\nmod tests {{\n    use std::time::Instant;\n}}\n")), [""; 0]);
}

#[test]
fn dependencies_are_pure_too() {
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let mut crates: Vec<&str> = manifest["dependencies"].as_table().unwrap().keys().map(String::as_str).collect();
    crates.sort_unstable();
    assert_eq!(crates, CRATES);
    for more in ["build-dependencies", "target"] {
        assert!(!manifest.contains_key(more), "{more}");
    }
}
