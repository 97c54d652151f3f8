//! The transposer against a sorted map, with all ways of pushing, tiny memory limits and threads.

use std::collections::BTreeMap;

use fastrand::Rng;
use proptest::prelude::*;
use skytether_common::{Kind, Result};
use skytether_matrix::{Index, TransposeOptions, Transposed, Transposer, Value};
use skytether_slice::{BLOCK, ValueType, Values};

type Model = BTreeMap<(u32, u32), f64>;

/// A number type that small test values go into and come back from unchanged.
trait Number: Value {
    fn of(v: f64) -> Self;
}

macro_rules! numbers {
    ($($t:ty)*) => {$(impl Number for $t { fn of(v: f64) -> Self { v as Self } })*};
}
numbers!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

trait Position: Index {
    fn of(v: usize) -> Self;
}

macro_rules! positions {
    ($($t:ty)*) => {$(impl Position for $t { fn of(v: usize) -> Self { v as Self } })*};
}
positions!(u32 u64 i32 i64);

#[derive(Clone, Copy)]
enum Class {
    Small,
    Large,
    Signed,
    Single,
    Double,
}

impl Class {
    fn value(self, r: &mut Rng) -> f64 {
        let v = match self {
            Class::Small => f64::from(r.u32(..100) + 1),
            Class::Large => f64::from(r.u32(..u32::MAX - 1) + 1),
            Class::Signed => f64::from(r.u32(..200)) - 100.0,
            Class::Single => f64::from(f64::from(r.u32(..1000)).ln_1p() as f32),
            Class::Double => f64::from(r.u32(..1000)) / 7.0,
        };
        if v == 0.0 { 1.0 } else { v }
    }
}

/// Pushes entries as one call of the given kind, through number type `V` and position type `P`.
fn push<V: Number, P: Position>(t: &mut Transposer, kind: u32, entries: &[(u32, u32, f64)], r: &mut Rng) -> Result<()> {
    let by = |e: &(u32, u32, f64)| if kind == 2 { e.0 } else { e.1 };
    match kind {
        0 => {
            let genes: Vec<u32> = entries.iter().map(|e| e.0).collect();
            let cells: Vec<u32> = entries.iter().map(|e| e.1).collect();
            let data: Vec<V> = entries.iter().map(|e| V::of(e.2)).collect();
            t.push_triplets(&genes, &cells, &data)
        }
        1 | 2 => {
            // Lines from the first to the last that occur; the order within a line stays as it came.
            let first = entries.iter().map(by).min().unwrap_or(0);
            let last = entries.iter().map(by).max().unwrap_or(0);
            let mut sorted = entries.to_vec();
            sorted.sort_by_key(by);
            let offset = r.u32(..1000) as usize;
            let indptr: Vec<P> = (first..=last + 1).map(|line| P::of(offset + sorted.partition_point(|e| by(e) < line))).collect();
            let indices: Vec<P> = sorted.iter().map(|e| P::of(if kind == 2 { e.1 } else { e.0 } as usize)).collect();
            let data: Vec<V> = sorted.iter().map(|e| V::of(e.2)).collect();
            if kind == 1 { t.push_rows(first.into(), &indptr, &indices, &data) } else { t.push_columns(first.into(), &indptr, &indices, &data) }
        }
        _ => {
            let genes = t.n_genes() as usize;
            for e in entries {
                let mut row = vec![V::of(0.0); genes];
                row[e.0 as usize] = V::of(e.2);
                t.push_dense(e.1.into(), 1, &row)?;
            }
            Ok(())
        }
    }
}

fn push_any(t: &mut Transposer, class: Class, kind: u32, entries: &[(u32, u32, f64)], r: &mut Rng) -> Result<()> {
    match (class, r.u32(..8)) {
        (Class::Small, 0) => push::<u8, u32>(t, kind, entries, r),
        (Class::Small, 1) => push::<i8, i64>(t, kind, entries, r),
        (Class::Small, 2) => push::<u16, i32>(t, kind, entries, r),
        (Class::Small, 3) => push::<i16, u64>(t, kind, entries, r),
        (Class::Small, 4) | (Class::Single, 0..4) => push::<f32, i32>(t, kind, entries, r),
        (Class::Small | Class::Large, 5) => push::<u32, i64>(t, kind, entries, r),
        (Class::Small | Class::Signed, 6) => push::<i32, i64>(t, kind, entries, r),
        (Class::Large, 6) => push::<u64, u32>(t, kind, entries, r),
        (Class::Small | Class::Large | Class::Signed, 7) => push::<i64, i64>(t, kind, entries, r),
        _ => push::<f64, i32>(t, kind, entries, r),
    }
}

fn floats(values: Values<'_>) -> Vec<f64> {
    match values {
        Values::U16(v) => v.iter().map(|v| f64::from(*v)).collect(),
        Values::U32(v) => v.iter().map(|v| f64::from(*v)).collect(),
        Values::F32(v) => v.iter().map(|v| f64::from(*v)).collect(),
        Values::F64(v) => v.to_vec(),
    }
}

/// Reads everything back, checking order and completeness of the calls.
fn read(t: &Transposed, genes: std::ops::Range<u32>) -> Model {
    let mut model = Model::new();
    let blocks = t.n_cells().div_ceil(BLOCK);
    let mut expected = (0..blocks).flat_map(|b| genes.clone().map(move |g| (b, g)));
    t.rows(genes.clone(), &mut |gene, block, cells, values| {
        assert_eq!(expected.next(), Some((block, gene)));
        assert!(cells.is_sorted_by(|a, b| a < b));
        assert!(cells.iter().all(|c| c / BLOCK == block));
        let values = floats(values);
        assert_eq!(values.len(), cells.len());
        model.extend(cells.iter().zip(values).map(|(c, v)| ((gene, *c), v)));
        Ok(())
    })
    .unwrap();
    assert_eq!(expected.next(), None);
    model
}

fn narrowest(model: &Model) -> ValueType {
    let values: Vec<f64> = model.values().copied().collect();
    let all = |ok: &dyn Fn(f64) -> bool| values.iter().all(|v| ok(*v));
    if all(&|v| v >= 0.0 && v.fract() == 0.0 && v <= 65_535.0) {
        ValueType::UInt16
    } else if all(&|v| v >= 0.0 && v.fract() == 0.0 && v <= 4_294_967_295.0) {
        ValueType::UInt32
    } else if all(&|v| f64::from(v as f32) == v) {
        ValueType::Float32
    } else {
        ValueType::Float64
    }
}

fn options(memory_limit: usize, threads: usize) -> TransposeOptions {
    TransposeOptions { memory_limit, threads, ..TransposeOptions::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn matrix_round_trips(
        seed: u64,
        n_cells in prop_oneof![1u32..300, 1000u32..9000, 65_530u32..65_545, 100_000u32..200_000],
        n_genes in prop_oneof![1u32..6, 6u32..60],
        tries in prop_oneof![0u32..50, 2000u32..9000],
        classes in 1u32..32,
        pushes in 1usize..12,
        shuffled: bool,
        limit in prop_oneof![Just(0usize), Just(8000), Just(1 << 20)],
        threads in 1usize..4,
    ) {
        let mut r = Rng::with_seed(seed);
        let every = [Class::Small, Class::Large, Class::Signed, Class::Single, Class::Double];
        let classes: Vec<Class> = (0..5).filter(|i| classes & (1 << i) != 0).map(|i| every[i]).collect();
        let mut t = Transposer::new(n_cells, n_genes, options(limit, threads)).unwrap();
        let (mut model, mut sums) = (Model::new(), vec![0.0f64; n_cells as usize]);
        let places: std::collections::BTreeSet<(u32, u32)> = (0..tries).map(|_| (r.u32(..n_cells), r.u32(..n_genes))).collect();
        let mut places: Vec<(u32, u32)> = places.into_iter().collect();
        if shuffled {
            r.shuffle(&mut places);
        }
        for part in places.chunks(places.len().div_ceil(pushes).max(1)) {
            let class = classes[r.u32(..classes.len() as u32) as usize];
            // One in ten is a stored zero.
            let entries: Vec<(u32, u32, f64)> =
                part.iter().map(|&(cell, gene)| (gene, cell, if r.u32(..10) == 0 { 0.0 } else { class.value(&mut r) })).collect();
            let kind = if part.len() > 500 { r.u32(..3) } else { r.u32(..4) };
            push_any(&mut t, class, kind, &entries, &mut r).unwrap();
            for (gene, cell, v) in entries {
                if v != 0.0 {
                    model.insert((gene, cell), v);
                    sums[cell as usize] += v;
                }
            }
        }
        let done = t.finish().unwrap();
        prop_assert_eq!(done.value_type(), narrowest(&model));
        prop_assert_eq!(done.nnz(), model.len() as u64);
        for gene in 0..n_genes {
            prop_assert_eq!(done.nnz_per_gene()[gene as usize], model.range((gene, 0)..(gene + 1, 0)).count() as u64);
        }
        for (total, sum) in done.totals().iter().zip(&sums) {
            prop_assert!((f64::from(*total) - sum).abs() <= 1e-6 * sum.abs() + 1e-9, "{} {}", total, sum);
        }
        prop_assert!(read(&done, 0..n_genes) == model);
        // From several threads on disjoint ranges.
        let cut = n_genes / 3;
        let (low, high) = std::thread::scope(|s| {
            let low = s.spawn(|| read(&done, 0..cut));
            (read(&done, cut..n_genes), low.join().unwrap())
        });
        prop_assert!(low.into_iter().chain(high).collect::<Model>() == model);
    }
}

/// 200,000 cells of 3 genes, a tenth of what a small limit holds.
fn spilling(limit: usize) -> Transposed {
    let mut t = Transposer::new(200_000, 3, options(limit, 1)).unwrap();
    for first in (0..200_000u64).step_by(1000) {
        let indptr: Vec<i32> = (0..=1000).map(|i| i * 3).collect();
        let indices: Vec<i32> = (0..3000).map(|i| i % 3).collect();
        let data: Vec<u16> = (0..3000).map(|i| 1 + (i * 7 + first as u32) as u16 % 999).collect();
        t.push_rows(first, &indptr, &indices, &data).unwrap();
    }
    t.finish().unwrap()
}

#[test]
fn a_small_limit_spills_often_and_changes_nothing() {
    let (small, large) = (spilling(100_000), spilling(1 << 30));
    assert!(small.spilled_runs() > 10, "{}", small.spilled_runs());
    assert_eq!(large.spilled_runs(), 0);
    assert_eq!(small.totals(), large.totals());
    assert!(read(&small, 0..3) == read(&large, 0..3));
    assert!(read(&small, 2..3).len() == 200_000);
}

#[test]
fn the_spill_file_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(dir.path()).unwrap().count();
    let with = |memory_limit| TransposeOptions { memory_limit, spill_dir: dir.path().to_owned(), threads: 1 };
    let cells: Vec<u32> = (0..50_000).collect();
    let mut t = Transposer::new(50_000, 1, with(0)).unwrap();
    t.push_triplets(&vec![0; cells.len()], &cells, &vec![1u8; cells.len()]).unwrap();
    let done = t.finish().unwrap();
    assert!(done.spilled_runs() > 0);
    assert_eq!(done.nnz(), 50_000);
    drop(done);
    assert_eq!(files(), 0);
    // Where no file can be made, a spill is an error that names the folder, and in memory nothing is missed.
    let nowhere = TransposeOptions { spill_dir: dir.path().join("missing"), ..with(0) };
    let mut t = Transposer::new(50_000, 1, nowhere.clone()).unwrap();
    let error = t.push_triplets(&vec![0; cells.len()], &cells, &vec![1u8; cells.len()]).unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(t.push_triplets(&[0], &[0], &[1u8]).is_err());
    assert!(t.finish().is_err());
    let mut t = Transposer::new(50_000, 1, TransposeOptions { memory_limit: 1 << 20, ..nowhere }).unwrap();
    t.push_triplets(&[0], &[7], &[1u8]).unwrap();
    assert_eq!(t.finish().unwrap().nnz(), 1);
}

#[test]
fn repeated_entries_are_named() {
    let expect = |t: Transposer| {
        let error = t.finish().and_then(|done| done.rows(0..done.n_genes(), &mut |_, _, _, _| Ok(()))).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("gene 2, cell 70001: there is more than one entry"), "{error}");
    };
    let new = |limit| Transposer::new(80_000, 4, options(limit, 2)).unwrap();
    // Next to each other, apart, in another value form, and with a spill in between.
    let mut t = new(1 << 20);
    t.push_triplets(&[2, 2], &[70_001, 70_001], &[1u8, 1]).unwrap();
    expect(t);
    let mut t = new(1 << 20);
    t.push_triplets(&[2, 2, 1, 2], &[70_001, 5, 70_001, 70_001], &[1u8, 1, 9, 2]).unwrap();
    expect(t);
    let mut t = new(1 << 20);
    t.push_triplets(&[2], &[70_001], &[1u8]).unwrap();
    t.push_triplets(&[2], &[70_001], &[0.5f32]).unwrap();
    expect(t);
    let mut t = new(0);
    let cells: Vec<u32> = (0..80_000).collect();
    t.push_triplets(&vec![2; 80_000], &cells, &vec![300u16; 80_000]).unwrap();
    t.push_triplets(&[2], &[70_001], &[1u8]).unwrap();
    expect(t);
    // Without end, into one place.
    let mut t = Transposer::new(2, 1, options(1 << 20, 1)).unwrap();
    let error = t.push_triplets(&[0; 5000], &[1; 5000], &[1u8; 5000]).unwrap_err();
    assert!(error.to_string().contains("gene 0, cell 1: there is more than one entry"), "{error}");
}

#[test]
fn wrong_input_is_refused_by_place() {
    let new = || Transposer::new(3, 5, TransposeOptions::default()).unwrap();
    let expect = |result: Result<()>, text: &str| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{error}");
        assert!(error.to_string().contains(text), "{error} / {text}");
    };
    expect(new().push_rows(0, &[0, 1, 2], &[0, 5], &[1u8, 1]), "entry 1 of the pushed data is for gene 5, but the matrix has 5 genes");
    expect(new().push_rows(0, &[0, 1], &[-1i64], &[1u8]), "gene -1");
    expect(new().push_columns(0, &[0, 1], &[3u64], &[1u8]), "cell 3, but the matrix has 3 cells");
    expect(new().push_columns(4, &[0, 0, 0], &[0i32; 0], &[0u8; 0]), "2 genes from 4 on");
    expect(new().push_rows(3, &[0, 0], &[0i32; 0], &[0u8; 0]), "1 cells from 3 on");
    expect(new().push_rows(u64::MAX, &[0, 0], &[0i32; 0], &[0u8; 0]), "do not fit");
    expect(new().push_rows(0, &[0, 2, 1], &[0], &[1u8]), "indptr[2]");
    expect(new().push_rows(0, &[0i64, -1], &[0], &[1u8]), "indptr[1]");
    expect(new().push_rows(0, &[5, 7], &[0], &[1u8]), "spans 2 entries, but there are 1 indices and 1 values");
    expect(new().push_rows(0, &[0, 1], &[0, 1], &[1u8]), "spans 1 entries, but there are 2 indices");
    expect(new().push_rows(0, &[0i32; 0], &[0], &[1u8]), "indptr is empty");
    expect(new().push_dense(0, 1, &[1.0]), "1 dense rows of 5 genes can't have 1 values");
    expect(new().push_dense(0, usize::MAX, &[1.0]), "do not fit");
    expect(new().push_triplets(&[0, 5], &[0, 0], &[1u8, 1]), "entry 1 of the pushed data is for gene 5");
    expect(new().push_triplets(&[0], &[3], &[1u8]), "for cell 3");
    expect(new().push_triplets(&[0], &[], &[1u8]), "same length");
    expect(new().push_triplets(&[3], &[2], &[u64::MAX]), "gene 3, cell 2: the value 18446744073709551615 is not exact");
    let done = new().finish().unwrap();
    expect(done.rows(2..6, &mut |_, _, _, _| Ok(())), "genes 2..6");
    expect(done.rows(0..1, &mut |_, _, _, _| Err(skytether_common::Error::invalid("stop"))), "stop");
}

/// Velocities and scaled values have them. Such a cell has no total, so that no test can scale by it.
#[test]
fn what_is_no_finite_number_comes_back() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let dense = [[1.0, 0.0, nan, 2.0], [inf, 0.5, 0.0, 3.0], [0.1, 0.0, -inf, inf], [1e300, 1e300, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]];
    let mut t = Transposer::new(5, 4, TransposeOptions::default()).unwrap();
    t.push_dense(0, 5, dense.as_flattened()).unwrap();
    let done = t.finish().unwrap();
    assert_eq!(done.value_type(), ValueType::Float64);
    assert!(done.totals()[..4].iter().all(|total| total.is_nan()) && done.totals()[4] == 10.0, "{:?}", done.totals());
    let mut back = [[0.0f64; 4]; 5];
    done.rows(0..4, &mut |gene, _, cells, values| {
        let Values::F64(values) = values else { panic!("other values") };
        for (cell, value) in cells.iter().zip(values) {
            back[*cell as usize][gene as usize] = *value;
        }
        Ok(())
    })
    .unwrap();
    assert!(back.as_flattened().iter().zip(dense.as_flattened()).all(|(a, b)| a.to_bits() == b.to_bits()), "{back:?}");
}

#[test]
fn huge_dimensions_are_refused_not_allocated() {
    let error = Transposer::new(u32::MAX, u32::MAX, TransposeOptions::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted);
    assert!(error.to_string().contains("raise the memory limit"), "{error}");
}

#[test]
fn empty_matrices_have_the_narrowest_type() {
    for (cells, genes, calls) in [(0, 0, 0), (0, 3, 0), (3, 0, 0), (70_000, 2, 4)] {
        let mut t = Transposer::new(cells, genes, TransposeOptions::default()).unwrap();
        t.push_dense::<f64>(0, cells as usize, &vec![-0.0; (cells * genes) as usize]).unwrap();
        let done = t.finish().unwrap();
        let mut seen = 0;
        done.rows(0..genes, &mut |_, _, cells, values| {
            assert!(cells.is_empty() && matches!(values, Values::U16([])));
            seen += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!((seen, done.value_type(), done.nnz()), (calls, ValueType::UInt16, 0));
    }
}
