//! Table files of other tools, as they are ingested.

use std::fs;
use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Float64Array, Int32Array, ListArray, StringArray, StructArray, TimestampMicrosecondArray};
use arrow::datatypes::{Int8Type, Int64Type};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use arrow::record_batch::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use skytether_common::Kind;
use skytether_formats::{Format, open_as};

/// Opens a file of these bytes and reads it to its end: an error of the file, or as many rows as it claims.
fn read(data: &[u8], format: Format, ending: &str) -> bool {
    let file = tempfile::Builder::new().suffix(ending).tempfile();
    let Some(file) = file.ok().filter(|file| fs::write(file.path(), data).is_ok()) else { panic!("no temporary file") };
    let done = open_as(&[file.path()], Some(format)).and_then(|table| {
        let mut rows = 0;
        for batch in table.batches {
            let batch = batch?;
            assert_eq!(batch.schema().fields(), table.schema.fields());
            rows += batch.num_rows() as u64;
        }
        assert!(table.rows.is_none_or(|claimed| claimed == rows), "{rows} rows, and the file claims {:?}", table.rows);
        Ok(())
    });
    if let Err(e) = &done {
        assert!(matches!(e.kind(), Kind::Invalid | Kind::Corrupt | Kind::Unsupported | Kind::Exhausted), "{:?}: {e}", e.kind());
        assert!(e.to_string().contains(ending), "the file is not named: {e}");
    }
    done.is_ok()
}

pub(crate) fn parquet_read(data: &[u8]) -> bool {
    read(data, Format::Parquet, ".parquet")
}

pub(crate) fn arrow_read(data: &[u8]) -> bool {
    read(data, Format::Arrow, ".arrow")
}

pub(crate) fn csv_read(data: &[u8]) -> bool {
    read(data, Format::Separated(b','), ".csv")
}

pub(crate) fn json_read(data: &[u8]) -> bool {
    read(data, Format::JsonLines, ".jsonl")
}

fn batch() -> Option<RecordBatch> {
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(-7), Some(i32::MAX)]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some(""), None, Some("é")]));
    let kinds: DictionaryArray<Int8Type> = ["x", "y", "x", "x"].into_iter().collect();
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(2)])]);
    let within = StructArray::try_from(vec![("a", Arc::clone(&numbers)), ("b", Arc::clone(&texts))]).ok()?;
    RecordBatch::try_from_iter_with_nullable([
        ("n", numbers, true),
        ("f", Arc::new(Float64Array::from(vec![1.5, f64::NAN, -0.0, f64::INFINITY])) as ArrayRef, true),
        ("s", texts, true),
        ("t", Arc::new(TimestampMicrosecondArray::from(vec![0, 1, -1, 9]).with_timezone("UTC")) as ArrayRef, true),
        ("k", Arc::new(kinds) as ArrayRef, true),
        ("l", Arc::new(lists) as ArrayRef, true),
        ("w", Arc::new(within) as ArrayRef, true),
    ])
    .ok()
}

pub(crate) fn parquets() -> Vec<Vec<u8>> {
    let written = |compression| {
        let batch = batch()?;
        let mut bytes = Vec::new();
        let properties = WriterProperties::builder().set_compression(compression).build();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).ok()?;
        writer.write(&batch).ok()?;
        writer.close().ok()?;
        Some(bytes)
    };
    [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())].into_iter().filter_map(written).collect()
}

pub(crate) fn arrows() -> Vec<Vec<u8>> {
    let file = || {
        let batch = batch()?;
        let mut writer = FileWriter::try_new(Cursor::new(Vec::new()), &batch.schema()).ok()?;
        writer.write(&batch).ok()?;
        Some(writer.into_inner().ok()?.into_inner())
    };
    let stream = || {
        let batch = batch()?;
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).ok()?;
        writer.write(&batch).ok()?;
        writer.into_inner().ok()
    };
    [file(), stream()].into_iter().flatten().collect()
}

pub(crate) fn separated() -> Vec<Vec<u8>> {
    bytes_of(&[
        "gene,count,at\nCD3D,7,2024-01-01\nMS4A1,,2024-01-02T03:04:05Z\n",
        "a,b\n\"x, \"\"y\"\"\",1e5\r\n'z',NaN\r\n",
        "\u{feff}n\n1\n\n-3\n18446744073709551616\n",
    ])
}

pub(crate) fn objects() -> Vec<Vec<u8>> {
    bytes_of(&[
        "{\"a\": 1, \"b\": [1, null], \"c\": {\"d\": \"x\"}}\n{\"a\": 2.5}\n",
        "[{\"a\": true}, {\"a\": null, \"z\": \"\\u00e9\"}]",
        "{\"t\": \"2024-01-01T00:00:00\", \"n\": 9007199254740993}\n",
    ])
}

fn bytes_of(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
