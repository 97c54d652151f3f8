//! Helpers of all commands: failures, opening a fleet, and printing.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use serde::Serialize;
use skytether::address::is_host;
use skytether::{Fleet, OpenOptions, Profiles};
use skytether_common::{DatasetName, Error, Result};
use skytether_host::HostOptions;

use crate::common_args::{FleetArg, ListFormat};
use crate::listing;
use crate::stores::{is_store, open_fleet};

/// Why a command failed; the exit status depends on it.
pub(crate) enum Failure {
    /// The call was wrong.
    Call(Error),
    /// The work failed.
    Work(Error),
    /// The work failed for several reasons: a line for each.
    Each(Vec<Error>),
    /// A program on a drive ended with this exit status; what there is to say is said.
    Status(u8),
    /// Ctrl-C ended it; has the line to print.
    Stopped(&'static str),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Work(error)
    }
}

/// Opens a fleet by its directory, the address of its stores or that of its host.
pub(crate) async fn fleet(at: &FleetArg) -> Result<Fleet> {
    if is_host(&at.fleet) && !is_store(&at.fleet) {
        return Fleet::connect_with(&at.fleet, &at.client.credentials()).await;
    }
    open(Path::new(&at.fleet), HostOptions::default(), Profiles::default()).await
}

/// Opens the fleet in a directory, or over stores elsewhere.
pub(crate) async fn open(dir: &Path, host: HostOptions, profile: Profiles) -> Result<Fleet> {
    open_fleet(dir, &OpenOptions { create: false, profile, ..OpenOptions::default() }, host).await
}

/// Parses the name of a data set; an invalid one is a wrong call.
pub(crate) fn name(text: &str) -> Result<DatasetName, Failure> {
    text.parse().map_err(Failure::Call)
}

/// Prints a line on stdout and flushes it: scripts wait for it. A closed pipe is no error.
pub(crate) fn print_line(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::io("write", "standard output", e)),
        _ => Ok(()),
    }
}

/// Prints a report as text or as JSON.
pub(crate) fn print_report<R: Display + Serialize>(format: ListFormat, report: &R) -> Result<(), Failure> {
    print_line(&match format {
        ListFormat::Table => report.to_string(),
        ListFormat::Json => listing::json(report)?,
    })?;
    Ok(())
}
