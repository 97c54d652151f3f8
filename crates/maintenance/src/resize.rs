//! Resizes of a fleet that works meanwhile: drives join, drives leave, and values move (`docs/internals/resize.md`).
//!
//! | module | subject |
//! |---|---|
//! | `skytether_catalog::records::home_slots` | which drives are homes of a root record |
//! | `resize_members` | membership: who joins the fleet, and who leaves it |
//! | `resize_nodes` | the node of a joining drive, and whether nodes keep enough drives |
//! | `rebalance_plan` | where the parts of a table will be |
//! | `two_level_layout` | the same on two levels: every part stays on its node |
//! | `rebalance_parities` | the parities and code maps of the new generation |
//! | `rebalance` | writes a data set as a new generation of the same content over other drives |
//! | `retention` | replaced generations, which queries may still read |
//! | `skytether_api::resize_report` | options and report |

use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skytether_common::units::{counted, human_bytes};
use skytether_common::{Error, Result};
use skytether_device::Cse;
use skytether_fleet_volume::Moved;

use crate::Maintenance;
use skytether_api::resize_report::{Load, ResizeOptions, ResizeReport};
use skytether_api::scrub_report::Progress;
use skytether_catalog::health::DriveHealth;
use skytether_runtime::within;

use crate::rebalance::Mover;

/// Rounds in which the host checks whether ingests that began before left values on leaving drives.
const ROUNDS: usize = 16;

/// How long a lost drive may take to answer before the host gives up wiping it.
const ANSWER: Duration = Duration::from_secs(10);

impl Maintenance {
    /// Takes the blank drives `new` into the fleet, empties the leaving drives and ends their membership. Then it
    /// balances: each drive's load ends within 5% of the mean, with no more moves than that takes. `tell` gets the
    /// progress. Queries and ingests continue. Dropping the future stops the resize; the next call continues it.
    ///
    /// # Errors
    /// `Invalid` for new drives that are not blank, have the name of another drive, or are of another fleet; for
    /// leaving drives that do not exist; and where too few drives would remain. `Conflict` while another resize or a
    /// repair runs. `Unavailable` while drives are lost that do not leave, and where a leaving drive has a value that
    /// can't be moved, which the text names. `Unsupported` for the drives of an aggregator.
    pub fn resize<'a>(
        &'a self,
        new: Vec<Arc<dyn Cse>>,
        options: &'a ResizeOptions,
        tell: &'a (dyn Fn(&Progress) + Send + Sync),
    ) -> BoxFuture<'a, Result<ResizeReport>> {
        Box::pin(async move {
            let started = Instant::now();
            let (catalog, health) = (self.0.catalog(), self.0.catalog().health());
            let _only = self
                .0
                .reconstructor()
                .repairing()
                .ok_or_else(|| Error::conflict("drives of this fleet are being repaired, added or retired at this moment: wait until that is done"))?;
            if !health.is_known() {
                return Err(Error::unsupported("a fleet grows that knows its drives: let the host join them first"));
            }
            catalog.look_around().await?;
            // An earlier resize that was interrupted.
            catalog.tell_all().await?;
            let (leaving, left) = self.places_of(&options.retire)?;
            for at in &left {
                // One that left as it should is none of the fleet's any more.
                let drive = &self.0.reconstructor().drives[*at];
                let holds = within(catalog.deadline(), &drive.info().name, "list what it holds", drive.list("", None, 1)).await;
                if !matches!(holds, Ok(entries) if !entries.is_empty()) {
                    return Err(no_such(&drive.info().name));
                }
                skytether_catalog::join::wipe(self.0.reconstructor().drives[*at].as_ref(), catalog.deadline()).await?;
            }
            let before = Mover::new(&self.0, BTreeSet::new(), None, tell).loads().await?;
            let had = health.members();
            let nodes = self.nodes_for(new.len(), &leaving, options)?;
            self.enough(&leaving, &nodes).await?;
            let (mut added, mut on) = (Vec::new(), Vec::new());
            for (drive, node) in new.into_iter().zip(nodes) {
                let name = drive.info().name.clone();
                if self.adopt(drive, &node).await? {
                    tracing::info!("{name} came to the fleet");
                    if !node.is_empty() {
                        on.push(format!("{name} on {node}"));
                    }
                    added.push(name);
                }
            }
            if let Some(at) = health.down().into_iter().find(|at| !leaving.contains(at)) {
                let (name, why) = (&self.0.drives()[at].info().name, health.down_reason(at).unwrap_or_default());
                let came = if added.is_empty() { String::new() } else { format!("{} came to the fleet; ", added.join(", ")) };
                return Err(Error::unavailable(format!(
                    "{came}nothing is moved while {name} is lost ({why}): bring it back, repair it (`skytether repair`), or retire it, too (`skytether fleet retire`)"
                )));
            }
            let mut report = {
                let _closed = Closed::new(health, &leaving);
                self.moved(&leaving, options, tell).await?
            };
            if !on.is_empty() {
                report.notes.push(format!("came: {}", on.join(", ")));
            }
            let after = Mover::new(&self.0, BTreeSet::new(), None, tell).loads().await?;
            let load = |loads: &[u64], at: usize| loads.get(at).copied().unwrap_or(0);
            let all: BTreeSet<usize> = had.iter().copied().chain(health.members()).collect();
            report.drives =
                all.iter().map(|at| Load { drive: self.0.drives()[*at].info().name.clone(), before: load(&before, *at), after: load(&after, *at) }).collect();
            report.off_before = off_mean(had.iter().map(|at| load(&before, *at)));
            report.off_after = off_mean(health.members().into_iter().map(|at| load(&after, at)));
            if !added.is_empty() && !self.0.is_kept() {
                report.notes.push(format!("when the host is started again, {} must be among its --drives", added.join(", ")));
            }
            if report.pinned > 0 && report.off_after > crate::rebalance_plan::TOLERANCE {
                let what = "are partitioned by key and stay on as many drives as they were written to: ingest them again to have them on all";
                report.notes.push(format!("{} of tables {what}", human_bytes(report.pinned)));
            }
            if health.failure_domains().is_some() && report.off_after > crate::rebalance_plan::TOLERANCE {
                report.notes.push("what has redundancy on two levels stays on its nodes: drives of nodes that have fewer of them have more".to_owned());
            }
            report.added = added;
            report.retired = leaving.iter().chain(&left).map(|at| self.0.drives()[*at].info().name.clone()).collect();
            if !report.retired.is_empty() && !self.0.is_kept() {
                report.notes.push(format!("when the host is started again, {} must not be among its --drives", report.retired.join(", ")));
            }
            report.seconds = started.elapsed().as_secs_f64();
            Ok(report)
        })
    }

    /// Checks, before anything changes, what [`Self::resize`] would reject of `count` joining drives.
    ///
    /// # Errors
    /// As there.
    pub fn check_resize<'a>(&'a self, count: usize, options: &'a ResizeOptions) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (leaving, _) = self.places_of(&options.retire)?;
            self.enough(&leaving, &self.nodes_for(count, &leaving, options)?).await
        })
    }

    /// Empties drives, ends their membership, and balances the rest.
    async fn moved(&self, leaving: &BTreeSet<usize>, options: &ResizeOptions, tell: &(dyn Fn(&Progress) + Send + Sync)) -> Result<ResizeReport> {
        let health = self.0.catalog().health();
        let mut mover = Mover::new(&self.0, leaving.clone(), options.bytes_per_s, tell);
        for _ in 0..ROUNDS {
            mover.report.left.clear();
            // They take no new parts any more.
            if let Some(moved) = crate::volumes::move_off(self.0.catalog(), leaving, options.bytes_per_s).await? {
                let Moved { extents, bytes, left } = moved;
                mover.report.left.extend(left);
                if extents > 0 {
                    let (extents, bytes) = (counted(extents, "extent"), human_bytes(bytes));
                    mover.report.notes.push(format!("{extents} of volumes, {bytes}, were written again on the drives that stay"));
                }
            }
            mover.all().await?;
            if leaving.is_empty() {
                return Ok(mover.report);
            }
            if !mover.report.left.is_empty() {
                return Err(Error::unavailable(format!("not all that is on drives that are to leave can be moved: {}", mover.report.left.join("; "))));
            }
            let lost: BTreeSet<usize> = health.down().into_iter().collect();
            let gone: Vec<usize> = leaving.iter().copied().collect();
            if !self.dismiss(&gone).await? {
                continue;
            }
            for at in gone {
                let was_lost = lost.contains(&at);
                // A blank drive with rebuilt content may answer, and would no longer be blank.
                let deadline = if was_lost { self.0.catalog().deadline().min(ANSWER) } else { self.0.catalog().deadline() };
                if let Err(e) = skytether_catalog::join::wipe(self.0.reconstructor().drives[at].as_ref(), deadline).await
                    && !was_lost
                {
                    mover.report.notes.push(format!(
                        "{} left the fleet, but what is on it could not be deleted: {}",
                        self.0.drives()[at].info().name,
                        e.report()
                    ));
                }
            }
            return Ok(mover.report);
        }
        Err(Error::conflict("ingests write to the drives that are to leave all the time: retire them again when these are over"))
    }

    /// Checks the request of a client to a host that is served.
    pub fn check_resize_request(&self, options: &ResizeOptions) -> Result<()> {
        if options.count > 0 {
            return Err(Error::invalid(
                "a fleet behind a host gets drives by their addresses: start a blank one with `skytether drive serve`, and name its address",
            ));
        }
        if self.0.is_kept() && !options.addresses.is_empty() {
            return Err(Error::invalid(
                "this host serves a fleet in a directory, whose drives are all below it: stop the host, and add drives to the directory (`skytether fleet add --fleet DIR`)",
            ));
        }
        Ok(())
    }

    /// The places of the drives with these names or ids: members, and drives that left in a resize that was
    /// interrupted.
    fn places_of(&self, names: &[String]) -> Result<(BTreeSet<usize>, BTreeSet<usize>)> {
        let (members, outside) = (self.0.catalog().health().members(), self.0.catalog().health().outside());
        let (mut leaving, mut left) = (BTreeSet::new(), BTreeSet::new());
        for name in names {
            let is = |at: &&usize| {
                let info = self.0.drives()[**at].info();
                info.name == *name || info.id.to_string() == *name
            };
            match (members.iter().find(is), outside.iter().find(is)) {
                (Some(at), _) => leaving.insert(*at),
                (None, Some(at)) => left.insert(*at),
                (None, None) => return Err(no_such(name)),
            };
        }
        Ok((leaving, left))
    }
}

fn no_such(name: &str) -> Error {
    Error::invalid(format!("there is no drive {name:?}: `skytether status` names them"))
}

/// Drives that get no new values while this lives.
struct Closed<'a>(&'a DriveHealth, &'a BTreeSet<usize>);

impl<'a> Closed<'a> {
    fn new(health: &'a DriveHealth, leaving: &'a BTreeSet<usize>) -> Self {
        leaving.iter().for_each(|at| health.set_leaving(*at, true));
        Self(health, leaving)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.1.iter().for_each(|at| self.0.set_leaving(*at, false));
    }
}

/// The largest deviation of a load from the mean, as a share of the mean.
fn off_mean(loads: impl Iterator<Item = u64>) -> f64 {
    let loads: Vec<u64> = loads.collect();
    let mean = loads.iter().sum::<u64>() as f64 / loads.len().max(1) as f64;
    if mean == 0.0 { 0.0 } else { loads.iter().map(|load| (*load as f64 - mean).abs() / mean).fold(0.0, f64::max) }
}
