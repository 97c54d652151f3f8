//! A cluster over the drives of one fleet, checked to be all of them and no others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use skytether_common::{Error, Kind, Result};
use skytether_device::{Cse, Storage};
use skytether_erasure::Scheme;
use skytether_runtime::within;
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::options::HostOptions;
use skytether_catalog::fencing::{Fence, take_over};
use skytether_catalog::join::{is_forgotten, wipe};
use skytether_catalog::records::membership::newest;
use skytether_catalog::records::membership::{Founding, Membership, Role};
use skytether_catalog::root_store::Catalog;
use skytether_recovery::fallback::Fallback;
use skytether_recovery::missing_drive::{MissingDrive, UnavailableDrive, advice};

impl Cluster {
    /// A host over the drives of one fleet, checked to be all of them and no others, with what earlier
    /// ingests left behind deleted. The number of keys that were deleted comes with it. Only safe while
    /// nobody else writes to these drives.
    ///
    /// # Errors
    /// As [`Cluster::new`], [`Catalog::establish_membership`] and [`Catalog::collect_garbage`].
    pub fn join(drives: Vec<Arc<dyn Cse>>, options: HostOptions, founding: Founding, fallback: Arc<dyn Fallback>) -> BoxFuture<'static, Result<(Self, u64)>> {
        Box::pin(async move { Self::join_without(drives, Vec::new(), options, founding, fallback).await })
    }

    /// As [`Cluster::join`], where some drives of the fleet are `lost`: known by their ids, and not to be had. A fleet
    /// that survives that is opened without them, and without those that it has and that are not named here at all.
    /// Nothing is collected then.
    ///
    /// # Errors
    /// As there; that of the first of `lost`, naming all, where the fleet can't lose any; Unavailable where more
    /// are lost than it survives.
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
            // What left the fleet need not be there.
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
                tracing::warn!("{} is lost: {text}; {}", member.name, advice(&member.id, &member.name, founding == Founding::KnownList));
                missing.push((place, Arc::new(MissingDrive::new(member.id, &member.name, text))));
            }
            let gone = missing.iter().map(|(_, gone)| Arc::clone(gone)).collect();
            missing.sort_by_key(|(place, _)| *place);
            for (place, gone) in missing {
                drives.insert(place.min(drives.len()), gone);
            }
            Self::joined(drives, gone, options, founding, scheme, fallback).await
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
            // What is known of it says more than that it does not answer.
            if let Some(gone) = gone.iter().find(|gone| gone.info().id == drive.info().id) {
                host.catalog().health().mark_down(at, gone.why());
            }
        }
        host.set_gone(gone);
        host.set_fence(Arc::clone(&fence));
        host.set_kept(founding == Founding::KnownList);
        let catalog = host.catalog();
        let hosts = host.options().hosts.clone();
        let known = catalog.establish(founding, &Role::Fleet, scheme, &hosts, &host.options().ids).await?;
        let missed = take_over(&fence, &fenced, deadline).await?;
        catalog.rejoin(deadline).await?;
        // The host before may still change what is there, so that it is not to be relied on, and nothing is
        // garbage for want of a record.
        for (id, e) in missed {
            if let Some(at) = host.drives().iter().position(|drive| drive.info().id == id) {
                catalog.may_lose(at, e)?;
            }
        }
        // Until just now another host may have changed what was read; from here on none does.
        let told = catalog.read_memberships(deadline).await?;
        if catalog.newest_of(&told).is_some_and(|now| now.drives != known.drives || now.seats != known.seats) {
            return Err(Error::conflict("the drives of this fleet changed while this host began: start it again"));
        }
        if !catalog.health().down().is_empty() && host.drives().iter().any(|drive| drive.capabilities().remote) {
            // Another host may still change what these have, and is not to be believed when they are back.
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
            // What a drive that is lost would name may be needed. Those that are here build their indexes all the same.
            if let Err(e) = catalog.define_all_indexes().await {
                tracing::warn!("drives were not told of their indexes: {}", e.report());
            }
            0
        };
        Ok((host, deleted))
    }
}

/// Why a drive of this id is not there that nobody named, where nobody answered at the addresses `silent`.
fn not_given(id: &Uuid, silent: &[String], founding: Founding) -> String {
    match silent {
        // Whoever keeps the list puts it right when the fleet is open.
        _ if founding == Founding::KnownList => {
            format!("it is missing: `fleet.json` did not name it (its id is {id}), and does again: open the fleet once more")
        }
        [] => format!("it is missing: the host was given no drive of its id, {id}"),
        _ => format!("it is missing: no drive that answers has its id, {id}, and nobody answers at {}", silent.join(", ")),
    }
}

/// Those of `drives` that the fleet is to be opened without: that left it, and, of a list that was kept with them, that
/// were to come to it when a crash came first.
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
                    // It was to be wiped when a crash came first.
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
