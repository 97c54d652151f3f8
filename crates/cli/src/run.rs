//! Each command, carried out.

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use skytether_common::units::{human_bytes, human_seconds};
use skytether_common::{Context, DatasetName, Error, Result};
use skytether_drive::{Drive, DriveOptions};
use skytether_fleet::{Fleet, OpenOptions, files};
use skytether_host::{Cut, Founding, Host, HostOptions, QueryOptions};
use skytether_store::disk::DriveIdentity;
use skytether_wire::Cse;
use skytether_wire::flight::{ConnectOptions, FlightCse};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::args::{Command, DriveCommand, DriveServe, Drop, Explain, ExplainFormat, HostCommand, HostServe, Ingest, Init, ListFormat, Look, Sql};
use crate::listing;
use crate::output::Sink;
use crate::progress::Rows;

/// Why a command ended early: the distinction is the exit status.
pub(crate) enum Failure {
    /// The call was wrong.
    Call(Error),
    /// The work failed.
    Work(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Work(error)
    }
}

/// Carries out one command.
pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Init(a) => init(a).await,
        Command::Drive(DriveCommand::Serve(a)) => drive_serve(a).await,
        Command::Host(HostCommand::Serve(a)) => host_serve(a).await,
        Command::Ingest(a) => ingest(a).await,
        Command::Sql(a) => sql(a).await,
        Command::Explain(a) => explain(a).await,
        Command::Ls(a) => ls(a).await,
        Command::Status(a) => status(a).await,
        Command::Drop(a) => drop_dataset(a).await,
    }
}

/// A fleet by its directory or its host's address.
async fn fleet(at: &str) -> Result<Fleet> {
    if at.contains("://") {
        return Fleet::connect(at).await;
    }
    open(Path::new(at), HostOptions::default()).await
}

/// The fleet that is in a directory.
async fn open(dir: &Path, host: HostOptions) -> Result<Fleet> {
    Fleet::open_with(dir, &OpenOptions { create: false, ..OpenOptions::default() }, host).await
}

fn name(text: &str) -> Result<DatasetName, Failure> {
    text.parse().map_err(Failure::Call)
}

async fn init(args: Init) -> Result<(), Failure> {
    if args.redundancy != "none" {
        return Err(Failure::Call(Error::unsupported(format!("redundancy {:?} is not known to this version; use none", args.redundancy))));
    }
    if args.dir.join("fleet.json").exists() {
        return Err(Failure::Work(Error::conflict(format!("there is a fleet at {} already; `skytether status --fleet {0}` shows it", args.dir.display()))));
    }
    let options = OpenOptions { drives: Some(usize::from(args.drives)), redundancy: args.redundancy, create: true, ..OpenOptions::default() };
    let fleet = Fleet::open(&args.dir, &options).await?;
    let status = fleet.status().await?;
    say(&format!("made a fleet of {} drives at {}", status.len(), args.dir.display()))?;
    Ok(())
}

/// Until Ctrl-C or, on Unix, SIGTERM.
async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut term) => {
                tokio::select! {
                    _ = tokio::signal::ctrl_c() => {}
                    _ = term.recv() => {}
                }
            }
            Err(_) => {
                let _ = tokio::signal::ctrl_c().await;
            }
        }
    }
    #[cfg(not(unix))]
    {
        let _ = tokio::signal::ctrl_c().await;
    }
}

async fn listen(at: &str) -> Result<TcpListener> {
    TcpListener::bind(at).await.map_err(|e| Error::unavailable(format!("cannot listen on {at}: is the port taken?")).because(e))
}

fn address(listener: &TcpListener) -> Result<String> {
    Ok(format!("grpc://{}", listener.local_addr().map_err(|e| Error::unavailable("cannot learn the address that was bound").because(e))?))
}

async fn drive_serve(args: DriveServe) -> Result<(), Failure> {
    if args.profile != "unlimited" {
        return Err(Failure::Call(Error::unsupported(format!("profile {:?} is not known to this version; use unlimited", args.profile))));
    }
    let label = args.name.clone().unwrap_or_else(|| args.data.file_name().map_or_else(|| "drive".into(), |n| n.to_string_lossy().into_owned()));
    let options = DriveOptions { memory_limit: args.memory << 20, ..DriveOptions::default() };
    let data = args.data.clone();
    let drive = tokio::task::spawn_blocking(move || {
        // Only a new drive gets the name and an identity; one that exists has its own.
        let create = (!data.join("drive.json").exists()).then(|| DriveIdentity { id: Uuid::new_v4(), name: label });
        Drive::open(&data, create, options)
    })
    .await
    .map_err(|e| Error::internal("opening the drive was interrupted").because(e))??;
    let listener = listen(&args.listen).await?;
    let at = address(&listener)?;
    say(&format!("{} serves {} at {at}", drive_name(&drive), args.data.display()))?;
    serve_until_interrupted(skytether_drive::serve(drive, listener, interrupted())).await
}

fn drive_name(drive: &std::sync::Arc<Drive>) -> String {
    skytether_wire::Storage::info(drive.as_ref()).name.clone()
}

async fn host_serve(args: HostServe) -> Result<(), Failure> {
    let memory_limit = usize::try_from(args.memory << 20).unwrap_or(usize::MAX);
    let options = HostOptions { memory_limit, spill_limit: args.spill_limit.saturating_mul(1 << 20), ..HostOptions::default() };
    let (host, what, _guard) = if let Some(dir) = &args.fleet {
        let fleet = open(dir, options).await?;
        let host = fleet.host().ok_or_else(|| Error::internal("an embedded fleet has no host"))?.clone();
        (host, format!("the fleet at {}", dir.display()), Some(fleet))
    } else {
        let mut drives: Vec<std::sync::Arc<dyn Cse>> = Vec::new();
        let connection = ConnectOptions { idle_timeout: Duration::from_secs(args.drive_timeout), ..ConnectOptions::default() };
        for at in &args.drives {
            drives.push(
                FlightCse::connect(at, connection.clone())
                    .await
                    .context(|| format!("cannot reach the drive at {at}; is `skytether drive serve` running there?"))?,
            );
        }
        // The list was typed in: only empty drives become a fleet, and only exactly one fleet's drives are served.
        let (host, _) = Host::join(drives, options, Founding::EmptyDrives).await?;
        (host, format!("{} drives", args.drives.len()), None)
    };
    let listener = listen(&args.listen).await?;
    let at = address(&listener)?;
    say(&format!("host serves {what} at {at}"))?;
    serve_until_interrupted(skytether_host::server::serve(host, listener, interrupted())).await
}

async fn serve_until_interrupted(serving: impl Future<Output = Result<()>>) -> Result<(), Failure> {
    serving.await?;
    eprintln!("stopped");
    Ok(())
}

/// A line on stdout, flushed: scripts wait for it.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    match written {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::io("write", "standard output", e)),
        _ => Ok(()),
    }
}

async fn ingest(args: Ingest) -> Result<(), Failure> {
    let to = name(&args.to)?;
    let fleet = fleet(&args.fleet.fleet).await?;
    let table = files::open(&args.files)?;
    let progress = Rows::new(&format!("writing {to}"), table.rows);
    let count = progress.counter();
    let batches = table.batches.inspect(move |batch| {
        if let Ok(batch) = batch {
            count(batch.num_rows());
        }
    });
    let done = fleet.ingest_table(&to, table.schema, batches, args.replace).await;
    progress.finish();
    let report = done?;
    say(&format!("{to}: {} rows in {} slices, {} stored, {}", report.rows, report.slices, human_bytes(report.bytes_stored), human_seconds(report.seconds)))?;
    Ok(())
}

/// What `--cut` says.
fn cut(text: &str) -> Result<Cut, Failure> {
    text.parse().map_err(|_| Failure::Call(Error::invalid(format!("--cut {text:?}: use adaptive, full, filter or raw"))))
}

async fn sql(args: Sql) -> Result<(), Failure> {
    let cut = cut(&args.cut)?;
    let fleet = fleet(&args.fleet.fleet).await?;
    let mut query = fleet.sql(&args.query, &QueryOptions { cut, ..QueryOptions::default() }).await?;
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
    let options = QueryOptions { cut: cut(&args.cut)?, ..QueryOptions::default() };
    let explanation = fleet(&args.fleet.fleet).await?.explanation(&args.query, args.analyze, &options).await?;
    let text = match args.format {
        ExplainFormat::Text => explanation.to_string(),
        ExplainFormat::Json => listing::json(&explanation)?,
    };
    say(text.trim_end())?;
    Ok(())
}

async fn ls(args: Look) -> Result<(), Failure> {
    let found = fleet(&args.fleet.fleet).await?.list().await?;
    let text = match args.format {
        ListFormat::Table => listing::datasets(&found),
        ListFormat::Json => listing::json(&found)?,
    };
    say(text.trim_end())?;
    Ok(())
}

async fn status(args: Look) -> Result<(), Failure> {
    let found = fleet(&args.fleet.fleet).await?.status().await?;
    let text = match args.format {
        ListFormat::Table => listing::drives(&found),
        ListFormat::Json => listing::json(&found)?,
    };
    say(text.trim_end())?;
    if let Some(silent) = found.iter().find_map(|d| d.error.as_ref().map(|e| format!("{} does not answer: {e}", d.info.name))) {
        return Err(Failure::Work(Error::unavailable(silent)));
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
