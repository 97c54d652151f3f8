use super::*;
use crate::layout::ValueType;
use crate::sparse::column;
use crate::sparse::{SparseSlicer, Values};
use crate::{BLOCK, SliceOptions};
use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, UInt16Array, UInt32Array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::DataType;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Encoding;
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::properties::{WriterProperties, WriterVersion};
use skytether_common::Kind;

const CELLS: u32 = 150_000;

/// A slice of 40 genes by three blocks, with empty and full rows.
fn slice(value: ValueType) -> (Bytes, Layout) {
    let mut slicer = SparseSlicer::new(CELLS, 40, value, SliceOptions { target_bytes: 256 << 20, ..SliceOptions::default() });
    for block in 0..3 {
        for gene in 0..40u32 {
            let begin = block * BLOCK;
            let step = 1 + gene as usize * gene as usize;
            let end = if gene % 7 == 3 { begin } else { (begin + BLOCK).min(CELLS) };
            let idx: Vec<u32> = (begin..end).step_by(step).filter(|i| i.wrapping_mul(2_654_435_761) % 5 != 0).collect();
            let raw = idx.iter().map(|i| i.wrapping_mul(40_503) >> (gene % 31));
            let done = match value {
                ValueType::UInt16 => slicer.push(gene, block, &idx, Values::U16(&raw.map(|v| v as u16).collect::<Vec<_>>())),
                ValueType::UInt32 => slicer.push(gene, block, &idx, Values::U32(&raw.collect::<Vec<_>>())),
                ValueType::Float32 => slicer.push(gene, block, &idx, Values::F32(&raw.map(|v| v as f32 / 3.0).collect::<Vec<_>>())),
                ValueType::Float64 => slicer.push(gene, block, &idx, Values::F64(&raw.map(|v| f64::from(v) / 3.0).collect::<Vec<_>>())),
            };
            assert!(done.unwrap().is_none());
        }
    }
    (slicer.finish().unwrap().unwrap().bytes, Layout::sparse(CELLS, 40, value))
}

/// In batches of at most `values` values, joined; `None` where that took Arrow's reader.
fn fast_in(bytes: &Bytes, layout: &Layout, projection: &[usize], values: usize) -> Option<RecordBatch> {
    let mut batches = SparseBatches::open(bytes.clone(), layout, projection, usize::MAX, values).unwrap();
    let mut all = Vec::new();
    while let Some(batch) = batches.next() {
        if matches!(batches.source, SparseSource::Whole(..)) {
            return None;
        }
        all.push(batch.unwrap());
    }
    Some(compute::concat_batches(&batches.schema, &all).unwrap())
}

fn fast(bytes: &Bytes, layout: &Layout, projection: &[usize]) -> Option<RecordBatch> {
    fast_in(bytes, layout, projection, usize::MAX)
}

#[test]
fn fast_path_equals_arrow() {
    for value in [ValueType::UInt16, ValueType::UInt32, ValueType::Float32, ValueType::Float64] {
        let (bytes, layout) = slice(value);
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap().with_batch_size(1 << 20).build().unwrap();
        let theirs: Vec<_> = reader.map(Result::unwrap).collect();
        assert_eq!(theirs.len(), 1);
        assert_eq!(theirs[0].schema(), sparse_schema(value));
        assert_eq!(fast(&bytes, &layout, &[0, 1, 2, 3, 4, 5, 6]).as_ref(), Some(&theirs[0]));
        for projection in [&[4, 3][..], &[3], &[1, 1, 6], &[]] {
            let ours = fast(&bytes, &layout, projection).unwrap();
            assert_eq!(ours, theirs[0].project(projection).unwrap());
            for values in [1, 1000, 1 << 16] {
                assert_eq!(fast_in(&bytes, &layout, projection, values).unwrap(), ours, "{projection:?} in batches of {values} values");
            }
            assert_eq!(decode_slow(&bytes, Limits::of(&layout).unwrap(), projection).unwrap(), ours);
        }
    }
}

/// Rows `wanted` of a slice, joined.
fn within(bytes: &Bytes, layout: &Layout, projection: &[usize], values: usize, wanted: Range<usize>) -> RecordBatch {
    let batches = SparseBatches::open(bytes.clone(), layout, projection, 7, values).unwrap().within(wanted);
    let schema = Arc::clone(&batches.schema);
    compute::concat_batches(&schema, &batches.map(Result::unwrap).collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_range_of_rows_is_that_of_the_whole() {
    for value in [ValueType::UInt16, ValueType::UInt32, ValueType::Float32, ValueType::Float64] {
        let (bytes, layout) = slice(value);
        for projection in [&[0, 1, 2, 3, 4, 5, 6][..], &[4], &[3, 0], &[2], &[]] {
            let whole = decode_sparse(&bytes, &layout, projection).unwrap();
            for wanted in [0..120, 0..1, 1..2, 40..80, 79..83, 117..120, 119..500, 60..60, 500..501] {
                let (from, to) = (wanted.start.min(120), wanted.end.min(120));
                for values in [1, 1 << 16] {
                    assert_eq!(
                        within(&bytes, &layout, projection, values, wanted.clone()),
                        whole.slice(from, to - from),
                        "{value:?} {projection:?} {wanted:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn slices_in_another_form_are_read_by_arrow() {
    let (bytes, layout) = slice(ValueType::UInt16);
    let batch = decode_sparse(&bytes, &layout, &[0, 1, 2, 3, 4, 5, 6]).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    let other = Bytes::from(writer.into_inner().unwrap());
    assert!(fast(&other, &layout, &[3, 4]).is_none());
    assert_eq!(decode_sparse(&other, &layout, &[3, 4]).unwrap(), batch.project(&[3, 4]).unwrap());
    for wanted in [0..10, 30..50, 119..500, 500..501] {
        let (from, to) = (wanted.start.min(120), wanted.end.min(120));
        assert_eq!(within(&other, &layout, &[3, 4], 1 << 16, wanted), batch.slice(from, to - from).project(&[3, 4]).unwrap());
    }
    // The same checks hold there: this matrix has fewer cells.
    assert!(decode_sparse(&other, &Layout::sparse(CELLS - 5, 40, ValueType::UInt16), &[3]).is_err());
}

#[test]
fn unwanted_columns_are_not_decoded() {
    let (bytes, layout) = slice(ValueType::UInt16);
    // The pages of idx and val come before those of the sums; overwrite idx's values.
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap();
    let idx = metadata.row_group(0).column(column::IDX);
    let (start, len) = (idx.data_page_offset() as usize, idx.compressed_size() as usize);
    let mut broken = bytes.to_vec();
    broken[start..start + len].fill(0xff);
    let broken = Bytes::from(broken);
    assert!(decode_sparse(&broken, &layout, &[column::IDX]).is_err());
    assert_eq!(decode_sparse(&broken, &layout, &[0, 2, 4, 5]).unwrap(), decode_sparse(&bytes, &layout, &[0, 2, 4, 5]).unwrap());
}

#[test]
fn batches_are_as_large_as_was_asked_for() {
    let (bytes, layout) = slice(ValueType::UInt16);
    for (rows, values) in [(7, usize::MAX), (usize::MAX, 30_000), (3, 100_000)] {
        let batches: Vec<_> = SparseBatches::open(bytes.clone(), &layout, &[2, 3], rows, values).unwrap().map(Result::unwrap).collect();
        assert!(batches.len() > 1);
        assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 120);
        for batch in &batches {
            let lists = batch.column(1).as_list::<i32>();
            assert!(batch.num_rows() <= rows && (batch.num_rows() == 1 || lists.values().len() <= values));
        }
    }
}

#[test]
fn blocks_of_another_size_are_refused() {
    let (bytes, _) = slice(ValueType::UInt16);
    for block in [0, 1, BLOCK - 1, BLOCK * 2, u32::MAX] {
        let error =
            decode_sparse(&bytes, &Layout::Sparse { n_cells: CELLS, n_genes: 40, block, value: ValueType::UInt16, first_cell: 0, first_block: 0 }, &[0])
                .unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported, "{block}: {error}");
    }
}

#[test]
fn rows_of_more_values_than_a_block_has_cells_are_refused() {
    let n = BLOCK as usize + 1;
    let schema = sparse_schema(ValueType::UInt16);
    let list = |c: usize, values: ArrayRef| {
        let DataType::List(field) = schema.field(c).data_type() else { unreachable!() };
        Arc::new(ListArray::new(Arc::clone(field), OffsetBuffer::from_lengths([n]), values, None)) as ArrayRef
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt32Array::from(vec![0])),
        Arc::new(UInt32Array::from(vec![0])),
        Arc::new(UInt32Array::from(vec![n as u32])),
        list(column::IDX, Arc::new(UInt32Array::from_iter_values(0..n as u32))),
        list(column::VAL, Arc::new(UInt16Array::from(vec![1; n]))),
        Arc::new(Float64Array::from(vec![n as f64])),
        Arc::new(Float64Array::from(vec![n as f64])),
    ];
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    let layout = Layout::sparse(CELLS, 40, ValueType::UInt16);
    let written = |properties| {
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), properties).unwrap();
        writer.write(&batch).unwrap();
        Bytes::from(writer.into_inner().unwrap())
    };
    let mut known = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BINARY_PACKED)
        .set_data_page_row_count_limit(1 << 30);
    for sums in ["sum", "sumsq"] {
        known = known.set_column_encoding(sums.into(), Encoding::PLAIN);
    }
    // Without the cells, only the length can show damage. In the form that the slicer writes, and in another.
    let known = written(Some(known.build()));
    let refused =
        [Pages::open(&known, Limits::of(&layout).unwrap(), &[column::VAL]).unwrap_err(), decode_sparse(&written(None), &layout, &[column::VAL]).unwrap_err()];
    for error in refused {
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("65537 values in a block"), "{error}");
    }
}
