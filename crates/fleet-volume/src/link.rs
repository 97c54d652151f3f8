//! Links: extents under other keys as well. Each drive links the shards that it has, so that their bytes are not
//! copied, and both extents have shards of their own: each is deleted without regard to the other.
//!
//! An extent with a shard that can't be linked (its drive is down, leaves the fleet, has no links, or lacks the shard)
//! is read, and written under the other key.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{join_all, try_join_all};
use futures::{StreamExt, TryStreamExt, stream};
use skytether_common::{Error, Key, Kind, Result};
use skytether_store::{Expect, Op};
use uuid::Uuid;

use crate::backing::FleetBacking;
use crate::keys;
use crate::layout::ExtentRecord;
use crate::write::{OPS, Placed};

/// Records that are read at a time.
const READS: usize = 16;

/// Extents that are copied at a time.
const COPIES: usize = 16;

/// An extent's second key, and the one that it has: keys of records.
type Link = (Key, Key);

/// A link whose generation is begun.
struct Begun {
    link: Link,
    placed: Placed,
    /// What each drive is asked for.
    ops: Vec<(usize, Op)>,
}

impl FleetBacking {
    /// Gives extents second keys, as new generations: shards that the records of those keys are to name. As after
    /// [`FleetBacking::store`], the caller must call [`FleetBacking::written`] once the records are committed.
    pub(crate) async fn link(&self, links: Vec<(Key, Key)>) -> Result<Vec<Placed>> {
        let mut done = Vec::with_capacity(links.len());
        match self.link_into(links, &mut done).await {
            Ok(()) => Ok(done),
            Err(error) => {
                self.discard(&done).await;
                Err(error)
            }
        }
    }

    async fn link_into(&self, links: Vec<Link>, done: &mut Vec<Placed>) -> Result<()> {
        let read = |link: Link| async move {
            let found = self.stored_record(&link.1).await?;
            let (record, _) = found.ok_or_else(|| Error::not_found(format!("there is no extent {}", link.1)))?;
            Ok::<_, Error>((link, record))
        };
        let found: Vec<_> = stream::iter(links.into_iter().map(read)).buffered(READS).try_collect().await?;
        let (mut begun, mut copied) = (Vec::with_capacity(found.len()), Vec::new());
        for (link, record) in found {
            match self.begin_link(&link, &record) {
                Some((placed, ops)) => begun.push(Begun { link, placed, ops }),
                None => copied.push(link),
            }
        }
        let (failed, lost) = self.send_links(&begun).await;
        let mut bad = Vec::new();
        let gone: BTreeSet<usize> = lost.keys().copied().collect();
        for (n, Begun { link, placed, ops }) in begun.into_iter().enumerate() {
            if failed.contains(&n) || ops.iter().any(|(at, _)| gone.contains(at)) {
                copied.push(link);
                bad.push(placed);
            } else {
                done.push(placed);
            }
        }
        // First, so that drives which gave no answer are not asked once more.
        let lost = self.lose(lost, "could not link parts of volumes");
        self.discard(&bad).await;
        lost?;
        for some in copied.chunks(COPIES) {
            let read = |(to, from): Link| async move { Ok::<_, Error>((to, self.read(&from).await?)) };
            let extents = try_join_all(some.iter().cloned().map(read)).await?;
            done.extend(self.store(extents).await?);
        }
        Ok(())
    }

    /// Begins the generation of a link, if all drives with shards can make it.
    fn begin_link(&self, (to, from): &Link, record: &ExtentRecord) -> Option<(Placed, Vec<(usize, Op)>)> {
        let (health, generation) = (self.catalog.health(), Uuid::new_v4().as_u64_pair().0);
        let (key, from) = (keys::shard(to, generation).ok()?, keys::shard(from, record.generation).ok()?);
        let mut ops = Vec::with_capacity(record.shards.len());
        for shard in &record.shards {
            let at = self.place(&shard.drive).filter(|at| !health.is_down(*at) && self.catalog.bare(*at).capabilities().link)?;
            ops.push((at, Op::Link { key: key.clone(), from: from.clone(), len: shard.len.into(), crc32c: shard.crc32c, expect: Expect::Any }));
        }
        // Before the look at who leaves, as for extents that are written ([`Self::await_merges`]).
        health.begin_generation(generation);
        if ops.iter().any(|(at, _)| health.is_leaving(*at) || health.is_outside(*at)) {
            health.end_generation(generation);
            return None;
        }
        Some((Placed::linked(to.clone(), ExtentRecord { generation, ..record.clone() }), ops))
    }

    /// Sends links to their drives: which failed, and what failed at which drive as a whole.
    async fn send_links(&self, begun: &[Begun]) -> (BTreeSet<usize>, BTreeMap<usize, Error>) {
        let mut each: BTreeMap<usize, Vec<(usize, Op)>> = BTreeMap::new();
        for (n, begun) in begun.iter().enumerate() {
            for (at, op) in &begun.ops {
                each.entry(*at).or_default().push((n, op.clone()));
            }
        }
        let send = |(at, ops): (usize, Vec<(usize, Op)>)| async move {
            let mut failed = Vec::new();
            for batch in ops.chunks(OPS) {
                match self.send(at, batch.iter().map(|(_, op)| op.clone()).collect()).await {
                    Ok(()) => {}
                    // Not all are there: a scrub has written one again, or it is missing.
                    Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Conflict) => {
                        for (n, op) in batch {
                            match self.send(at, vec![op.clone()]).await {
                                Ok(()) => {}
                                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Conflict) => failed.push(*n),
                                Err(error) => return (failed, Some((at, error))),
                            }
                        }
                    }
                    Err(error) => return (failed, Some((at, error))),
                }
            }
            (failed, None)
        };
        let (mut failed, mut lost) = (BTreeSet::new(), BTreeMap::new());
        for (some, error) in join_all(each.into_iter().map(send)).await {
            failed.extend(some);
            lost.extend(error);
        }
        (failed, lost)
    }

    async fn send(&self, at: usize, ops: Vec<Op>) -> Result<()> {
        self.catalog.ask(at, "link parts of volumes", self.catalog.bare(at).apply(ops)).await.map(drop)
    }
}
