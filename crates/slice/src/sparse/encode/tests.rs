use super::*;
use crate::layout::Layout;
use crate::sparse::decode_sparse;
use proptest::prelude::*;
use skytether_common::Kind;

fn bytes_of(rows: &Rows, value: ValueType) -> Bytes {
    let form = form(value).unwrap();
    write(rows, form.schema, form.properties, 0).unwrap()
}

fn two_rows() -> Rows {
    let mut rows = Rows::default();
    rows.push(0, 0, &[1, 5, 9], Values::U16(&[1, 2, 3]));
    rows.push(1, 0, &[0, 2], Values::U16(&[4, 5]));
    rows
}

#[test]
fn rows_that_contradict_themselves_are_refused_by_the_reader() {
    type Tamper = fn(&mut Rows);
    let layout = Layout::sparse(10, 2, ValueType::UInt16);
    let all: Vec<usize> = (0..7).collect();
    assert_eq!(decode_sparse(&bytes_of(&two_rows(), ValueType::UInt16), &layout, &all).unwrap().num_rows(), 2);
    let cases: [(&str, Tamper); 9] = [
        ("too many values claimed", |r| r.nnz[0] = 4),
        ("values moved between rows", |r| {
            r.nnz[0] = 1;
            r.nnz[1] = 4;
        }),
        ("huge lists claimed", |r| r.nnz.fill(-1)),
        ("a cell out of range", |r| r.idx[2] = 10),
        ("a cell far out of range", |r| r.idx[4] = -2),
        ("a cell twice", |r| r.idx[1] = 1),
        ("cells descending", |r| r.idx.swap(3, 4)),
        ("a gene out of range", |r| r.gene[1] = 2),
        ("a block out of range", |r| r.block[1] = 1),
    ];
    for (what, tamper) in cases {
        let mut rows = two_rows();
        tamper(&mut rows);
        let error = decode_sparse(&bytes_of(&rows, ValueType::UInt16), &layout, &all).expect_err(what);
        assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
    }
    let mut rows = two_rows();
    if let Stored::Integers(v) = &mut rows.val {
        v[0] = 65_536;
    }
    assert!(decode_sparse(&bytes_of(&rows, ValueType::UInt16), &layout, &[4]).is_err());
    assert!(decode_sparse(&bytes_of(&two_rows(), ValueType::UInt16), &Layout::sparse(70_000, 2, ValueType::UInt32), &[4]).is_err());
}

#[test]
fn a_cell_in_the_wrong_block_is_refused() {
    let mut rows = Rows::default();
    rows.push(0, 1, &[65_535], Values::F32(&[1.0]));
    rows.val = Stored::Floats(vec![1.0]);
    let error = decode_sparse(&bytes_of(&rows, ValueType::Float32), &Layout::sparse(100_000, 1, ValueType::Float32), &[3]).unwrap_err();
    assert!(error.to_string().contains("block 1"), "{error}");
}

/// A part has its own cells in blocks of its own; a slice of it is none of another part.
#[test]
fn rows_of_a_part_are_about_its_own_cells() {
    let span = Span { block: 2, cell: 70_000, end: 140_000 };
    let mut slicer = SparseSlicer::of_part(span, 1, ValueType::UInt16, SliceOptions::default());
    for (block, cell) in [(0, 5), (1, 69_999), (2, 69_999), (2, 135_536), (3, 140_000), (4, 139_999)] {
        assert_eq!(slicer.push(0, block, &[cell], Values::U16(&[1])).unwrap_err().kind(), Kind::Invalid, "{block} {cell}");
    }
    slicer.push(0, 2, &[70_000, 135_535], Values::U16(&[1, 2])).unwrap();
    slicer.push(0, 3, &[135_536, 139_999], Values::U16(&[3, 4])).unwrap();
    let bytes = slicer.finish().unwrap().unwrap().bytes;
    let all: Vec<usize> = (0..7).collect();
    let read = |span| decode_sparse(&bytes, &Layout::sparse_part(span, 1, ValueType::UInt16), &all);
    assert_eq!(read(span).unwrap().num_rows(), 2);
    let whole = Span::whole(140_000);
    for other in [whole, Span { cell: 70_001, ..span }, Span { block: 1, ..span }, Span { end: 139_999, ..span }, Span { block: 70_001, ..span }] {
        assert_eq!(read(other).unwrap_err().kind(), Kind::Corrupt, "{other:?}");
    }
}

#[test]
fn bad_rows_are_refused_by_the_slicer() {
    let mut slicer = SparseSlicer::new(70_000, 3, ValueType::UInt16, SliceOptions::default());
    slicer.push(1, 0, &[4], Values::U16(&[1])).unwrap();
    for (gene, block, idx, values) in [
        (1, 0, &[5][..], Values::U16(&[1])),
        (0, 0, &[5], Values::U16(&[1])),
        (3, 0, &[5], Values::U16(&[1])),
        (2, 2, &[], Values::U16(&[])),
        (2, 0, &[5, 5], Values::U16(&[1, 1])),
        (2, 0, &[65_536], Values::U16(&[1])),
        (2, 1, &[70_000], Values::U16(&[1])),
        (2, 0, &[5], Values::U16(&[1, 2])),
        (2, 0, &[5], Values::F32(&[1.0])),
    ] {
        assert_eq!(slicer.push(gene, block, idx, values).unwrap_err().kind(), Kind::Invalid, "{gene} {block} {idx:?}");
    }
    slicer.push(0, 1, &[69_999], Values::U16(&[1])).unwrap();
    assert_eq!(slicer.finish().unwrap().unwrap().stats.rows, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_predicted_size_is_an_upper_bound_and_close(
        lens in prop::collection::vec(prop_oneof![3 => 0usize..3, 2 => 0usize..20, 1 => 0usize..3000], 1..400),
        step in 1u32..20, values in 0u32..3, seed in any::<u32>()
    ) {
        let mut rows = Rows::default();
        let mut size = Size::new(ValueType::UInt32);
        let mut random = fastrand::Rng::with_seed(u64::from(seed));
        for (gene, len) in lens.iter().enumerate() {
            let mut at = 0;
            let mut next = |n: u32| random.u32(..n);
            let idx: Vec<u32> = (0..*len).map(|_| { at += 1 + next(step); at }).collect();
            let val: Vec<u32> = (0..*len).map(|_| match values { 0 => 1, 1 => 1 + next(9), _ => next(1 << 24) << 8 }).collect();
            rows.push(gene as u32, 0, &idx, Values::U32(&val));
            size.add(gene as u32, 0, &idx, Values::U32(&val));
        }
        let (predicted, written) = (size.bytes(), bytes_of(&rows, ValueType::UInt32).len());
        prop_assert!(predicted >= written, "{predicted} < {written}");
        // Levels of short rows are what is overestimated: at most 8 bytes per list column and row.
        prop_assert!(predicted <= written + 1300 + 32 * lens.len(), "{predicted} >> {written}");
    }
}

#[test]
fn row_out_of_order_is_found_in_any_batches() {
    let good: Vec<u32> = (0..1000).collect();
    let ones = [1u16; 1000];
    // Cells that descend or repeat within a row; a row between others, so that borders of batches fall
    // before, in and after it.
    for wrong in [[5u32, 9, 7, 12], [5, 9, 9, 12], [5, 4, 9, 12]] {
        let mut rows = Rows::default();
        for (gene, cells) in [&good[..], &wrong, &good].into_iter().enumerate() {
            rows.push(gene as u32, 0, cells, Values::U16(&ones[..cells.len()]));
        }
        let bytes = bytes_of(&rows, ValueType::UInt16);
        for values in [1, 3, 1002, 1004, usize::MAX] {
            let layout = Layout::sparse(2000, 3, ValueType::UInt16);
            let mut batches = crate::SparseBatches::open(bytes.clone(), &layout, &[3], usize::MAX, values).unwrap();
            assert!(batches.any(|b| b.is_err()), "{wrong:?} in batches of {values}");
            assert!(batches.next().is_none());
        }
    }
}

/// A gene's rows are then in one slice of each block. Blocks with little stay together.
#[test]
fn slices_end_with_their_block_once_large_enough() {
    let rows_of = |cells: u32| {
        let mut slicer = SparseSlicer::new(3 * BLOCK, 4, ValueType::UInt16, SliceOptions::default());
        let mut rows = Vec::new();
        for block in 0..3 {
            let idx: Vec<u32> = (block * BLOCK..block * BLOCK + cells).collect();
            let values: Vec<u16> = idx.iter().map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as u16).collect();
            for gene in 0..4 {
                rows.extend(slicer.push(gene, block, &idx, Values::U16(&values)).unwrap().map(|slice| slice.stats.rows));
            }
        }
        rows.extend(slicer.finish().unwrap().map(|slice| slice.stats.rows));
        rows
    };
    assert_eq!(rows_of(BLOCK), [4, 4, 4]);
    assert_eq!(rows_of(10), [12]);
}
