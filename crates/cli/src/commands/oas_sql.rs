//! `skytether oas sql`: queries over files, in the block storage below them.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use oas::{Input, Session};
use skytether_common::{Error, Result};
use skytether_file_sql::FileTable;
use skytether_host::QueryOptions;

use crate::commands::oas_target::TargetArgs;
use crate::commands::sql::print;
use crate::common_args::Format;
use crate::context::Failure;

/// With what queries begin.
const BEGINS: [&str; 6] = ["select", "with", "values", "table", "from", "("];

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  skytether oas sql \"SELECT count(*) FROM files\" /mnt/disk/a.csv --target iscsi://HOST/IQN/LUN
  skytether oas sql \"SELECT vendor, avg(fare) FROM files GROUP BY vendor\" /mnt/disk/2024-*.parquet --format csv")]
pub(crate) struct Sql {
    /// One query, and the files: CSV with names in its first line, JSON lines, or Parquet.
    #[arg(value_names = ["QUERY", "FILE"], required = true, num_args = 2..)]
    words: Vec<PathBuf>,
    /// The format of the files (default: by their names, which end in .csv, .json, .jsonl, .ndjson or .parquet).
    #[arg(long, value_enum, value_name = "FORMAT")]
    input: Option<FileFormat>,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Say on stderr what ran where and how much moved.
    #[arg(long)]
    receipt: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// A format of files.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum FileFormat {
    Csv,
    Json,
    Parquet,
}

impl From<FileFormat> for oas::Format {
    fn from(format: FileFormat) -> Self {
        match format {
            FileFormat::Csv => Self::Csv,
            FileFormat::Json => Self::Json,
            FileFormat::Parquet => Self::Parquet,
        }
    }
}

/// Whether an argument is a query, and not the name of a file.
fn is_query(word: &std::path::Path) -> bool {
    let text = word.to_string_lossy().trim_start().to_lowercase();
    let begins = |with: &str| text.strip_prefix(with).is_some_and(|rest| with == "(" || rest.starts_with(|c: char| c.is_whitespace() || c == '('));
    BEGINS.into_iter().any(begins) && !word.exists()
}

/// The query, which is the first argument or the last one, and the files.
fn split(mut words: Vec<PathBuf>) -> Result<(String, Vec<PathBuf>), Failure> {
    let at = [0, words.len().saturating_sub(1)].into_iter().find(|at| words.get(*at).is_some_and(|word| is_query(word)));
    let at = at.ok_or_else(|| Failure::Call(Error::invalid("there is no query: write skytether oas sql \"SELECT ... FROM files\" FILE...")))?;
    let query = words.remove(at).into_os_string().into_string();
    let query = query.map_err(|_| Failure::Call(Error::invalid("the query is no text in UTF-8")))?;
    Ok((query, words))
}

/// Runs the query and prints its result.
pub(crate) async fn run(args: Sql) -> Result<(), Failure> {
    let (query, files) = split(args.words)?;
    let target = args.target;
    // The library blocks.
    let opening = tokio::task::spawn_blocking(move || -> Result<(Arc<Session>, Vec<Input>)> {
        let inputs = files.iter().map(Input::open).collect::<Result<Vec<_>>>()?;
        let first = files.first().map(PathBuf::as_path).unwrap_or(std::path::Path::new(""));
        Ok((Arc::new(target.session(first)?), inputs))
    });
    let (session, inputs) = opening.await.map_err(|e| Error::internal("the work was interrupted").with_source(e))??;
    let table = FileTable::open(session, inputs, args.input.map(Into::into)).await?;
    let done = match table.sql(&query, &QueryOptions::default()).await {
        Ok(query) => print(query, args.format, args.receipt).await,
        Err(error) => Err(error),
    };
    let ran = table.ran();
    if let Some(why) = &ran.why {
        eprintln!("done here ({} of {} parts): {why}", ran.here, ran.here + ran.there);
    }
    done?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_come_before_or_after_the_files() {
        for words in [["SELECT 1 FROM files", "a.csv", "b"], ["a.csv", "b", "  with x as (select 1) select 2"]] {
            let (query, files) = split(words.iter().map(PathBuf::from).collect()).ok().unwrap();
            assert!(query.contains("1") && files == ["a.csv", "b"].map(PathBuf::from), "{query} {files:?}");
        }
        for words in [vec!["a.csv", "b.csv"], vec!["selection.csv", "with"], vec!["a", "select 1", "b"]] {
            assert!(matches!(split(words.iter().map(PathBuf::from).collect()), Err(Failure::Call(_))), "{words:?}");
        }
    }
}
