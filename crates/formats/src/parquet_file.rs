//! Parquet. Before the library reads a file, its footer is within limits ([`footer`]); types that the library would
//! read as other values are looked at value by value ([`legacy`]).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use arrow::ipc::root_as_message;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, LogicalType, Type};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use skytether_common::{Error, Result};

use super::footer;
use super::format::{BATCH_ROWS, Batches};
use super::guard::{corrupt, guarded, named};
use super::legacy::{self, Units};
use super::location::Location;
use super::pieces::{PIECE_BYTES, pieces};
use super::source::{Failure, FileSource};

/// The key of a footer's entry with the Arrow schema that was written.
const ARROW_SCHEMA: &str = "ARROW:schema";

/// What was found in a file.
pub(super) struct Looked {
    pub(super) schema: SchemaRef,
    pub(super) rows: Option<u64>,
    /// The units that the times of INT96 columns may have, by the path of the column.
    pub(super) times: HashMap<String, Units>,
}

type Parquet = ParquetRecordBatchReaderBuilder<FileSource>;

fn open(path: &Location, units: &HashMap<String, TimeUnit>) -> Result<(FileSource, ArrowReaderMetadata, SchemaRef, Failure)> {
    let source = FileSource::open(path)?;
    let failure = source.failure();
    footer::check(path, &source)?;
    let wrong = |e| corrupt(path, "Parquet", &failure, e);
    guarded(path, || {
        let metadata = Arc::new(ParquetMetaDataReader::new().parse_and_finish(&source).map_err(wrong)?);
        check_integers(path, &metadata)?;
        let own = ArrowReaderMetadata::try_new(Arc::clone(&metadata), ArrowReaderOptions::new()).map_err(wrong)?;
        let paths: Vec<String> = metadata.file_metadata().schema_descr().columns().iter().map(|c| c.path().string()).collect();
        // What the table has, and what is read: views of texts and bytes do not repeat those of a dictionary.
        let told = each_leaf(own.schema(), &|leaf, of| match (of, paths.get(leaf).and_then(|path| units.get(path))) {
            (DataType::Timestamp(_, zone), Some(unit)) => DataType::Timestamp(*unit, zone.clone()),
            (DataType::Dictionary(_, values), _) if values.is_numeric() => values.as_ref().clone(),
            (of, _) => of.clone(),
        });
        let read = each_leaf(&told, &|_, of| match of {
            DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
            DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
            of => of.clone(),
        });
        let reading = if read == **own.schema() {
            own
        } else {
            ArrowReaderMetadata::try_new(metadata, ArrowReaderOptions::new().with_schema(Arc::new(read))).map_err(wrong)?
        };
        Ok((reading, Arc::new(told)))
    })
    .map(|(reading, told)| (source, reading, told, failure))
}

/// `schema` with other types of its leaves, which are Parquet's columns in their order.
fn each_leaf(schema: &Schema, to: &dyn Fn(usize, &DataType) -> DataType) -> Schema {
    fn field(own: &FieldRef, leaf: &mut usize, to: &dyn Fn(usize, &DataType) -> DataType) -> FieldRef {
        let of = match own.data_type() {
            DataType::List(item) => DataType::List(field(item, leaf, to)),
            DataType::LargeList(item) => DataType::LargeList(field(item, leaf, to)),
            DataType::ListView(item) => DataType::ListView(field(item, leaf, to)),
            DataType::LargeListView(item) => DataType::LargeListView(field(item, leaf, to)),
            DataType::FixedSizeList(item, n) => DataType::FixedSizeList(field(item, leaf, to), *n),
            DataType::Struct(fields) => DataType::Struct(fields.iter().map(|f| field(f, leaf, to)).collect()),
            DataType::Map(entries, sorted) => DataType::Map(field(entries, leaf, to), *sorted),
            of => {
                *leaf += 1;
                to(*leaf - 1, of)
            }
        };
        if of == *own.data_type() { Arc::clone(own) } else { Arc::new(own.as_ref().clone().with_data_type(of)) }
    }
    let mut leaf = 0;
    let fields: Fields = schema.fields().iter().map(|f| field(f, &mut leaf, to)).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

/// Refuses integers of a width that Arrow does not have: the library ends in a panic there.
fn check_integers(path: &Path, metadata: &ParquetMetaData) -> Result<()> {
    let pairs = metadata.file_metadata().key_value_metadata().into_iter().flatten();
    let Some(text) = pairs.filter(|pair| pair.key == ARROW_SCHEMA).find_map(|pair| pair.value.as_ref()) else { return Ok(()) };
    let Ok(bytes) = BASE64_STANDARD.decode(text) else { return Ok(()) };
    // The message follows its mark and length, which old writers left out in part.
    let message = match bytes.as_slice() {
        [0xff, 0xff, 0xff, 0xff, _, _, _, _, rest @ ..] => rest,
        rest => rest,
    };
    let Some(schema) = root_as_message(message).ok().and_then(|message| message.header_as_schema()) else { return Ok(()) };
    for column in schema.fields().into_iter().flatten() {
        let mut left = vec![column];
        while let Some(field) = left.pop() {
            if let Some(integer) = field.type_as_int()
                && !matches!(integer.bitWidth(), 8 | 16 | 32 | 64)
            {
                return Err(Error::unsupported(format!(
                    "{}: column {:?} has integers of {} bits (Polars' Int128), which can't be stored: cast it to Decimal(38, 0) or to text first",
                    path.display(),
                    column.name().unwrap_or_default(),
                    integer.bitWidth()
                )));
            }
            left.extend(field.children().into_iter().flatten());
        }
    }
    Ok(())
}

/// Columns and number of rows.
pub(super) fn look_at(path: &Location) -> Result<Looked> {
    let (source, reading, schema, failure) = open(path, &HashMap::new())?;
    let metadata = reading.metadata();
    let (said, there) = (metadata.file_metadata().num_rows(), metadata.row_groups().iter().map(|group| i128::from(group.num_rows())).sum::<i128>());
    if i128::from(said) != there {
        return Err(Error::corrupt(format!("{}: its footer says {said} rows, and its row groups have {there}: write it again", path.display())));
    }
    for column in metadata.row_groups().iter().flat_map(|group| group.columns()) {
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
    check_variants(path, metadata)?;
    let times = guarded(path, || legacy::look_at(path, source, metadata, &failure))?;
    Ok(Looked { rows: u64::try_from(metadata.file_metadata().num_rows()).ok(), schema, times })
}

/// Refuses variants: without their type, they are two columns of bytes that no reader puts together again.
fn check_variants(path: &Path, metadata: &ParquetMetaData) -> Result<()> {
    for column in metadata.file_metadata().schema_descr().root_schema().get_fields() {
        let mut left = vec![column];
        while let Some(field) = left.pop() {
            if matches!(field.get_basic_info().logical_type_ref(), Some(LogicalType::Variant(_))) {
                return Err(Error::unsupported(format!(
                    "{}: column {:?} has values of any type (VARIANT), which can't be stored: write it as JSON text first",
                    path.display(),
                    column.name()
                )));
            }
            if field.is_group() {
                left.extend(field.get_fields());
            }
        }
    }
    Ok(())
}

/// Columns, where the times of INT96 columns have the `units`.
pub(super) fn schema(path: &Location, units: &HashMap<String, TimeUnit>) -> Result<SchemaRef> {
    Ok(open(path, units)?.2)
}

/// The rows, where the times of INT96 columns have the `units`.
pub(super) fn read(path: Location, units: &HashMap<String, TimeUnit>) -> Result<Batches> {
    let (source, reading, told, failure) = open(&path, units)?;
    let rows = batch_rows(reading.metadata());
    let builder = Parquet::new_with_metadata(source, reading);
    let reader = guarded(&path, || builder.with_batch_size(rows).build().map_err(|e| corrupt(&path, "Parquet", &failure, e)))?;
    let batches = reader.flat_map(move |batch| match batch {
        Ok(batch) => {
            let told = Arc::clone(&told);
            Either::Rows(pieces(batch).into_iter().map(move |piece| as_told(&piece, &told)))
        }
        Err(e) => Either::Error(Some(Err(e))),
    });
    Ok(named(path.to_path_buf(), failure, super::guard::damaged, batches))
}

/// Rows of a batch, so that lists of usual length fit in memory.
fn batch_rows(metadata: &ParquetMetaData) -> usize {
    let per_row = metadata.row_groups().iter().map(|group| {
        let rows = usize::try_from(group.num_rows()).unwrap_or(0).max(1);
        group
            .columns()
            .iter()
            .map(|column| {
                let width = match column.column_type() {
                    Type::BOOLEAN => 1,
                    Type::INT32 | Type::FLOAT => 4,
                    Type::INT64 | Type::DOUBLE => 8,
                    Type::INT96 | Type::BYTE_ARRAY => 16,
                    Type::FIXED_LEN_BYTE_ARRAY => usize::try_from(column.column_descr().type_length()).unwrap_or(16),
                };
                usize::try_from(column.num_values()).unwrap_or(0).div_ceil(rows).saturating_mul(width + 4)
            })
            .fold(0, usize::saturating_add)
    });
    let per_row = per_row.max().unwrap_or(0).max(1);
    (2 * PIECE_BYTES / per_row).clamp(1, BATCH_ROWS)
}

enum Either<I> {
    Rows(I),
    Error(Option<Result<RecordBatch, ArrowError>>),
}

impl<I: Iterator<Item = Result<RecordBatch, ArrowError>>> Iterator for Either<I> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Either::Rows(rows) => rows.next(),
            Either::Error(error) => error.take(),
        }
    }
}

/// A piece with the types that the table has.
fn as_told(piece: &RecordBatch, told: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = piece.columns().iter().zip(told.fields());
    let columns = columns.map(|(c, f)| if c.data_type() == f.data_type() { Ok(Arc::clone(c)) } else { cast_with_options(c, f.data_type(), &options) });
    let rows = RecordBatchOptions::new().with_row_count(Some(piece.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(told), columns.collect::<Result<_, _>>()?, &rows)
}
