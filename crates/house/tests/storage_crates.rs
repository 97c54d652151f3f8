//! The crates that store and move bytes build without a query engine.

use crate::workspace::{cargo, members};

const STORAGE: &[&str] = &[
    "common",
    "scheduler",
    "emulation",
    "runtime",
    "partitioning",
    "store",
    "slice",
    "index",
    "erasure",
    "matrix",
    "vpic",
    "formats",
    "device",
    "transport",
    "doors",
    "kinetic-protocol",
    "kinetic",
    "kinetic-server",
    "kv",
    "rados",
    "ceph-protocol",
    "ceph-class",
    "ebpf",
    "native",
    "wasm",
    "volume",
    "scsi",
    "iscsi",
    "nbd",
    "offload",
    "nvme-tcp",
    "oas",
    "flight-drive",
    "fleet-volume",
    "catalog",
    "api",
    "recovery",
    "ingest",
    "export",
    "cluster",
    "maintenance",
    "flight-sql",
];

/// Crates that may link the query engine, and tools. Each crate of the workspace is here or above.
const ENGINE: &[&str] = &[
    "expression",
    "plan",
    "engine",
    "ceph",
    "file-query",
    "file-sql",
    "drive",
    "exec",
    "query",
    "host",
    "distributed",
    "flight",
    "aggregator",
    "skytether",
    "cli",
    "python",
    "features",
    "sim",
    "fuzz",
    "house",
];
const FORBIDDEN: &[&str] = &["datafusion", "substrait"];

/// The forbidden packages that the output of `cargo tree --prefix none` names.
fn forbidden(tree: &str) -> Vec<&str> {
    let mut found: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).filter(|name| FORBIDDEN.iter().any(|f| name.starts_with(f))).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn storage_crates_build_without_datafusion() {
    let mut problems = Vec::new();
    for name in STORAGE {
        let package = format!("skytether-{name}");
        let tree = cargo(&["tree", "-p", &package, "-e", "normal", "--offline", "--prefix", "none"]);
        assert!(tree.starts_with(&format!("{package} v")), "cargo tree -p {package} does not begin with the crate:\n{tree}");
        if let [first, ..] = forbidden(&tree)[..] {
            let all = forbidden(&tree).join(", ");
            problems.push(format!(
                "{name} depends on {all}. `cargo tree -p {package} -e normal -i {first}` shows by which way; move what needs it to a crate above."
            ));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_crate_says_whether_it_may_link_the_query_engine() {
    let mut named: Vec<&str> = STORAGE.iter().chain(ENGINE).copied().collect();
    named.sort_unstable();
    let members: Vec<String> = members().into_iter().map(|member| member.name).collect();
    assert_eq!(named, members, "name a new crate in STORAGE, or in ENGINE if it needs DataFusion");
}

#[test]
fn forbidden_packages_are_found_by_name() {
    let tree = "skytether-plan v0.1.0 (/x/substrait)\narrow v59.3.0\ndatafusion-common v55.2.0\n\nsubstrait v0.60.0 (*)\ndatafusion-common v55.2.0 (*)\n";
    assert_eq!(forbidden(tree), ["datafusion-common", "substrait"]);
    assert_eq!(forbidden("skytether-slice v0.1.0\narrow v59.3.0\n"), Vec::<&str>::new());
}
