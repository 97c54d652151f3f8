//! What is done with a plan: one operation, one batch of the drive, or an intent.
//!
//! A batch that is larger than the drive takes at once is done in this order:
//! 1. Stripes, and values of new keys. No record names them yet.
//! 2. One batch of the drive: everything with a condition, and an *intent*, which lists what else changes. From then on
//!    the batch is committed.
//! 3. What the intent lists. Each change expects the version that was stored before, so it can be tried again by any
//!    client, at any time.
//! 4. The intent is deleted.
//!
//! If a writer crashes after 2, the next connection finds the intent and does 3 and 4. Until then, other clients see
//! what the intent lists as it was before. A compare-and-set of such a key that comes before 3 wins over the intent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Kind, Result};
use skytether_kinetic_protocol::StatusCode;

use crate::apply::{Plan, Planned, Role};
use crate::batch::Change;
use crate::connection::Connection;
use crate::drive::Inner;
use crate::failure::{Failure, Outcome};
use crate::layout::{INTENTS, Stamp, stripe_version};
use crate::read::{AHEAD, all};
use crate::values::{Delete, Put};

/// Why a plan was not done.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A key has changed since it was planned: nothing was done.
    Stale,
    /// It can't be done, or its outcome is unknown.
    Failed(Error),
}

/// A change that an intent lists. Versions are bytes, as hexadecimal text.
#[derive(Debug, Serialize, Deserialize)]
struct Due {
    key: String,
    /// The version before.
    before: String,
    /// The version after, of a put; its value is in stripes.
    after: Option<String>,
}

/// Whether the drive refuses because of what is stored.
fn is_stale(failure: &Failure) -> bool {
    matches!(failure.code(), Some(StatusCode::VersionMismatch | StatusCode::NotFound | StatusCode::InvalidBatch))
}

/// The stop for a change that the drive did not do.
fn stop(failure: Failure) -> Stop {
    if is_stale(&failure) {
        return Stop::Stale;
    }
    if failure.is_unknown() {
        return Stop::Failed(Error::unavailable(format!("it is unknown whether the batch was done ({failure}): read its keys to see")));
    }
    Stop::Failed(failure.into())
}

/// The stop, and whether it is known that nothing was done.
fn told(failure: Failure) -> (Stop, bool) {
    let known = !failure.is_unknown();
    (stop(failure), known)
}

impl Inner {
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished.load(Ordering::SeqCst)
    }

    /// Does all of a plan, or nothing.
    pub(crate) async fn commit(&self, plan: &Plan) -> Result<(), Stop> {
        let written = self.write_all_stripes(plan).await;
        let done = match written {
            Ok(()) => self.commit_changes(plan).await,
            Err(failure) => Err((Stop::Failed(failure.into()), true)),
        };
        match done {
            Ok(()) => {
                self.clean(plan, plan.replaced.iter()).await;
                Ok(())
            }
            Err((stop, known)) => {
                // Where the outcome is unknown, the stripes may have their key.
                if known {
                    self.clean(plan, plan.striped.iter().map(|(stamp, _, _)| stamp)).await;
                }
                Err(stop)
            }
        }
    }

    /// Does the changes. An error says whether it is known that nothing was done.
    async fn commit_changes(&self, plan: &Plan) -> Result<(), (Stop, bool)> {
        let failed = told;
        let connection = self.client.connection().await.map_err(failed)?;
        let whole: Vec<Change> = plan.planned.iter().map(|planned| planned.change.clone()).collect();
        if connection.fits_batch(&whole) {
            return self.at_once(whole).await.map_err(failed);
        }
        let of = |roles: &[Role]| -> Vec<Change> { plan.planned.iter().filter(|p: &&Planned| roles.contains(&p.role)).map(|p| p.change.clone()).collect() };
        let early = of(&[Role::New]);
        let rest = of(&[Role::Any, Role::Condition]);
        let written = all(early.iter().map(|change| self.at_once(vec![change.clone()]).boxed()).collect()).await;
        let done = match written {
            Err(failure) => Err(failed(failure)),
            Ok(_) if rest.is_empty() => Ok(()),
            Ok(_) if connection.fits_batch(&rest) => self.at_once(rest).await.map_err(failed),
            Ok(_) => self.with_intent(of(&[Role::Condition]), &of(&[Role::Any])).await,
        };
        if let Err((_, true)) = &done {
            self.undo(early).await;
        }
        done
    }

    /// Does a few changes together. An unknown outcome is looked up.
    async fn at_once(&self, changes: Vec<Change>) -> Outcome<()> {
        let done = match &changes[..] {
            [] => return Ok(()),
            [Change::Put(put)] => {
                self.client
                    .write(|on| {
                        let put = put.clone();
                        async move { on.put(put).await }
                    })
                    .await
            }
            [Change::Delete(delete)] => {
                self.client
                    .write(|on| {
                        let delete = delete.clone();
                        async move { on.delete(delete).await }
                    })
                    .await
            }
            _ => {
                self.client
                    .write(|on| {
                        let changes = changes.clone();
                        async move { on.batch(changes).await }
                    })
                    .await
            }
        };
        match done {
            Err(failure) if failure.is_unknown() && self.has_happened(&changes).await => Ok(()),
            done => done,
        }
    }

    /// Whether stored versions prove that changes were done: no one else gives a version of theirs. Conditions write
    /// what was there before, so they prove nothing.
    async fn has_happened(&self, changes: &[Change]) -> bool {
        let put = changes.iter().find_map(|change| match change {
            Change::Put(put) if put.expected.as_ref() != Some(&put.version) => Some(put),
            _ => None,
        });
        let Some(put) = put else { return false };
        matches!(self.raw_version(&put.key).await, Ok(Some(version)) if version == put.version)
    }

    /// Deletes values of new keys again, as far as it goes: no record names them.
    async fn undo(&self, early: Vec<Change>) {
        let deletes = early.into_iter().filter_map(|change| match change {
            Change::Put(put) => Some(Delete::new(put.key, Some(put.version))),
            Change::Delete(_) => None,
        });
        self.deleted(deletes).await;
    }

    /// Deletes what is not needed any more, as far as it goes. What stays is garbage.
    async fn deleted(&self, deletes: impl Iterator<Item = Delete>) {
        let deletes: Vec<_> = deletes.map(|delete| self.delete(delete).boxed()).collect();
        let mut deletes = stream::iter(deletes).buffer_unordered(AHEAD);
        while let Some(deleted) = deletes.next().await {
            if let Err(failure) = deleted
                && !is_stale(&failure)
            {
                tracing::debug!(%failure, "{}: a key without a use could not be deleted; garbage collection will", self.title);
            }
        }
    }

    async fn delete(&self, delete: Delete) -> Outcome<()> {
        let asked = |on: Arc<Connection>| {
            let delete = delete.clone();
            async move { on.delete(delete).await }
        };
        self.client.write(asked).await
    }

    /// Writes a stripe. Another client does not have its key, so it can be written twice.
    async fn write_stripe(&self, put: Put) -> Outcome<()> {
        let asked = |on: Arc<Connection>| {
            let put = put.clone();
            async move { on.put(put).await }
        };
        self.client.read(asked).await
    }

    async fn write_all_stripes(&self, plan: &Plan) -> Outcome<()> {
        for (stamp, key, value) in &plan.striped {
            self.write_stripes(stamp, key, value).await?;
        }
        Ok(())
    }

    /// Deletes the stripes of `stamps`, and the keys of a plan that only held their place.
    async fn clean(&self, plan: &Plan, stamps: impl Iterator<Item = &Stamp>) {
        let stripes = stamps.flat_map(|stamp| (0..stamp.stripes()).map(|number| Delete::new(stamp.stripe_key(number), None)));
        let places = plan.places.iter().map(|(key, version)| Delete::new(key.clone(), Some(version.clone())));
        self.deleted(stripes.chain(places)).await;
    }

    /// Writes the stripes of a value.
    async fn write_stripes(&self, stamp: &Stamp, key: &Bytes, value: &Bytes) -> Outcome<()> {
        let version = stripe_version(stamp.version, key);
        let put = |number: u64| {
            let start = usize::try_from(number).unwrap_or(usize::MAX).saturating_mul(stamp.stripe as usize);
            let part = value.slice(start..value.len().min(start.saturating_add(stamp.stripe as usize)));
            Put::new(stamp.stripe_key(number), part, None, version.clone())
        };
        all((0..stamp.stripes()).map(|number| self.write_stripe(put(number)).boxed()).collect()).await.map(drop)
    }

    /// Does `conditions` together with an intent to do `due`, and then that.
    async fn with_intent(&self, mut conditions: Vec<Change>, due: &[Change]) -> Result<(), (Stop, bool)> {
        let failed = |error: Error| (Stop::Failed(error), true);
        if due.iter().any(|change| matches!(change, Change::Put(put) if !put.value.is_empty())) {
            // The host that finishes an intent has the stripes and not the value.
            return Err(failed(Error::internal("a change of an intent has its value not in stripes")));
        }
        let list: Vec<Due> = due.iter().map(Due::of).collect();
        let list = serde_json::to_vec(&list).map(Bytes::from).map_err(|e| failed(Error::internal("cannot write an intent").with_source(e)))?;
        let connection = self.client.connection().await.map_err(|e| failed(e.into()))?;
        let too_many = |conditions: &[Change]| {
            let most = connection.batch_operations().saturating_sub(1);
            let text = format!(
                "a batch has {} conditions on versions, with the records that they are about; this drive takes {most} at once, and a limited number of bytes; \
                 send smaller batches",
                conditions.len()
            );
            failed(Error::unsupported(text))
        };
        if due.is_empty() {
            return if connection.fits_batch(&conditions) { self.at_once(conditions).await.map_err(told) } else { Err(too_many(&conditions)) };
        }
        let longest = connection.longest_value().min(256 << 10);
        let striped = list.len() > longest;
        let stripe = if striped { u32::try_from(longest).unwrap_or(u32::MAX) } else { 0 };
        let stamp = self.clock.stamp(&list, stripe).map_err(failed)?;
        let key = stamp.intent_key();
        let held = if striped { Bytes::new() } else { list.clone() };
        conditions.push(Change::Put(Put::new(key.clone(), held, Some(Bytes::new()), stamp.to_bytes())));
        if !connection.fits_batch(&conditions) {
            return Err(too_many(&conditions));
        }
        let stripes = if striped { self.write_stripes(&stamp, &key, &list).await } else { Ok(()) };
        let committed = match stripes {
            Ok(()) => self.at_once(conditions).await,
            Err(failure) => Err(Failure::unsent(Kind::Unavailable, failure.to_string())),
        };
        if let Err(failure) = committed {
            let known = !failure.is_unknown();
            if known {
                self.drop_intent(&key, &stamp).await;
            } else {
                self.unfinished.store(true, Ordering::SeqCst);
            }
            return Err((stop(failure), known));
        }
        let done = self.do_due(due.to_vec()).await;
        if let Err(failure) = done {
            self.unfinished.store(true, Ordering::SeqCst);
            let text = format!("the batch is committed, and will be finished when the drive answers again ({failure})");
            return Err((Stop::Failed(Error::unavailable(text)), false));
        }
        self.drop_intent(&key, &stamp).await;
        Ok(())
    }

    /// Does what an intent lists. A change whose version before is not there any more was done, or is replaced.
    async fn do_due(&self, due: Vec<Change>) -> Outcome<()> {
        all(due.into_iter().map(|change| self.do_one(change).boxed()).collect()).await.map(drop)
    }

    async fn do_one(&self, change: Change) -> Outcome<()> {
        // With the version before as its condition it can be asked for twice.
        let done = match self.at_once(vec![change.clone()]).await {
            Err(failure) if failure.is_unknown() => self.at_once(vec![change]).await,
            done => done,
        };
        if done.as_ref().is_err_and(is_stale) { Ok(()) } else { done }
    }

    async fn drop_intent(&self, key: &Bytes, stamp: &Stamp) {
        // The intent first: it must not be found without its stripes. Where it may still be there, they stay.
        if let Err(failure) = self.delete(Delete::new(key.clone(), None)).await
            && !is_stale(&failure)
        {
            tracing::debug!(%failure, "{}: an intent that is done could not be deleted", self.title);
            self.unfinished.store(true, Ordering::SeqCst);
            return;
        }
        self.deleted((0..stamp.stripes()).map(|number| Delete::new(stamp.stripe_key(number), None))).await;
    }

    /// Finishes what writers committed and did not finish.
    pub(crate) async fn finish(&self) -> Result<()> {
        // Before the list is read: what another call leaves unfinished meanwhile is noted again.
        self.unfinished.store(false, Ordering::SeqCst);
        let finished = self.finish_all().await;
        if finished.is_err() {
            self.unfinished.store(true, Ordering::SeqCst);
        }
        finished
    }

    async fn finish_all(&self) -> Result<()> {
        let failed = |failure: Failure| self.failed_to("finish what was committed", failure);
        let mut start = Bytes::from_static(INTENTS.as_bytes());
        loop {
            // `/` is the last byte of the prefix, and `0` follows it.
            let end = Bytes::from(format!("{}0", INTENTS.trim_end_matches('/')));
            let (keys, most) = self.page((start.clone(), false), (end, false), usize::MAX).await.map_err(failed)?;
            for key in &keys {
                self.finish_one(key).await.map_err(|e| self.named(e))?;
            }
            match keys.last() {
                Some(last) if keys.len() >= most => start = last.clone(),
                _ => return Ok(()),
            }
        }
    }

    async fn finish_one(&self, key: &Bytes) -> Result<()> {
        let name = String::from_utf8_lossy(key).into_owned();
        let Some(stamp) = self.raw_version(key).await?.as_deref().and_then(Stamp::parse) else { return Ok(()) };
        // Its writer may just have finished.
        let Some(list) = self.value(key, &name).await? else { return Ok(()) };
        let list: Vec<Due> = serde_json::from_slice(&list).map_err(|e| Error::corrupt(format!("the intent {name} can't be read")).with_source(e))?;
        let due = list.iter().map(Due::change).collect::<Option<Vec<_>>>();
        let due = due.ok_or_else(|| Error::corrupt(format!("the intent {name} has a version that is none")))?;
        tracing::info!(intent = name, changes = due.len(), "{}: finishes a batch that was committed", self.title);
        self.do_due(due).await?;
        self.drop_intent(key, &stamp).await;
        Ok(())
    }
}

impl Due {
    fn of(change: &Change) -> Due {
        let key = String::from_utf8_lossy(change.key()).into_owned();
        match change {
            Change::Put(put) => Due { key, before: hex(put.expected.as_deref().unwrap_or_default()), after: Some(hex(&put.version)) },
            Change::Delete(delete) => Due { key, before: hex(delete.expected.as_deref().unwrap_or_default()), after: None },
        }
    }

    fn change(&self) -> Option<Change> {
        let (key, before) = (Bytes::from(self.key.clone()), Some(unhex(&self.before)?));
        Some(match &self.after {
            Some(after) => Change::Put(Put::new(key, Bytes::new(), before, unhex(after)?)),
            None => Change::Delete(Delete::new(key, before)),
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Bytes> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::try_from(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?).ok()).collect::<Option<Vec<u8>>>().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_change_reads_back() {
        let put = Change::Put(Put::new(Bytes::from_static(b"a/b"), Bytes::new(), Some(Bytes::from_static(&[0, 0xff])), Bytes::from_static(b"v")));
        let delete = Change::Delete(Delete::new(Bytes::from_static(b"c"), Some(Bytes::from_static(b"w"))));
        for change in [put, delete] {
            let text = serde_json::to_string(&Due::of(&change)).unwrap();
            assert_eq!(serde_json::from_str::<Due>(&text).unwrap().change(), Some(change));
        }
        for wrong in ["0", "zz", "+1", "0\u{e9}"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unknown_outcome_is_unavailable_whatever_broke() {
        let unknown = stop(Failure::lost(Kind::Corrupt, "garbage", true));
        assert!(matches!(unknown, Stop::Failed(error) if error.kind() == Kind::Unavailable && error.message().contains("unknown")));
        let unsent = stop(Failure::unsent(Kind::Corrupt, "garbage"));
        assert!(matches!(unsent, Stop::Failed(error) if error.kind() == Kind::Corrupt));
    }
}
