//! Plain tables over some drives: every cut gives what one engine gives over the same rows in memory.

use std::fs::File;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use skytether::{Fleet, HostOptions, OpenOptions, Pushdown};
use skytether_common::{Detail, Kind};

use crate::util::{CUTS, batches, ingest, lines, name, open, query, value};

/// Queries over `lab.plain`; `true` where the order of rows is part of the answer.
pub(crate) const QUERIES: [(&str, bool); 24] = [
    ("SELECT * FROM lab.plain", false),
    ("SELECT count(*) FROM lab.plain", true),
    ("SELECT count(*), count(x), sum(n), min(x), max(name) FROM lab.plain WHERE id >= 1000 AND id < 1500", true),
    ("SELECT grp, count(*), sum(n), round(avg(x), 6), min(x), max(x), round(stddev(x), 6) FROM lab.plain GROUP BY grp ORDER BY grp", true),
    ("SELECT grp, n % 5 AS m, sum(x) FILTER (WHERE n > 0) FROM lab.plain GROUP BY grp, n % 5 ORDER BY 1, 2", true),
    ("SELECT grp, median(n), round(corr(x, n), 6), bool_and(n > -101), bit_xor(n) FROM lab.plain GROUP BY grp ORDER BY grp", true),
    ("SELECT count(DISTINCT grp), count(DISTINCT name) FROM lab.plain", true),
    ("SELECT id, upper(name), x * 2 + n FROM lab.plain WHERE name LIKE 'name 1%' AND x IS NOT NULL", false),
    ("SELECT id, CASE WHEN n > 0 THEN 'up' WHEN n < 0 THEN 'down' END FROM lab.plain WHERE grp IN ('alpha', 'δέλτα') AND n BETWEEN -10 AND 10", false),
    ("SELECT count(*) FROM (SELECT id FROM lab.plain LIMIT 17)", true),
    ("SELECT count(*) FROM (SELECT id FROM lab.plain LIMIT 10000 OFFSET 2000)", true),
    ("SELECT id FROM lab.plain ORDER BY x DESC NULLS LAST, id LIMIT 12", true),
    ("SELECT id, n FROM lab.plain WHERE id = 2345", true),
    ("SELECT id FROM lab.plain WHERE id > 100000", true),
    ("SELECT sum(n), avg(x) FROM lab.plain WHERE id > 100000", true),
    ("SELECT grp FROM lab.plain WHERE id > 100000 GROUP BY grp", true),
    ("SELECT a.grp, count(*) FROM lab.plain a JOIN lab.plain b ON a.id = b.id + 1 GROUP BY a.grp ORDER BY a.grp", true),
    ("SELECT count(*) FROM lab.plain WHERE x > (SELECT avg(x) FROM lab.plain)", true),
    ("SELECT grp, n, rank() OVER (PARTITION BY grp ORDER BY id) FROM lab.plain WHERE id < 50", false),
    ("SELECT grp, sum(n) AS s FROM lab.plain GROUP BY grp HAVING sum(n) > 0 ORDER BY s", true),
    ("SELECT id FROM lab.plain WHERE id < 5 UNION ALL SELECT n FROM lab.plain WHERE id < 5", false),
    ("WITH t AS (SELECT grp, x FROM lab.plain WHERE n > 0) SELECT grp, count(*) FROM t GROUP BY grp ORDER BY grp", true),
    ("SELECT DISTINCT grp, n > 0 FROM lab.plain", false),
    ("SELECT t.* FROM lab.plain AS t WHERE t.id IN (SELECT id FROM lab.plain WHERE n = 7)", false),
];

pub(crate) async fn reference(rows: &[RecordBatch], sql: &str) -> Vec<String> {
    let context = SessionContext::new();
    let table = MemTable::try_new(rows[0].schema(), vec![rows.to_vec()]).unwrap();
    context.register_table("plain", Arc::new(table)).unwrap();
    let frame = context.sql(&sql.replace("lab.plain", "plain")).await.unwrap();
    lines(&frame.collect().await.unwrap())
}

/// The rows that a query gave are those that an engine over `rows` alone gives, in that order
/// where the query is `ordered`.
pub(crate) async fn assert_as_reference(rows: &[RecordBatch], (sql, ordered): (&str, bool), mut given: Vec<String>, what: &str) {
    let mut expected = reference(rows, sql).await;
    if !ordered {
        given.sort();
        expected.sort();
    }
    assert_eq!(given, expected, "{what}: {sql}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_cut_over_any_number_of_drives_equals_one_engine() {
    let rows = batches(8, 500);
    let mut expected = Vec::new();
    for (sql, ordered) in QUERIES {
        let mut lines = reference(&rows, sql).await;
        if !ordered {
            lines.sort();
        }
        expected.push(lines);
    }
    for drives in [1, 2, 5] {
        let dir = tempfile::tempdir().unwrap();
        let fleet = open(dir.path(), drives).await.unwrap();
        let report = ingest(&fleet, "lab.plain", &rows, false).await.unwrap();
        assert_eq!(report.rows, 4000);
        assert!(report.slices >= 5, "too few slices to spread: {}", report.slices);
        let record = fleet.describe(&name("lab.plain")).await.unwrap();
        assert_eq!(record.tables["data"].partitions.len(), drives);
        for cut in CUTS {
            for ((sql, ordered), expected) in QUERIES.iter().zip(&expected) {
                let mut given = query(&fleet, sql, cut).await.unwrap_or_else(|e| panic!("{drives} drives, {cut}: {sql}: {e}"));
                if !ordered {
                    given.sort();
                }
                assert_eq!(&given, expected, "{drives} drives, {cut}: {sql}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_table_has_its_columns_and_no_rows() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true), Field::new("b", DataType::Utf8, true)]));
    fleet.ingest_table(&name("lab.empty"), schema, std::iter::empty(), false).await.unwrap();
    for cut in CUTS {
        assert_eq!(query(&fleet, "SELECT a, b FROM lab.empty", cut).await.unwrap(), Vec::<String>::new());
        assert_eq!(query(&fleet, "SELECT count(*), sum(a) FROM lab.empty", cut).await.unwrap(), ["0 | -"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quoted_names_keep_their_case() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    let rows = batches(1, 10);
    for dataset in ["Lab-1.My-Table", "lab.data"] {
        ingest(&fleet, dataset, &rows, false).await.unwrap();
    }
    assert_eq!(value(&fleet, r#"SELECT count(*) FROM "Lab-1"."My-Table""#).await.unwrap(), "10");
    assert_eq!(value(&fleet, r#"SELECT count(*) FROM "Lab-1"."My-Table" a JOIN lab.data b ON a.id = b.id"#).await.unwrap(), "10");
    let error = query(&fleet, "SELECT 1 FROM lab.dat", Pushdown::Full).await.unwrap_err();
    assert_eq!((error.kind(), error.detail()), (Kind::NotFound, Some(&Detail::MissingDataset { dataset: name("lab.dat") })));
    assert!(error.to_string().contains("did you mean lab.data?"), "{error}");
    let error = query(&fleet, "SELECT 1 FROM nothing.like_it", Pushdown::Full).await.unwrap_err();
    assert!(error.to_string().contains(r#""Lab-1"."My-Table""#), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_other_than_queries_are_refused_clearly() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 1).await.unwrap();
    ingest(&fleet, "lab.plain", &batches(1, 10), false).await.unwrap();
    for sql in [
        "DROP TABLE lab.plain",
        "INSERT INTO lab.plain VALUES (1)",
        "DELETE FROM lab.plain",
        "CREATE TABLE a AS SELECT 1",
        "COPY lab.plain TO 'x.csv'",
        "SET a = 1",
    ] {
        let error = query(&fleet, sql, Pushdown::Full).await.unwrap_err();
        assert!(matches!(error.kind(), Kind::Unsupported | Kind::Invalid), "{sql}: {error:?}");
        assert!(error.to_string().contains("no query"), "{sql}: {error}");
    }
    for (sql, word) in [("SELEC 1", "SELEC"), ("SELECT nix FROM lab.plain", "nix"), ("SELECT 1; SELECT 2", "one query at a time"), ("", "")] {
        let error = query(&fleet, sql, Pushdown::Full).await.unwrap_err();
        assert!(error.to_string().to_lowercase().contains(&word.to_lowercase()), "{sql}: {error}");
    }
    let error = query(&fleet, "SELECT * FROM plain", Pushdown::Full).await.unwrap_err();
    assert!(error.to_string().contains("domain.dataset"), "{error}");
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.plain").await.unwrap(), "10");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_every_format_hold_the_same_table() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(&dir.path().join("fleet"), 2).await.unwrap();
    let rows = batches(3, 200);
    let schema = rows[0].schema();
    let path = |ending: &str| dir.path().join(format!("table.{ending}"));

    let mut parquet = parquet::arrow::ArrowWriter::try_new(File::create(path("parquet")).unwrap(), schema.clone(), None).unwrap();
    let mut ipc = arrow::ipc::writer::FileWriter::try_new(File::create(path("feather")).unwrap(), &schema).unwrap();
    let mut stream = arrow::ipc::writer::StreamWriter::try_new(File::create(path("arrows")).unwrap(), &schema).unwrap();
    let mut csv = arrow::csv::Writer::new(File::create(path("csv")).unwrap());
    let mut json = arrow::json::LineDelimitedWriter::new(File::create(path("jsonl")).unwrap());
    for batch in &rows {
        parquet.write(batch).unwrap();
        ipc.write(batch).unwrap();
        stream.write(batch).unwrap();
        csv.write(batch).unwrap();
        json.write(batch).unwrap();
    }
    parquet.close().unwrap();
    ipc.finish().unwrap();
    stream.finish().unwrap();
    csv.into_inner();
    json.finish().unwrap();

    let sum = "SELECT count(*), sum(id), sum(n), sum(x), count(name), max(name) FROM lab.";
    let expected = reference(&rows, &format!("{sum}plain")).await;
    for ending in ["parquet", "feather", "arrows", "csv", "jsonl"] {
        fleet.ingest_files(&name(&format!("lab.{ending}")), &[path(ending)], false).await.unwrap();
        assert_eq!(query(&fleet, &format!("{sum}{ending}"), Pushdown::Full).await.unwrap(), expected, "{ending}");
    }
    fleet.ingest_files(&name("lab.twice"), &[path("parquet"), path("feather")], false).await.unwrap();
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.twice").await.unwrap(), "1200");
    let error = fleet.ingest_files(&name("lab.bad"), &[path("parquet"), path("csv")], false).await.unwrap_err();
    assert!(error.to_string().contains("table.csv"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_sort_obeys_the_disk_limit_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let spill = dir.path().join("spill");
    let options = OpenOptions { drives: Some(1), ..OpenOptions::default() };
    // A sort wants 10 MiB for merging alone.
    let host = |spill_limit| HostOptions { memory_limit: 16 << 20, threads: 1, spill_limit, ..HostOptions::default() };
    let sql = "SELECT id, x, name, grp FROM lab.many ORDER BY x, id";
    let fleet = Fleet::open_with(dir.path(), &options, host(10 << 30)).await.unwrap();
    ingest(&fleet, "lab.many", &batches(100, 2000), false).await.unwrap();
    assert_eq!(query(&fleet, sql, Pushdown::Filter).await.unwrap().len(), 200_000);
    drop(fleet);
    assert_eq!(std::fs::read_dir(&spill).unwrap().count(), 0);

    // As a crash leaves it.
    std::fs::create_dir(spill.join("skytether-spill-1-a")).unwrap();
    std::fs::write(spill.join("skytether-spill-1-a/rows"), "1").unwrap();
    std::fs::write(spill.join("skytether-spill-1-a.lock"), "").unwrap();
    let fleet = Fleet::open_with(dir.path(), &options, host(1 << 20)).await.unwrap();
    assert!(!spill.join("skytether-spill-1-a").exists());
    let error = query(&fleet, sql, Pushdown::Filter).await.unwrap_err();
    assert!(error.kind() == Kind::Exhausted && error.to_string().contains("1.00 MiB") && error.to_string().contains("spill limit"), "{error}");
    assert_eq!(error.detail(), Some(&Detail::SpillExhausted { limit: 1 << 20 }));
    // The memory is released: a query that fits is answered.
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.many").await.unwrap(), "200000");
}
