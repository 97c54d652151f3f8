//! The protocols that the program knows, by scheme: where another door is registered.

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use skytether::{Fleet, HostOptions, OpenOptions, Scheme, Stores, refuse_redundancy};
use skytether_common::{Error, Result};
use skytether_doors::{Connectors, DriveDoors};
use skytether_store::SliceStore;
use skytether_store::disk::DriveIdentity;
use skytether_transport::endpoint::{DEFAULT_SCHEME, TLS_SCHEME};
use skytether_transport::{Endpoint, Registry, Security};

/// How a host reaches drives.
pub(crate) fn connectors() -> Arc<Connectors> {
    let mut connectors = skytether_flight_drive::connectors();
    skytether_kinetic::connectors_into(&mut connectors);
    Arc::new(connectors)
}

/// How a drive, or an aggregator, is served by any protocol that needs no store of its own.
pub(crate) fn of_drives() -> DriveDoors {
    skytether_flight_drive::drive_doors()
}

/// The schemes by which a drive is served. Its Kinetic doors and those to its volumes are made when it is open,
/// as their keys and journals lie in its directory.
pub(crate) fn schemes_of_drives() -> Registry<Security> {
    let mut schemes = skytether_doors::securities(&of_drives());
    schemes.register(skytether_kinetic_server::options::SCHEME, Security::Plain);
    schemes.register(skytether_kinetic_server::options::TLS_SCHEME, Security::Tls);
    crate::volumes::schemes_into(&mut schemes);
    schemes
}

/// Whether an address is that of a Kinetic door.
pub(crate) fn is_kinetic(at: &Endpoint) -> bool {
    [skytether_kinetic_server::options::SCHEME, skytether_kinetic_server::options::TLS_SCHEME].contains(&at.scheme())
}

/// How a host is served. Its Flight protocol and Flight SQL share a port; its volumes have ports of their own.
pub(crate) fn of_hosts() -> Registry<Security> {
    let mut faces = Registry::new("a host");
    faces.register(DEFAULT_SCHEME, Security::Plain);
    faces.register(TLS_SCHEME, Security::Tls);
    crate::volumes::schemes_into(&mut faces);
    faces
}

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

fn ceph(text: &str, create: Option<usize>) -> Result<Stores> {
    let fleet = skytether_rados::open(&skytether_rados::Address::parse(text)?, create)?;
    let drives = fleet.drives.into_iter().map(|drive| (DriveIdentity { id: drive.id, name: drive.name }, drive.store as Arc<dyn SliceStore>)).collect();
    Ok(Stores { location: text.to_owned(), kept: fleet.kept, new: fleet.new, drives, guard: Box::new(fleet.guard) })
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
