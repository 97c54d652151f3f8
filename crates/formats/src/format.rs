//! The formats of table files, and the batches that readers give.

use std::path::Path;

use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

/// Rows per batch that files are read in.
pub const BATCH_ROWS: usize = 8192;

/// Rows as they are read.
pub(super) type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// Limit of columns of a text file: a file of another kind easily seems to have millions.
const MAX_TEXT_COLUMNS: usize = 100_000;

/// # Errors
/// `Invalid` for a text file with no columns, or far too many.
pub(super) fn check_columns(path: &Path, schema: &Schema) -> Result<()> {
    match schema.fields().len() {
        0 => Err(Error::invalid(format!("{} has no columns", path.display()))),
        n if n > MAX_TEXT_COLUMNS => Err(Error::invalid(format!("{} seems to have {n} columns: is it a file of another kind?", path.display()))),
        _ => Ok(()),
    }
}

/// A file's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC as a file or a stream, which is also Feather.
    Arrow,
    /// Values separated by this byte.
    Separated(u8),
    /// JSON objects, one a line or elements of one array.
    JsonLines,
    /// Raw records of VPIC particles ([`skytether_vpic::vpic`]).
    Vpic,
}

impl std::str::FromStr for Format {
    type Err = Error;

    /// A format by its name, as in `--input-format`.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "parquet" => Ok(Format::Parquet),
            "arrow" => Ok(Format::Arrow),
            "csv" => Ok(Format::Separated(b',')),
            "tsv" => Ok(Format::Separated(b'\t')),
            "jsonl" => Ok(Format::JsonLines),
            "vpic" => Ok(Format::Vpic),
            _ => Err(Error::invalid(format!("there is no format {text:?} of table files: use {}", Format::NAMES.join(", ")))),
        }
    }
}

impl Format {
    /// The names of the formats.
    pub const NAMES: [&str; 6] = ["parquet", "arrow", "csv", "tsv", "jsonl", "vpic"];

    /// The format for the ending of `path`.
    ///
    /// # Errors
    /// `Unsupported`, with the known endings.
    pub fn of(path: &Path) -> Result<Self> {
        let ending_of = |path: &Path| path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
        let ending = ending_of(path);
        let within = if matches!(ending.as_str(), "gz" | "zst") { ending_of(&path.with_extension("")) } else { String::new() };
        match if within.is_empty() { ending.as_str() } else { within.as_str() } {
            "parquet" | "pq" | "arrow" | "ipc" | "feather" | "arrows" | "vpic" if !within.is_empty() => {
                Err(Error::unsupported(format!("{}: a {within} file is compressed within, not as a whole: unpack it first", path.display())))
            }
            "parquet" | "pq" => Ok(Format::Parquet),
            "arrow" | "ipc" | "feather" | "arrows" => Ok(Format::Arrow),
            "vpic" => Ok(Format::Vpic),
            "csv" => Ok(Format::Separated(b',')),
            "tsv" | "tab" => Ok(Format::Separated(b'\t')),
            "jsonl" | "ndjson" | "json" => Ok(Format::JsonLines),
            "h5ad" | "h5" | "mtx" | "mtx_rows" | "mtx_cols" => Err(Error::unsupported(format!(
                "{} is an expression matrix by its name, and no table: store it with `msgx ingest` (in Python with msgexpress)",
                path.display()
            ))),
            _ => Err(Error::unsupported(format!(
                "{}: the ending {ending:?} is not known; use .parquet, .arrow, .feather, .vpic, .csv, .tsv, .jsonl or .ndjson, the last four also with .gz or .zst, or say the format (format=, in the shell --input-format)",
                path.display()
            ))),
        }
    }
}
