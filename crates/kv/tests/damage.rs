//! Flipped bits in any file: an opening or a read says `Corrupt`, or another error; never are there other bytes.

use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use skytether_common::Kind;
use skytether_kv::{Change, Durability, KeyValues, Options};

use crate::util::{bytes, copy_trimmed, is_soak, open, put, quick, value, wait, write, written};

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), found);
        } else if entry.metadata().unwrap().len() > 0 {
            found.push(entry.path());
        }
    }
    found.sort();
}

fn names() -> impl Iterator<Item = (Vec<u8>, usize)> {
    (0..60u8).map(|at| (vec![b'k', at], if at % 20 == 0 { 30_000 } else { usize::from(at) * 20 }))
}

#[test]
fn flipped_bits_never_give_other_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let store = KeyValues::open(dir.path(), &Options::default()).unwrap();
    for (key, len) in names() {
        wait(store.write(vec![Change::put(key.clone(), bytes(u64::from(key[1]), len))], Durability::Through)).unwrap();
    }
    store.compact().unwrap();
    // Some in tables, some in the journal only.
    wait(store.write(vec![Change::put("last", "value")], Durability::Through)).unwrap();
    wait(store.set_settings(Bytes::from_static(b"settings"))).unwrap();
    drop(store);
    let image = tempfile::tempdir().unwrap();
    copy_trimmed(dir.path(), image.path());
    let mut paths = Vec::new();
    files(image.path(), &mut paths);
    let mut random = fastrand::Rng::with_seed(11);
    let (mut refused, mut corrupt, mut harmless) = (0, 0, 0);
    for case in 0..if is_soak() { 20_000 } else { 150 } {
        let path = &paths[case % paths.len()];
        let whole = fs::read(path).unwrap();
        // Holes of a journal are zeros; hit what was written.
        let len = written(&whole).max(1);
        let (at, bit) = (random.usize(0..len), random.u8(0..8));
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << bit;
        let copied = tempfile::tempdir().unwrap();
        copy_trimmed(image.path(), copied.path());
        fs::write(copied.path().join(path.strip_prefix(image.path()).unwrap()), &damaged).unwrap();
        let what = format!("case {case}: bit {bit} of byte {at} in {}", path.display());
        match KeyValues::open(copied.path(), &quick()) {
            Err(error) => {
                assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unsupported | Kind::Invalid), "{what}: {error}");
                refused += 1;
            }
            Ok(store) => {
                let mut failed = 0;
                for (key, len) in names().chain([(b"last".to_vec(), 5)]) {
                    let expected = if key == b"last" { b"value".to_vec() } else { bytes(u64::from(key[1]), len) };
                    match store.get(&key) {
                        Ok(record) => assert!(record.as_ref().is_some_and(|record| record.value == expected), "{what}: other bytes of {key:?}: {record:?}"),
                        Err(error) => {
                            assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
                            failed += 1;
                        }
                    }
                }
                match store.settings() {
                    Ok(settings) => assert_eq!(settings.as_deref(), Some(&b"settings"[..]), "{what}"),
                    Err(error) => assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}"),
                }
                if failed > 0 { corrupt += 1 } else { harmless += 1 }
            }
        }
    }
    assert!(refused > 10 && corrupt > 10, "{refused} refused, {corrupt} corrupt, {harmless} harmless");
}

/// Damage to a large value: the scan names the key, others are readable, and a new put repairs it.
#[test]
fn damaged_large_value_is_named_and_can_be_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for at in 0..5u8 {
        put(&store, &[at], &bytes(u64::from(at), 100_000));
    }
    store.compact().unwrap();
    drop(store);
    let mut paths = Vec::new();
    files(&dir.path().join("1/db/keyspaces"), &mut paths);
    let wanted = &bytes(3, 100_000)[..64];
    let mut hits = 0;
    for path in paths {
        let mut content = fs::read(&path).unwrap();
        if let Some(at) = content.windows(64).position(|part| part == wanted) {
            content[at + 5] ^= 1;
            fs::write(&path, content).unwrap();
            hits += 1;
        }
    }
    assert!(hits > 0, "no file has the value");
    // The journal still has the value as it was; without it the file counts.
    let store = open(dir.path());
    let error = store.get(&[3]).unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.mentions("\\x03"), "{error}");
    let verified = store.verify(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded, false, usize::MAX, None).unwrap();
    assert_eq!((verified.checked, verified.damaged), (5, vec![Bytes::from_static(&[3])]));
    assert_eq!(value(&store, &[4]), Some(bytes(4, 100_000)));
    assert_eq!(store.meta(&[3]).unwrap().unwrap().len, 100_000);
    write(&store, vec![Change::put(vec![3], "repaired")]).unwrap();
    assert_eq!(value(&store, &[3]), Some(b"repaired".to_vec()));
    assert_eq!(store.usage().unwrap().value_bytes, 400_008);
}
