//! A reader per format: an iterator of batches whose errors name the file. Also the schemas of files that have types of
//! their own.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::{FileReader, StreamReader};
use arrow::record_batch::RecordBatch;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::Compression;
use parquet::file::reader::Length;
use skytether_common::{Error, Result};
use skytether_vpic::{Records, vpic};

use super::csv_nulls::CsvNulls;
use super::format::{BATCH_ROWS, Batches};
use super::infer::{self, Lines};
use super::source::{Failure, FileSource, Text, failed};

/// Errors of a binary format: the bytes are not what was written, unless the system could not read them.
fn corrupt(path: &Path, what: &str, failure: &Failure, e: impl std::error::Error + Send + Sync + 'static) -> Error {
    failure.or(path, Error::corrupt(format!("{} is truncated or no {what} file", path.display())).with_source(e))
}

/// Ends `batches` at the first error. `wrong` makes the error from the number of rows before it, unless the system
/// caused it.
fn named(
    path: PathBuf,
    failure: Failure,
    wrong: impl Fn(&Path, usize, ArrowError) -> Error + Send + 'static,
    batches: impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send + 'static,
) -> Batches {
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
                Err(failure.or(&path, wrong(&path, rows, e)))
            }
        })
    }))
}

fn follows(path: &Path, rows: usize) -> String {
    format!("{}: cannot read what follows row {rows}", path.display())
}

fn damaged(path: &Path, rows: usize, e: ArrowError) -> Error {
    Error::corrupt(follows(path, rows)).with_source(e)
}

type Parquet = ParquetRecordBatchReaderBuilder<FileSource>;

fn open_parquet(path: &Path) -> Result<(Parquet, Failure)> {
    let source = FileSource::open(path)?;
    let failure = source.failure();
    let wrong = |e| corrupt(path, "Parquet", &failure, e);
    let mut metadata = ArrowReaderMetadata::load(&source, ArrowReaderOptions::new()).map_err(wrong)?;
    let readable = Schema::new_with_metadata(metadata.schema().fields().iter().map(readable).collect::<Fields>(), metadata.schema().metadata().clone());
    if readable != **metadata.schema() {
        let options = ArrowReaderOptions::new().with_schema(Arc::new(readable));
        metadata = ArrowReaderMetadata::try_new(Arc::clone(metadata.metadata()), options).map_err(wrong)?;
    }
    Ok((Parquet::new_with_metadata(source, metadata), failure))
}

/// A column as the Parquet reader can read it. It makes dictionaries of texts and bytes, but of no other type that is
/// stored as bytes.
fn readable(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Dictionary(_, values) if values.is_numeric() => values.as_ref().clone(),
        DataType::List(item) => DataType::List(readable(item)),
        DataType::LargeList(item) => DataType::LargeList(readable(item)),
        DataType::FixedSizeList(item, n) => DataType::FixedSizeList(readable(item), *n),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(readable).collect()),
        DataType::Map(entries, sorted) => DataType::Map(readable(entries), *sorted),
        _ => return Arc::clone(field),
    };
    if data_type == *field.data_type() { Arc::clone(field) } else { Arc::new(field.as_ref().clone().with_data_type(data_type)) }
}

/// Columns and number of rows.
pub(super) fn look_at_parquet(path: &Path) -> Result<(SchemaRef, Option<u64>)> {
    let (builder, _) = open_parquet(path)?;
    for column in builder.metadata().row_groups().iter().flat_map(|group| group.columns()) {
        let codec = column.compression();
        if matches!(codec, Compression::BROTLI(_) | Compression::LZO) {
            let name = column.column_path().string();
            let codec = if codec == Compression::LZO { "LZO" } else { "Brotli" };
            return Err(Error::unsupported(format!(
                "{}: column {name:?} is compressed with {codec}, which is not read here: write it with zstd",
                path.display()
            )));
        }
    }
    Ok((Arc::clone(builder.schema()), u64::try_from(builder.metadata().file_metadata().num_rows()).ok()))
}

pub(super) fn parquet(path: PathBuf) -> Result<Batches> {
    let (builder, failure) = open_parquet(&path)?;
    let reader = builder.with_batch_size(BATCH_ROWS).build().map_err(|e| corrupt(&path, "Parquet", &failure, e))?;
    Ok(named(path, failure, damaged, reader))
}

/// Number of particles.
pub(super) fn look_at_vpic(path: &Path) -> Result<u64> {
    let mut source = FileSource::open(path)?;
    // A directory, which can't be read, has a length too.
    let begins = source.read(&mut [0]).map_err(|e| failed("read", path, e))?;
    vpic::records(&path.display().to_string(), if begins == 0 { 0 } else { source.len() })
}

pub(super) fn vpic(path: PathBuf) -> Result<Batches> {
    let source = FileSource::open(&path)?;
    let failure = source.failure();
    let records = Records::new(path.display().to_string(), source, BATCH_ROWS);
    Ok(Box::new(records.map(move |batch| batch.map_err(|e| failure.or(&path, e)))))
}

/// Arrow IPC in its two forms.
enum Ipc {
    File(FileReader<BufReader<FileSource>>),
    Stream(StreamReader<BufReader<FileSource>>),
}

fn open_arrow(path: &Path) -> Result<(Ipc, Failure)> {
    let source = FileSource::open(path)?;
    let failure = source.failure();
    let bytes = source.len();
    let mut file = BufReader::new(source);
    let start = file.fill_buf().map_err(|e| failed("read", path, e))?;
    if start.starts_with(b"FEA1") {
        return Err(Error::unsupported(format!("{} is a Feather file of version 1: write it again as version 2", path.display())));
    }
    // The reader allocates as many bytes as the first message says; a file of another kind easily says gigabytes.
    if let [0xff, 0xff, 0xff, 0xff, length @ ..] | length = start
        && let Some(length) = length.first_chunk()
        && !start.starts_with(b"ARROW1")
        && u64::from(u32::from_le_bytes(*length)) > bytes
    {
        return Err(Error::corrupt(format!("{} is truncated or no Arrow IPC file: its first message would be longer than the file", path.display())));
    }
    let opened = if start.starts_with(b"ARROW1") { FileReader::try_new(file, None).map(Ipc::File) } else { StreamReader::try_new(file, None).map(Ipc::Stream) };
    Ok((opened.map_err(|e| corrupt(path, "Arrow IPC", &failure, e))?, failure))
}

/// Columns.
pub(super) fn look_at_arrow(path: &Path) -> Result<SchemaRef> {
    Ok(match open_arrow(path)?.0 {
        Ipc::File(reader) => reader.schema(),
        Ipc::Stream(reader) => reader.schema(),
    })
}

pub(super) fn arrow(path: PathBuf) -> Result<Batches> {
    let (opened, failure) = open_arrow(&path)?;
    Ok(match opened {
        Ipc::File(reader) => named(path, failure, damaged, reader),
        Ipc::Stream(reader) => named(path, failure, damaged, reader),
    })
}

pub(super) fn separated(path: PathBuf, by: u8, schema: &SchemaRef) -> Result<Batches> {
    let text = Text::open(&path)?;
    let failure = text.failure();
    let reader = arrow::csv::ReaderBuilder::new(Arc::clone(schema))
        .with_format(infer::format(by))
        .with_batch_size(BATCH_ROWS)
        .build(CsvNulls::new(text, by))
        .map_err(|e| failure.or(&path, Error::invalid(format!("cannot read {}", path.display())).with_source(e)))?;
    Ok(named(path, failure, misfit, reader))
}

/// A row of separated values that does not fit the types. Arrow counts its lines without the header, and may show the
/// whole row, which can be long.
fn misfit(path: &Path, rows: usize, e: ArrowError) -> Error {
    let text = e.to_string();
    let told = text.strip_prefix("Parser error: Error ").and_then(|text| text.split_once(" at line ")).and_then(|(what, rest)| {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let line: usize = rest[..digits].parse().ok()?;
        let why = if rest[digits..].starts_with(". Row data") { "" } else { &rest[digits..] };
        Some(format!("{}: line {} does not fit: error {what}{why}", path.display(), line + 1))
    });
    told.map_or_else(|| Error::invalid(follows(path, rows)).with_source(e), Error::invalid)
}

fn json_reader(schema: &SchemaRef) -> arrow::json::ReaderBuilder {
    // A column that holds numbers and texts is text.
    arrow::json::ReaderBuilder::new(Arc::clone(schema)).with_batch_size(BATCH_ROWS).with_coerce_primitive(true)
}

pub(super) fn json_lines(path: PathBuf, schema: &SchemaRef) -> Result<Batches> {
    let text = Text::open(&path)?;
    let failure = text.failure();
    let wrong = |e: ArrowError| failure.or(&path, Error::invalid(format!("cannot read {}: each line must be a JSON object", path.display())).with_source(e));
    let reader = json_reader(schema).build(BufReader::new(text)).map_err(wrong)?;
    let schema = Arc::clone(schema);
    let misfit = move |path: &Path, rows: usize, e: ArrowError| match line_at_fault(path, &schema, rows) {
        Some((line, e)) => Error::invalid(format!("{}: line {line} does not fit", path.display())).with_source(e),
        None => Error::invalid(follows(path, rows)).with_source(e),
    };
    Ok(named(path, failure, misfit, reader))
}

/// The first line after `rows` rows that can't be read alone, and why; Arrow itself names none.
fn line_at_fault(path: &Path, schema: &SchemaRef, rows: usize) -> Option<(usize, ArrowError)> {
    for line in Lines::open(path).ok()?.skip(rows).take(BATCH_ROWS) {
        let (number, text) = line.ok()?;
        let mut decoder = json_reader(schema).build_decoder().ok()?;
        if let Err(e) = decoder.decode(text.as_bytes()).and_then(|_| decoder.flush()) {
            return Some((number, e));
        }
    }
    None
}
