//! A reader per format; each gives the file's own schema and an iterator of its batches whose errors name the file.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::Schema;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use skytether_common::{Error, Result};

use super::{BATCH_ROWS, TableFile};

/// The most columns that a text file may have: a file of another kind easily looks like millions.
const MAX_TEXT_COLUMNS: usize = 100_000;

fn reopen(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| Error::io("open", path, e))
}

fn rewind(file: &mut (impl Seek + ?Sized), path: &Path) -> Result<()> {
    file.rewind().map_err(|e| Error::io("read", path, e))
}

/// Errors of a binary format: the bytes are not what was written.
fn corrupt(path: &Path, what: &str, e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::corrupt(format!("{} is no readable {what} file", path.display())).because(e)
}

/// Names the file in the errors of `batches`, with the rows that were read before.
fn named(
    path: PathBuf,
    wrong: fn(String) -> Error,
    batches: impl Iterator<Item = std::result::Result<RecordBatch, ArrowError>> + Send + 'static,
) -> Box<dyn Iterator<Item = Result<RecordBatch>> + Send> {
    let mut rows = 0;
    let mut over = false;
    Box::new(batches.map_while(move |batch| {
        if over {
            return None;
        }
        Some(match batch {
            Ok(batch) => {
                rows += batch.num_rows();
                Ok(batch)
            }
            Err(e) => {
                over = true;
                Err(wrong(format!("{}: cannot read what follows row {rows}", path.display())).because(e))
            }
        })
    }))
}

pub(super) fn parquet(path: PathBuf) -> Result<TableFile> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(reopen(&path)?).map_err(|e| corrupt(&path, "Parquet", e))?;
    let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).ok();
    let schema = Arc::clone(builder.schema());
    let reader = builder.with_batch_size(BATCH_ROWS).build().map_err(|e| corrupt(&path, "Parquet", e))?;
    Ok(TableFile { schema, batches: named(path, Error::corrupt, reader), rows, bytes: 0 })
}

pub(super) fn arrow(path: PathBuf) -> Result<TableFile> {
    let mut file = BufReader::new(reopen(&path)?);
    let start = file.fill_buf().map_err(|e| Error::io("read", &path, e))?;
    if start.starts_with(b"FEA1") {
        return Err(Error::unsupported(format!("{} is a Feather file of version 1: write it again as version 2", path.display())));
    }
    if start.starts_with(b"ARROW1") {
        let reader = arrow::ipc::reader::FileReader::try_new(file, None).map_err(|e| corrupt(&path, "Arrow IPC", e))?;
        let schema = reader.schema();
        return Ok(TableFile { schema, batches: named(path, Error::corrupt, reader), rows: None, bytes: 0 });
    }
    let reader = arrow::ipc::reader::StreamReader::try_new(file, None).map_err(|e| corrupt(&path, "Arrow IPC", e))?;
    let schema = reader.schema();
    Ok(TableFile { schema, batches: named(path, Error::corrupt, reader), rows: None, bytes: 0 })
}

fn check_columns(path: &Path, schema: &Schema) -> Result<()> {
    match schema.fields().len() {
        0 => Err(Error::invalid(format!("{} has no columns", path.display()))),
        n if n > MAX_TEXT_COLUMNS => Err(Error::invalid(format!("{} seems to have {n} columns: is it a file of another kind?", path.display()))),
        _ => Ok(()),
    }
}

/// Types are inferred from the whole file, so that no later line contradicts them.
pub(super) fn separated(path: PathBuf, by: u8) -> Result<TableFile> {
    let format = arrow::csv::reader::Format::default().with_header(true).with_delimiter(by);
    let mut file = reopen(&path)?;
    let wrong = |e: ArrowError| Error::invalid(format!("cannot read {}", path.display())).because(e);
    let (schema, rows) = format.infer_schema(BufReader::new(file.by_ref()), None).map_err(wrong)?;
    check_columns(&path, &schema)?;
    rewind(&mut file, &path)?;
    let schema = Arc::new(schema);
    let reader = arrow::csv::ReaderBuilder::new(Arc::clone(&schema)).with_format(format).with_batch_size(BATCH_ROWS).build(file).map_err(wrong)?;
    Ok(TableFile { schema, batches: named(path.clone(), Error::invalid, reader), rows: Some(rows as u64), bytes: 0 })
}

pub(super) fn json_lines(path: PathBuf) -> Result<TableFile> {
    let mut file = reopen(&path)?;
    let wrong = |e: ArrowError| Error::invalid(format!("cannot read {}: each line must be a JSON object", path.display())).because(e);
    let (schema, rows) = arrow::json::reader::infer_json_schema(BufReader::new(file.by_ref()), None).map_err(wrong)?;
    check_columns(&path, &schema)?;
    rewind(&mut file, &path)?;
    let schema = Arc::new(schema);
    let reader = arrow::json::ReaderBuilder::new(Arc::clone(&schema)).with_batch_size(BATCH_ROWS).build(BufReader::new(file)).map_err(wrong)?;
    Ok(TableFile { schema, batches: named(path.clone(), Error::invalid, reader), rows: Some(rows as u64), bytes: 0 })
}
