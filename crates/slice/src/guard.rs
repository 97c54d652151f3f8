//! Turns panics of third-party parsers into errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use skytether_common::{Error, Result};

/// Runs `parse` on untrusted bytes. The Parquet and Arrow IPC readers assert some properties of their input instead of
/// returning errors (a negative page offset, for example); such a panic is turned into `Corrupt`.
pub(crate) fn guarded<T>(what: &str, parse: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(parse)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(Error::corrupt(format!("{what} is malformed: {}", text.unwrap_or_else(|| "its reader gave up".into()))))
        }
    }
}

/// `Corrupt`, with the Parquet reader's error as its cause.
pub(crate) fn corrupt(what: &str) -> impl Fn(parquet::errors::ParquetError) -> Error {
    move |cause| Error::corrupt(format!("cannot read {what}")).with_source(cause)
}

/// `Corrupt`, with Arrow's error as its cause.
pub(crate) fn corrupt_arrow(what: &str) -> impl Fn(arrow::error::ArrowError) -> Error {
    move |cause| Error::corrupt(format!("cannot read {what}")).with_source(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_common::Kind;

    #[test]
    fn a_panicking_parser_is_a_corrupt_input() {
        let error = guarded::<()>("slice", || panic!("offset {} is negative", -1)).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("offset -1 is negative"), "{error}");
    }
}
