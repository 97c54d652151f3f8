//! `skytether ceph`: the query engine inside a Ceph cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use skytether_ceph::install::{self, OsdStatus, Places, UNIT_DIR};
use skytether_ceph::serve::{EngineOptions, serve};
use skytether_ceph::{SOCKETS, SOCKETS_VARIABLE};
use skytether_common::{Error, Result};
use skytether_rados::Address;

use crate::common_args::ListFormat;
use crate::context::{Failure, print_line};
use crate::listing;
use crate::output::columns;
use crate::serving::interrupts;

#[derive(Debug, Subcommand)]
pub(crate) enum CephCommand {
    /// Put the object class and the unit of the engine onto this machine, and let the OSDs load the class.
    #[command(after_help = "Run it on each machine with OSDs. Then, for each OSD N:\n  \
systemctl daemon-reload && systemctl enable --now skytether-ceph-engine@N")]
    Install(Install),
    /// Show which OSDs can run sub-plans, and why others can't.
    Status(CephStatus),
    /// Take the object class and the unit of the engine off this machine.
    Remove(Remove),
    /// Run the engine next to an OSD, as its unit does.
    Engine(EngineArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// The folder of the OSDs' object classes (default: that of Debian's or Red Hat's packages).
    #[arg(long, value_name = "DIR")]
    class_dir: Option<PathBuf>,
    /// The folder of systemd's units.
    #[arg(long, value_name = "DIR", default_value = UNIT_DIR)]
    unit_dir: PathBuf,
    /// A pool of the cluster whose monitors list the classes that OSDs may load: rados://POOL?conf=PATH. Without it the
    /// list is left as it is.
    #[arg(long, value_name = "URL")]
    cluster: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Install {
    #[command(flatten)]
    places: PlaceArgs,
    /// The library of the object class (default: next to the program).
    #[arg(long, value_name = "FILE")]
    class: Option<PathBuf>,
    /// The program that the unit runs (default: this one).
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Bytes of memory that one engine's plans may take together.
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 20)]
    memory: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    #[command(flatten)]
    places: PlaceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CephStatus {
    /// A pool that has parts on all OSDs: rados://POOL?conf=PATH. Objects of one byte are made there for a moment.
    #[arg(long, value_name = "URL")]
    cluster: String,
    /// How it is printed.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// The OSD's number.
    #[arg(long, value_name = "NUMBER")]
    osd: u32,
    /// The folder of the sockets. Where it is another one than this default, the OSD needs it in the variable
    /// SKYTETHER_CEPH_SOCKETS.
    #[arg(long, value_name = "DIR", env = SOCKETS_VARIABLE, default_value = SOCKETS)]
    sockets: PathBuf,
    /// Bytes of memory that all plans may take together.
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 20)]
    memory: u64,
    /// How many plans run at the same time.
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrent: u16,
}

impl PlaceArgs {
    fn places(&self) -> Result<Places> {
        let classes = self.class_dir.clone().map_or_else(install::class_dir, Ok)?;
        Ok(Places { classes, units: self.unit_dir.clone() })
    }

    /// Changes the monitors' list, if they are named.
    fn allow(&self, with: bool) -> Result<Vec<String>> {
        let at = self.cluster.as_deref().map(Address::parse).transpose()?;
        at.map_or_else(|| Ok(Vec::new()), |at| install::allow(&at, with))
    }
}

fn program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| Error::unavailable("this program's own file can't be found: name it with --program").with_source(e))
}

fn installed(args: &Install) -> Result<Vec<String>> {
    let program = args.program.clone().map_or_else(program, Ok)?;
    let library = args.class.clone().map_or_else(|| install::library(&program), Ok)?;
    let mut lines = install::install(&args.places.places()?, &library, &program, args.memory)?;
    lines.extend(args.places.allow(true)?);
    Ok(lines)
}

fn removed(args: &Remove) -> Result<Vec<String>> {
    let mut lines = args.places.allow(false)?;
    lines.extend(install::remove(&args.places.places()?)?);
    Ok(lines)
}

fn listed(found: &[OsdStatus], format: ListFormat) -> Result<String> {
    match format {
        ListFormat::Json => {
            let one = |osd: &OsdStatus| {
                json!({"osd": format!("osd.{}", osd.osd), "class": osd.class.as_ref().ok(), "engine": osd.engine.as_ref().ok(),
                    "why": osd.class.as_ref().err().or(osd.engine.as_ref().err())})
            };
            listing::json(&found.iter().map(one).collect::<Vec<_>>())
        }
        ListFormat::Table => {
            let text = |found: &Result<String, String>| found.clone().unwrap_or_else(|_| "-".to_owned());
            let row = |osd: &OsdStatus| {
                let why = osd.class.as_ref().err().or(osd.engine.as_ref().err()).cloned().unwrap_or_default();
                vec![format!("osd.{}", osd.osd), text(&osd.class), text(&osd.engine), why]
            };
            Ok(columns(&["osd", "class", "engine", "why not"], &[false; 4], &found.iter().map(row).collect::<Vec<_>>()))
        }
    }
}

/// Carries out a command about Ceph.
pub(crate) async fn run(command: CephCommand) -> Result<(), Failure> {
    let lines = match command {
        CephCommand::Engine(args) => {
            let socket = args.sockets.join(skytether_ceph::socket_name(args.osd));
            let options = EngineOptions { osd: args.osd, socket, memory: args.memory, concurrent: args.concurrent.into() };
            eprintln!("the engine next to osd.{} listens at {}", options.osd, options.socket.display());
            return Ok(serve(options, interrupts()).await?);
        }
        CephCommand::Install(args) => tokio::task::block_in_place(|| installed(&args))?,
        CephCommand::Remove(args) => tokio::task::block_in_place(|| removed(&args))?,
        CephCommand::Status(args) => {
            let at = Address::parse(&args.cluster)?;
            let found = tokio::task::block_in_place(|| install::status(&at))?;
            vec![listed(&found, args.format)?.trim_end().to_owned()]
        }
    };
    for line in lines {
        print_line(&line)?;
    }
    Ok(())
}
