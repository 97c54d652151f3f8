//! Fleets by their places: in directories, in stores that another system keeps (`rados://...`), or on Kinetic drives
//! that are served (`kinetic://HOST:PORT,HOST:PORT`).

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use skytether::{ComputeElsewhere, Fleet, HostOptions, OpenOptions, Profiles, Scheme, Stores, refuse_redundancy};
use skytether_ceph::OsdDrive;
use skytether_common::units::counted;
use skytether_common::{Error, Result};
use skytether_device::Cse;
use skytether_drive::Drive;
use skytether_host::Founding;
use skytether_rados::{Address, AtOsds, RadosStore};
use skytether_store::SliceStore;
use skytether_store::disk::DriveIdentity;
use skytether_transport::{Endpoint, Registry};

use crate::drives::{is_kinetic, of_drives};

/// Drives of a new fleet if the options give no number.
const DEFAULT_DRIVES: usize = 4;

/// Opens the stores at an address, or makes them for this number of drives.
type OpenStores = fn(&str, Option<usize>) -> Result<Stores>;

/// What opens fleets whose drives store elsewhere than in directories, by scheme.
fn of_stores() -> Registry<OpenStores> {
    let mut stores: Registry<OpenStores> = Registry::new("a fleet's stores");
    stores.register(skytether_rados::SCHEME, ceph);
    stores
}

/// Sub-plans of drives in Ceph, which run at the OSDs.
#[derive(Debug)]
struct AtTheOsds(Vec<Arc<RadosStore>>);

impl ComputeElsewhere for AtTheOsds {
    fn over(&self, number: usize, drive: &Arc<Drive>, linked: Arc<dyn Cse>) -> Result<Arc<dyn Cse>> {
        Ok(match self.0.get(number) {
            Some(store) => Arc::new(OsdDrive::new(linked, Arc::clone(store), drive.engine_apart()?)),
            None => linked,
        })
    }
}

fn ceph(text: &str, create: Option<usize>) -> Result<Stores> {
    let at = Address::parse(text)?;
    let fleet = skytether_rados::open(&at, create)?;
    let stores: Vec<Arc<RadosStore>> = fleet.drives.iter().map(|drive| Arc::clone(&drive.store)).collect();
    let compute = at_osds(&at, stores)?;
    let drives = fleet.drives.into_iter().map(|drive| (DriveIdentity { id: drive.id, name: drive.name }, drive.store as Arc<dyn SliceStore>)).collect();
    Ok(Stores { location: text.to_owned(), kept: fleet.kept, new: fleet.new, drives, compute, guard: Box::new(fleet.guard) })
}

/// What runs sub-plans at the OSDs, where the address wants it and they can.
fn at_osds(at: &Address, stores: Vec<Arc<RadosStore>>) -> Result<Option<Arc<dyn ComputeElsewhere>>> {
    let Some(first) = stores.first().filter(|_| at.osds != AtOsds::Never) else { return Ok(None) };
    match skytether_ceph::available(first) {
        Ok(_) => Ok(Some(Arc::new(AtTheOsds(stores)))),
        Err(why) if at.osds == AtOsds::Required => {
            Err(Error::unsupported(format!("the OSDs of {} can't run sub-plans: {why}; see skytether ceph status, or leave osds=required out", at.name())))
        }
        Err(why) => {
            tracing::debug!(why, "sub-plans run in this process, and not at the OSDs");
            Ok(None)
        }
    }
}

/// Whether `text` is the address of a fleet that this process opens elsewhere than in a directory: `rados://...`, or
/// those of its Kinetic drives.
#[must_use]
pub fn is_store(text: &str) -> bool {
    text.contains("://") && (kinetic_drives(text).is_some() || text.parse::<Endpoint>().is_ok_and(|at| of_stores().get(&at).is_ok()))
}

/// The addresses of Kinetic drives in `text`, `kinetic://A:1,B:1;C:1`. One without a scheme has that of the first.
/// Nodes are separated by semicolons, which stay.
fn kinetic_drives(text: &str) -> Option<Vec<String>> {
    let first = text.split([',', ';']).next()?.parse::<Endpoint>().ok().filter(is_kinetic)?;
    let whole = |at: &str| if at.is_empty() || at.contains("://") { at.to_owned() } else { format!("{}://{at}", first.scheme()) };
    Some(text.split(',').map(|part| part.split(';').map(|at| whole(at.trim())).collect::<Vec<_>>().join(";")).collect())
}

/// Opens the fleet at `path`: a directory, the address of stores, or addresses of Kinetic drives; see
/// [`Fleet::open_with`].
///
/// # Errors
/// As there, and those of the stores and of the drives.
pub fn open_fleet<'a>(path: &'a Path, options: &'a OpenOptions, host: HostOptions) -> BoxFuture<'a, Result<Fleet>> {
    Box::pin(async move {
        let Some(text) = path.to_str().filter(|text| is_store(text)) else { return Fleet::open_with(path, options, host).await };
        if let Some(drives) = kinetic_drives(text) {
            return on_drives(text, &drives, options, host).await;
        }
        // First: a fleet that was made by a wrong call would stay.
        refuse_redundancy(text, options.redundancy.parse::<Scheme>()?)?;
        if options.nodes.is_some() {
            return Err(Error::invalid(format!("the drives of the fleet at {text} are on no nodes of ours: leave the number of nodes out")));
        }
        let open = *of_stores().get(&text.parse()?)?;
        let (own, create) = (text.to_owned(), options.create.then(|| options.drives.unwrap_or(DEFAULT_DRIVES)));
        // Connecting, and reading what a crash left behind, blocks.
        let opened = tokio::task::spawn_blocking(move || open(&own, create)).await;
        let stores = opened.map_err(|e| Error::internal(format!("opening {text} stopped")).with_source(e))??;
        Fleet::over(stores, options, host).await
    })
}

/// Opens the fleet on these served drives: this process is its host.
async fn on_drives(text: &str, drives: &[String], options: &OpenOptions, host: HostOptions) -> Result<Fleet> {
    let scheme = options.redundancy.parse::<Scheme>()?;
    let OpenOptions { drives: number, nodes, profile, memory_per_drive, kept_per_drive, create, .. } = options;
    if !matches!(profile, Profiles::Every(all) if all == "unlimited") || memory_per_drive.is_some() || kept_per_drive.is_some() {
        return Err(Error::invalid(format!("the drives at {text} have profiles and memory of their own: give these to `skytether drive serve`")));
    }
    if nodes.is_some() {
        return Err(Error::invalid(format!("the fleet at {text} takes no number of nodes: separate the drives of different nodes by semicolons")));
    }
    let there = drives.iter().map(|part| part.split(';').count()).sum::<usize>();
    if let Some(number) = number.filter(|number| *number != there) {
        return Err(Error::invalid(format!("{text} names {}, not {number}: leave the number of drives out", counted(there as u64, "drive"))));
    }
    let founding = if *create { Founding::EmptyDrives } else { Founding::Existing };
    Ok(Fleet::of_drives(of_drives(drives, scheme, host, founding).await?, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_kinetic_drives_share_a_scheme() {
        let whole = |text: &str| kinetic_drives(text).map(|all| all.join(","));
        assert_eq!(whole("kinetic://a:1,b:2").unwrap(), "kinetic://a:1,kinetic://b:2");
        assert_eq!(whole("kinetics://a:1, b:2;kinetic://c:3").unwrap(), "kinetics://a:1,kinetics://b:2;kinetic://c:3");
        assert_eq!(whole("kinetic://a:1,;b:2").unwrap(), "kinetic://a:1,;kinetic://b:2");
        for other in ["grpc://a:1,b:2", "rados://pool", "fleet", "kinetic", "a:1,kinetic://b:1"] {
            assert_eq!(whole(other), None, "{other}");
        }
        assert!(is_store("kinetic://a:1,b:2") && is_store("rados://pool") && !is_store("grpc://a:1") && !is_store("fleet"));
    }
}
