//! The contract of [`SliceStore`], as checks that run against every implementation. A new implementation must pass
//! them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests, in the library so that other crates can run them")]
#![allow(clippy::single_range_in_vec_init, reason = "one range is a list of ranges here")]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use skytether_common::checksum::crc32c;
use skytether_common::{Key, Kind};

use crate::{Entry, Expect, MAX_VALUE, Op, SliceStore};

type Check = fn(&dyn SliceStore);

/// Checks every sentence of the trait's semantics. `make` gives a new, empty store without a limit each time.
///
/// # Panics
/// Where the store breaks the contract.
pub fn check(make: impl Fn() -> Box<dyn SliceStore>) {
    let checks: [(&str, Check); 14] = [
        ("what is put is got", what_is_put_is_got),
        ("ranges are parts of values", ranges_are_parts_of_values),
        ("links are values of their own", links_are_values_of_their_own),
        ("a failed expectation changes nothing", a_failed_expectation_changes_nothing),
        ("expectations that hold pass", expectations_that_hold_pass),
        ("conditions alone change nothing", conditions_alone_change_nothing),
        ("a key twice is invalid", a_key_twice_is_invalid),
        ("too large is invalid", too_large_is_invalid),
        ("versions never repeat", versions_never_repeat),
        ("deleting", deleting),
        ("values outlive their keys", values_outlive_their_keys),
        ("lists are ordered", lists_are_ordered),
        ("usage adds up", usage_adds_up),
        ("one of many writers wins", one_of_many_writers_wins),
    ];
    for (name, check) in checks {
        tracing::debug!(name, "checking");
        check(make().as_ref());
    }
    reads_see_whole_batches(make().as_ref());
}

fn key(text: &str) -> Key {
    Key::new(text).expect("a good key")
}

fn put(text: &str, value: &[u8]) -> Op {
    put_if(text, value, Expect::Any)
}

fn put_if(text: &str, value: &[u8], expect: Expect) -> Op {
    Op::Put { key: key(text), value: Bytes::copy_from_slice(value), expect }
}

fn delete_if(text: &str, expect: Expect) -> Op {
    Op::Delete { key: key(text), expect }
}

fn keys(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.key.as_str()).collect()
}

fn everything(store: &dyn SliceStore) -> Vec<(Entry, Bytes)> {
    store.list("", None, usize::MAX).unwrap().into_iter().map(|entry| (entry.clone(), store.get(&entry.key).unwrap())).collect()
}

fn check_if(text: &str, expect: Expect) -> Op {
    Op::Check { key: key(text), expect }
}

fn conditions_alone_change_nothing(store: &dyn SliceStore) {
    let version = store.apply(vec![put("term", b"1")]).unwrap()[0];
    let before = everything(store);
    let (holds, fails) = (check_if("term", Expect::Version(version)), check_if("term", Expect::Version(version + 1)));
    assert_eq!(store.apply(vec![holds.clone()]).unwrap(), [0]);
    assert_eq!(store.apply(vec![check_if("other", Expect::Absent), holds.clone(), check_if("third", Expect::Any)]).unwrap(), [0, 0, 0]);
    for expect in [Expect::Absent, Expect::Version(version + 1)] {
        let error = store.apply(vec![check_if("term", expect)]).unwrap_err();
        assert!(error.kind() == Kind::Conflict && error.to_string().contains("term"), "{error}");
    }
    assert_eq!(store.apply(vec![put("a", b"2"), fails]).unwrap_err().kind(), Kind::Conflict);
    assert_eq!(store.apply(vec![put("a", b"2"), check_if("b", Expect::Version(1))]).unwrap_err().kind(), Kind::Conflict);
    assert_eq!(store.apply(vec![holds.clone(), delete_if("term", Expect::Any)]).unwrap_err().kind(), Kind::Invalid, "a key twice");
    assert_eq!(everything(store), before);
    let usage = store.usage().unwrap();
    let versions = store.apply(vec![put("a", b"2"), holds]).unwrap();
    assert!(versions[0] > version && versions[1] == 0 && versions.len() == 2, "{versions:?}");
    assert_eq!(store.get(&key("term")).unwrap().as_ref(), b"1");
    let after = store.usage().unwrap();
    assert_eq!((after.keys, after.value_bytes), (usage.keys + 1, usage.value_bytes + 1));
}

fn what_is_put_is_got(store: &dyn SliceStore) {
    assert_eq!(store.apply(Vec::new()).unwrap(), Vec::<u64>::new());
    let large: Vec<u8> = (0..1_000_003u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let versions = store.apply(vec![put("empty", b""), put("large", &large), put("x~!\"/;", b"small")]).unwrap();
    assert_eq!(versions.len(), 3);
    for (name, value, version) in [("empty", &b""[..], versions[0]), ("large", &large, versions[1]), ("x~!\"/;", b"small", versions[2])] {
        assert_eq!(store.get(&key(name)).unwrap().as_ref(), value, "{name}");
        let entry = store.stat(&key(name)).unwrap().expect("an entry");
        assert_eq!(entry, Entry { key: key(name), version, len: value.len() as u64, crc32c: crc32c(value) });
    }
    let missing = store.get(&key("missing")).unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert_eq!(store.stat(&key("missing")).unwrap(), None);
    store.apply(vec![put("large", b"now small")]).unwrap();
    assert_eq!(store.get(&key("large")).unwrap().as_ref(), b"now small");
    let longest = "k".repeat(Key::MAX);
    store.apply(vec![put(&longest, b"1")]).unwrap();
    assert_eq!(store.get(&key(&longest)).unwrap().as_ref(), b"1");
}

fn links_are_values_of_their_own(store: &dyn SliceStore) {
    let link =
        |to: &str, from: &str, value: &[u8], expect: Expect| Op::Link { key: key(to), from: key(from), len: value.len() as u64, crc32c: crc32c(value), expect };
    store.apply(vec![put("a", b"one"), put("b", b"two")]).unwrap();
    let before = store.usage().unwrap();
    let versions = store.apply(vec![link("c", "a", b"one", Expect::Absent), put("d", b"four"), link("b2", "b", b"two", Expect::Any)]).unwrap();
    assert_eq!(store.stat(&key("c")).unwrap().unwrap(), Entry { key: key("c"), version: versions[0], len: 3, crc32c: crc32c(b"one") });
    assert_eq!(store.usage().unwrap().value_bytes, before.value_bytes + 10);
    // Whatever happens to the one, the other stays.
    store.apply(vec![delete_if("a", Expect::Any), put("b", b"another")]).unwrap();
    assert_eq!((store.get(&key("c")).unwrap().as_ref(), store.get(&key("b2")).unwrap().as_ref()), (&b"one"[..], &b"two"[..]));
    store.apply(vec![link("a", "c", b"one", Expect::Absent)]).unwrap();
    store.apply(vec![delete_if("c", Expect::Any)]).unwrap();
    assert_eq!(store.get(&key("a")).unwrap().as_ref(), b"one");
    let all = everything(store);
    let cases = [
        (vec![link("e", "missing", b"one", Expect::Any)], Kind::NotFound),
        (vec![link("e", "a", b"other", Expect::Any)], Kind::Conflict),
        (vec![link("b", "a", b"one", Expect::Absent)], Kind::Conflict),
        (vec![put("f", b"6"), link("e", "f", b"6", Expect::Any)], Kind::Invalid),
        (vec![put("f", b"6"), link("e", "missing", b"one", Expect::Any)], Kind::NotFound),
    ];
    for (batch, kind) in cases {
        let error = store.apply(batch.clone()).unwrap_err();
        assert_eq!(error.kind(), kind, "{batch:?}: {error}");
        assert_eq!(everything(store), all, "{batch:?}");
    }
}

fn ranges_are_parts_of_values(store: &dyn SliceStore) {
    let large: Vec<u8> = (0..300_007u32).map(|i| ((i * 31) >> 3) as u8).collect();
    store.apply(vec![put("empty", b""), put("large", &large)]).unwrap();
    let read = |name: &str, ranges: &[Range<u64>]| store.get_ranges_unverified(&key(name), ranges);
    let end = large.len() as u64;
    // In any order and number: empty, adjacent, one byte or far apart, overlapping, and up to the end.
    let cases: [&[Range<u64>]; 7] =
        [&[], &[0..end], &[0..0, end..end, 7..7], &[0..10, 10..20, 21..30, 200_000..200_100], &[end - 1..end, 0..1], &[5..100_000, 10..11, 5..6], &[1..end]];
    for ranges in cases {
        let parts = read("large", ranges).unwrap();
        let due: Vec<&[u8]> = ranges.iter().map(|range| &large[range.start as usize..range.end as usize]).collect();
        assert_eq!(parts, due, "{ranges:?}");
        for (range, part) in ranges.iter().zip(parts) {
            let in_memory = store.get_range_in_memory(&key("large"), range.clone());
            assert!(in_memory.is_none_or(|bytes| bytes == part), "{range:?}");
        }
    }
    let whole = read("large", &[0..end]).unwrap();
    let gives_memory = store.get_range_in_memory(&key("large"), 0..end).is_some_and(|bytes| bytes == whole[0]);
    assert_eq!(store.get_range_in_memory(&key("large"), end..end + 1), None);
    assert_eq!(store.get_range_in_memory(&key("absent"), 0..1), None);
    assert_eq!(read("empty", &[0..0]).unwrap(), [&b""[..]]);
    for (name, wrong) in [("large", end..end + 1), ("large", end + 1..end + 1), ("large", 0..u64::MAX), ("large", Range { start: 9, end: 8 }), ("empty", 0..1)]
    {
        let error = read(name, &[0..0, wrong.clone()]).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{wrong:?}: {error}");
        assert!(error.to_string().contains(&format!("key {name}")), "{error}");
    }
    let missing = read("missing", &[0..0]).unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
    assert!(missing.to_string().contains("missing"), "{missing}");
    let expected = |len: u64, crc32c: u32| store.get_expected(&key("large"), len, crc32c);
    assert_eq!(expected(end, crc32c(&large)).unwrap().unwrap(), large);
    assert_eq!(expected(end - 1, crc32c(&large)).unwrap(), None);
    assert_eq!(expected(end, !crc32c(&large)).unwrap(), None);
    let before = read("large", &[0..3, 9..12]).unwrap();
    store.apply(vec![put("large", b"now small")]).unwrap();
    assert_eq!(before.concat(), [&large[..3], &large[9..12]].concat());
    assert_eq!(read("large", &[4..9]).unwrap(), [&b"small"[..]]);
    assert_eq!(read("large", &[0..end]).unwrap_err().kind(), Kind::Invalid);
    // Never what was there before.
    assert_eq!(store.get_range_in_memory(&key("large"), 0..end), None);
    let small = store.get_range_in_memory(&key("large"), 4..9);
    assert!(small.as_ref().is_none_or(|bytes| bytes == "small") && (small.is_some() || !gives_memory), "{small:?}");
    store.apply(vec![delete_if("large", Expect::Any)]).unwrap();
    assert_eq!(read("large", &[0..1]).unwrap_err().kind(), Kind::NotFound);
}

fn a_failed_expectation_changes_nothing(store: &dyn SliceStore) {
    let old = store.apply(vec![put("a", b"1")]).unwrap()[0];
    let new = store.apply(vec![put("a", b"2")]).unwrap()[0];
    let before = (everything(store), store.usage().unwrap());
    let bad = [
        put_if("a", b"3", Expect::Absent),
        put_if("a", b"3", Expect::Version(old)),
        put_if("a", b"3", Expect::Version(new + 1)),
        put_if("a", b"3", Expect::Version(0)),
        put_if("b", b"3", Expect::Version(new)),
        put_if("b", b"3", Expect::Version(0)),
        delete_if("a", Expect::Absent),
        delete_if("a", Expect::Version(old)),
        delete_if("b", Expect::Version(new)),
    ];
    for op in bad {
        for first in [true, false] {
            let others = [put("c", b"4"), delete_if("d", Expect::Any)];
            let batch = if first { [vec![op.clone()], others.to_vec()] } else { [others.to_vec(), vec![op.clone()]] }.concat();
            let error = store.apply(batch).unwrap_err();
            assert_eq!(error.kind(), Kind::Conflict, "{op:?}: {error}");
            assert!(error.to_string().contains(&format!("key {} ", op.key())), "{op:?}: {error}");
        }
    }
    let after = (everything(store), store.usage().unwrap());
    assert_eq!((before.0, before.1.keys, before.1.value_bytes), (after.0, after.1.keys, after.1.value_bytes));
}

fn expectations_that_hold_pass(store: &dyn SliceStore) {
    let first = store.apply(vec![put_if("a", b"1", Expect::Absent)]).unwrap()[0];
    let versions = store.apply(vec![put_if("a", b"2", Expect::Version(first)), put_if("b", b"1", Expect::Absent), delete_if("c", Expect::Absent)]).unwrap();
    assert_eq!(versions[2], 0);
    store.apply(vec![delete_if("a", Expect::Version(versions[0])), put_if("b", b"2", Expect::Any)]).unwrap();
    store.apply(vec![put_if("a", b"3", Expect::Absent)]).unwrap();
    assert_eq!(store.get(&key("a")).unwrap().as_ref(), b"3");
    assert_eq!(store.get(&key("b")).unwrap().as_ref(), b"2");
}

fn a_key_twice_is_invalid(store: &dyn SliceStore) {
    for batch in [
        vec![put("a", b"1"), put("b", b"1"), put("a", b"2")],
        vec![put("a", b"1"), delete_if("a", Expect::Any)],
        vec![delete_if("a", Expect::Any), delete_if("a", Expect::Any)],
    ] {
        let error = store.apply(batch).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("key a "), "{error}");
    }
    assert_eq!(store.usage().unwrap().keys, 0);
}

fn too_large_is_invalid(store: &dyn SliceStore) {
    let zeros = Bytes::from(vec![0; MAX_VALUE + 1]);
    let error = store.apply(vec![put("a", b"1"), Op::Put { key: key("b"), value: zeros, expect: Expect::Any }]).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("key b "), "{error}");
    assert_eq!(store.usage().unwrap().keys, 0);
}

fn versions_never_repeat(store: &dyn SliceStore) {
    let mut last = 0;
    for round in 0..5u8 {
        let versions = store.apply(vec![put("a", &[round]), put("b", &[round]), delete_if("c", Expect::Any)]).unwrap();
        assert!(versions[0] > last && versions[1] > versions[0], "{versions:?} after {last}");
        assert_eq!(versions[2], 0);
        last = versions[1];
        assert_eq!(store.stat(&key("a")).unwrap().unwrap().version, versions[0]);
        store.apply(vec![delete_if("a", Expect::Any), delete_if("b", Expect::Any)]).unwrap();
    }
}

fn deleting(store: &dyn SliceStore) {
    store.apply(vec![put("a", b"1"), put("b", b"2")]).unwrap();
    assert_eq!(store.apply(vec![delete_if("a", Expect::Any), delete_if("nothing", Expect::Any)]).unwrap(), vec![0, 0]);
    assert_eq!(store.get(&key("a")).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(store.stat(&key("a")).unwrap(), None);
    assert_eq!(keys(&store.list("", None, 10).unwrap()), ["b"]);
    assert_eq!(store.usage().unwrap().keys, 1);
}

fn values_outlive_their_keys(store: &dyn SliceStore) {
    store.apply(vec![put("a", b"first"), put("b", b"other")]).unwrap();
    let (a, b) = (store.get(&key("a")).unwrap(), store.get(&key("b")).unwrap());
    store.apply(vec![put("a", b"SECOND"), delete_if("b", Expect::Any)]).unwrap();
    assert_eq!((a.as_ref(), b.as_ref()), (&b"first"[..], &b"other"[..]));
    assert_eq!(store.get(&key("a")).unwrap().as_ref(), b"SECOND");
}

fn lists_are_ordered(store: &dyn SliceStore) {
    let names = ["b/2", "a/x;00000002", "b/10", "a/x", "a/x;00000001", "a", "b", "~", "!", "B/1", "a/y"];
    store.apply(names.iter().map(|name| put(name, name.as_bytes())).collect()).unwrap();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    let all = store.list("", None, usize::MAX).unwrap();
    assert_eq!(keys(&all), sorted);
    for entry in &all {
        assert_eq!(store.stat(&entry.key).unwrap().as_ref(), Some(entry));
    }
    assert_eq!(keys(&store.list("a/", None, 100).unwrap()), ["a/x", "a/x;00000001", "a/x;00000002", "a/y"]);
    assert_eq!(keys(&store.list("a/x;", Some(&key("a/x;00000001")), 100).unwrap()), ["a/x;00000002"]);
    assert_eq!(keys(&store.list("a/", Some(&key("a/x")), 2).unwrap()), ["a/x;00000001", "a/x;00000002"]);
    // `after` need not exist, may lie before the prefix, and behind it leaves nothing.
    assert_eq!(keys(&store.list("a/", Some(&key("a/x;00000001x")), 1).unwrap()), ["a/x;00000002"]);
    assert_eq!(keys(&store.list("b/", Some(&key("a")), 100).unwrap()), ["b/10", "b/2"]);
    assert_eq!(keys(&store.list("a/", Some(&key("b")), 100).unwrap()), Vec::<&str>::new());
    assert_eq!(keys(&store.list("a/", None, 0).unwrap()), Vec::<&str>::new());
    assert_eq!(keys(&store.list("zz", None, 100).unwrap()), Vec::<&str>::new());
    let mut paged = Vec::new();
    let mut after = None;
    loop {
        let page = store.list("", after.as_ref(), 3).unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        paged.extend(page);
    }
    assert_eq!(paged, all);
}

fn usage_adds_up(store: &dyn SliceStore) {
    let usage = || store.usage().unwrap();
    assert_eq!((usage().keys, usage().value_bytes), (0, 0));
    store.apply(vec![put("a", &[1; 1000]), put("b", &[2; 500]), put("c", b"")]).unwrap();
    assert_eq!((usage().keys, usage().value_bytes), (3, 1500));
    assert!(usage().stored_bytes >= 1500);
    store.apply(vec![put("a", &[1; 10]), delete_if("b", Expect::Any)]).unwrap();
    assert_eq!((usage().keys, usage().value_bytes), (2, 10));
}

fn one_of_many_writers_wins(store: &dyn SliceStore) {
    let version = store.apply(vec![put("root", b"old")]).unwrap()[0];
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u8)
            .map(|i| scope.spawn(move || store.apply(vec![put(&format!("side/{i}"), &[i; 1000]), put_if("root", &[i], Expect::Version(version))])))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let winners: Vec<usize> = (0..8).filter(|i| results[*i].is_ok()).collect();
    assert_eq!(winners.len(), 1, "{results:?}");
    assert!(results.iter().filter_map(|r| r.as_ref().err()).all(|e| e.kind() == Kind::Conflict), "{results:?}");
    let i = winners[0];
    assert_eq!(store.get(&key("root")).unwrap().as_ref(), [i as u8]);
    assert_eq!(keys(&store.list("side/", None, 100).unwrap()), [format!("side/{i}")]);
}

/// A batch writes the same number under all keys; a reader's one listing must show one number only, and every value
/// must be one that was put.
fn reads_see_whole_batches(store: &dyn SliceStore) {
    let names: Vec<String> = (0..6).map(|i| format!("k{i}")).collect();
    let value = |round: u32| round.to_le_bytes().repeat(1 + round as usize % 50);
    let write = |round: u32| store.apply(names.iter().map(|name| put(name, &value(round))).collect()).unwrap();
    write(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..40 {
                write(round);
            }
            done.store(true, Ordering::Release);
        });
        loop {
            let last = done.load(Ordering::Acquire);
            let listed = store.list("k", None, 100).unwrap();
            assert_eq!(listed.len(), names.len());
            assert!(listed.iter().all(|entry| entry.crc32c == listed[0].crc32c), "{listed:?}");
            for name in &names {
                let got = store.get(&key(name)).unwrap();
                let round = u32::from_le_bytes(got[..4].try_into().expect("four bytes"));
                assert_eq!(got.as_ref(), value(round), "{name}");
                let parts = store.get_ranges_unverified(&key(name), &[0..4, 2..4, 0..4]).unwrap();
                assert!(parts[0] == parts[2] && parts[0][2..] == parts[1][..], "{parts:?}");
            }
            if last {
                break;
            }
        }
    });
    assert_eq!(store.get(&key("k5")).unwrap().as_ref(), value(39));
}
