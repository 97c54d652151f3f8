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
    /// The files, directories of files, or patterns of files ("trips-*.parquet"), all with the same columns; the ending
    /// says the format (.parquet, .arrow, .feather, .ipc, .vpic, .csv, .tsv, .jsonl, .ndjson; the last four also with
    /// .gz or .zst).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The data set's name.
    #[arg(long, value_name = "DOMAIN.DATASET")]
    to: String,
    /// The format of all files, whatever their names end in.
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(files::Format::NAMES).try_map(|word| word.parse::<files::Format>()))]
    input_format: Option<files::Format>,
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

/// Stores the files; `stop` has it end early.
pub(crate) async fn run(args: Ingest, stop: &Arc<Stop>) -> Result<(), Failure> {
    let to = name(&args.to)?;
    let fleet = fleet(&args.fleet).await?;
    let table = files::open_as(&files::find(&args.files)?, args.input_format)?;
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
