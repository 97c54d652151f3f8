//! Values of a fleet that go along with requests: metadata, names of genes, labels of cells.
//!
//! Engines name the keys that they miss. What a sub-plan needed is noted, so that the next query of its kind names it
//! at once. Values that were sent are kept with their digests, as long as the store has them in the same version.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_ceph_protocol::Given;
use skytether_ceph_protocol::stripe::{DIGEST, MAX_GIVEN};
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_device::SubPlan;
use skytether_store::{SliceStore, Version};

/// Bytes of values that a drive keeps.
const KEPT: usize = 64 << 20;

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

impl Values {
    /// The value of `key` in `store`; `None` where there is none. Blocks.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn get(&self, store: &dyn SliceStore, key: &Key) -> Result<Option<Arc<Value>>> {
        let Some(entry) = store.stat(key)? else { return Ok(None) };
        if let Some((_, _, value)) = self.kept.lock().iter().find(|(of, version, _)| of == key && *version == entry.version) {
            return Ok(Some(Arc::clone(value)));
        }
        let bytes = store.get(key)?;
        let value = Arc::new(Value { digest: *blake3::hash(&bytes).as_bytes(), bytes });
        let mut kept = self.kept.lock();
        kept.retain(|(of, ..)| of != key);
        kept.push_back((key.clone(), entry.version, Arc::clone(&value)));
        while kept.iter().map(|(_, _, value)| value.bytes.len()).sum::<usize>() > KEPT {
            kept.pop_front();
        }
        Ok(Some(value))
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
    ///
    /// # Errors
    /// The key and the length of a value that has no room in any.
    pub(crate) fn fitting(&self, wanted: &[Key]) -> Result<BTreeSet<Key>, String> {
        let (values, mut bytes, mut fitting) = (self.0.lock(), 0, BTreeSet::new());
        for key in wanted {
            let len = values.get(key).map_or(0, |value| value.bytes.len());
            if len > MAX_GIVEN {
                return Err(format!("the plan reads {key} of {len} bytes, and a request has room for {MAX_GIVEN}"));
            }
            if bytes + len <= MAX_GIVEN {
                bytes += len;
                fitting.insert(key.clone());
            }
        }
        Ok(fitting)
    }
}

/// The key that an engine asks for, if the sub-plan may read it: an engine must not get at other data sets.
///
/// # Errors
/// `Invalid` for any other.
pub(crate) fn allowed(text: &str, partitions: &BTreeMap<String, PartitionName>) -> Result<Key> {
    let refused = || Error::invalid(format!("an engine asks for {text:?}, which the sub-plan may not read"));
    let key = Key::new(text).map_err(|_| refused())?;
    match PartitionName::parse(&key) {
        Some((name, _)) if partitions.values().any(|one| *one == name) => Ok(key),
        _ => Err(refused()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use skytether_store::memory::MemoryStore;
    use skytether_store::{Expect, Op};

    fn put(store: &MemoryStore, key: &Key, value: &'static [u8]) {
        store.apply(vec![Op::Put { key: key.clone(), value: Bytes::from_static(value), expect: Expect::Any }]).unwrap();
    }

    #[test]
    fn replaced_values_are_read_again() {
        let (store, values, key) = (MemoryStore::new(), Values::default(), Key::new("blood/pbmc/0000000000000001.x.0").unwrap());
        assert!(values.get(&store, &key).unwrap().is_none());
        put(&store, &key, b"one");
        let first = values.get(&store, &key).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &values.get(&store, &key).unwrap().unwrap()));
        put(&store, &key, b"two");
        let second = values.get(&store, &key).unwrap().unwrap();
        assert!(first.digest != second.digest && &second.bytes[..] == b"two" && values.kept.lock().len() == 1);
    }

    #[test]
    fn engines_get_at_no_other_data_set() {
        let own = Key::new("blood/pbmc/0000000000000001.x.0").unwrap();
        let partitions = BTreeMap::from([("x".to_owned(), PartitionName::parse(&own).unwrap().0)]);
        for text in ["blood/pbmc/0000000000000001.x.0", "blood/pbmc/0000000000000001.x.0;00000007"] {
            assert_eq!(allowed(text, &partitions).unwrap().as_str(), text);
        }
        for text in ["blood/pbmc/0000000000000001.x.1", "blood/other/0000000000000001.x.0", "blood/pbmc", "", "blood/pbmc/0000000000000002.x.0"] {
            assert!(allowed(text, &partitions).is_err(), "{text}");
        }
    }

    #[test]
    fn requests_have_room_for_some_values() {
        let named = Named::default();
        let keys: Vec<Key> = ["a", "b", "c"].map(|name| Key::new(name).unwrap()).into();
        for (key, len) in keys.iter().zip([MAX_GIVEN / 2, MAX_GIVEN, MAX_GIVEN / 2]) {
            named.add(key.clone(), Arc::new(Value { bytes: vec![0; len].into(), digest: [0; DIGEST] }));
        }
        let fitting = named.fitting(&keys).unwrap();
        assert_eq!(fitting.iter().map(Key::as_str).collect::<Vec<_>>(), ["a", "c"]);
        let given = named.given(&fitting);
        assert_eq!(given.values().map(|one| one.bytes.is_some()).collect::<Vec<_>>(), [true, false, true]);
        named.add(keys[0].clone(), Arc::new(Value { bytes: vec![0; MAX_GIVEN + 1].into(), digest: [0; DIGEST] }));
        assert!(named.fitting(&keys).unwrap_err().contains("room"));
    }
}
