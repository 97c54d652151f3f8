//! Targets for values in stores, files that are ingested, and the literals of moments.

use std::io::Cursor;
use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, ListArray, RecordBatch, StringArray, StringViewArray};
use arrow::datatypes::{DataType, Field, Float32Type, Int64Type, Schema, SchemaRef, UInt32Type};
use bytes::Bytes;
use skytether_expression::rank_sums::RankStore;
use skytether_expression::spec::Squares;
use skytether_expression::store::{EmitTo, MomentStore};
use skytether_expression::{Groups as CellGroups, MomentsSpec};
use skytether_matrix::MtxReader;
use skytether_matrix::tsv::{barcodes_from, features_from};
use skytether_slice::plain::{Assembly, Footer};
use skytether_slice::{
    Encoded, Groups, Layout, Metadata, MetadataBuilder, Pieces, SliceOptions, SliceStats, SparseSlicer, TableSlicer, ValueType, Values, decode, decode_sparse,
};
use skytether_vpic::{Particles, RECORD, Records};

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let list = DataType::List(Arc::new(Field::new("item", DataType::Int64, true)));
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("t", DataType::Utf8, true), Field::new("l", list, true)]))
});

fn encoded() -> Option<Vec<Encoded>> {
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>((0..50).map(|i| (i % 5 != 0).then(|| (0..i % 4).map(Some))));
    let text = StringArray::from_iter((0..50).map(|i| (i % 3 != 0).then(|| format!("word {}", i % 7))));
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(0..50)), Arc::new(text), Arc::new(lists)];
    let mut slicer = TableSlicer::new(Arc::clone(&SCHEMA), SliceOptions::default());
    let mut slices = slicer.push(&RecordBatch::try_new(Arc::clone(&SCHEMA), columns).ok()?).ok()?;
    slices.extend(slicer.finish().ok()?);
    Some(slices)
}

/// A wide table: enough columns for two groups.
static WIDE: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new((0..=skytether_slice::groups::WIDTH).map(|c| Field::new(format!("c{c}"), DataType::Int64, false)).collect::<Vec<_>>()))
});

fn grouped() -> Option<Vec<Encoded>> {
    let columns = (0..WIDE.fields().len() as i64).map(|c| Arc::new(Int64Array::from_iter_values(c..c + 5)) as ArrayRef).collect();
    let mut slicer = TableSlicer::new(Arc::clone(&WIDE), SliceOptions::default());
    let mut stripes = slicer.push(&RecordBatch::try_new(Arc::clone(&WIDE), columns).ok()?).ok()?;
    stripes.extend(slicer.finish().ok()?);
    Some(stripes)
}

pub(crate) fn slices() -> Vec<Vec<u8>> {
    let last = grouped().into_iter().flatten().flat_map(|s| s.more).map(|bytes| bytes.to_vec());
    encoded().into_iter().flatten().map(|s| s.bytes.to_vec()).chain(last).collect()
}

/// A slice of a plain table, with all of its columns or the last group: an error or batches of the right shape.
pub(crate) fn slice_decode(data: &[u8]) -> bool {
    let last = Groups::of(WIDE.fields().len()).schema(&WIDE, 1);
    [(&*SCHEMA, &[2, 0, 1][..]), (&last, &[0])].into_iter().any(|(schema, columns)| {
        let Ok(batches) = decode(Bytes::copy_from_slice(data), &Layout::Table, schema, columns, 1024) else { return false };
        for batch in batches {
            let Ok(batch) = batch else { return false };
            assert!(batch.num_columns() == columns.len() && batch.num_rows() <= 1024);
        }
        true
    })
}

pub(crate) fn pieces() -> Vec<Vec<u8>> {
    let seed = |stripe: Encoded| {
        let ends: Vec<u8> = stripe.ends.iter().flatten().flat_map(|&end| (end as u16).to_le_bytes()).collect();
        (0..8).map(move |mask| [&[mask], ends.as_slice(), &stripe.bytes].concat())
    };
    encoded().into_iter().flatten().flat_map(seed).collect()
}

/// Some columns of a slice of a plain table, at the places that a metadata slice claims: an error, or the batches that
/// the whole slice gives. The input begins with a byte that has a bit per column, and the end of each.
pub(crate) fn pieces_decode(data: &[u8]) -> bool {
    static STATS: LazyLock<Option<SliceStats>> = LazyLock::new(|| Some(encoded()?.first()?.stats.clone()));
    let (Some((head, bytes)), Some(stats)) = (data.split_first_chunk::<7>(), &*STATS) else { return false };
    let columns: Vec<usize> = (0..3).filter(|c| head[0] >> c & 1 == 1).collect();
    let ends = head[1..].chunks(2).map(|end| u32::from(u16::from_le_bytes([end[0], end[1]]))).collect();
    let bytes = Bytes::copy_from_slice(bytes);
    let mut builder = MetadataBuilder::new(Layout::Table, Arc::clone(&SCHEMA), [].into());
    let stripe = Encoded { bytes: bytes.clone(), more: Vec::new(), ends: Some(ends), stats: stats.clone() };
    let Ok(metadata) = builder.add(&stripe).and_then(|()| builder.finish()) else { return false };
    let Some(picked) = metadata.pick(0, &columns) else { panic!("no columns {columns:?} in {metadata:?}") };
    let read: Vec<Bytes> = picked.ranges().iter().map(|range| bytes.slice(range.start as usize..range.end as usize)).collect();
    // The checksums are those of these bytes.
    let pieces = match picked.verify(&read) {
        Ok(pieces) => pieces,
        Err(error) => panic!("{error}: {picked:?}"),
    };
    let batches = |stored: Pieces| decode(stored, &Layout::Table, &SCHEMA, &columns, 1024).and_then(|batches| batches.collect::<Result<Vec<_>, _>>());
    let Ok(some) = batches(pieces) else { return false };
    assert!(batches(bytes.into()).is_ok_and(|whole| whole == some));
    true
}

pub(crate) fn sparse_slices() -> Vec<Vec<u8>> {
    let mut slicer = SparseSlicer::new(1000, 8, ValueType::UInt16, SliceOptions::default());
    for gene in 0..8u32 {
        let cells: Vec<u32> = (0..1000).step_by(1 + 9 * gene as usize).filter(|_| gene != 3).collect();
        let values: Vec<u16> = cells.iter().map(|i| (i * 7 % 90) as u16).collect();
        let _ = slicer.push(gene, 0, &cells, Values::U16(&values));
    }
    slicer.finish().ok().flatten().map(|s| s.bytes.to_vec()).into_iter().collect()
}

/// A sparse slice: an error, or lists whose cell numbers a kernel may index by.
pub(crate) fn sparse_decode(data: &[u8]) -> bool {
    let mut taken = false;
    for value in [ValueType::UInt16, ValueType::UInt32, ValueType::Float32] {
        if let Ok(batch) = decode_sparse(&Bytes::copy_from_slice(data), &Layout::sparse(1000, 8, value), &[0, 1, 2, 3, 4]) {
            let (idx, val) = (batch.column(3).as_list::<i32>(), batch.column(4).as_list::<i32>());
            assert_eq!(idx.offsets(), val.offsets());
            assert!(idx.values().as_primitive::<UInt32Type>().values().iter().all(|&c| c < 1000));
            taken = true;
        }
    }
    taken
}

pub(crate) fn metadata() -> Vec<Vec<u8>> {
    let mut builder = MetadataBuilder::new(Layout::Table, Arc::clone(&SCHEMA), [("key".to_owned(), "value".to_owned())].into());
    encoded().into_iter().flatten().for_each(|s| drop(builder.add(&s)));
    let mut wide = MetadataBuilder::new(Layout::Table, Arc::clone(&WIDE), [].into());
    grouped().into_iter().flatten().for_each(|s| drop(wide.add(&s)));
    [builder, wide].into_iter().filter_map(|b| b.finish().and_then(|m| m.encode()).ok()).map(|b| b.to_vec()).collect()
}

/// A metadata slice, with the checksum put right so that the parsers behind it are reached.
pub(crate) fn metadata_decode(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if bytes.len() > 16 {
        let crc = crc32c::crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    let Ok(metadata) = Metadata::decode(&bytes) else { return false };
    assert_eq!((0..metadata.stripes()).filter_map(|n| metadata.stripe_rows(n)).sum::<u64>(), metadata.rows);
    assert_eq!(metadata.slices.len(), metadata.stripes() * metadata.groups.len());
    for (n, slice) in metadata.slices.iter().enumerate() {
        let columns = metadata.groups.columns(n % metadata.groups.len()).len();
        for places in [vec![], vec![columns.saturating_sub(1)], vec![0, columns / 2], (0..columns).collect()] {
            let Some(picked) = metadata.pick(n, &places) else { continue };
            let (ranges, end) = (picked.ranges(), picked.ranges().last().map(|range| range.end));
            assert!(end == Some(slice.len) && ranges.iter().all(|range| range.start <= range.end) && ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            assert!(picked.bytes() <= slice.len);
        }
    }
    match metadata.encode().and_then(|b| Metadata::decode(&b)) {
        // Arrays are compared by their bits, NaN included.
        Ok(again) => assert!(again == metadata, "{again:?}\n{metadata:?}"),
        Err(error) => panic!("{error}: {metadata:?}"),
    }
    true
}

pub(crate) fn matrices() -> Vec<Vec<u8>> {
    ["%%MatrixMarket matrix coordinate integer general\n%metadata_json: {}\n3 4 5\n1 1 1\n3 1 20\n2 2 300\n1 4 4000\n3 4 50000\n"]
        .map(|t| t.as_bytes().to_vec())
        .into()
}

/// A Matrix Market file, plain or compressed: an error, or entries within the matrix, as many as were announced.
pub(crate) fn mtx_read(data: &[u8]) -> bool {
    let Ok(mut reader) = MtxReader::new(Box::new(Cursor::new(data.to_vec())), "matrix.mtx") else { return false };
    let (mut rows, mut cols, mut vals) = (Vec::new(), Vec::new(), Vec::new());
    // Chunks of different sizes end in different places of the text.
    let chunk = 1 + data.len() % 7;
    let whole = loop {
        match reader.read_chunk(chunk, &mut rows, &mut cols, &mut vals) {
            Ok(0) => break true,
            Ok(n) => assert!(n <= chunk),
            Err(_) => break false,
        }
    };
    let header = reader.header();
    assert!(rows.len() == cols.len() && rows.len() == vals.len());
    assert!(rows.iter().all(|&r| r < header.rows) && cols.iter().all(|&c| c < header.cols) && vals.iter().all(|v| v.is_finite()));
    assert!(!whole || rows.len() as u64 == header.entries);
    whole
}

pub(crate) fn dumps() -> Vec<Vec<u8>> {
    [0, 1, 40].into_iter().filter_map(|rows| Particles::new(rows, 1).records(0..rows).ok()).collect()
}

/// A dump of raw particles, read in batches: an error, or a finite row for every record.
pub(crate) fn vpic_read(data: &[u8]) -> bool {
    let batches: Result<Vec<_>, _> = Records::new("dump.vpic", data, 1 + data.len() % 7).collect();
    assert!(data.len().is_multiple_of(RECORD) || batches.is_err());
    let Ok(batches) = batches else { return false };
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), data.len() / RECORD);
    let floats = batches.iter().flat_map(|batch| &batch.columns()[1..]).flat_map(|column| column.as_primitive::<Float32Type>().values().iter());
    assert!(floats.into_iter().all(|value| value.is_finite()));
    true
}

pub(crate) fn footers() -> Vec<Vec<u8>> {
    encoded().into_iter().flatten().map(|s| s.bytes.to_vec()).collect()
}

/// A slice whose footer becomes part of a whole file's: an error, or a footer that describes the slice the same way
/// behind another one.
pub(crate) fn footer_read(data: &[u8]) -> bool {
    static METADATA: LazyLock<Option<Metadata>> = LazyLock::new(|| {
        let mut builder = MetadataBuilder::new(Layout::Table, Arc::clone(&SCHEMA), [].into());
        encoded()?.iter().chain(&encoded()?).for_each(|stripe| drop(builder.add(stripe)));
        builder.finish().ok()
    });
    let Some(metadata) = &*METADATA else { panic!("no metadata of two slices") };
    let mut metadata = metadata.clone();
    metadata.slices.iter_mut().for_each(|slice| slice.len = data.len() as u64);
    let stored: Pieces = Bytes::copy_from_slice(data).into();
    let mut assembly = Assembly::new(Arc::clone(&SCHEMA), metadata.groups);
    for stripe in 0..2 {
        let Ok(footer) = Footer::read(&metadata, stripe, &stored) else { return false };
        if assembly.add(&metadata, stripe, vec![footer]).is_err() {
            return false;
        }
    }
    assert_eq!(assembly.len(), 2 * data.len() as u64);
    assembly.finish().is_ok_and(|footer| footer.ends_with(b"PAR1"))
}

pub(crate) fn names() -> Vec<Vec<u8>> {
    ["ENSG1\tA\tGene Expression\nENSG2\tB\tGene Expression\n", "AAAC-1\nAAAG-1\r\n"].map(|t| t.as_bytes().to_vec()).into()
}

/// The lists that belong to a matrix, plain or compressed: an error, or a name for every line.
pub(crate) fn tsv_read(data: &[u8]) -> bool {
    let source = || Box::new(Cursor::new(data.to_vec()));
    let features = features_from(source(), "features.tsv");
    let barcodes = barcodes_from(source(), "barcodes.tsv");
    // Both read the same lines.
    assert_eq!(features.is_ok(), barcodes.is_ok());
    let (Ok(features), Ok(barcodes)) = (features, barcodes) else { return false };
    assert_eq!(features.ids, barcodes);
    assert_eq!(features.ids.len(), features.names.len());
    assert!(features.types.is_none_or(|types| types.len() == features.ids.len()));
    true
}

/// Groups that states of a few bytes can be about.
const GROUPS: &str = r#"{"groups":["a","b","c","d","e","f","g","h"],"n":[1,2,3,1000,5,6,7,8,18446744073709551615]}"#;

pub(crate) fn moments() -> Vec<Vec<u8>> {
    let of = |groups: &str, state: &[u8]| [&[groups.len() as u8], groups.as_bytes(), state].concat();
    vec![
        of("", &[0, 0]),
        of("", &[1, 0, 1, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0]),
        of(r#"{"groups":["a"],"n":[5,6]}"#, &[1, 0, 0, 0, 0x80, 0x3f]),
    ]
}

/// The state of grouped moments, with groups that fit or any: an error, or a result of the right shape. The first byte
/// is the number of bytes that are groups.
pub(crate) fn moments_merge(data: &[u8]) -> bool {
    let Some((&head, data)) = data.split_first() else { return false };
    let (text, state) = data.split_at(usize::from(head).min(data.len()));
    let text = if text.is_empty() { GROUPS } else { std::str::from_utf8(text).unwrap_or_default() };
    let columns: Vec<ArrayRef> = vec![Arc::new(StringViewArray::from(vec![text, GROUPS])), Arc::new(BinaryArray::from(vec![state, state]))];
    let mut store = MomentStore::default();
    if store.merge_states(&columns, &[0, 1], 2).is_err() {
        return false;
    }
    let Ok(result) = store.result(EmitTo::All, 2) else { return false };
    let lists = result.as_list::<i32>();
    assert!(lists.len() == 2 && lists.value(0).len() == lists.value(1).len());
    true
}

pub(crate) fn ranks() -> Vec<Vec<u8>> {
    let number = |n: u32| n.to_le_bytes();
    // Half the cells of a gene, in two groups, all ranked together and with those of the second; then sums.
    let kept = |form: u8, among: u32, key: &[u8]| {
        [&[form][..], &number(among), &number(2), &number(1), &number(2), &2u64.to_le_bytes(), &1u64.to_le_bytes(), key].concat()
    };
    vec![kept(2, u32::MAX, &[1, 0, 0, 0, 0x80, 0xbf]), kept(3, 1, &[0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0xbf]), [&[1][..], &[0; 32]].concat()]
}

/// Two states of rank sums of one gene: an error, or a result of one gene.
pub(crate) fn ranks_merge(data: &[u8]) -> bool {
    let columns: Vec<ArrayRef> = vec![Arc::new(BinaryArray::from(vec![data, data]))];
    let mut store = RankStore::default();
    // Sums come once, the keys of two blocks together.
    let rows: &[usize] = if data.first() == Some(&1) { &[0, 1] } else { &[0, 0] };
    if store.merge_states(&columns, rows, 2).is_err() {
        return false;
    }
    let Ok(result) = store.finished(2) else { return false };
    assert_eq!(result.len(), 2);
    true
}

pub(crate) fn specs() -> Vec<Vec<u8>> {
    let mut seeds = vec![br#"{"dataset":"lab.t","matrix":"x","groups":{"obs":"cell_type"},"transform":"log1p_cp10k"}"#.to_vec()];
    if let (Ok(dataset), Ok(groups)) = ("lab.t".parse(), CellGroups::codes(vec!["a".into(), "b".into()], &[0, 1, -1, 1])) {
        let spec = MomentsSpec { dataset, matrix: "x".into(), groups, transform: None, squares: Squares::default(), totals: None };
        seeds.extend(spec.to_literal().ok().map(String::into_bytes));
    }
    seeds
}

/// Any text as the spec of moments: an error, or a spec whose own text reads back as the same.
pub(crate) fn spec_read(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(spec) = MomentsSpec::from_literal(text) else { return false };
    match spec.to_literal().and_then(|text| MomentsSpec::from_literal(&text)) {
        Ok(again) => assert_eq!(again, spec),
        Err(error) => panic!("{error}: {spec:?}"),
    }
    true
}
