//! `skytether drive serve`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use skytether_common::Error;
use skytether_doors::{ConnectOptions, DriveDoor};
use skytether_drive::{Device, Drive, DriveOptions};
use skytether_kinetic_server::{Kinetic, Options, Profile as LimitsProfile, QueryEngine, StoredSlices};
use skytether_kv::KeyValues;
use skytether_store::disk::DriveIdentity;
use skytether_transport::Credentials;
use skytether_volume::StorageBacking;
use uuid::Uuid;

use crate::common_args::{Profile, device};
use crate::context::Failure;
use crate::doors;
use crate::serving::ServeArgs;
use crate::volumes::{DIRECTORY, VolumeArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum DriveCommand {
    /// Serve one drive until interrupted: over Arrow Flight, to clients of Kinetic drives, and its volumes as disks.
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
    /// Which limits the drive announces to Kinetic clients: those of a real drive (keys of 1,024 bytes, batches of 64
    /// MiB), or those of the Java simulator (keys of 4,096 bytes, batches of 15 operations).
    #[arg(long, value_enum, value_name = "NAME", default_value_t = KineticLimits::Drive)]
    kinetic_limits: KineticLimits,
    /// Refuse requests of Kinetic clients that do not have the connection id of the drive's greeting.
    #[arg(long)]
    kinetic_connection_ids: bool,
    /// Run native programs of Kinetic clients that may run programs: statically linked ELF files in name spaces of
    /// their own, under Landlock, seccomp and limits, with their caller's rights. Off by default, because the kernel
    /// alone then stands between a client's program and this machine. Where it cannot contain programs, the drive does
    /// not start.
    #[arg(long)]
    kinetic_native_programs: bool,
    #[command(flatten)]
    volumes: VolumeArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum KineticLimits {
    Drive,
    Java,
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
    let bound = args.serve.bind(&doors::schemes_of_drives(), None).await?;
    args.volumes.check(&args.data, &bound)?;
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
    let mut doors = doors::of_drives();
    if bound.listeners.iter().any(|listener| crate::drives::is_kinetic(listener.endpoint())) {
        let directory = args.data.join("kinetic");
        let profile = match args.kinetic_limits {
            KineticLimits::Drive => LimitsProfile::Drive,
            KineticLimits::Java => LimitsProfile::Java,
        };
        // To peers that it pushes values to: the authority of SKYTETHER_TLS_CA counts.
        let connect = ConnectOptions { credentials: Credentials::default().or_environment(), ..ConnectOptions::default() };
        let options = Options {
            profile,
            enforce_connection_id: args.kinetic_connection_ids,
            native_programs: args.kinetic_native_programs,
            directory: Some(directory.clone()),
            connect,
            ..Options::default()
        };
        let checked = options.clone();
        let opening = tokio::task::spawn_blocking(move || {
            checked.check()?;
            KeyValues::open(&directory, &skytether_kv::Options::default())
        });
        let keys = opening.await.map_err(|e| Error::internal("opening the keys of Kinetic clients was interrupted").with_source(e))??;
        let keys = Arc::new(keys);
        let slices = Arc::new(StoredSlices::new(Arc::clone(&keys)));
        let queries = Some(QueryEngine::new(Arc::clone(&slices), drive.over(slices)?));
        for door in Kinetic::doors(keys, Options { queries, ..options }) {
            doors.register(door.scheme(), door);
        }
    }
    let who = format!("{} serves {}", drive_name(&drive), args.data.display());
    let journals = args.data.join(DIRECTORY);
    let volumes = if args.volumes.are_wanted(&journals, &bound) {
        let backing = Arc::new(StorageBacking::new(drive.clone())?);
        Some(args.volumes.open((backing, &drive), &journals, &bound, &mut doors, skytether_volume::Options::default()).await?)
    } else {
        None
    };
    let served = bound.serve(&who, move |listener, context| Ok(Arc::clone(doors.get(listener.endpoint())?).serve(drive.clone(), listener, context))).await;
    if let Some(volumes) = volumes {
        volumes.close().await?;
    }
    served
}

fn drive_name(drive: &Arc<Drive>) -> String {
    skytether_device::Storage::info(drive.as_ref()).name.clone()
}
