//! `skytether volume`: the volumes of a drive or a fleet that is not served at the moment, and snapshots of those that
//! a host serves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use skytether::Profiles;
use skytether::address::is_host;
use skytether_common::units::{counted, human_bytes};
use skytether_common::{Error, Result};
use skytether_drive::{Drive, DriveOptions};
use skytether_flight::RemoteHost;
use skytether_host::{Host, HostOptions};
use skytether_iscsi::RESERVATIONS;
use skytether_volume::{Options, StorageBacking, VolumeName, Volumes};

use crate::commands::host::over;
use crate::common_args::{ClientArgs, ListFormat};
use crate::context::{Failure, open as open_fleet, print_line};
use crate::fleet_volumes;
use crate::listing;
use crate::output::columns;
use crate::volumes::DIRECTORY;

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// List the volumes of a drive or a fleet with their snapshots.
    Ls(Ls),
    /// Keep the present content of a volume under a name. No data is copied.
    Snapshot(Snapshot),
    /// Make a volume with the content of a snapshot. No data is copied.
    Clone(CloneVolume),
    /// Remove a volume with its snapshots, or a snapshot.
    Rm(Rm),
    /// Verify what a drive or a fleet holds of its volumes, and name what is damaged.
    Scrub(ScrubVolumes),
    /// Give up the persistent reservations of iSCSI initiators that a volume keeps over restarts, also where they can't
    /// be read. Initiators must register again; until then none is fenced off.
    ForgetReservations(ForgetReservations),
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["data", "fleet", "drives"]))]
struct DriveArg {
    /// The drive's directory. No other process may have the drive open: stop `skytether drive serve` first.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The directory of an embedded fleet, whose volumes are meant. Stop `skytether host serve` first. Or the address
    /// of a host that serves volumes, for `ls`, `snapshot`, and `rm` of a snapshot.
    #[arg(long, value_name = "DIR|URL")]
    fleet: Option<PathBuf>,
    /// The addresses of a fleet's served drives, whose volumes are meant. Stop `skytether host serve` first: this call
    /// takes the fleet over.
    #[arg(long, value_name = "ADDR,ADDR,...", value_delimiter = ',', requires = "journals")]
    drives: Vec<String>,
    /// The directory for journals that `host serve` had (default: `volumes` in the directory of --fleet).
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    journals: Option<PathBuf>,
    // For the connections to drives.
    #[command(flatten)]
    client: ClientArgs,
}

impl DriveArg {
    /// The host that serves the volumes, if its address was given.
    async fn host(&self) -> Result<Option<RemoteHost>, Failure> {
        match self.fleet.as_deref().and_then(Path::to_str).filter(|text| is_host(text)) {
            Some(url) => Ok(Some(RemoteHost::connect_with(url, &self.client.credentials()).await?)),
            None => Ok(None),
        }
    }
}

/// Volumes, and the fleet in this process that they are on, if any.
struct Open {
    volumes: Arc<Volumes>,
    _fleet: Option<skytether::Fleet>,
}

impl std::ops::Deref for Open {
    type Target = Volumes;

    fn deref(&self) -> &Volumes {
        &self.volumes
    }
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    drive: DriveArg,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// The volume.
    #[arg(value_name = "VOLUME")]
    volume: VolumeName,
    /// The name of the snapshot.
    #[arg(value_name = "NAME")]
    name: VolumeName,
    #[command(flatten)]
    drive: DriveArg,
}

#[derive(Debug, Args)]
pub(crate) struct CloneVolume {
    /// The snapshot.
    #[arg(value_name = "VOLUME@SNAPSHOT", value_parser = of_snapshot)]
    from: (VolumeName, VolumeName),
    /// The new volume.
    #[arg(value_name = "VOLUME")]
    to: VolumeName,
    #[command(flatten)]
    drive: DriveArg,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// The volume or the snapshot.
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    what: String,
    #[command(flatten)]
    drive: DriveArg,
}

#[derive(Debug, Args)]
pub(crate) struct ScrubVolumes {
    /// The volumes (default: all).
    #[arg(value_name = "VOLUME")]
    volumes: Vec<VolumeName>,
    /// Write what is damaged again, from what other drives of the fleet have.
    #[arg(long, conflicts_with = "data")]
    repair: bool,
    #[command(flatten)]
    drive: DriveArg,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetReservations {
    /// The volume.
    #[arg(value_name = "VOLUME")]
    volume: VolumeName,
    #[command(flatten)]
    drive: DriveArg,
}

/// Parses `VOLUME@SNAPSHOT`.
fn of_snapshot(text: &str) -> Result<(VolumeName, VolumeName), String> {
    let (volume, snapshot) = text.split_once('@').ok_or_else(|| "write VOLUME@SNAPSHOT, such as disk@monday".to_owned())?;
    let named = |text: &str| text.parse().map_err(|error: Error| error.report());
    Ok((named(volume)?, named(snapshot)?))
}

/// Runs a command about volumes.
pub(crate) async fn run(command: VolumeCommand) -> Result<(), Failure> {
    match command {
        VolumeCommand::Ls(args) => ls(args).await,
        VolumeCommand::Snapshot(args) => {
            let done = format!("snapshot {}@{}", args.volume, args.name);
            if let Some(host) = args.drive.host().await? {
                host.snapshot_volume(args.volume.as_str(), args.name.as_str()).await?;
                return Ok(print_line(&done)?);
            }
            let volumes = open(&args.drive).await?;
            volumes.snapshot(&args.volume, &args.name).await?;
            close(&volumes, &done).await
        }
        VolumeCommand::Clone(args) => {
            let volumes = open(&args.drive).await?;
            volumes.clone_snapshot(&args.from.0, &args.from.1, &args.to).await?;
            close(&volumes, &format!("volume {} with the content of {}@{}", args.to, args.from.0, args.from.1)).await
        }
        VolumeCommand::Rm(args) => {
            if let (Some((volume, snapshot)), Some(host)) = (args.what.split_once('@'), args.drive.host().await?) {
                host.remove_snapshot(volume, snapshot).await?;
                return Ok(print_line(&format!("removed {}", args.what))?);
            }
            let volumes = open(&args.drive).await?;
            match args.what.split_once('@') {
                Some((volume, snapshot)) => volumes.remove_snapshot(&volume.parse()?, &snapshot.parse()?).await?,
                None => volumes.remove(&args.what.parse()?).await?,
            }
            close(&volumes, &format!("removed {}", args.what)).await
        }
        VolumeCommand::Scrub(args) => scrub(args).await,
        VolumeCommand::ForgetReservations(args) => {
            let volumes = open(&args.drive).await?;
            volumes.device(args.volume.as_str()).await?.keep_note(RESERVATIONS, None).await?;
            close(&volumes, &format!("volume {} keeps no persistent reservations: initiators must register again", args.volume)).await
        }
    }
}

async fn open(drive: &DriveArg) -> Result<Open, Failure> {
    if let Some(url) = drive.fleet.as_deref().and_then(Path::to_str).filter(|text| is_host(text)) {
        let text = format!("a host serves the volumes at {url}: stop it, and name its directory (--fleet) or its drives (--drives, --journals)");
        return Err(Failure::Call(Error::invalid(text)));
    }
    let Some(data) = drive.data.clone() else {
        let (host, fleet): (Host, _) = match &drive.fleet {
            Some(dir) => {
                let fleet = open_fleet(dir, HostOptions::default(), Profiles::default()).await?;
                let host = fleet.host().ok_or_else(|| Error::internal("an embedded fleet has no host"))?.clone();
                (host, Some(fleet))
            }
            None => (over(&drive.drives, &drive.client).await?, None),
        };
        let journals = drive.journals.clone().or_else(|| drive.fleet.as_ref().map(|dir| dir.join(DIRECTORY))).unwrap_or_default();
        return Ok(Open { volumes: fleet_volumes::open(&host, &journals).await?, _fleet: fleet });
    };
    let journals = data.join(DIRECTORY);
    let text = format!("{}: the drive has no volumes; `skytether drive serve --volume NAME=SIZE` makes one", data.display());
    let opening = tokio::task::spawn_blocking(move || Drive::open(&data, None, DriveOptions::default()));
    let opened = opening.await.map_err(|e| Error::internal("opening the drive was interrupted").with_source(e))??;
    if !journals.exists() {
        return Err(Error::not_found(text).into());
    }
    Ok(Open { volumes: Volumes::open(Arc::new(StorageBacking::new(opened)?), &journals, Options::default()).await?, _fleet: None })
}

async fn close(volumes: &Volumes, done: &str) -> Result<(), Failure> {
    volumes.close().await?;
    Ok(print_line(done)?)
}

async fn ls(args: Ls) -> Result<(), Failure> {
    let found = if let Some(host) = args.drive.host().await? {
        host.volumes().await?
    } else {
        let volumes = open(&args.drive).await?;
        let found = volumes.list().await?;
        volumes.close().await?;
        found
    };
    let printed = match args.format {
        ListFormat::Json => print_line(&listing::json(&found)?),
        ListFormat::Table if found.is_empty() => print_line("no volumes"),
        ListFormat::Table => {
            let mut rows = Vec::new();
            for volume in &found {
                let of = std::iter::once((volume.name.clone(), volume));
                for (name, status) in of.chain(volume.snapshots.iter().map(|snapshot| (format!("{}@{}", volume.name, snapshot.name), snapshot))) {
                    let stored = status.extents * u64::from(status.extent);
                    let number = if status.number == 0 { String::new() } else { status.number.to_string() };
                    let state = status.error.clone().unwrap_or_default();
                    rows.push(vec![name, number, human_bytes(status.size), human_bytes(stored), status.id.to_string(), state]);
                }
            }
            print_line(columns(&["volume", "unit", "size", "mapped", "id", ""], &[false, true, true, true, false, false], &rows).trim_end())
        }
    };
    Ok(printed?)
}

async fn scrub(args: ScrubVolumes) -> Result<(), Failure> {
    let volumes = open(&args.drive).await?;
    let failed = volumes.failed();
    for (name, error) in &failed {
        eprintln!("volume {name} can't be opened: {}", error.report());
    }
    let mut names = args.volumes;
    if names.is_empty() {
        names = volumes.names();
        names.retain(|name| failed.iter().all(|(other, _)| other != name));
    }
    let mut damaged = 0;
    for name in &names {
        let found = volumes.scrub(name, None, args.repair).await?;
        let repaired = found.damaged.iter().filter(|place| place.repaired).count();
        damaged += found.damaged.len() - repaired;
        let written = if repaired > 0 { format!(", {repaired} repaired") } else { String::new() };
        print_line(&format!("volume {name}: {} verified, {} damaged{written}", counted(found.extents, "extent"), found.damaged.len()))?;
        for place in &found.damaged {
            print_line(&format!("  extent {} of {} at byte {}: {}", place.extent, place.of, place.at, place.why))?;
        }
    }
    volumes.close().await?;
    match damaged {
        0 if failed.is_empty() => Ok(()),
        0 => Err(Error::corrupt(format!("{} can't be opened", counted(failed.len() as u64, "volume"))).into()),
        _ => Err(Error::corrupt(format!(
            "{} of volumes are damaged: restore them from a copy; a snapshot may share them; over a fleet, --repair writes those again that other drives have",
            counted(damaged as u64, "extent")
        ))
        .into()),
    }
}
