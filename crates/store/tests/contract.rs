//! The contract against all stores, and random batches against a model.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::Range;

use crate::common::{bytes, everything, key, options};
use bytes::Bytes;
use proptest::prelude::*;
use skytether_common::{Key, Kind, Result};
use skytether_store::disk::{DiskStore, Sync};
use skytether_store::fault::FaultStore;
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore, StoreLayer, Version, contract};
use tempfile::TempDir;

/// A disk store that takes its directory along.
#[derive(Debug)]
struct Temporary(DiskStore, #[allow(dead_code)] TempDir);

impl Temporary {
    fn new(sync: Sync) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self(DiskStore::open(&dir.path().join("drive"), options(sync)).unwrap(), dir)
    }
}

impl StoreLayer for Temporary {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.0)
    }

    fn get_range_in_memory(&self, key: &Key, range: Range<u64>) -> Option<Bytes> {
        self.0.get_range_in_memory(key, range)
    }
}

#[test]
fn memory_keeps_the_contract() {
    contract::check(|| Box::new(MemoryStore::new()));
}

#[test]
fn disk_keeps_the_contract() {
    contract::check(|| Box::new(Temporary::new(Sync::Full)));
}

#[test]
fn disk_without_flushing_keeps_the_contract() {
    contract::check(|| Box::new(Temporary::new(Sync::None)));
}

#[test]
fn a_fault_store_without_faults_keeps_the_contract() {
    contract::check(|| Box::new(FaultStore::new(MemoryStore::new())));
    contract::check(|| Box::new(FaultStore::new(Temporary::new(Sync::None))));
}

#[derive(Debug, Clone)]
enum Move {
    Batch(Vec<(u8, Option<(u64, usize)>, Wish)>),
    Reopen,
}

#[derive(Debug, Clone, Copy)]
enum Wish {
    Any,
    Absent,
    Current,
    Stale,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let wish = prop_oneof![6 => Just(Wish::Any), 1 => Just(Wish::Absent), 2 => Just(Wish::Current), 1 => Just(Wish::Stale)];
    let op = (0u8..12, proptest::option::weighted(0.7, (any::<u64>(), 0usize..5000)), wish);
    let step = prop_oneof![8 => proptest::collection::vec(op, 0..6).prop_map(Move::Batch), 1 => Just(Move::Reopen)];
    proptest::collection::vec(step, 1..25)
}

type Model = BTreeMap<String, (Version, Bytes)>;

/// Applies a batch to the model by the contract; returns the kind of the error that the contract demands.
fn model_apply(model: &mut Model, batch: &[Op], versions: &Result<Vec<Version>>) -> Result<(), Kind> {
    let mut names: Vec<_> = batch.iter().map(|op| op.key().as_str()).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Kind::Invalid);
    }
    for op in batch {
        let found = model.get(op.key().as_str()).map(|(version, _)| *version);
        let holds = match op.expect() {
            Expect::Any => true,
            Expect::Absent => found.is_none(),
            Expect::Version(version) => found == Some(version),
        };
        if !holds {
            return Err(Kind::Conflict);
        }
    }
    let versions = versions.as_ref().map_err(|e| e.kind())?;
    for (op, version) in batch.iter().zip(versions) {
        match op {
            Op::Put { key, value, .. } => model.insert(key.as_str().to_owned(), (*version, value.clone())),
            Op::Delete { key, .. } => model.remove(key.as_str()),
            Op::Check { .. } => continue,
            Op::Link { key, from, .. } => model.insert(key.as_str().to_owned(), (*version, model[from.as_str()].1.clone())),
        };
    }
    Ok(())
}

fn agree(store: &dyn SliceStore, model: &Model) {
    let values: Vec<_> = model.iter().map(|(key, (_, value))| (key.clone(), value.clone())).collect();
    assert_eq!(everything(store), values);
    for (name, (version, _)) in model {
        assert_eq!(store.stat(&key(name)).unwrap().unwrap().version, *version);
    }
    let usage = store.usage().unwrap();
    assert_eq!((usage.keys, usage.value_bytes), (model.len() as u64, model.values().map(|(_, v)| v.len() as u64).sum()));
}

fn follow<S: SliceStore>(mut store: S, moves: Vec<Move>, reopen: impl Fn(S) -> S) {
    let mut model = Model::new();
    let mut newest = 0;
    for step in moves {
        let Move::Batch(ops) = step else {
            store = reopen(store);
            agree(&store, &model);
            continue;
        };
        let batch: Vec<Op> = ops
            .into_iter()
            .map(|(name, value, wish)| {
                let key = key(&format!("k/{name}"));
                let expect = match (wish, model.get(key.as_str())) {
                    (Wish::Any, _) => Expect::Any,
                    (Wish::Absent, _) | (Wish::Current, None) => Expect::Absent,
                    (Wish::Current, Some((version, _))) => Expect::Version(*version),
                    (Wish::Stale, found) => Expect::Version(found.map_or(1, |(version, _)| version - 1)),
                };
                match value {
                    Some((seed, len)) => Op::Put { key, value: bytes(seed, len), expect },
                    // Of conditions alone some are there as well.
                    None if name % 2 == 0 => Op::Check { key, expect },
                    None => Op::Delete { key, expect },
                }
            })
            .collect();
        let got = store.apply(batch.clone());
        let want = model_apply(&mut model, &batch, &got);
        assert_eq!(got.as_ref().map(|_| ()).map_err(|e| e.kind()), want, "{batch:?}");
        for version in got.unwrap_or_default().into_iter().filter(|v| *v > 0) {
            assert!(version > newest, "version {version} after {newest}");
            newest = version;
        }
        agree(&store, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_follows_the_model(moves in moves()) {
        follow(MemoryStore::new(), moves, |store| store);
    }

    #[test]
    fn disk_follows_the_model(moves in moves()) {
        let dir = tempfile::tempdir().unwrap();
        follow(crate::common::open(dir.path()), moves, |store| {
            drop(store);
            let store = crate::common::open(dir.path());
            assert_eq!(store.recovery(), &skytether_store::disk::Recovery::default());
            crate::common::assert_no_leaks(dir.path(), &store);
            store
        });
    }
}

#[test]
fn full_store_is_an_error_and_keeps_its_values() {
    let dir = tempfile::tempdir().unwrap();
    let disk = DiskStore::open(dir.path(), skytether_store::disk::OpenOptions { capacity: Some(1000), ..options(Sync::None) }).unwrap();
    let memory = MemoryStore::with_capacity(1000);
    for store in [&disk as &dyn SliceStore, &memory] {
        store.apply(vec![crate::common::put("a", bytes(1, 400)), crate::common::put("b", bytes(2, 600))]).unwrap();
        let error = store.apply(vec![crate::common::put("c", bytes(3, 1))]).unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted);
        assert!(error.to_string().contains("1000 B"), "{error}");
        // What frees as much as it takes fits, and so does what only frees.
        store.apply(vec![crate::common::put("c", bytes(3, 600)), crate::common::delete("b")]).unwrap();
        assert_eq!(store.apply(vec![crate::common::put("a", bytes(4, 401))]).unwrap_err().kind(), Kind::Exhausted);
        store.apply(vec![crate::common::put("a", b"".as_slice())]).unwrap();
        assert_eq!(everything(store).len(), 2);
        assert_eq!(store.usage().unwrap().value_bytes, 600);
    }
    crate::common::assert_no_leaks(dir.path(), &disk);
    // A smaller limit than what is there lets nothing in but everything out.
    drop(disk);
    let disk = DiskStore::open(dir.path(), skytether_store::disk::OpenOptions { capacity: Some(10), ..options(Sync::None) }).unwrap();
    assert_eq!(disk.apply(vec![crate::common::put("d", b"1".as_slice())]).unwrap_err().kind(), Kind::Exhausted);
    disk.apply(vec![crate::common::delete("c")]).unwrap();
    disk.apply(vec![crate::common::put("d", b"1".as_slice())]).unwrap();
}
