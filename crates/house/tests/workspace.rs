//! What cargo knows of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::imports::Sources;

/// The prefix of the names of our crates.
const PREFIX: &str = "skytether-";

/// The crate whose name has nothing behind it: what Rust programs use.
const LIBRARY: &str = "skytether";

/// A crate of the workspace. Names have no `skytether-`.
pub(crate) struct Member {
    pub(crate) name: String,
    /// The directory of its Cargo.toml.
    pub(crate) directory: PathBuf,
    /// Our crates among its normal dependencies, sorted.
    pub(crate) dependencies: Vec<String>,
    /// The root files of its library and programs, relative to `directory`.
    pub(crate) roots: Vec<String>,
    /// The root files of all its targets, those of tests, examples and benchmarks as well, relative to `directory`.
    pub(crate) all_roots: Vec<String>,
    /// Whether `cargo test --doc` looks at its library.
    pub(crate) doctest: bool,
}

/// The directory of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/house is two levels below the root").to_path_buf()
}

/// Adds the Rust sources below `directory` to `found`, named relative to `base`.
pub(crate) fn read_sources(base: &Path, directory: &Path, found: &mut Sources) {
    for entry in std::fs::read_dir(directory).unwrap_or_else(|e| panic!("cannot read {}: {e}", directory.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_sources(base, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(base).unwrap().to_str().unwrap().replace(std::path::MAIN_SEPARATOR, "/");
            found.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Runs cargo in the workspace's directory and returns what it prints.
///
/// Cargo sets `CARGO` for the tests that it runs. A runner that does not gets the cargo that compiled this test.
pub(crate) fn cargo(args: &[&str]) -> String {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let output = Command::new(&program).args(args).current_dir(root()).output().unwrap_or_else(|e| panic!("cannot run {}: {e}", program.display()));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {} failed:\n{errors}", args.join(" "));
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}

/// The crates of the workspace in the order of their names.
pub(crate) fn members() -> Vec<Member> {
    let text = cargo(&["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&text).expect("cargo metadata prints JSON");
    let mut members: Vec<Member> = metadata["packages"].as_array().expect("packages").iter().filter_map(member).collect();
    assert!(!members.is_empty(), "cargo metadata lists no crate of ours");
    members.sort_by(|a, b| a.name.cmp(&b.name));
    members
}

fn member(package: &Value) -> Option<Member> {
    let name = ours(&package["name"])?;
    let directory = Path::new(package["manifest_path"].as_str()?).parent()?.to_path_buf();
    let mut dependencies: Vec<String> =
        package["dependencies"].as_array()?.iter().filter(|of| of["kind"].is_null()).filter_map(|of| ours(&of["name"])).collect();
    dependencies.sort();
    dependencies.dedup();
    let is_root = |target: &&Value| {
        let kinds = target["kind"].as_array().map(Vec::as_slice).unwrap_or_default();
        kinds.iter().any(|kind| kind.as_str().is_some_and(|kind| kind == "bin" || kind == "proc-macro" || kind.ends_with("lib")))
    };
    let file = |target: &Value| {
        let file = Path::new(target["src_path"].as_str()?).strip_prefix(&directory).ok()?.to_str()?;
        Some(file.replace(std::path::MAIN_SEPARATOR, "/"))
    };
    let targets = package["targets"].as_array()?;
    let roots = targets.iter().filter(is_root).filter_map(file).collect();
    let all_roots = targets.iter().filter_map(file).collect();
    let doctest = targets.iter().any(|target| target["doctest"] == true);
    Some(Member { name, directory, dependencies, roots, all_roots, doctest })
}

fn ours(name: &Value) -> Option<String> {
    let name = name.as_str()?;
    if name == LIBRARY {
        return Some(name.to_owned());
    }
    Some(name.strip_prefix(PREFIX)?.to_owned())
}
