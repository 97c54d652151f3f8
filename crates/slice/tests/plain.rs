//! Assembled slices are a Parquet file with their rows and their statistics.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::*;
use arrow::compute::concat_batches;
use arrow::datatypes::*;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use skytether_common::{Kind, Result};
use skytether_slice::plain::{Assembly, Footer};
use skytether_slice::{Encoded, Layout, Metadata, MetadataBuilder, Pieces, SliceOptions, SparseSlicer, TableSlicer, ValueType, Values, sparse_schema};

fn slices_of(batches: &[RecordBatch], target_bytes: usize) -> Vec<Encoded> {
    let mut slicer = TableSlicer::new(batches[0].schema(), SliceOptions { target_bytes, ..SliceOptions::default() });
    let mut slices: Vec<_> = batches.iter().flat_map(|b| slicer.push(b).unwrap()).collect();
    slices.extend(slicer.finish().unwrap());
    slices
}

fn described(layout: Layout, schema: SchemaRef, slices: &[Encoded]) -> Metadata {
    let mut builder = MetadataBuilder::new(layout, schema, BTreeMap::new());
    slices.iter().for_each(|slice| builder.add(slice).unwrap());
    Metadata::decode(&builder.finish().unwrap().encode().unwrap()).unwrap()
}

/// The file of all slices; of each slice's footer only `parts` is known.
fn file(metadata: &Metadata, slices: &[Encoded], parts: impl Fn(usize, &Bytes) -> Pieces) -> Result<Bytes> {
    let mut assembly = Assembly::new(Arc::clone(&metadata.schema), metadata.groups);
    let mut all = Vec::new();
    for (n, stripe) in slices.iter().enumerate() {
        let numbered = stripe.slices().enumerate().map(|(group, bytes)| (metadata.slice_of(n, group), bytes));
        let footers = numbered.map(|(slice, bytes)| Footer::read(metadata, slice, &parts(slice, bytes))).collect::<Result<Vec<_>>>()?;
        assembly.add(metadata, n, footers)?;
        stripe.slices().for_each(|bytes| all.extend_from_slice(bytes));
        assert_eq!(assembly.len(), all.len() as u64);
    }
    all.extend_from_slice(&assembly.finish()?);
    Ok(all.into())
}

fn whole(_: usize, bytes: &Bytes) -> Pieces {
    bytes.clone().into()
}

fn read(file: &Bytes) -> RecordBatch {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap();
    let schema = Arc::clone(builder.schema());
    concat_batches(&schema, &builder.build().unwrap().map(Result::unwrap).collect::<Vec<_>>()).unwrap()
}

fn types(rows: i64) -> RecordBatch {
    let n = || (0..rows).map(|v| (v % 7 != 3).then_some(v * 7919 % 1009 - 300));
    let text = || n().map(|v| v.map(|v| format!("{}{v}ü", "long ".repeat((v & 15) as usize))));
    let mut lists = ListBuilder::new(StringBuilder::new());
    for v in n() {
        (0..v.unwrap_or(0).rem_euclid(4)).for_each(|i| lists.values().append_option((i != 2).then(|| i.to_string())));
        lists.append(v.is_some());
    }
    let pair: StructArray = vec![
        (Arc::new(Field::new("a", DataType::Int32, true)), Arc::new(n().map(|v| v.map(|v| v as i32)).collect::<Int32Array>()) as ArrayRef),
        (Arc::new(Field::new("b", DataType::Utf8, true)), Arc::new(text().collect::<StringArray>()) as ArrayRef),
    ]
    .into();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("bool", Arc::new(n().map(|v| v.map(|v| v % 2 == 0)).collect::<BooleanArray>())),
        ("i8", Arc::new(n().map(|v| v.map(|v| v as i8)).collect::<Int8Array>())),
        ("u32", Arc::new(n().map(|v| v.map(|v| v as u32)).collect::<UInt32Array>())),
        ("i64", Arc::new(n().collect::<Int64Array>())),
        ("u64", Arc::new(n().map(|v| v.map(|v| v as u64)).collect::<UInt64Array>())),
        ("f32", Arc::new(n().map(|v| v.map(|v| v as f32 / 3.0)).collect::<Float32Array>())),
        ("nan", Arc::new(n().map(|v| v.map(|v| if v == 5 { f64::NAN } else { v as f64 })).collect::<Float64Array>())),
        ("date", Arc::new(n().map(|v| v.map(|v| v as i32)).collect::<Date32Array>())),
        ("seconds", Arc::new(n().collect::<TimestampSecondArray>())),
        ("zoned", Arc::new(n().collect::<TimestampMicrosecondArray>().with_timezone("America/New_York"))),
        ("time", Arc::new(n().map(|v| v.map(|v| v.rem_euclid(86_400_000))).collect::<Time64NanosecondArray>())),
        ("duration", Arc::new(n().collect::<DurationMillisecondArray>())),
        ("small", Arc::new(n().map(|v| v.map(i128::from)).collect::<Decimal128Array>().with_precision_and_scale(5, 2).unwrap())),
        ("decimal", Arc::new(n().map(|v| v.map(i128::from)).collect::<Decimal128Array>().with_precision_and_scale(30, 5).unwrap())),
        ("wide", Arc::new(n().map(|v| v.map(|v| i256::from_i128(i128::from(v)))).collect::<Decimal256Array>().with_precision_and_scale(50, 3).unwrap())),
        ("text", Arc::new(text().collect::<StringArray>())),
        ("view", Arc::new(text().collect::<StringViewArray>())),
        ("binary", Arc::new(text().map(|v| v.map(String::into_bytes)).collect::<BinaryArray>())),
        ("fixed", Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(n().map(|v| v.map(i64::to_le_bytes)), 8).unwrap())),
        ("empty", Arc::new(Int64Array::new_null(rows as usize))),
        ("list", Arc::new(lists.finish())),
        ("pair", Arc::new(pair)),
    ];
    let fields: Vec<_> = columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let schema = Schema::new_with_metadata(fields, [("made".to_owned(), "here".to_owned())].into());
    RecordBatch::try_new(Arc::new(schema), columns.into_iter().map(|(_, array)| array).collect()).unwrap()
}

#[test]
fn rows_of_every_type_come_out_of_the_file() {
    let batch = types(6000);
    let slices = slices_of(std::slice::from_ref(&batch), 60_000);
    assert!(slices.len() > 3);
    let metadata = described(Layout::Table, batch.schema(), &slices);
    let file = file(&metadata, &slices, whole).unwrap();
    let found = read(&file);
    assert_eq!(found.schema(), batch.schema());
    assert_eq!(format!("{found:?}"), format!("{batch:?}"));
}

#[test]
fn footers_alone_make_the_same_file() {
    let batch = types(4000);
    let slices = slices_of(std::slice::from_ref(&batch), 60_000);
    let metadata = described(Layout::Table, batch.schema(), &slices);
    let picked = |n: usize, bytes: &Bytes| {
        let picked = metadata.pick(n, &[]).unwrap();
        let ends = metadata.section_ends(n).unwrap();
        assert_eq!((ends.len(), ends.last()), (23, Some(&(bytes.len() as u64))));
        assert_eq!(picked.ranges(), std::slice::from_ref(&(ends[21]..ends[22])));
        picked.verify(&[bytes.slice(ends[21] as usize..)]).unwrap()
    };
    assert_eq!(file(&metadata, &slices, picked).unwrap(), file(&metadata, &slices, whole).unwrap());
}

#[test]
fn the_footer_tells_bounds_and_nulls_of_each_row_group() {
    let batch = types(6000);
    let slices = slices_of(std::slice::from_ref(&batch), 60_000);
    let metadata = described(Layout::Table, batch.schema(), &slices);
    let file = file(&metadata, &slices, whole).unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let groups = builder.metadata().row_groups();
    assert!(groups.iter().flat_map(|g| g.columns()).all(|c| c.file_path().is_none()));
    let mut bounded = 0;
    let schema = batch.schema();
    for field in schema.fields() {
        let converter = StatisticsConverter::try_new(field.name(), &schema, builder.parquet_schema()).unwrap();
        // Arrow's reader has no bounds of durations.
        let Some(min) = metadata.stats.min(field.name()).filter(|_| field.name() != "duration") else { continue };
        let max = metadata.stats.max(field.name()).unwrap();
        assert_eq!(converter.row_group_mins(groups.iter()).unwrap().as_ref(), min.as_ref(), "{field}");
        assert_eq!(converter.row_group_maxes(groups.iter()).unwrap().as_ref(), max.as_ref(), "{field}");
        assert_eq!(converter.row_group_null_counts(groups.iter()).unwrap(), metadata.stats.nulls(field.name()).unwrap(), "{field}");
        bounded += usize::from(min.null_count() == 0);
    }
    assert!(bounded >= 16, "{bounded}");
    // A column with a NaN has no bounds.
    let nan = batch.schema().index_of("nan").unwrap();
    assert!(groups.iter().any(|g| g.column(nan).statistics().is_some_and(|s| s.min_bytes_opt().is_none() && s.null_count_opt() > Some(0))));
    // Bounds of texts may be cut, so they are marked as inexact.
    let text = groups[0].column(batch.schema().index_of("text").unwrap()).statistics().unwrap();
    assert!(!text.min_is_exact() && !text.max_is_exact() && text.min_bytes_opt().is_some());
}

#[test]
fn chunks_of_wide_tables_come_from_several_slices() {
    let columns: Vec<(String, ArrayRef)> = (0..300)
        .map(|c| {
            let numbers = (0..900i64).map(|n| (n % 11 != c % 11).then_some(n * 31 + c));
            let array: ArrayRef = if c % 9 == 4 {
                Arc::new(numbers.map(|n| n.map(|n| n.to_string())).collect::<StringArray>())
            } else {
                Arc::new(numbers.collect::<Int64Array>())
            };
            (format!("c{c}"), array)
        })
        .collect();
    let batch = RecordBatch::try_from_iter_with_nullable(columns.iter().map(|(name, array)| (name, Arc::clone(array), true))).unwrap();
    let slices = slices_of(std::slice::from_ref(&batch), 100_000);
    assert!(slices.len() > 2 && slices[0].more.len() == 2);
    let metadata = described(Layout::Table, batch.schema(), &slices);
    let file = file(&metadata, &slices, whole).unwrap();
    assert_eq!(read(&file), batch);
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    assert_eq!(builder.metadata().num_row_groups(), slices.len());
    assert!(builder.metadata().row_groups().iter().all(|g| g.num_columns() == 300 && g.column(299).statistics().is_some()));
}

#[test]
fn rows_of_matrices_come_out_of_the_file() {
    let value = ValueType::UInt16;
    let mut slicer = SparseSlicer::new(1000, 500, value, SliceOptions { target_bytes: 20_000, ..SliceOptions::default() });
    let mut slices = Vec::new();
    for gene in 0..500u32 {
        let idx: Vec<u32> = (0..1000).filter(|cell| (cell * 7 + gene) % 13 == 0).collect();
        let values: Vec<u16> = idx.iter().map(|cell| (cell % 90) as u16 + 1).collect();
        slices.extend(slicer.push(gene, 0, &idx, Values::U16(&values)).unwrap());
    }
    slices.extend(slicer.finish().unwrap());
    assert!(slices.len() > 3);
    let metadata = described(Layout::sparse(1000, 500, value), sparse_schema(value), &slices);
    assert!(metadata.section_ends(0).is_none());
    let tail = |_: usize, bytes: &Bytes| {
        let at = bytes.len() - 8 - u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
        Pieces::part(bytes.len() as u64, at as u64, bytes.slice(at..)).unwrap()
    };
    let file = file(&metadata, &slices, tail).unwrap();
    let found = read(&file);
    assert_eq!(found.num_rows(), 500);
    let genes: Vec<u32> = found["gene_id"].as_primitive::<UInt32Type>().values().to_vec();
    assert_eq!(genes, (0..500).collect::<Vec<_>>());
    let counted: u64 = found["nnz"].as_primitive::<UInt32Type>().values().iter().map(|n| u64::from(*n)).sum();
    assert_eq!(counted, (0..500u32).map(|gene| (0..1000u32).filter(|cell| (cell * 7 + gene) % 13 == 0).count() as u64).sum::<u64>());
    assert_eq!(found["val"].as_list::<i32>().values().len() as u64, counted);
}

#[test]
fn a_table_without_rows_is_a_file_without_row_groups() {
    for schema in [types(0).schema(), Arc::new(Schema::new((0..200).map(|c| Field::new(format!("c{c}"), DataType::Int64, true)).collect::<Vec<_>>()))] {
        let metadata = described(Layout::Table, Arc::clone(&schema), &[]);
        let file = file(&metadata, &[], whole).unwrap();
        assert!(file.starts_with(b"PAR1") && file.ends_with(b"PAR1"));
        let found = read(&file);
        assert_eq!((found.schema(), found.num_rows()), (schema, 0));
    }
}

#[test]
fn slices_of_other_layouts_are_refused() {
    let batch = types(3000);
    let slices = slices_of(std::slice::from_ref(&batch), 60_000);
    let metadata = described(Layout::Table, batch.schema(), &slices);
    let refused = |slices: &[Encoded], says: &str| {
        let error = file(&metadata, slices, whole).unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.report().contains(says), "{}", error.report());
    };
    // Another slice's rows, other columns, no Parquet, and a slice that is shorter than its chunks say.
    let mut other = slices.clone();
    let last = other.len() - 1;
    other.swap(0, last);
    refused(&other, "rows and not");
    let names = RecordBatch::try_from_iter(batch.columns().iter().enumerate().map(|(n, c)| (format!("c{n}"), Arc::clone(c)))).unwrap();
    let mut other = slices.clone();
    other[1] = slices_of(&[names.slice(0, metadata.stripe_rows(1).unwrap() as usize)], 1 << 20).remove(0);
    assert!(file(&metadata, &other, whole).is_err());
    let mut other = slices.clone();
    other[0].bytes = Bytes::from_static(b"PAR1 is nothing PAR1");
    refused(&other, "footer");
    // A footer with chunks beyond the slice's end.
    let mut shorter = metadata.clone();
    shorter.slices[0].len /= 2;
    assert!(file(&shorter, &slices, whole).unwrap_err().to_string().contains("beyond its end"));
}
