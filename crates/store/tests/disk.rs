//! What a drive's directory holds, who may open it, and how it reports damage.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{assert_no_leaks, bytes, delete, everything, files, identity, key, open, options, put};
use bytes::Bytes;
use skytether_common::Kind;
use skytether_store::disk::{DiskStore, DriveIdentity, OpenOptions, Recovery, Sync};
use skytether_store::{Expect, Op, SliceStore};
use tempfile::TempDir;
use uuid::Uuid;

fn filled() -> (TempDir, DiskStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.apply(vec![put("a/1", bytes(1, 300)), put("a/2", bytes(2, 40_000)), put("b/empty", b"".as_slice())]).unwrap();
    (dir, store)
}

fn fails(dir: &Path, options: OpenOptions) -> (Kind, String) {
    let error = DiskStore::open(dir, options).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn a_drive_is_made_once_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/drive");
    let (kind, text) = fails(&path, OpenOptions::default());
    assert_eq!(kind, Kind::NotFound, "{text}");
    let store = DiskStore::open(&path, options(Sync::Full)).unwrap();
    assert_eq!((store.identity(), store.recovery(), store.directory()), (&identity(), &Recovery::default(), path.as_path()));
    let names: Vec<PathBuf> = files(&path).iter().map(|p| p.strip_prefix(&path).unwrap().to_owned()).collect();
    assert_eq!(names, ["LOCK", "drive.json", "index.redb"].map(PathBuf::from));
    let json: serde_json::Value = serde_json::from_slice(&fs::read(path.join("drive.json")).unwrap()).unwrap();
    assert_eq!(json, serde_json::json!({"format": 1, "id": "00000000-0000-0000-0000-000000000007", "name": "drive-0"}));
    let stored = store.usage().unwrap().stored_bytes;
    assert!(stored < 128 << 10, "an empty drive takes {stored} bytes");
    drop(store);
    for options in [OpenOptions::default(), options(Sync::Full)] {
        assert_eq!(DiskStore::open(&path, options).unwrap().identity(), &identity());
    }
    let other = DriveIdentity { id: Uuid::from_u128(8), name: "drive-1".into() };
    let (kind, text) = fails(&path, OpenOptions { create: Some(other), ..OpenOptions::default() });
    assert_eq!(kind, Kind::Conflict);
    assert!(text.contains("drive-0") && text.contains("drive-1"), "{text}");
}

#[test]
fn values_lie_where_the_architecture_says() {
    let (dir, store) = filled();
    let names: Vec<PathBuf> = files(&dir.path().join("slices")).iter().map(|p| p.strip_prefix(dir.path()).unwrap().to_owned()).collect();
    assert_eq!(names.len(), 3);
    for path in names {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(path, PathBuf::from(format!("slices/{}/{name}", &name[14..])));
        assert_eq!(name.len(), 16);
    }
    assert_no_leaks(dir.path(), &store);
}

#[test]
fn one_process_has_a_drive_at_a_time() {
    let (dir, store) = filled();
    let (kind, text) = fails(dir.path(), OpenOptions::default());
    assert_eq!(kind, Kind::Conflict);
    assert!(text.contains(&dir.path().display().to_string()) && text.contains(&std::process::id().to_string()) && text.contains("close it"), "{text}");
    // The one that has it is not disturbed.
    store.apply(vec![put("c", b"1".as_slice())]).unwrap();
    drop(store);
    assert_eq!(everything(&open(dir.path())).len(), 4);
}

#[test]
fn a_drive_of_a_newer_version_is_left_alone() {
    let (dir, store) = filled();
    drop(store);
    let path = dir.path().join("drive.json");
    fs::write(&path, r#"{"format": 7, "shape": "round"}"#).unwrap();
    let before = files(dir.path());
    let (kind, text) = fails(dir.path(), options(Sync::Full));
    assert_eq!(kind, Kind::Unsupported);
    assert!(text.contains("format 7") && text.contains("format 1"), "{text}");
    assert_eq!(files(dir.path()), before);
}

#[test]
fn a_damaged_identity_is_named() {
    let (dir, store) = filled();
    drop(store);
    let path = dir.path().join("drive.json");
    let good = fs::read(&path).unwrap();
    let other = String::from_utf8(good.clone()).unwrap().replace("drive-0", "drive-1").into_bytes();
    for bad in [&good[..0], &good[..good.len() / 2], b"\xff\xfe garbage", b"[1, 2]", br#"{"format": 1}"#, br#"{"format": -1, "id": 3}"#, &other] {
        fs::write(&path, bad).unwrap();
        let (kind, text) = fails(dir.path(), options(Sync::Full));
        assert_eq!(kind, Kind::Corrupt, "{bad:?}: {text}");
        assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
    }
    fs::remove_file(&path).unwrap();
    let (kind, text) = fails(dir.path(), options(Sync::Full));
    assert_eq!((kind, text.contains("drive.json")), (Kind::Corrupt, true), "{text}");
    fs::write(&path, &good).unwrap();
    assert_eq!(everything(&open(dir.path())).len(), 3);
}

#[test]
fn foreign_directory_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
    let (kind, text) = fails(dir.path(), options(Sync::Full));
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("thesis.tex"), "{text}");
    assert_eq!(files(dir.path()).len(), 1);
}

#[test]
fn a_creation_that_did_not_end_is_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["slices", "tmp"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("index.redb"), "half").unwrap();
    fs::write(dir.path().join("tmp/drive.json"), "half").unwrap();
    let store = open(dir.path());
    store.apply(vec![put("a", b"1".as_slice())]).unwrap();
    assert_no_leaks(dir.path(), &store);
}

#[test]
fn leftovers_are_deleted_and_foreign_files_stay() {
    let (dir, store) = filled();
    let before = everything(&store);
    drop(store);
    let slices = dir.path().join("slices");
    fs::create_dir_all(slices.join("ff")).unwrap();
    for orphan in ["ff/ffffffffffffffff", "00/0000000000000300"] {
        fs::create_dir_all(slices.join(orphan).parent().unwrap()).unwrap();
        fs::write(slices.join(orphan), "left by a crash").unwrap();
    }
    fs::write(dir.path().join("tmp/0000000000000009"), "half").unwrap();
    let foreign = [slices.join("00/README"), slices.join("note.txt"), slices.join("01/0000000000000002")];
    for path in &foreign {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "mine").unwrap();
    }
    let store = open(dir.path());
    let mut recovery = store.recovery().clone();
    recovery.foreign.sort();
    let mut foreign = foreign.to_vec();
    foreign.sort();
    assert_eq!(recovery, Recovery { temporary_removed: 1, orphans_removed: 2, damaged: vec![], foreign: foreign.clone() });
    assert_eq!(everything(&store), before);
    store.apply((0..300).map(|i| put(&format!("n/{i}"), bytes(i, 10))).collect()).unwrap();
    assert!(foreign.iter().all(|path| fs::read(path).unwrap() == b"mine"));
}

/// The report is made when the store is opened.
#[test]
fn missing_and_short_values_are_reported_and_named_by_get() {
    let (dir, store) = filled();
    drop(store);
    let paths = files(&dir.path().join("slices"));
    let of_len = |len: u64| paths.iter().find(|p| fs::metadata(p).unwrap().len() == len).unwrap().clone();
    let (short, missing) = (of_len(300), of_len(40_000));
    fs::write(&short, [0; 299]).unwrap();
    fs::remove_file(&missing).unwrap();
    let store = open(dir.path());
    let damaged: Vec<_> = store.recovery().damaged.iter().map(|d| (d.key.as_str(), d.file.clone(), d.expected_len, d.found_len)).collect();
    assert_eq!(damaged, [("a/1", short.clone(), 300, Some(299)), ("a/2", missing.clone(), 40_000, None)]);
    for (name, path) in [("a/1", &short), ("a/2", &missing)] {
        for error in [store.get(&key(name)).unwrap_err(), store.get_ranges_unverified(&key(name), &[0..1, 1..2]).unwrap_err()] {
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains(name) && error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
    }
    assert_eq!(store.get(&key("b/empty")).unwrap().len(), 0);
    // Writing or deleting the key repairs it.
    store.apply(vec![put("a/1", bytes(1, 300)), delete("a/2")]).unwrap();
    assert_eq!(store.get(&key("a/1")).unwrap(), bytes(1, 300));
    drop(store);
    assert_eq!(open(dir.path()).recovery(), &Recovery::default());
}

#[test]
fn every_flipped_bit_of_a_value_is_found_and_named() {
    let (dir, store) = filled();
    let flips = |len: usize| -> Vec<usize> { if len <= 300 { (0..len * 8).collect() } else { (0..len * 8).step_by(997).collect() } };
    let mut flipped = 0;
    for path in files(&dir.path().join("slices")) {
        let good = fs::read(&path).unwrap();
        let name = if good.len() == 300 { "a/1" } else { "a/2" };
        for bit in flips(good.len()) {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bad).unwrap();
            let error = store.get(&key(name)).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains(&format!("key {name} ")) && error.to_string().ends_with("drop its data set and ingest it again"), "{error}");
            flipped += 1;
        }
        fs::write(&path, &good).unwrap();
    }
    assert_eq!(flipped, 300 * 8 + (40_000usize * 8).div_ceil(997));
    assert_eq!(everything(&store).len(), 3);
}

#[test]
fn ranges_come_as_they_are_stored() {
    let (dir, store) = filled();
    let path = files(&dir.path().join("slices")).into_iter().find(|path| fs::metadata(path).unwrap().len() == 300).unwrap();
    let mut bad = fs::read(&path).unwrap();
    bad[100] ^= 1;
    fs::write(&path, &bad).unwrap();
    assert_eq!(store.get(&key("a/1")).unwrap_err().kind(), Kind::Corrupt);
    // Ranges are unverified by contract: the caller has checksums of the parts.
    assert_eq!(store.get_ranges_unverified(&key("a/1"), &[99..102, 0..300]).unwrap(), [&bad[99..102], &bad[..]]);
}

/// Opens a drive whose index was damaged: either the error says so, or nothing differs.
fn damaged_index(dir: &Path, what: &str, before: &[(String, bytes::Bytes)], values: &[PathBuf]) -> bool {
    let opened = DiskStore::open(dir, options(Sync::None));
    assert_eq!(files(&dir.join("slices")), values, "{what}: values were removed");
    match opened {
        Ok(store) => {
            assert_eq!(everything(&store), before, "{what}");
            false
        }
        Err(e) => {
            assert_eq!(e.kind(), Kind::Corrupt, "{what}: {e}");
            assert!(e.to_string().contains("index.redb"), "{what}: {e}");
            true
        }
    }
}

#[test]
fn damage_to_the_index_is_found_or_harmless() {
    let (dir, store) = filled();
    // Several transactions, so that there is an older state to fall back to, which must not happen.
    for i in 0..5 {
        store.apply(vec![put("root", bytes(i, 100)), put(&format!("c/{i}"), bytes(i, 10))]).unwrap();
    }
    let before = everything(&store);
    drop(store);
    let path = dir.path().join("index.redb");
    let values = files(&dir.path().join("slices"));
    let good = fs::read(&path).unwrap();
    let (mut found, mut harmless) = (0, 0);
    let mut count = |damaged| if damaged { found += 1 } else { harmless += 1 };
    // The header byte by byte, what is not zero in the rest in samples.
    let offsets: Vec<usize> = (0..320).chain((320..good.len()).filter(|i| good[*i] != 0).step_by(5)).collect();
    for at in offsets {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, &bad).unwrap();
        count(damaged_index(dir.path(), &format!("bit {} of byte {at}", at % 8), &before, &values));
    }
    for len in [0, 1, 9, 10, 64, 319, 4096, good.len() / 2, good.len() - 1] {
        fs::write(&path, &good[..len]).unwrap();
        assert!(damaged_index(dir.path(), &format!("cut off at {len}"), &before, &values));
    }
    for bad in [bytes(1, 100), bytes(2, 4096), bytes(3, good.len())] {
        fs::write(&path, &bad).unwrap();
        assert!(damaged_index(dir.path(), "noise", &before, &values));
        let mut behind_header = good[..10].to_vec();
        behind_header.extend_from_slice(&bad);
        fs::write(&path, &behind_header).unwrap();
        assert!(damaged_index(dir.path(), "noise behind the magic number", &before, &values));
    }
    fs::remove_file(&path).unwrap();
    assert!(damaged_index(dir.path(), "missing", &before, &values));
    fs::write(&path, &good).unwrap();
    assert!(!damaged_index(dir.path(), "restored", &before, &values));
    assert!(found > harmless / 4, "{found} found, {harmless} harmless");
    println!("damage to the index: {found} found, {harmless} harmless");
}

#[test]
fn a_lock_file_that_takes_no_process_id_still_locks() {
    let dir = tempfile::tempdir().unwrap();
    // Whatever is written there fails as on a full disk.
    std::os::unix::fs::symlink("/dev/full", dir.path().join("LOCK")).unwrap();
    let store = open(dir.path());
    store.apply(vec![put("a", b"1".as_slice())]).unwrap();
    assert_eq!(everything(&store).len(), 1);
}

#[test]
fn index_of_another_time_is_found() {
    let (dir, store) = filled();
    drop(store);
    let (other, store) = filled();
    store.apply(vec![put("z", b"1".as_slice())]).unwrap();
    drop(store);
    // Same drive id, so the same drive.json: only the files show the difference, and the error names what is missing.
    fs::copy(other.path().join("index.redb"), dir.path().join("index.redb")).unwrap();
    let store = open(dir.path());
    assert_eq!(store.recovery().damaged.iter().map(|d| d.key.as_str()).collect::<Vec<_>>(), ["z"]);
    assert_eq!(store.get(&key("z")).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn concurrent_writers_and_readers_do_not_interfere() {
    let (dir, store) = filled();
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..20 {
                    let batch: Vec<Op> = (0..4).map(|j| put(&format!("t/{t}/{j}"), bytes(t * 1000 + i, 2000 + j))).collect();
                    store.apply(batch).unwrap();
                    assert_eq!(store.get(&key(&format!("t/{t}/3"))).unwrap(), bytes(t * 1000 + i, 2003));
                    store.get(&key(&format!("t/{}/0", (t + 1) % 4))).map_or_else(|e| assert_eq!(e.kind(), Kind::NotFound), drop);
                }
            });
        }
    });
    assert_eq!(store.usage().unwrap().keys, 3 + 16);
    assert_no_leaks(dir.path(), &store);
    drop(store);
    assert_eq!(open(dir.path()).recovery(), &Recovery::default());
}

/// Whether this system tells what a file has in memory: the system's page cache of this directory's file system.
#[cfg(target_os = "linux")]
fn tells_memory(dir: &Path) -> bool {
    use rustix::io::{ReadWriteFlags, preadv2};
    std::fs::write(dir.join("probe"), b"bytes").unwrap();
    let file = std::fs::File::open(dir.join("probe")).unwrap();
    let mut bytes = [0; 5];
    preadv2(&file, &mut [std::io::IoSliceMut::new(&mut bytes)], 0, ReadWriteFlags::NOWAIT).is_ok_and(|read| read == 5)
}

/// A thread that must not wait asks neither the index nor the disk: a key without a read since the opening is not
/// known to it, and each change is.
#[cfg(target_os = "linux")]
#[test]
fn ranges_in_memory_are_those_of_rows_that_were_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("drive");
    let value = Bytes::from(vec![7; 10_000]);
    let put = |value: &Bytes| Op::Put { key: key("a"), value: value.clone(), expect: Expect::Any };
    drop(DiskStore::open(&at, options(Sync::Full)).map(|store| store.apply(vec![put(&value)]).unwrap()).unwrap());
    let store = DiskStore::open(&at, OpenOptions { create: None, ..options(Sync::Full) }).unwrap();
    assert_eq!(store.get_range_in_memory(&key("a"), 10..20), None);
    assert_eq!(store.get_ranges_unverified(&key("a"), std::slice::from_ref(&(0..10_000))).unwrap(), std::slice::from_ref(&value));
    let tells = tells_memory(dir.path());
    let now = || store.get_range_in_memory(&key("a"), 10..20);
    assert_eq!(now(), tells.then(|| value.slice(10..20)));
    let other = Bytes::from(vec![9; 10_000]);
    store.apply(vec![put(&other)]).unwrap();
    assert_eq!(now(), None);
    assert_eq!(store.get(&key("a")).unwrap(), other);
    assert_eq!(now(), tells.then(|| other.slice(10..20)));
    store.apply(vec![Op::Delete { key: key("a"), expect: Expect::Any }]).unwrap();
    assert_eq!(now(), None);
}
