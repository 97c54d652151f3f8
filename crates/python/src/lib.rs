//! The Python module `skytether._internal`: the Rust side of `python/skytether` and `python/msgexpress`.
//!
//! It holds no logic: it converts arguments, releases Python's lock while Rust works, lets Ctrl-C interrupt, and raises
//! the exceptions of `skytether.errors`. `python/skytether/_internal.pyi` describes its functions.
//!
//! | module | subject |
//! |---|---|
//! | [`errors`] | error kinds to exceptions |
//! | [`runtime`] | the process's threads, and waiting on them interruptibly |
//! | [`fleet`] | opening, listing, ingesting tables |
//! | `slot` | where a Python fleet and its results find the fleet, until it is closed |
//! | [`result`] | a query's rows and receipt |
//! | [`plain`] | tables as plain Parquet files |
//! | [`writer`] | writing an expression data set, table by table and matrix by matrix |
//! | [`buffers`] | numpy arrays as Rust slices |
//! | [`files`] | Matrix Market files and the lists that come with them |
//! | [`expression`] | the parts of a pyarrow expression |
//! | `ceph` | files in CephFS and RADOS |
//! | `programs`, `oas` | programs in drives; computing in the storage below files |
//! | [`specs`] | specs of sums per cell and of clipped moments |
//! | [`rank`] | specs of grouped moments, and genes ranked from them |
//!
//! See also `docs/biologists.md` and `docs/arrow.md`, which show the packages from outside.

// pyo3's functions are public for Python, not for Rust.
#![allow(unreachable_pub)]

mod buffers;
mod ceph;
mod errors;
mod expression;
mod files;
mod fleet;
mod incoming;
mod oas;
mod plain;
mod products;
mod programs;
mod rank;
mod result;
mod runtime;
mod slot;
mod specs;
mod writer;

use pyo3::prelude::*;

/// Whether `text` is the address of a host, and not a directory or the address of a fleet's stores.
#[pyfunction]
fn is_host(text: &str) -> bool {
    skytether::address::is_host(text) && !skytether_cli::is_store(text)
}

/// Whether `text` is the address of a fleet's stores, such as `rados://...`.
#[pyfunction]
fn is_store(text: &str) -> bool {
    skytether_cli::is_store(text)
}

/// Runs the `skytether` command with `arguments` (the first is the program's name) and returns its exit status.
#[pyfunction]
fn cli_main(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| skytether_cli::main_with(arguments))
}

#[pymodule]
fn _internal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    skytether_common::memory::tune_allocator();
    // The importing program has a log of its own. Ours is written only if the variable asks for it.
    if std::env::var_os("SKYTETHER_LOG").is_some() {
        skytether_cli::log_to_stderr();
    }
    module.add("DATAFUSION_VERSION", datafusion::DATAFUSION_VERSION)?;
    module.add_class::<fleet::PyFleet>()?;
    module.add_class::<result::PyResultSet>()?;
    module.add_class::<plain::PyPlainFile>()?;
    module.add_class::<writer::PyWriter>()?;
    module.add_class::<writer::PyMatrixWriter>()?;
    module.add_class::<products::PyProducts>()?;
    module.add_class::<programs::PyProgramLibrary>()?;
    module.add_class::<programs::PyWatch>()?;
    module.add_class::<oas::PyOas>()?;
    module.add_class::<ceph::PyCephFiles>()?;
    module.add_class::<ceph::PyCephFile>()?;
    module.add_class::<ceph::PyScan>()?;
    module.add_function(wrap_pyfunction!(ceph::common_type, module)?)?;
    module.add_function(wrap_pyfunction!(cli_main, module)?)?;
    module.add_function(wrap_pyfunction!(is_host, module)?)?;
    module.add_function(wrap_pyfunction!(is_store, module)?)?;
    module.add_function(wrap_pyfunction!(fleet::calibrate, module)?)?;
    module.add_function(wrap_pyfunction!(plain::generate_particles, module)?)?;
    module.add_function(wrap_pyfunction!(files::mtx_shape, module)?)?;
    module.add_function(wrap_pyfunction!(files::read_features, module)?)?;
    module.add_function(wrap_pyfunction!(files::read_barcodes, module)?)?;
    module.add_function(wrap_pyfunction!(expression::expression_steps, module)?)?;
    module.add_function(wrap_pyfunction!(rank::moments_spec, module)?)?;
    module.add_function(wrap_pyfunction!(rank::rank_sums_spec, module)?)?;
    module.add_function(wrap_pyfunction!(rank::rank_genes, module)?)?;
    module.add_function(wrap_pyfunction!(specs::cell_sums_spec, module)?)?;
    module.add_function(wrap_pyfunction!(specs::clipped_spec, module)?)?;
    Ok(())
}
