//! Tables with more columns than a planner likes to see: answers, messages and plans are those of whole tables.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow::record_batch::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use skytether::{Fleet, Pushdown, QueryOptions};

use crate::util::{ingest, lines, open, query};

const ROWS: i64 = 300;

/// `id`, `word`, `Mixed Case`, `UPPER`, and 300 numbers `c0..`, whose values differ with `salt`.
fn wide(salt: i64) -> RecordBatch {
    let mut columns: Vec<(String, ArrayRef)> = vec![
        ("id".into(), Arc::new(Int64Array::from_iter_values(0..ROWS))),
        ("word".into(), Arc::new(StringArray::from_iter((0..ROWS).map(|i| (i % 7 != 0).then(|| format!("w{}", i % 5)))))),
        ("Mixed Case".into(), Arc::new(Int64Array::from_iter_values((0..ROWS).map(|i| i * salt)))),
        ("at".into(), Arc::new(TimestampMicrosecondArray::from_iter_values((0..ROWS).map(|i| i * 3_600_000_000)).with_timezone("Europe/Berlin"))),
        ("UPPER".into(), Arc::new(Int64Array::from_iter_values((0..ROWS).map(|i| i - salt)))),
    ];
    for c in 0..300i64 {
        let values = (0..ROWS).map(|i| ((i * 31 + c * 17 + salt) % 11 != 0).then(|| ((i * 7 + c * salt) % 23) as f32));
        columns.push((format!("c{c}"), Arc::new(Float32Array::from_iter(values))));
    }
    RecordBatch::try_from_iter(columns).unwrap()
}

async fn two(drives: usize) -> (tempfile::TempDir, Fleet, SessionContext) {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), drives).await.unwrap();
    let context = SessionContext::new();
    for (name, salt) in [("wide", 3), ("other", 5)] {
        let rows = wide(salt);
        let parts = [rows.slice(0, 100), rows.slice(100, 200)];
        ingest(&fleet, &format!("lab.{name}"), &parts, false).await.unwrap();
        let table = MemTable::try_new(rows.schema(), vec![parts.to_vec()]).unwrap();
        context.register_table(name, Arc::new(table)).unwrap();
    }
    (dir, fleet, context)
}

fn unqualified(text: &str) -> String {
    text.replace("lab.", "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_over_few_of_many_columns_answer_as_one_engine() {
    let (_dir, fleet, context) = two(2).await;
    let many = (0..290).map(|c| format!("sum(c{c})")).collect::<Vec<_>>().join(", ");
    let grouped = format!("SELECT word, {many} FROM lab.wide WHERE c1 > 2 GROUP BY word, c3 > 5");
    let many = format!("SELECT {many} FROM lab.wide");
    // More than drives optimise again, with constants that travel in another zone.
    let third = r#"arrow_cast('1970-01-03T00:00:00Z', 'Timestamp(Nanosecond, Some("+00:00"))')"#;
    let zoned = (0..290).map(|c| format!("sum(CASE WHEN at > {third} THEN c{c} END) AS s{c}")).collect::<Vec<_>>().join(", ");
    let zoned = format!("SELECT word, {zoned} FROM lab.wide GROUP BY word");
    for sql in [
        "SELECT sum(c77), count(*) FROM lab.wide",
        "SELECT count(*) FROM lab.wide",
        "SELECT 1 AS one FROM lab.wide LIMIT 3",
        "SELECT C77, Id FROM lab.wide WHERE ID < 9 ORDER BY iD",
        r#"SELECT "Mixed Case", "UPPER", "id" FROM lab.wide WHERE "UPPER" > 250 ORDER BY 1"#,
        r#"SELECT sum("Mixed Case") AS c1, sum(c1) AS c2, sum(c2) AS id FROM lab.wide"#,
        "SELECT c1 AS c2, c2 AS c1 FROM lab.wide WHERE c1 > c2 ORDER BY id, c1 LIMIT 5",
        "SELECT id, c3 FROM lab.wide WHERE c4 > (SELECT avg(c5) FROM lab.other) ORDER BY id",
        "SELECT id FROM lab.wide w WHERE EXISTS (SELECT 1 FROM lab.other o WHERE o.id = w.id AND o.c9 > w.c9) ORDER BY id",
        "WITH a AS (SELECT id AS k, c7 AS v FROM lab.wide), b(k, v) AS (SELECT id, c8 FROM lab.other) SELECT a.k, a.v, b.v FROM a JOIN b ON a.k = b.k WHERE a.v > 20 ORDER BY a.k",
        "SELECT id, a.c1, b.c1 FROM lab.wide a JOIN lab.other b USING (id) WHERE a.c1 = 3 ORDER BY id",
        "SELECT id, c0, a.c1 + b.c2 FROM lab.wide a JOIN lab.other b USING (id, c0) ORDER BY id LIMIT 4",
        "SELECT word, count(*), max(c299) FROM lab.wide GROUP BY word HAVING count(*) > 1 ORDER BY word",
        "SELECT id FROM lab.wide WHERE c5 > 20 UNION SELECT c6 FROM lab.other WHERE c6 < 3 ORDER BY 1",
        "SELECT id, rank() OVER (PARTITION BY word ORDER BY c8, id) AS r FROM lab.wide WHERE id < 40 ORDER BY id",
        // Columns that the text selects without naming them.
        "SELECT * FROM lab.wide WHERE c5 > 21 ORDER BY id",
        "SELECT count(*) FROM lab.wide a NATURAL JOIN lab.other b",
        "SELECT k, v FROM (SELECT id, word FROM lab.wide) AS t(k, v) ORDER BY k LIMIT 3",
        "SELECT sum(c299) FROM (SELECT * FROM lab.wide)",
        many.as_str(),
        grouped.as_str(),
        zoned.as_str(),
    ] {
        let frame = context.sql(&unqualified(sql)).await.unwrap();
        let names: Vec<String> = frame.schema().fields().iter().map(|f| unqualified(f.name())).collect();
        let in_order = |batches: &[RecordBatch]| {
            let mut lines = lines(batches);
            if !sql.contains("ORDER BY") {
                lines.sort();
            }
            lines
        };
        let expected = in_order(&frame.collect().await.unwrap());
        for cut in [Pushdown::Adaptive, Pushdown::Raw] {
            let result = fleet.sql(sql, &QueryOptions { cut, ..QueryOptions::default() }).await.unwrap();
            let found: Vec<String> = result.schema.fields().iter().map(|f| unqualified(f.name())).collect();
            assert_eq!(found, names, "{cut}: {sql}");
            assert_eq!(in_order(&result.collect().await.unwrap()), expected, "{cut}: {sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planning_errors_are_those_of_whole_tables() {
    let (_dir, fleet, context) = two(1).await;
    for (sql, word) in [
        ("SELECT nix FROM lab.wide", "c299"),
        ("SELECT c1, Mixed FROM lab.wide", "c299"),
        ("SELECT upper FROM lab.wide", "c299"),
        ("SELECT c1 FROM lab.wide a JOIN lab.other b ON a.id = b.id", "mbiguous"),
        ("SELECT a.c1 FROM lab.wide a JOIN lab.other b USING (nix)", "nix"),
    ] {
        let expected = match context.sql(&unqualified(sql)).await {
            Ok(frame) => frame.into_optimized_plan().unwrap_err(),
            Err(e) => e,
        };
        let expected = expected.strip_backtrace();
        let error = query(&fleet, sql, Pushdown::Adaptive).await.unwrap_err().to_string();
        assert!(error.contains(word), "{sql}: {error}");
        // The engine's own text, whose first words tell its kind.
        let (_, told) = expected.split_once(": ").unwrap();
        assert!(unqualified(&error).to_lowercase().contains(&told.lines().next().unwrap().to_lowercase()), "{sql}: {error}\nwhere the engine says\n{expected}");
    }
    // The engine calls this a bug of its own.
    let error = query(&fleet, "SELECT sum(word) FROM lab.wide", Pushdown::Adaptive).await.unwrap_err().to_string();
    assert!(error.contains("sum does not take arguments of these types: sum(Utf8)"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_and_receipts_are_those_of_whole_tables() {
    let (_dir, fleet, _) = two(2).await;
    let options = QueryOptions::default();
    // What is read once and remembered.
    query(&fleet, "SELECT min(word) FROM lab.wide", Pushdown::Adaptive).await.unwrap();
    for (few, whole) in [
        ("SELECT c7, id FROM lab.wide WHERE c9 > 3", "SELECT c7, id FROM (SELECT * FROM lab.wide) WHERE c9 > 3"),
        ("SELECT word, sum(c7) FROM lab.wide GROUP BY word", "SELECT word, sum(c7) FROM (SELECT * FROM lab.wide) GROUP BY word"),
        ("SELECT count(*) FROM lab.wide", "SELECT count(*) FROM (SELECT * FROM lab.wide)"),
    ] {
        assert_eq!(fleet.explain(few, false, &options).await.unwrap(), fleet.explain(whole, false, &options).await.unwrap());
        let mut told = Vec::new();
        for sql in [few, whole] {
            let query = fleet.sql(sql, &options).await.unwrap();
            let receipt = query.receipt.clone();
            query.collect().await.unwrap();
            let receipt = receipt.receipt();
            let drives: Vec<_> = receipt.drives.iter().map(|d| (d.name.clone(), d.slices, d.slices_pruned, d.bytes_read)).collect();
            told.push((drives, receipt.bytes_moved, receipt.bytes_metadata));
        }
        assert_eq!(told[0], told[1], "{few}");
    }
}
