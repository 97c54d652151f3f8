//! Indexes at the command line, over a fleet in a directory and through a host.

use serde_json::Value;

use crate::util::{Served, fleet, parquet, rows, run};

#[test]
fn indexes_are_created_listed_and_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    let given = rows(0, 5000);
    let (first, second) = (given.schema().field(0).name().clone(), given.schema().field(1).name().clone());
    run(&["ingest", &parquet(dir.path(), "t.parquet", &given), "--to", "d.t", "--fleet", &at]).code(0);
    assert_eq!(run(&["index", "list", "--fleet", &at]).code(0).out.trim(), "no indexes");
    let done = run(&["index", "create", "d.t", "--columns", &first, "--include", &second, "--name", "one", "--fleet", &at]).code(0);
    assert!(done.out.starts_with(&format!("d.t.data one on {first} with {second}: ready, 5,000 rows, ")) && done.err.is_empty(), "{done:?}");
    let said = run(&["index", "create", "d.t", "--columns", &first, "--name", "one", "--fleet", &at]).fails(1);
    assert!(said.contains("already"), "{said}");
    let said = run(&["index", "create", "d.t", "--columns", "none", "--fleet", &at]).fails(1);
    assert!(said.contains("\"none\"") && said.contains(&first), "{said}");
    run(&["index", "create", "nodot", "--columns", &first, "--fleet", &at]).fails(2);
    run(&["index", "create", "d.t", "--fleet", &at]).fails(2);

    let host = Served::start(&["host", "serve", "--fleet", &at]);
    let created = run(&["index", "create", "d.t", "--columns", &format!("{second},{first}"), "--wait", "--format", "json", "--fleet", host.address()]).code(0);
    let created: Value = serde_json::from_str(&created.out).unwrap();
    assert!(created[0]["state"] == "ready" && created[0]["rows"] == 5000 && created[0]["name"] == format!("{second}_{first}"), "{created}");
    let listed: Value = serde_json::from_str(&run(&["index", "list", "d.t", "--format", "json", "--fleet", host.address()]).code(0).out).unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    let done = run(&["index", "drop", "d.t", "one", "--fleet", host.address()]).code(0);
    assert_eq!(done.out.trim(), "dropped index one of d.t");
    let said = run(&["index", "drop", "d.t", "one", "--fleet", host.address()]).fails(1);
    assert!(said.contains("no index \"one\"") && said.contains(&format!("{second}_{first}")), "{said}");
}
