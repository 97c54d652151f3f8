//! `skytether ingest`: files as one table.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use skytether::{IngestOptions, files};
use skytether_common::units::{counted, human_bytes, human_seconds};
use skytether_host::Scheme;

use crate::common_args::{FleetArg, scheme};
use crate::context::{Failure, fleet, name, print_line};
use crate::progress::Rows;
use crate::shutdown::{NOTHING_STORED, Stop};

#[derive(Debug, Args)]
pub(crate) struct Ingest {
    /// The files, directories of files, or patterns of files ("trips-*.parquet"); the ending says the format (.parquet,
    /// .arrow, .feather, .ipc, .vpic, .csv, .tsv, .json, .jsonl, .ndjson; the last five also with .gz or .zst).
    /// Directories called KEY=VALUE become columns.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The data set's name.
    #[arg(long, value_name = "DOMAIN.DATASET")]
    to: String,
    /// The format of all files, whatever their names end in.
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(files::Format::NAMES).try_map(|word| word.parse::<files::Format>()))]
    input_format: Option<files::Format>,
    #[command(flatten)]
    reading: Reading,
    /// Replace the data set if there is one; readers see the old or the new one, never a mixture.
    #[arg(long)]
    replace: bool,
    /// Columns whose values determine the drive of a row, so that equal values are together: joins, windows and
    /// aggregates by these columns run whole on the drives.
    #[arg(long, value_name = "COLUMN,COLUMN,...", value_delimiter = ',')]
    partition_by: Vec<String>,
    /// The redundancy of the data set, instead of the fleet's: `none`, `replicas:R`, `ec:K+M`, or, in a fleet with
    /// nodes, `ec:K+M/k+m`.
    #[arg(long, value_name = "SCHEME", value_parser = scheme)]
    redundancy: Option<Scheme>,
    #[command(flatten)]
    fleet: FleetArg,
}

/// What is said about the files.
#[derive(Debug, Args)]
struct Reading {
    /// `strict`: all files have the same columns. `union`: the columns of all files by name, where types are widened
    /// and what a file lacks is null.
    #[arg(long, value_name = "MODE", default_value = "strict", value_parser = PossibleValuesParser::new(files::SchemaMode::NAMES).try_map(|word| word.parse::<files::SchemaMode>()))]
    schema: files::SchemaMode,
    /// Directories called KEY=VALUE give no columns.
    #[arg(long)]
    no_hive: bool,
    /// What separates the values of CSV and TSV files: one character, or `tab`.
    #[arg(long, value_name = "CHARACTER")]
    delimiter: Option<String>,
    /// The first line of CSV and TSV files holds values, and no names: the columns are column_1 and so on.
    #[arg(long)]
    no_header: bool,
    /// What encloses values of CSV and TSV files with separators in them: one character, or "" for nothing.
    #[arg(long, value_name = "CHARACTER", default_value = "\"")]
    quote: String,
    /// A text of CSV and TSV files that means no value, besides the empty one; may be given several times.
    #[arg(long, value_name = "TEXT")]
    null: Vec<String>,
    /// Types of columns of CSV and TSV files, instead of inferred ones: text, int8 to int64, uint8 to uint64, float32,
    /// float64, decimal(P,S), bool, date, time, timestamp; may be given several times.
    #[arg(long, value_name = "COLUMN=TYPE", value_parser = column_type)]
    types: Vec<(String, files::TextType)>,
    /// All other columns of CSV and TSV files are text.
    #[arg(long)]
    all_text: bool,
}

fn column_type(text: &str) -> Result<(String, files::TextType), String> {
    let (name, of) = text.rsplit_once('=').ok_or("write COLUMN=TYPE")?;
    of.parse().map(|of| (name.to_owned(), of)).map_err(|e: skytether_common::Error| e.to_string())
}

impl Reading {
    fn options(&self, format: Option<files::Format>) -> skytether_common::Result<files::ReadOptions> {
        let mut text = files::TextOptions {
            header: !self.no_header,
            null: self.null.clone(),
            types: self.types.clone(),
            all_text: self.all_text,
            ..files::TextOptions::default()
        };
        if let Some(delimiter) = &self.delimiter {
            text.set_delimiter(delimiter)?;
        }
        text.set_quote(&self.quote)?;
        Ok(files::ReadOptions { format, schema: self.schema, hive: !self.no_hive, text })
    }
}

/// Stores the files; `stop` has it end early.
pub(crate) async fn run(args: Ingest, stop: &Arc<Stop>) -> Result<(), Failure> {
    let to = name(&args.to)?;
    let fleet = fleet(&args.fleet).await?;
    let table = files::open_with(&files::find(&args.files)?, &args.reading.options(args.input_format)?)?;
    if let Some(hint) = &table.hint {
        eprintln!("skytether: {hint}");
    }
    let progress = Rows::new(&format!("writing {to}"), table.rows);
    let count = progress.counter();
    stop.begin_writing();
    let asked = Arc::clone(stop);
    let batches = table.batches.map(move |batch| asked.go_on(batch).inspect(|batch| count(batch.num_rows())));
    let options = IngestOptions { replace: args.replace, partition_by: args.partition_by, redundancy: args.redundancy };
    let done = fleet.ingest_table(&to, table.schema, batches, options).await;
    progress.finish();
    if done.is_err() && stop.was_told() {
        return Err(Failure::Stopped(NOTHING_STORED));
    }
    let report = done?;
    print_line(&format!(
        "{to}: {} in {}, {} stored, {}",
        counted(report.rows, "row"),
        counted(report.slices, "slice"),
        human_bytes(report.bytes_stored),
        human_seconds(report.seconds)
    ))?;
    Ok(())
}
