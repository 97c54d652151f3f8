//! `skytether fleet add`, `retire` and `balance`.

use clap::{Args, Subcommand};
use skytether::ResizeOptions;
use skytether_common::Error;
use skytether_common::units::counted;

use crate::common_args::{FleetArg, ListFormat, megabytes};
use crate::context::{Failure, fleet, print_report};
use crate::progress::Bytes;

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Take blank drives into the fleet, and give them their share.
    Add(Add),
    /// Empty drives, also lost ones, and end their membership.
    Retire(Retire),
    /// Move slices so that every drive has as much as the others.
    Balance(Balance),
}

/// What all three have.
#[derive(Debug, Args)]
pub(crate) struct How {
    #[command(flatten)]
    fleet: FleetArg,
    /// How fast slices may be moved, over all drives together, in MB/s (default: as fast as it goes).
    #[arg(long, value_name = "MB/S", value_parser = megabytes)]
    rate: Option<u64>,
    /// How to print the report.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each new drive gets its share of every table, data and parities, so that all drives are within 5% of the mean, and no more is moved than that takes. Tables that are partitioned by key stay on the drives that they are on. Queries and ingests go on meanwhile; ingests that begin afterwards use the new \
drives, too. What was cut off goes on when it is begun again.\n\n\
A fleet in a directory gets new drives below it; no other program may have it open. A fleet behind a host gets served drives: start blank ones (`skytether drive serve --data NEW`), and name their addresses; name these among the host's --drives when it is started again.\n\n\
In a fleet with nodes, what has redundancy on two levels stays on its nodes: a drive that comes takes its share of what its own node has, and data sets that are ingested afterwards use new nodes once these have enough drives.\n\n\
Examples:\n  skytether fleet add --fleet fleet --count 2\n  skytether fleet add 127.0.0.1:5314 --fleet 127.0.0.1:5300 --rate 100\n  skytether fleet add --count 3 --node node-3 --fleet machines"
)]
pub(crate) struct Add {
    /// The addresses of the new drives, of a fleet behind a host.
    #[arg(value_name = "ADDR", conflicts_with = "count")]
    addresses: Vec<String>,
    /// How many drives to make, of a fleet in a directory (default: 1).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    count: Option<u16>,
    /// The node of the new drives, in a fleet with nodes (default: the node named like the host part of their
    /// addresses, if the fleet has drives there; in a directory the node with the fewest drives).
    #[arg(long, alias = "host", value_name = "NAME")]
    node: Option<String>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
#[command(
    after_help = "All that is on these drives is moved to the others, as evenly as it goes; what was on lost ones is reconstructed from the rest of its groups, or from copies. Then they are not of the fleet any more, and those that are here are wiped. As many must be left as the redundancy of the fleet and of each data set takes. \
Queries and ingests go on meanwhile; an ingest that began before and ends after is told to begin again. What was cut off goes on when it is begun again.\n\n\
For each drive that leaves, a table that is partitioned by key needs another drive without a part of it: add one first, or drop the table and ingest it again. A data set with redundancy on two levels needs as many drives on each of its nodes as its inner code has shards; where all drives of a node are retired together, another node that has so many takes its place.\n\n\
Example:\n  skytether fleet retire drive-2 --fleet fleet"
)]
pub(crate) struct Retire {
    /// The drives, by names or ids (`skytether status` lists them).
    #[arg(required = true, value_name = "DRIVE")]
    drives: Vec<String>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
#[command(
    after_help = "What `add` and `retire` do at their end: of each table, data and parities are brought to within 5% of the mean on every drive, as far as slices are small enough, and no more is moved than that takes. It goes on with what was cut off before.\n\nExample:\n  skytether fleet balance --fleet fleet --rate 50"
)]
pub(crate) struct Balance {
    #[command(flatten)]
    how: How,
}

pub(crate) async fn run(command: FleetCommand) -> Result<(), Failure> {
    let (mut options, how) = match command {
        FleetCommand::Add(a) => {
            let count = if a.addresses.is_empty() { usize::from(a.count.unwrap_or(1)) } else { 0 };
            (ResizeOptions { count, addresses: a.addresses, node: a.node, ..ResizeOptions::default() }, a.how)
        }
        FleetCommand::Retire(a) => (ResizeOptions { retire: a.drives, ..ResizeOptions::default() }, a.how),
        FleetCommand::Balance(a) => (ResizeOptions::default(), a.how),
    };
    options.bytes_per_s = how.rate;
    let fleet = fleet(&how.fleet).await?;
    let progress = Bytes::new("");
    let done = fleet.resize(&options, &|far| progress.told(far)).await;
    progress.finish();
    let report = done?;
    print_report(how.format, &report)?;
    match report.left.len() {
        0 => Ok(()),
        left => Err(Failure::Work(Error::unavailable(format!("{} could not be moved", counted(left as u64, "data set"))))),
    }
}
