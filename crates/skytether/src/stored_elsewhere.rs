//! A fleet whose drives run in this process and store elsewhere than in a directory, such as in a Ceph cluster.
//!
//! What opens the stores is a crate of its own, which this one does not know: it hands over [`Stores`].

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::units::counted;
use skytether_common::{Error, Result};
use skytether_device::{Capabilities, Cse, CseInfo};
use skytether_drive::drive::FORMAT;
use skytether_drive::{Drive, DriveOptions, linked};
use skytether_host::{Founding, Host, HostOptions, Scheme};
use skytether_store::SliceStore;
use skytether_store::disk::DriveIdentity;

use crate::embedded::OpenOptions;

/// The open stores of a fleet's drives.
#[derive(Debug)]
pub struct Stores {
    /// The address by which the fleet is opened again.
    pub location: String,
    /// For people: what keeps the values, and how often.
    pub kept: String,
    /// Whether the fleet was made just now.
    pub new: bool,
    /// Each drive, in order.
    pub drives: Vec<(DriveIdentity, Arc<dyn SliceStore>)>,
    /// Runs sub-plans where the stores are, if something does.
    pub compute: Option<Arc<dyn ComputeElsewhere>>,
    /// Keeps other processes away until it is dropped, which is after the drives.
    pub guard: Box<dyn Guard>,
}

/// Runs sub-plans where the stores of a fleet are, such as at the OSDs of a Ceph cluster.
pub trait ComputeElsewhere: Send + Sync + Debug {
    /// `linked`, which is `drive` as the host sees it, with sub-plans that run there. `number` is that of the drive in
    /// [`Stores::drives`].
    ///
    /// # Errors
    /// Those of an engine that can't be made.
    fn over(&self, number: usize, drive: &Arc<Drive>, linked: Arc<dyn Cse>) -> Result<Arc<dyn Cse>>;
}

/// What a fleet holds while it is open.
pub trait Guard: Any + Send + Sync + Debug {}

impl<T: Any + Send + Sync + Debug> Guard for T {}

/// An open fleet of this kind.
#[derive(Debug)]
pub(crate) struct StoredElsewhere {
    // Dropped before the guard.
    pub(crate) host: Host,
    pub(crate) location: String,
    pub(crate) kept: String,
    pub(crate) new: bool,
    _guard: Box<dyn Guard>,
}

impl StoredElsewhere {
    pub(crate) fn open<'a>(stores: Stores, options: &'a OpenOptions, mut host: HostOptions) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let Stores { location, kept, new, drives, compute, guard } = stores;
            if let Some(n) = options.drives.filter(|n| *n != drives.len()) {
                let there = counted(drives.len() as u64, "drive");
                return Err(Error::invalid(format!("the fleet at {location} has {there}, not {n}: open it without a number, or make another fleet")));
            }
            host.redundancy = Scheme::None;
            let devices = options.profile.read()?.of(drives.len())?;
            let mut open: Vec<Arc<dyn Cse>> = Vec::with_capacity(drives.len());
            for (number, ((DriveIdentity { id, name }, store), device)) in drives.into_iter().zip(devices).enumerate() {
                // The OSDs are not the device that a drive emulates.
                let compute = compute.as_ref().filter(|_| device.is_none());
                let usual = DriveOptions::like(device, options.memory_per_drive);
                let own = DriveOptions { kept_bytes: options.kept_per_drive.unwrap_or(usual.kept_bytes), ..usual };
                let info =
                    CseInfo { id, name, format: FORMAT, memory_limit: own.memory_limit, profile: None, device: None, capabilities: Capabilities::default() };
                let drive = Drive::new(store, info, own)?;
                let seen = linked(Arc::clone(&drive) as Arc<dyn Cse>);
                open.push(match compute {
                    Some(compute) => compute.over(number, &drive, seen)?,
                    None => seen,
                });
            }
            // The guard excludes other writers, so values that no root record names are garbage. The stores' own list
            // names all drives.
            let (host, deleted) = Host::join_without(open, Vec::new(), host, Founding::KnownList).await?;
            if deleted > 0 {
                tracing::info!("{location}: {deleted} slices of an ingest that did not finish were deleted");
            }
            Ok(Self { host, location, kept, new, _guard: guard })
        })
    }

    /// Refuses a redundancy that the fleet would keep itself.
    pub(crate) fn refuse(&self, scheme: Scheme) -> Result<()> {
        refuse_redundancy(&self.location, scheme)
    }
}

/// Refuses a redundancy for a fleet at `location`, whose stores keep copies themselves.
///
/// # Errors
/// `Invalid` for any scheme but `none`.
pub fn refuse_redundancy(location: &str, scheme: Scheme) -> Result<()> {
    if scheme == Scheme::None {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the fleet at {location} has no redundancy of its own, since what it stores on keeps copies or codes: leave {scheme} out, and choose the pool by its size"
    )))
}
