//! `skytether program`: programs inside Kinetic drives.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use skytether_common::units::human_bytes;
use skytether_common::{Error, Result};
use skytether_kinetic::library::{ProgramLibrary, ProgramRun, StoredProgram};
use skytether_kinetic::watching::word;
use skytether_kinetic::{ClientOptions, Identity, MessageType, Noticed, Watched};
use skytether_transport::Endpoint;

use crate::common_args::ListFormat;
use crate::context::{Failure, print_line};
use crate::listing;
use crate::output::columns;

#[derive(Debug, Subcommand)]
pub(crate) enum ProgramCommand {
    /// Put a program on a drive, and have the drive check it.
    #[command(after_help = "A program is an eBPF object (`clang -target bpf -mcpu=v3 -O2 -c words.c`), a WebAssembly module, \
or, where the drive allows them, an executable.\n\n\
Example:\n  skytether program put words.o --drive kinetic://127.0.0.1:8123")]
    Put(ProgramPut),
    /// Run a program next to the drive's values, and print what it prints. The exit status is the program's.
    #[command(after_help = "Example:\n  skytether program run words text --drive kinetic://127.0.0.1:8123")]
    Run(ProgramRunArgs),
    /// Have the drive run a program after each change of some keys, and print a line for each run.
    #[command(after_help = "The drive gives the program two more arguments: the key, and PUT or DELETE. The watch ends with \
this command (Ctrl-C); with --stay it belongs to the drive, until `program unwatch` or the drive's restart.\n\n\
Example:\n  skytether program watch words --first text/ --last text0 --drive kinetic://127.0.0.1:8123")]
    Watch(ProgramWatch),
    /// End the watches of a program.
    Unwatch(ProgramRm),
    /// List the programs that a drive has, and how often each runs now.
    Ls(ProgramLs),
    /// Remove a program from a drive.
    Rm(ProgramRm),
}

#[derive(Debug, Args)]
pub(crate) struct DriveArg {
    /// The drive: kinetic://HOST:PORT, or kinetics://HOST:PORT with TLS. SKYTETHER_KINETIC_IDENTITY and
    /// SKYTETHER_KINETIC_KEY say as whom (default: as any new drive knows).
    #[arg(long, value_name = "URL", env = "SKYTETHER_DRIVE")]
    drive: Endpoint,
    /// The authorities whose certificates are trusted, a PEM file (default: the variable SKYTETHER_TLS_CA, or those
    /// that the system trusts).
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramPut {
    /// The program's file.
    file: PathBuf,
    #[command(flatten)]
    at: DriveArg,
    /// Its name on the drive (default: the file's name without its extension).
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramRunArgs {
    /// The program's name.
    name: String,
    /// Its arguments; often the keys that it reads. Put `--` in front of those that begin with a hyphen.
    #[arg(value_name = "ARGUMENT")]
    arguments: Vec<String>,
    #[command(flatten)]
    at: DriveArg,
    #[command(flatten)]
    ends: EndArgs,
    /// Write its output to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// What becomes of a run.
#[derive(Debug, Args)]
struct EndArgs {
    /// Put the output of a run under this key of the drive.
    #[arg(long, value_name = "KEY")]
    output_key: Option<String>,
    /// End a run after this many seconds (default: when the drive does).
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
}

impl EndArgs {
    fn run(self, arguments: Vec<String>) -> ProgramRun {
        ProgramRun { arguments: arguments.into_iter().map(Bytes::from).collect(), output_key: self.output_key.map(Bytes::from), most: self.timeout }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ProgramWatch {
    /// The program's name.
    name: String,
    /// Its arguments in front of the key and the change. Put `--` in front of those that begin with a hyphen.
    #[arg(value_name = "ARGUMENT")]
    arguments: Vec<String>,
    #[command(flatten)]
    at: DriveArg,
    /// The first key that is watched.
    #[arg(long, value_name = "KEY")]
    first: String,
    /// The last key that is watched (default: there is no last one).
    #[arg(long, value_name = "KEY", default_value = "", hide_default_value = true)]
    last: String,
    /// Which changes start it.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = On::Both)]
    on: On,
    #[command(flatten)]
    ends: EndArgs,
    /// Leave the watch with the drive, and end at once.
    #[arg(long)]
    stay: bool,
    /// How to print runs: a line of text, or of JSON.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

/// Changes of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum On {
    /// Values that are put.
    Put,
    /// Keys that are deleted.
    Delete,
    /// Both.
    Both,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramLs {
    #[command(flatten)]
    at: DriveArg,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramRm {
    /// The program's name.
    name: String,
    #[command(flatten)]
    at: DriveArg,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(time) if !time.is_zero() => Ok(time),
        _ => Err("a number of seconds above 0 is wanted, such as 2.5".to_owned()),
    }
}

impl DriveArg {
    async fn open(&self) -> Result<ProgramLibrary> {
        ProgramLibrary::connect(&self.drive, ClientOptions::of(Identity::from_environment()?, self.tls_ca.clone())).await
    }
}

/// Carries out a command about programs.
pub(crate) async fn run(command: ProgramCommand) -> Result<(), Failure> {
    match command {
        ProgramCommand::Put(args) => put(args).await,
        ProgramCommand::Run(args) => execute(args).await,
        ProgramCommand::Watch(args) => watch(args).await,
        ProgramCommand::Unwatch(args) => {
            args.at.open().await?.unwatch(&args.name).await?;
            eprintln!("ended the watches of the program {}", args.name);
            Ok(())
        }
        ProgramCommand::Ls(args) => {
            let programs = args.at.open().await?.list().await?;
            let listed = match args.format {
                ListFormat::Json => listing::json(&programs)?,
                ListFormat::Table if programs.is_empty() => "no programs".to_owned(),
                ListFormat::Table => table(&programs),
            };
            print_line(listed.trim_end())?;
            Ok(())
        }
        ProgramCommand::Rm(args) => {
            args.at.open().await?.remove(&args.name).await?;
            eprintln!("removed the program {}", args.name);
            Ok(())
        }
    }
}

async fn put(args: ProgramPut) -> Result<(), Failure> {
    let title = args.file.display().to_string();
    let program = std::fs::read(&args.file).map_err(|e| Error::io("read", &title, e))?;
    let stem = args.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = args.name.or(stem).unwrap_or_default();
    let stored = args.at.open().await?.put(&name, program.into()).await?;
    eprintln!("put the program {name} ({}, {}); run it with: skytether program run {name}", stored.language.as_str(), human_bytes(stored.bytes));
    Ok(())
}

async fn execute(args: ProgramRunArgs) -> Result<(), Failure> {
    let run = args.ends.run(args.arguments);
    let ended = args.at.open().await?.run(&args.name, run).await?;
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(&ended.result.output).and_then(|()| out.flush());
    drop(out);
    if let Err(e) = printed.or_else(|e| if e.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(e) }) {
        return Err(Error::io("write", "standard output", e).into());
    }
    if let Some(file) = args.save {
        std::fs::write(&file, &ended.value).map_err(|e| Error::io("write", file.display().to_string(), e))?;
    }
    match (ended.result.signal, ended.result.exit_code) {
        (0, 0) => Ok(()),
        // As a shell does.
        (0, code) => Err(Failure::Status(u8::try_from(code).unwrap_or(u8::MAX))),
        (signal, _) => {
            eprintln!("skytether: the drive ended the program {} with signal {signal}: {}", args.name, ended.result.message);
            Err(Failure::Status(u8::try_from(128 + signal).unwrap_or(u8::MAX)))
        }
    }
}

async fn watch(args: ProgramWatch) -> Result<(), Failure> {
    let kinds = match args.on {
        On::Put => vec![MessageType::Put],
        On::Delete => vec![MessageType::Delete],
        On::Both => Vec::new(),
    };
    let changes = Watched { first: args.first.into(), last: args.last.into(), kinds };
    let run = args.ends.run(args.arguments);
    // Registered first: Ctrl-C from here on ends the watch, too.
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let library = tokio::select! {
        library = args.at.open() => library?,
        _ = &mut interrupted => return Err(Failure::Stopped("stopped")),
    };
    let mut setting = std::pin::pin!(library.watch(&args.name, changes, run));
    let mut watching = tokio::select! {
        watching = &mut setting => watching?,
        _ = &mut interrupted => {
            // The drive may have the watch, and its answer is on the way. Ctrl-C again does not wait for it.
            let end = async {
                match setting.await {
                    Ok(watching) => watching.end().await,
                    Err(_) => Ok(()),
                }
            };
            tokio::select! {
                ended = end => ended?,
                _ = tokio::signal::ctrl_c() => {}
            }
            return Err(Failure::Stopped("stopped"));
        }
    };
    if args.stay {
        eprintln!("the drive watches; `skytether program unwatch {}` ends it", args.name);
        return Ok(());
    }
    eprintln!("watching; Ctrl-C ends it");
    let mut lost = 0;
    let ended = loop {
        let noticed = tokio::select! {
            noticed = watching.next() => noticed,
            _ = &mut interrupted => break Ok(()),
        };
        if watching.missed() > lost {
            lost = watching.missed();
            eprintln!("skytether: runs came faster than they were printed: {lost} are not shown");
        }
        let mut out = std::io::stdout().lock();
        let printed = noticed.and_then(|noticed| line(&noticed, args.format)).map(|line| writeln!(out, "{line}").and_then(|()| out.flush()));
        match printed {
            Ok(Ok(())) => {}
            Ok(Err(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => break Ok(()),
            Ok(Err(e)) => break Err(Error::io("write", "standard output", e)),
            Err(e) => break Err(e),
        }
    };
    let unwatched = watching.end().await;
    Ok(ended.and(unwatched)?)
}

/// A run, as JSON.
#[derive(Debug, Serialize)]
struct Run<'a> {
    key: String,
    change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    message: String,
    printed: std::borrow::Cow<'a, str>,
}

fn line(noticed: &Noticed, format: ListFormat) -> Result<String> {
    let key = String::from_utf8_lossy(&noticed.key).into_owned();
    let change = word(noticed.kind);
    let run = match &noticed.ended {
        Ok(ended) => {
            let printed = String::from_utf8_lossy(&ended.output);
            Run { key, change, code: Some(ended.exit_code), signal: Some(ended.signal), message: ended.message.clone(), printed }
        }
        Err(refusal) => Run { key, change, code: None, signal: None, message: refusal.to_string(), printed: "".into() },
    };
    Ok(match (format, run.code, run.signal) {
        (ListFormat::Json, ..) => serde_json::to_string(&run).map_err(|e| Error::internal("a run is no JSON").with_source(e))?,
        (ListFormat::Table, Some(code), Some(0)) => format!("{change} {}: exit code {code}: {}", run.key, run.printed.trim_end()),
        (ListFormat::Table, Some(_), Some(signal)) => format!("{change} {}: ended with signal {signal}: {}", run.key, run.message),
        (ListFormat::Table, ..) => format!("{change} {}: did not run: {}", run.key, run.message),
    })
}

fn table(programs: &[StoredProgram]) -> String {
    let row = |program: &StoredProgram| {
        vec![program.name.clone(), program.language.as_str().to_owned(), human_bytes(program.bytes), program.keys.to_string(), program.running.to_string()]
    };
    columns(&["name", "language", "size", "keys", "running"], &[false, false, true, true, true], &programs.iter().map(row).collect::<Vec<_>>())
}
