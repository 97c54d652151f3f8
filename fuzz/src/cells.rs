//! Targets for sums per cell and clipped moments: their states and their literals.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BinaryArray};
use arrow::datatypes::Float64Type;
use skytether_expression::cell_sums::{CellStore, CellSumsSpec};
use skytether_expression::clipped_moments::ClippedSpec;
use skytether_expression::spec::{pack, pack_doubles};
use skytether_expression::store::EmitTo;

pub(crate) fn sums() -> Vec<Vec<u8>> {
    vec![
        // Block 0, three cells: sums of each width, no largest values.
        [&[0, 0, 3, 3, 0, 2, 1, 0, 0, 0, 9, 0, 4, 1, 0, 1, 0, 0, 0, 0, 0, 9, 0, 0, 0][..], &[0]].concat(),
        // Two cells, no sum, the two largest: the second cell has 500 once and 3 twice, the first nothing.
        vec![0, 0, 2, 0, 1, 2, 2, 0xf4, 3, 1, 3, 2, 0],
        [&[2, 9, 1, 1, 8][..], &1.5f64.to_le_bytes(), &[0]].concat(),
    ]
}

/// The state of sums per cell, twice: an error, or twice the numbers.
pub(crate) fn sums_merge(data: &[u8]) -> bool {
    let (mut once, mut twice) = (CellStore::default(), CellStore::default());
    let states = BinaryArray::from(vec![data, data]);
    if once.merge_states(&states, &[0], 1).is_err() || twice.merge_states(&states, &[0, 0], 1).is_err() {
        return false;
    }
    let (Ok(once), Ok(twice)) = (once.finish(EmitTo::All, 1), twice.finish(EmitTo::All, 1)) else { return false };
    let of = |list: &dyn Array| list.as_list::<i32>().values().len();
    assert_eq!(of(once.as_ref()), of(twice.as_ref()));
    assert!(Arc::clone(&once).as_list::<i32>().values().as_primitive::<Float64Type>().iter().all(|n| n.is_some()));
    true
}

pub(crate) fn specs() -> Vec<Vec<u8>> {
    let of = r#"{"dataset":"lab.t","matrix":"x","groups":{"names":[],"codes":""},"transform":null}"#;
    let by = r#"{"dataset":"lab.t","matrix":"x","groups":{"obs":"c"},"transform":{"target":2000,"log":2.0}}"#;
    let (weights, clips) = (pack(&[0.0, 1.0]).unwrap_or_default(), pack_doubles(&[2.5, 1e9]).unwrap_or_default());
    vec![
        format!(r#"{{"of":{of},"sums":[{{"of":"values"}},{{"of":"nonzeros","weights":"{weights}"}}],"top":[50,100]}}"#).into_bytes(),
        format!(r#"{{"of":{by},"clips":"{clips}"}}"#).into_bytes(),
    ]
}

/// Any text as the spec of sums per cell or of clipped moments: an error, or a spec whose own text reads back as the
/// same, with numbers that are in bounds or refused.
pub(crate) fn spec_read(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    if let Ok(spec) = CellSumsSpec::from_literal(text) {
        let again = spec.to_literal().and_then(|text| CellSumsSpec::from_literal(&text));
        assert!(again.is_ok_and(|again| again == spec), "{spec:?}");
        return spec.weights().is_ok();
    }
    let Ok(spec) = ClippedSpec::from_literal(text) else { return false };
    let again = spec.to_literal().and_then(|text| ClippedSpec::from_literal(&text));
    assert!(again.is_ok_and(|again| again == spec), "{spec:?}");
    spec.clips().is_ok()
}
