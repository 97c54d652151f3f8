//! Erasures, also those that a crash interrupts.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use skytether_common::Kind;
use skytether_kv::{Change, Durability, KeyValues, Options};

use crate::util::{bytes, open, put, quick, value, wait};

fn numbers(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.parse::<u64>().is_ok());
    names.sort();
    names
}

#[test]
fn erasure_removes_keys_settings_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for (round, secure) in [(1, false), (2, true), (3, false)] {
        put(&store, b"k", &bytes(round, 100_000));
        wait(store.set_settings(Bytes::from_static(b"pin"))).unwrap();
        wait(store.erase(secure)).unwrap();
        assert_eq!((value(&store, b"k"), store.settings().unwrap()), (None, None));
        assert_eq!((store.usage().unwrap().keys, store.usage().unwrap().value_bytes), (0, 0));
        assert_eq!(numbers(dir.path()), [(round + 1).to_string()]);
    }
    put(&store, b"after", b"1");
    drop(store);
    assert_eq!(value(&open(dir.path()), b"after"), Some(b"1".to_vec()));
}

/// A crash before the switch: all is there, and the new content goes. Nothing of the old content is overwritten.
#[test]
fn erasure_cut_off_before_its_switch_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), b"k", b"1");
    fs::create_dir_all(dir.path().join("2/db")).unwrap();
    fs::write(dir.path().join("2/db/0.jnl"), "half").unwrap();
    fs::write(dir.path().join("1/OVERWRITE"), "").unwrap();
    fs::write(dir.path().join("CURRENT.new"), "skytether").unwrap();
    let store = open(dir.path());
    assert_eq!(value(&store, b"k"), Some(b"1".to_vec()));
    assert_eq!(numbers(dir.path()), ["1"]);
    assert!(!dir.path().join("1/OVERWRITE").exists() && !dir.path().join("CURRENT.new").exists());
}

/// A crash after the switch: the next opening overwrites the files and removes them. A hard link shows their bytes.
#[test]
fn erasure_cut_off_after_its_switch_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, b"k", &bytes(9, 10_000));
    drop(store);
    let kept = dir.path().join("1/db/0.jnl");
    let link = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
    fs::hard_link(&kept, link.path().join("journal")).unwrap();
    let secret = bytes(9, 10_000);
    let holds_secret = || fs::read(link.path().join("journal")).unwrap().windows(100).any(|part| part == &secret[..100]);
    assert!(holds_secret());
    // What `erase` has done up to the switch: made in another place, and moved here.
    let other = tempfile::tempdir().unwrap();
    drop(open(other.path()));
    fs::rename(other.path().join("1"), dir.path().join("2")).unwrap();
    fs::write(dir.path().join("1/OVERWRITE"), "").unwrap();
    fs::write(dir.path().join("CURRENT"), "skytether-kv 1\n2\n").unwrap();
    let store = open(dir.path());
    assert_eq!((value(&store, b"k"), numbers(dir.path())), (None, vec!["2".to_owned()]));
    assert!(!holds_secret(), "the old file was not overwritten");
}

#[test]
fn secure_erasure_overwrites_the_old_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, b"k", &bytes(9, 10_000));
    let link = tempfile::tempdir().unwrap();
    fs::hard_link(dir.path().join("1/db/0.jnl"), link.path().join("journal")).unwrap();
    wait(store.erase(true)).unwrap();
    let left = fs::read(link.path().join("journal")).unwrap();
    assert!(!left.is_empty() && left.iter().all(|byte| *byte == 0));
}

/// A crash while the store is made for the first time.
#[test]
fn first_opening_cut_off_is_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    fs::remove_file(dir.path().join("CURRENT")).unwrap();
    put(&open(dir.path()), b"k", b"1");
    assert!(dir.path().join("CURRENT").exists());
    fs::remove_file(dir.path().join("CURRENT")).unwrap();
    assert_eq!(value(&open(dir.path()), b"k"), Some(b"1".to_vec()), "a lost CURRENT is found again");
    fs::remove_file(dir.path().join("CURRENT")).unwrap();
    fs::remove_file(dir.path().join("1/ready")).unwrap();
    let error = KeyValues::open(dir.path(), &quick()).err();
    assert!(error.is_none(), "a content that is not complete is made again: {error:?}");
}

#[test]
fn damaged_current_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    for (text, kind) in [
        ("", Kind::Corrupt),
        ("skytether-kv 1\n", Kind::Corrupt),
        ("skytether-kv 1\n2\n", Kind::Corrupt),
        ("skytether-kv 1\n1", Kind::Corrupt),
        ("skytether-kv 1\n01\n", Kind::Corrupt),
        ("skytether-kv 2\n1\n", Kind::Unsupported),
    ] {
        fs::write(dir.path().join("CURRENT"), text).unwrap();
        assert_eq!(KeyValues::open(dir.path(), &quick()).unwrap_err().kind(), kind, "{text:?}");
    }
    fs::write(dir.path().join("CURRENT"), "skytether-kv 1\n1\n").unwrap();
    open(dir.path());
}

/// The conformance suite erases before each of its classes.
#[test]
fn erasures_in_turn_leave_a_store_that_works() {
    let dir = tempfile::tempdir().unwrap();
    let store = KeyValues::open(dir.path(), &Options::default()).unwrap();
    for round in 0..20u8 {
        wait(store.write(vec![Change::put(vec![round], "v")], Durability::Through)).unwrap();
        wait(store.erase(false)).unwrap();
    }
    assert_eq!(store.usage().unwrap().keys, 0);
    assert_eq!(numbers(dir.path()), ["21"]);
}
