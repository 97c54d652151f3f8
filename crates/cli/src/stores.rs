//! Fleets by their places: in directories, or in stores that another system keeps (`rados://...`).

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use skytether::{ComputeElsewhere, Fleet, HostOptions, OpenOptions, Scheme, Stores, refuse_redundancy};
use skytether_ceph::OsdDrive;
use skytether_common::{Error, Result};
use skytether_device::Cse;
use skytether_drive::Drive;
use skytether_rados::{Address, AtOsds, RadosStore};
use skytether_store::SliceStore;
use skytether_store::disk::DriveIdentity;
use skytether_transport::{Endpoint, Registry};

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

/// Whether `text` is the address of a fleet whose drives store elsewhere than in a directory: `rados://...`.
#[must_use]
pub fn is_store(text: &str) -> bool {
    text.contains("://") && text.parse::<Endpoint>().is_ok_and(|at| of_stores().get(&at).is_ok())
}

/// Opens the fleet at `path`, a directory or the address of stores; see [`Fleet::open_with`].
///
/// # Errors
/// As there, and those of the stores.
pub fn open_fleet<'a>(path: &'a Path, options: &'a OpenOptions, host: HostOptions) -> BoxFuture<'a, Result<Fleet>> {
    Box::pin(async move {
        let Some(text) = path.to_str().filter(|text| is_store(text)) else { return Fleet::open_with(path, options, host).await };
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
