use std::sync::Arc;

use arrow::array::Float32Array;
use proptest::prelude::*;

use super::*;
use crate::log1p::log1p_cp10k;
use crate::ttest::GroupMoments;

/// What the kernel is about, one value at a time.
fn model(width: usize, first: u32, codes: &[u16], totals: Option<&[f32]>, idx: &[u32], val: &[f64], squares: Squares) -> Vec<(u64, f64, f64)> {
    let mut out = vec![(0, 0.0, 0.0); width];
    for (&i, &v) in idx.iter().zip(val) {
        let y = totals.map_or(v, |t| f64::from(log1p_cp10k(v as f32, t[i as usize])));
        let (n, s, q) = &mut out[usize::from(codes[(i - first) as usize])];
        *n += u64::from(v != 0.0);
        *s += y;
        *q += if squares == Squares::Float32 { f64::from(y as f32 * y as f32) } else { y * y };
    }
    out
}

fn check<T: Value>(width: usize, first: u32, codes: &[u16], totals: Option<&Arc<Float32Array>>, idx: &[u32], val: &[T]) {
    for squares in [Squares::Float32, Squares::Float64] {
        check_with(width, first, codes, totals, idx, val, squares);
    }
}

fn check_with<T: Value>(width: usize, first: u32, codes: &[u16], totals: Option<&Arc<Float32Array>>, idx: &[u32], val: &[T], squares: Squares) {
    let block = Block::new(first, codes, totals);
    let mut wide = Kernel::new(width, squares);
    let mut narrow = Kernel::with_avx2(width, squares, false);
    // Twice: nothing of the first row may be left.
    wide.row(&block, idx, val).unwrap();
    let a = wide.row(&block, idx, val).unwrap();
    let b = narrow.row(&block, idx, val).unwrap();
    let bits = |s: &[Sums]| s.iter().flatten().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(a), bits(b));
    let values: Vec<f64> = val.iter().map(|v| v.as_f64()).collect();
    for (got, (n, s, q)) in a.iter().zip(model(width, first, codes, totals.map(|t| &t.values()[..]), idx, &values, squares)) {
        assert_eq!(got[2] as u64, n);
        assert!((got[0] - s).abs() <= 1e-12 * s.abs() && (got[1] - q).abs() <= 1e-12 * q.abs(), "{got:?} {s} {q}");
    }
}

fn row() -> impl Strategy<Value = (usize, u32, Vec<u16>, Vec<f32>, Vec<(u32, u32)>)> {
    (prop_oneof![1usize..20, Just(200usize)], 0u32..50, 1usize..700).prop_flat_map(|(width, first, len)| {
        (
            Just(width),
            Just(first),
            prop::collection::vec(0..width as u16, len),
            prop::collection::vec(1f32..9000f32, first as usize + len),
            prop::collection::btree_map(first..first + len as u32, prop_oneof![8 => 0u32..5, 2 => 0u32..40, 1 => 30u32..60_000], 0..=len)
                .prop_map(|m| m.into_iter().collect()),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn all_types_as_the_model_and_with_avx2_as_without((width, first, codes, totals, entries) in row()) {
        let totals = Arc::new(Float32Array::from(totals));
        let idx: Vec<u32> = entries.iter().map(|e| e.0).collect();
        for totals in [None, Some(&totals)] {
            check(width, first, &codes, totals, &idx, &entries.iter().map(|e| e.1 as u16).collect::<Vec<_>>());
            check(width, first, &codes, totals, &idx, &entries.iter().map(|e| e.1 * 1000).collect::<Vec<_>>());
            check(width, first, &codes, totals, &idx, &entries.iter().map(|e| e.1 as f32 * 0.75).collect::<Vec<_>>());
            check(width, first, &codes, totals, &idx, &entries.iter().map(|e| f64::from(e.1) * 0.1).collect::<Vec<_>>());
        }
    }
}

#[test]
fn indices_outside_the_block_are_refused() {
    let codes = vec![0u16; 10];
    let block = Block::new(100, &codes, None);
    let mut kernel = Kernel::new(1, Squares::Float64);
    for outside in [0, 99, 110, u32::MAX] {
        assert_eq!(kernel.row(&block, &[100, outside, 105], &[1u16, 1, 1]).unwrap_err(), Fault::Outside(outside));
    }
    assert_eq!(kernel.row(&block, &[100], &[1u16, 2]).unwrap_err(), Fault::Lengths);
    assert_eq!(kernel.row(&block, &[], &[] as &[u16]).unwrap(), [[0.0; 4]]);
    assert_eq!(kernel.row(&Block::new(0, &[], None), &[], &[] as &[u16]).unwrap(), [[0.0; 4]]);
    assert_eq!(kernel.row(&Block::new(0, &[], None), &[0], &[1u16]).unwrap_err(), Fault::Outside(0));
}

#[test]
fn values_without_a_transform_are_named_and_leave_nothing() {
    let codes = vec![0u16; 4];
    let totals = Arc::new(Float32Array::from(vec![10.0, 0.0, 10.0, 10.0]));
    let block = Block::new(0, &codes, Some(&totals));
    let mut kernel = Kernel::new(1, Squares::Float64);
    assert_eq!(kernel.row(&block, &[0, 1], &[1u16, 7]).unwrap_err(), Fault::Value { cell: 1, value: 7.0 });
    assert_eq!(kernel.row(&block, &[0, 1], &[1u16, 700]).unwrap_err(), Fault::Value { cell: 1, value: 700.0 });
    assert_eq!(kernel.row(&block, &[0, 2], &[1f32, -2.5]).unwrap_err(), Fault::Value { cell: 2, value: -2.5 });
    assert!(matches!(kernel.row(&block, &[3], &[f64::NAN]).unwrap_err(), Fault::Value { cell: 3, .. }));
    // A stored zero in an empty cell is no fault, and no nonzero.
    let sums = kernel.row(&block, &[1, 2], &[0u16, 1]).unwrap()[0];
    assert_eq!(sums[2], 1.0);
    assert!(matches!(kernel.row(&Block::new(0, &codes, None), &[2], &[f32::INFINITY]).unwrap_err(), Fault::Value { cell: 2, .. }));
}

#[test]
fn squares_beyond_all_numbers_are_named() {
    let codes = vec![0u16; 4];
    let block = Block::new(0, &codes, None);
    let mut kernel = Kernel::new(1, Squares::Float64);
    assert_eq!(kernel.row(&block, &[0, 1, 2], &[1.0, 1e200, 2e200]).unwrap_err(), Fault::Value { cell: 1, value: 1e200 });
    // Each alone is finite.
    assert!(matches!(kernel.row(&block, &[0, 1, 2], &[1e154; 3]).unwrap_err(), Fault::Value { .. }));
    assert_eq!(kernel.row(&block, &[0], &[2.0]).unwrap(), [[2.0, 4.0, 1.0, 0.0]]);
    let mut short = Kernel::new(1, Squares::Float32);
    assert!(matches!(short.row(&block, &[0, 3], &[1f32, 1e20]).unwrap_err(), Fault::Value { cell: 3, .. }));
}

#[test]
fn groups_that_the_kernel_does_not_have_are_refused() {
    let codes = vec![0u16, 3, 1];
    let block = Block::new(7, &codes, None);
    for width in 0..4 {
        assert_eq!(Kernel::new(width, Squares::Float64).row(&block, &[7], &[1u16]).unwrap_err(), Fault::Group(3));
    }
    assert_eq!(Kernel::new(4, Squares::Float64).row(&block, &[8], &[5u16]).unwrap()[3], [5.0, 25.0, 1.0, 0.0]);
    // The groups of all cells count, and a table must be that of the block's.
    let all = Codes::new(vec![9, 0, 0, 0]);
    assert_eq!(Kernel::new(4, Squares::Float64).row(&Block::of(&all, 1..4, None).unwrap(), &[1], &[1u16]).unwrap_err(), Fault::Group(9));
    assert!(Block::of(&all, 1..5, None).is_none());
    let totals = Arc::new(Float32Array::from(vec![1.0; 4]));
    let table = crate::log1p::shared_table(crate::log1p::Formula::Log1pCp10k, &totals, 0, 2, false);
    assert!(Tabulated::new(&all, 0..3, Arc::clone(&table)).is_none() && Tabulated::new(&all, 3..5, Arc::clone(&table)).is_none());
    let of = |codes: &Codes| Tabulated::new(codes, 0..2, Arc::clone(&table)).map(Arc::new);
    assert!(Block::of(&all, 0..3, of(&all)).is_none() && Block::of(&all, 0..2, of(&all)).is_some());
    // A block of other groups could have codes that the kernel does not have.
    assert!(Block::of(&all, 0..2, of(&Codes::new(vec![70, 0]))).is_none());
}

#[test]
fn a_block_at_the_end_of_all_cell_numbers() {
    // Ten cells would have numbers up to 2^32 + 7; small numbers must not be taken for those.
    let codes = vec![0u16; 10];
    let block = Block::new(u32::MAX - 1, &codes, None);
    let mut kernel = Kernel::new(1, Squares::Float64);
    for outside in [0, 3, 7, u32::MAX - 2] {
        assert_eq!(kernel.row(&block, &[outside], &[1u16]).unwrap_err(), Fault::Outside(outside));
    }
    assert_eq!(kernel.row(&block, &[u32::MAX - 1, u32::MAX], &[1u16, 1]).unwrap()[0][2], 2.0);
}

/// Moments by their definition, in integers, of the cells of each group: `values` are whole, zeros included.
fn by_definition(values: &[i128]) -> (f64, f64) {
    let (n, s) = (values.len() as i128, values.iter().sum::<i128>());
    let m2: i128 = values.iter().map(|v| (n * v - s) * (n * v - s)).sum();
    (s as f64 / n as f64, m2 as f64 / (n * n) as f64)
}

#[test]
fn large_means_with_small_differences_keep_their_variance() {
    // Two groups in turns, the second with a zero; a value of the first far from those of the second.
    for (base, one, two) in [(100_000_000i128, [0, 1, 2], [5, 7, 4]), (1_000_000_000_000, [3, 3, 3], [0, 1, 0]), (-70_000_000, [9, -9, 1], [2, 3, 5])] {
        let codes: Vec<u16> = vec![0, 1, 0, 1, 0, 1, 1];
        let n = [3, 4];
        let of = [one.map(|v| base + v).to_vec(), two.map(|v| 3 * base + v).to_vec()];
        let val: Vec<f64> = (0..3).flat_map(|i| [of[0][i] as f64, of[1][i] as f64]).collect();
        let idx = [0, 1, 2, 3, 4, 5];
        let block = Block::new(0, &codes, None);
        let mut kernel = Kernel::new(2, Squares::Float64);
        let sums = kernel.row(&block, &idx, &val).unwrap().to_vec();
        let plain = GroupMoments::of_sums(3, 3, sums[0][0], sums[0][1]);
        assert!(cancels(&plain, sums[0][1]), "{plain:?}");
        let exact = two_pass_moments(&block, &idx, &val, &n);
        let with_zero = [&of[1][..], &[0]].concat();
        for (got, (want, n)) in exact.iter().zip([(by_definition(&of[0]), 3), (by_definition(&with_zero), 4)]) {
            assert_eq!((got.n, got.nnz), (n, 3));
            assert!((got.mean - want.0).abs() <= 4e-16 * want.0.abs() && (got.m2 - want.1).abs() <= 1e-12 * want.1, "{got:?} {want:?}");
        }
    }
}

#[test]
fn ordinary_rows_need_no_second_pass() {
    let moments = GroupMoments::of_sums(100, 7, 12.0, 30.0);
    assert!(!cancels(&moments, 30.0));
    // Without zeros, a mean of ten standard deviations; a single cell; a gene that does not occur.
    assert!(!cancels(&GroupMoments::of_sums(4, 4, 40.0, 404.0), 404.0));
    assert!(!cancels(&GroupMoments::of_sums(1, 1, 3.0, 9.0), 9.0));
    assert!(!cancels(&GroupMoments::of_sums(50, 0, 0.0, 0.0), 0.0));
}
