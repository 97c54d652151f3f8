//! Specs of sums per cell and of clipped moments.

use pyo3::prelude::*;
use skytether_common::Error;
use skytether_expression::cell_sums::{CellSum, CellSumsSpec, SumOf};
use skytether_expression::clipped_moments::ClippedSpec;
use skytether_expression::spec::{Squares, pack};
use skytether_expression::{Groups, MomentsSpec, Transform};

use crate::buffers::Lent;
use crate::errors::OrRaise;

/// The literal argument of `cell_sums`. `sums` are `"values"` or `"nonzeros"`, each with a weight per gene (float32) or
/// None; `top` are numbers of the largest values; `totals` (float32, one per cell) replace those of the matrix.
#[pyfunction]
#[pyo3(signature = (dataset, matrix, sums, top, transform = None, totals = None))]
pub fn cell_sums_spec(
    dataset: &str,
    matrix: String,
    sums: Vec<(String, Option<Bound<'_, PyAny>>)>,
    top: Vec<u32>,
    transform: Option<&str>,
    totals: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let sums = sums
        .into_iter()
        .map(|(of, weights)| {
            let of = match of.as_str() {
                "values" => SumOf::Values,
                "nonzeros" => SumOf::Nonzeros,
                other => return Err(Error::invalid(format!("{other:?} can't be added up: use \"values\" or \"nonzeros\""))).or_raise(),
            };
            Ok(CellSum { of, weights: packed(weights, "weights")? })
        })
        .collect::<PyResult<Vec<_>>>()?;
    let of = MomentsSpec {
        dataset: dataset.parse().or_raise()?,
        matrix,
        groups: Groups::none(),
        transform: transform.map(Transform::parse).transpose().or_raise()?,
        squares: Squares::Float64,
        totals: packed(totals, "totals")?,
    };
    CellSumsSpec { of, sums, top }.to_literal().or_raise()
}

/// The literal argument of `clipped_moments`: the spec of moments `of`, and for each gene the clip (float64) of each
/// group and of the cells in none, in one dimension.
#[pyfunction]
pub fn clipped_spec(of: &str, clips: &Bound<'_, PyAny>) -> PyResult<String> {
    let of = MomentsSpec::from_literal(of).or_raise()?;
    ClippedSpec::new(of, Lent::<f64>::new(clips, "clips").or_raise()?.slice()).and_then(|spec| spec.to_literal()).or_raise()
}

/// Numbers for a spec.
pub(crate) fn packed(numbers: Option<Bound<'_, PyAny>>, what: &str) -> PyResult<Option<String>> {
    numbers.map(|numbers| pack(Lent::<f32>::new(&numbers, what)?.slice())).transpose().or_raise()
}
