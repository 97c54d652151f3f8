//! The SQL dialect as sqllogictest files (`tests/sqllogictest/*.slt`), on one drive and on three, cut and
//! uncut: the same answers.
//!
//! The files make their tables with `INGEST name AS SELECT ...`, which is no SQL of ours: the rows of the query are
//! ingested under that name. Values are written as Arrow displays them, NULL as `NULL`, the empty text as `(empty)`;
//! rows of several values are separated by blanks. Types of columns are checked: T text, I integer, R float or decimal,
//! ? all else. `python/tests/test_dialect.py` runs the same files with DuckDB, except what is marked `skipif duckdb` or
//! `onlyif skytether`, where a comment says what is different.

use std::path::{Path, PathBuf};

use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use async_trait::async_trait;
use skytether::{Fleet, Pushdown, QueryOptions};
use skytether_common::Error;
use skytether_slice::SliceOptions;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Record, Runner, parse_file, strict_column_validator};

use crate::util::{name, open_with_slices};

struct Engine {
    fleet: Fleet,
    cut: Pushdown,
}

impl Engine {
    async fn query(&self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Error> {
        let query = self.fleet.sql(sql, &QueryOptions { cut: self.cut, ..QueryOptions::default() }).await?;
        let types = query.schema.fields().iter().map(|f| column_type(f.data_type())).collect();
        let rows = query.collect().await?.iter().flat_map(rows).collect();
        Ok(DBOutput::Rows { types, rows })
    }

    async fn ingest(&self, text: &str) -> Result<DBOutput<DefaultColumnType>, Error> {
        let (to, sql) = text.split_once(" AS ").ok_or_else(|| Error::invalid("INGEST wants a name, AS and a query"))?;
        let query = self.fleet.sql(sql, &QueryOptions::default()).await?;
        let schema = query.schema.clone();
        let batches = query.collect().await?;
        self.fleet.ingest_table(&name(to), schema, batches.into_iter().map(Ok), true).await?;
        Ok(DBOutput::StatementComplete(0))
    }
}

#[async_trait]
impl AsyncDB for Engine {
    type Error = Error;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Error> {
        match sql.strip_prefix("INGEST ") {
            Some(text) => self.ingest(text).await,
            None => self.query(sql).await,
        }
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "skytether"
    }
}

fn column_type(of: &DataType) -> DefaultColumnType {
    match of {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DefaultColumnType::Text,
        of if of.is_integer() => DefaultColumnType::Integer,
        of if of.is_numeric() => DefaultColumnType::FloatingPoint,
        _ => DefaultColumnType::Any,
    }
}

fn rows(batch: &RecordBatch) -> Vec<Vec<String>> {
    let options = FormatOptions::default().with_null("NULL");
    let columns: Vec<_> = batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
    let shown = |text: String| if text.is_empty() { "(empty)".to_owned() } else { text };
    (0..batch.num_rows()).map(|row| columns.iter().map(|c| shown(c.value(row).to_string())).collect()).collect()
}

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sqllogictest");
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "slt")).collect();
    files.sort();
    files
}

/// Runs all files; how many records there were, and what failed.
async fn run(drives: usize, cut: Pushdown) -> (usize, Vec<String>) {
    let (mut records, mut failed) = (0, Vec::new());
    for file in files() {
        let dir = tempfile::tempdir().unwrap();
        // Two rows a slice, so that the smallest tables are on several drives.
        let fleet = open_with_slices(dir.path(), drives, SliceOptions { max_rows: 2, ..SliceOptions::default() }).await.unwrap();
        let mut runner = Runner::new(|| async { Ok(Engine { fleet: fleet.clone(), cut }) });
        runner.with_column_validator(strict_column_validator);
        for record in parse_file::<DefaultColumnType>(&file).unwrap() {
            records += usize::from(matches!(record, Record::Query { .. } | Record::Statement { .. }));
            if let Err(e) = runner.run_async(record).await {
                failed.push(e.to_string());
            }
        }
    }
    (records, failed)
}

async fn check(drives: usize) {
    for cut in [Pushdown::Adaptive, Pushdown::Raw] {
        let (records, failed) = run(drives, cut).await;
        assert!(failed.is_empty(), "{drives} drives, {cut}: {} of {records} records failed:\n{}", failed.len(), failed.join("\n"));
        assert!(records >= 150, "only {records} records");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dialect_on_one_drive() {
    check(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dialect_on_three_drives() {
    check(3).await;
}
