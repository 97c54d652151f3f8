//! The volumes of a fleet, which a host opens: `host serve`, and `volume` over a fleet.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use skytether_common::{Error, Result};
use skytether_device::{Capabilities, CseInfo};
use skytether_drive::{Drive, DriveOptions};
use skytether_fleet_volume::{Collected, FleetBacking};
use skytether_host::Host;
use skytether_store::memory::MemoryStore;
use skytether_transport::Security;
use skytether_volume::{Options, Volumes};
use tokio::task::JoinSet;

use crate::context::Failure;
use crate::doors;
use crate::serving::Bound;
use crate::volumes::{VolumeArgs, is_block};

/// How often a host looks whether there may be parts of volumes to collect.
const COLLECT: Duration = Duration::from_secs(30);

/// The journals of a fleet's volumes.
#[derive(Debug, Clone, Args)]
pub(crate) struct JournalArgs {
    /// The directory for the journals of volumes, on a disk of this machine (default: `volumes` in the directory of
    /// --fleet). A flush of a volume is durable there; what is merged from there is on the drives.
    #[arg(long, value_name = "DIR", conflicts_with = "aggregator")]
    pub(crate) journals: Option<PathBuf>,
    /// A flush of a volume waits until the drives have all that it covers, with the fleet's redundancy: it survives the
    /// loss of this machine's disk. Flushes take longer.
    #[arg(long, conflicts_with = "aggregator")]
    pub(crate) flush_to_drives: bool,
}

/// Volumes that a host serves, and their doors.
pub(crate) struct Served {
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) doors: skytether_doors::DriveDoors,
    /// Whose name and id the targets have.
    pub(crate) engine: Arc<Drive>,
    /// Ends with this.
    _collecting: JoinSet<()>,
}

/// The drives of a fleet as a store of volumes. Copies of their records are made equal first.
///
/// # Errors
/// Those of the drives.
pub(crate) async fn backing(host: &Host) -> Result<Arc<FleetBacking>> {
    let backing = Arc::new(FleetBacking::new(host.catalog().clone())?);
    backing.settle().await?;
    Ok(backing)
}

/// What computes for EXEC at the host, as a drive without data: its name is in receipts, and that of the targets.
async fn engine(host: &Host) -> Result<Arc<Drive>> {
    let catalog = host.catalog();
    let told = catalog.read_memberships(catalog.deadline()).await?;
    let fleet = catalog.newest_of(&told).map(|membership| membership.fleet).ok_or_else(|| Error::unavailable("no drive can tell which fleet it is of"))?;
    let name = format!("fleet-{}", fleet.simple().to_string().chars().take(8).collect::<String>());
    let memory_limit = host.options().memory_limit as u64;
    let info = CseInfo { id: fleet, name, format: 1, memory_limit, profile: None, device: None, capabilities: Capabilities::default() };
    Drive::new(Arc::new(MemoryStore::new()), info, DriveOptions::default())
}

/// Opens the volumes that a host is to serve, with their journals in `journals`.
///
/// # Errors
/// A wrong call without a directory for journals; those of the volumes.
pub(crate) async fn serve(args: &VolumeArgs, host: &Host, journals: &JournalArgs, bound: &Bound) -> Result<Option<Served>, Failure> {
    let JournalArgs { journals, flush_to_drives } = journals;
    let Some(journals) = journals else {
        let is_served = bound.listeners.iter().any(|listener| is_block(listener.endpoint()));
        if is_served || args.are_named() {
            let text = "volumes over served drives need a directory of this host's disk for their journals: give one, with --journals DIR";
            return Err(Failure::Call(Error::invalid(text)));
        }
        return Ok(None);
    };
    if !args.are_wanted(journals, bound) {
        return Ok(None);
    }
    let (backing, engine) = (backing(host).await?, engine(host).await?);
    let options = Options { flush_merges: *flush_to_drives, ..Options::default() };
    let mut doors = doors::of_drives();
    let volumes = args.open((backing.clone(), &engine), journals, bound, &mut doors, options).await?;
    // It is no reason to wait, nor to fail: what it deletes costs space alone.
    let mut collecting = JoinSet::new();
    collecting.spawn(collect(backing));
    Ok(Some(Served { volumes, doors, engine, _collecting: collecting }))
}

/// Deletes parts of volumes that interrupted merges left: until that was complete once, and again when drives that were
/// lost are back.
async fn collect(backing: Arc<FleetBacking>) {
    let (mut complete_at, mut has_warned) = (None, false);
    loop {
        let leftovers = backing.leftovers();
        if complete_at != Some(leftovers) {
            match backing.collect().await {
                Ok(Collected { deleted, is_complete }) => {
                    if deleted > 0 {
                        tracing::info!(deleted, "deleted parts of volumes that interrupted merges left");
                    }
                    if is_complete {
                        (complete_at, has_warned) = (Some(leftovers), false);
                    }
                }
                Err(error) if has_warned => tracing::debug!(error = error.report(), "parts of volumes that interrupted merges left still stay"),
                Err(error) => {
                    has_warned = true;
                    tracing::warn!(error = error.report(), "parts of volumes that interrupted merges left stay for now");
                }
            }
        }
        tokio::time::sleep(COLLECT).await;
    }
}

/// Opens the volumes of a fleet that is not served.
///
/// # Errors
/// `NotFound` where it has none; those of the volumes.
pub(crate) async fn open(host: &Host, journals: &Path) -> Result<Arc<Volumes>> {
    if !journals.exists() {
        let text = format!("{}: there are no journals of volumes; `skytether host serve --volume NAME=SIZE` makes volumes", journals.display());
        return Err(Error::not_found(text));
    }
    Volumes::open(backing(host).await?, journals, Options::default()).await
}

/// Whether a port of a host is for its volumes.
pub(crate) fn is_for_volumes(listener: &skytether_transport::Listener) -> bool {
    listener.security() == Security::Plain && is_block(listener.endpoint())
}
