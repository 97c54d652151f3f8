//! Queries over files without a target: answers, several files, and what is refused. Those in a target are tested from
//! Python, with real file systems.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{AsArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Float64Type, Int64Type};
use arrow::util::pretty::pretty_format_batches;
use oas::{Input, Session, Settings};
use skytether_common::{Kind, Result};
use skytether_file_sql::FileTable;
use skytether_host::QueryOptions;

fn rows(from: i64, to: i64) -> RecordBatch {
    let n = Arc::new(Int64Array::from_iter_values(from..to)) as _;
    let x = Arc::new(Float64Array::from_iter((from..to).map(|n| (n % 5 != 0).then_some(n as f64 / 4.0)))) as _;
    let name = Arc::new(StringArray::from_iter_values((from..to).map(|n| format!("name {}", n % 7)))) as _;
    RecordBatch::try_from_iter_with_nullable([("n", n, true), ("x", x, true), ("name", name, true)]).unwrap()
}

fn write(dir: &Path, name: &str, rows: &RecordBatch) -> PathBuf {
    let path = dir.join(name);
    let mut file = std::fs::File::create(&path).unwrap();
    match path.extension().unwrap().to_str().unwrap() {
        "csv" => arrow::csv::Writer::new(&mut file).write(rows).unwrap(),
        "jsonl" => {
            let mut lines = arrow::json::LineDelimitedWriter::new(&mut file);
            lines.write(rows).unwrap();
            lines.finish().unwrap();
        }
        _ => {
            let mut parquet = parquet::arrow::ArrowWriter::try_new(&mut file, rows.schema(), None).unwrap();
            parquet.write(rows).unwrap();
            parquet.close().unwrap();
        }
    }
    path
}

async fn open(paths: &[PathBuf]) -> Result<FileTable> {
    let session = Arc::new(Session::local(Settings::default())?);
    let inputs = paths.iter().map(Input::open).collect::<Result<Vec<_>>>()?;
    FileTable::open(session, inputs, None).await
}

async fn ask(table: &FileTable, text: &str) -> Result<Vec<RecordBatch>> {
    table.sql(text, &QueryOptions::default()).await?.collect().await
}

fn shown(batches: &[RecordBatch]) -> String {
    pretty_format_batches(batches).unwrap().to_string()
}

const QUERIES: [&str; 8] = [
    "SELECT count(*), sum(n), min(x), max(name) FROM files",
    "SELECT name, count(*) AS c, avg(x) AS a, count(DISTINCT n % 3) AS d FROM files WHERE n >= 10 GROUP BY name ORDER BY name",
    "SELECT n, x FROM files WHERE x > 2000 ORDER BY n DESC LIMIT 5",
    "WITH t AS (SELECT name, max(n) AS top FROM files GROUP BY name) SELECT files.name, count(*) FROM files JOIN t ON files.n = t.top GROUP BY 1 ORDER BY 1",
    "SELECT f.n FROM files f WHERE f.n IN (SELECT n + 1 FROM files WHERE n % 1000 = 0) ORDER BY 1",
    "SELECT count(*) FROM files JOIN (VALUES (1), (2), (4711)) AS v(n) ON files.n = v.n",
    "SELECT median(n), name FROM files GROUP BY name ORDER BY name",
    "SELECT DISTINCT name, row_number() OVER (PARTITION BY name ORDER BY n) AS r FROM files WHERE n < 20 ORDER BY 1, 2",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_equal_over_formats_and_several_files() {
    let dir = tempfile::tempdir().unwrap();
    let whole = open(&[write(dir.path(), "all.parquet", &rows(0, 9000))]).await.unwrap();
    for format in ["csv", "jsonl", "parquet"] {
        let parts: Vec<PathBuf> =
            [(0, 4000), (4000, 4001), (4001, 9000)].map(|(from, to)| write(dir.path(), &format!("{from}.{format}"), &rows(from, to))).to_vec();
        let several = open(&parts).await.unwrap();
        for query in QUERIES {
            let right = shown(&ask(&whole, query).await.unwrap());
            assert_eq!(shown(&ask(&several, query).await.unwrap()), right, "{format}: {query}");
        }
        let ran = several.ran();
        assert!(ran.there == 0 && ran.here > 3 && ran.why.is_none(), "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_drives_of_the_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let parts = [(0, 100), (100, 300)].map(|(from, to)| write(dir.path(), &format!("{from}.csv"), &rows(from, to)));
    let table = open(&parts).await.unwrap();
    let query = table.sql("SELECT sum(n) FROM files", &QueryOptions::default()).await.unwrap();
    let receipt = query.receipt.clone();
    assert_eq!(query.collect().await.unwrap()[0].column(0).as_primitive::<Int64Type>().value(0), 299 * 150);
    let receipt = receipt.receipt();
    let json = receipt.to_json();
    let drives = json["drives"].as_array().unwrap();
    let names: Vec<&str> = drives.iter().map(|drive| drive["name"].as_str().unwrap()).collect();
    assert_eq!(names, parts.iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>());
    // Each file gives one state.
    assert!(drives.iter().all(|drive| drive["rung"] == "full" && drive["rows_out"] == 1), "{json:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_all_files_are_those_of_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name)
    };
    // Whole numbers here, fractions there: together they are fractions.
    let table = open(&[file("a.csv", "k,v\na,1\nb,2\n"), file("b.csv", "k,v\na,0.5\n")]).await.unwrap();
    let sum = ask(&table, "SELECT sum(v) FROM files").await.unwrap();
    assert_eq!(sum[0].column(0).as_primitive::<Float64Type>().value(0), 3.5);
    let none = open(&[]).await.unwrap_err();
    assert_eq!(none.kind(), Kind::Invalid);
    let other = open(&[file("c.csv", "k\n1\n"), file("d.jsonl", "{\"k\": 1}\n")]).await.unwrap_err();
    assert!(other.kind() == Kind::Invalid && other.mentions("different formats"), "{other}");
    let unknown = open(&[file("e.txt", "k\n1\n")]).await.unwrap_err();
    assert!(unknown.kind() == Kind::Invalid && unknown.mentions("e.txt"), "{unknown}");
    let ragged = open(&[file("f.csv", "a,b\n1,2\n3\n")]).await.unwrap_err();
    assert!(ragged.kind() == Kind::Invalid && ragged.mentions("f.csv"), "{ragged}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_tables_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let table = open(&[write(dir.path(), "a.csv", &rows(0, 10))]).await.unwrap();
    let error = ask(&table, "SELECT * FROM trips").await.unwrap_err();
    assert!(error.kind() == Kind::NotFound && error.mentions("trips") && error.mentions("files"), "{error}");
    let error = ask(&table, "SELECT nothing FROM files").await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.mentions("nothing"), "{error}");
    // A name of the query's own comes first.
    let own = ask(&table, "WITH files AS (SELECT 7 AS seven) SELECT seven FROM files").await.unwrap();
    assert_eq!(own[0].column(0).as_primitive::<Int64Type>().value(0), 7);
}
