//! Values of a fleet that go along with requests: metadata, names of genes, labels of cells.
//!
//! Engines name the keys that they miss. What a sub-plan needed is noted, so that the next query of its kind names it
//! at once. Values that were sent are kept with their digests, as long as the store has them in the same version.
//!
//! An engine gets what its sub-plan can need, and no more ([`Readable`]): an engine that names other keys is refused,
//! and so is one that names more bytes than [`MOST`]. Neither is read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_ceph_protocol::Given;
use skytether_ceph_protocol::stripe::{DIGEST, MAX_GIVEN};
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_device::SubPlan;
use skytether_engine::tables_beside;
use skytether_store::{SliceStore, Version};

/// Bytes of values that a drive keeps.
const KEPT: usize = 64 << 20;

/// Bytes of values that the engines of one sub-plan get, about: what they are sent is in memory meanwhile.
const MOST: usize = 128 << 20;

/// Sub-plans whose needs are noted.
const NOTED: usize = 64;

/// A value, and what it is called in requests.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) bytes: Bytes,
    digest: [u8; DIGEST],
}

/// What a drive has sent.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// The one that was read last at the end.
    kept: Mutex<VecDeque<(Key, Version, Arc<Value>)>>,
    noted: Mutex<VecDeque<([u8; DIGEST], BTreeSet<Key>)>>,
}

/// What came of reading a value.
#[derive(Debug)]
pub(crate) enum Got {
    Value(Arc<Value>),
    Absent,
    /// It was not read, for this reason.
    TooLong(String),
}

impl Values {
    /// The value of `key` in `store`, if it has at most `room` bytes. Blocks.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn get(&self, store: &dyn SliceStore, key: &Key, room: usize) -> Result<Got> {
        let Some(entry) = store.stat(key)? else { return Ok(Got::Absent) };
        if entry.len > MAX_GIVEN as u64 {
            return Ok(Got::TooLong(format!("the plan reads {key} of {} bytes, and a request has room for {MAX_GIVEN}", entry.len)));
        }
        if entry.len > room as u64 {
            return Ok(Got::TooLong(format!("the plan reads {key} of {} bytes, and engines get values of {MOST} bytes at most for a sub-plan", entry.len)));
        }
        if let Some((_, _, value)) = self.kept.lock().iter().find(|(of, version, _)| of == key && *version == entry.version) {
            return Ok(Got::Value(Arc::clone(value)));
        }
        let bytes = store.get(key)?;
        let value = Arc::new(Value { digest: *blake3::hash(&bytes).as_bytes(), bytes });
        let mut kept = self.kept.lock();
        kept.retain(|(of, ..)| of != key);
        kept.push_back((key.clone(), entry.version, Arc::clone(&value)));
        while kept.iter().map(|(_, _, value)| value.bytes.len()).sum::<usize>() > KEPT {
            kept.pop_front();
        }
        Ok(Got::Value(value))
    }

    /// The keys that sub-plans like `plan` needed.
    pub(crate) fn noted(&self, plan: &[u8; DIGEST]) -> BTreeSet<Key> {
        self.noted.lock().iter().find(|(of, _)| of == plan).map(|(_, keys)| keys.clone()).unwrap_or_default()
    }

    pub(crate) fn note(&self, plan: [u8; DIGEST], keys: BTreeSet<Key>) {
        let mut noted = self.noted.lock();
        noted.retain(|(of, _)| *of != plan);
        if noted.len() >= NOTED {
            noted.pop_front();
        }
        noted.push_back((plan, keys));
    }
}

/// What tells sub-plans apart that read other values.
pub(crate) fn kind_of(plan: &SubPlan) -> [u8; DIGEST] {
    let mut hash = blake3::Hasher::new();
    hash.update(plan.program.bytes());
    for (table, name) in &plan.partitions {
        hash.update(format!("{table}\n{name:?}\n").as_bytes());
    }
    hash.finalize().into()
}

/// The values that the requests of one sub-plan name.
#[derive(Debug, Default)]
pub(crate) struct Named(Mutex<BTreeMap<Key, Arc<Value>>>);

impl Named {
    pub(crate) fn add(&self, key: Key, value: Arc<Value>) {
        self.0.lock().insert(key, value);
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.0.lock().get(key).cloned()
    }

    /// How many bytes more there may be.
    pub(crate) fn room(&self) -> usize {
        MOST.saturating_sub(self.0.lock().values().map(|value| value.bytes.len()).sum())
    }

    pub(crate) fn keys(&self) -> BTreeSet<Key> {
        self.0.lock().keys().cloned().collect()
    }

    /// All of them for a request, with the bytes of those in `sent`.
    pub(crate) fn given(&self, sent: &BTreeSet<Key>) -> BTreeMap<String, Given> {
        let given = |(key, value): (&Key, &Arc<Value>)| {
            let bytes = sent.contains(key).then(|| value.bytes.to_vec());
            (key.as_str().to_owned(), Given { len: value.bytes.len() as u64, digest: value.digest, bytes })
        };
        self.0.lock().iter().map(given).collect()
    }

    /// Those of `wanted` that one request has room for.
    pub(crate) fn fitting(&self, wanted: &[Key]) -> BTreeSet<Key> {
        let (values, mut bytes, mut fitting) = (self.0.lock(), 0, BTreeSet::new());
        for key in wanted {
            let len = values.get(key).map_or(0, |value| value.bytes.len());
            if bytes + len <= MAX_GIVEN {
                bytes += len;
                fitting.insert(key.clone());
            }
        }
        fitting
    }
}

/// What an engine may get for a sub-plan: the metadata of its partitions, and whole the tables that it reads besides
/// the one with its stripes. The slice of a stripe the OSD has itself, and other slices of that table it never needs.
#[derive(Debug)]
pub(crate) struct Readable {
    metadata: BTreeSet<PartitionName>,
    whole: BTreeSet<PartitionName>,
}

impl Readable {
    /// For a sub-plan with these partitions, whose stripes are those of `scanned`, which may be one of a matrix.
    pub(crate) fn of(partitions: &BTreeMap<String, PartitionName>, scanned: &PartitionName, is_matrix: bool) -> Self {
        let beside = is_matrix.then(|| tables_beside(scanned.whole()));
        let beside = |name: &&PartitionName| *name != scanned && beside.iter().flatten().any(|table| *table == name.table);
        Self { metadata: partitions.values().cloned().collect(), whole: partitions.values().filter(beside).cloned().collect() }
    }

    /// The key that an engine asks for.
    ///
    /// # Errors
    /// `Invalid` where the sub-plan may not read it.
    pub(crate) fn key(&self, text: &str) -> Result<Key> {
        let refused =
            || Error::invalid(format!("the engine asks for {text:?}, which is nothing that the sub-plan reads besides its slices: it gets no such value"));
        let key = Key::new(text).map_err(|_| refused())?;
        let own = match PartitionName::parse(&key) {
            Some((name, None)) if self.metadata.contains(&name) => name.key()?,
            Some((name, Some(slice))) if self.whole.contains(&name) => name.slice_key(slice)?,
            _ => return Err(refused()),
        };
        // One spelling for each, so that a value is not read twice.
        if own == key { Ok(key) } else { Err(refused()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use skytether_store::fault::{FaultStore, Operation};
    use skytether_store::memory::MemoryStore;
    use skytether_store::{Expect, Op};

    fn put(store: &MemoryStore, key: &Key, value: &'static [u8]) {
        store.apply(vec![Op::Put { key: key.clone(), value: Bytes::from_static(value), expect: Expect::Any }]).unwrap();
    }

    #[test]
    fn replaced_values_are_read_again() {
        let (store, values, key) = (MemoryStore::new(), Values::default(), Key::new("blood/pbmc/0000000000000001.x.0").unwrap());
        let get = || match values.get(&store, &key, 3).unwrap() {
            Got::Value(value) => Some(value),
            Got::Absent => None,
            Got::TooLong(why) => panic!("{why}"),
        };
        assert!(get().is_none());
        put(&store, &key, b"one");
        let first = get().unwrap();
        assert!(Arc::ptr_eq(&first, &get().unwrap()));
        put(&store, &key, b"two");
        let second = get().unwrap();
        assert!(first.digest != second.digest && &second.bytes[..] == b"two" && values.kept.lock().len() == 1);
    }

    /// The partition of a table, by the end of its key.
    fn partition(table: &str) -> PartitionName {
        PartitionName::parse(&Key::new(format!("blood/pbmc/0000000000000001.{table}.0")).unwrap()).unwrap().0
    }

    /// What of the tables of a data set a sub-plan over `scanned` lets an engine have.
    fn readable(scanned: &str, is_matrix: bool) -> Readable {
        let tables = ["x", "raw_x", "obs", "cells", "var", "raw_var", "data"];
        let partitions = tables.map(|table| (table.to_owned(), partition(table)));
        Readable::of(&BTreeMap::from(partitions), &partition(scanned), is_matrix)
    }

    #[test]
    fn engines_get_what_their_sub_plan_reads() {
        let (matrix, raw, table) = (readable("x", true), readable("raw_x", true), readable("data", false));
        let metadata = "blood/pbmc/0000000000000001";
        for name in ["x", "obs", "raw_x"].map(|table| format!("{metadata}.{table}.0")) {
            for of in [&matrix, &raw, &table] {
                assert_eq!(of.key(&name).unwrap().as_str(), name);
            }
        }
        let slices = |of: &Readable| {
            let tables = ["x", "raw_x", "obs", "cells", "var", "raw_var", "data"];
            tables.into_iter().filter(|table| of.key(&format!("{metadata}.{table}.0;00000007")).is_ok()).collect::<Vec<_>>()
        };
        assert_eq!(slices(&matrix), ["obs", "cells", "var"]);
        assert_eq!(slices(&raw), ["obs", "cells", "raw_var"]);
        assert!(slices(&table).is_empty());
        // Other data sets, generations and drives, root records, and other spellings of a key.
        for text in [
            "blood/pbmc/0000000000000001.x.1",
            "blood/other/0000000000000001.x.0",
            "blood/pbmc",
            "",
            "blood/pbmc/0000000000000002.x.0",
            "blood/pbmc/1.x.0",
            "blood/pbmc/0000000000000001.obs.0;7",
            "blood/pbmc/0000000000000001.%6Fbs.0;00000007",
        ] {
            let error = matrix.key(text).unwrap_err();
            assert!(error.message().contains(&format!("{text:?}")), "{error}");
        }
    }

    /// A store that tells of values and gives none.
    #[test]
    fn values_without_room_are_not_read() {
        let (values, key) = (Values::default(), Key::new("blood/pbmc/0000000000000001.obs.0;00000007").unwrap());
        let store = FaultStore::new(MemoryStore::new());
        for (len, room, says) in [(11, 10, "at most for a sub-plan"), (MAX_GIVEN + 1, usize::MAX, "a request has room")] {
            store.apply(vec![Op::Put { key: key.clone(), value: vec![0; len].into(), expect: Expect::Any }]).unwrap();
            match values.get(&store, &key, room).unwrap() {
                Got::TooLong(why) => assert!(why.contains(says) && why.contains(key.as_str()), "{why}"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(store.count(Operation::Get), 0);
        let named = Named::default();
        assert_eq!(named.room(), MOST);
        named.add(key.clone(), Arc::new(Value { bytes: vec![0; MAX_GIVEN].into(), digest: [0; DIGEST] }));
        assert_eq!(named.room(), MOST - MAX_GIVEN);
    }

    #[test]
    fn requests_have_room_for_some_values() {
        let named = Named::default();
        let keys: Vec<Key> = ["a", "b", "c"].map(|name| Key::new(name).unwrap()).into();
        for (key, len) in keys.iter().zip([MAX_GIVEN / 2, MAX_GIVEN, MAX_GIVEN / 2]) {
            named.add(key.clone(), Arc::new(Value { bytes: vec![0; len].into(), digest: [0; DIGEST] }));
        }
        let fitting = named.fitting(&keys);
        assert_eq!(fitting.iter().map(Key::as_str).collect::<Vec<_>>(), ["a", "c"]);
        let given = named.given(&fitting);
        assert_eq!(given.values().map(|one| one.bytes.is_some()).collect::<Vec<_>>(), [true, false, true]);
    }
}
