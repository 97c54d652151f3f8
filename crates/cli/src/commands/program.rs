//! `skytether program`: programs inside Kinetic drives.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use skytether_common::units::human_bytes;
use skytether_common::{Error, Result};
use skytether_kinetic::library::{ProgramLibrary, ProgramRun, StoredProgram};
use skytether_kinetic::{ClientOptions, Identity};
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
    /// Put its output under this key of the drive.
    #[arg(long, value_name = "KEY")]
    output_key: Option<String>,
    /// Write its output to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// End it after this many seconds (default: when the drive does).
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
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
    let run = ProgramRun { arguments: args.arguments.into_iter().map(Bytes::from).collect(), output_key: args.output_key.map(Bytes::from), most: args.timeout };
    let ended = args.at.open().await?.run(&args.name, run).await?;
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(&ended.result.output).and_then(|()| out.flush());
    drop(out);
    if let Err(e) = printed.or_else(|e| if e.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(e) }) {
        return Err(Error::io("write", "standard output", e).into());
    }
    if let Some(file) = args.save {
        std::fs::write(&file, &ended.value).map_err(|e| Error::io("write", &file.display().to_string(), e))?;
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

fn table(programs: &[StoredProgram]) -> String {
    let row = |program: &StoredProgram| {
        vec![program.name.clone(), program.language.as_str().to_owned(), human_bytes(program.bytes), program.keys.to_string(), program.running.to_string()]
    };
    columns(&["name", "language", "size", "keys", "running"], &[false, false, true, true, true], &programs.iter().map(row).collect::<Vec<_>>())
}
