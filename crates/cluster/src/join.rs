//! Joins the drives of one fleet to a cluster, and checks that they are all of its drives and no others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use skytether_common::{Kind, Result};
use skytether_device::{Cse, Storage};
use skytether_erasure::Scheme;
use skytether_runtime::within;
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::options::HostOptions;
use crate::read_only::ReadOnly;
use skytether_catalog::fencing::{Fence, take_over};
use skytether_catalog::join::{is_forgotten, wipe};
use skytether_catalog::membership_store::changed_meanwhile;
use skytether_catalog::records::membership::newest;
use skytether_catalog::records::membership::{Founding, Membership, Role};
use skytether_catalog::root_store::Catalog;
use skytether_recovery::fallback::Fallback;
use skytether_recovery::missing_drive::{MissingDrive, UnavailableDrive};

/// The log's target for drives without which a fleet opens. Commands that show the drives leave it out.
const LOST: &str = "skytether::lost";

impl Cluster {
    /// Joins all drives of one fleet to a cluster, and deletes what earlier ingests left behind. Also gives the number
    /// of deleted keys. It checks that the drives are all of the fleet and no others. Only safe while no other process
    /// writes to these drives.
    ///
    /// # Errors
    /// As [`Cluster::new`], [`Catalog::establish_membership`] and [`Catalog::collect_garbage`].
    pub fn join(drives: Vec<Arc<dyn Cse>>, options: HostOptions, founding: Founding, fallback: Arc<dyn Fallback>) -> BoxFuture<'static, Result<(Self, u64)>> {
        Box::pin(async move { Self::join_without(drives, Vec::new(), options, founding, fallback).await })
    }

    /// As [`Cluster::join`], where some drives of the fleet are `lost`: their ids are known, and they do not answer. If
    /// the scheme covers the loss, the cluster opens without them, and without members that neither list names. It
    /// deletes no garbage then: a lost drive may have a record that names it.
    ///
    /// # Errors
    /// As there; the error of the first drive of `lost`, which names all, where the fleet survives no loss;
    /// `Unavailable` where more drives are lost than the scheme covers.
    pub fn join_without(
        drives: Vec<Arc<dyn Cse>>,
        lost: Vec<UnavailableDrive>,
        options: HostOptions,
        founding: Founding,
        fallback: Arc<dyn Fallback>,
    ) -> BoxFuture<'static, Result<(Self, u64)>> {
        Box::pin(async move {
            let mut drives = drives;

            let scheme = options.redundancy;
            let storages = drives.iter().map(|d| Arc::clone(d) as Arc<dyn Storage>).collect();
            let told = Catalog::new(storages, options.storage_deadline)?.read_memberships(options.storage_deadline).await?;
            let newest = newest(&told);
            let strangers: Vec<Uuid> = match newest {
                Some(newest) => strangers(newest, &drives, &told, founding, options.storage_deadline).await?,
                None => Vec::new(),
            };
            drives.retain(|drive| !strangers.contains(&drive.info().id));
            // A drive that left the fleet may be missing.
            let lost: Vec<UnavailableDrive> =
                lost.into_iter().filter(|lost| newest.is_none_or(|newest| newest.drives.iter().any(|member| member.id == lost.id))).collect();
            let membership = newest.filter(|membership| membership.homes > 1);
            let Some(membership) = membership else {
                if !lost.is_empty() {
                    let known = |one: &UnavailableDrive| newest.and_then(|newest| newest.drives.iter().find(|member| member.id == one.id));
                    return Err(UnavailableDrive::needed(&lost, |one| known(one).map_or_else(|| format!("drive {}", one.place), |member| member.name.clone())));
                }
                return Self::joined(drives, Vec::new(), options, founding, scheme, fallback).await;
            };
            let mut why: BTreeMap<Uuid, UnavailableDrive> = lost.into_iter().map(|lost| (lost.id, lost)).collect();
            let given: Vec<Uuid> = drives.iter().map(|drive| drive.info().id).collect();
            let mut missing = Vec::new();
            for member in membership.drives.iter().filter(|member| !given.contains(&member.id)) {
                let silent = || (usize::MAX, not_given(&member.id, &options.silent, founding));
                let (place, text) = why.remove(&member.id).map_or_else(silent, |lost| (lost.place, lost.error.report()));
                let line = format!("{} is lost: {text}; `skytether status` says what to do", member.name);
                missing.push((place, line, Arc::new(MissingDrive::new(member.id, &member.name, text))));
            }
            // Members are in the order of their ids, which are random: lines and drives come in the order of places.
            missing.sort_by_key(|(place, ..)| *place);
            let (mut gone, mut lines) = (Vec::new(), Vec::new());
            for (place, line, drive) in missing {
                gone.push(Arc::clone(&drive));
                lines.push(line);
                drives.insert(place.min(drives.len()), drive);
            }
            let joined = Self::joined(drives, gone, options, founding, scheme, fallback).await?;
            // An error names these drives itself.
            for line in lines {
                tracing::warn!(target: LOST, "{line}");
            }
            Ok(joined)
        })
    }

    /// A cluster over the drives of a fleet that another host has: it reads them, and changes nothing.
    ///
    /// # Errors
    /// As [`Cluster::new`] and [`Catalog::establish_membership`]; `Unavailable` for drives that are no fleet yet.
    pub fn observe(drives: Vec<Arc<dyn Cse>>, options: HostOptions, fallback: Arc<dyn Fallback>) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let drives = drives.into_iter().map(|drive| Arc::new(ReadOnly(drive)) as Arc<dyn Cse>).collect();
            let cluster = Self::new(drives, options, fallback)?;
            let ids = &cluster.options().ids;
            cluster.catalog().establish(Founding::Never, &Role::Fleet, Scheme::None, &BTreeMap::new(), ids).await?;
            Ok(cluster)
        })
    }

    async fn joined(
        drives: Vec<Arc<dyn Cse>>,
        gone: Vec<Arc<MissingDrive>>,
        options: HostOptions,
        founding: Founding,
        scheme: Scheme,
        fallback: Arc<dyn Fallback>,
    ) -> Result<(Self, u64)> {
        let deadline = options.storage_deadline;
        let fence = Fence::new(options.ids.id());
        let fenced: Vec<_> = drives.into_iter().map(|drive| fence.around(drive)).collect();
        let host = Self::new(fenced.iter().map(|drive| Arc::clone(drive) as _).collect(), options, fallback)?;
        for (at, drive) in host.drives().iter().enumerate() {
            // The reason for which the drive is missing says more than that it does not answer.
            if let Some(gone) = gone.iter().find(|gone| gone.info().id == drive.info().id) {
                host.catalog().health().mark_down(at, gone.why());
            }
        }
        host.set_gone(gone);
        host.set_fence(Arc::clone(&fence));
        host.set_kept(founding == Founding::KnownList);
        let catalog = host.catalog();
        let nodes = host.options().nodes.clone();
        let known = catalog.establish(founding, &Role::Fleet, scheme, &nodes, &host.options().ids).await?;
        let missed = take_over(&fence, &fenced, deadline).await?;
        catalog.rejoin(deadline).await?;
        // The previous host may still change a drive that this host could not take over. So its content is unreliable,
        // and a value without a record there may be no garbage.
        for (id, e) in missed {
            if let Some(at) = host.drives().iter().position(|drive| drive.info().id == id) {
                catalog.may_lose(at, e)?;
            }
        }
        // Until now another host may have changed what this one read. From here on the drives refuse it.
        let told = catalog.read_memberships(deadline).await?;
        if catalog.newest_of(&told).is_some_and(|now| now.drives != known.drives || now.seats != known.seats) {
            return Err(changed_meanwhile());
        }
        if !catalog.health().down().is_empty() && host.drives().iter().any(|drive| drive.capabilities().remote) {
            // Another host may still change the lost drives, so this host must not trust them when they are back.
            match catalog.record_absent().await {
                Err(e) if e.kind() != Kind::Conflict => tracing::warn!("drives that are lost are not noted: {}", e.report()),
                noted => noted?,
            }
        }
        catalog.agree_on_all().await?;
        catalog.sweep_records().await?;
        let deleted = if catalog.health().down().is_empty() {
            catalog.collect_garbage().await?
        } else {
            // A lost drive may have records that name a value. The other drives build their indexes in any case.
            if let Err(e) = catalog.define_all_indexes().await {
                tracing::warn!("drives were not told of their indexes: {}", e.report());
            }
            0
        };
        Ok((host, deleted))
    }
}

/// Why no list named the drive `id`, and where it may be: at the addresses `silent`, which did not answer.
fn not_given(id: &Uuid, silent: &[String], founding: Founding) -> String {
    match silent {
        // The embedded fleet adds it to `fleet.json` once it is open.
        _ if founding == Founding::KnownList => {
            format!("it is missing: `fleet.json` did not name it (its id is {id}), and does again: open the fleet once more")
        }
        [] => format!("it is missing: the host was given no drive of its id, {id}"),
        _ => format!("it is missing: no drive that answers has its id, {id}, and nobody answers at {}", silent.join(", ")),
    }
}

/// The drives that the fleet opens without. These are drives that left it, and drives of an embedded fleet's list whose
/// join a crash interrupted.
async fn strangers(
    newest: &Membership,
    drives: &[Arc<dyn Cse>],
    told: &[Result<Option<Membership>>],
    founding: Founding,
    deadline: Duration,
) -> Result<Vec<Uuid>> {
    let mut strangers = Vec::new();
    for (drive, told) in drives.iter().zip(told) {
        let info = drive.info();
        if newest.drives.iter().any(|member| member.id == info.id) {
            continue;
        }
        match told {
            Ok(Some(own)) if own.fleet == newest.fleet => {
                tracing::warn!("{} left the fleet, and is not used", info.name);
                strangers.push(info.id);
                let others: Vec<_> = drives.iter().filter(|other| newest.drives.iter().any(|member| member.id == other.info().id)).cloned().collect();
                if founding == Founding::KnownList && is_forgotten(&info.id, &info.name, &others, deadline).await? {
                    // A crash interrupted the wipe of this drive.
                    wipe(drive.as_ref(), deadline).await?;
                }
            }
            Ok(None) if founding == Founding::KnownList && within(deadline, &info.name, "list what it holds", drive.list("", None, 1)).await?.is_empty() => {
                tracing::warn!("{} was to come to the fleet, which was cut off: add it again", info.name);
                strangers.push(info.id);
            }
            _ => {}
        }
    }
    Ok(strangers)
}
