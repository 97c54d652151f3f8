//! Errors of the merge tree as ours.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fjall::LsmError;
use skytether_common::{Error, Kind, Result};

/// Runs a call of the merge tree in `dir`. Its errors become ours, and so do its panics, which damaged files can cause.
pub(super) fn guarded<T>(action: &str, dir: &Path, call: impl FnOnce() -> fjall::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(|error| translate(action, dir, error)),
        Err(panic) => {
            let why = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            Err(Error::corrupt(format!("cannot {action} the files in {}: {why}: restore the drive from its copies", dir.display())))
        }
    }
}

fn translate(action: &str, dir: &Path, error: fjall::Error) -> Error {
    use fjall::Error as E;
    let kind = match &error {
        E::Io(io) | E::Storage(LsmError::Io(io)) => of_io(io),
        E::InvalidVersion(_) | E::Storage(LsmError::InvalidVersion(_)) => Kind::Unsupported,
        E::Locked => Kind::Conflict,
        E::Poisoned => Kind::Unavailable,
        E::KeyspaceDeleted => Kind::Internal,
        // Checksums, tags, headers and trailers that don't fit.
        _ => Kind::Corrupt,
    };
    let advice = match kind {
        Kind::Corrupt => "restore the drive from its copies",
        Kind::Exhausted => "make room",
        Kind::Unsupported => "open it with a newer version",
        Kind::Conflict => "close it in the other process",
        _ => "see the cause, and open it again",
    };
    Error::new(kind, format!("cannot {action} the files in {}: {advice}", dir.display())).with_source(error)
}

fn of_io(error: &std::io::Error) -> Kind {
    match error.kind() {
        // The merge tree asks for what it has written.
        ErrorKind::NotFound => Kind::Corrupt,
        _ => Error::io("use", "", std::io::Error::from(error.kind())).kind(),
    }
}
