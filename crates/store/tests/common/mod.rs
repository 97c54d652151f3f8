//! Helpers of the disk store's tests.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use skytether_common::Key;
use skytether_store::disk::{DiskStore, DriveIdentity, OpenOptions, Sync};
use skytether_store::{Expect, Op, SliceStore};
use uuid::Uuid;

pub fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub fn put(text: &str, value: impl Into<Bytes>) -> Op {
    Op::Put { key: key(text), value: value.into(), expect: Expect::Any }
}

pub fn delete(text: &str) -> Op {
    Op::Delete { key: key(text), expect: Expect::Any }
}

pub fn identity() -> DriveIdentity {
    DriveIdentity { id: Uuid::from_u128(7), name: "drive-0".into() }
}

/// Makes or opens the drive.
pub fn options(sync: Sync) -> OpenOptions {
    OpenOptions { create: Some(identity()), sync, ..OpenOptions::default() }
}

pub fn open(dir: &Path) -> DiskStore {
    DiskStore::open(dir, options(Sync::None)).unwrap()
}

/// Every key with its value.
pub fn everything(store: &dyn SliceStore) -> Vec<(String, Bytes)> {
    store.list("", None, usize::MAX).unwrap().into_iter().map(|entry| (entry.key.as_str().to_owned(), store.get(&entry.key).unwrap())).collect()
}

/// All files below `dir`, sorted.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// There is one file per key and nothing half written.
pub fn assert_no_leaks(dir: &Path, store: &dyn SliceStore) {
    assert_eq!(files(&dir.join("tmp")), Vec::<PathBuf>::new());
    assert_eq!(files(&dir.join("slices")).len() as u64, store.usage().unwrap().keys);
}

/// `len` bytes that depend on `seed`.
pub fn bytes(seed: u64, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes.into()
}

/// What a store holds after these batches.
pub fn contents(batches: &[Vec<Op>]) -> Vec<(String, Bytes)> {
    let mut all = BTreeMap::new();
    for op in batches.iter().flatten() {
        match op {
            Op::Put { key, value, .. } => all.insert(key.as_str().to_owned(), value.clone()),
            Op::Delete { key, .. } => all.remove(key.as_str()),
            Op::Check { .. } => continue,
            Op::Link { key, from, .. } => all.insert(key.as_str().to_owned(), all[from.as_str()].clone()),
        };
    }
    all.into_iter().collect()
}
