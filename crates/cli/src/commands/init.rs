//! `skytether init`.

use std::path::PathBuf;

use clap::Args;
use skytether::{HostOptions, OpenOptions};
use skytether_common::Error;
use skytether_common::units::counted;
use skytether_host::Scheme;

use crate::common_args::scheme;
use crate::context::{Failure, print_line};
use crate::stores::open_fleet;

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The fleet's directory, which is made, with a directory for each drive in it; or pools of a Ceph cluster,
    /// rados://POOL?conf=PATH, with `&data=POOL` for another pool of values.
    #[arg(value_name = "DIR|URL")]
    dir: PathBuf,
    /// How many drives.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    drives: u16,
    /// The redundancy of data sets whose ingest names none: `none`, `replicas:R` (R copies), `ec:K+M` (any M drives may
    /// be lost; takes M/K more space), or, with --nodes, `ec:K+M/k+m` (any M nodes may be lost, and m drives of each
    /// other one at the same time).
    #[arg(long, value_name = "SCHEME", default_value = "none", value_parser = scheme)]
    redundancy: Scheme,
    /// How many nodes (failure domains) the drives are divided among, in order and as many to each: the drives of a
    /// node may be lost together. `status` shows the node of each drive. `ec:K+M/k+m` needs K + M nodes with k + m
    /// drives each, or more: `--drives 9 --nodes 3 --redundancy ec:2+1/2+1`.
    #[arg(long, alias = "hosts", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    nodes: Option<u16>,
}

/// Makes the fleet.
pub(crate) async fn run(args: Init) -> Result<(), Failure> {
    let there = || Failure::Work(Error::conflict(format!("there is a fleet at {} already; `skytether status --fleet {0}` shows it", args.dir.display())));
    if args.dir.join("fleet.json").exists() {
        return Err(there());
    }
    let nodes = args.nodes.map(usize::from);
    let options =
        OpenOptions { drives: Some(usize::from(args.drives)), redundancy: args.redundancy.to_string(), nodes, create: true, ..OpenOptions::default() };
    let fleet = open_fleet(&args.dir, &options, HostOptions::default()).await?;
    let kept = match fleet.kept_by() {
        Some((_, false)) => return Err(there()),
        Some((kept, true)) => format!(": {kept}, and the fleet has redundancy none"),
        None => String::new(),
    };
    let status = fleet.status().await?;
    let on = nodes.map_or_else(String::new, |nodes| format!(" on {}", counted(nodes as u64, "node")));
    print_line(&format!("made a fleet of {}{on} at {}{kept}", counted(status.len() as u64, "drive"), args.dir.display()))?;
    Ok(())
}
