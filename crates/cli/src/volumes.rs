//! The volumes that `drive serve` and `host serve` open, and the doors of block protocols to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use skytether_common::{Error, Result};
use skytether_device::{CseInfo, Storage};
use skytether_doors::DriveDoors;
use skytether_drive::Drive;
use skytether_file_query::FileEngine;
use skytether_iscsi::{Iscsi, Secrets};
use skytether_nbd::Nbd;
use skytether_nvme_tcp::NvmeTcp;
use skytether_offload::Offload;
use skytether_transport::{Endpoint, Listener, Registry, Security};
use skytether_volume::{Backing, BlockDevice, Exec, Options, VolumeName, VolumeSpec, Volumes};

use crate::context::{Failure, print_line};
use crate::serving::Bound;

/// The schemes of block protocols.
const SCHEMES: [&str; 3] = [skytether_iscsi::SCHEME, skytether_nvme_tcp::SCHEME, skytether_nbd::SCHEME];

/// The directory of the journals, in that of the drive or of the fleet.
pub(crate) const DIRECTORY: &str = "volumes";

/// What block protocols serve.
#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    /// A volume that the drive or fleet is to have, with its size (512MiB, 10G); may be given several times. It is made
    /// where it is absent, and grows where it is smaller. It takes space as it is written. iscsi:// serves volumes as
    /// logical units 1, 2 and so on of one target, nvme-tcp:// as such namespaces, nbd:// as exports of their names.
    /// Volumes of earlier calls are served, too.
    #[arg(long = "volume", value_name = "NAME=SIZE", value_parser = spec)]
    volumes: Vec<VolumeSpec>,
    /// The name of the iSCSI target (default: iqn.2024-01.io.skytether:NAME, with the name of the drive, or
    /// `fleet-` and the beginning of the fleet's id).
    #[arg(long, value_name = "IQN")]
    iscsi_name: Option<String>,
    /// The name of the NVMe subsystem (default: nqn.2014-08.org.nvmexpress:uuid:ID, with the id of the
    /// drive or fleet).
    #[arg(long, value_name = "NQN")]
    nvme_name: Option<String>,
    /// Who may log in over iSCSI, by CHAP: a file that its owner alone reads, with lines `initiator NAME SECRET`, and
    /// `target NAME SECRET` for initiators that want proof in turn.
    #[arg(long, value_name = "FILE")]
    iscsi_secrets: Option<PathBuf>,
    /// A volume to open although the journal with its last writes is gone with its disk, or damaged: what was not yet
    /// on the drive is lost. May be given several times.
    #[arg(long, value_name = "NAME")]
    discard_journal: Vec<VolumeName>,
}

fn spec(text: &str) -> Result<VolumeSpec, String> {
    text.parse().map_err(|error: Error| error.report())
}

/// Registers the schemes of block protocols.
pub(crate) fn schemes_into(schemes: &mut Registry<Security>) {
    for scheme in SCHEMES {
        schemes.register(scheme, Security::Plain);
    }
}

/// What EXEC computes on a drive: all operations, with the drive's engine for queries.
fn exec(drive: &Arc<Drive>) -> Result<Arc<dyn Exec>> {
    let queries = Arc::new(FileEngine::new(drive.file_engine()?));
    Ok(Arc::new(Offload::new(skytether_offload::operations::registry(Some(queries))?, skytether_offload::Options::default())?))
}

fn nothing() -> Error {
    Error::invalid("there is no volume to serve: give one, such as --volume disk=10GiB")
}

/// Whether an address is that of a block protocol.
pub(crate) fn is_block(at: &Endpoint) -> bool {
    SCHEMES.contains(&at.scheme())
}

impl VolumeArgs {
    /// Checks, before a new drive is made in `directory`, that block protocols will have something to serve.
    ///
    /// # Errors
    /// A wrong call.
    pub(crate) fn check(&self, directory: &Path, bound: &Bound) -> Result<(), Failure> {
        let is_served = bound.listeners.iter().any(|listener| is_block(listener.endpoint()));
        if is_served && self.volumes.is_empty() && !directory.join(DIRECTORY).exists() { Err(Failure::Call(nothing())) } else { Ok(()) }
    }

    /// Whether the call names volumes.
    pub(crate) fn are_named(&self) -> bool {
        !self.volumes.is_empty()
    }

    /// Whether this call needs volumes, or earlier ones left some with their journals in `journals`.
    pub(crate) fn are_wanted(&self, journals: &Path, bound: &Bound) -> bool {
        !self.volumes.is_empty() || bound.listeners.iter().any(|listener| is_block(listener.endpoint())) || journals.exists()
    }

    /// Opens the volumes over `backing` with their journals in `journals`, and registers doors to them. `engine`
    /// computes what EXEC asks; its name and id are those of the targets.
    ///
    /// # Errors
    /// A wrong call where a block protocol has nothing to serve; those of the volumes.
    pub(crate) async fn open(
        &self,
        (backing, engine): (Arc<dyn Backing>, &Arc<Drive>),
        journals: &Path,
        bound: &Bound,
        doors: &mut DriveDoors,
        options: Options,
    ) -> Result<Arc<Volumes>, Failure> {
        let options = Options { discard_journal: self.discard_journal.clone(), ..options };
        let volumes = Volumes::open(backing, journals, options).await?;
        for wanted in &self.volumes {
            volumes.ensure(wanted).await?;
        }
        for (name, error) in volumes.failed() {
            eprintln!("volume {name} is not served: {}", error.report());
        }
        if bound.listeners.iter().any(|listener| is_block(listener.endpoint())) {
            self.register(engine.info(), &volumes, exec(engine)?, bound, doors)?;
        }
        Ok(volumes)
    }

    /// Registers a door for each block protocol that is listened for.
    fn register(&self, drive: &CseInfo, volumes: &Volumes, exec: Arc<dyn Exec>, bound: &Bound, doors: &mut DriveDoors) -> Result<(), Failure> {
        let devices: Vec<(u32, String, Arc<dyn BlockDevice>)> =
            volumes.numbered().into_iter().map(|(number, volume)| (number, volume.info().name, volume as Arc<dyn BlockDevice>)).collect();
        if devices.is_empty() {
            return Err(Failure::Call(nothing()));
        }
        let of = |scheme: &'static str| bound.listeners.iter().filter(move |listener| listener.endpoint().scheme() == scheme);
        let is_open = [skytether_nvme_tcp::SCHEME, skytether_nbd::SCHEME].into_iter().find(|scheme| of(scheme).next().is_some());
        if let (Some(scheme), Some(secrets), false) = (is_open, &self.iscsi_secrets, bound.context.insecure) {
            let text = format!("who reaches {scheme}:// gets the volumes without the secrets of {}: leave it out, or give --insecure", secrets.display());
            return Err(Failure::Call(Error::invalid(text)));
        }
        let line = |volume: &str, listener: &Listener, rest: String| print_line(&format!("volume {volume} at {}/{rest}", listener.url()));
        if of(skytether_iscsi::SCHEME).next().is_some() {
            let secrets = self.iscsi_secrets.as_deref().map(Secrets::read).transpose()?;
            let options = skytether_iscsi::Options { name: self.iscsi_name.clone(), secrets, ..skytether_iscsi::Options::default() };
            let unit = |(number, name, device): &(u32, String, Arc<dyn BlockDevice>)| {
                let lun = u8::try_from(*number).map_err(|_| Error::invalid(format!("volume {name} has the number {number}: iSCSI takes numbers up to 255")))?;
                Ok((lun, name.clone(), Arc::clone(device)))
            };
            let iscsi = Iscsi::numbered(devices.iter().map(unit).collect::<Result<_>>()?, Some(Arc::clone(&exec)), options)?;
            for listener in of(skytether_iscsi::SCHEME) {
                for (lun, volume) in iscsi.luns() {
                    line(&volume, listener, format!("{}/{lun}", iscsi.target_name(&drive.name)))?;
                }
            }
            doors.register(skytether_iscsi::SCHEME, iscsi);
        }
        if of(skytether_nvme_tcp::SCHEME).next().is_some() {
            let options = skytether_nvme_tcp::Options { nqn: self.nvme_name.clone(), ..skytether_nvme_tcp::Options::default() };
            let nqn = self.nvme_name.clone().unwrap_or_else(|| skytether_nvme_tcp::nqn_of(drive.id));
            for listener in of(skytether_nvme_tcp::SCHEME) {
                for (number, volume, _) in &devices {
                    line(volume, listener, format!("{nqn}/{number}"))?;
                }
            }
            doors.register(skytether_nvme_tcp::SCHEME, NvmeTcp::numbered(devices.clone(), Some(exec), options)?);
        }
        if of(skytether_nbd::SCHEME).next().is_some() {
            for listener in of(skytether_nbd::SCHEME) {
                for (_, volume, _) in &devices {
                    line(volume, listener, volume.clone())?;
                }
            }
            let exports = devices.into_iter().map(|(_, volume, device)| (volume, device)).collect();
            doors.register(skytether_nbd::SCHEME, Nbd::new(exports, skytether_nbd::Options::default())?);
        }
        Ok(())
    }
}
