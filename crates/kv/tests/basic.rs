//! Each operation, over both backends.

use std::ops::Bound::{Excluded, Included, Unbounded};
use std::time::Instant;

use bytes::Bytes;
use skytether_common::{Error, Kind};
use skytether_kv::{Change, Durability, Failed, KeyValues, MAX_KEY, MAX_LABEL, MAX_VALUE, Meta, Options, To, Why};

use crate::util::{bytes, open, put, quick, value, wait, write};

/// Runs a test over both backends.
fn both(test: impl Fn(&KeyValues)) {
    test(&KeyValues::in_memory());
    let dir = tempfile::tempdir().unwrap();
    test(&open(dir.path()));
}

fn kind(failed: Failed) -> Kind {
    Error::from(failed).kind()
}

#[test]
fn put_gives_what_was_put() {
    both(|store| {
        for (key, len) in [(&b""[..], 0), (b"k", 5), (b"\xff\xff", 16 << 10), (b"k\0", (16 << 10) + 1), (&[7; MAX_KEY], MAX_VALUE)] {
            let (version, tag) = (Bytes::from(bytes(1, 20)), Bytes::from(bytes(2, MAX_LABEL)));
            let content = Bytes::from(bytes(len as u64, len));
            let to = To::Put { version: version.clone(), tag: tag.clone(), algorithm: -2, value: content.clone() };
            write(store, vec![Change { key: Bytes::copy_from_slice(key), expect: None, to }]).unwrap();
            let meta = Meta { version, tag, algorithm: -2, len: len as u32 };
            let record = store.get(key).unwrap().unwrap();
            assert_eq!((&record.meta, &record.value), (&meta, &content));
            assert_eq!(store.meta(key).unwrap(), Some(meta));
        }
        assert_eq!(store.get(b"absent").unwrap(), None);
        assert_eq!(store.get(&[7; MAX_KEY + 1]).unwrap(), None);
        let usage = store.usage().unwrap();
        assert_eq!((usage.keys, usage.value_bytes), (5, 5 + (32 << 10) + 1 + MAX_VALUE as u64));
        assert!(usage.stored_bytes > usage.value_bytes);
    });
}

#[test]
fn too_long_parts_are_refused() {
    both(|store| {
        let label = Bytes::from(vec![0; MAX_LABEL + 1]);
        let put = |version: Bytes, tag: Bytes, len: usize| To::Put { version, tag, algorithm: 0, value: Bytes::from(vec![0; len]) };
        let cases = [
            Change::put(vec![0; MAX_KEY + 1], "v"),
            Change { key: "k".into(), expect: None, to: put(Bytes::new(), Bytes::new(), MAX_VALUE + 1) },
            Change { key: "k".into(), expect: None, to: put(label.clone(), Bytes::new(), 0) },
            Change { key: "k".into(), expect: None, to: put(Bytes::new(), label, 0) },
        ];
        for case in cases {
            let failed = write(store, vec![Change::put("a", "1"), case]).unwrap_err();
            assert_eq!(failed.index, 1);
            assert_eq!(kind(failed), Kind::Invalid);
        }
        assert_eq!(store.usage().unwrap().keys, 0);
    });
}

#[test]
fn version_other_than_expected_refuses_the_batch() {
    both(|store| {
        write(store, vec![Change::put("new", "1").expecting("").giving("v1")]).unwrap();
        let cases = [
            (Change::put("new", "2").expecting("").giving("v2"), Kind::Conflict),
            (Change::put("new", "2").expecting("v").giving("v2"), Kind::Conflict),
            (Change::put("absent", "2").expecting("v1"), Kind::Conflict),
            (Change::delete("new").expecting("v"), Kind::Conflict),
            (Change::delete("absent").expecting(""), Kind::NotFound),
        ];
        for (case, expected) in cases {
            let failed = write(store, vec![Change::put("other", "x"), case.clone(), Change::delete("new")]).unwrap_err();
            assert_eq!((failed.index, kind(failed)), (1, expected), "{case:?}");
        }
        assert_eq!((value(store, b"other"), value(store, b"new")), (None, Some(b"1".to_vec())));
        write(store, vec![Change::put("new", "2").expecting("v1").giving("v2"), Change::delete("absent")]).unwrap();
        write(store, vec![Change::delete("new").expecting("v2")]).unwrap();
        assert_eq!(store.usage().unwrap().keys, 0);
    });
}

/// Versions are those before the batch, and the last change of a key counts.
#[test]
fn key_twice_in_a_batch_is_compared_with_the_store() {
    both(|store| {
        let big = bytes(3, 100_000);
        let twice = vec![Change::put("k", big.clone()).expecting("").giving("a"), Change::put("k", "2").expecting("").giving("b")];
        write(store, twice).unwrap();
        assert_eq!(value(store, b"k"), Some(b"2".to_vec()));
        assert!(matches!(write(store, vec![Change::put("k", "3").expecting("a")]).unwrap_err().why, Why::VersionMismatch));
        write(store, vec![Change::delete("k").expecting("b"), Change::put("k", big.clone()).expecting("b")]).unwrap();
        assert_eq!(value(store, b"k"), Some(big));
        let usage = store.usage().unwrap();
        assert_eq!((usage.keys, usage.value_bytes), (1, 100_000));
    });
}

#[test]
fn neighbours_and_ranges_are_in_the_order_of_bytes() {
    both(|store| {
        let names: [&[u8]; 6] = [b"", b"\0", b"a", b"a\0", b"b", b"\xff"];
        for name in names.iter().rev() {
            put(store, name, name);
        }
        let large = bytes(1, 50_000);
        put(store, b"b", &large);
        let all: Vec<Bytes> = names.iter().map(|name| Bytes::copy_from_slice(name)).collect();
        let keys = |from, to, reverse, limit| store.keys(from, to, reverse, limit).unwrap();
        assert_eq!(keys(Unbounded, Unbounded, false, 100), all);
        assert_eq!(keys(Unbounded, Unbounded, true, 2), [all[5].clone(), all[4].clone()]);
        assert_eq!(keys(Included(b"a"), Excluded(b"b"), false, 9), all[2..4]);
        assert_eq!(keys(Excluded(b"a"), Included(b"b"), false, 9), all[3..5]);
        assert_eq!(keys(Included(b"a"), Included(b"a"), false, 9), all[2..3]);
        for nothing in [(Included(&b"b"[..]), Included(&b"a"[..])), (Excluded(b"a"), Included(b"a")), (Excluded(b"a"), Excluded(b"a"))] {
            assert!(keys(nothing.0, nothing.1, false, 9).is_empty() && keys(nothing.0, nothing.1, true, 9).is_empty());
            assert!(store.verify(nothing.0, nothing.1, false, 9, None).unwrap().complete);
        }
        let (key, record) = store.next(b"a\0").unwrap().unwrap();
        assert_eq!((&key[..], &record.value[..]), (&b"b"[..], &large[..]));
        let (key, _) = store.previous(b"b").unwrap().unwrap();
        assert_eq!(key, "a\0");
        assert_eq!(store.next(b"\xff").unwrap(), None);
        assert_eq!(store.previous(b"").unwrap(), None);
        assert_eq!(store.next(b"").unwrap().unwrap().0, "\0");
    });
}

#[test]
fn settings_are_no_keys_and_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    for settings in [&b"one"[..], b"two"] {
        let store = open(dir.path());
        wait(store.set_settings(Bytes::copy_from_slice(settings))).unwrap();
        assert_eq!(store.settings().unwrap().unwrap(), settings);
        assert!(store.keys(Unbounded, Unbounded, false, 9).unwrap().is_empty());
        assert_eq!(store.usage().unwrap().keys, 0);
    }
    let store = open(dir.path());
    assert_eq!(store.settings().unwrap().unwrap(), "two");
    assert_eq!(wait(store.set_settings(Bytes::from(vec![0; (1 << 20) + 1]))).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn capacity_used_up_refuses_puts_and_takes_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let store = KeyValues::open(dir.path(), &Options { capacity: Some(100), ..quick() }).unwrap();
    put(&store, b"a", &[0; 60]);
    let failed = write(&store, vec![Change::put("b", vec![0; 30]), Change::put("c", vec![0; 30])]).unwrap_err();
    assert_eq!(failed.index, 1);
    assert_eq!(kind(failed), Kind::Exhausted);
    write(&store, vec![Change::delete("a"), Change::put("b", vec![0; 100])]).unwrap();
    write(&store, vec![Change::delete("b")]).unwrap();
    put(&store, b"a", &[0; 100]);
}

#[test]
fn disk_below_its_reserve_refuses_puts_and_takes_deletes() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), b"a", b"1");
    let store = KeyValues::open(dir.path(), &Options { minimum_free: u64::MAX, ..quick() }).unwrap();
    assert_eq!(kind(write(&store, vec![Change::put("b", "2")]).unwrap_err()), Kind::Exhausted);
    write(&store, vec![Change::delete("a")]).unwrap();
    assert_eq!(store.usage().unwrap().keys, 0);
}

#[test]
fn second_opening_is_refused_while_the_first_lasts() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    assert_eq!(KeyValues::open(dir.path(), &quick()).unwrap_err().kind(), Kind::Conflict);
    drop(first);
    open(dir.path());
}

#[test]
fn directory_of_other_things_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("7")).unwrap();
    std::fs::write(dir.path().join("7/thesis.tex"), "x").unwrap();
    assert_eq!(KeyValues::open(dir.path(), &quick()).unwrap_err().kind(), Kind::Invalid);
    std::fs::rename(dir.path().join("7"), dir.path().join("mine")).unwrap();
    assert_eq!(KeyValues::open(dir.path(), &quick()).unwrap_err().kind(), Kind::Invalid);
    assert!(dir.path().join("mine/thesis.tex").exists());
}

#[test]
fn verify_reads_all_in_steps() {
    both(|store| {
        let batch = (0..600u32).map(|at| Change::put(at.to_be_bytes().to_vec(), bytes(1, if at % 100 == 0 { 20_000 } else { 10 })));
        write(store, batch.collect()).unwrap();
        let whole = store.verify(Unbounded, Unbounded, false, usize::MAX, None).unwrap();
        assert_eq!((whole.checked, whole.complete, whole.damaged.len()), (600, true, 0));
        assert_eq!(whole.last.unwrap(), 599u32.to_be_bytes()[..]);
        let part = store.verify(Included(&[0, 0, 0, 5]), Unbounded, false, 300, None).unwrap();
        assert_eq!((part.checked, part.complete, part.last.as_deref()), (300, false, Some(&304u32.to_be_bytes()[..])));
        let back = store.verify(Unbounded, Excluded(&part.last.unwrap()), true, usize::MAX, None).unwrap();
        assert_eq!((back.checked, back.complete, back.last.as_deref()), (304, true, Some(&[0; 4][..])));
        let late = store.verify(Unbounded, Unbounded, false, usize::MAX, Some(Instant::now())).unwrap();
        assert_eq!((late.checked, late.complete), (1, false));
    });
}

/// Values that were replaced go with compaction, and the disk has them back.
#[test]
fn compaction_gives_back_what_was_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for round in 0..4 {
        for at in 0..32u8 {
            put(&store, &[at], &bytes(round, 1 << 20));
        }
    }
    store.compact().unwrap();
    // Journals stay until the next one begins: only the tables and their values count.
    let usage = store.usage().unwrap();
    assert_eq!((usage.keys, usage.value_bytes), (32, 32 << 20));
    let tables = std::process::Command::new("du").args(["-s", "--block-size=1"]).arg(dir.path().join("1/db/keyspaces")).output().unwrap();
    let occupied: u64 = String::from_utf8(tables.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(occupied < 48 << 20, "{occupied} bytes for {usage:?}");
    for at in 0..32u8 {
        assert_eq!(value(&store, &[at]), Some(bytes(3, 1 << 20)));
    }
    drop(store);
    assert_eq!(value(&open(dir.path()), &[31]), Some(bytes(3, 1 << 20)));
}

#[test]
fn empty_batch_with_flush_makes_earlier_writes_durable() {
    let memory = skytether_kv::memory::Memory::with_power();
    let store = KeyValues::over(std::sync::Arc::new(memory.clone()), "a test".into(), &Options::default()).unwrap();
    put(&store, b"a", b"1");
    assert_eq!(memory.volatile(), 1);
    wait(store.write(Vec::new(), Durability::Flush)).unwrap();
    assert_eq!(memory.volatile(), 0);
    put(&store, b"a", b"2");
    wait(store.flush()).unwrap();
    assert_eq!(memory.volatile(), 0);
}
