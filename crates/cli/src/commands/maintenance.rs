//! `skytether scrub` and `skytether repair`.

use clap::Args;
use skytether::{RepairOptions, ScrubOptions};
use skytether_common::Error;
use skytether_common::units::counted;

use crate::common_args::{FleetArg, ListFormat, megabytes};
use crate::context::{Failure, fleet, name, print_report};
use crate::progress::Bytes;

#[derive(Debug, Args)]
#[command(
    after_help = "Each drive reads its own slices, parities and copies, where they lie, and reports what they are; parities are compared with data by digests, so that next to nothing moves. What is damaged, missing, truncated or another than it \
should be is reconstructed from the rest of its group, or from copies. Drives that are away are left out, and said so; queries and ingests go on meanwhile.\n\nExit status 1 if something is left damaged.\n\n\
Example:\n  skytether scrub --fleet fleet --rate 50"
)]
pub(crate) struct Scrub {
    /// The data sets (default: all).
    #[arg(value_name = "DOMAIN.DATASET")]
    datasets: Vec<String>,
    #[command(flatten)]
    fleet: FleetArg,
    /// How fast each drive may read for it, in MB/s (default: as fast as it goes).
    #[arg(long, value_name = "MB/S", value_parser = megabytes)]
    rate: Option<u64>,
    /// Only report: change nothing.
    #[arg(long, alias = "check")]
    dry_run: bool,
    /// How to print the report.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A blank drive takes a lost one's place, with the lost one's id. The values of the lost drive are reconstructed from the other drives; of each code group as few shards are read as the code allows. Queries go on without it meanwhile, and ingests \
where enough drives are left; then it is taken in. A repair that was cut off goes on where it was when it is begun again. The lost drive is not used again, should it come back.\n\n\
Embedded fleets: with --replace a blank drive is made where the directory of the lost one is gone or empty.\n\
Served drives: start one with `skytether drive serve --data NEW --name NAME --replace ID` (`skytether status` tells the id) at the address of the lost one; or at another, and name that with --replacement, where the host began without the lost one.\n\n\
Exit status 1 if something could not be rebuilt, or drives are lost still.\n\nExample:\n  skytether repair --fleet fleet --replace drive-1"
)]
pub(crate) struct Repair {
    #[command(flatten)]
    fleet: FleetArg,
    /// The lost drives to replace, by name or id (default: those with a blank drive in their place).
    #[arg(long, value_name = "DRIVE,DRIVE,...", value_delimiter = ',')]
    replace: Vec<String>,
    /// The address of the blank drive that replaces the one of --replace, if the host does not reach it yet.
    #[arg(long, alias = "with", value_name = "ADDR", requires = "replace")]
    replacement: Option<String>,
    /// How fast the other drives may read for it together, in MB/s (default: as fast as it goes).
    #[arg(long, value_name = "MB/S", value_parser = megabytes)]
    rate: Option<u64>,
    /// How to print the report.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

pub(crate) async fn scrub(args: Scrub) -> Result<(), Failure> {
    let datasets = args.datasets.iter().map(|text| name(text)).collect::<Result<_, _>>()?;
    let options = ScrubOptions { datasets, bytes_per_s: args.rate, check: args.dry_run };
    let fleet = fleet(&args.fleet).await?;
    let progress = Bytes::new("");
    let done = fleet.scrub(&options, &|far| progress.told(far)).await;
    progress.finish();
    let report = done?;
    print_report(args.format, &report)?;
    match report.left() {
        // A failure, so that a scheduled scrub reports it.
        0 if !report.skipped.is_empty() => {
            let names: Vec<&str> = report.skipped.keys().map(String::as_str).collect();
            Err(Failure::Work(Error::unavailable(format!(
                "{} {} left out, so that not everything was verified: bring back or rebuild what is lost (skytether repair), and scrub again",
                names.join(", "),
                if names.len() == 1 { "was" } else { "were" }
            ))))
        }
        0 => Ok(()),
        left if args.dry_run => Err(Failure::Work(Error::corrupt(format!("{} damaged: scrub without --dry-run to mend what can be", counted(left, "value"))))),
        left => Err(Failure::Work(Error::corrupt(format!("{} left damaged", counted(left, "value"))))),
    }
}

pub(crate) async fn repair(args: Repair) -> Result<(), Failure> {
    let options = RepairOptions { drives: args.replace, address: args.replacement, bytes_per_s: args.rate };
    let fleet = fleet(&args.fleet).await?;
    let progress = Bytes::new("");
    let done = fleet.repair(&options, &|far| progress.told(far)).await;
    progress.finish();
    let report = done?;
    print_report(args.format, &report)?;
    if !report.left.is_empty() {
        let left = report.left.len() as u64 + report.left_more;
        return Err(Failure::Work(Error::corrupt(format!("{} could not be rebuilt", counted(left, "part")))));
    }
    if report.lost.is_empty() {
        return Ok(());
    }
    let lost: Vec<&str> = report.lost.keys().map(String::as_str).collect();
    let text = format!("lost still: {}; bring back what is lost, or replace it (`skytether repair --replace {}`, see --help)", lost.join(", "), lost.join(","));
    Err(Failure::Work(Error::unavailable(text)))
}
