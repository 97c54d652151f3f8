//! Errors and panics of the libraries that read files, as errors that name the file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

use super::format::Batches;
use super::source::Failure;

/// Errors of a binary format: the bytes are not what was written, unless the system could not read them.
pub(super) fn corrupt(path: &Path, what: &str, failure: &Failure, e: impl std::error::Error + Send + Sync + 'static) -> Error {
    failure.or(path, Error::corrupt(format!("{} is truncated or no {what} file", path.display())).with_source(e))
}

/// Runs `parse` on the bytes of a file. Readers assert some properties of their input instead of returning errors; such
/// a panic becomes `Corrupt`.
pub(super) fn guarded<T>(path: &Path, parse: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(parse)).unwrap_or_else(|_| Err(gave_up(path)))
}

/// What a panic says is for those who wrote the library.
fn gave_up(path: &Path) -> Error {
    Error::corrupt(format!("{} is malformed, so that its reader gave up: fetch the file again", path.display()))
}

/// Ends `batches` at the first error. `wrong` makes the error from the number of rows before it, unless the system
/// caused it.
pub(super) fn named(
    path: PathBuf,
    failure: Failure,
    wrong: impl Fn(&Path, usize, ArrowError) -> Error + Send + 'static,
    mut batches: impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send + 'static,
) -> Batches {
    let mut rows = 0;
    let mut over = false;
    Box::new(std::iter::from_fn(move || {
        if over {
            return None;
        }
        let next = match catch_unwind(AssertUnwindSafe(|| batches.next())) {
            Ok(next) => next?,
            Err(_) => {
                over = true;
                return Some(Err(failure.or(&path, gave_up(&path))));
            }
        };
        Some(match next {
            Ok(batch) => {
                rows += batch.num_rows();
                Ok(batch)
            }
            Err(e) => {
                over = true;
                Err(failure.or(&path, wrong(&path, rows, e)))
            }
        })
    }))
}

/// Where in a file reading ended.
pub(super) fn follows(path: &Path, rows: usize) -> String {
    format!("{}: cannot read what follows row {rows}", path.display())
}

/// The error of a binary format for rows that can't be read.
pub(super) fn damaged(path: &Path, rows: usize, e: ArrowError) -> Error {
    match e {
        // One of ours that a reader passed on.
        ArrowError::ExternalError(e) if e.downcast_ref::<Error>().is_some() => {
            e.downcast_ref::<Error>().map_or_else(|| Error::corrupt(follows(path, rows)), Error::flattened)
        }
        e => Error::corrupt(follows(path, rows)).with_source(e),
    }
}
