//! Turns panics of third-party parsers into errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::file::reader::ChunkReader;
use skytether_common::parquet_footer::{self, MAX_LEVELS, Wrong};
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

/// Checks the footer of a slice before the Parquet reader reads it: clients store slices, and a stack that overflows
/// ends the process. What is no Parquet file is left to the reader, which says so.
pub(crate) fn check_footer(what: &str, stored: &impl ChunkReader) -> Result<()> {
    let len = stored.len();
    let Some(Ok(tail)) = len.checked_sub(8).map(|start| stored.get_bytes(start, 8)) else { return Ok(()) };
    let Some(range) = parquet_footer::range(len, &tail) else { return Ok(()) };
    let footer = stored.get_bytes(range.start, (range.end - range.start) as usize).map_err(corrupt(what))?;
    parquet_footer::check(&footer).map_err(|wrong| match wrong {
        Wrong::Broken => Error::corrupt(format!("{what} can't be read")),
        Wrong::Deep => Error::corrupt(format!("{what} has a schema deeper than {MAX_LEVELS} groups")),
    })
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

    /// A file that is only a footer: 6,000 groups around nothing.
    #[test]
    fn deep_schemas_are_refused_before_the_reader_sees_them() {
        let mut footer = vec![0x15, 2, 0x19, 0xfc, 0xf0, 0x2e];
        (0..6000).for_each(|_| footer.extend([0x48, 1, b'g', 0x15, 2, 0]));
        footer.push(0);
        let size = footer.len() as u32;
        let bytes = bytes::Bytes::from([b"PAR1", &footer[..], &size.to_le_bytes(), b"PAR1"].concat());
        let error = check_footer("a slice's footer", &bytes).unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.to_string().contains("deeper than 128"), "{error}");
        assert!(check_footer("a slice's footer", &bytes.slice(..20)).is_ok());
    }
}
