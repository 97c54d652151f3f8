//! Limits of a file's footer, checked before the library reads it; see [`parquet_footer`].

use std::path::Path;

use parquet::file::reader::{ChunkReader, Length};
use skytether_common::parquet_footer::{self, MAX_BYTES, MAX_LEVELS, Wrong};
use skytether_common::{Error, Result};

use super::source::{FileSource, failed};

/// Checks the footer of the file at `path`. What is no Parquet file at all is left to the library, which says so.
///
/// # Errors
/// `Corrupt` for a footer that is none; `Unsupported` for one that is too long or too deep.
pub(super) fn check(path: &Path, source: &FileSource) -> Result<()> {
    let len = source.len();
    // Where the system can't read it, the library meets the same error, which the source remembers.
    let Some(Ok(tail)) = len.checked_sub(8).map(|start| source.get_bytes(start, 8)) else { return Ok(()) };
    let Some(range) = parquet_footer::range(len, &tail) else { return Ok(()) };
    let size = range.end - range.start;
    if size > MAX_BYTES {
        return Err(Error::unsupported(format!(
            "{}: its footer takes {} MiB, and at most {} are read: write it with fewer row groups",
            path.display(),
            size >> 20,
            MAX_BYTES >> 20
        )));
    }
    let footer = source.get_bytes(range.start, size as usize).map_err(|e| failed("read", path, std::io::Error::other(e)))?;
    match parquet_footer::check(&footer) {
        Ok(()) => Ok(()),
        Err(Wrong::Broken) => Err(Error::corrupt(format!("{} is truncated or no Parquet file: its footer can't be read", path.display()))),
        Err(Wrong::Deep) => Err(Error::unsupported(format!("{}: its columns are nested deeper than {MAX_LEVELS} groups: flatten them first", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_footer_of_the_library_is_taken() {
        use parquet::arrow::ArrowWriter;
        use std::sync::Arc;
        let columns = [("v", Arc::new(arrow::array::Int64Array::from_iter_values(0..1000)) as arrow::array::ArrayRef)];
        let batch = arrow::record_batch::RecordBatch::try_from_iter(columns).unwrap();
        let mut whole = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut whole, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let size = u32::from_le_bytes(whole[whole.len() - 8..whole.len() - 4].try_into().unwrap()) as usize;
        assert_eq!(parquet_footer::check(&whole[whole.len() - 8 - size..whole.len() - 8]), Ok(()));
    }
}
