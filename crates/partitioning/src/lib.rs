//! Partitioning: how the partitions of a table relate to it, and which partition a row belongs to.
//!
//! The partition of a row is `XXH64(bytes, seed 0) mod n`. `bytes` are those of its keys in order. Each key is written
//! by its logical type ([`KeyType`]), not by its Arrow representation: a byte 0 for NULL, or a byte 1 and the value.
//! Rows with equal keys therefore have the same partition number in every table and on every machine. Stored data
//! depends on this function, so it never changes; another hash would need another [`VERSION`].
//!
//! This crate does not use DataFusion: the catalog, ingest and the planner build on it.
//!
//! ```
//! use std::sync::Arc;
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//!
//! let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
//! let batch = RecordBatch::try_from_iter([("id", ids)])?;
//! let keys = skytether_partitioning::keys(&batch.schema(), &["id".to_owned()])?;
//! let parts = skytether_partitioning::split(&batch, &keys, 4)?;
//! assert_eq!(parts.iter().map(RecordBatch::num_rows).sum::<usize>(), 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also `docs/internals/partitioning.md`.

mod placement;

pub use placement::Placement;

use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Decimal128Type, Decimal256Type, Schema, TimeUnit, UInt64Type};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use serde::{Deserialize, Serialize};
use serde_with::{As, DisplayFromStr};
use skytether_common::{Error, Result};
use twox_hash::XxHash64;
use uuid::Uuid;

/// The way to hash that this module describes.
pub const VERSION: u32 = 1;

/// The logical type of a key: columns of the same one that hold equal values give the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// Integers of any width: 8 bytes, little endian, two's complement.
    Integer,
    /// Texts in any form: their length in bytes (u32, little endian) and their UTF-8.
    Text,
    /// Bytes in any form: as texts.
    Bytes,
    /// A byte, 0 or 1.
    Boolean,
    /// Days since 1970 as an integer.
    Date,
    /// Moments or times without a zone, in units since 1970, as an integer.
    Timestamp(TimeUnit),
    /// Moments with a zone, in units since 1970 in UTC, as an integer.
    Zoned(TimeUnit),
    /// Times of the day in units since midnight, as an integer.
    Time(TimeUnit),
    /// Lengths of time in units, as an integer.
    Duration(TimeUnit),
    /// Decimals with this number of digits after the point, as integers of 16 bytes, little endian.
    Decimal(i8),
    /// Decimals of more than 38 digits, as integers of 32 bytes.
    Decimal256(i8),
}

impl KeyType {
    /// The logical type of columns of `data_type`.
    ///
    /// # Errors
    /// Why such columns can't be keys, in words.
    pub fn of(data_type: &DataType) -> std::result::Result<Self, &'static str> {
        use DataType as D;
        Ok(match data_type {
            t if t.is_integer() => KeyType::Integer,
            D::Utf8 | D::LargeUtf8 | D::Utf8View => KeyType::Text,
            D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => KeyType::Bytes,
            D::Boolean => KeyType::Boolean,
            D::Date32 => KeyType::Date,
            D::Timestamp(unit, None) => KeyType::Timestamp(*unit),
            D::Timestamp(unit, Some(_)) => KeyType::Zoned(*unit),
            D::Time32(unit) | D::Time64(unit) => KeyType::Time(*unit),
            D::Duration(unit) => KeyType::Duration(*unit),
            D::Decimal128(_, scale) => KeyType::Decimal(*scale),
            D::Decimal256(_, scale) => KeyType::Decimal256(*scale),
            D::Dictionary(_, values) => return Self::of(values),
            t if t.is_floating() => return Err("numbers with a fraction are equal in ways that their bytes are not (0.0 and -0.0, NaN)"),
            t if t.is_nested() => return Err("only columns of plain values can be keys"),
            _ => return Err("columns of this type can't be keys"),
        })
    }
}

fn unit(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyType::Integer => f.write_str("integer"),
            KeyType::Text => f.write_str("text"),
            KeyType::Bytes => f.write_str("bytes"),
            KeyType::Boolean => f.write_str("boolean"),
            KeyType::Date => f.write_str("date"),
            KeyType::Timestamp(u) => write!(f, "timestamp[{}]", unit(*u)),
            KeyType::Zoned(u) => write!(f, "zoned[{}]", unit(*u)),
            KeyType::Time(u) => write!(f, "time[{}]", unit(*u)),
            KeyType::Duration(u) => write!(f, "duration[{}]", unit(*u)),
            KeyType::Decimal(scale) => write!(f, "decimal[{scale}]"),
            KeyType::Decimal256(scale) => write!(f, "decimal256[{scale}]"),
        }
    }
}

impl FromStr for KeyType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unknown = || Error::unsupported(format!("{text:?} is no type of keys that this version knows"));
        let Some((name, parameter)) = text.strip_suffix(']').and_then(|t| t.split_once('[')) else {
            return Ok(match text {
                "integer" => KeyType::Integer,
                "text" => KeyType::Text,
                "bytes" => KeyType::Bytes,
                "boolean" => KeyType::Boolean,
                "date" => KeyType::Date,
                _ => return Err(unknown()),
            });
        };
        let scale = || parameter.parse().map_err(|_| unknown());
        let unit = || match parameter {
            "s" => Ok(TimeUnit::Second),
            "ms" => Ok(TimeUnit::Millisecond),
            "us" => Ok(TimeUnit::Microsecond),
            "ns" => Ok(TimeUnit::Nanosecond),
            _ => Err(unknown()),
        };
        Ok(match name {
            "timestamp" => KeyType::Timestamp(unit()?),
            "zoned" => KeyType::Zoned(unit()?),
            "time" => KeyType::Time(unit()?),
            "duration" => KeyType::Duration(unit()?),
            "decimal" => KeyType::Decimal(scale()?),
            "decimal256" => KeyType::Decimal256(scale()?),
            _ => return Err(unknown()),
        })
    }
}

/// A key of a partitioned table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The column's name.
    pub column: String,
    /// Its logical type.
    #[serde(rename = "type", with = "As::<DisplayFromStr>")]
    pub of: KeyType,
}

/// The keys called `columns` of a table of `schema`.
///
/// # Errors
/// Invalid for no column, one twice, one that is not there or of a type that keys can't have, by name.
pub fn keys(schema: &Schema, columns: &[String]) -> Result<Vec<Key>> {
    let mut keys: Vec<Key> = Vec::with_capacity(columns.len());
    for column in columns {
        let field = schema.field_with_name(column).map_err(|_| {
            let there: Vec<_> = schema.fields().iter().take(20).map(|f| f.name().as_str()).collect();
            Error::invalid(format!("there is no column {column:?} to partition by; the table has {}", there.join(", ")))
        })?;
        let of = KeyType::of(field.data_type())
            .map_err(|why| Error::invalid(format!("a table can't be partitioned by column {column:?} of type {}: {why}", field.data_type())))?;
        if keys.iter().any(|k| k.column == *column) {
            return Err(Error::invalid(format!("column {column:?} is named twice among those to partition by")));
        }
        keys.push(Key { column: column.clone(), of });
    }
    if keys.is_empty() {
        return Err(Error::invalid("a partitioned table needs a column to partition by"));
    }
    Ok(keys)
}

/// The 64-bit integers in which numbers, dates and times are compared: by bits, as the largest unsigned
/// numbers are no signed ones.
///
/// # Errors
/// For other columns.
pub fn integers(column: &ArrayRef) -> std::result::Result<Int64Array, ArrowError> {
    Ok(match column.data_type() {
        DataType::UInt64 => column.as_primitive::<UInt64Type>().unary(|n| n as i64),
        // Those of 32 bits are cast to no others.
        DataType::Date32 | DataType::Time32(_) => cast(&cast(column, &DataType::Int32)?, &DataType::Int64)?.as_primitive().clone(),
        _ => cast(column, &DataType::Int64)?.as_primitive().clone(),
    })
}

/// A column of keys, ready to be read row by row.
enum Values {
    Integers(Int64Array),
    Texts(arrow::array::StringViewArray),
    Bytes(arrow::array::BinaryViewArray),
    Booleans(arrow::array::BooleanArray),
    Decimals(arrow::array::Decimal128Array),
    Decimals256(arrow::array::Decimal256Array),
}

impl Values {
    fn of(column: &ArrayRef, key: &Key) -> Result<Self> {
        let wrong = |e| Error::invalid(format!("the values of column {:?} can't be hashed", key.column)).with_source(e);
        let plain = match column.data_type() {
            DataType::Dictionary(_, values) => cast(column, values).map_err(wrong)?,
            _ => Arc::clone(column),
        };
        let read = |as_type| cast(&plain, &as_type).map_err(wrong);
        Ok(match key.of {
            KeyType::Text => Values::Texts(read(DataType::Utf8View)?.as_string_view().clone()),
            KeyType::Bytes => Values::Bytes(read(DataType::BinaryView)?.as_binary_view().clone()),
            KeyType::Boolean => Values::Booleans(read(DataType::Boolean)?.as_boolean().clone()),
            KeyType::Decimal(scale) => Values::Decimals(read(DataType::Decimal128(38, scale))?.as_primitive::<Decimal128Type>().clone()),
            KeyType::Decimal256(scale) => Values::Decimals256(read(DataType::Decimal256(76, scale))?.as_primitive::<Decimal256Type>().clone()),
            _ => Values::Integers(integers(&plain).map_err(wrong)?),
        })
    }

    fn write(&self, row: usize, hash: &mut XxHash64) {
        let value = |hash: &mut XxHash64, bytes: &[u8]| {
            hash.write(&[1]);
            hash.write(bytes);
        };
        let long = |hash: &mut XxHash64, bytes: &[u8]| {
            hash.write(&[1]);
            // Arrow's views hold less than 4 GiB.
            hash.write(&(bytes.len() as u32).to_le_bytes());
            hash.write(bytes);
        };
        match self {
            Values::Integers(a) if a.is_valid(row) => value(hash, &a.value(row).to_le_bytes()),
            Values::Texts(a) if a.is_valid(row) => long(hash, a.value(row).as_bytes()),
            Values::Bytes(a) if a.is_valid(row) => long(hash, a.value(row)),
            Values::Booleans(a) if a.is_valid(row) => value(hash, &[u8::from(a.value(row))]),
            Values::Decimals(a) if a.is_valid(row) => value(hash, &a.value(row).to_le_bytes()),
            Values::Decimals256(a) if a.is_valid(row) => value(hash, &a.value(row).to_le_bytes()),
            _ => hash.write(&[0]),
        }
    }
}

/// The partition, of `n`, of each row whose keys are `columns`.
///
/// # Errors
/// Invalid where the columns are not of the types of `keys`, or `n` is 0.
pub fn partitions(columns: &[ArrayRef], keys: &[Key], n: usize) -> Result<Vec<usize>> {
    let Some(modulus) = u64::try_from(n).ok().filter(|n| *n > 0) else { return Err(Error::invalid("a table needs a partition")) };
    let values = columns.iter().zip(keys).map(|(column, key)| Values::of(column, key)).collect::<Result<Vec<_>>>()?;
    let rows = columns.first().map_or(0, |c| c.len());
    let partition = |row| {
        let mut hash = XxHash64::with_seed(0);
        values.iter().for_each(|v| v.write(row, &mut hash));
        (hash.finish() % modulus) as usize
    };
    Ok((0..rows).map(partition).collect())
}

/// The rows of `batch` partition by partition, `n` of them, in order.
///
/// # Errors
/// As [`partitions`]; invalid where a key's column is missing.
pub fn split(batch: &RecordBatch, keys: &[Key], n: usize) -> Result<Vec<RecordBatch>> {
    let column =
        |key: &Key| batch.column_by_name(&key.column).cloned().ok_or_else(|| Error::invalid(format!("a batch has no column {:?} to partition by", key.column)));
    let columns = keys.iter().map(column).collect::<Result<Vec<_>>>()?;
    let mut rows = vec![Vec::new(); n];
    for (row, partition) in partitions(&columns, keys, n)?.into_iter().enumerate() {
        let row = u32::try_from(row).map_err(|_| Error::invalid("a batch has more rows than can be counted in 32 bits"))?;
        rows[partition].push(row);
    }
    rows.into_iter()
        .map(|rows| match rows.len() {
            0 => Ok(batch.slice(0, 0)),
            all if all == batch.num_rows() => Ok(batch.clone()),
            _ => take_record_batch(batch, &UInt32Array::from(rows)).map_err(|e| Error::invalid("the rows of a batch can't be dealt").with_source(e)),
        })
        .collect()
}

/// How a table on drives is partitioned by key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ByKey {
    /// The keys, in order.
    pub keys: Vec<Key>,
    /// The drive of each partition, in order.
    pub drives: Arc<[Uuid]>,
    /// The rows of the largest partition.
    pub most_rows: u64,
}

#[cfg(test)]
mod tests;
