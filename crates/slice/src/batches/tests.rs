use arrow::array::{DictionaryArray, Int64Array};
use arrow::datatypes::{Field, Int32Type, Schema};
use bytes::Bytes;
use parquet::file::metadata::ParquetMetaDataReader;
use skytether_common::Kind;

use super::*;
use crate::{Layout, SliceOptions, TableSlicer, decode};

/// 50,000 numbers that compress badly, of 1,500 that a dictionary holds, and the same word for all of them.
fn slice() -> (Bytes, SchemaRef) {
    let words = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("w", words, false)]));
    let numbers = Int64Array::from_iter_values((0..50_000).map(|i: i64| ((i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 30) & 0xffff_ffff) % 1500));
    let words: DictionaryArray<Int32Type> = (0..50_000).map(|_| Some("word")).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(numbers), Arc::new(words)]).unwrap();
    let mut slicer = TableSlicer::new(Arc::clone(&schema), SliceOptions { target_bytes: 8 << 20, ..SliceOptions::default() });
    assert!(slicer.push(&batch).unwrap().is_empty());
    (slicer.finish().unwrap().remove(0).bytes, schema)
}

#[test]
fn a_table_is_decoded_as_it_is_asked_for() {
    let (bytes, schema) = slice();
    // Damage in the second half of the numbers' page is only found where decoding reaches it.
    let n = ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap().row_group(0).column(0).clone();
    let mut broken = bytes.to_vec();
    let (start, len) = n.byte_range();
    let end = (start + len) as usize;
    broken[end - 300..end].fill(0xff);
    let mut batches = decode(Bytes::from(broken), &Layout::Table, &schema, &[1, 0], 1000).unwrap();
    assert_eq!(batches.next().unwrap().unwrap().num_rows(), 1000);
    let error = batches.find_map(Result::err).unwrap();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(batches.next().is_none());
}

#[test]
fn a_slice_that_unpacks_to_too_much_is_refused_on_the_way() {
    let (bytes, schema) = slice();
    let open = |projection: &[usize], rows| TableBatches::open(bytes.clone().into(), &schema, projection, rows, None).unwrap();
    // Eight bytes per number.
    let mut batches = open(&[0], 1000).within(20_500 * 8);
    assert_eq!(batches.by_ref().take(20).map(|b| b.unwrap().num_rows()).sum::<usize>(), 20_000);
    let error = batches.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("unpacks to more than"), "{error}");
    assert!(batches.next().is_none());
    // A dictionary's values count in none of its batches, however many they are; nor does what is not read.
    assert_eq!(open(&[1], 7).within(50_000 * 4).map(|b| b.unwrap().num_rows()).sum::<usize>(), 50_000);
    assert_eq!(open(&[], 7).within(0).map(|b| b.unwrap().num_rows()).sum::<usize>(), 50_000);
}
