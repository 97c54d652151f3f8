//! The command line, parsed: one definition yields parsing, help and errors.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use skytether_drive::Device;
use skytether_fleet::address::is_host_and_port;
use skytether_fleet::files;
use skytether_host::{Cut, Scheme};

use crate::export::Export;
use crate::generate::Generate;
use crate::growing::FleetCommand;
use crate::index::Index;

/// A computational storage system: data on many drives, queries cut into plans that run next to the bytes.
#[derive(Debug, Parser)]
#[command(
    name = "skytether",
    version,
    about,
    propagate_version = true,
    max_term_width = 110,
    after_help = "Results go to stdout, everything else to stderr. Exit status: 0 done, 1 the work failed, 2 the call was wrong, 130 Ctrl-C was pressed.\n\n\
Example:\n  skytether init fleet --drives 4\n  skytether ingest trips.parquet --to taxi.trips --fleet fleet\n  skytether sql \"SELECT count(*) FROM taxi.trips\" --fleet fleet --receipt"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a fleet of embedded drives below a directory.
    Init(Init),
    /// Run one drive as a process of its own.
    #[command(subcommand)]
    Drive(DriveCommand),
    /// Run a host: catalog, planning and merging over drives.
    #[command(subcommand)]
    Host(HostCommand),
    /// Put files (Parquet, Arrow IPC/Feather, CSV, JSON lines, raw VPIC particles) on the drives as one table.
    Ingest(Ingest),
    /// Write a table to one Parquet file: its slices as they are stored.
    Export(Export),
    /// Write files of made-up data to try things with.
    #[command(subcommand)]
    Generate(Generate),
    /// Run a query and print its result.
    Sql(Sql),
    /// Show how a query is cut: what the host keeps and what each drive runs.
    Explain(Explain),
    /// List the data sets.
    Ls(Look),
    /// Show the drives: what they hold, and whether they answer.
    Status(Look),
    /// Have the drives verify what they hold, and mend what is damaged.
    Scrub(Scrub),
    /// Rebuild on blank drives what was on lost ones.
    Repair(Repair),
    /// Let a fleet grow and shrink: drives that come, drives that leave, and what moves then.
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Indexes that the drives build.
    #[command(subcommand)]
    Index(Index),
    /// Remove a data set.
    Drop(Drop),
    /// Measure whether a drive under a device profile works as that device would.
    Calibrate(Calibrate),
}

/// An address to listen on. Whether its host is one of this machine is seen later.
fn address(text: &str) -> Result<String, &'static str> {
    if is_host_and_port(text) { Ok(text.to_owned()) } else { Err("write HOST:PORT, for example 127.0.0.1:5310") }
}

/// A redundancy by its name.
fn scheme(text: &str) -> Result<Scheme, String> {
    text.parse().map_err(|e: skytether_common::Error| e.message().to_owned())
}

/// The cuts by their names.
fn cut() -> impl TypedValueParser<Value = Cut> {
    PossibleValuesParser::new(["adaptive", "full", "filter", "raw"]).try_map(|word| word.parse::<Cut>())
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The fleet's directory; it is made, with a directory for each drive in it.
    pub(crate) dir: PathBuf,
    /// How many drives.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) drives: u16,
    /// How data sets survive the loss of drives, unless their ingest says otherwise: `none`, `replicas:R` (R copies), `ec:K+M` (any M drives may be lost; takes M/K more room), or, with --hosts, `ec:K+M/k+m` (any M hosts may be lost, and m drives of each other one at the same time).
    #[arg(long, value_name = "SCHEME", default_value = "none", value_parser = scheme)]
    pub(crate) redundancy: Scheme,
    /// On how many hosts the drives are taken to be, as many on each, in order: those that may be lost together. `ec:K+M/k+m` needs K + M hosts with k + m drives each, or more: `--drives 9 --hosts 3 --redundancy ec:2+1/2+1`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) hosts: Option<u16>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DriveCommand {
    /// Serve one drive over Arrow Flight until interrupted.
    Serve(DriveServe),
}

#[derive(Debug, Args)]
pub(crate) struct DriveServe {
    /// The drive's directory; made where absent.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// Address to listen on; port 0 picks a free one. The address is printed on stdout when the drive is ready.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = address)]
    pub(crate) listen: String,
    /// The drive's name in receipts and errors (default: its directory's name).
    #[arg(long, value_name = "TEXT")]
    pub(crate) name: Option<String>,
    /// Make a new, blank drive of this id, in the place of a lost one of that id: `skytether repair` rebuilds what was on that. The directory must be empty, or hold that drive.
    #[arg(long, value_name = "ID")]
    pub(crate) replace: Option<uuid::Uuid>,
    /// The device that the drive is to be like: its processor, memory, disk and link bound what the drive does. A shipped profile (envoy, newport, server, unlimited) or a TOML file of your own;
    /// `skytether calibrate` measures whether it is kept to.
    #[arg(long, value_name = "NAME|FILE", default_value = "unlimited", value_parser = device(Device::enforced))]
    pub(crate) profile: Profile,
    /// How many times their processor time slices may take before the drive takes on no more, and gives back what it has not begun: whoever asked reads them and works them off instead.
    #[arg(long, value_name = "TIMES", default_value_t = 32.0, value_parser = times)]
    pub(crate) max_load: f64,
    /// Memory that queries may use on this drive, in MiB (default: what its profile says, at most; 512 without one).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) memory: Option<u64>,
}

/// A device profile as it was given, and what it means: a wrong one is a wrong call.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) given: String,
    pub(crate) device: Option<Device>,
}

/// A load is 1 at least.
fn times(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if times > 1.0 => Ok(times),
        _ => Err("a number above 1 is wanted, such as 8; inf for no bound".to_owned()),
    }
}

/// A rate that links have.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("a number of Gbit/s above 0 is wanted, such as 2.5".to_owned()),
    }
}

/// Profiles by name, file or text, which `read` reads: [`Device::given`] any, [`Device::enforced`] those that a drive here can be made to keep to.
fn device(read: fn(&str) -> skytether_common::Result<Option<Device>>) -> impl TypedValueParser<Value = Profile> {
    clap::builder::StringValueParser::new().try_map(move |given| read(&given).map(|device| Profile { given, device }).map_err(|e| e.full_text()))
}

#[derive(Debug, Args)]
#[command(
    after_help = "A profile is TOML with units in its keys:\n\n  speed_per_core = 0.0667        # of a core of this machine: 1 at most\n  cores = 2\n  memory_bytes = 1073741824      # for queries\n  disk_bytes_per_s = 261000000.0 # reading on\n  \
disk_seek_s = 0.0085           # moving elsewhere; may be left out\n  link_bits_per_s = 2.5e9        # in each direction\n  link_latency_s = 0.0002        # one way; may be left out\n\n\
Exit status 1 if a figure that was got is more than 20% off what was asked. A machine gives no more than it has: ask for less, and let it be idle meanwhile."
)]
pub(crate) struct Calibrate {
    /// The profile: a shipped one (envoy, newport, server, unlimited), or a TOML file of your own.
    #[arg(long, value_name = "NAME|FILE", value_parser = device(Device::given))]
    pub(crate) profile: Profile,
    /// Where to make a directory to work in, which is removed afterwards (default: the system's for temporary files). It takes some 50 MiB.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Measure the link of a drive that is served on loopback, instead of that of an embedded one.
    #[arg(long)]
    pub(crate) served: bool,
    /// Print the figures as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Serve a fleet over Arrow Flight until interrupted.
    Serve(HostServe),
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["fleet", "drives"]))]
pub(crate) struct HostServe {
    /// An embedded fleet's directory.
    #[arg(long, value_name = "DIR")]
    pub(crate) fleet: Option<PathBuf>,
    /// The devices that the embedded drives are to be like: a profile for all, or one for each in order. Served drives have profiles of their own (`drive serve --profile`).
    #[arg(long, value_name = "NAME|FILE,...", value_delimiter = ',', value_parser = device(Device::enforced), conflicts_with = "drives")]
    pub(crate) profile: Vec<Profile>,
    /// Addresses of served drives; semicolons between those that are on different hosts ("a:1,a:2;b:1,b:2"), where the drives become a fleet now that is to know its hosts, as `ec:K+M/k+m` needs it.
    #[arg(long, value_name = "ADDR,ADDR,...", value_delimiter = ',')]
    pub(crate) drives: Vec<String>,
    /// How data sets survive the loss of drives, unless their ingest says otherwise, if the served drives are empty and become a fleet now: `none`, `replicas:R`, `ec:K+M`, or `ec:K+M/k+m` across hosts (those that semicolons in --drives say, or else those of the addresses) and across the drives of each. A fleet that is there keeps its own: any other one but `none` is refused.
    #[arg(long, value_name = "SCHEME", default_value = "none", value_parser = scheme, conflicts_with_all = ["fleet", "as_drive"])]
    pub(crate) redundancy: Scheme,
    /// Be one drive of another host, under this name, instead of a host of queries: name the address that is printed among the --drives of that host. It must have drives of its own (--drives), which
    /// are nobody else's; it sends up what they make of its slices, put together.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["fleet", "slice_rows"])]
    pub(crate) as_drive: Option<String>,
    /// The link to the host above, in Gbit/s, by which that plans (default: what the links of the drives are together, where they have profiles).
    #[arg(long, value_name = "GBIT", requires = "as_drive", value_parser = rate)]
    pub(crate) link: Option<f64>,
    /// Seconds without a sign of life after which a served drive counts as dead. One that works is never silent for so long.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) drive_timeout: u64,
    /// Memory that all queries together may use for sorting, joining and merging, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1 << 24))]
    pub(crate) memory: u64,
    /// Disk that queries may use for what the host's memory can't hold, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 10 << 10)]
    pub(crate) spill_limit: u64,
    /// Rows that a slice of what is ingested holds at most. By default only a slice's size counts.
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) slice_rows: Option<u64>,
    /// Address to listen on; port 0 picks a free one. The address is printed on stdout when the host is ready.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = address)]
    pub(crate) listen: String,
}

#[derive(Debug, Args)]
pub(crate) struct FleetArg {
    /// The fleet: a directory, or a host's address (HOST:PORT or grpc://HOST:PORT).
    #[arg(long, value_name = "DIR|URL", env = "SKYTETHER_FLEET")]
    pub(crate) fleet: String,
}

#[derive(Debug, Args)]
pub(crate) struct Ingest {
    /// The files, directories of files, or patterns of files ("trips-*.parquet"), all with the same columns; the ending says the format (.parquet, .arrow, .feather, .ipc, .vpic, .csv, .tsv, .jsonl, .ndjson; the last four also with .gz or .zst).
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The data set's name.
    #[arg(long, value_name = "DOMAIN.DATASET")]
    pub(crate) to: String,
    /// The format of all files, whatever their names end in.
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(files::Format::NAMES).try_map(|word| word.parse::<files::Format>()))]
    pub(crate) input_format: Option<files::Format>,
    /// Replace the data set if there is one; readers see the old or the new one, never a mixture.
    #[arg(long)]
    pub(crate) replace: bool,
    /// Columns whose values say on which drive a row lies, so that equal ones are together: joins, windows and aggregates by them run whole on the drives.
    #[arg(long, value_name = "COLUMN,COLUMN,...", value_delimiter = ',')]
    pub(crate) partition_by: Vec<String>,
    /// How the data set survives the loss of drives, if not as the fleet usually does: `none`, `replicas:R`, `ec:K+M`, or, in a fleet that knows its hosts, `ec:K+M/k+m`.
    #[arg(long, value_name = "SCHEME", value_parser = scheme)]
    pub(crate) redundancy: Option<Scheme>,
    #[command(flatten)]
    pub(crate) fleet: FleetArg,
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// With a header line.
    Csv,
    /// One object per line.
    Json,
    /// An Arrow IPC stream.
    Arrow,
}

#[derive(Debug, Args)]
pub(crate) struct Sql {
    /// The query.
    pub(crate) query: String,
    #[command(flatten)]
    pub(crate) fleet: FleetArg,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    /// How much to send down to the drives.
    #[arg(long, value_name = "CUT", default_value = "adaptive", value_parser = cut())]
    pub(crate) cut: Cut,
    /// Say on stderr what ran where and how much moved.
    #[arg(long)]
    pub(crate) receipt: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The query.
    pub(crate) query: String,
    #[command(flatten)]
    pub(crate) fleet: FleetArg,
    /// Run it too, and show what happened.
    #[arg(long)]
    pub(crate) analyze: bool,
    /// How much to send down to the drives: adaptive, full, filter or raw.
    #[arg(long, value_name = "CUT", default_value = "adaptive", value_parser = cut())]
    pub(crate) cut: Cut,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = ExplainFormat::Text)]
    pub(crate) format: ExplainFormat,
}

/// How an explanation is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainFormat {
    /// For people.
    Text,
    /// As JSON.
    Json,
}

/// How a listing is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// For people.
    Table,
    /// As JSON.
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct Look {
    #[command(flatten)]
    pub(crate) fleet: FleetArg,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    pub(crate) format: ListFormat,
}

/// A rate in MB/s as bytes per second.
pub(crate) fn megabytes(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate * 1e6 >= 1.0 && rate <= 1e9 => Ok((rate * 1e6) as u64),
        _ => Err("a number of MB/s above 0 is wanted, such as 50".to_owned()),
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each drive reads its own slices, parities and copies, where they lie, and reports what they are; parities are compared with data by digests, so that next to nothing moves. What is damaged, missing, truncated or another than it \
should be is made anew from the rest of its group, or from copies. Drives that are away are left out, and said so; queries and ingests go on meanwhile.\n\nExit status 1 if something is left damaged.\n\n\
Example:\n  skytether scrub --fleet fleet --rate 50"
)]
pub(crate) struct Scrub {
    /// The data sets (default: all).
    #[arg(value_name = "DOMAIN.DATASET")]
    pub(crate) datasets: Vec<String>,
    #[command(flatten)]
    pub(crate) fleet: FleetArg,
    /// How fast each drive may read for it, in MB/s (default: as fast as it goes).
    #[arg(long, value_name = "MB/S", value_parser = megabytes)]
    pub(crate) rate: Option<u64>,
    /// Only report: change nothing.
    #[arg(long)]
    pub(crate) check: bool,
    /// How to print the report.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    pub(crate) format: ListFormat,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A blank drive takes a lost one's place, with the lost one's id; all that was on that is made anew from the other drives, of which of each code group as few shards are read as the code allows. Queries go on without it meanwhile, and ingests \
where enough drives are left; then it is taken in. A repair that was cut off goes on where it was when it is begun again. The lost drive is not used again, should it come back.\n\n\
Embedded fleets: with --replace a blank drive is made where the directory of the lost one is gone or empty.\n\
Served drives: start one with `skytether drive serve --data NEW --name NAME --replace ID` (`skytether status` tells the id) at the address of the lost one; or at another, and name that with --with, where the host began without the lost one.\n\n\
Exit status 1 if something could not be rebuilt, or drives are lost still.\n\nExample:\n  skytether repair --fleet fleet --replace drive-1"
)]
pub(crate) struct Repair {
    #[command(flatten)]
    pub(crate) fleet: FleetArg,
    /// The lost drives to replace, by name or id (default: those in whose place a blank one is already).
    #[arg(long, value_name = "DRIVE,DRIVE,...", value_delimiter = ',')]
    pub(crate) replace: Vec<String>,
    /// The address of the blank drive that takes the place of the one that --replace names, where the host does not reach it yet.
    #[arg(long, value_name = "ADDR", requires = "replace")]
    pub(crate) with: Option<String>,
    /// How fast the other drives may read for it together, in MB/s (default: as fast as it goes).
    #[arg(long, value_name = "MB/S", value_parser = megabytes)]
    pub(crate) rate: Option<u64>,
    /// How to print the report.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    pub(crate) format: ListFormat,
}

#[derive(Debug, Args)]
pub(crate) struct Drop {
    /// The data set's name.
    #[arg(value_name = "DOMAIN.DATASET")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) fleet: FleetArg,
    /// How to say it.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    pub(crate) format: ListFormat,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself() {
        fn walk(command: &clap::Command) {
            for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
                assert!(sub.get_about().is_some(), "{} has no description", sub.get_name());
                for arg in sub.get_arguments().filter(|a| !a.is_hide_set()) {
                    assert!(arg.get_help().is_some(), "{} {} has no help", sub.get_name(), arg.get_id());
                }
                walk(sub);
            }
        }
        walk(&Cli::command());
    }

    #[test]
    fn a_host_needs_something_to_serve() {
        assert!(Cli::try_parse_from(["skytether", "host", "serve"]).is_err());
        assert!(Cli::try_parse_from(["skytether", "host", "serve", "--drives", "a:1,b:2"]).is_ok());
    }
}
