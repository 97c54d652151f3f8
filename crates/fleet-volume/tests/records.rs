//! Records of volumes on their home drives: commit, crashes between two homes, drives that were away.

use std::sync::atomic::Ordering;
use std::time::Duration;

use skytether_common::{Key, Kind};
use skytether_store::fault::{Fault, Operation, Rule, When};
use skytether_store::{Expect, Op, SliceStore};

use crate::util::{Drive, run, small};

fn key(text: &str) -> Key {
    Key::new(format!("~fvol/{text}")).unwrap()
}

fn put(name: &str, value: &'static str, expect: Expect) -> Op {
    Op::Put { key: key(name), value: value.into(), expect }
}

/// What each drive has under a key.
fn copies(fleet: &Drive, name: &str) -> Vec<Option<Vec<u8>>> {
    fleet.store.0.iter().map(|store| store.inner().get(&key(name)).ok().map(|bytes| bytes[8..].to_vec())).collect()
}

fn with(fleet: &Drive, name: &str, value: &str) -> usize {
    copies(fleet, name).iter().flatten().filter(|copy| *copy == value.as_bytes()).count()
}

#[test]
fn records_lie_on_home_drives_and_are_compared() {
    run(async {
        let fleet = Drive::of("ec:2+1", 4, small());
        let first = fleet.catalog.commit_records(vec![put("a/header", "one", Expect::Absent), put("a/x", "x", Expect::Any)]).await.unwrap();
        assert_eq!((with(&fleet, "a/header", "one"), with(&fleet, "a/x", "x")), (2, 2));
        let version = Expect::Version(first[0].change);
        let second = fleet.catalog.commit_records(vec![put("a/header", "two", version), Op::Delete { key: key("a/x"), expect: Expect::Any }]).await.unwrap();
        assert_eq!(second[1].before.as_ref().unwrap().body, "x");
        assert_eq!((with(&fleet, "a/header", "two"), with(&fleet, "a/x", "x")), (2, 0));
        // Who knows the first version only changes nothing, on no drive.
        let error = fleet.catalog.commit_records(vec![Op::Check { key: key("a/header"), expect: version }, put("a/x", "y", Expect::Any)]).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict);
        assert_eq!(copies(&fleet, "a/x").iter().flatten().count(), 0);
        assert_eq!(fleet.catalog.commit_records(vec![put("a/header", "three", Expect::Absent)]).await.unwrap_err().kind(), Kind::Conflict);
        assert_eq!(fleet.catalog.read_record(&key("a/header")).await.unwrap().unwrap().body, "two");
    });
}

/// The host ends after the deciding home has a change: the next host brings it to the others.
#[test]
fn crash_between_two_homes_is_settled_by_the_next_host() {
    run(async {
        let mut interrupted = 0;
        for at in 0..3 {
            let fleet = Drive::of("ec:2+1", 3, small());
            fleet.catalog.commit_records(vec![put("a/header", "old", Expect::Any), put("a/x", "old", Expect::Any)]).await.unwrap();
            fleet.store.0[at].add(Rule::new(Operation::Apply, When::From(1), Fault::Fail(Kind::Exhausted)).under("~fvol/"));
            let done = fleet.catalog.commit_records(vec![put("a/header", "new", Expect::Any), Op::Delete { key: key("a/x"), expect: Expect::Any }]).await;
            fleet.store.heal();
            interrupted += usize::from(with(&fleet, "a/header", "new") == 1);
            let next = fleet.restarted();
            let value = if with(&fleet, "a/header", "new") > 0 { "new" } else { "old" };
            assert!(done.is_err() || value == "new");
            assert_eq!(with(&next, "a/header", value), 2, "drive {at}: {:?}", copies(&next, "a/header"));
            assert!(matches!(copies(&next, "a/x").iter().flatten().count(), 0 | 2), "drive {at}");
        }
        assert_eq!(interrupted, 1);
    });
}

/// The answer of the deciding home is lost, and the next home refuses: no error says that nothing was changed.
#[test]
fn outcome_is_unknown_after_a_lost_answer() {
    run(async {
        let mut unknown = 0;
        for at in 0..3 {
            let fleet = Drive::of("ec:2+1", 3, small());
            fleet.catalog.commit_records(vec![put("a/header", "old", Expect::Any)]).await.unwrap();
            for (n, store) in fleet.store.0.iter().enumerate() {
                let fault = if n == at { Fault::FailAfter(Kind::Unavailable) } else { Fault::Fail(Kind::Exhausted) };
                store.add(Rule::new(Operation::Apply, When::From(1), fault).under("~fvol/"));
            }
            let error = fleet.catalog.commit_records(vec![put("a/header", "new", Expect::Any)]).await.unwrap_err();
            let made = with(&fleet, "a/header", "new");
            assert_eq!(error.kind(), if made > 0 { Kind::Unavailable } else { Kind::Exhausted }, "drive {at}: {error}");
            unknown += made;
        }
        assert_eq!(unknown, 1);
    });
}

/// A batch that its drive carries out after the answer was given up changes nothing once a later one was made.
#[test]
fn batches_that_come_late_undo_nothing() {
    run(async {
        for first in [Some("one"), None] {
            let fleet = Drive::of("none", 2, small());
            if let Some(first) = first {
                fleet.catalog.commit_records(vec![put("a/header", first, Expect::Any)]).await.unwrap();
            }
            fleet.ways.swallows.store(true, Ordering::SeqCst);
            let error = fleet.catalog.commit_records(vec![put("a/header", "late", Expect::Any)]).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Unavailable);
            fleet.ways.swallows.store(false, Ordering::SeqCst);
            fleet.catalog.commit_records(vec![put("a/header", "three", Expect::Any)]).await.unwrap();
            let late: Vec<_> = std::mem::take(&mut *fleet.ways.late.lock());
            assert_eq!(late.len(), 1);
            for (at, batch) in late {
                assert_eq!(fleet.store.0[at].inner().apply(batch).unwrap_err().kind(), Kind::Conflict);
            }
            assert_eq!(fleet.catalog.read_record(&key("a/header")).await.unwrap().unwrap().body, "three");
        }
    });
}

/// What a drive has that was away does not count: it gets what changed, and loses what was deleted.
#[test]
fn drive_that_was_away_gets_what_it_missed() {
    run(async {
        for at in 0..3 {
            let fleet = Drive::of("ec:2+1", 3, small());
            fleet.catalog.commit_records(vec![put("a/header", "old", Expect::Any), put("a/x", "old", Expect::Any)]).await.unwrap();
            let homes = copies(&fleet, "a/header");
            fleet.store.lose(at);
            for (name, value) in [("a/header", "new"), ("a/y", "new")] {
                fleet.catalog.commit_records(vec![put(name, value, Expect::Any)]).await.unwrap();
            }
            fleet.catalog.commit_records(vec![Op::Delete { key: key("a/x"), expect: Expect::Any }]).await.unwrap();
            fleet.store.heal();
            fleet.catalog.rejoin(Duration::from_secs(10)).await.unwrap();
            for (name, count) in [("a/header", 2), ("a/y", 2), ("a/x", 0)] {
                assert_eq!(copies(&fleet, name).iter().flatten().count(), count, "{name} without drive {at}");
                assert_eq!(with(&fleet, name, "new"), count, "{name} without drive {at}");
            }
            // The other home is lost now.
            let other = (0..3).find(|other| *other != at && homes[*other].is_some()).unwrap();
            fleet.store.lose(other);
            assert_eq!(fleet.catalog.read_record(&key("a/header")).await.unwrap().unwrap().body, "new", "without drive {at}");
            assert_eq!(fleet.catalog.read_record(&key("a/x")).await.unwrap(), None, "without drive {at}");
        }
    });
}

/// A drive has records of groups that it is no home of, as a resize leaves them. They may fill its pages, and hide no
/// other.
#[test]
fn listing_is_whole_next_to_leftover_records() {
    run(async {
        let fleet = Drive::of("none", 2, small());
        let mut expected = Vec::new();
        for group in 0..40 {
            let name = format!("g{:04}/header", group * 50);
            fleet.catalog.commit_records(vec![put(&name, "kept", Expect::Any)]).await.unwrap();
            expected.push(key(&name));
        }
        let mut leftover = [0, 0];
        for group in 0..2000 {
            let left = key(&format!("g{group:04}/left"));
            let home = fleet.catalog.homes_of_record(&left).unwrap()[0];
            // Drive 0 has more than pages of the first half, and drive 1 of the second.
            let at = 1 - home;
            if (group < 1200) == (at == 0) {
                fleet.store.0[at].inner().apply(vec![Op::Put { key: left, value: "12345678old".into(), expect: Expect::Any }]).unwrap();
                leftover[at] += 1;
            }
        }
        assert!(leftover.iter().all(|left| *left > 300), "{leftover:?}");
        for limit in [1, 3, 7, 512] {
            let (mut found, mut after) = (Vec::new(), None::<Key>);
            loop {
                let page = fleet.catalog.list_records("~fvol/", after.as_ref(), limit).await.unwrap();
                let full = page.len() == limit;
                found.extend(page.into_iter().map(|entry| entry.key));
                after = found.last().cloned();
                if !full {
                    break;
                }
            }
            assert_eq!(found, expected, "{limit} at a time");
        }
    });
}
