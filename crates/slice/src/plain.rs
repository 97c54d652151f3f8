//! The footer of a Parquet file that is made of unchanged slices.
//!
//! The file is the slices one after the other, whole, each with its own footer, and one footer behind all of them
//! ([`Assembly`]). Readers ignore the bytes between row groups, so this is a Parquet file like any other. A stripe of
//! rows is a row group; in wide tables its chunks are in several slices.
//!
//! The footer's chunks are those of the slices' own footers, with offsets in the file. It also has what slices leave to
//! the partition's metadata slice. These are bounds and null counts of the columns, so that readers can skip row
//! groups, and the Arrow schema of the whole table.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal128Type, Decimal256Type, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType,
    DurationSecondType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, SchemaRef, Time32MillisecondType, Time32SecondType,
    Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use bytes::Bytes;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ArrowSchemaConverter, encode_arrow_schema};
use parquet::basic::Type as Physical;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};
use skytether_common::{Error, Result};

use crate::groups::Groups;
use crate::guard::{check_footer, corrupt, guarded};
use crate::metadata::Metadata;
use crate::metadata::entry::SliceEntry;
use crate::metadata::stats_table::StatsTable;
use crate::pieces::Pieces;

/// What every Parquet file begins with. So does the first slice; a file without slices has
/// nothing else before its footer.
pub const MAGIC: &[u8; 4] = b"PAR1";

/// The most column chunks that one footer describes: their description is in memory while it is made,
/// some hundred bytes each.
pub const MAX_CHUNKS: usize = 4 << 20;

/// The footer of a file of slices, while it is made: stripe by stripe in the order of the file.
#[derive(Debug)]
pub struct Assembly {
    schema: SchemaRef,
    groups: Groups,
    /// The Parquet schemas of the groups, as the first stripe has them.
    parts: Vec<SchemaDescPtr>,
    whole: Option<SchemaDescPtr>,
    version: i32,
    row_groups: Vec<RowGroupMetaData>,
    chunks: usize,
    rows: i64,
    at: u64,
}

/// The footer of a slice.
#[derive(Debug)]
pub struct Footer {
    metadata: ParquetMetaData,
    /// The length of the slice.
    len: u64,
}

impl Footer {
    /// Reads the footer of slice `n` of a partition, from all of its bytes or from those behind its columns.
    ///
    /// # Errors
    /// `Corrupt` where they are not what the partition's metadata describes.
    pub fn read(partition: &Metadata, n: usize, slice: &Pieces) -> Result<Self> {
        check_footer("a slice's footer", slice)?;
        let metadata = guarded("a slice's footer", || ParquetMetaDataReader::new().parse_and_finish(slice).map_err(corrupt("a slice's footer")))?;
        let wrong = |what: String| Error::corrupt(format!("slice {n} of a partition {what}"));
        let SliceEntry { rows, len, .. } = *partition.slices.get(n).ok_or_else(|| wrong("is not in its metadata".into()))?;
        let [one] = metadata.row_groups() else { return Err(wrong(format!("has {} row groups and not one", metadata.num_row_groups()))) };
        if u64::try_from(one.num_rows()) != Ok(rows) {
            return Err(wrong(format!("has {} rows and not {rows}", one.num_rows())));
        }
        let within = |chunk: &ColumnChunkMetaData| {
            let begin = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset()).min(chunk.data_page_offset());
            let end = begin.checked_add(chunk.compressed_size().max(0)).and_then(|end| u64::try_from(end).ok());
            let data = u64::try_from(chunk.data_page_offset());
            begin >= MAGIC.len() as i64 && end.is_some_and(|end| end < len) && data.is_ok_and(|data| data < len)
        };
        if let Some(chunk) = one.columns().iter().find(|chunk| !within(chunk)) {
            return Err(wrong(format!("has a chunk of {} beyond its end", chunk.column_path())));
        }
        Ok(Self { metadata, len })
    }
}

impl Assembly {
    /// An empty file of a table with this schema and these groups of columns.
    #[must_use]
    pub fn new(schema: SchemaRef, groups: Groups) -> Self {
        Self { schema, groups, parts: Vec::new(), whole: None, version: 1, row_groups: Vec::new(), chunks: 0, rows: 0, at: 0 }
    }

    /// Bytes of the slices so far: where the next one begins, and at last the footer.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.at
    }

    /// Whether there is no slice yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Adds stripe `stripe` of the partition that `metadata` describes; `slices` are the footers of its slices.
    ///
    /// # Errors
    /// `Corrupt` where they are not of this table; `Exhausted` for more than [`MAX_CHUNKS`] chunks.
    pub fn add(&mut self, metadata: &Metadata, stripe: usize, slices: Vec<Footer>) -> Result<()> {
        if metadata.groups != self.groups || slices.len() != self.groups.len() || metadata.schema != self.schema {
            return Err(Error::corrupt("the partitions of a table have other columns than one another"));
        }
        let rows = metadata.stripe_rows(stripe).and_then(|rows| i64::try_from(rows).ok());
        let rows = rows.ok_or_else(|| Error::internal(format!("there is no stripe {stripe}")))?;
        let mut start = self.at;
        let mut footers = Vec::with_capacity(slices.len());
        for Footer { metadata, len } in slices {
            footers.push((start, metadata));
            start = start.checked_add(len).filter(|end| i64::try_from(*end).is_ok()).ok_or_else(|| Error::exhausted("a file of more bytes than can be"))?;
        }
        self.check(&footers)?;
        self.row_groups.push(self.row_group(&metadata.stats, stripe, rows, footers)?);
        self.rows = self.rows.saturating_add(rows);
        self.at = start;
        Ok(())
    }

    /// Whether the slices have the columns that they had so far, and the footer still has room for theirs.
    fn check(&mut self, footers: &[(u64, ParquetMetaData)]) -> Result<()> {
        let found = || footers.iter().map(|(_, footer)| footer.file_metadata());
        if self.parts.is_empty() {
            self.parts = found().map(FileMetaData::schema_descr_ptr).collect();
            self.version = found().map(FileMetaData::version).max().unwrap_or(1);
            let whole = joined(&self.parts)?;
            if whole.root_schema().get_fields().len() != self.schema.fields().len() {
                let (has, due) = (whole.root_schema().get_fields().len(), self.schema.fields().len());
                return Err(Error::corrupt(format!("the slices of a table have {has} columns and not {due}")));
            }
            self.whole = Some(whole);
        } else if let Some((one, first)) = found().zip(&self.parts).find(|(one, first)| one.schema_descr().root_schema() != first.root_schema()) {
            let of = |root: &Type| root.get_fields().iter().map(|field| field.name().to_owned()).collect::<Vec<_>>().join(", ");
            return Err(Error::corrupt(format!(
                "the slices of a table have columns ({}) and ({}), or other types of them",
                of(first.root_schema()),
                of(one.schema_descr().root_schema())
            )));
        }
        self.chunks += self.whole.as_ref().map_or(0, |whole| whole.num_columns());
        if self.chunks > MAX_CHUNKS {
            return Err(Error::exhausted(format!(
                "a Parquet file of more than {MAX_CHUNKS} column chunks would have a footer that few programs read: take some of the columns by a query instead"
            )));
        }
        Ok(())
    }

    fn row_group(&self, stats: &StatsTable, stripe: usize, rows: i64, footers: Vec<(u64, ParquetMetaData)>) -> Result<RowGroupMetaData> {
        let whole = self.whole.as_ref().ok_or_else(|| Error::internal("a row group without a schema"))?;
        let refused = |e: parquet::errors::ParquetError| Error::internal("a slice's chunks do not make a row group").with_source(e);
        let (mut all, mut bytes) = (Vec::with_capacity(whole.num_columns()), 0i64);
        for (start, footer) in footers {
            let start = i64::try_from(start).map_err(|e| Error::exhausted("a file of more bytes than can be").with_source(e))?;
            for chunk in footer.row_groups().iter().flat_map(|group| group.columns()) {
                bytes = bytes.saturating_add(chunk.uncompressed_size());
                let column = whole.get_column_root_idx(all.len());
                let (offset, dictionary) = (chunk.data_page_offset() + start, chunk.dictionary_page_offset().map(|at| at + start));
                let flat = whole.column(all.len()).path().parts().len() == 1 && whole.column(all.len()).max_rep_level() == 0;
                let known = if flat { statistics(self.schema.field(column).data_type(), chunk, stats, column, stripe) } else { None };
                let mut moved = chunk.clone().into_builder().set_data_page_offset(offset).set_dictionary_page_offset(dictionary).clear_statistics();
                if let Some(known) = known {
                    moved = moved.set_statistics(known);
                }
                all.push(moved.build().map_err(refused)?);
            }
        }
        RowGroupMetaData::builder(SchemaDescPtr::clone(whole)).set_num_rows(rows).set_total_byte_size(bytes).set_column_metadata(all).build().map_err(refused)
    }

    /// What comes behind the slices. Where there are none it begins with what files begin with.
    ///
    /// # Errors
    /// `Unsupported` where an empty table has a column that Parquet has no type for.
    pub fn finish(self) -> Result<Bytes> {
        let mut bytes = if self.at == 0 { MAGIC.to_vec() } else { Vec::new() };
        let whole = match self.whole {
            Some(whole) => whole,
            None => SchemaDescPtr::new(
                ArrowSchemaConverter::new().convert(&self.schema).map_err(|e| Error::unsupported("these columns have no Parquet form").with_source(e))?,
            ),
        };
        let arrow = KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), encode_arrow_schema(&self.schema));
        let file = FileMetaData::new(self.version, self.rows, Some("skytether".into()), Some(vec![arrow]), whole, None);
        let metadata = ParquetMetaData::new(file, self.row_groups);
        ParquetMetaDataWriter::new(&mut bytes, &metadata).finish().map_err(|e| Error::internal("cannot write a file's footer").with_source(e))?;
        if bytes.len() > i32::MAX as usize {
            return Err(Error::exhausted("a Parquet file's footer can't have more than 2 GiB: take some of the columns by a query instead"));
        }
        Ok(bytes.into())
    }
}

/// The columns of all groups in one schema.
fn joined(parts: &[SchemaDescPtr]) -> Result<SchemaDescPtr> {
    if let [one] = parts {
        return Ok(SchemaDescPtr::clone(one));
    }
    let fields = parts.iter().flat_map(|part| part.root_schema().get_fields()).cloned().collect();
    let name = parts.first().map_or("schema", |part| part.root_schema().name());
    let root =
        Type::group_type_builder(name).with_fields(fields).build().map_err(|e| Error::internal("groups of columns do not make a schema").with_source(e))?;
    Ok(SchemaDescPtr::new(SchemaDescriptor::new(Arc::new(root))))
}

/// What the metadata slice knows of column `column` of a stripe, in Parquet's words. Nothing where the two
/// have another order, or none.
fn statistics(data_type: &DataType, chunk: &ColumnChunkMetaData, stats: &StatsTable, column: usize, stripe: usize) -> Option<Statistics> {
    let (min, max, nulls) = stats.of(column, stripe)?;
    let bound = |array: &ArrayRef| array.is_valid(0).then(|| Arc::clone(array));
    // One bound alone is as good as none to most readers.
    let (min, max) = bound(&min).zip(bound(&max)).unzip();
    typed(data_type, chunk, min.as_ref(), max.as_ref(), nulls).or_else(|| Some(nulls_only(chunk.column_type(), nulls)))
}

fn nulls_only(physical: Physical, nulls: u64) -> Statistics {
    let nulls = Some(nulls);
    match physical {
        Physical::BOOLEAN => Statistics::boolean(None, None, None, nulls, false),
        Physical::INT32 => Statistics::int32(None, None, None, nulls, false),
        Physical::INT64 => Statistics::int64(None, None, None, nulls, false),
        Physical::INT96 => Statistics::int96(None, None, None, nulls, false),
        Physical::FLOAT => Statistics::float(None, None, None, nulls, false),
        Physical::DOUBLE => Statistics::double(None, None, None, nulls, false),
        Physical::BYTE_ARRAY => Statistics::byte_array(None, None, None, nulls, false),
        Physical::FIXED_LEN_BYTE_ARRAY => Statistics::fixed_len_byte_array(None, None, None, nulls, false),
    }
}

/// Bounds of a column of `data_type` as its physical type has them; `None` where it has others.
fn typed(data_type: &DataType, chunk: &ColumnChunkMetaData, min: Option<&ArrayRef>, max: Option<&ArrayRef>, nulls: u64) -> Option<Statistics> {
    let nulls = Some(nulls);
    macro_rules! of {
        ($arrow:ty, $make:path, $to:ty) => {{
            let value = |bound: &ArrayRef| bound.as_primitive_opt::<$arrow>().map(|array| array.value(0) as $to);
            $make(min.and_then(value), max.and_then(value), None, nulls, false)
        }};
    }
    macro_rules! texts {
        ($($as:tt)+) => {{
            let value = |bound: &ArrayRef| bound.$($as)+.map(|array| ByteArray::from(AsRef::<[u8]>::as_ref(array.value(0)).to_vec()));
            // Long ones were cut short.
            Statistics::from(ValueStatistics::new(min.and_then(value), max.and_then(value), None, nulls, false).with_min_is_exact(false).with_max_is_exact(false))
        }};
    }
    let fixed = |value: &dyn Fn(&ArrayRef) -> Option<Vec<u8>>| {
        let value = |bound: &ArrayRef| value(bound).map(|bytes| FixedLenByteArray::from(ByteArray::from(bytes)));
        Statistics::fixed_len_byte_array(min.and_then(value), max.and_then(value), None, nulls, false)
    };
    // The last bytes of a number, the highest first.
    let width = usize::try_from(chunk.column_descr().type_length()).unwrap_or(0);
    let last = |bytes: &[u8]| bytes.len().checked_sub(width).map(|from| bytes[from..].to_vec());
    Some(match (data_type, chunk.column_type()) {
        (DataType::Boolean, Physical::BOOLEAN) => {
            let value = |bound: &ArrayRef| bound.as_boolean_opt().map(|array| array.value(0));
            Statistics::boolean(min.and_then(value), max.and_then(value), None, nulls, false)
        }
        (DataType::Int8, Physical::INT32) => of!(Int8Type, Statistics::int32, i32),
        (DataType::Int16, Physical::INT32) => of!(Int16Type, Statistics::int32, i32),
        (DataType::Int32, Physical::INT32) => of!(Int32Type, Statistics::int32, i32),
        (DataType::UInt8, Physical::INT32) => of!(UInt8Type, Statistics::int32, i32),
        (DataType::UInt16, Physical::INT32) => of!(UInt16Type, Statistics::int32, i32),
        (DataType::UInt32, Physical::INT32) => of!(UInt32Type, Statistics::int32, i32),
        (DataType::Date32, Physical::INT32) => of!(Date32Type, Statistics::int32, i32),
        (DataType::Time32(TimeUnit::Second), Physical::INT32) => of!(Time32SecondType, Statistics::int32, i32),
        (DataType::Time32(TimeUnit::Millisecond), Physical::INT32) => of!(Time32MillisecondType, Statistics::int32, i32),
        (DataType::Int64, Physical::INT64) => of!(Int64Type, Statistics::int64, i64),
        (DataType::UInt64, Physical::INT64) => of!(UInt64Type, Statistics::int64, i64),
        (DataType::Date64, Physical::INT64) => of!(Date64Type, Statistics::int64, i64),
        (DataType::Time64(TimeUnit::Microsecond), Physical::INT64) => of!(Time64MicrosecondType, Statistics::int64, i64),
        (DataType::Time64(TimeUnit::Nanosecond), Physical::INT64) => of!(Time64NanosecondType, Statistics::int64, i64),
        (DataType::Timestamp(TimeUnit::Second, _), Physical::INT64) => of!(TimestampSecondType, Statistics::int64, i64),
        (DataType::Timestamp(TimeUnit::Millisecond, _), Physical::INT64) => of!(TimestampMillisecondType, Statistics::int64, i64),
        (DataType::Timestamp(TimeUnit::Microsecond, _), Physical::INT64) => of!(TimestampMicrosecondType, Statistics::int64, i64),
        (DataType::Timestamp(TimeUnit::Nanosecond, _), Physical::INT64) => of!(TimestampNanosecondType, Statistics::int64, i64),
        (DataType::Duration(TimeUnit::Second), Physical::INT64) => of!(DurationSecondType, Statistics::int64, i64),
        (DataType::Duration(TimeUnit::Millisecond), Physical::INT64) => of!(DurationMillisecondType, Statistics::int64, i64),
        (DataType::Duration(TimeUnit::Microsecond), Physical::INT64) => of!(DurationMicrosecondType, Statistics::int64, i64),
        (DataType::Duration(TimeUnit::Nanosecond), Physical::INT64) => of!(DurationNanosecondType, Statistics::int64, i64),
        (DataType::Float32, Physical::FLOAT) => of!(Float32Type, Statistics::float, f32),
        (DataType::Float64, Physical::DOUBLE) => of!(Float64Type, Statistics::double, f64),
        // Digits that fit are those of the physical type.
        (DataType::Decimal128(_, _), Physical::INT32) => of!(Decimal128Type, Statistics::int32, i32),
        (DataType::Decimal128(_, _), Physical::INT64) => of!(Decimal128Type, Statistics::int64, i64),
        (DataType::Decimal128(_, _), Physical::FIXED_LEN_BYTE_ARRAY) => {
            fixed(&|bound| last(&bound.as_primitive_opt::<Decimal128Type>()?.value(0).to_be_bytes()))
        }
        (DataType::Decimal256(_, _), Physical::FIXED_LEN_BYTE_ARRAY) => {
            fixed(&|bound| last(&bound.as_primitive_opt::<Decimal256Type>()?.value(0).to_be_bytes()))
        }
        (DataType::FixedSizeBinary(_), Physical::FIXED_LEN_BYTE_ARRAY) => fixed(&|bound| Some(bound.as_fixed_size_binary_opt()?.value(0).to_vec())),
        (DataType::Utf8, Physical::BYTE_ARRAY) => texts!(as_string_opt::<i32>()),
        (DataType::LargeUtf8, Physical::BYTE_ARRAY) => texts!(as_string_opt::<i64>()),
        (DataType::Utf8View, Physical::BYTE_ARRAY) => texts!(as_string_view_opt()),
        (DataType::Binary, Physical::BYTE_ARRAY) => texts!(as_binary_opt::<i32>()),
        (DataType::LargeBinary, Physical::BYTE_ARRAY) => texts!(as_binary_opt::<i64>()),
        (DataType::BinaryView, Physical::BYTE_ARRAY) => texts!(as_binary_view_opt()),
        _ => return None,
    })
}
