//! `skytether export`: a table as one Parquet file.

use std::path::{Path, PathBuf};

use clap::Args;
use skytether_common::Error;
use skytether_common::units::{counted, human_bytes, human_seconds};

use crate::common_args::{FleetArg, ListFormat};
use crate::context::{Failure, fleet, name, print_line};
use crate::progress::Bytes;

#[derive(Debug, Args)]
#[command(
    after_help = "The file is the stored slices one after the other, byte for byte, behind one footer: nothing is decoded or encoded, and any program that reads Parquet reads it. Row groups are the stripes that were stored, with bounds of their columns.\n\n\
Examples:\n  skytether export taxi.trips --out trips.parquet --fleet fleet\n  skytether export blood.pbmc3k.obs --out cells.parquet --fleet grpc://127.0.0.1:5300"
)]
pub(crate) struct Export {
    /// The table: a data set, or of an expression data set one of its tables (`d.s.obs`, `d.s.var`, `d.s.x_rows`).
    #[arg(value_name = "DOMAIN.DATASET[.TABLE]")]
    table: String,
    /// The file; it is there whole or not at all.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Replace the file if there is one.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    fleet: FleetArg,
    /// How to say what was done.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

/// Carries it out.
pub(crate) async fn run(args: Export) -> Result<(), Failure> {
    // A name that can't be one is a wrong call.
    let dataset = args.table.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    name(&dataset)?;
    if args.out == Path::new("-") {
        return Err(Failure::Call(Error::invalid(
            "--out names a file, and an export can't go to standard output: `skytether sql \"SELECT * FROM ...\" --format arrow` prints rows (a file of this name is ./-)",
        )));
    }
    let ending = args.out.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    if ["csv", "tsv", "json", "jsonl", "ndjson", "arrow", "feather"].contains(&ending.as_str()) {
        return Err(Failure::Call(Error::invalid(format!(
            "{}: an export is a Parquet file: name it .parquet, or print rows with `skytether sql \"SELECT * FROM {}\" --format csv` (or json, arrow)",
            args.out.display(),
            args.table
        ))));
    }
    let fleet = fleet(&args.fleet).await?;
    let progress = Bytes::new(&format!("writing {}", args.out.display()));
    let done = fleet.export(&args.table, &args.out, args.replace, progress.counter()).await;
    progress.finish();
    let report = done?;
    match args.format {
        ListFormat::Table => print_line(&format!(
            "{}: {} in {}, {}, {}",
            args.out.display(),
            counted(report.rows, "row"),
            counted(report.row_groups, "row group"),
            human_bytes(report.bytes),
            human_seconds(report.seconds)
        ))?,
        ListFormat::Json => {
            let out = args.out.display().to_string();
            print_line(&serde_json::json!({ "table": args.table, "out": out, "rows": report.rows, "row_groups": report.row_groups, "slices": report.slices, "bytes": report.bytes, "seconds": report.seconds }).to_string())?;
        }
    }
    Ok(())
}
