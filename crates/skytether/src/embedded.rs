//! An embedded fleet: a directory with `fleet.json`, `LOCK`, `drives/0..` and `spill/` for queries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use skytether_common::units::counted;
use skytether_common::{Error, Kind, Result};
use skytether_drive::{Drive, DriveOptions, Storage, linked};
use skytether_host::{Founding, Host, HostOptions, Scheme, UnavailableDrive};
use skytether_store::disk::DriveIdentity;
use uuid::Uuid;

use crate::profiles::Profiles;

/// The newest format of a fleet's directory: what this version writes, and the newest that it reads.
pub const FORMAT: u32 = 2;

/// The format that it writes while each drive is in the directory of its number in the list, for older versions.
const DENSE_FORMAT: u32 = 1;

/// Drives of a new fleet if the options give no number.
const DEFAULT_DRIVES: usize = 4;

/// The most drives in one process: each costs file descriptors and a few threads.
pub(crate) const MAX_DRIVES: usize = 256;

/// Options for opening or creating an embedded fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// Number of drives. `None`: the drives that exist, or four for a new fleet.
    pub drives: Option<usize>,
    /// Redundancy of a new fleet, for data sets whose ingest names none: `none`, `replicas:R`, `ec:K+M` or
    /// `ec:K+M/k+m`. An existing fleet keeps its own; anything but `none` must equal it.
    pub redundancy: String,
    /// Number of nodes (failure domains) of a new fleet. Each gets the same number of drives, in order. `None`: no
    /// nodes, or those of an existing fleet. Two levels (`ec:K+M/k+m`) need nodes.
    pub nodes: Option<usize>,
    /// Device profiles that the drives emulate. By default each drive is as fast as the machine.
    pub profile: Profiles,
    /// Whether to create a fleet that does not exist.
    pub create: bool,
    /// Limit of bytes of each drive's engine; by default the memory of its device profile, or 512 MiB without one. No
    /// drive uses more than its profile has.
    pub memory_per_drive: Option<u64>,
    /// Bytes of each drive's store that kept results may take ([`DriveOptions::kept_bytes`]); `None`: as by default.
    pub kept_per_drive: Option<u64>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { drives: None, redundancy: "none".into(), nodes: None, profile: Profiles::default(), create: true, memory_per_drive: None, kept_per_drive: None }
    }
}

/// The directory in which the host spills what its memory can't hold.
const SPILL: &str = "spill";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FleetFile {
    format: u32,
    pub(crate) drives: Vec<Uuid>,
    /// The numbers of the drives' directories, where drives have left and numbers differ from places in the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    places: Vec<usize>,
}

impl FleetFile {
    /// A list of these drives, each with the number of its directory.
    pub(crate) fn new(drives: Vec<(Uuid, usize)>) -> Self {
        let dense = drives.iter().enumerate().all(|(at, (_, place))| at == *place);
        let places = if dense { Vec::new() } else { drives.iter().map(|(_, place)| *place).collect() };
        Self { format: if dense { DENSE_FORMAT } else { FORMAT }, drives: drives.into_iter().map(|(id, _)| id).collect(), places }
    }

    /// The number of the directory of the drive at this place in the list.
    pub(crate) fn place(&self, at: usize) -> usize {
        self.places.get(at).copied().unwrap_or(at)
    }
}

/// An open fleet.
#[derive(Debug)]
pub(crate) struct Embedded {
    path: PathBuf,
    // Dropped before the lock.
    host: Host,
    /// The options of each drive.
    pub(crate) like: Vec<DriveOptions>,
    /// Held during a resize.
    pub(crate) resizing: tokio::sync::Mutex<()>,
    _lock: Lock,
}

impl Embedded {
    pub(crate) fn open<'a>(path: &'a Path, options: &'a OpenOptions, mut host: HostOptions) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let scheme = check(options)?;
            host.redundancy = scheme;
            refuse_address(path)?;
            host.spill_below.get_or_insert_with(|| path.join(SPILL));
            let (dir, own) = (path.to_path_buf(), options.clone());
            // Opening verifies what a crash left behind, which blocks.
            let opened = tokio::task::spawn_blocking(move || open_drives(&dir, &own, scheme))
                .await
                .map_err(|e| Error::internal(format!("opening {} stopped", path.display())).with_source(e))??;
            let OpenedDrives { lock, drives, lost, like, new } = opened;
            if new {
                found(path, &drives).await?;
            }
            if let Some(nodes) = options.nodes
                && lost.is_empty()
            {
                let each = drives.len() / nodes.max(1);
                host.nodes = drives.iter().enumerate().map(|(at, drive)| (drive.info().id, format!("node-{}", at / each.max(1)))).collect();
            }
            // The lock excludes other writers, so values that no root record names are garbage. `fleet.json` names all
            // drives.
            let (host, deleted) = Host::join_without(drives.into_iter().map(|drive| linked(drive)).collect(), lost, host, Founding::KnownList).await?;
            let own = host.redundancy();
            if scheme != Scheme::None && scheme != own {
                return Err(Error::invalid(format!(
                    "the fleet at {} has redundancy {own}, not {scheme}: open it without one, and say {scheme} when a data set is ingested that is to have it",
                    path.display()
                )));
            }
            if options.nodes.is_some_and(|nodes| nodes != host.nodes()) {
                let own = match host.nodes() {
                    0 => "no nodes".to_owned(),
                    nodes => counted(nodes as u64, "node"),
                };
                return Err(Error::invalid(format!("the fleet at {} has {own}: open it without a number of nodes, or make another fleet", path.display())));
            }
            if deleted > 0 {
                tracing::info!("{}: {deleted} slices of an ingest that did not finish were deleted", path.display());
            }
            let own = Self { path: path.to_path_buf(), host, like, resizing: tokio::sync::Mutex::default(), _lock: lock };
            own.keep_list().await?;
            Ok(own)
        })
    }

    /// Creates a blank drive in the place of each of these missing drives, by names or ids.
    pub(crate) async fn replace(&self, drives: &[String]) -> Result<()> {
        for (id, name) in self.host.gone() {
            if !drives.iter().any(|given| *given == name || *given == id.to_string()) {
                continue;
            }
            let (path, options) = (self.path.clone(), self.like.clone());
            let made = move || {
                let fleet = read(&path.join("fleet.json"))?;
                let n = fleet.drives.iter().position(|other| *other == id).ok_or_else(|| Error::internal(format!("drive {id} is not in fleet.json")))?;
                let dir = drive_dir(&path, fleet.place(n));
                // A drive that was listed again after a crash gets the options of the last one.
                let options = options.get(n).or(options.last()).cloned().unwrap_or_default();
                let occupied = || {
                    let dir = dir.display();
                    Error::invalid(format!("{dir} is not empty: move what is there away; then `skytether repair --replace {name}` makes a blank drive there"))
                };
                if dir.join("drive.json").exists() {
                    return Err(occupied());
                }
                // An interrupted creation of a drive may have left files; they do not matter.
                Drive::open(&dir, Some(DriveIdentity { id, name: name.clone() }), options).map_err(|e| match e.kind() {
                    Kind::Invalid | Kind::Corrupt => occupied().with_source(e),
                    _ => e,
                })
            };
            let drive = tokio::task::spawn_blocking(made).await.map_err(|e| Error::internal("making a drive stopped").with_source(e))??;
            self.host.put_in_place(linked(drive))?;
        }
        Ok(())
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn check(options: &OpenOptions) -> Result<Scheme> {
    let scheme: Scheme = options.redundancy.parse()?;
    match options.drives {
        Some(n) if n == 0 || n > MAX_DRIVES => Err(Error::invalid(format!("a fleet has 1 to {MAX_DRIVES} drives, not {n}"))),
        _ => Ok(scheme),
    }
}

/// How many drives a new fleet gets.
fn wanted(options: &OpenOptions, scheme: Scheme) -> usize {
    options.drives.or(options.profile.drives()).unwrap_or(DEFAULT_DRIVES.max(scheme.least_drives()))
}

/// Checks that the number of drives, and the number of nodes if given, is enough for the scheme.
fn check_nodes(drives: usize, nodes: Option<usize>, scheme: Scheme) -> Result<()> {
    if drives < scheme.least_drives() {
        return Err(Error::invalid(format!("redundancy {scheme} needs {} drives or more, but {drives} are to be made", scheme.least_drives())));
    }
    let two = match scheme {
        Scheme::Levels(outer, inner) => Some((outer, inner)),
        _ => None,
    };
    match (nodes, two) {
        (None, None) => Ok(()),
        (None, Some((outer, inner))) => Err(Error::invalid(format!(
            "redundancy {scheme} needs to know which node each drive is on: say on how many nodes the drives are (nodes={0}, in the shell --nodes {0}, with {1} drives each or more)",
            outer.shards(),
            inner.shards()
        ))),
        (Some(nodes), _) if nodes == 0 || !drives.is_multiple_of(nodes) => {
            Err(Error::invalid(format!("{drives} drives can't be on {nodes} nodes with as many each")))
        }
        (Some(nodes), Some((outer, inner))) if nodes < outer.shards() || drives / nodes < inner.shards() => Err(Error::invalid(format!(
            "redundancy {scheme} needs {} nodes or more with {} drives or more each, but there are {nodes} with {} each",
            outer.shards(),
            inner.shards(),
            drives / nodes
        ))),
        (Some(_), _) => Ok(()),
    }
}

/// Rejects the address of a host: the caller means the fleet there, and not a new fleet in a directory of that name.
fn refuse_address(path: &Path) -> Result<()> {
    let Some(text) = path.to_str() else { return Ok(()) };
    if crate::address::is_host(text) {
        return Err(Error::invalid(format!(
            "{text:?} is a host's address and no directory: use connect, or write \"./{text}\" if a directory of that name is meant"
        )));
    }
    Ok(())
}

/// Open drives that are not joined to a fleet yet.
struct OpenedDrives {
    lock: Lock,
    drives: Vec<Arc<Drive>>,
    /// The missing drives of the fleet, in order.
    lost: Vec<UnavailableDrive>,
    /// The options of each drive, missing ones included.
    like: Vec<DriveOptions>,
    /// Whether `fleet.json` must still be written.
    new: bool,
}

/// Founds a fleet of `drives`. It writes `fleet.json` last, so a fleet exists with all its drives or not at all.
async fn found(path: &Path, drives: &[Arc<Drive>]) -> Result<()> {
    for drive in drives {
        // An attempt that was interrupted has stored nothing yet.
        if drive.usage().await?.keys > 0 {
            return Err(lost(path, &format!("{} holds data", drive.info().name)));
        }
    }
    write(path, &FleetFile::new(drives.iter().map(|d| d.info().id).zip(0..).collect()))
}

/// The error where `fleet.json` is gone, and `sign` shows that there was a fleet.
fn lost(path: &Path, sign: &str) -> Error {
    Error::corrupt(format!("{} is missing although {sign}: {}", path.join("fleet.json").display(), rewrite_advice(path)))
}

/// Advice where `fleet.json` is gone or unreadable.
fn rewrite_advice(path: &Path) -> String {
    let begun = begun(path).unwrap_or_default();
    let dense = begun.iter().enumerate().all(|(at, n)| at == *n);
    let ids: Option<Vec<Uuid>> = begun.iter().map(|n| Some(identity_of(&drive_dir(path, *n))?.id)).collect();
    match ids {
        // The order of the directories is the order of the ids.
        Some(ids) if dense && !ids.is_empty() => format!(
            "bring it back, or write it again if all drives are still in their places: {{\"format\": {DENSE_FORMAT}, \"drives\": [{}]}}",
            ids.iter().map(|id| format!("\"{id}\"")).collect::<Vec<_>>().join(", ")
        ),
        _ => "bring it and the drives that are missing back".to_owned(),
    }
}

/// The numbers of the directories that hold a drive, in order.
pub(crate) fn begun(path: &Path) -> Result<Vec<usize>> {
    let dir = path.join("drives");
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io("open", dir, e)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::io("read", &dir, e))?;
        if let Some(n) = entry.file_name().to_str().and_then(|n| n.parse().ok())
            && entry.path().join("drive.json").exists()
        {
            numbers.push(n);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The identity in the directory of a drive, if it is readable. Does not open the drive.
pub(crate) fn identity_of(dir: &Path) -> Option<DriveIdentity> {
    serde_json::from_slice(&fs::read(dir.join("drive.json")).ok()?).ok()
}

/// The directory numbers of the drives of `fleet`, in order. The id identifies a drive, so its directory may have moved
/// below `drives/`. An empty directory may be a disk that is not mounted, and an old copy of that drive may be in
/// another directory. A drive that is in no directory keeps its number, unless another drive has it now.
pub(crate) fn places(path: &Path, fleet: &FleetFile) -> Result<Vec<usize>> {
    let holds = |n: usize, id: &Uuid| identity_of(&drive_dir(path, n)).is_some_and(|found| found.id == *id);
    let known: Vec<usize> = (0..fleet.drives.len()).map(|at| fleet.place(at)).collect();
    if fleet.drives.iter().zip(&known).all(|(id, n)| holds(*n, id)) {
        return Ok(known);
    }
    let mut there: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
    for n in begun(path)? {
        if let Some(found) = identity_of(&drive_dir(path, n)) {
            there.entry(found.id).or_default().push(n);
        }
    }
    // A drive counts as moved only if its own directory is gone or has another drive. Otherwise that directory is
    // unreadable or not mounted. Of two copies the newer one is unknown.
    let moved = |n: usize| matches!(drive_dir(path, n).try_exists(), Ok(false)) || identity_of(&drive_dir(path, n)).is_some();
    let elsewhere = |id: &Uuid| match there.get(id).map(Vec::as_slice) {
        Some([n]) => Some(*n),
        _ => None,
    };
    let found = |(id, n): (&Uuid, &usize)| if holds(*n, id) { Some(*n) } else { elsewhere(id).filter(|_| moved(*n)) };
    let found: Vec<Option<usize>> = fleet.drives.iter().zip(&known).map(found).collect();
    let mut taken: BTreeSet<usize> = found.iter().flatten().copied().collect();
    let mut places = Vec::with_capacity(known.len());
    for (found, own) in found.into_iter().zip(&known) {
        let free = || if taken.contains(own) { known.iter().copied().find(|n| !taken.contains(n)) } else { Some(*own) };
        let place = found.or_else(free).unwrap_or(*own);
        taken.insert(place);
        places.push(place);
    }
    Ok(places)
}

/// `fleet` with the directory numbers `places`; written if that is a change.
fn placed(path: &Path, fleet: FleetFile, places: Vec<usize>) -> Result<FleetFile> {
    if (0..fleet.drives.len()).all(|at| fleet.place(at) == places[at]) {
        return Ok(fleet);
    }
    tracing::info!("drives of the fleet at {} are in other directories than before", path.display());
    let fleet = FleetFile::new(fleet.drives.into_iter().zip(places).collect());
    write(path, &fleet)?;
    Ok(fleet)
}

fn open_drives(path: &Path, options: &OpenOptions, scheme: Scheme) -> Result<OpenedDrives> {
    // First, so that a wrong profile leaves nothing behind.
    let devices = options.profile.read()?;
    let file = path.join("fleet.json");
    let there = file.try_exists().map_err(|e| Error::io("look for", &file, e))?;
    if !there {
        if !options.create {
            if !begun(path)?.is_empty() {
                return Err(lost(path, "there are drives"));
            }
            let host = if crate::address::lacks_port(path) { format!(", or write {}:PORT if you mean a host", path.display()) } else { String::new() };
            return Err(Error::not_found(format!("there is no fleet at {}: make one with `skytether init`{host}", path.display())));
        }
        check_empty(path)?;
        check_nodes(wanted(options, scheme), options.nodes, scheme)?;
        fs::create_dir_all(path.join("drives")).map_err(|e| Error::io("create", path.join("drives"), e))?;
    }
    let lock = Lock::take(path)?;
    // Only under the lock: another process may have created it just before.
    let known = if file.try_exists().map_err(|e| Error::io("look for", &file, e))? { Some(read(&file)?) } else { None };
    let like = |device| {
        let usual = DriveOptions::like(device, options.memory_per_drive);
        DriveOptions { kept_bytes: options.kept_per_drive.unwrap_or(usual.kept_bytes), ..usual }
    };
    let new = known.is_none();
    let mut missing = Vec::new();
    let mut used = Vec::new();
    let drives = match known {
        Some(fleet) => {
            if let Some(n) = options.drives
                && n != fleet.drives.len()
            {
                return Err(Error::invalid(format!(
                    "the fleet at {} has {}, not {n}: open it without a number, or make another fleet",
                    path.display(),
                    counted(fleet.drives.len() as u64, "drive")
                )));
            }
            let places = places(path, &fleet)?;
            let fleet = placed(path, fleet, places)?;
            let devices = devices.of(fleet.drives.len())?;
            used = devices.iter().cloned().map(like).collect();
            let mut drives = Vec::with_capacity(fleet.drives.len());
            for (place, (id, device)) in fleet.drives.iter().zip(devices).enumerate() {
                match open_known(path, fleet.place(place), *id, like(device)) {
                    Ok(drive) => drives.push(drive),
                    // Whether the fleet survives the loss is the other drives' knowledge. A drive that claims a newer
                    // version may be damaged; it stays as it is in either case.
                    Err(error) if matches!(error.kind(), Kind::Unavailable | Kind::Corrupt | Kind::NotFound | Kind::Unsupported) => {
                        missing.push(UnavailableDrive { id: *id, place, error })
                    }
                    Err(error) => return Err(error),
                }
            }
            if drives.is_empty() && !missing.is_empty() {
                return Err(UnavailableDrive::needed(&missing, |one| format!("drive {}", fleet.place(one.place))));
            }
            drives
        }
        None => {
            let wanted = wanted(options, scheme);
            let devices = devices.of(wanted)?;
            if let Some(n) = begun(path)?.into_iter().find(|n| *n >= wanted) {
                return Err(lost(path, &format!("there is a drive {n} where {wanted} drives were to be made")));
            }
            check_nodes(wanted, options.nodes, scheme)?;
            devices.into_iter().enumerate().map(|(n, device)| make(path, n, like(device))).collect::<Result<Vec<_>>>()?
        }
    };
    Ok(OpenedDrives { lock, drives, lost: missing, like: used, new })
}

/// Whether `path` may become a fleet: empty, absent, or a founding that was interrupted.
fn check_empty(path: &Path) -> Result<()> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io("open", path, e)),
    };
    for entry in entries {
        let name = entry.map_err(|e| Error::io("read", path, e))?.file_name();
        // `lost+found` is in a file system that was mounted here just now.
        if !["drives", "LOCK", "fleet.json.new", SPILL, "lost+found"].iter().any(|own| name == *own) {
            return Err(Error::invalid(format!(
                "{} is no fleet and holds other things ({}): choose an empty directory",
                path.display(),
                name.to_string_lossy()
            )));
        }
    }
    Ok(())
}

pub(crate) fn drive_dir(path: &Path, n: usize) -> PathBuf {
    path.join("drives").join(n.to_string())
}

/// The drive with this id, from the directory of number `n`.
///
/// # Errors
/// `Unavailable` where the drive is missing, or another drive is there, which stays as it is; as [`Drive::open`].
pub(crate) fn open_known(path: &Path, n: usize, id: Uuid, options: DriveOptions) -> Result<Arc<Drive>> {
    let dir = drive_dir(path, n);
    if !dir.join("drive.json").try_exists().map_err(|e| Error::io("look for", &dir, e))? {
        return Err(Error::unavailable(format!("it is missing: there is no drive in {}", dir.display())));
    }
    if let Some(other) = identity_of(&dir).filter(|other| other.id != id) {
        return Err(Error::unavailable(format!(
            "it is missing: {} holds a drive that is not of this fleet, {} ({}); move that one away first",
            dir.display(),
            other.name,
            other.id
        )));
    }
    Drive::open(&dir, None, options)
}

fn make(path: &Path, n: usize, options: DriveOptions) -> Result<Arc<Drive>> {
    let dir = drive_dir(path, n);
    // A drive of an interrupted founding is as good as a new one.
    let begun = dir.join("drive.json").try_exists().map_err(|e| Error::io("look for", &dir, e))?;
    let identity = (!begun).then(|| DriveIdentity { id: Uuid::new_v4(), name: format!("drive-{n}") });
    Drive::open(&dir, identity, options)
}

pub(crate) fn read(file: &Path) -> Result<FleetFile> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let bytes = fs::read(file).map_err(|e| Error::io("read", file, e))?;
    let corrupt = |e| Error::corrupt(format!("{} is damaged: {}", file.display(), rewrite_advice(file.parent().unwrap_or(file)))).with_source(e);
    let head: Head = serde_json::from_slice(&bytes).map_err(corrupt)?;
    if head.format > FORMAT {
        return Err(Error::unsupported(format!(
            "{} was made by a newer version of Skytether (format {}, this version reads up to {FORMAT}): upgrade to open it",
            file.display(),
            head.format
        )));
    }
    let fleet: FleetFile = serde_json::from_slice(&bytes).map_err(corrupt)?;
    let mut places = fleet.places.clone();
    places.sort_unstable();
    places.dedup();
    if places.len() != fleet.places.len() || (!places.is_empty() && places.len() != fleet.drives.len()) {
        return Err(Error::corrupt(format!("{} does not name a directory for each of {} drives", file.display(), fleet.drives.len())));
    }
    if fleet.drives.is_empty() || fleet.drives.len() > MAX_DRIVES {
        return Err(Error::corrupt(format!("{} names {} drives", file.display(), fleet.drives.len())));
    }
    Ok(fleet)
}

pub(crate) fn write(path: &Path, fleet: &FleetFile) -> Result<()> {
    let (aside, file) = (path.join("fleet.json.new"), path.join("fleet.json"));
    let bytes = serde_json::to_vec_pretty(fleet).map_err(|e| Error::internal("cannot write fleet.json").with_source(e))?;
    let written = |mut f: File| f.write_all(&bytes).and_then(|()| f.sync_all());
    File::create(&aside).and_then(written).map_err(|e| Error::io("write", &aside, e))?;
    fs::rename(&aside, &file).map_err(|e| Error::io("rename", &aside, e))?;
    File::open(path).and_then(|d| d.sync_all()).map_err(|e| Error::io("flush", path, e))
}

/// The fleet's lock, held as long as this lives.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlocks explicitly: a process that was forked meanwhile shares the lock, and would keep it after a close.
        if let Err(e) = self.file.unlock() {
            tracing::warn!("cannot unlock a fleet: {e}");
        }
    }
}

impl Lock {
    pub(crate) fn take(path: &Path) -> Result<Self> {
        let name = path.join("LOCK");
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&name).map_err(|e| Error::io("open", &name, e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = (&file).take(64).read_to_string(&mut holder);
                let who = match holder.trim().parse::<u32>() {
                    Ok(pid) if pid == std::process::id() => "this process".to_owned(),
                    Ok(pid) => format!("process {pid}"),
                    Err(_) => "another process".to_owned(),
                };
                return Err(Error::conflict(format!(
                    "{who} has the fleet at {} open: close it there, or serve it with `skytether host serve` and connect",
                    path.display()
                )));
            }
            Err(TryLockError::Error(e)) => return Err(Error::io("lock", &name, e)),
        }
        // Only a hint for the error above; the lock itself is what counts.
        let hint = file.rewind().and_then(|()| file.set_len(0)).and_then(|()| write!(file, "{}", std::process::id()));
        if let Err(e) = hint {
            tracing::debug!("cannot write the holder into {}: {e}", name.display());
        }
        Ok(Self { file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_no_directory() {
        for text in ["grpc://127.0.0.1:5300", "http://a", "127.0.0.1:1", "localhost:5300", "[::1]:5300"] {
            let error = Embedded::open(Path::new(text), &OpenOptions::default(), HostOptions::default()).await.unwrap_err();
            assert!(error.kind() == skytether_common::Kind::Invalid && error.to_string().contains("use connect"), "{error}");
            assert!(!Path::new(text).exists());
        }
        assert!(refuse_address(Path::new("./127.0.0.1:1")).is_ok());
    }

    #[test]
    fn a_fleet_closes_although_a_forked_process_shares_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Lock::take(dir.path()).unwrap();
        // A clone shares the lock as a fork does.
        let shared = lock.file.try_clone().unwrap();
        assert!(Lock::take(dir.path()).is_err());
        drop(lock);
        Lock::take(dir.path()).unwrap();
        drop(shared);
    }
}
