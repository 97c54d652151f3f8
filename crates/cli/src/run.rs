//! Each command, carried out.

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use skytether_common::units::{counted, human_bytes, human_seconds};
use skytether_common::{DatasetName, Error, Kind, Result};
use skytether_drive::{Drive, DriveOptions};
use skytether_fleet::address::is_host;
use skytether_fleet::{Fleet, IngestOptions, OpenOptions, Profiles, files};
use skytether_host::{Branch, DriveStatus, Founding, Host, HostOptions, QueryOptions};
use skytether_store::disk::DriveIdentity;
use skytether_wire::Cse;
use skytether_wire::flight::{ConnectOptions, FlightCse};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::args::{Calibrate, Command, DriveCommand, DriveServe, Drop, Explain, ExplainFormat, HostCommand, HostServe, Ingest, Init, ListFormat, Look, Sql};
use crate::export::export;
use crate::generate::generate;
use crate::growing;
use crate::index;
use crate::listing;
use crate::mending;
use crate::output::Sink;
use crate::progress::{Rows, Steps};
use crate::stopping::{NOTHING_STORED, Stop};

/// How often a host looks whether its drives are there while nobody asks it for anything.
const WATCH: Duration = Duration::from_secs(5);

/// Why a command ended early: the distinction is the exit status.
pub(crate) enum Failure {
    /// The call was wrong.
    Call(Error),
    /// The work failed.
    Work(Error),
    /// Ctrl-C ended it; what is to be said.
    Stopped(&'static str),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Work(error)
    }
}

/// Carries out one command.
pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    let stop = Stop::new(if matches!(command, Command::Ingest(_)) { NOTHING_STORED } else { "stopped" });
    // Who serves ends in another way.
    if !matches!(command, Command::Drive(_) | Command::Host(_)) {
        stop.watch();
    }
    match command {
        Command::Init(a) => init(a).await,
        Command::Drive(DriveCommand::Serve(a)) => drive_serve(a).await,
        Command::Host(HostCommand::Serve(a)) => host_serve(a).await,
        Command::Ingest(a) => ingest(a, &stop).await,
        Command::Export(a) => export(a).await,
        Command::Generate(a) => tokio::task::block_in_place(|| generate(a)),
        Command::Sql(a) => sql(a).await,
        Command::Explain(a) => explain(a).await,
        Command::Ls(a) => ls(a).await,
        Command::Status(a) => status(a).await,
        Command::Drop(a) => drop_dataset(a).await,
        Command::Index(command) => index::run(command).await,
        Command::Scrub(a) => mending::scrub(a).await,
        Command::Repair(a) => mending::repair(a).await,
        Command::Fleet(command) => growing::run(command).await,
        Command::Calibrate(a) => calibrate(a).await,
    }
}

/// A fleet by its directory or its host's address.
pub(crate) async fn fleet(at: &str) -> Result<Fleet> {
    if is_host(at) {
        return Fleet::connect(at).await;
    }
    open(Path::new(at), HostOptions::default(), Profiles::default()).await
}

/// The fleet that is in a directory.
async fn open(dir: &Path, host: HostOptions, profile: Profiles) -> Result<Fleet> {
    Fleet::open_with(dir, &OpenOptions { create: false, profile, ..OpenOptions::default() }, host).await
}

pub(crate) fn name(text: &str) -> Result<DatasetName, Failure> {
    text.parse().map_err(Failure::Call)
}

async fn init(args: Init) -> Result<(), Failure> {
    if args.dir.join("fleet.json").exists() {
        return Err(Failure::Work(Error::conflict(format!("there is a fleet at {} already; `skytether status --fleet {0}` shows it", args.dir.display()))));
    }
    let hosts = args.hosts.map(usize::from);
    let options =
        OpenOptions { drives: Some(usize::from(args.drives)), redundancy: args.redundancy.to_string(), hosts, create: true, ..OpenOptions::default() };
    let fleet = Fleet::open(&args.dir, &options).await?;
    let status = fleet.status().await?;
    let on = hosts.map_or_else(String::new, |hosts| format!(" on {}", counted(hosts as u64, "host")));
    say(&format!("made a fleet of {}{on} at {}", counted(status.len() as u64, "drive"), args.dir.display()))?;
    Ok(())
}

/// Until Ctrl-C or, on Unix, SIGTERM.
fn interrupts() -> impl Future<Output = ()> + Send {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // From here on, and not from when somebody first waits.
        let (int, term) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        async move {
            match (int, term) {
                (Ok(mut int), Ok(mut term)) => {
                    tokio::select! {
                        _ = int.recv() => {}
                        _ = term.recv() => {}
                    }
                }
                _ => drop(tokio::signal::ctrl_c().await),
            }
        }
    }
    #[cfg(not(unix))]
    async {
        let _ = tokio::signal::ctrl_c().await;
    }
}

async fn listen(at: &str) -> Result<TcpListener> {
    TcpListener::bind(at).await.map_err(|e| {
        let hint = if e.kind() == std::io::ErrorKind::AddrInUse { " (another process does: choose another port)" } else { "" };
        Error::unavailable(format!("cannot listen on {at}{hint}")).because(e)
    })
}

fn address(listener: &TcpListener) -> Result<String> {
    Ok(format!("grpc://{}", listener.local_addr().map_err(|e| Error::unavailable("cannot learn the address that was bound").because(e))?))
}

async fn drive_serve(args: DriveServe) -> Result<(), Failure> {
    let label = args.name.clone().unwrap_or_else(|| args.data.file_name().map_or_else(|| "drive".into(), |n| n.to_string_lossy().into_owned()));
    let options = DriveOptions { max_load: args.max_load, ..DriveOptions::like(args.profile.device, args.memory.map(|mib| mib << 20)) };
    // First, so that a port that is taken leaves no new drive behind.
    let listener = listen(&args.listen).await?;
    let data = args.data.clone();
    let (drive, new) = tokio::task::spawn_blocking(move || {
        // Only a new drive gets the name and an identity; one that exists has its own.
        let new = !data.join("drive.json").exists();
        let id = args.replace.unwrap_or_else(Uuid::new_v4);
        let create = (new || args.replace.is_some()).then_some(DriveIdentity { id, name: label });
        Drive::open(&data, create, options).map(|drive| (drive, new))
    })
    .await
    .map_err(|e| Error::internal("opening the drive was interrupted").because(e))??;
    if new {
        // Whoever mistyped the directory of a drive that exists sees it here.
        eprintln!("made a new drive in {}", args.data.display());
    }
    let (at, stop) = (address(&listener)?, interrupts());
    say(&format!("{} serves {} at {at}", drive_name(&drive), args.data.display()))?;
    serve_until_interrupted(skytether_drive::serve(drive, listener, stop)).await
}

fn drive_name(drive: &std::sync::Arc<Drive>) -> String {
    skytether_wire::Storage::info(drive.as_ref()).name.clone()
}

/// The addresses of drives, each with the name of the host that it is on: semicolons stand between hosts. Where there are none, and a scheme across hosts is asked for, the hosts are those of the addresses; otherwise nobody knows.
fn hosts(given: &[String], redundancy: skytether_host::Scheme) -> Result<Vec<(String, Option<String>)>> {
    let (mut drives, mut host) = (Vec::new(), 0);
    let grouped = given.iter().any(|part| part.contains(';'));
    for part in given {
        for (n, at) in part.split(';').enumerate() {
            host += usize::from(n > 0);
            if at.is_empty() {
                return Err(Error::invalid(format!("{part:?} is no address of a drive: write --drives \"a:1,a:2;b:1,b:2\"")));
            }
            let own = match (grouped, redundancy.inner()) {
                (true, _) => Some(format!("host-{host}")),
                (false, Some(_)) => Some(skytether_host::host_of(at).to_owned()),
                (false, None) => None,
            };
            drives.push((at.to_owned(), own));
        }
    }
    Ok(drives)
}

async fn host_serve(args: HostServe) -> Result<(), Failure> {
    let memory_limit = usize::try_from(args.memory << 20).unwrap_or(usize::MAX);
    let mut options = HostOptions { memory_limit, spill_limit: args.spill_limit.saturating_mul(1 << 20), ..HostOptions::default() };
    options.slices.max_rows = args.slice_rows.unwrap_or(options.slices.max_rows);
    let (host, what, listener, _guard) = if let Some(dir) = &args.fleet {
        let given: Vec<String> = args.profile.into_iter().map(|profile| profile.given).collect();
        let profile = match given.as_slice() {
            [] => Profiles::default(),
            [all] => Profiles::Every(all.clone()),
            _ => Profiles::Each(given),
        };
        let fleet = open(dir, options, profile).await?;
        let host = fleet.host().ok_or_else(|| Error::internal("an embedded fleet has no host"))?.clone();
        (host, format!("the fleet at {}", dir.display()), listen(&args.listen).await?, Some(fleet))
    } else {
        let hosts = hosts(&args.drives, args.redundancy).map_err(Failure::Call)?;
        if args.as_drive.is_some() && args.drives.iter().any(|at| at.contains(';')) {
            return Err(Failure::Call(Error::invalid("the drives of a branch are one drive of the host above: name them without semicolons")));
        }
        let mut drives: Vec<std::sync::Arc<dyn Cse>> = Vec::new();
        let mut silent = Vec::new();
        let connection = ConnectOptions { idle_timeout: Duration::from_secs(args.drive_timeout), ..ConnectOptions::default() };
        for (at, on) in &hosts {
            match FlightCse::connect(at, connection.clone()).await {
                Ok(drive) => {
                    if let Some(on) = on {
                        options.hosts.insert(skytether_wire::Storage::info(drive.as_ref()).id, on.clone());
                    }
                    drives.push(drive);
                }
                // A fleet with redundancy does without it: the others know.
                Err(e) if e.kind() == Kind::Unavailable && args.as_drive.is_none() && hosts.len() > 1 => {
                    eprintln!("skytether: {e}");
                    options.silent.push(at.clone());
                    silent.push(e);
                }
                Err(e) => return Err(e.into()),
            }
        }
        if let Some(name) = &args.as_drive {
            // First, so that a port that is taken leaves no new branch behind.
            let listener = listen(&args.listen).await?;
            let link = args.link.map(|gbit| (gbit * 1e9, 0.0));
            let branch = Branch::open(name, drives, options, Founding::EmptyDrives, link).await?;
            let (at, stop) = (address(&listener)?, interrupts());
            say(&format!("{name} serves {} as one at {at}", counted(hosts.len() as u64, "drive")))?;
            return serve_until_interrupted(skytether_wire::flight::serve(branch, listener, stop)).await;
        }
        // First, so that where the port is taken, by another host of the same drives perhaps, that one keeps them.
        let listener = listen(&args.listen).await?;
        // The list was typed in: only empty drives become a fleet, and only exactly one fleet's drives are served.
        options.redundancy = args.redundancy;
        let host = match all_of(silent) {
            None => Host::join(drives, options, Founding::EmptyDrives).await?.0,
            Some(error) if drives.is_empty() => return Err(error.into()),
            Some(error) => match Host::join(drives, options, Founding::Never).await {
                Ok((host, _)) => host,
                Err(e) if e.kind() == Kind::Invalid => return Err(error.into()),
                Err(e) => return Err(e.because(error).into()),
            },
        };
        let what = match host.lost() {
            0 => counted(hosts.len() as u64, "drive"),
            lost => format!("{}, {lost} of which {} lost,", counted(host.drives().len() as u64, "drive"), if lost == 1 { "is" } else { "are" }),
        };
        (host, what, listener, None)
    };
    let (at, stop) = (address(&listener)?, interrupts());
    say(&format!("host serves {what} at {at}"))?;
    let watching = host.clone();
    let serving = async move {
        tokio::select! {
            served = skytether_host::server::serve(host, listener, stop) => served,
            never = watching.watch(WATCH) => match never {},
        }
    };
    serve_until_interrupted(serving).await
}

/// The errors of drives that don't answer, as one.
fn all_of(mut silent: Vec<Error>) -> Option<Error> {
    if silent.len() < 2 {
        return silent.pop();
    }
    let texts: Vec<_> = silent.iter().map(Error::full_text).collect();
    Some(Error::unavailable(format!("{} can't be reached: {}", counted(silent.len() as u64, "drive"), texts.join("; "))))
}

async fn serve_until_interrupted(serving: impl Future<Output = Result<()>>) -> Result<(), Failure> {
    serving.await?;
    eprintln!("stopped");
    Ok(())
}

/// A line on stdout, flushed: scripts wait for it.
pub(crate) fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::io("write", "standard output", e)),
        _ => Ok(()),
    }
}

async fn ingest(args: Ingest, stop: &Arc<Stop>) -> Result<(), Failure> {
    let to = name(&args.to)?;
    let fleet = fleet(&args.fleet.fleet).await?;
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
    say(&format!(
        "{to}: {} in {}, {} stored, {}",
        counted(report.rows, "row"),
        counted(report.slices, "slice"),
        human_bytes(report.bytes_stored),
        human_seconds(report.seconds)
    ))?;
    Ok(())
}

async fn sql(args: Sql) -> Result<(), Failure> {
    let fleet = fleet(&args.fleet.fleet).await?;
    let mut query = fleet.sql(&args.query, &QueryOptions { cut: args.cut, ..QueryOptions::default() }).await?;
    let mut sink = Sink::new(std::io::stdout(), &query.schema, args.format)?;
    while let Some(batch) = query.stream.next().await {
        sink.write(&batch?)?;
        if sink.gone {
            return Ok(());
        }
    }
    sink.finish()?;
    if args.receipt {
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        eprintln!("{}", query.receipt.receipt());
    }
    Ok(())
}

async fn explain(args: Explain) -> Result<(), Failure> {
    let options = QueryOptions { cut: args.cut, ..QueryOptions::default() };
    let explanation = fleet(&args.fleet.fleet).await?.explanation(&args.query, args.analyze, &options).await?;
    let text = match args.format {
        ExplainFormat::Text => explanation.to_string(),
        ExplainFormat::Json => listing::json(&explanation)?,
    };
    say(text.trim_end())?;
    Ok(())
}

async fn ls(args: Look) -> Result<(), Failure> {
    let found = fleet(&args.fleet.fleet).await?.listing().await?;
    let text = match args.format {
        // "no data sets" would be too much said where not every drive was heard.
        ListFormat::Table if found.datasets.is_empty() && !found.silent.is_empty() && !found.whole => String::new(),
        ListFormat::Table => listing::datasets(&found.datasets),
        ListFormat::Json => listing::json(&found.datasets)?,
    };
    if !text.is_empty() {
        say(text.trim_end())?;
    }
    if found.silent.is_empty() {
        return Ok(());
    }
    let drives: Vec<_> = found.silent.keys().map(String::as_str).collect();
    let (drives, are) = (drives.join(", "), if drives.len() == 1 { "is" } else { "are" });
    if found.whole {
        eprintln!("skytether: {drives} {are} lost; the list is whole, since the other drives have all root records (`skytether status` says what to do)");
        return Ok(());
    }
    let why: Vec<_> = found.silent.values().map(String::as_str).collect();
    Err(Failure::Work(Error::unavailable(format!("this list may lack data sets, since {drives} {are} lost: {}", why.join("; ")))))
}

/// How the drives are; where too many are lost for the fleet in a directory to be opened, with the error that says so.
async fn drives_of(at: &str) -> Result<(Vec<DriveStatus>, Option<Error>)> {
    let error = match fleet(at).await {
        Ok(fleet) => return Ok((fleet.status().await?, None)),
        Err(e) => e,
    };
    if is_host(at) || !matches!(error.kind(), Kind::Unavailable | Kind::Corrupt | Kind::NotFound) {
        return Err(error);
    }
    match Fleet::glance(Path::new(at)).await {
        Ok(found) if found.iter().any(|drive| drive.error.is_some()) => Ok((found, Some(error))),
        _ => Err(error),
    }
}

async fn status(args: Look) -> Result<(), Failure> {
    let (found, unopened) = drives_of(&args.fleet.fleet).await?;
    let text = match args.format {
        ListFormat::Table => listing::drives(&found),
        ListFormat::Json => listing::json(&found)?,
    };
    say(text.trim_end())?;
    if let Some(error) = unopened {
        return Err(Failure::Work(error));
    }
    let trouble = listing::trouble(&found);
    if !trouble.is_empty() {
        return Err(Failure::Work(Error::unavailable(trouble.join("; "))));
    }
    let unreadable: Vec<_> = found.iter().flat_map(|d| d.unreadable.iter().map(|u| u.name.to_string())).collect();
    if unreadable.is_empty() {
        return Ok(());
    }
    Err(Failure::Work(Error::corrupt(format!("{} can't be read: `skytether ls` says why", unreadable.join(", ")))))
}

async fn drop_dataset(args: Drop) -> Result<(), Failure> {
    let name = name(&args.name)?;
    fleet(&args.fleet.fleet).await?.drop_dataset(&name).await?;
    match args.format {
        ListFormat::Table => say(&format!("dropped {name}"))?,
        ListFormat::Json => say(&serde_json::json!({ "dropped": name.to_string() }).to_string())?,
    }
    Ok(())
}

async fn calibrate(args: Calibrate) -> Result<(), Failure> {
    let progress = Steps::new(skytether_fleet::calibrate::STEPS);
    let done = skytether_fleet::calibrate(&args.profile.given, args.dir.as_deref(), args.served, |what| progress.begin(what)).await;
    progress.finish();
    let found = done?;
    let text = if args.json { listing::json(&found)? } else { listing::calibration(&found) };
    say(text.trim_end())?;
    let off: Vec<&str> = found.measured.iter().filter(|m| !m.within).map(|m| m.key).collect();
    if off.is_empty() {
        return Ok(());
    }
    let (off, tolerance) = (off.join(", "), 100.0 * found.tolerance);
    Err(Failure::Work(Error::unavailable(format!(
        "more than {tolerance:.0}% off: {off}; this machine may have less than was asked, or be busy with something else"
    ))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semicolons_stand_between_hosts() {
        let named = |given: &str, scheme: &str| {
            let given: Vec<String> = given.split(',').map(str::to_owned).collect();
            hosts(&given, scheme.parse().unwrap()).map(|all| all.into_iter().map(|(at, host)| format!("{at}={}", host.unwrap_or_default())).collect::<Vec<_>>())
        };
        assert_eq!(named("a:1,a:2;b:1,b:2", "none").unwrap(), ["a:1=host-0", "a:2=host-0", "b:1=host-1", "b:2=host-1"]);
        assert_eq!(named("a:1;b:1;c:1", "none").unwrap(), ["a:1=host-0", "b:1=host-1", "c:1=host-2"]);
        assert_eq!(named("a:1,grpc://b:2", "ec:2+1").unwrap(), ["a:1=", "grpc://b:2="]);
        assert_eq!(named("a:1,grpc://b:2,[::1]:3", "ec:2+1/2+1").unwrap(), ["a:1=a", "grpc://b:2=b", "[::1]:3=[::1]"]);
        assert!(named("a:1,;b:1", "none").is_err() && named("a:1;;b:1", "none").is_err());
    }
}
