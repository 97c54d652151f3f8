//! Matrix Market files, and the lists of genes and cells that come with them.

use std::path::PathBuf;

use pyo3::prelude::*;
use skytether_matrix::{MtxReader, tsv};

use crate::errors::OrRaise;

/// Rows, columns and entries of a Matrix Market file, from its header.
#[pyfunction]
pub fn mtx_shape(py: Python<'_>, path: PathBuf) -> PyResult<(u32, u32, u64)> {
    let header = py.detach(|| MtxReader::open(&path).map(|r| r.header())).or_raise()?;
    Ok((header.rows, header.cols, header.entries))
}

/// The ids, names and (or None) types of a genes.tsv or features.tsv.
#[pyfunction]
#[allow(clippy::type_complexity)]
pub fn read_features(py: Python<'_>, path: PathBuf) -> PyResult<(Vec<String>, Vec<String>, Option<Vec<String>>)> {
    let features = py.detach(|| tsv::read_features(&path)).or_raise()?;
    Ok((features.ids, features.names, features.types))
}

/// The first column of a barcodes.tsv.
#[pyfunction]
pub fn read_barcodes(py: Python<'_>, path: PathBuf) -> PyResult<Vec<String>> {
    py.detach(|| tsv::read_barcodes(&path)).or_raise()
}
