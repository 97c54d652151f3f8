//! `skytether host serve`: a host, or an aggregator that is one drive of another host.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use skytether::Profiles;
use skytether_aggregator::Aggregator;
use skytether_common::units::counted;
use skytether_common::{Error, Result};
use skytether_distributed::coordinator::SpreadOptions;
use skytether_drive::Device;
use skytether_flight::Face;
use skytether_flight_drive::ConnectOptions;
use skytether_host::{Founding, Host, HostOptions, Scheme};

use crate::common_args::{ClientArgs, Profile, device, scheme};
use crate::context::{Failure, open};
use crate::doors;
use crate::drives::{all_of, connect, connectors, drives_on_nodes, join};
use crate::fleet_volumes::{self, JournalArgs};
use crate::serving::ServeArgs;
use crate::stores::is_store;
use crate::volumes::{DIRECTORY, VolumeArgs};

/// Connections that each port of a host holds at the same time.
const MAX_CONNECTIONS: usize = 1024;

/// Calls that each connection of a host may have at the same time. Another host reads each partition of each stage by
/// one.
const MAX_STREAMS: u32 = 16 << 10;

/// How often an idle host checks its drives.
const WATCH: Duration = Duration::from_secs(5);

#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Serve a fleet over Arrow Flight, and its volumes as disks, until interrupted.
    Serve(Box<HostServe>),
    /// Run parts of the queries of other hosts, which name this one among their --workers, until interrupted. A worker
    /// reads from the drives of their fleet and changes nothing.
    Worker(Box<HostWorker>),
}

#[derive(Debug, Args)]
pub(crate) struct HostWorker {
    /// Addresses of the drives of the fleet, as the host has them.
    #[arg(long, value_name = "ADDR,ADDR,...", value_delimiter = ',', required = true)]
    drives: Vec<String>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    serve: ServeArgs,
    // For the connections to drives and to other workers.
    #[command(flatten)]
    client: ClientArgs,
}

/// What queries may take.
#[derive(Debug, Args)]
struct LimitArgs {
    /// Seconds without a heartbeat after which a served drive counts as dead. A working drive is never silent for this
    /// long.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    drive_timeout: u64,
    /// Memory that all queries together may use for sorting, joining and merging, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1 << 24))]
    memory: u64,
    /// Disk that queries may use to spill what the host's memory can't hold, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 10 << 10)]
    spill_limit: u64,
}

impl LimitArgs {
    fn options(&self) -> HostOptions {
        let memory_limit = usize::try_from(self.memory << 20).unwrap_or(usize::MAX);
        HostOptions { memory_limit, spill_limit: self.spill_limit.saturating_mul(1 << 20), ..HostOptions::default() }
    }
}

/// How queries are spread over workers.
#[derive(Debug, Args)]
struct SpreadArgs {
    /// Addresses of workers (`skytether host worker`), which run the super-plans of large queries together. A worker
    /// that is lost costs a query one more run.
    #[arg(long, value_name = "URL,URL,...", value_delimiter = ',', requires = "drives", conflicts_with_all = ["fleet", "aggregator"])]
    workers: Vec<String>,
    /// Seconds without an answer after which a worker counts as lost.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600), requires = "workers")]
    worker_timeout: u64,
    /// A query whose drives send fewer rows than this, by the estimate, stays on this host.
    #[arg(long, value_name = "ROWS", default_value_t = 100_000, requires = "workers")]
    spread_from: u64,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["fleet", "drives"]))]
pub(crate) struct HostServe {
    /// An embedded fleet's directory, or the address of its stores (rados://POOL?conf=PATH).
    #[arg(long, value_name = "DIR|URL")]
    fleet: Option<PathBuf>,
    /// The devices that the embedded drives emulate: one profile for all, or one for each in order. Served drives have
    /// profiles of their own (`drive serve --profile`).
    #[arg(long, value_name = "NAME|FILE,...", value_delimiter = ',', value_parser = device(Device::enforced), conflicts_with = "drives")]
    profile: Vec<Profile>,
    /// Addresses of served drives. Semicolons separate the drives of different nodes ("a:1,a:2;b:1,b:2"), for a new
    /// fleet that needs nodes, as with `ec:K+M/k+m`.
    #[arg(long, value_name = "ADDR,ADDR,...", value_delimiter = ',')]
    drives: Vec<String>,
    /// The redundancy of a new fleet, for data sets whose ingest names none: `none`, `replicas:R`, `ec:K+M`, or
    /// `ec:K+M/k+m` across nodes and across the drives of each. Served drives become a new fleet if they are empty. Its
    /// nodes are those of the semicolons in --drives, or those of the addresses. An existing fleet keeps its redundancy
    /// and rejects any other but `none`.
    #[arg(long, value_name = "SCHEME", default_value = "none", value_parser = scheme, conflicts_with_all = ["fleet", "aggregator"])]
    redundancy: Scheme,
    /// Be one drive of another host, under this name, instead of a host for queries. Name the printed address among the
    /// --drives of that host. It needs drives of its own (--drives), which no other host uses. It merges their results
    /// before it sends them to the other host.
    #[arg(long, alias = "as-drive", value_name = "NAME", conflicts_with_all = ["fleet", "slice_rows"])]
    aggregator: Option<String>,
    /// The link to the other host, in Gbit/s, by which that host plans (default: the sum of the drives' links, where
    /// they have profiles).
    #[arg(long, alias = "link", value_name = "GBIT", requires = "aggregator", value_parser = rate)]
    uplink_gbit: Option<f64>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    spread: SpreadArgs,
    /// Limit of rows in a slice of ingested data. By default only a slice's size counts.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    slice_rows: Option<u64>,
    #[command(flatten)]
    volumes: VolumeArgs,
    #[command(flatten)]
    journals: JournalArgs,
    #[command(flatten)]
    serve: ServeArgs,
    // For the connections to drives.
    #[command(flatten)]
    client: ClientArgs,
}

/// Parses the rate of a link.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("a number of Gbit/s above 0 is wanted, such as 2.5".to_owned()),
    }
}

/// Runs a command about hosts.
pub(crate) async fn run(command: HostCommand) -> Result<(), Failure> {
    match command {
        HostCommand::Serve(args) => serve(*args).await,
        HostCommand::Worker(args) => work(*args).await,
    }
}

/// A host over served drives, for a command that needs the fleet for itself.
///
/// # Errors
/// As for `host serve`. No fleet is founded.
pub(crate) async fn over(drives: &[String], client: &ClientArgs) -> Result<Host> {
    let (placed, mut options) = (drives_on_nodes(drives, Scheme::None)?, HostOptions::default());
    let connection = ConnectOptions { credentials: client.credentials(), ..ConnectOptions::default() };
    let (drives, silent) = connect(&placed, &connectors(), &connection, &mut options, true).await?;
    match all_of(silent) {
        Some(error) if drives.is_empty() => Err(error),
        _ => Ok(Host::join(drives, options, Founding::Never).await?.0),
    }
}

async fn serve(args: HostServe) -> Result<(), Failure> {
    let mut options = args.limits.options();
    options.slices.max_rows = args.slice_rows.unwrap_or(options.slices.max_rows);
    let credentials = args.serve.own_credentials(args.client.credentials());
    let connection = ConnectOptions { idle_timeout: Duration::from_secs(args.limits.drive_timeout), credentials, ..ConnectOptions::default() };
    let connectors = connectors();
    let (host, what, bound, _guard) = if let Some(dir) = &args.fleet {
        let given: Vec<String> = args.profile.iter().map(|profile| profile.given.clone()).collect();
        let profile = match given.as_slice() {
            [] => Profiles::default(),
            [all] => Profiles::Every(all.clone()),
            _ => Profiles::Each(given),
        };
        let fleet = open(dir, options, profile).await?;
        let host = fleet.host().ok_or_else(|| Error::internal("an embedded fleet has no host"))?.clone();
        let tokens = dir.to_str().is_none_or(|text| !is_store(text)).then(|| dir.join(skytether_transport::token::FILE_NAME));
        let bound = args.serve.bind(&doors::of_hosts(), tokens).await?;
        (host, format!("the fleet at {}", dir.display()), bound, Some(fleet))
    } else {
        let placed = drives_on_nodes(&args.drives, args.redundancy).map_err(Failure::Call)?;
        if args.aggregator.is_some() && args.drives.iter().any(|at| at.contains(';')) {
            return Err(Failure::Call(Error::invalid("the drives of an aggregator are one drive of the host above: name them without semicolons")));
        }
        let (drives, silent) = connect(&placed, &connectors, &connection, &mut options, args.aggregator.is_none()).await?;
        if let Some(name) = &args.aggregator {
            // First, so that a taken port leaves no new aggregator behind.
            let doors = doors::of_drives();
            let bound = args.serve.bind(&skytether_doors::securities(&doors), None).await?;
            let link = args.uplink_gbit.map(|gbit| (gbit * 1e9, 0.0));
            let aggregator = Aggregator::open(name, drives, options, Founding::EmptyDrives, link).await?;
            let who = format!("{name} serves {} as one", counted(placed.len() as u64, "drive"));
            return bound
                .serve(&who, move |listener, context| Ok(Arc::clone(doors.get(listener.endpoint())?).serve(aggregator.clone(), listener, context)))
                .await;
        }
        // First: if another host of the same drives has the port, that host keeps the drives.
        let bound = args.serve.bind(&doors::of_hosts(), None).await?;
        // The list was typed in. Only empty drives become a fleet, and only the drives of exactly one fleet are served.
        options.redundancy = args.redundancy;
        let host = join(drives, silent, options, Founding::EmptyDrives).await?;
        let what = match host.lost() {
            0 => counted(placed.len() as u64, "drive"),
            lost => format!("{}, {lost} lost,", counted(host.drives().len() as u64, "drive")),
        };
        (host, what, bound, None)
    };
    let spread = SpreadOptions {
        workers: args.spread.workers.clone(),
        credentials: connection.credentials.clone(),
        silence: Duration::from_secs(args.spread.worker_timeout),
        min_rows: args.spread.spread_from,
        ..SpreadOptions::default()
    };
    let drives = ConnectOptions { idle_timeout: ConnectOptions::default().idle_timeout, ..connection };
    let (watching, who) = (host.clone(), format!("host serves {what}"));
    let mut journals = args.journals.clone();
    journals.journals = journals.journals.or_else(|| args.fleet.as_ref().map(|dir| dir.join(DIRECTORY)));
    let served = fleet_volumes::serve(&args.volumes, &host, &journals, &bound).await?;
    let volumes = served.as_ref().map(|served| Arc::clone(&served.volumes));
    let face = Face { connectors, drives, tokens: bound.tokens.clone(), volumes: volumes.clone(), spread, worker: false };
    let service = skytether_flight::service(host, face);
    let serving = bound.serve(&who, move |listener, mut context| {
        if let Some(served) = served.as_ref().filter(|_| fleet_volumes::is_for_volumes(&listener)) {
            return Ok(Arc::clone(served.doors.get(listener.endpoint())?).serve(served.engine.clone(), listener, context));
        }
        context.limits.connections = MAX_CONNECTIONS;
        context.limits.streams = MAX_STREAMS;
        Ok(skytether_flight::serve_on(Arc::clone(&service), listener, context))
    });
    let served = tokio::select! {
        served = serving => served,
        never = watching.watch(WATCH) => match never {},
    };
    if let Some(volumes) = volumes {
        volumes.close().await?;
    }
    served
}

/// Serves a worker.
async fn work(args: HostWorker) -> Result<(), Failure> {
    let mut options = args.limits.options();
    let credentials = args.serve.own_credentials(args.client.credentials());
    let connection = ConnectOptions { idle_timeout: Duration::from_secs(args.limits.drive_timeout), credentials, ..ConnectOptions::default() };
    let placed = drives_on_nodes(&args.drives, Scheme::None).map_err(Failure::Call)?;
    let connectors = connectors();
    let (drives, _) = connect(&placed, &connectors, &connection, &mut options, false).await?;
    let bound = args.serve.bind(&doors::of_hosts(), None).await?;
    let host = Host::observe(drives, options).await?;
    let face = Face { connectors, drives: connection, tokens: bound.tokens.clone(), worker: true, ..Face::default() };
    let service = skytether_flight::service(host, face);
    let who = format!("worker reads {}", counted(placed.len() as u64, "drive"));
    bound
        .serve(&who, move |listener, mut context| {
            context.limits.connections = MAX_CONNECTIONS;
            context.limits.streams = MAX_STREAMS;
            Ok(skytether_flight::serve_on(Arc::clone(&service), listener, context))
        })
        .await
}
