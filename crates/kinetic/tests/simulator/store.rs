//! What a store on a Kinetic drive has beyond the contract: large values, large batches, other clients' keys, crashes.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use skytether_common::checksum::crc32c;
use skytether_common::{Key, Kind};
use skytether_device::Storage;
use skytether_kinetic::{Connection, Keys, KineticDrive, Put};
use skytether_store::{Expect, Op};

use super::{drive, with_simulator};

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn put(text: &str, value: impl Into<Bytes>, expect: Expect) -> Op {
    Op::Put { key: key(text), value: value.into(), expect }
}

fn delete(text: &str, expect: Expect) -> Op {
    Op::Delete { key: key(text), expect }
}

fn noise(bytes: usize) -> Bytes {
    (0..bytes).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect::<Vec<_>>().into()
}

async fn keys_with(on: &Connection, prefix: &str) -> Vec<Bytes> {
    let end = (Bytes::from(format!("{prefix}\u{7f}")), false);
    on.get_key_range(Keys { start: (Bytes::from(prefix.to_owned()), true), end, most: 200, reverse: false }).await.unwrap()
}

async fn names(drive: &KineticDrive) -> Vec<String> {
    drive.list("", None, usize::MAX).await.unwrap().into_iter().map(|entry| entry.key.as_str().to_owned()).collect()
}

#[test]
fn values_of_any_length_are_got_as_put() {
    with_simulator("simulator::store::values_of_any_length_are_got_as_put", |simulator| async move {
        let on = simulator.ready().await;
        let drive = drive().await;
        let longest = "k".repeat(Key::MAX);
        for (i, bytes) in [0, 1, 1 << 20, (1 << 20) + 1, 5 << 20].into_iter().enumerate() {
            let (name, value) = (if i == 4 { longest.clone() } else { format!("v{i}") }, noise(bytes));
            let version = drive.apply(vec![put(&name, value.clone(), Expect::Absent)]).await.unwrap()[0];
            assert!(drive.get(&key(&name)).await.unwrap() == value, "{bytes}");
            let entry = drive.stat(&key(&name)).await.unwrap().unwrap();
            assert_eq!((entry.version, entry.len, entry.crc32c), (version, bytes as u64, crc32c(&value)));
        }
        assert_eq!(keys_with(&on, "~skytether-stripe/").await.len(), 2 + 5);
        assert_eq!(names(&drive).await.len(), 5);
        let ranges = drive.get_ranges_unverified(&key("v3"), &[(1 << 20) - 1..(1 << 20) + 1, 0..1]).await.unwrap();
        assert_eq!(ranges[0].len(), 2);

        // Replaced and deleted values leave no stripes.
        drive.apply(vec![put("v3", "small", Expect::Any), delete(&longest, Expect::Any)]).await.unwrap();
        assert_eq!(keys_with(&on, "~skytether-stripe/").await, Vec::<Bytes>::new());

        // A batch with large values that fails leaves none either.
        let large = || noise(3 << 20);
        assert_eq!(drive.apply(vec![put("w", large(), Expect::Any), put("v0", large(), Expect::Absent)]).await.unwrap_err().kind(), Kind::Conflict);
        assert_eq!(keys_with(&on, "~skytether-stripe/").await, Vec::<Bytes>::new());
    });
}

#[test]
fn damaged_value_is_corrupt_and_named() {
    with_simulator("simulator::store::damaged_value_is_corrupt_and_named", |simulator| async move {
        let on = simulator.ready().await;
        let drive = drive().await;
        drive.apply(vec![put("small", "a value", Expect::Any), put("large", noise(2 << 20), Expect::Any)]).await.unwrap();
        let damage = async |of: Bytes, value: Bytes| {
            let version = on.get_version(of.clone()).await.unwrap().unwrap();
            on.put(Put::new(of, value, None, version)).await.unwrap();
        };
        damage(Bytes::from_static(b"small"), Bytes::from_static(b"a Value")).await;
        let stripes = keys_with(&on, "~skytether-stripe/").await;
        damage(stripes[1].clone(), noise(1 << 20).slice(1..)).await;
        for name in ["small", "large"] {
            let error = drive.get(&key(name)).await.unwrap_err();
            assert!(error.kind() == Kind::Corrupt && error.message().contains(&format!("key {name}")), "{error}");
        }
        on.delete(skytether_kinetic::Delete::new(stripes[1].clone(), None)).await.unwrap();
        let error = drive.get(&key("large")).await.unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.message().contains("lacks stripes"), "{error}");
    });
}

#[test]
fn keys_of_other_clients_are_left_alone() {
    with_simulator("simulator::store::keys_of_other_clients_are_left_alone", |simulator| async move {
        let on = simulator.ready().await;
        let drive = drive().await;
        for (name, version) in [("theirs", &b"1"[..]), ("theirs-too", b""), ("white space", b"1")] {
            on.put(Put::new(Bytes::from(name), Bytes::from_static(b"x"), None, Bytes::copy_from_slice(version))).await.unwrap();
        }
        drive.apply(vec![put("ours", "x", Expect::Any)]).await.unwrap();
        assert_eq!(names(&drive).await, ["ours"]);
        for name in ["theirs", "theirs-too"] {
            assert_eq!(drive.get(&key(name)).await.unwrap_err().kind(), Kind::NotFound);
            assert_eq!(drive.stat(&key(name)).await.unwrap(), None);
            for expect in [Expect::Any, Expect::Absent] {
                let error = drive.apply(vec![put(name, "ours", expect)]).await.unwrap_err();
                assert!(error.kind() == Kind::Conflict && error.message().contains("another client"), "{error}");
            }
            drive.apply(vec![delete(name, Expect::Any)]).await.unwrap();
            assert_eq!(on.get(Bytes::from(name), false).await.unwrap().value, "x");
        }
    });
}

/// The simulator takes 15 operations at once.
#[test]
fn batch_of_any_size_is_done_as_one() {
    with_simulator("simulator::store::batch_of_any_size_is_done_as_one", |simulator| async move {
        let on = simulator.ready().await;
        assert_eq!(on.batch_operations(), 15);
        let drive = drive().await;
        let term = drive.apply(vec![put("term", "1", Expect::Absent)]).await.unwrap()[0];
        let check = |version| Op::Check { key: key("term"), expect: Expect::Version(version) };
        let name = |i: usize| format!("k{i:02}");

        // Forty new keys, as an ingest writes them.
        let new = |expect, last| (0..40).map(|i| put(&name(i), name(i), expect)).chain([last]).collect::<Vec<_>>();
        assert_eq!(drive.apply(new(Expect::Absent, check(term + 1))).await.unwrap_err().kind(), Kind::Conflict);
        assert_eq!(names(&drive).await, ["term"]);
        let versions = drive.apply(new(Expect::Absent, check(term))).await.unwrap();
        assert!(versions.len() == 41 && versions[40] == 0 && versions.windows(2).take(39).all(|pair| pair[0] < pair[1]));
        let error = drive.apply(new(Expect::Absent, check(term))).await.unwrap_err();
        assert!(error.kind() == Kind::Conflict && error.message().contains("key k00 "), "{error}");

        // Forty changes of what is there: replaced, deleted, on conditions, and new.
        let mixed = |last| {
            let mut all: Vec<Op> = (0..20).map(|i| put(&name(i), noise(3000), Expect::Any)).collect();
            all.extend((20..32).map(|i| delete(&name(i), Expect::Any)));
            all.extend((32..36).map(|i| put(&name(i), "conditional", Expect::Version(versions[i]))));
            all.extend([delete(&name(36), Expect::Version(versions[36])), delete("absent", Expect::Absent), put("new", noise(2 << 20), Expect::Absent)]);
            all.push(Op::Check { key: key("absent-too"), expect: Expect::Absent });
            all.push(last);
            all
        };
        let before = drive.list("", None, 1000).await.unwrap();
        assert_eq!(drive.apply(mixed(check(term + 1))).await.unwrap_err().kind(), Kind::Conflict);
        assert_eq!(drive.list("", None, 1000).await.unwrap(), before);
        let done = drive.apply(mixed(check(term))).await.unwrap();
        assert!(!drive.is_unfinished());
        let mut expected: Vec<String> = (0..20).chain(32..36).chain(37..40).map(name).chain(["new".into(), "term".into()]).collect();
        expected.sort();
        assert_eq!(names(&drive).await, expected);
        for (i, version) in done.iter().enumerate().take(20) {
            assert!(drive.get(&key(&name(i))).await.unwrap() == noise(3000), "{i}");
            assert_eq!(drive.stat(&key(&name(i))).await.unwrap().unwrap().version, *version);
        }
        assert_eq!(drive.get(&key("k33")).await.unwrap(), "conditional");
        assert_eq!(drive.stat(&key("term")).await.unwrap().unwrap().version, term);
        assert_eq!(keys_with(&on, "~skytether-intent/").await, Vec::<Bytes>::new());
        assert_eq!(keys_with(&on, "absent").await, Vec::<Bytes>::new());

        // More conditions than the drive takes at once: refused by name, and nothing is done.
        let many = (0..20).map(|i| delete(&name(i), Expect::Version(done[i]))).collect::<Vec<_>>();
        let error = drive.apply(many).await.unwrap_err();
        assert!(error.kind() == Kind::Unsupported && error.message().contains("20 conditions"), "{error}");
        assert_eq!(names(&drive).await, expected);

        // Twenty unconditional deletes.
        drive.apply((0..20).map(|i| delete(&name(i), Expect::Any)).collect()).await.unwrap();
        assert_eq!(keys_with(&on, "~skytether-stripe/").await.len(), 2);
    });
}

/// A stamp, by hand: see `layout.rs`.
fn stamp(version: u64, value: &[u8], nonce: u64) -> Bytes {
    let mut to = BytesMut::new();
    to.put_slice(b"SKY1\0");
    to.put_u64(version);
    to.put_u64(value.len() as u64);
    to.put_u32(crc32c(value));
    to.put_u64(nonce);
    to.put_u32(0);
    to.freeze()
}

/// A writer that crashed after its commit, and one that crashed before.
#[test]
fn crashed_writers_batch_is_finished_or_forgotten() {
    with_simulator("simulator::store::crashed_writers_batch_is_finished_or_forgotten", |simulator| async move {
        let on = simulator.ready().await;
        let first = drive().await;
        first.apply(vec![put("a", "1", Expect::Any), put("b", "1", Expect::Any), put("large", noise(2 << 20), Expect::Any)]).await.unwrap();
        let raw = async |name: &'static str| on.get_version(Bytes::from_static(name.as_bytes())).await.unwrap().unwrap();
        let hex = |bytes: &Bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let old = raw("b").await;
        first.apply(vec![put("b", "2", Expect::Any)]).await.unwrap();
        // Two deletes: the version of the second was replaced after the commit.
        let list = format!(r#"[{{"key":"a","before":"{}","after":null}},{{"key":"b","before":"{}","after":null}}]"#, hex(&raw("a").await), hex(&old));
        let intent = Bytes::from(format!("~skytether-intent/{:032x}", 7));
        on.put(Put::new(intent, Bytes::from(list.clone()), Some(Bytes::new()), stamp(7, list.as_bytes(), 7))).await.unwrap();
        // A stripe whose key was never written.
        let orphan = Bytes::from(format!("~skytether-stripe/{:032x}/{:08}", 9, 0));
        let version = [b"SKYs", &9u64.to_be_bytes()[..], b"never"].concat();
        on.put(Put::new(orphan.clone(), noise(10), None, version.into())).await.unwrap();

        let second = drive().await;
        assert_eq!(second.info(), first.info());
        assert_eq!(names(&second).await, ["b", "large"]);
        assert_eq!(second.get(&key("b")).await.unwrap(), "2");
        assert_eq!(keys_with(&on, "~skytether-intent/").await, Vec::<Bytes>::new());
        assert_eq!(second.collect_garbage(Duration::from_secs(60)).await.unwrap(), 1);
        assert_eq!(keys_with(&on, "~skytether-stripe/").await.len(), 2);
        assert!(second.get(&key("large")).await.unwrap() == noise(2 << 20));
    });
}

/// The drive is away and comes back: what is stored stays, and a store finds it again by itself.
#[test]
fn drive_that_was_restarted_is_found_again() {
    with_simulator("simulator::store::drive_that_was_restarted_is_found_again", |simulator| async move {
        simulator.ready().await;
        let drive = drive().await;
        drive.apply(vec![put("a", "1", Expect::Any)]).await.unwrap();
        let simulator = simulator.restart();
        let on = simulator.ready().await;
        assert_eq!(drive.get(&key("a")).await.unwrap(), "1");
        drive.apply(vec![put("a", "2", Expect::Any)]).await.unwrap();

        // Another drive in its place, as its identity says.
        let version = on.get_version(Bytes::from_static(b"~skytether-drive")).await.unwrap().unwrap();
        let other = br#"{"format":1,"id":"00000000-0000-0000-0000-000000000001","name":"other"}"#;
        on.put(Put::new(Bytes::from_static(b"~skytether-drive"), Bytes::from_static(other), None, version)).await.unwrap();
        let simulator = simulator.restart();
        simulator.ready().await;
        let error = drive.get(&key("a")).await.unwrap_err();
        assert!(error.kind() == Kind::Unavailable && error.message().contains("another drive answers"), "{error}");
        assert_eq!(super::drive().await.info().name, "other");
    });
}
