use arrow::array::Float32Array;
use proptest::prelude::*;

use super::*;
use crate::log1p::log1p_cp10k;

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
