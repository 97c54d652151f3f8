//! Random operations against a `BTreeMap`, over both backends, with reopening.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use skytether_common::{Error, Kind};
use skytether_kv::memory::Memory;
use skytether_kv::{Change, Durability, KeyValues, Options, To};

use crate::util::{bytes, quick, wait};

/// A version and a value.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, Vec<u8>)>;

#[derive(Debug, Clone)]
enum Act {
    /// A key, whether the right version is expected (or another one, or none), and the length of a value or a delete.
    Batch(Vec<(u8, Expect, Option<u32>)>, Durability),
    Get(u8),
    Next(u8),
    Previous(u8),
    Keys(Bound<u8>, Bound<u8>, bool, usize),
    Reopen,
    Compact,
    Erase(bool),
}

#[derive(Debug, Clone, Copy)]
enum Expect {
    Right,
    Other,
    Empty,
    None,
}

/// Few keys, so that operations meet; one is empty, others are prefixes of each other.
fn key(at: u8) -> Vec<u8> {
    match at % 16 {
        0 => Vec::new(),
        at if at < 8 => vec![0xff; usize::from(at)],
        at => vec![at; 3],
    }
}

fn act() -> impl Strategy<Value = Act> {
    let expect = prop_oneof![4 => Just(Expect::Right), 1 => Just(Expect::Other), 1 => Just(Expect::Empty), 3 => Just(Expect::None)];
    let len = prop_oneof![6 => 0u32..2000, 1 => (16u32 << 10) - 2..(16 << 10) + 3, 1 => 100_000u32..200_000];
    let to = prop_oneof![3 => len.prop_map(Some), 1 => Just(None)];
    let durability = prop_oneof![Just(Durability::Back), Just(Durability::Through), Just(Durability::Flush)];
    let bound = || prop_oneof![any::<u8>().prop_map(Bound::Included), any::<u8>().prop_map(Bound::Excluded), Just(Bound::Unbounded)];
    prop_oneof![
        12 => (prop::collection::vec((any::<u8>(), expect, to), 0..5), durability).prop_map(|(changes, durability)| Act::Batch(changes, durability)),
        4 => any::<u8>().prop_map(Act::Get),
        3 => any::<u8>().prop_map(Act::Next),
        3 => any::<u8>().prop_map(Act::Previous),
        3 => (bound(), bound(), any::<bool>(), 0usize..20).prop_map(|(from, to, reverse, limit)| Act::Keys(from, to, reverse, limit)),
        1 => Just(Act::Reopen),
        1 => Just(Act::Compact),
        1 => any::<bool>().prop_map(Act::Erase),
    ]
}

/// What a batch gives in the model.
fn apply(model: &mut Model, changes: &[Change]) -> Result<(), (usize, Kind)> {
    for (index, change) in changes.iter().enumerate() {
        let now = model.get(&change.key[..]);
        match (&change.expect, now, &change.to) {
            (None, ..) => {}
            (Some(_), None, To::Delete) => return Err((index, Kind::NotFound)),
            (Some(expected), now, _) => {
                if expected[..] != now.map(|(version, _)| version.clone()).unwrap_or_default() {
                    return Err((index, Kind::Conflict));
                }
            }
        }
    }
    for change in changes {
        match &change.to {
            To::Put { version, value, .. } => drop(model.insert(change.key.to_vec(), (version.to_vec(), value.to_vec()))),
            To::Delete => drop(model.remove(&change.key[..])),
        }
    }
    Ok(())
}

fn same(record: Option<skytether_kv::Record>, expected: Option<&(Vec<u8>, Vec<u8>)>) {
    let found = record.map(|record| (record.meta.version.to_vec(), record.value.to_vec()));
    assert!(found.as_ref() == expected, "another version or value");
}

fn run(acts: &[Act], open: impl Fn() -> KeyValues) {
    let mut model = Model::new();
    let mut store = Some(open());
    for (at, act) in acts.iter().enumerate() {
        let kv = store.as_ref().unwrap();
        match act {
            Act::Batch(changes, durability) => {
                let change = |(name, expect, len): &(u8, Expect, Option<u32>)| {
                    let key = key(*name);
                    let version = match expect {
                        Expect::Right => Some(model.get(&key).map(|(version, _)| version.clone()).unwrap_or_default()),
                        Expect::Other => Some(b"other".to_vec()),
                        Expect::Empty => Some(Vec::new()),
                        Expect::None => None,
                    };
                    let to = match len {
                        Some(len) => To::Put {
                            version: if len % 5 == 0 { Bytes::new() } else { Bytes::from(at.to_string()) },
                            tag: Bytes::from("tag"),
                            algorithm: 1,
                            value: Bytes::from(bytes(at as u64, *len as usize)),
                        },
                        None => To::Delete,
                    };
                    Change { key: key.into(), expect: version.map(Bytes::from), to }
                };
                let changes: Vec<Change> = changes.iter().map(change).collect();
                let expected = apply(&mut model, &changes);
                let found = wait(kv.write(changes, *durability)).map_err(|failed| (failed.index, Error::from(failed).kind()));
                assert_eq!(found, expected, "{act:?}");
            }
            Act::Get(name) => {
                let key = key(*name);
                same(kv.get(&key).unwrap(), model.get(&key));
                let len = kv.meta(&key).unwrap().map(|meta| meta.len as usize);
                assert_eq!(len, model.get(&key).map(|(_, value)| value.len()));
            }
            Act::Next(name) => {
                let expected = model.range((Bound::Excluded(key(*name)), Bound::Unbounded)).next();
                let found = kv.next(&key(*name)).unwrap();
                assert_eq!(found.as_ref().map(|(key, _)| key.to_vec()).as_ref(), expected.map(|(key, _)| key));
                same(found.map(|(_, record)| record), expected.map(|(_, value)| value));
            }
            Act::Previous(name) => {
                let expected = model.range(..key(*name)).next_back();
                let found = kv.previous(&key(*name)).unwrap();
                assert_eq!(found.as_ref().map(|(key, _)| key.to_vec()).as_ref(), expected.map(|(key, _)| key));
                same(found.map(|(_, record)| record), expected.map(|(_, value)| value));
            }
            Act::Keys(from, to, reverse, limit) => {
                let (from, to) = (from.map(key), to.map(key));
                let within = |key: &&Vec<u8>| std::ops::RangeBounds::contains(&(from.clone(), to.clone()), *key);
                let mut expected: Vec<Vec<u8>> = model.keys().filter(within).cloned().collect();
                if *reverse {
                    expected.reverse();
                }
                expected.truncate(*limit);
                let found = kv.keys(from.as_ref().map(|key| &key[..]), to.as_ref().map(|key| &key[..]), *reverse, *limit).unwrap();
                assert_eq!(found, expected);
            }
            Act::Reopen => {
                drop(store.take());
                store = Some(open());
            }
            Act::Compact => kv.compact().unwrap(),
            Act::Erase(secure) => {
                wait(kv.erase(*secure)).unwrap();
                model.clear();
            }
        }
        let usage = store.as_ref().unwrap().usage().unwrap();
        let value_bytes = model.values().map(|(_, value)| value.len() as u64).sum();
        assert_eq!((usage.keys, usage.value_bytes), (model.len() as u64, value_bytes), "after {act:?}");
    }
    let verified = store.unwrap().verify(Bound::Unbounded, Bound::Unbounded, false, usize::MAX, None).unwrap();
    assert_eq!((verified.checked, verified.damaged), (model.len() as u64, Vec::new()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if crate::util::is_soak() { 3000 } else { 60 }, ..ProptestConfig::default() })]

    #[test]
    fn store_in_memory_behaves_like_a_sorted_map(acts in prop::collection::vec(act(), 1..80)) {
        let memory = Memory::default();
        run(&acts, || KeyValues::over(Arc::new(memory.clone()), "a test".into(), &Options::default()).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if crate::util::is_soak() { 1000 } else { 12 }, ..ProptestConfig::default() })]

    /// Tiny memtables, so that tables and compactions take part.
    #[test]
    fn store_on_disk_behaves_like_a_sorted_map(acts in prop::collection::vec(act(), 1..80)) {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { memtable_bytes: 50_000, cache_bytes: 100_000, ..quick() };
        run(&acts, || KeyValues::open(dir.path(), &options).unwrap());
    }
}
