//! The command line, parsed: one definition yields parsing, help and errors.

use clap::{Parser, Subcommand};

use crate::commands::calibrate::Calibrate;
use crate::commands::ceph::CephCommand;
use crate::commands::describe::Describe;
use crate::commands::drive::DriveCommand;
use crate::commands::drop::Drop;
use crate::commands::explain::Explain;
use crate::commands::export::Export;
use crate::commands::generate::Generate;
use crate::commands::host::HostCommand;
use crate::commands::index::Index;
use crate::commands::ingest::Ingest;
use crate::commands::init::Init;
use crate::commands::locate::Locate;
use crate::commands::maintenance::{Repair, Scrub};
use crate::commands::oas::OasCommand;
use crate::commands::pki::PkiCommand;
use crate::commands::program::ProgramCommand;
use crate::commands::resize::FleetCommand;
use crate::commands::sql::Sql;
use crate::commands::token::TokenCommand;
use crate::commands::volume::VolumeCommand;
use crate::common_args::ListArgs;

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
    /// Put files (Parquet, Arrow IPC/Feather, CSV, TSV, JSON lines, raw VPIC particles) on the drives as one table.
    Ingest(Ingest),
    /// Write a table to one Parquet file: its slices as they are stored.
    Export(Export),
    /// Write files of made-up data to try things with.
    #[command(subcommand)]
    Generate(Generate),
    /// Run queries and print their results.
    Sql(Sql),
    /// Show the columns of a table, or the tables of an expression data set.
    Describe(Describe),
    /// Show which drives hold which values of a data set, or where a file lies on its disk.
    Locate(Locate),
    /// Show how a query is cut: what the host keeps and what each drive runs.
    Explain(Explain),
    /// List the data sets.
    Ls(ListArgs),
    /// Show the drives: what they hold, and whether they answer.
    Status(ListArgs),
    /// Have the drives verify what they hold, and repair what is damaged.
    Scrub(Scrub),
    /// Rebuild lost drives on blank ones.
    Repair(Repair),
    /// Add drives to a fleet, retire drives, and balance the load.
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Indexes that the drives build.
    #[command(subcommand)]
    Index(Index),
    /// Remove a data set.
    Drop(Drop),
    /// Programs inside Kinetic drives: put, run, list, remove.
    #[command(subcommand)]
    Program(ProgramCommand),
    /// Compute on files in the block storage below them: digests, search, counts, sorts, queries.
    #[command(subcommand)]
    Oas(OasCommand),
    /// Volumes of a drive: list, snapshot, clone, remove, scrub.
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Tokens, with which people and programs prove their identity to a host.
    #[command(subcommand)]
    Token(TokenCommand),
    /// The query engine inside a Ceph cluster: install it, see where it runs.
    #[command(subcommand)]
    Ceph(CephCommand),
    /// Certificates for TLS.
    #[command(subcommand)]
    Pki(PkiCommand),
    /// Measure whether a drive under a device profile works as that device would.
    Calibrate(Calibrate),
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
    fn former_option_names_are_aliases() {
        for (command, former, new, value) in [
            ("init d", "--hosts", "--nodes", "2"),
            ("fleet add --fleet f", "--host", "--node", "a"),
            ("host serve --drives a:1 --aggregator m", "--link", "--uplink-gbit", "2.5"),
            ("host serve --drives a:1", "--as-drive", "--aggregator", "m"),
            ("sql q --fleet f", "--cut", "--pushdown", "full"),
            ("explain q --fleet f", "--cut", "--pushdown", "raw"),
            ("scrub --fleet f", "--check", "--dry-run", ""),
            ("repair --fleet f --replace drive-1", "--with", "--replacement", "a:1"),
        ] {
            let parsed = |option: &str| {
                let words = ["skytether"].into_iter().chain(command.split(' ')).chain([option]).chain((!value.is_empty()).then_some(value));
                Cli::try_parse_from(words).map(|cli| format!("{cli:?}")).unwrap()
            };
            assert_eq!(parsed(former), parsed(new), "{former}");
            let help = Cli::try_parse_from(["skytether"].into_iter().chain(command.split(' ')).chain(["--help"])).unwrap_err().to_string();
            assert!(help.contains(new) && !help.contains(former), "{help}");
        }
    }

    #[test]
    fn a_host_needs_something_to_serve() {
        assert!(Cli::try_parse_from(["skytether", "host", "serve"]).is_err());
        assert!(Cli::try_parse_from(["skytether", "host", "serve", "--drives", "a:1,b:2"]).is_ok());
    }
}
