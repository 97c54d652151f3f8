//! A drive that is not there at all: its directory is gone, or nobody answers at its address.

use futures::future::BoxFuture;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use skytether_common::units::counted;
use skytether_common::{Error, Key, Kind, Result};
use skytether_index::State;
use skytether_store::{Entry, Op, Usage, Version};
use skytether_wire::{Cse, CseInfo, DeliveryStream, Opened, Storage, SubPlan, Verified, Verify};
use uuid::Uuid;

/// A drive that could not be opened.
#[derive(Debug)]
pub struct Lost {
    /// Its id, by which the fleet knows it.
    pub id: Uuid,
    /// Its place among the host's drives.
    pub place: usize,
    /// Why.
    pub error: Error,
}

impl Lost {
    /// What a fleet is told that can't be opened without any of `lost`, of which there is one at least: it names them all, by the names that `name` gives.
    #[must_use]
    pub fn needed(lost: &[Self], name: impl Fn(&Self) -> String) -> Error {
        let kind = lost.first().map_or(Kind::Unavailable, |first| first.error.kind());
        let each: Vec<_> = lost.iter().map(|one| format!("{} ({}): {}", name(one), one.id, one.error.full_text())).collect();
        let (verb, them) = if lost.len() == 1 { ("is", "it") } else { ("are", "them") };
        let (count, each) = (counted(lost.len() as u64, "drive"), each.join("; "));
        Error::new(
            kind,
            format!(
                "{count} {verb} lost, and without {them} this fleet can't be opened: {each}; bring {them} back (`skytether status` shows which drives are there)"
            ),
        )
    }
}

/// What to do about a drive that is not there, in a fleet that can do without it: in one whose directory has its drives (`kept`), or in one of served drives.
pub(crate) fn advice(id: &Uuid, name: &str, kept: bool) -> String {
    if kept {
        format!(
            "bring its directory back, or, with what is left of it moved away, have a blank drive made there on which all of it is rebuilt (`skytether repair --replace {name}`)"
        )
    } else {
        format!(
            "start the host with its address, too, or have all of it rebuilt on a blank drive (`skytether drive serve --data NEW --name {name} --replace {id}`, then `skytether repair --replace {name} --replacement ADDR`)"
        )
    }
}

/// In the place of a drive that is not there: knows its name, and refuses everything, until another is put in its place.
#[derive(Debug)]
pub(crate) struct Gone {
    info: CseInfo,
    why: String,
    /// Who is there now.
    successor: OnceLock<Arc<dyn Cse>>,
}

impl Gone {
    pub(crate) fn new(id: Uuid, name: &str, why: String) -> Self {
        Self { info: CseInfo { id, name: name.to_owned(), format: 1, memory_limit: 256 << 20, profile: None, device: None }, why, successor: OnceLock::new() }
    }

    /// Puts `drive` in its place, which has its id.
    ///
    /// # Errors
    /// Invalid where it has another; Conflict where there is one already.
    pub(crate) fn succeed(&self, drive: Arc<dyn Cse>) -> Result<()> {
        let (own, id) = (&self.info, drive.info().id);
        if id != own.id {
            return Err(Error::invalid(format!(
                "the drive that is to be in the place of {} has the id {id} instead of {}: make it with `skytether drive serve --replace {1}`",
                own.name, own.id
            )));
        }
        self.successor.set(drive).map_err(|_| Error::conflict(format!("there is another drive in the place of {} already", own.name)))
    }

    /// Why it is not there.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// Whether somebody is in its place.
    pub(crate) fn is_there(&self) -> bool {
        self.successor.get().is_some()
    }

    fn there(&self) -> Result<&Arc<dyn Cse>> {
        self.successor.get().ok_or_else(|| Error::unavailable(format!("{} is lost ({})", self.info.name, self.why)))
    }
}

impl Storage for Gone {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    fn present(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Box::pin(async move { self.there()?.present().await })
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move { self.there()?.apply(batch).await })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.there()?.get(key).await })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move { self.there()?.get_ranges_unverified(key, ranges).await })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { self.there()?.stat(key).await })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { self.there()?.list(prefix, after, limit).await })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.there()?.usage().await })
    }

    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Box::pin(async move { self.there()?.indexes().await })
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move { self.there()?.verify(asked).await })
    }
}

impl Cse for Gone {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move { self.there()?.execute(plan).await })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<Opened>> {
        Box::pin(async move { self.there()?.open(plan).await })
    }

    fn away(&self) -> bool {
        self.successor.get().is_some_and(|drive| drive.away())
    }

    fn watched(&self) -> bool {
        true
    }
}
