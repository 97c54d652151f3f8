//! Rows that are written as slices are read back unchanged, in both layouts.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::*;
use arrow::compute::concat_batches;
use arrow::datatypes::*;
use arrow::record_batch::RecordBatch;
use proptest::prelude::*;
use skytether_slice::sparse::column;
use skytether_slice::{
    BLOCK, Encoded, Layout, MetadataBuilder, Pieces, SliceOptions, SparseSlicer, TableSlicer, ValueType, Values, decode, decode_sparse, sparse_schema,
};

fn slice_table(batches: &[RecordBatch], target_bytes: usize) -> Vec<Encoded> {
    let mut slicer = TableSlicer::new(batches[0].schema(), SliceOptions { target_bytes, ..SliceOptions::default() });
    let mut slices: Vec<_> = batches.iter().flat_map(|b| slicer.push(b).unwrap()).collect();
    slices.extend(slicer.finish().unwrap());
    slices
}

/// A batch with every kind of type, from a vector of optional numbers.
fn every_type(seed: &[Option<i64>]) -> RecordBatch {
    let n = || seed.iter().copied();
    let text = || n().map(|v| v.map(|v| format!("{v}ü")));
    let mut lists = ListBuilder::new(StringBuilder::new());
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for v in n() {
        for i in 0..v.unwrap_or(0).rem_euclid(4) {
            lists.values().append_option((i != 2).then(|| i.to_string()));
            maps.keys().append_value(i.to_string());
            maps.values().append_value(i as i32);
        }
        lists.append(v.is_some());
        maps.append(true).unwrap();
    }
    let inner: ArrayRef = Arc::new(n().map(|v| v.map(|v| v as i32)).collect::<Int32Array>());
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(n().map(|v| v.map(i64::to_le_bytes)), 8).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("bool", Arc::new(n().map(|v| v.map(|v| v % 2 == 0)).collect::<BooleanArray>())),
        ("i8", Arc::new(n().map(|v| v.map(|v| v as i8)).collect::<Int8Array>())),
        ("u16", Arc::new(n().map(|v| v.map(|v| v as u16)).collect::<UInt16Array>())),
        ("i64", Arc::new(n().collect::<Int64Array>())),
        ("u64", Arc::new(n().map(|v| v.map(|v| v as u64)).collect::<UInt64Array>())),
        ("f32", Arc::new(n().map(|v| v.map(|v| f32::from_bits(v as u32))).collect::<Float32Array>())),
        ("f64", Arc::new(n().map(|v| v.map(|v| f64::from_bits(v as u64))).collect::<Float64Array>())),
        ("date", Arc::new(n().map(|v| v.map(|v| v as i32)).collect::<Date32Array>())),
        ("zoned", Arc::new(n().collect::<TimestampMicrosecondArray>().with_timezone("America/New_York"))),
        ("nanos", Arc::new(n().collect::<TimestampNanosecondArray>())),
        ("time", Arc::new(n().map(|v| v.map(|v| v.rem_euclid(86_400_000) as i32)).collect::<Time32MillisecondArray>())),
        ("duration", Arc::new(n().collect::<DurationMillisecondArray>())),
        ("decimal", Arc::new(n().map(|v| v.map(i128::from)).collect::<Decimal128Array>().with_precision_and_scale(30, 5).unwrap())),
        ("wide", Arc::new(n().map(|v| v.map(|v| i256::from_i128(i128::from(v)))).collect::<Decimal256Array>().with_precision_and_scale(50, 3).unwrap())),
        ("text", Arc::new(text().collect::<StringArray>())),
        ("large", Arc::new(text().collect::<LargeStringArray>())),
        ("view", Arc::new(text().collect::<StringViewArray>())),
        ("binary", Arc::new(text().map(|v| v.map(String::into_bytes)).collect::<BinaryArray>())),
        ("binary_view", Arc::new(text().map(|v| v.map(String::into_bytes)).collect::<BinaryViewArray>())),
        ("fixed", Arc::new(fixed)),
        (
            "dictionary",
            Arc::new(text().map(|v| v.map(|t| t[..1].to_owned())).collect::<Vec<_>>().iter().map(Option::as_deref).collect::<DictionaryArray<Int16Type>>()),
        ),
        ("list", Arc::new(lists.finish())),
        ("map", Arc::new(maps.finish())),
        ("struct", Arc::new(StructArray::from(vec![(Arc::new(Field::new("inner", DataType::Int32, true)), inner)]))),
        ("null", Arc::new(NullArray::new(seed.len()))),
    ];
    let mut fields: Vec<Field> = columns.iter().map(|(name, a)| Field::new(*name, a.data_type().clone(), true)).collect();
    fields[3] = fields[3].clone().with_metadata([("unit".to_owned(), "furlong".to_owned())].into());
    let metadata = [("made by".to_owned(), "a test".to_owned())].into();
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, a)| a).collect()).unwrap()
}

#[test]
fn a_column_that_is_never_null_stays_so() {
    let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int32, false)]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int32Array::from(vec![1, 2, 3]))]).unwrap();
    let slices = slice_table(std::slice::from_ref(&batch), 1 << 20);
    assert_eq!(
        decode(slices[0].bytes.clone(), &Layout::Table, &schema, &[0], 2).unwrap().map(Result::unwrap).collect::<Vec<_>>(),
        [batch.slice(0, 2), batch.slice(2, 1)]
    );
    let empty = decode(slices[0].bytes.clone(), &Layout::Table, &schema, &[], 2).unwrap().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(empty.iter().map(|b| (b.num_columns(), b.num_rows())).collect::<Vec<_>>(), [(0, 2), (0, 1)]);
}

#[test]
fn a_slice_of_another_table_is_refused() {
    let batch = every_type(&[Some(1)]);
    let slice = slice_table(std::slice::from_ref(&batch), 1 << 20).remove(0);
    let mut fields: Vec<_> = batch.schema().fields().to_vec();
    fields[3] = Arc::new(Field::new("i64", DataType::Int32, true));
    let other = Arc::new(Schema::new(fields));
    assert!(decode(slice.bytes.clone(), &Layout::Table, &other, &[3], 10).is_err());
    assert!(decode(slice.bytes.clone(), &Layout::Table, &sparse_schema(ValueType::UInt16), &[0], 10).is_err());
    assert!(decode(slice.bytes.clone(), &Layout::Table, &batch.schema(), &[99], 10).is_err());
    assert!(decode_sparse(&slice.bytes, &Layout::sparse(5, 5, ValueType::UInt16), &[0]).is_err());
}

fn no_rows_no_slices() -> usize {
    let batch = every_type(&[]);
    slice_table(&[batch], 1 << 20).len()
}

type Row = (Vec<u32>, Vec<u32>);

fn sparse_rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (0usize..400, 1u32..300, 0u32..32, any::<u32>()).prop_map(|(n, step, bits, seed)| {
        let mut random = fastrand::Rng::with_seed(u64::from(seed));
        let mut next = |n: u32| random.u32(..n.max(1));
        let mut at = 0;
        let idx: Vec<u32> = (0..n)
            .map(|_| {
                at += 1 + next(step);
                at - 1
            })
            .filter(|&i| i < BLOCK)
            .collect();
        let val = idx.iter().map(|_| next(1 << bits)).collect();
        (idx, val)
    });
    prop::collection::vec(prop_oneof![1 => Just((vec![], vec![])), 4 => row], 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn tables_of_any_type(seed in prop::collection::vec(prop::option::weighted(0.8, any::<i64>()), 1..300), cut in 0usize..300, target in 2_000usize..60_000, wanted in any::<u32>()) {
        prop_assert_eq!(no_rows_no_slices(), 0);
        // Dates and times must be within what their types can print; everything else takes any bits.
        let seed: Vec<_> = seed.into_iter().map(|v| v.map(|v| v >> 12)).collect();
        let batch = every_type(&seed);
        let cut = cut.min(seed.len());
        let slices = slice_table(&[batch.slice(0, cut), batch.slice(cut, seed.len() - cut)], target);
        let all: Vec<usize> = (0..batch.num_columns()).rev().collect();
        let mut metadata = MetadataBuilder::new(Layout::Table, batch.schema(), BTreeMap::new());
        let mut read = Vec::new();
        for slice in &slices {
            metadata.add(slice).unwrap();
            read.extend(decode(slice.bytes.clone(), &Layout::Table, &batch.schema(), &all, 64).unwrap().map(Result::unwrap));
        }
        let expected = batch.project(&all).unwrap();
        let read = concat_batches(&expected.schema(), &read).unwrap();
        // Compared as text, because NaN is unequal to itself.
        prop_assert_eq!(format!("{:?}", read.schema()), format!("{:?}", expected.schema()));
        let text = |b: &RecordBatch| arrow::util::pretty::pretty_format_batches(std::slice::from_ref(b)).unwrap().to_string();
        prop_assert_eq!(text(&read), text(&expected));
        let metadata = metadata.finish().unwrap();
        prop_assert_eq!(metadata.rows, seed.len() as u64);
        let decoded = skytether_slice::Metadata::decode(&metadata.encode().unwrap()).unwrap();
        prop_assert_eq!(&decoded.schema, &batch.schema());
        // Some columns, in any order, from the parts of slices that are picked for them.
        let mut some: Vec<usize> = (0..batch.num_columns()).filter(|c| wanted >> c & 1 == 1).collect();
        let by = wanted as usize % some.len().max(1);
        some.rotate_left(by);
        let text = |stored: Pieces| {
            let batches = decode(stored, &Layout::Table, &batch.schema(), &some, 64).unwrap().map(Result::unwrap).collect::<Vec<_>>();
            (batches.iter().map(RecordBatch::num_rows).sum::<usize>(), arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string())
        };
        for (n, slice) in slices.iter().enumerate() {
            let picked = decoded.pick(n, &some).unwrap();
            let read: Vec<_> = picked.ranges().iter().map(|range| slice.bytes.slice(range.start as usize..range.end as usize)).collect();
            prop_assert!(read.iter().map(|bytes| bytes.len() as u64).sum::<u64>() == picked.bytes() && picked.bytes() <= slice.bytes.len() as u64);
            prop_assert_eq!(text(picked.verify(&read).unwrap()), text(slice.bytes.clone().into()));
        }
        // Bounds hold, whatever they are.
        let (mut at, stats) = (0, &decoded.stats);
        let (min, max) = (stats.min("i64").unwrap(), stats.max("i64").unwrap());
        for (i, slice) in slices.iter().enumerate() {
            for v in seed[at..at + slice.stats.rows as usize].iter().flatten() {
                prop_assert!(min.as_primitive::<Int64Type>().value(i) <= *v && *v <= max.as_primitive::<Int64Type>().value(i));
            }
            at += slice.stats.rows as usize;
        }
    }

    #[test]
    fn wide_tables_of_any_type(
        columns in 120usize..420,
        seed in prop::collection::vec(prop::option::weighted(0.8, any::<i64>()), 1..60),
        cut in 0usize..60,
        target in 8_000usize..40_000,
        wanted in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
    ) {
        let seed: Vec<_> = seed.into_iter().map(|v| v.map(|v| v >> 12)).collect();
        let kinds = every_type(&seed);
        // Every type many times over, no two columns of one name.
        let of = |c: usize| c * 7 % kinds.num_columns();
        let fields: Vec<Field> = (0..columns).map(|c| kinds.schema().field(of(c)).clone().with_name(format!("c{c}"))).collect();
        let all = (0..columns).map(|c| Arc::clone(kinds.column(of(c)))).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), all).unwrap();
        let cut = cut.min(seed.len());
        let stripes = slice_table(&[batch.slice(0, cut), batch.slice(cut, seed.len() - cut)], target);

        let mut metadata = MetadataBuilder::new(Layout::Table, batch.schema(), BTreeMap::new());
        stripes.iter().for_each(|stripe| metadata.add(stripe).unwrap());
        let metadata = skytether_slice::Metadata::decode(&metadata.finish().unwrap().encode().unwrap()).unwrap();
        prop_assert_eq!(metadata.groups.len(), columns.div_ceil(128));
        let stored: Vec<_> = stripes.iter().flat_map(|s| s.slices().cloned().collect::<Vec<_>>()).collect();
        prop_assert_eq!(metadata.slices.iter().map(|s| s.len as usize).collect::<Vec<_>>(), stored.iter().map(|b| b.len()).collect::<Vec<_>>());

        let mut wanted: Vec<usize> = wanted.iter().map(|i| i.index(columns)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let (mut at, text) = (0, |b: &RecordBatch| arrow::util::pretty::pretty_format_batches(std::slice::from_ref(b)).unwrap().to_string());
        for stripe in 0..metadata.stripes() {
            let rows = metadata.stripe_rows(stripe).unwrap() as usize;
            let expected = batch.slice(at, rows);
            for (group, places) in metadata.groups.split(&wanted) {
                let schema = metadata.groups.schema(&metadata.schema, group);
                let bytes = stored[metadata.slice_of(stripe, group)].clone();
                let read: Vec<_> = decode(bytes, &Layout::Table, &schema, &places, 16).unwrap().map(Result::unwrap).collect();
                let read = concat_batches(&read[0].schema(), &read).unwrap();
                let of: Vec<usize> = places.iter().map(|p| metadata.groups.columns(group).start + p).collect();
                prop_assert_eq!(text(&read), text(&expected.project(&of).unwrap()));
            }
            at += rows;
        }
        prop_assert_eq!(at, seed.len());
    }

    #[test]
    fn matrices_of_any_width(rows in sparse_rows(), target in 4_000usize..30_000, value in 0usize..4) {
        let value = [ValueType::UInt16, ValueType::UInt32, ValueType::Float32, ValueType::Float64][value];
        let n_genes = rows.len() as u32;
        let n_cells = BLOCK + 777;
        let layout = Layout::sparse(n_cells, n_genes, value);
        let mut slicer = SparseSlicer::new(n_cells, n_genes, value, SliceOptions { target_bytes: target, ..SliceOptions::default() });
        let mut slices = Vec::new();
        let mut model = Vec::new();
        for block in 0..2 {
            for (gene, (idx, val)) in rows.iter().enumerate() {
                let (idx, val): (Vec<u32>, Vec<u32>) = idx.iter().map(|i| i + block * BLOCK).zip(val.iter().copied()).filter(|(i, _)| *i < n_cells).unzip();
                let as_f64: Vec<f64> = val.iter().map(|&v| if value == ValueType::UInt16 { f64::from(v as u16) } else if value == ValueType::Float32 { f64::from(v as f32) } else { f64::from(v) }).collect();
                let done = match value {
                    ValueType::UInt16 => slicer.push(gene as u32, block, &idx, Values::U16(&val.iter().map(|&v| v as u16).collect::<Vec<_>>())),
                    ValueType::UInt32 => slicer.push(gene as u32, block, &idx, Values::U32(&val)),
                    ValueType::Float32 => slicer.push(gene as u32, block, &idx, Values::F32(&val.iter().map(|&v| v as f32).collect::<Vec<_>>())),
                    ValueType::Float64 => slicer.push(gene as u32, block, &idx, Values::F64(&as_f64)),
                };
                slices.extend(done.unwrap());
                model.push((gene as u32, block, idx, as_f64));
            }
        }
        slices.extend(slicer.finish().unwrap());
        let mut at = 0;
        for slice in &slices {
            prop_assert!(slice.bytes.len() <= target || slice.stats.rows == 1);
            let batch = decode_sparse(&slice.bytes, &layout, &[0, 1, 2, 3, 4, 5, 6]).unwrap();
            prop_assert_eq!(batch.num_rows() as u64, slice.stats.rows);
            let wide = arrow::compute::cast(batch.column(column::VAL), &DataType::new_list(DataType::Float64, false)).unwrap();
            for r in 0..batch.num_rows() {
                let (gene, block, idx, val) = &model[at];
                prop_assert_eq!(batch.column(0).as_primitive::<UInt32Type>().value(r), *gene);
                prop_assert_eq!(batch.column(1).as_primitive::<UInt32Type>().value(r), *block);
                prop_assert_eq!(batch.column(2).as_primitive::<UInt32Type>().value(r) as usize, idx.len());
                let list = batch.column(3).as_list::<i32>().value(r);
                prop_assert_eq!(list.as_primitive::<UInt32Type>().values().as_ref(), idx.as_slice());
                let list = wide.as_list::<i32>().value(r);
                prop_assert_eq!(list.as_primitive::<Float64Type>().values().as_ref(), val.as_slice());
                prop_assert_eq!(batch.column(5).as_primitive::<Float64Type>().value(r), val.iter().sum::<f64>());
                prop_assert_eq!(batch.column(6).as_primitive::<Float64Type>().value(r), val.iter().map(|v| v * v).sum::<f64>());
                at += 1;
            }
            let few: Vec<_> = decode(slice.bytes.clone(), &layout, &sparse_schema(value), &[4], 7).unwrap().map(Result::unwrap).collect();
            prop_assert_eq!(concat_batches(&few[0].schema(), &few).unwrap(), batch.project(&[4]).unwrap());
        }
        prop_assert_eq!(at, model.len());
    }
}
