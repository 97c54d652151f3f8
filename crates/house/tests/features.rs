//! One set of features: a dependency that two builds want with different features is compiled twice.

use std::collections::BTreeSet;

use crate::workspace::{cargo, members};

/// Crates that do without `features`: they have few dependencies, and build in seconds.
const SMALL: &[&str] =
    &["common", "scheduler", "sim", "erasure", "kinetic-protocol", "ceph-protocol", "ceph-class", "kv", "ebpf", "native", "wasm", "offload", "house"];

/// The dependencies of a selection with their features, without our own crates.
fn dependencies(selection: &[&str], kinds: &str) -> BTreeSet<String> {
    let fixed = ["tree", "--offline", "--target", "x86_64-unknown-linux-gnu", "--prefix", "none", "-f", "{p} [{f}]", "-e", kinds];
    let tree = cargo(&[&fixed[..], selection].concat());
    tree.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty() && !line.contains("(/")).map(str::to_owned).collect()
}

/// The name and version of a line of [`dependencies`].
fn package(line: &str) -> &str {
    line.split(" [").next().unwrap_or(line)
}

/// What `selection` builds otherwise than the tests of the workspace do.
fn built_twice(selection: &[&str], kinds: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let known: BTreeSet<&str> = tests.iter().map(|line| package(line)).collect();
    dependencies(selection, kinds).into_iter().filter(|line| known.contains(package(line)) && !tests.contains(line)).collect()
}

#[test]
fn each_dependency_has_one_set_of_features() {
    let mut problems = Vec::new();
    // First what programs link, then that with what runs at build time: the latter may have other features.
    for more in ["no-proc-macro", "build"] {
        let tests = dependencies(&["--workspace", "--exclude", "skytether-python"], &format!("normal,dev,{more}"));
        assert!(tests.iter().any(|line| line.starts_with("datafusion v")), "cargo tree of the workspace has no DataFusion");
        for member in members().iter().filter(|member| !SMALL.contains(&member.name.as_str())) {
            let name = if member.name == "skytether" { "skytether".to_owned() } else { format!("skytether-{}", member.name) };
            // maturin builds the extension without its tests.
            let kinds = if member.name == "python" { format!("normal,{more}") } else { format!("normal,dev,{more}") };
            problems.extend(built_twice(&["-p", &name], &kinds, &tests).into_iter().map(|line| format!("{name}: {line}")));
        }
    }
    let wanted = "pin them in crates/features, with the features that the whole workspace has (cargo tree --workspace -e features -i NAME)";
    assert!(
        problems.is_empty(),
        "these dependencies have other features alone than in the workspace, so they are compiled twice; {wanted}:\n{}",
        problems.join("\n")
    );
}
