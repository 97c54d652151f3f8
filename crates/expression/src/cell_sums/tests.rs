use arrow::array::{ArrayRef, AsArray, BinaryArray, ListArray, UInt32Array};
use arrow::datatypes::Float64Type;
use datafusion::logical_expr::EmitTo;
use skytether_common::{DatasetName, Kind};

use super::*;
use crate::aggregate::{Input, Store};
use crate::sparse::SparseRows;
use crate::spec::{Groups, MomentsSpec, Squares, Transform, pack};

/// Cells of one data set, without obs.
#[derive(Debug)]
struct Cells(Vec<f32>);

impl CellSource for Cells {
    fn n_cells(&self, _: &DatasetName) -> Result<u32> {
        Ok(self.0.len() as u32)
    }

    fn obs_column(&self, dataset: &DatasetName, column: &str) -> Result<ArrayRef> {
        Err(Error::not_found(format!("{dataset} has no {column}")))
    }

    fn cell_names(&self, dataset: &DatasetName) -> Result<ArrayRef> {
        self.obs_column(dataset, "cell")
    }

    fn totals(&self, _: &DatasetName, _: &str) -> Result<Arc<arrow::array::Float32Array>> {
        Ok(Arc::new(self.0.clone().into()))
    }
}

fn spec(sums: Vec<CellSum>, top: Vec<u32>, transform: Option<Transform>) -> CellSumsSpec {
    let of = MomentsSpec { dataset: "a.b".parse().unwrap(), matrix: "x".into(), groups: Groups::none(), transform, squares: Squares::default(), totals: None };
    CellSumsSpec { of, sums, top }
}

fn all(of: SumOf) -> CellSum {
    CellSum { of, weights: None }
}

fn input(spec: &CellSumsSpec, cells: usize) -> SparseRows<CellSums> {
    let source = Arc::new(Cells(vec![2500.0; cells]));
    let cache = source.prepared();
    SparseRows::new(CellSums::read(&spec.to_literal().unwrap()).unwrap(), source, cache)
}

/// A gene's row of counts.
type Row<'a> = (u32, u32, &'a [(u32, u32)]);

fn columns(rows: &[Row<'_>]) -> Vec<ArrayRef> {
    let list = |of: fn(&(u32, u32)) -> u32| {
        let lengths = rows.iter().map(|(_, _, row)| row.len());
        let values = UInt32Array::from_iter_values(rows.iter().flat_map(|(_, _, row)| row.iter().map(of)));
        let item = Arc::new(arrow::datatypes::Field::new("item", DataType::UInt32, false));
        Arc::new(ListArray::new(item, arrow::buffer::OffsetBuffer::from_lengths(lengths), Arc::new(values), None)) as ArrayRef
    };
    let number = |of: fn(&Row<'_>) -> u32| Arc::new(UInt32Array::from_iter_values(rows.iter().map(of))) as ArrayRef;
    vec![list(|(cell, _)| *cell), list(|(_, count)| *count), number(|r| r.1), number(|r| r.0)]
}

fn numbers(store: &mut CellStore, rows: usize) -> Vec<Vec<f64>> {
    let list = store.finish(EmitTo::All, rows).unwrap();
    list.as_list::<i32>().iter().map(|of| of.map_or_else(Vec::new, |of| of.as_primitive::<Float64Type>().values().to_vec())).collect()
}

fn states(store: &mut CellStore, rows: usize) -> BinaryArray {
    store.state(EmitTo::All, rows).unwrap()[0].as_binary::<i32>().clone()
}

#[test]
fn sums_and_largest_counts_merge_over_genes() {
    let weights = pack(&[0.0, 2.5]).unwrap();
    let sums = vec![all(SumOf::Values), all(SumOf::Nonzeros), CellSum { of: SumOf::Values, weights: Some(weights) }];
    let spec = spec(sums, vec![1, 3, 9], None);
    // Genes 0 and 1 here, gene 2 there; two blocks, the second with one cell.
    let here: [Row<'_>; 4] = [(0, 0, &[(0, 1), (1, 40)]), (1, 0, &[(1, 2)]), (0, 1, &[(65_536, 7)]), (1, 1, &[])];
    let there: [Row<'_>; 2] = [(2, 0, &[(0, 3), (1, 40), (65_535, 70_000)]), (2, 1, &[(65_536, 9)])];
    let mut merged = CellStore::default();
    for (rows, groups) in [(&here[..], &[0usize, 0, 1, 1][..]), (&there[..], &[0, 1])] {
        let (mut input, mut store) = (input(&spec, 65_537), CellStore::default());
        input.update(&mut store, &columns(rows), groups, None, 2).unwrap();
        merged.merge_states(&states(&mut store, 2), &[0, 1], 2).unwrap();
    }
    // States of merged states are the same again.
    let again = states(&mut merged, 2);
    let mut merged = CellStore::default();
    merged.merge_states(&again, &[0, 1], 2).unwrap();
    let [first, second] = numbers(&mut merged, 2).try_into().unwrap();
    let of = |sum: usize, cell: usize| first[sum * 65_536 + cell];
    assert_eq!((first.len(), second), (6 * 65_536, vec![16.0, 2.0, 0.0, 9.0, 16.0, 16.0]));
    assert_eq!((0..6).map(|sum| of(sum, 0)).collect::<Vec<_>>(), [4.0, 2.0, 0.0, 3.0, 4.0, 4.0]);
    assert_eq!((0..6).map(|sum| of(sum, 1)).collect::<Vec<_>>(), [82.0, 3.0, 5.0, 40.0, 82.0, 82.0]);
    assert_eq!((0..6).map(|sum| of(sum, 65_535)).collect::<Vec<_>>(), [70_000.0, 1.0, 0.0, 70_000.0, 70_000.0, 70_000.0]);
    assert_eq!((0..6).map(|sum| of(sum, 2)).collect::<Vec<_>>(), [0.0; 6]);
}

#[test]
fn transformed_values_are_added_up() {
    let spec = spec(vec![all(SumOf::Values)], Vec::new(), Some(Transform::CP10K));
    let (mut input, mut store) = (input(&spec, 3), CellStore::default());
    input.update(&mut store, &columns(&[(0, 0, &[(0, 1), (2, 50)]), (1, 0, &[(2, 1)])]), &[0, 0], None, 1).unwrap();
    // 2500 / 10000 is exact in float32.
    assert_eq!(numbers(&mut store, 1), [[4.0, 0.0, 204.0]]);
}

#[test]
fn genes_without_a_weight_count_nowhere() {
    let spec = spec(vec![CellSum { of: SumOf::Nonzeros, weights: Some(pack(&[0.0, 1.0]).unwrap()) }], vec![2], None);
    let (mut input, mut store) = (input(&spec, 2), CellStore::default());
    input.update(&mut store, &columns(&[(0, 0, &[(0, 9)]), (1, 0, &[(0, 2)]), (7, 0, &[(1, 5)])]), &[0, 0, 0], None, 1).unwrap();
    assert_eq!(numbers(&mut store, 1), [[1.0, 0.0, 2.0, 0.0]]);
    // A block of nothing else has zeros, not nothing.
    let (mut input, mut store) = (self::input(&spec, 2), CellStore::default());
    input.update(&mut store, &columns(&[(0, 0, &[(0, 9)])]), &[0], None, 1).unwrap();
    assert_eq!(numbers(&mut store, 1), [[0.0; 4]]);
}

#[test]
fn rows_of_other_blocks_and_cells_are_refused() {
    let spec = spec(vec![all(SumOf::Values)], Vec::new(), None);
    for (rows, kind) in [
        (&[(0, 0, &[(0, 1)][..]), (1, 1, &[])][..], Kind::Invalid),
        (&[(0, 0, &[(70_000, 1)][..])][..], Kind::Corrupt),
        (&[(0, 9, &[(0, 1)][..])][..], Kind::Corrupt),
    ] {
        let error = input(&spec, 70_001).update(&mut CellStore::default(), &columns(rows), &vec![0; rows.len()], None, 1).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn odd_specs_are_refused() {
    let weights = |text: &str| vec![CellSum { of: SumOf::Values, weights: Some(text.into()) }];
    let one = || vec![all(SumOf::Values)];
    let grouped = {
        let mut grouped = spec(one(), Vec::new(), None);
        grouped.of.groups = Groups::Obs { column: "c".into() };
        grouped
    };
    for odd in [
        spec(Vec::new(), Vec::new(), None),
        spec(vec![all(SumOf::Values); 300], Vec::new(), None),
        spec(one(), vec![0], None),
        spec(one(), vec![5, 4], None),
        spec(one(), vec![5], Some(Transform::CP10K)),
        grouped,
    ] {
        assert_eq!(CellSumsSpec::from_literal(&odd.to_literal().unwrap()).unwrap_err().kind(), Kind::Invalid, "{odd:?}");
    }
    for text in ["!", "AAAA", pack(&[1.0, f32::NAN]).unwrap().as_str()] {
        assert_eq!(spec(weights(text), Vec::new(), None).weights().unwrap_err().kind(), Kind::Invalid, "{text}");
    }
    assert_eq!(spec(weights(&pack(&[1.5]).unwrap()), Vec::new(), None).weights().unwrap(), [Some(vec![1.5])]);
}

#[test]
fn damaged_states_are_refused() {
    let spec = spec(vec![all(SumOf::Values)], vec![2], None);
    let (mut input, mut store) = (input(&spec, 3), CellStore::default());
    input.update(&mut store, &columns(&[(0, 0, &[(0, 1), (2, 500)])]), &[0], None, 1).unwrap();
    let good = states(&mut store, 1).value(0).to_vec();
    for damaged in [&good[..good.len() - 1], &[&good[..], &[0]].concat(), &[0, 0, 0, 1], &[0, 0, 3, 1, 3], &[0xff; 12]] {
        let error = CellStore::default().merge_states(&BinaryArray::from(vec![damaged]), &[0], 1).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{damaged:?}");
    }
    // States of another number of cells.
    let mut merged = CellStore::default();
    merged.merge_states(&BinaryArray::from(vec![&good[..]]), &[0], 1).unwrap();
    assert_eq!(merged.merge_states(&BinaryArray::from(vec![&[0u8, 0, 2, 1, 0, 1, 2, 0, 0][..]]), &[0], 1).unwrap_err().kind(), Kind::Corrupt);
}
