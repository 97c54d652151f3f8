//! Changes of a store on a Kinetic drive: how a batch of a store becomes operations of the drive.
//!
//! A batch is planned from the versions that are stored, and done on the condition that these are still stored. If one
//! is not, it is planned again. A condition of the writer that does not hold is found while planning.
//!
//! `commit.rs` has what is done with a plan.

use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use skytether_common::{Error, Kind, Result};
use skytether_store::batch::{check_expectation, validate};
use skytether_store::{Expect, Op, Version};
use tokio::time::sleep;

use crate::batch::Change;
use crate::commit::Stop;
use crate::drive::Inner;
use crate::layout::{Stamp, check_key};
use crate::read::{all, wire};
use crate::values::{Delete, Put, Record};

/// How often a batch is planned.
const ATTEMPTS: u32 = 24;

/// Values of a large batch up to this many bytes go into the drive's batch, if they have a condition.
const SMALL: usize = 4096;

/// The first pause before a batch is planned again.
const PAUSE: Duration = Duration::from_millis(1);

/// The longest one.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// Why a change is in a plan, which decides when it may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It writes a key that is absent: that it is there early does no harm, since no record names it.
    New,
    /// It replaces or deletes whatever is there.
    Any,
    /// It has a condition on a version, or on absence without writing a value.
    Condition,
}

/// One change of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) change: Change,
    pub(crate) role: Role,
}

/// What a batch becomes.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) planned: Vec<Planned>,
    /// What `apply` returns.
    versions: Vec<Version>,
    /// Stamps of values whose stripes are written for this plan, with their keys and values.
    pub(crate) striped: Vec<(Stamp, Bytes, Bytes)>,
    /// Stamps of striped values that are replaced or deleted.
    pub(crate) replaced: Vec<Stamp>,
    /// Keys that only hold their place, with their versions: deleted when the batch is done.
    pub(crate) places: Vec<(Bytes, Bytes)>,
    /// Whether a value or a key changes. A plan of conditions alone needs no commit.
    changes: bool,
}

/// What is stored under the key of an operation.
struct Found {
    /// The Kinetic version; `None`: the key is absent.
    raw: Option<Bytes>,
    /// What it says, if we wrote it.
    stamp: Option<Stamp>,
    /// The record, for conditions: they write it again as it is.
    record: Option<Record>,
}

impl Found {
    /// The version that a change expects; empty: none.
    fn expected(&self) -> Bytes {
        self.raw.clone().unwrap_or_default()
    }

    /// The value's stamp, if the key is there for a store.
    fn live(&self) -> Option<Stamp> {
        self.stamp.filter(|stamp| !stamp.absent)
    }

    fn is_foreign(&self) -> bool {
        self.raw.is_some() && self.stamp.is_none()
    }
}

/// Whether a batch may need more than one batch of the drive.
fn is_large(connection: &crate::Connection, batch: &[Op], found: &[Found], longest: usize) -> bool {
    let change = |(op, found): (&Op, &Found)| {
        let value = match op {
            Op::Put { value, .. } if value.len() <= longest => value.clone(),
            // A condition writes its record again.
            _ => found.record.as_ref().map(|record| record.value.clone()).unwrap_or_default(),
        };
        Change::Put(Put::new(wire(op.key()), value, None, Bytes::new()))
    };
    batch.len() > connection.batch_operations() || !connection.fits_batch(&batch.iter().zip(found).map(change).collect::<Vec<_>>())
}

impl Inner {
    /// Carries out a batch: see [`skytether_store::SliceStore::apply`].
    pub(crate) async fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        validate(&batch).map_err(|e| self.named(e))?;
        for op in &batch {
            check_key(op.key()).map_err(|e| self.named(e))?;
            if let Op::Link { key, .. } = op {
                return Err(self.named(Error::unsupported(format!("it can't link {key} to another key's value; ask its capabilities first, and write a copy"))));
            }
        }
        if self.is_unfinished() {
            self.finish().await?;
        }
        let mut pause = PAUSE;
        for _ in 0..ATTEMPTS {
            let plan = self.plan(&batch).await.map_err(|e| self.named(e))?;
            if !plan.changes {
                return Ok(plan.versions);
            }
            match self.commit(&plan).await {
                Ok(()) => return Ok(plan.versions),
                Err(Stop::Stale) => {}
                Err(Stop::Failed(error)) => return Err(self.named(error)),
            }
            // Other writers of the same keys pause for another time.
            let [random, _] = crate::layout::random()?;
            sleep(pause + Duration::from_micros(random % 2000)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let keys = batch.iter().take(3).map(|op| op.key().as_str()).collect::<Vec<_>>().join(", ");
        Err(self.named(Error::conflict(format!("keys of the batch ({keys}, ...) change all the time: nothing was changed; try again"))))
    }

    async fn plan(&self, batch: &[Op]) -> Result<Plan> {
        let found: Vec<Found> = all(batch.iter().map(|op| self.found(op).boxed()).collect()).await?;
        for (op, found) in batch.iter().zip(&found) {
            let is_nothing = matches!(op, Op::Delete { expect: Expect::Any, .. } | Op::Check { expect: Expect::Any, .. });
            if found.is_foreign() && !is_nothing {
                let key = op.key();
                return Err(Error::conflict(format!("key {key} was written by another client of the drive: nothing was changed; delete it there first")));
            }
            check_expectation(op.key(), op.expect(), found.live().map(|stamp| stamp.version))?;
        }
        let connection = self.client.connection().await?;
        let longest = connection.longest_value();
        let large = is_large(&connection, batch, &found, longest);
        let mut plan = Plan::default();
        for (op, found) in batch.iter().zip(found) {
            let version = self.plan_op(&mut plan, op, &found, longest, large)?;
            plan.versions.push(version);
        }
        Ok(plan)
    }

    async fn found(&self, op: &Op) -> Result<Found> {
        let key = wire(op.key());
        let failed = |failure| {
            let error = Error::from(failure);
            Error::new(error.kind(), format!("cannot ask for key {}: {}", op.key(), error.message()))
        };
        let (raw, record) = match op {
            Op::Check { expect: Expect::Version(_), .. } => {
                let record = self.record(&key).await.map_err(failed)?;
                (record.as_ref().map(|record| record.version.clone()), record)
            }
            Op::Check { expect: Expect::Any, .. } => (None, None),
            _ => (self.raw_version(&key).await.map_err(failed)?, None),
        };
        let stamp = raw.as_deref().and_then(Stamp::parse);
        if let Some(stamp) = &stamp {
            self.clock.seen(stamp.version);
        }
        Ok(Found { raw, stamp, record })
    }

    /// Adds what an operation needs to a plan; the version that it gives.
    fn plan_op(&self, plan: &mut Plan, op: &Op, found: &Found, longest: usize, large: bool) -> Result<Version> {
        let key = wire(op.key());
        let live = found.live();
        match op {
            Op::Put { value, expect, .. } => {
                let role = match (expect, live) {
                    (_, None) => Role::New,
                    (Expect::Any, Some(_)) => Role::Any,
                    (_, Some(_)) => Role::Condition,
                };
                // The values of a large batch go into stripes, except those of new keys, which are written before it.
                let inline = match role {
                    Role::New => longest,
                    // What an intent lists has its value in stripes.
                    Role::Any => 0,
                    Role::Condition => SMALL.min(longest),
                };
                let striped = value.len() > if large { inline } else { longest };
                let stripe = if striped { u32::try_from(longest).unwrap_or(u32::MAX) } else { 0 };
                let stamp = self.clock.stamp(value, stripe)?;
                let held = if striped { Bytes::new() } else { value.clone() };
                if striped {
                    plan.striped.push((stamp, key.clone(), value.clone()));
                }
                plan.replaced.extend(live.filter(|old| old.stripe != 0));
                plan.changes = true;
                plan.planned.push(Planned { change: Change::Put(Put::new(key, held, Some(found.expected()), stamp.to_bytes())), role });
                Ok(stamp.version)
            }
            Op::Delete { expect, .. } => {
                match (expect, live) {
                    (Expect::Any, None) => {}
                    (_, None) => self.plan_place(plan, key, found)?,
                    (_, Some(old)) => {
                        let role = if *expect == Expect::Any { Role::Any } else { Role::Condition };
                        plan.replaced.extend((old.stripe != 0).then_some(old));
                        plan.changes = true;
                        plan.planned.push(Planned { change: Change::Delete(Delete::new(key, Some(found.expected()))), role });
                    }
                }
                Ok(0)
            }
            Op::Check { expect: Expect::Any, .. } => Ok(0),
            Op::Check { expect: Expect::Absent, .. } => self.plan_place(plan, key, found).map(|()| 0),
            Op::Check { .. } => {
                let record = found.record.clone().unwrap_or_default();
                let mut put = Put::new(key, record.value, Some(record.version.clone()), record.version);
                if let Some(algorithm) = record.algorithm {
                    put.tag = (record.tag, algorithm);
                }
                plan.planned.push(Planned { change: Change::Put(put), role: Role::Condition });
                Ok(0)
            }
            Op::Link { .. } => Err(Error::new(Kind::Unsupported, "it can't link")),
        }
    }

    /// A condition that a key is absent. Kinetic has none without writing, so the key is written, as absent.
    fn plan_place(&self, plan: &mut Plan, key: Bytes, found: &Found) -> Result<()> {
        let version = Stamp { absent: true, ..self.clock.stamp(&[], 0)? }.to_bytes();
        plan.places.push((key.clone(), version.clone()));
        plan.planned.push(Planned { change: Change::Put(Put::new(key, Bytes::new(), Some(found.expected()), version)), role: Role::Condition });
        Ok(())
    }
}
