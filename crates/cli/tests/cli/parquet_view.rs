//! Tables as plain files, and files of particles, at the command line.

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::Float32Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use crate::util::{Served, file, fleet, parquet, rows, run, text};

fn read(path: &str) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(path).unwrap()).unwrap();
    let schema = builder.schema().clone();
    concat_batches(&schema, &builder.build().unwrap().map(Result::unwrap).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_table_goes_out_as_it_came_in_embedded_and_through_a_host() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "3");
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    let given = rows(0, 5000);
    run(&["ingest", &parquet(dir.path(), "t.parquet", &given), "--to", "d.t", "--fleet", &at]).code(0);
    let done = run(&["export", "d.t", "--out", &path("out.parquet"), "--fleet", &at]).code(0);
    assert!(done.out.contains("out.parquet: 5,000 rows in 1 row group, ") && done.err.is_empty(), "{done:?}");
    assert_eq!(read(&path("out.parquet")), given);
    // What is there stays, unless it is said to be replaced.
    let said = run(&["export", "d.t", "--out", &path("out.parquet"), "--fleet", &at]).fails(1);
    assert!(said.contains("out.parquet exists already") && said.contains("--replace"), "{said}");
    let done = run(&["export", "d.t", "--out", &path("out.parquet"), "--replace", "--format", "json", "--fleet", &at]).code(0);
    let report: Value = serde_json::from_str(&done.out).unwrap();
    let bytes = std::fs::read(path("out.parquet")).unwrap();
    assert!(report["rows"] == 5000 && report["bytes"] == bytes.len() && report["slices"] == 1 && report["table"] == "d.t", "{report}");
    let said = run(&["export", "d.none", "--out", &path("none.parquet"), "--fleet", &at]).fails(1);
    assert!(said.contains("d.none") && !dir.path().join("none.parquet").exists(), "{said}");
    let said = run(&["export", "d.t", "--out", &path("no/such.parquet"), "--fleet", &at]).fails(1);
    assert!(said.contains("no/such.parquet"), "{said}");

    let host = Served::start(&["host", "serve", "--fleet", &at]);
    run(&["export", "d.t", "--out", &path("again.parquet"), "--fleet", host.address()]).code(0);
    assert!(std::fs::read(path("again.parquet")).unwrap() == bytes);
}

#[test]
fn particles_are_made_stored_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    for name in ["p.parquet", "p.vpic"] {
        let done = run(&["generate", "particles", "--rows", "200k", "--seed", "5", "--out", &path(name)]).code(0);
        assert!(done.out.contains(&format!("{name}: 200,000 particles, ")), "{done:?}");
    }
    let done =
        run(&["generate", "particles", "--rows", "200_000", "--seed", "5", "--out", &path("raw"), "--output-format", "vpic", "--format", "json"]).code(0);
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert!(report["rows"] == 200_000 && report["bytes"] == 9_600_000, "{report}");
    assert!(std::fs::read(path("raw")).unwrap() == std::fs::read(path("p.vpic")).unwrap());
    assert!(run(&["generate", "particles", "--rows", "1", "--out", &path("raw"), "--output-format", "vpic"]).fails(1).contains("exists already"));

    run(&["ingest", &path("p.vpic"), "--to", "physics.a", "--fleet", &at]).code(0);
    assert!(run(&["ingest", &path("raw"), "--to", "physics.b", "--fleet", &at]).fails(1).contains("--input-format"));
    run(&["ingest", &path("raw"), "--input-format", "vpic", "--to", "physics.b", "--fleet", &at]).code(0);
    run(&["export", "physics.b", "--out", &path("out.parquet"), "--fleet", &at]).code(0);
    let given = read(&path("p.parquet"));
    assert_eq!(read(&path("out.parquet")), given);
    let energetic = given["ke"].as_primitive::<Float32Type>().values().iter().filter(|ke| **ke > 0.3).count();
    let counted = run(&["sql", "SELECT count(*) AS n FROM physics.a WHERE ke > 0.3", "--fleet", &at, "--format", "csv"]).code(0).out;
    assert!(energetic > 300 && counted == format!("n\n{energetic}\n"), "{counted}");

    let said = run(&["ingest", &file(dir.path(), "cut.vpic", "too short"), "--to", "physics.c", "--fleet", &at]).fails(1);
    assert!(said.contains("cut.vpic has 9 bytes"), "{said}");
}
