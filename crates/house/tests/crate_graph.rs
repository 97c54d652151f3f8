//! The dependencies between crates are those of the table in ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};

use crate::workspace::{members, root};

const BEGIN: &str = "<!-- crates -->";
const END: &str = "<!-- /crates -->";

/// No layer: the shared set of features, on which most crates depend.
const FEATURES: &str = "features";
/// May be absent from the table: this crate is no part of the system.
const HOUSE: &str = "house";

type Graph = BTreeMap<String, BTreeSet<String>>;

/// The table `| crate | may depend on |` between the marks.
fn table(document: &str) -> Result<Graph, String> {
    let section = document.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map(|(section, _)| section);
    let section = section.ok_or_else(|| format!("ARCHITECTURE.md has no table between {BEGIN} and {END}: add one, `| crate | may depend on |`"))?;
    let mut graph = Graph::new();
    for line in section.lines().map(str::trim).filter(|line| line.starts_with('|')) {
        let cells: Vec<String> = line.trim_matches('|').split('|').map(|cell| cell.replace('`', "").trim().to_owned()).collect();
        let [name, dependencies, ..] = cells.as_slice() else { return Err(format!("this row of the table has one column, not two: {line}")) };
        if name == "crate" || name.chars().all(|c| c == '-' || c == ':') {
            continue;
        }
        let dependencies = match dependencies.as_str() {
            "-" => BTreeSet::new(),
            "" => return Err(format!("the row of {name} names no crate: write `-` if {name} depends on none of ours")),
            names => names.split([',', ' ']).filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        };
        if graph.insert(name.clone(), dependencies).is_some() {
            return Err(format!("the table has two rows of {name}: keep one"));
        }
    }
    Ok(graph)
}

/// What differs, a line each, with what to do.
fn differences(table: &Graph, crates: &Graph) -> Vec<String> {
    let mut found = Vec::new();
    for (name, dependencies) in crates {
        match table.get(name) {
            Some(row) => {
                for edge in dependencies.difference(row) {
                    found.push(format!(
                        "{name} -> {edge}: Cargo.toml of {name} has this dependency, the table does not. Remove it from Cargo.toml; \
                         only if the layers are to change, add {edge} to the row of {name}."
                    ));
                }
                for edge in row.difference(dependencies) {
                    found
                        .push(format!("{name} -> {edge}: the table has this dependency, Cargo.toml of {name} does not. Remove {edge} from the row of {name}."));
                }
            }
            None if name == HOUSE || name == FEATURES => {}
            None => {
                let list = if dependencies.is_empty() { "-".to_owned() } else { dependencies.iter().cloned().collect::<Vec<_>>().join(", ") };
                found.push(format!("{name}: the table has no row of this crate. Its dependencies today: | {name} | {list} |"));
            }
        }
    }
    for name in table.keys().filter(|name| !crates.contains_key(*name)) {
        found.push(format!("{name}: the table has a row of a crate that does not exist. Remove or rename the row."));
    }
    found
}

#[test]
fn crate_graph_matches_architecture_table() {
    let mut crates = Graph::new();
    for member in members() {
        let dependencies = member.dependencies.into_iter().filter(|name| name != FEATURES).collect();
        crates.insert(member.name, dependencies);
    }
    let document = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = table(&document).unwrap_or_else(|e| panic!("{e}"));
    let found = differences(&table, &crates);
    assert!(found.is_empty(), "dependencies between crates and the table in ARCHITECTURE.md differ:\n{}", found.join("\n"));
}

fn graph(rows: &[(&str, &[&str])]) -> Graph {
    rows.iter().map(|(name, on)| ((*name).to_owned(), on.iter().map(|name| (*name).to_owned()).collect())).collect()
}

#[test]
fn table_is_read_between_its_marks() {
    let document =
        "| no | row |\n<!-- crates -->\n\n| crate | may depend on |\n|---|:--|\n| `a` | - |\n| b | a |\n| c | `a`, b |\n\n<!-- /crates -->\n| d | a |";
    assert_eq!(table(document), Ok(graph(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"])])));
    assert!(table("| a | - |").unwrap_err().contains("no table"));
    assert!(table("<!-- crates -->\n| a | - |\n| a | - |\n<!-- /crates -->").unwrap_err().contains("two rows of a"));
    assert!(table("<!-- crates -->\n| a |  |\n<!-- /crates -->").unwrap_err().contains("write `-`"));
}

#[test]
fn differences_name_edge_and_remedy() {
    let crates = graph(&[("a", &[]), ("b", &["a"]), ("c", &["a", "b"]), ("house", &[])]);
    assert_eq!(differences(&crates, &crates), Vec::<String>::new());
    let found = differences(&graph(&[("a", &[]), ("b", &["a", "c"]), ("c", &["a"]), ("gone", &[])]), &crates);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].starts_with("b -> c: the table has") && found[0].contains("Remove c from the row of b"), "{}", found[0]);
    assert!(found[1].starts_with("c -> b: Cargo.toml of c has") && found[1].contains("add b to the row of c"), "{}", found[1]);
    assert!(found[2].starts_with("gone: ") && found[2].contains("Remove or rename"), "{}", found[2]);
    let found = differences(&graph(&[("a", &[]), ("c", &["a", "b"])]), &crates);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("b: the table has no row") && found[0].ends_with("| b | a |"), "{}", found[0]);
}
