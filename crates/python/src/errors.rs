//! Errors as Python exceptions.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use skytether_common::Error;

/// The exception of `skytether.errors` for `error`'s kind, with its whole text and its detail.
pub(crate) fn to_py(error: &Error) -> PyErr {
    Python::attach(|py| {
        let detail = error.detail().and_then(|detail| serde_json::to_string(detail).ok());
        let made = py.import("skytether.errors").and_then(|m| m.call_method1("of_kind", (error.kind().as_str(), error.report(), detail)));
        match made {
            Ok(exception) => PyErr::from_value(exception),
            // Only while the interpreter shuts down.
            Err(_) => PyRuntimeError::new_err(error.report()),
        }
    })
}

/// Passes Skytether's errors on as exceptions.
pub(crate) trait OrRaise<T> {
    /// # Errors
    /// The exception for the error.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for skytether_common::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|e| to_py(&e))
    }
}
