//! `skytether drive serve`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use skytether_common::Error;
use skytether_drive::{Device, Drive, DriveOptions};
use skytether_store::disk::DriveIdentity;
use uuid::Uuid;

use crate::common_args::{Profile, device};
use crate::context::Failure;
use crate::doors;
use crate::serving::ServeArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum DriveCommand {
    /// Serve one drive over Arrow Flight until interrupted.
    Serve(Box<DriveServe>),
}

#[derive(Debug, Args)]
pub(crate) struct DriveServe {
    /// The drive's directory; made where absent.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    serve: ServeArgs,
    /// The drive's name in receipts and errors (default: its directory's name).
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Make a new, blank drive with this id, in the place of a lost drive; `skytether repair` then rebuilds its
    /// content. The directory must be empty, or hold that drive.
    #[arg(long, value_name = "ID")]
    replace: Option<uuid::Uuid>,
    /// The device that the drive emulates: its processor, memory, disk and link bound the drive. A shipped profile
    /// (envoy, newport, server, unlimited) or a TOML file of your own; `skytether calibrate` measures whether the drive
    /// keeps to it.
    #[arg(long, value_name = "NAME|FILE", default_value = "unlimited", value_parser = device(Device::enforced))]
    profile: Profile,
    /// How many times their processor time slices may take before the drive takes no more, and gives back slices that
    /// it has not begun. The host then processes them instead.
    #[arg(long, value_name = "TIMES", default_value_t = 32.0, value_parser = times)]
    max_load: f64,
    /// Memory that queries may use on this drive, in MiB (default: what its profile says, at most; 512 without one).
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..))]
    memory: Option<u64>,
    /// Disk that results may take which the drive keeps to answer the same test again, in MiB; 0 keeps none.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    kept: u64,
}

/// Parses a load, which is 1 at least.
fn times(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if times > 1.0 => Ok(times),
        _ => Err("a number above 1 is wanted, such as 8; inf for no bound".to_owned()),
    }
}

/// Runs a command about drives.
pub(crate) async fn run(command: DriveCommand) -> Result<(), Failure> {
    match command {
        DriveCommand::Serve(args) => serve(*args).await,
    }
}

async fn serve(args: DriveServe) -> Result<(), Failure> {
    let label = args.name.clone().unwrap_or_else(|| args.data.file_name().map_or_else(|| "drive".into(), |n| n.to_string_lossy().into_owned()));
    let options =
        DriveOptions { max_load: args.max_load, kept_bytes: args.kept << 20, ..DriveOptions::like(args.profile.device, args.memory.map(|mib| mib << 20)) };
    // First, so that a port that is taken leaves no new drive behind.
    let doors = doors::of_drives();
    let bound = args.serve.bind(&skytether_doors::securities(&doors), None).await?;
    let data = args.data.clone();
    let (drive, new) = tokio::task::spawn_blocking(move || {
        // Only a new drive gets the name and an identity; one that exists has its own.
        let new = !data.join("drive.json").exists();
        let id = args.replace.unwrap_or_else(Uuid::new_v4);
        let create = (new || args.replace.is_some()).then_some(DriveIdentity { id, name: label });
        Drive::open(&data, create, options).map(|drive| (drive, new))
    })
    .await
    .map_err(|e| Error::internal("opening the drive was interrupted").with_source(e))??;
    if new {
        // Shows the mistake if the directory of an existing drive was mistyped.
        eprintln!("made a new drive in {}", args.data.display());
    }
    let who = format!("{} serves {}", drive_name(&drive), args.data.display());
    bound.serve(&who, move |listener, context| Ok(Arc::clone(doors.get(listener.endpoint())?).serve(drive.clone(), listener, context))).await
}

fn drive_name(drive: &Arc<Drive>) -> String {
    skytether_device::Storage::info(drive.as_ref()).name.clone()
}
