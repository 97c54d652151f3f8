//! The parts of a `pyarrow` expression, from its pickled form.

use arrow::ipc::reader::read_footer_length;
use arrow::ipc::root_as_footer;
use pyo3::prelude::*;
use skytether_common::{Error, Result};

use crate::errors::OrRaise;

/// The steps of a serialised expression, in order: kinds (`call`, `field_ref`, `literal`, `options`, `end`, ...) and
/// their arguments.
///
/// They are the metadata of an Arrow IPC file's schema (`arrow::compute::Serialize`). Keys repeat there, and Arrow's
/// readers keep only one value of a key; hence this reader.
#[pyfunction]
pub(crate) fn expression_steps(file: &[u8]) -> PyResult<Vec<(String, String)>> {
    steps(file).or_raise()
}

fn steps(file: &[u8]) -> Result<Vec<(String, String)>> {
    let wrong = || Error::unsupported("the expression is not serialised as Arrow's other versions do it");
    let end = file.len().checked_sub(10).ok_or_else(wrong)?;
    let trailer = <[u8; 10]>::try_from(&file[end..]).map_err(|e| wrong().with_source(e))?;
    let length = read_footer_length(trailer).map_err(|e| wrong().with_source(e))?;
    let footer = end.checked_sub(length).and_then(|from| file.get(from..end)).ok_or_else(wrong)?;
    let footer = root_as_footer(footer).map_err(|e| wrong().with_source(e.to_string()))?;
    let metadata = footer.schema().and_then(|s| s.custom_metadata()).ok_or_else(wrong)?;
    Ok(metadata.iter().map(|step| (step.key().unwrap_or_default().to_owned(), step.value().unwrap_or_default().to_owned())).collect())
}
