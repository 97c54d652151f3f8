//! Table files: Parquet, Arrow IPC and Feather, CSV and TSV, JSON lines. The name's ending says which.

mod readers;

use std::path::{Path, PathBuf};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

/// Rows per batch that files are read in.
pub const BATCH_ROWS: usize = 8192;

/// A table that is read batch by batch.
pub struct TableFile {
    /// The columns of every batch.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Box<dyn Iterator<Item = Result<RecordBatch>> + Send>,
    /// How many rows there are, where the file says so.
    pub rows: Option<u64>,
    /// The files' size in bytes.
    pub bytes: u64,
}

impl std::fmt::Debug for TableFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableFile").field("schema", &self.schema).field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// A file's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC as a file or a stream, which is also Feather.
    Arrow,
    /// Values separated by this byte; the first line names the columns.
    Separated(u8),
    /// One JSON object per line.
    JsonLines,
}

impl Format {
    /// The format that the name of `path` ends in.
    ///
    /// # Errors
    /// `Unsupported`, with the endings that are known.
    pub fn of(path: &Path) -> Result<Self> {
        let ending = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
        match ending.as_str() {
            "parquet" | "pq" => Ok(Format::Parquet),
            "arrow" | "ipc" | "feather" | "arrows" => Ok(Format::Arrow),
            "csv" => Ok(Format::Separated(b',')),
            "tsv" | "tab" => Ok(Format::Separated(b'\t')),
            "jsonl" | "ndjson" | "json" => Ok(Format::JsonLines),
            _ => Err(Error::unsupported(format!(
                "{}: the ending {ending:?} is not known; use .parquet, .arrow, .feather, .csv, .tsv, .jsonl or .ndjson",
                path.display()
            ))),
        }
    }
}

/// Opens some files of the same columns as one table; they are read one after the other, in the order given.
///
/// # Errors
/// `NotFound`, `Unsupported` for an unknown ending, `Corrupt` or `Invalid` for content of another kind, `Invalid` for files with other
/// columns than the first; all name the file.
pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<TableFile> {
    let mut paths = paths.iter().map(|p| p.as_ref().to_path_buf());
    let Some(first) = paths.next() else { return Err(Error::invalid("no file to read")) };
    let mut all = open_one(&first)?;
    for path in paths {
        let next = open_one(&path)?;
        let same = next.schema.fields().len() == all.schema.fields().len()
            && next.schema.fields().iter().zip(all.schema.fields()).all(|(a, b)| a.name() == b.name() && a.data_type() == b.data_type());
        if !same {
            return Err(Error::invalid(format!("{} has other columns than {}: {}", path.display(), first.display(), difference(&all.schema, &next.schema))));
        }
        all.rows = all.rows.zip(next.rows).map(|(a, b)| a + b);
        all.bytes += next.bytes;
        all.batches = Box::new(all.batches.chain(next.batches));
    }
    Ok(all)
}

fn difference(first: &SchemaRef, other: &SchemaRef) -> String {
    for (a, b) in first.fields().iter().zip(other.fields()) {
        if a.name() != b.name() || a.data_type() != b.data_type() {
            return format!("{:?} ({}) instead of {:?} ({})", b.name(), b.data_type(), a.name(), a.data_type());
        }
    }
    format!("{} columns instead of {}", other.fields().len(), first.fields().len())
}

fn open_one(path: &Path) -> Result<TableFile> {
    let path: PathBuf = path.to_path_buf();
    let bytes = std::fs::metadata(&path).map_err(|e| Error::io("open", &path, e))?.len();
    let mut table = match Format::of(&path)? {
        Format::Parquet => readers::parquet(path)?,
        Format::Arrow => readers::arrow(path)?,
        Format::Separated(by) => readers::separated(path, by)?,
        Format::JsonLines => readers::json_lines(path)?,
    };
    table.bytes = bytes;
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    fn rows(table: TableFile) -> Result<usize> {
        table.batches.map(|b| b.map(|b| b.num_rows())).sum()
    }

    #[test]
    fn csv_has_types_and_says_which_line_is_wrong() {
        let (_d, path) = write("a.csv", b"name,n,x\nb,1,0.5\nc,2,\n");
        let table = open(&[&path]).unwrap();
        let types: Vec<_> = table.schema.fields().iter().map(|f| f.data_type().to_string()).collect();
        assert_eq!(types, ["Utf8", "Int64", "Float64"]);
        assert_eq!(rows(table).unwrap(), 2);
        let (_d, path) = write("b.csv", b"name,n\nb,1\nc,2,3\n");
        let error = open(&[&path]).and_then(rows).unwrap_err();
        assert!(error.to_string().contains("b.csv") && error.to_string().contains('3'), "{error}");
    }

    #[test]
    fn json_lines_are_read_and_wrong_ones_named() {
        let (_d, path) = write("a.jsonl", b"{\"a\": 1, \"b\": \"x\"}\n{\"a\": 2}\n");
        assert_eq!(rows(open(&[&path]).unwrap()).unwrap(), 2);
        let (_d, path) = write("b.jsonl", b"{\"a\": 1}\n{\"a\": \n");
        let error = open(&[&path]).and_then(rows).unwrap_err();
        assert!(error.to_string().contains("b.jsonl"), "{error}");
    }

    #[test]
    fn truncated_and_foreign_files_are_errors_that_name_the_file() {
        for name in ["a.parquet", "a.arrow", "a.feather"] {
            for bytes in [&b""[..], b"PAR1", b"ARROW1", b"something else altogether, and not short either"] {
                let (_d, path) = write(name, bytes);
                let error = open(&[&path]).and_then(rows).unwrap_err();
                assert!(error.to_string().contains(name), "{name} {bytes:?}: {error}");
            }
        }
    }

    #[test]
    fn an_unknown_ending_is_told_with_the_known_ones() {
        let (_d, path) = write("a.xlsx", b"");
        assert!(open(&[&path]).unwrap_err().to_string().contains(".parquet"));
    }
}
