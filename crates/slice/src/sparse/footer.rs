//! Footers of sparse slices, most of whose bytes need no parsing.
//!
//! All footers that [`super::SparseSlicer`] writes for one type of values begin with the same bytes: version and
//! schema, up to the number of rows. Where a footer begins with them, Parquet's reader gets the known schema and skips
//! it. The schema is most of the footer, and for slices of a few rows most of the time to open them.

use std::sync::LazyLock;

use bytes::Bytes;
use parquet::arrow::ArrowSchemaConverter;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader};
use parquet::schema::types::SchemaDescPtr;
use skytether_common::{Error, Result};

use super::encode::SparseSlicer;
use super::schema::{Values, sparse_schema};
use crate::guard::{check_footer, corrupt};
use crate::layout::ValueType;
use crate::options::SliceOptions;

/// The end of a Parquet file: the length of its footer, and `PAR1`.
const TAIL: usize = 8;

/// What is known of the slices of one type of values.
struct Form {
    schema: SchemaDescPtr,
    options: ParquetMetaDataOptions,
    begins: Vec<u8>,
}

static FORMS: [LazyLock<Option<Form>>; 4] = [
    LazyLock::new(|| Form::of(ValueType::UInt16).ok()),
    LazyLock::new(|| Form::of(ValueType::UInt32).ok()),
    LazyLock::new(|| Form::of(ValueType::Float32).ok()),
    LazyLock::new(|| Form::of(ValueType::Float64).ok()),
];

fn form(value: ValueType) -> Option<&'static Form> {
    let at = match value {
        ValueType::UInt16 => 0,
        ValueType::UInt32 => 1,
        ValueType::Float32 => 2,
        ValueType::Float64 => 3,
    };
    FORMS[at].as_ref()
}

impl Form {
    fn of(value: ValueType) -> Result<Self> {
        let schema =
            ArrowSchemaConverter::new().convert(&sparse_schema(value)).map_err(|e| Error::internal("the sparse schema has no Parquet form").with_source(e))?;
        let schema = SchemaDescPtr::new(schema);
        // Their numbers of rows differ in the first byte, and nothing before that does.
        let (one, many) = (of_rows(1, value)?, of_rows(300, value)?);
        let same = footer(&one).iter().zip(footer(&many)).take_while(|(a, b)| a == b).count();
        Ok(Self { options: ParquetMetaDataOptions::new().with_schema(SchemaDescPtr::clone(&schema)), schema, begins: footer(&one)[..same].to_vec() })
    }
}

/// A slice of `rows` empty rows.
fn of_rows(rows: u32, value: ValueType) -> Result<Bytes> {
    let mut slicer = SparseSlicer::new(1, rows, value, SliceOptions::default());
    for gene in 0..rows {
        let none = match value {
            ValueType::UInt16 => Values::U16(&[]),
            ValueType::UInt32 => Values::U32(&[]),
            ValueType::Float32 => Values::F32(&[]),
            ValueType::Float64 => Values::F64(&[]),
        };
        slicer.push(gene, 0, &[], none)?;
    }
    slicer.finish()?.map(|slice| slice.bytes).ok_or_else(|| Error::internal("rows gave no slice"))
}

/// The footer of a Parquet file; empty where it has none.
fn footer(file: &[u8]) -> &[u8] {
    let whole = file.split_last_chunk::<TAIL>().and_then(|(before, tail)| {
        let len = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]) as usize;
        before.get(before.len().checked_sub(len)?..)
    });
    whole.unwrap_or_default()
}

/// The metadata of a slice, if its schema is that of values of this type.
///
/// # Errors
/// `Corrupt` where the bytes are no Parquet file.
pub(super) fn read(bytes: &Bytes, value: ValueType) -> Result<Option<ParquetMetaData>> {
    let what = corrupt("a sparse slice's footer");
    let Some(form) = form(value) else { return Ok(None) };
    if footer(bytes).starts_with(&form.begins) {
        let reader = ParquetMetaDataReader::new().with_metadata_options(Some(form.options.clone()));
        return reader.parse_and_finish(bytes).map(Some).map_err(what);
    }
    check_footer("a sparse slice's footer", bytes)?;
    let metadata = ParquetMetaDataReader::new().parse_and_finish(bytes).map_err(what)?;
    let same = metadata.file_metadata().schema_descr().root_schema() == form.schema.root_schema();
    Ok(same.then_some(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_common::Kind;

    const TYPES: [ValueType; 4] = [ValueType::UInt16, ValueType::UInt32, ValueType::Float32, ValueType::Float64];

    #[test]
    fn skipped_footer_parts_equal_the_whole_footer() {
        for value in TYPES {
            for rows in [1, 2, 64, 300, 70_000] {
                let bytes = of_rows(rows, value).unwrap();
                assert!(footer(&bytes).starts_with(&form(value).unwrap().begins), "{value:?}, {rows} rows");
                let (quick, whole) = (read(&bytes, value).unwrap().unwrap(), ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap());
                assert_eq!(quick.row_groups(), whole.row_groups());
                assert_eq!(quick.file_metadata().num_rows(), whole.file_metadata().num_rows());
                assert_eq!(quick.file_metadata().schema_descr().root_schema(), whole.file_metadata().schema_descr().root_schema());
            }
        }
    }

    #[test]
    fn another_schema_is_seen() {
        for value in TYPES {
            for other in TYPES.into_iter().filter(|other| *other != value) {
                assert!(read(&of_rows(3, other).unwrap(), value).unwrap().is_none(), "{other:?} taken for {value:?}");
            }
        }
    }

    #[test]
    fn no_footer_is_an_error() {
        let bytes = of_rows(3, ValueType::UInt16).unwrap();
        for wrong in [&b""[..], b"PAR1", &bytes[..bytes.len() - 1], &[0xff, 0xff, 0xff, 0x7f, b'P', b'A', b'R', b'1']] {
            assert_eq!(read(&Bytes::copy_from_slice(wrong), ValueType::UInt16).unwrap_err().kind(), Kind::Corrupt);
        }
    }
}
