//! Stripes of a fleet's tables in the engine process next to an OSD.
//!
//! The engine gets the slice of a stripe through the class, and nothing else of the fleet. Values that a plan reads
//! besides, such as metadata and the labels of cells, come with a request, and stay here under their digests. A plan is
//! made once for all stripes of a query: it keeps what it was made for, and each call runs a lane of it over one slice.

use std::collections::BTreeSet;
use std::collections::btree_map::{self, BTreeMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use datafusion::common::tree_node::TreeNode;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::logical_expr::LogicalPlan;
use parking_lot::Mutex;
use skytether_ceph_protocol::stripe::DIGEST;
use skytether_ceph_protocol::{Given, Request, Stripe};
use skytether_common::checksum::crc32c;
use skytether_common::{DatasetName, Detail, Error, Key, PartitionName, Result};
use skytether_device::{Annotation, SubPlan};
use skytether_engine::cache::Cache;
use skytether_engine::split_execution::{SplitExecution, Taken};
use skytether_engine::{Engine, Reader};
use skytether_plan::error::from_datafusion;
use skytether_scheduler::message::PushdownLevel;
use skytether_store::{Entry, Op, SliceStore, Usage, Version, ranges};

use crate::evaluate::{Answer, Written};
use crate::object::{ObjectBytes, all};
use crate::one_stripe::over_stripe;

/// Plans that are kept, each with the values that it reads.
const PLANS: usize = 16;

/// Caches of metadata and columns of one plan are smaller than those of a drive by this factor.
const CACHE_SHARES: usize = 4 * PLANS;

type Digest = [u8; DIGEST];

/// What an engine process keeps for requests over stripes.
pub(crate) struct Stripes {
    osd: u32,
    concurrent: usize,
    values: Values,
    /// By what they were made for, the one that was used last at the end.
    plans: Mutex<Vec<(Digest, Arc<Plan>)>>,
}

/// A plan, and the values that it reads.
struct Plan {
    split: SplitExecution,
    store: Arc<PlanStore>,
}

impl Stripes {
    /// Those of the engine next to `osd`, which runs `concurrent` plans at a time. Values of `most` bytes together are
    /// kept.
    pub(crate) fn new(osd: u32, concurrent: usize, most: u64) -> Self {
        let values = Values(Cache::new(usize::try_from(most).unwrap_or(usize::MAX)));
        Self { osd, concurrent, values, plans: Mutex::default() }
    }

    /// Runs `request`, whose object is `stripe`, with memory of `pool` and in turn with `engine`. `read` counts bytes
    /// of the object.
    pub(crate) async fn run(
        &self,
        engine: &Arc<Engine>,
        pool: Arc<dyn MemoryPool>,
        request: Request,
        mut stripe: Stripe,
        bytes: Arc<dyn ObjectBytes>,
        read: &Arc<AtomicU64>,
    ) -> Result<Answer> {
        let (id, most, number) = (identity(&request, &stripe), request.limits.output, stripe.number);
        let key = Key::new(stripe.slice.clone())?;
        let given = std::mem::take(&mut stripe.given);
        let slice = Arc::new(Slice { bytes, len: stripe.len, crc32c: stripe.crc32c, read: Arc::clone(read) });
        let known = self.known(&id);
        let plan = match known {
            Some(plan) => plan,
            None => {
                let values = match self.values.take(given)? {
                    Ok(values) => values,
                    Err(wanted) => return Ok(Answer::Wants(wanted)),
                };
                let store = Arc::new(PlanStore { values, slices: Mutex::default(), missing: Mutex::default() });
                let reader = Arc::new(Reader::sharing(Arc::clone(&store) as _, CACHE_SHARES));
                let own = Engine::new(format!("osd.{}", self.osd), reader, pool, 1, self.concurrent)?.with_turns(Arc::clone(engine.turns())).apart();
                match Arc::new(own).take(sub_plan(request, stripe.partitions)?).await {
                    Ok(Taken::Split(split)) if is_repeatable(&split)? => self.keep(id, Plan { split: *split, store }),
                    Ok(Taken::Split(split)) => Arc::new(Plan { split: *split, store }),
                    Ok(Taken::Whole(_)) => return Err(Error::unsupported("the sub-plan does not divide by stripes")),
                    Err(error) => return store.wants(error),
                }
            }
        };
        // Before anything of the stripe is decoded.
        let _turn = Arc::clone(engine.turns()).acquire_owned().await.map_err(|_| Error::unavailable("the engine is shutting down"))?;
        // An object is what the call's client says. So no call of another client may see it under this key.
        let Some(_there) = plan.store.lend(key, slice) else { return Ok(Answer::Busy) };
        let rows = async {
            let mut written = Written::new(&plan.split.schema(PushdownLevel::Full), most)?;
            let mut lane = over_stripe(&plan.split, number)?;
            while let Some(batch) = lane.next().await? {
                written.batch(&batch)?;
            }
            written.finish()
        };
        match rows.await {
            Ok((rows, number)) => {
                let annotation = Annotation { slices: 1, rows_out: number, peak_memory: plan.split.annotation().peak_memory, ..Annotation::default() };
                Ok(Answer::Rows(rows, number, annotation))
            }
            Err(error) => plan.store.wants(error),
        }
    }

    fn known(&self, id: &Digest) -> Option<Arc<Plan>> {
        let mut plans = self.plans.lock();
        let at = plans.iter().position(|(of, _)| of == id)?;
        let found = plans.remove(at);
        let plan = Arc::clone(&found.1);
        plans.push(found);
        Some(plan)
    }

    fn keep(&self, id: Digest, plan: Plan) -> Arc<Plan> {
        let plan = Arc::new(plan);
        let mut plans = self.plans.lock();
        // Two calls may have made it at the same time.
        plans.retain(|(of, _)| *of != id);
        if plans.len() >= PLANS {
            plans.remove(0);
        }
        plans.push((id, Arc::clone(&plan)));
        plan
    }
}

/// Whether the operators of a plan learn nothing while they run that another query must not know. Joins learn the
/// bounds of keys, aggregates of all rows the least and the greatest value.
fn is_repeatable(split: &SplitExecution) -> Result<bool> {
    let learns = |plan: &LogicalPlan| match plan {
        LogicalPlan::TableScan(_) | LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => false,
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        _ => true,
    };
    split.logical()?.exists(|plan| Ok(learns(plan))).map(|found| !found).map_err(from_datafusion)
}

/// What a plan depends on: all of a request but the slice and the bytes of values.
fn identity(request: &Request, stripe: &Stripe) -> Digest {
    let mut hash = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(&request.limits.memory.to_le_bytes());
    request.table.iter().for_each(|name| part(name.as_bytes()));
    part(&request.plan);
    for entries in [&request.filters, &request.tables] {
        part(&(entries.len() as u64).to_le_bytes());
        for (name, bytes) in entries {
            part(name.as_bytes());
            part(bytes);
        }
    }
    part(&(stripe.partitions.len() as u64).to_le_bytes());
    for (table, key) in &stripe.partitions {
        part(table.as_bytes());
        part(key.as_bytes());
    }
    for (key, given) in &stripe.given {
        part(key.as_bytes());
        part(&given.digest);
    }
    hash.finalize().into()
}

/// The sub-plan of a request over these partitions.
fn sub_plan(request: Request, partitions: BTreeMap<String, String>) -> Result<SubPlan> {
    let [domain, dataset, _] = &request.table;
    let name = DatasetName::new(domain, dataset)?;
    let partition = |(table, key): (String, String)| {
        let wrong = || Error::invalid(format!("{key:?} is no key of a partition"));
        match PartitionName::parse(&Key::new(key.clone())?) {
            Some((name, None)) => Ok((table, name)),
            _ => Err(wrong()),
        }
    };
    let partitions = partitions.into_iter().map(partition).collect::<Result<BTreeMap<_, _>>>()?;
    let named = |given: BTreeMap<String, Vec<u8>>| given.into_iter().map(|(name, bytes)| (name, Bytes::from(bytes))).collect();
    let plan = SubPlan::over_given(name, request.plan.into(), named(request.filters), named(request.tables));
    Ok(SubPlan { partitions, ..plan })
}

/// Values by their digests, within a number of bytes.
struct Values(Cache<Digest, Bytes>);

/// A value of a plan.
#[derive(Debug)]
struct Value {
    bytes: Bytes,
    version: Version,
    crc32c: u32,
}

impl Values {
    /// The values of a request; or the keys of those that are neither in it nor here.
    fn take(&self, given: BTreeMap<String, Given>) -> Result<Result<BTreeMap<Key, Value>, Vec<String>>> {
        let (mut all, mut wanted) = (BTreeMap::new(), Vec::new());
        for (key, Given { digest, bytes, .. }) in given {
            let Some(bytes) = (match bytes {
                Some(bytes) if blake3::hash(&bytes).as_bytes() == &digest => {
                    let len = bytes.len();
                    Some(self.0.put(digest, bytes.into(), len))
                }
                Some(_) => return Err(Error::corrupt(format!("the value of {key} came damaged"))),
                None => self.0.get(&digest),
            }) else {
                wanted.push(key);
                continue;
            };
            let [a, b, c, d, e, f, g, h, ..] = digest;
            let version = Version::from_le_bytes([a, b, c, d, e, f, g, h]);
            all.insert(Key::new(key)?, Value { crc32c: crc32c(&bytes), bytes, version });
        }
        Ok(if wanted.is_empty() { Ok(all) } else { Err(wanted) })
    }
}

/// A slice that a call reads through the class.
struct Slice {
    bytes: Arc<dyn ObjectBytes>,
    len: u64,
    crc32c: u32,
    read: Arc<AtomicU64>,
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Slice {
    fn read(&self, key: &Key, range: Range<u64>) -> Result<Bytes> {
        let due = range.end - range.start;
        let bytes = all(self.bytes.as_ref(), range.start, due)?;
        self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if bytes.len() as u64 != due {
            return Err(Error::corrupt(format!("the object of slice {key} is shorter than the {} bytes that are due", self.len)));
        }
        Ok(bytes)
    }

    fn whole(&self, key: &Key) -> Result<Bytes> {
        let bytes = self.read(key, 0..self.len)?;
        if crc32c(&bytes) != self.crc32c {
            return Err(Error::corrupt(format!("the object of slice {key} does not match its checksum")));
        }
        Ok(bytes)
    }
}

/// The values of a plan, and the slices of the calls that run it.
#[derive(Debug)]
struct PlanStore {
    values: BTreeMap<Key, Value>,
    slices: Mutex<BTreeMap<Key, Arc<Slice>>>,
    /// Keys that were asked for, and are neither.
    missing: Mutex<BTreeSet<Key>>,
}

/// Lets go of a call's slice in the end.
struct Lent {
    store: Arc<PlanStore>,
    key: Key,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.store.slices.lock().remove(&self.key);
    }
}

/// What has a key.
enum Found<'a> {
    Value(&'a Value),
    Slice(Arc<Slice>),
}

impl PlanStore {
    /// `None` where another call has lent this key.
    fn lend(self: &Arc<Self>, key: Key, slice: Arc<Slice>) -> Option<Lent> {
        match self.slices.lock().entry(key.clone()) {
            btree_map::Entry::Occupied(_) => return None,
            btree_map::Entry::Vacant(place) => drop(place.insert(slice)),
        }
        Some(Lent { store: Arc::clone(self), key })
    }

    /// The keys that an error is about; the error, where it is about none.
    fn wants(&self, error: Error) -> Result<Answer> {
        // Each call asks for what it missed itself: the plan may be kept.
        let missing = std::mem::take(&mut *self.missing.lock());
        if missing.is_empty() {
            return Err(error);
        }
        // With what was given, so that the next plan has all.
        Ok(Answer::Wants(missing.iter().map(|key| key.as_str().to_owned()).collect()))
    }

    fn find(&self, key: &Key) -> Result<Found<'_>> {
        if let Some(value) = self.values.get(key) {
            return Ok(Found::Value(value));
        }
        if let Some(slice) = self.slices.lock().get(key) {
            return Ok(Found::Slice(Arc::clone(slice)));
        }
        self.missing.lock().insert(key.clone());
        Err(Error::not_found(format!("the engine was not given {key}")).with_detail(Detail::missing_key(key)))
    }
}

impl SliceStore for PlanStore {
    fn apply(&self, _: Vec<Op>) -> Result<Vec<Version>> {
        Err(Error::unsupported("an engine next to an OSD writes nothing"))
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        match self.find(key)? {
            Found::Value(value) => Ok(value.bytes.clone()),
            Found::Slice(slice) => slice.whole(key),
        }
    }

    fn get_expected(&self, key: &Key, len: u64, due: u32) -> Result<Option<Bytes>> {
        match self.find(key)? {
            Found::Value(value) => Ok((value.bytes.len() as u64 == len && value.crc32c == due).then(|| value.bytes.clone())),
            Found::Slice(slice) if slice.len == len && slice.crc32c == due => slice.whole(key).map(Some),
            Found::Slice(_) => Ok(None),
        }
    }

    fn get_ranges_unverified(&self, key: &Key, wanted: &[Range<u64>]) -> Result<Vec<Bytes>> {
        match self.find(key)? {
            Found::Value(value) => {
                ranges::check(key, value.bytes.len() as u64, wanted)?;
                Ok(ranges::cut(&value.bytes, wanted))
            }
            Found::Slice(slice) => {
                ranges::check(key, slice.len, wanted)?;
                wanted.iter().map(|range| slice.read(key, range.clone())).collect()
            }
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        let key = key.clone();
        Ok(Some(match self.find(&key)? {
            Found::Value(value) => Entry { key, version: value.version, len: value.bytes.len() as u64, crc32c: value.crc32c },
            Found::Slice(slice) => Entry { key, version: 1, len: slice.len, crc32c: slice.crc32c },
        }))
    }

    fn list(&self, _: &str, _: Option<&Key>, _: usize) -> Result<Vec<Entry>> {
        Err(Error::unsupported("an engine next to an OSD lists nothing"))
    }

    fn usage(&self) -> Result<Usage> {
        Ok(Usage::default())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn given(bytes: &[u8], sent: bool) -> Given {
        Given { len: bytes.len() as u64, digest: *blake3::hash(bytes).as_bytes(), bytes: sent.then(|| bytes.to_vec()) }
    }

    #[test]
    fn values_stay_until_others_need_the_room() {
        let values = Values(Cache::new(10));
        let ask = |values: &Values, key: &str, bytes: &[u8], sent: bool| values.take(BTreeMap::from([(key.to_owned(), given(bytes, sent))])).unwrap();
        assert_eq!(ask(&values, "a", b"12345", false).unwrap_err(), ["a"]);
        assert_eq!(&ask(&values, "a", b"12345", true).unwrap()[&Key::new("a".to_owned()).unwrap()].bytes[..], b"12345");
        // By its digest, whatever its key.
        assert!(ask(&values, "b", b"12345", false).is_ok());
        assert!(ask(&values, "c", b"67890", true).is_ok());
        assert!(ask(&values, "a", b"12345", false).is_ok());
        assert!(ask(&values, "d", b"abc", true).is_ok());
        assert!(ask(&values, "c", b"67890", false).is_err() && ask(&values, "a", b"12345", false).is_ok());
        // One that is too long serves its own request.
        assert!(ask(&values, "e", b"more than ten", true).is_ok());
        assert!(values.0.weight() <= 10 && ask(&values, "e", b"more than ten", false).is_err());
    }

    #[test]
    fn damaged_values_are_refused() {
        let values = Values(Cache::new(10));
        let wrong = Given { bytes: Some(b"54321".to_vec()), ..given(b"12345", true) };
        assert!(values.take(BTreeMap::from([("a".to_owned(), wrong)])).is_err());
        assert_eq!(values.0.weight(), 0);
    }
}
