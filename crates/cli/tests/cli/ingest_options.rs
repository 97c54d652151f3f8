//! What `ingest` is told about files: separators, types, columns that differ, directories.

use crate::util::{file, fleet, run};

/// The rows of a query, in CSV.
fn rows(at: &str, sql: &str) -> String {
    run(&["sql", sql, "--fleet", at, "--format", "csv"]).code(0).out
}

#[test]
fn separated_values_are_read_as_the_options_say() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    let given = file(dir.path(), "t.txt", "00501;NA;'x;y'\n10001;2.50;z\n");
    let said = ["--delimiter", ";", "--no-header", "--quote", "'", "--null", "NA", "--types", "column_1=text", "--types", "column_2=decimal(5,2)"];
    run(&[&["ingest", &given, "--to", "d.t", "--fleet", &at], &said[..]].concat()).code(0);
    assert_eq!(rows(&at, "SELECT * FROM d.t ORDER BY column_1"), "column_1,column_2,column_3\n00501,,x;y\n10001,2.50,z\n");
    let plain = file(dir.path(), "t.csv", "a,b\n1,2\n");
    run(&["ingest", &plain, "--to", "d.u", "--fleet", &at, "--all-text"]).code(0);
    assert_eq!(rows(&at, "SELECT a || b AS c FROM d.u"), "c\n12\n");
    for (options, says) in
        [(&["--types", "a"][..], "COLUMN=TYPE"), (&["--types", "a=complex"], "there is no type"), (&["--schema", "merge"], "[possible values: strict, union]")]
    {
        let said = run(&[&["ingest", &plain, "--to", "d.v", "--fleet", &at], options].concat()).fails(2);
        assert!(said.contains(says), "{said}");
    }
    let said = run(&["ingest", &plain, "--to", "d.v", "--fleet", &at, "--delimiter", "||"]).fails(1);
    assert!(said.contains("is not one character"), "{said}");
}

#[test]
fn files_whose_columns_differ_are_a_union_where_asked() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    for (month, text) in [("1", "id,fee\n1,0.5\n"), ("2", "id,extra\n2,x\n")] {
        std::fs::create_dir_all(dir.path().join(format!("trips/month={month}"))).unwrap();
        file(dir.path(), &format!("trips/month={month}/t.csv"), text);
    }
    let trips = dir.path().join("trips").display().to_string();
    let said = run(&["ingest", &trips, "--to", "d.t", "--fleet", &at]).fails(1);
    assert!(said.contains("t.csv has other columns than") && said.contains("--schema union"), "{said}");
    let done = run(&["ingest", &trips, "--to", "d.t", "--fleet", &at, "--schema", "union"]).code(0);
    assert!(done.err.contains("2 of 2 files lack columns"), "{done:?}");
    assert_eq!(rows(&at, "SELECT * FROM d.t ORDER BY id"), "id,fee,extra,month\n1,0.5,,1\n2,,x,2\n");
    run(&["ingest", &trips, "--to", "d.t", "--fleet", &at, "--schema", "union", "--no-hive", "--replace"]).code(0);
    assert_eq!(rows(&at, "SELECT count(*) AS n, sum(fee) AS f FROM d.t"), "n,f\n2,0.5\n");
}
