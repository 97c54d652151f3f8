//! Fencing: of two hosts over the same drives, only the one that began last may change what they store.
//!
//! Every remote drive keeps a coordinator record: the host whose changes it takes, with a *term*. A host that begins
//! writes its own record on all drives by compare-and-set, with a higher term than any of them had. Each batch that it
//! sends afterwards requires that the record still has the version that this host wrote. So the drive itself refuses an
//! older host, inside the transaction of the change.
//!
//! No clock and no lease is involved. A host that was cut off or stopped for a day is refused at its first change.
//! Reads are not fenced.
//!
//! A drive that is away when a host begins gets the record before this host's first change there. Drives in the host's
//! process need no record: their directories are locked.

use futures::future::BoxFuture;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use skytether_common::units::human_seconds;
use skytether_common::{Detail, Error, Key, Kind, Result};
use skytether_device::{Cse, CseInfo, Layer};
use skytether_store::{Expect, Op, Version};
use tokio::sync::Mutex;
use uuid::Uuid;

use skytether_runtime::within;

/// The key of the record. It has the prefix of the membership record's key, so that drives of an aggregator keep the
/// aggregator's record and that of its parent host apart.
pub(crate) const COORDINATOR_KEY: &str = "skytether-fleet-host";

const FORMAT: u32 = 1;

/// How often a host that begins looks for a higher term, or writes its record again, where others
/// do the same at that time.
const ATTEMPTS: usize = 8;

/// The coordinator record: the host whose changes a drive takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    format: u32,
    /// Grows with each host that begins.
    term: u64,
    /// Drawn at random by each host that begins.
    host: Uuid,
    /// Its process, for texts.
    process: u32,
    /// Seconds since 1970 when it began, by its own clock, for texts.
    since: u64,
}

impl Holder {
    /// Describes this host to another host that finds it in its place.
    fn told(&self) -> String {
        let ago = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs().saturating_sub(self.since));
        format!("another host (process {}, {}) has this fleet, begun {} ago", self.process, self.host, human_seconds(ago as f64))
    }

    /// The detail of errors of `drive`, which it has.
    fn fences(&self, drive: &str) -> Detail {
        Detail::Fenced { drive: drive.to_owned(), term: self.term }
    }
}

/// What a refusal says, behind the drive's name.
const REFUSES: &str = "takes no changes from this host any more";

/// Whether a drive refused a change because another host has its fleet, and not because of what is stored there.
pub fn is_refusal(error: &Error) -> bool {
    error.kind() == Kind::Conflict && matches!(error.detail(), Some(Detail::Fenced { .. }))
}

/// A host, as drives know it.
#[derive(Debug)]
pub struct Fence {
    host: Uuid,
    since: u64,
    /// 0 until it has begun: then its changes have no condition but their own.
    term: AtomicU64,
    /// The host that took over, once known.
    lost: OnceLock<String>,
}

impl Fence {
    /// A host with this id, which must be unique.
    pub fn new(host: Uuid) -> Arc<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Arc::new(Self { host, since, term: AtomicU64::new(0), lost: OnceLock::new() })
    }

    /// `drive`, with a condition on what this host changes there.
    pub fn around(self: &Arc<Self>, drive: Arc<dyn Cse>) -> Arc<Fenced> {
        Arc::new(Fenced { drive, fence: Arc::clone(self), laid: Mutex::new(None) })
    }

    fn holder(&self, term: u64) -> Holder {
        Holder { format: FORMAT, term, host: self.host, process: std::process::id(), since: self.since }
    }

    /// Which other host `drive` takes changes from in the place of this one, if there is one: it began after this one.
    ///
    /// # Errors
    /// What the drive says.
    pub async fn other_at(&self, drive: &dyn Cse) -> Result<Option<String>> {
        let term = self.term.load(Ordering::SeqCst);
        if term == 0 || !drive.capabilities().remote {
            return Ok(None);
        }
        let bytes = match drive.get(&Key::new(COORDINATOR_KEY)?).await {
            // This host's own record takes its place with the next change.
            Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt) => return Ok(None),
            got => got?,
        };
        let other = serde_json::from_slice::<Holder>(&bytes).ok().filter(|other| other.host != self.host && other.term >= term);
        Ok(other.map(|other| other.told()))
    }

    /// `drive` alone went to another fleet; this one has all others.
    fn gone(drive: &str, other: &Holder) -> Error {
        let (process, id) = (other.process, other.host);
        Error::conflict(format!(
            "{drive} {REFUSES}: it left this fleet, and the host of another one (process {process}, {id}) has it now. Nothing was changed there; start this host again with the drives of its fleet"
        ))
        .with_detail(other.fences(drive))
    }

    /// Remembers and returns that `drive` takes changes from another host.
    fn refused(&self, drive: &str, other: &Holder) -> Error {
        let who = other.told();
        if self.lost.set(who.clone()).is_ok() {
            tracing::error!("{who}: this one changes nothing any more");
        }
        Error::conflict(format!("{drive} {REFUSES}: {who}. Nothing was changed. Ask that one, or stop it and start this one again"))
            .with_detail(other.fences(drive))
    }
}

/// Takes the drives over: from when this returns, no host that began before changes anything on drives that answered.
/// Returns the ids of the drives that did not answer, each with its error.
///
/// # Errors
/// Conflict where another host takes them over at this moment; what the drives say.
pub async fn take_over(fence: &Fence, drives: &[Arc<Fenced>], deadline: Duration) -> Result<Vec<(Uuid, Error)>> {
    // In order of their ids: of two hosts the second meets the first at the first drive, and not each the
    // other one at half of them.
    let mut drives: Vec<&Fenced> = drives.iter().map(|drive| drive.as_ref()).filter(|held| held.drive.capabilities().remote).collect();
    drives.sort_by_key(|held| held.drive.info().id);
    let mut refused = None;
    for _ in 0..ATTEMPTS {
        let known = try_join_all(drives.iter().map(|drive| async {
            match within(deadline, drive.name(), "name its host", drive.holder()).await {
                Ok(found) => Ok(found.and_then(|(holder, _)| holder).map_or(0, |holder| holder.term)),
                Err(e) if e.kind() == Kind::Unavailable => Ok(0),
                Err(e) => Err(e),
            }
        }));
        let term = known.await?.into_iter().max().unwrap_or(0) + 1;
        fence.term.store(term, Ordering::SeqCst);
        refused = None;
        let mut missed = Vec::new();
        for drive in &drives {
            match within(deadline, drive.name(), "note its host", drive.version()).await {
                Err(e) if e.kind() == Kind::Conflict => {
                    refused = Some(e);
                    break;
                }
                Err(e) if e.kind() != Kind::Unavailable => return Err(e.context(format!("{} could not note its host", drive.name()))),
                Err(e) => missed.push((drive.drive.info().id, e)),
                Ok(_) => {}
            }
        }
        if refused.is_none() {
            return Ok(missed);
        }
    }
    let busy = Error::conflict("other hosts take this fleet over at this moment: stop all but one");
    Err(match refused {
        Some(e) => busy.with_source(e),
        None => busy,
    })
}

/// A drive that takes changes from this host on a condition.
#[derive(Debug)]
pub struct Fenced {
    drive: Arc<dyn Cse>,
    fence: Arc<Fence>,
    /// Term and version of the record that this host has written there.
    laid: Mutex<Option<(u64, Version)>>,
}

impl Fenced {
    fn name(&self) -> &str {
        &self.drive.info().name
    }

    /// The record that is there, if it can be read, and its version.
    async fn holder(&self) -> Result<Option<(Option<Holder>, Version)>> {
        let key = Key::new(COORDINATOR_KEY)?;
        let Some(entry) = self.drive.stat(&key).await? else { return Ok(None) };
        let holder = match self.drive.get(&key).await {
            Ok(bytes) => serde_json::from_slice(&bytes).ok(),
            // Another host's record, just now.
            Err(e) if e.kind() == Kind::NotFound => None,
            // A new one takes its place.
            Err(e) if e.kind() == Kind::Corrupt => None,
            Err(e) => return Err(e),
        };
        Ok(Some((holder, entry.version)))
    }

    /// The version of this host's record at the drive, where it is written if it is not there.
    async fn version(&self) -> Result<Version> {
        let term = self.fence.term.load(Ordering::SeqCst);
        let mut laid = self.laid.lock().await;
        if let Some((of, version)) = *laid
            && of == term
        {
            return Ok(version);
        }
        let own = self.fence.holder(term);
        let value = serde_json::to_vec(&own).map(Bytes::from).map_err(|e| Error::internal("cannot write the record of a fleet's host").with_source(e))?;
        for _ in 0..ATTEMPTS {
            // The value that is read after its version is that version, or the compare-and-set fails.
            let expect = match self.holder().await? {
                None => Expect::Absent,
                Some((Some(other), _)) if other.host != own.host && other.term >= term => return Err(self.fence.refused(self.name(), &other)),
                Some((_, version)) => Expect::Version(version),
            };
            match self.drive.apply(vec![Op::Put { key: Key::new(COORDINATOR_KEY)?, value: value.clone(), expect }]).await {
                Ok(versions) => {
                    let version = versions.first().copied().ok_or_else(|| Error::internal("a drive gave no version for what it took"))?;
                    *laid = Some((term, version));
                    return Ok(version);
                }
                Err(e) if e.kind() == Kind::Conflict => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::conflict(format!("the record of its host changes all the time at {}: stop all hosts but one", self.name())))
    }

    /// Whether the drive refused a batch because it lacks this host's record (last written as version `checked`), and
    /// not for a condition of the batch. An error where another host's record is there.
    async fn is_without(&self, checked: Version) -> Result<bool> {
        // Several batches may be refused at a time: the first writes the record again, and the others find it.
        let mut laid = self.laid.lock().await;
        let found = self.holder().await?;
        let term = self.fence.term.load(Ordering::SeqCst);
        let is_later = |there: Version| laid.is_some_and(|(_, version)| there > version);
        match &found {
            // A record of a lower term from before: the drive has forgotten the takeover, as a disk does that
            // acknowledged what it had not written. A later record belongs to another fleet that has the drive now.
            Some((Some(other), _)) if other.host != self.fence.host && other.term >= term => return Err(self.fence.refused(self.name(), other)),
            Some((Some(other), there)) if other.host != self.fence.host && is_later(*there) => return Err(Fence::gone(self.name(), other)),
            _ => {}
        }
        if laid.is_none_or(|(_, version)| version != checked) {
            return Ok(true);
        }
        let still = laid.is_some_and(|(_, version)| found.is_some_and(|(_, there)| there == version));
        if !still {
            *laid = None;
        }
        Ok(!still)
    }
}

impl Layer for Fenced {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            if batch.is_empty() || !self.drive.capabilities().remote || self.fence.term.load(Ordering::SeqCst) == 0 {
                return self.drive.apply(batch).await;
            }
            for last in [false, true] {
                let checked = self.version().await?;
                let expect = Expect::Version(checked);
                let mut all = batch.clone();
                // A drive that leaves the fleet must forget its coordinator.
                let forgets =
                    all.iter_mut().find(|op| op.key().as_str() == COORDINATOR_KEY).map(|op| *op = Op::Delete { key: op.key().clone(), expect }).is_some();
                if !forgets {
                    all.push(Op::Check { key: Key::new(COORDINATOR_KEY)?, expect });
                }
                match self.drive.apply(all).await {
                    Ok(mut versions) => {
                        versions.truncate(batch.len());
                        return Ok(versions);
                    }
                    // Another drive in its place, say.
                    Err(e) if e.kind() == Kind::Conflict && self.is_without(checked).await? && !last => {}
                    Err(e) => return Err(e),
                }
            }
            Err(Error::internal("a batch was neither taken nor refused"))
        })
    }
}
