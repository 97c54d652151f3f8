//! All volumes of a drive.

use std::path::Path;
use std::sync::Arc;

use skytether_common::{Key, Kind};
use skytether_store::fault::{Fault, Operation, Rule, When};
use skytether_store::{Expect, Op};
use skytether_volume::scrub::DamagedExtent;
use skytether_volume::{BlockDevice, Durability, Volume, Volumes, Zeros};

use crate::util::{Drive, MIB, bytes, content, name, run, small};

async fn open(drive: &Drive, dir: &Path) -> Arc<Volumes> {
    Volumes::open(Arc::clone(&drive.context.backing), dir, small()).await.unwrap()
}

/// With a volume `a` of 1 MiB, which is written.
async fn written(drive: &Drive, dir: &Path) -> (Arc<Volumes>, Arc<Volume>) {
    let volumes = open(drive, dir).await;
    let volume = volumes.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
    volume.write(0, bytes(1, MIB as usize), Durability::Cached).await.unwrap();
    (volumes, volume)
}

/// A clone has no reservations of its origin, and a new volume none of one that had its name.
#[test]
fn notes_go_into_no_snapshot_and_end_with_their_volume() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let (volumes, volume) = written(&drive, dir.path()).await;
        volume.keep_note("keys", Some("one".into())).await.unwrap();
        volumes.snapshot(&name("a"), &name("s")).await.unwrap();
        let clone = volumes.clone_snapshot(&name("a"), &name("s"), &name("b")).await.unwrap();
        assert_eq!((volume.note("keys").await.unwrap().unwrap(), clone.note("keys").await.unwrap()), ("one".into(), None));
        let snapshot = volumes.device("a@s").await.unwrap();
        assert!(!snapshot.keeps_notes() && snapshot.note("keys").await.unwrap_err().kind() == Kind::Unsupported);
        volumes.remove(&name("a")).await.unwrap();
        let again = volumes.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
        assert_eq!(again.note("keys").await.unwrap(), None);
    });
}

#[test]
fn volumes_are_made_grown_listed_and_removed() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let volumes = open(&drive, dir.path()).await;
        let volume = volumes.ensure(&"db=1MiB".parse().unwrap()).await.unwrap();
        volume.write(0, bytes(1, MIB as usize), Durability::Cached).await.unwrap();
        volumes.ensure(&"db-2=2MiB".parse().unwrap()).await.unwrap();
        volumes.ensure(&"d=4096".parse().unwrap()).await.unwrap();
        assert_eq!(volumes.ensure(&"db=512KiB".parse().unwrap()).await.unwrap_err().kind(), Kind::Invalid);
        let grown = volumes.ensure(&"db=3MiB".parse().unwrap()).await.unwrap();
        assert_eq!((grown.info().size, volume.info().size, grown.info().id), (3 * MIB, 3 * MIB, volume.info().id));
        grown.write(2 * MIB, bytes(2, 4096), Durability::Cached).await.unwrap();
        volumes.snapshot(&name("db"), &name("monday")).await.unwrap();
        grown.write(0, bytes(3, 4096), Durability::Cached).await.unwrap();
        let error = Volumes::open(Arc::clone(&drive.context.backing), dir.path(), small()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict);
        volumes.close().await.unwrap();
        drop((volumes, volume, grown));

        let drive = drive.restarted();
        let volumes = open(&drive, dir.path()).await;
        let listed = volumes.list().await.unwrap();
        let names: Vec<_> = listed.iter().map(|status| (status.name.as_str(), status.size, status.extents, status.snapshots.len())).collect();
        assert_eq!(names, [("d", 4096, 0, 0), ("db-2", 2 * MIB, 0, 0), ("db", 3 * MIB, 17, 1)]);
        let found = volumes.device("db").await.unwrap().read(0, MIB as u32).await.unwrap();
        assert!(found[..4096] == bytes(3, 4096) && found[4096..] == bytes(1, MIB as usize)[4096..]);
        let snapshot = volumes.device("db@monday").await.unwrap();
        assert!(snapshot.read(0, MIB as u32).await.unwrap() == bytes(1, MIB as usize));

        // A clone shares the data and changes by itself.
        let clone = volumes.clone_snapshot(&name("db"), &name("monday"), &name("copy")).await.unwrap();
        assert!(content(&*clone).await == content(&*snapshot).await);
        clone.write(0, bytes(9, 4096), Durability::Durable).await.unwrap();
        clone.drain().await.unwrap();
        assert!(snapshot.read(0, 4096).await.unwrap() == bytes(1, 4096)[..]);
        assert_eq!(volumes.clone_snapshot(&name("db"), &name("monday"), &name("copy")).await.unwrap_err().kind(), Kind::Conflict);

        volumes.remove_snapshot(&name("db"), &name("monday")).await.unwrap();
        assert_eq!(volumes.device("db@monday").await.map(drop).unwrap_err().kind(), Kind::NotFound);
        volumes.remove(&name("db")).await.unwrap();
        assert!(!dir.path().join("db").exists());
        assert!(drive.context.backing.list("~vol/db/", None, 10).await.unwrap().is_empty());
        assert_eq!(volumes.device("db").await.map(drop).unwrap_err().kind(), Kind::NotFound);
        // Made again, it is another one, and empty.
        let again = volumes.ensure(&"db=1MiB".parse().unwrap()).await.unwrap();
        assert!(content(&*again).await.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn interrupted_removal_is_finished_and_leaves_nothing() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let (volumes, volume) = written(&drive, dir.path()).await;
        volume.drain().await.unwrap();
        drop(volume);
        drive.store.add(Rule::new(Operation::Apply, When::Nth(2), Fault::Fail(Kind::Unavailable)));
        assert_eq!(volumes.remove(&name("a")).await.unwrap_err().kind(), Kind::Unavailable);
        drive.store.heal();
        drop(volumes);
        let volumes = open(&drive, dir.path()).await;
        assert!(volumes.all().is_empty() && drive.context.backing.list("~vol/a/", None, 10).await.unwrap().is_empty());
        let again = volumes.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
        assert!(content(&*again).await.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn released_volume_opens_with_another_directory() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let volumes = open(&drive, &dir.path().join("one")).await;
        let volume = volumes.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
        volume.write(0, bytes(1, 4096), Durability::Cached).await.unwrap();
        volume.release().await.unwrap();
        assert_eq!(volume.write(0, bytes(2, 4096), Durability::Cached).await.unwrap_err().kind(), Kind::Unavailable);
        let elsewhere = open(&drive.restarted(), &dir.path().join("two")).await;
        assert!(elsewhere.device("a").await.unwrap().read(0, 4096).await.unwrap() == bytes(1, 4096));
    });
}

#[test]
fn scrub_names_damaged_extents() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let (volumes, volume) = written(&drive, dir.path()).await;
        volume.drain().await.unwrap();
        let whole = volumes.scrub(&name("a"), None, false).await.unwrap();
        assert_eq!((whole.extents, whole.bytes, whole.damaged.len()), (16, MIB, 0));
        drive.store.add(Rule::new(Operation::Get, When::From(1), Fault::Corrupt).under("~vol/a/x/000000000003"));
        let damaged = volumes.scrub(&name("a"), Some(1 << 30), true).await.unwrap().damaged;
        let places = |damaged: &[DamagedExtent]| damaged.iter().map(|found| (found.of.clone(), found.extent, found.at)).collect::<Vec<_>>();
        assert_eq!(places(&damaged), [("a".to_owned(), 3, 3 << 16)]);
        // What a snapshot alone holds is verified, too.
        drive.store.heal();
        volumes.snapshot(&name("a"), &name("s")).await.unwrap();
        volume.zero(0, MIB, Zeros::Unmapped, Durability::Cached).await.unwrap();
        volume.drain().await.unwrap();
        drive.store.add(Rule::new(Operation::Get, When::From(1), Fault::Corrupt).under("~vol/a/s/s/x/000000000005"));
        let found = volumes.scrub(&name("a"), None, false).await.unwrap();
        assert_eq!((found.extents, places(&found.damaged)), (16, vec![("a@s".to_owned(), 5, 5 << 16)]));
        assert!(damaged[0].why.contains("checksum"), "{}", damaged[0].why);
    });
}

async fn put(drive: &Drive, key: &str, value: &'static [u8]) {
    let put = Op::Put { key: Key::new(key.to_owned()).unwrap(), value: value.into(), expect: Expect::Any };
    drive.context.backing.apply(vec![put]).await.unwrap();
}

fn numbers(volumes: &Volumes) -> Vec<(u32, String)> {
    volumes.numbered().into_iter().map(|(number, volume)| (number, volume.name().to_string())).collect()
}

#[test]
fn number_of_a_removed_volume_is_not_given_again() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let volumes = open(&drive, dir.path()).await;
        for spec in ["z=1MiB", "y=1MiB", "x=1MiB"] {
            volumes.ensure(&spec.parse().unwrap()).await.unwrap();
        }
        volumes.remove(&name("z")).await.unwrap();
        volumes.remove(&name("x")).await.unwrap();
        volumes.close().await.unwrap();
        drop(volumes);
        let volumes = open(&drive.restarted(), dir.path()).await;
        volumes.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
        volumes.snapshot(&name("a"), &name("s")).await.unwrap();
        volumes.clone_snapshot(&name("a"), &name("s"), &name("b")).await.unwrap();
        assert_eq!(numbers(&volumes), [(2, "y".to_owned()), (4, "a".to_owned()), (5, "b".to_owned())]);
        let listed: Vec<_> = volumes.list().await.unwrap().iter().map(|status| (status.number, status.snapshots.len())).collect();
        assert_eq!(listed, [(4, 1), (5, 0), (2, 0)]);
    });
}

#[test]
fn names_never_meet_the_lock_or_another_case() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let volumes = open(&drive, dir.path()).await;
        volumes.ensure(&"LOCK=1MiB".parse().unwrap()).await.unwrap();
        assert_eq!(volumes.ensure(&"lock=1MiB".parse().unwrap()).await.map(drop).unwrap_err().kind(), Kind::Conflict);
        // Without a directory for its journal, no volume is made.
        std::fs::write(dir.path().join("file"), b"").unwrap();
        assert!(volumes.ensure(&"file=1MiB".parse().unwrap()).await.is_err());
        volumes.close().await.unwrap();
        drop(volumes);
        let volumes = open(&drive.restarted(), dir.path()).await;
        assert_eq!(volumes.names(), [name("LOCK")]);
        assert!(volumes.failed().is_empty() && volumes.get(&name("LOCK")).is_some());
    });
}

#[test]
fn broken_volume_stops_no_other_and_can_be_removed() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let volumes = open(&drive, dir.path()).await;
        for spec in ["a=1MiB", "b=1MiB", "c=1MiB"] {
            volumes.ensure(&spec.parse().unwrap()).await.unwrap();
        }
        volumes.close().await.unwrap();
        drop(volumes);
        put(&drive, "~vol/a/header", b"{").await;
        std::fs::remove_dir_all(dir.path().join("b")).unwrap();
        let volumes = open(&drive.restarted(), dir.path()).await;
        assert_eq!(numbers(&volumes), [(3, "c".to_owned())]);
        assert_eq!(volumes.names(), ["a", "b", "c"].map(name));
        let kinds: Vec<_> = volumes.failed().into_iter().map(|(name, error)| (name.to_string(), error.kind())).collect();
        assert_eq!(kinds, [("a".to_owned(), Kind::Corrupt), ("b".to_owned(), Kind::Conflict)]);
        let listed: Vec<_> = volumes.list().await.unwrap().iter().map(|status| (status.size, status.error.is_some())).collect();
        assert_eq!(listed, [(0, true), (MIB, true), (MIB, false)]);
        assert_eq!(volumes.ensure(&"a=1MiB".parse().unwrap()).await.map(drop).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(volumes.device("b").await.map(drop).unwrap_err().kind(), Kind::Conflict);
        for broken in ["a", "b"] {
            volumes.remove(&name(broken)).await.unwrap();
            assert!(drive.context.backing.list(&format!("~vol/{broken}/"), None, 10).await.unwrap().is_empty());
        }
        volumes.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
        assert_eq!(numbers(&volumes), [(3, "c".to_owned()), (4, "a".to_owned())]);
    });
}

#[test]
fn opening_finishes_what_was_interrupted() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let (volumes, volume) = written(&drive, dir.path()).await;
        for snapshot in ["kept", "gone"] {
            volumes.snapshot(&name("a"), &name(snapshot)).await.unwrap();
        }
        drop(volume);
        // The header record is marked; the deletion of extents fails. A clone has its links, and no header record.
        drive.store.add(Rule::new(Operation::Apply, When::Nth(2), Fault::Fail(Kind::Unavailable)));
        assert!(volumes.remove_snapshot(&name("a"), &name("gone")).await.is_err());
        drive.store.heal();
        drive.store.add(Rule::new(Operation::Apply, When::Nth(3), Fault::Fail(Kind::Unavailable)));
        assert!(volumes.clone_snapshot(&name("a"), &name("kept"), &name("copy")).await.is_err());
        drive.store.heal();
        let keys = async |prefix: &str| drive.context.backing.list(prefix, None, 100).await.unwrap().len();
        assert_eq!((keys("~vol/a/s/gone/").await, keys("~vol/copy/").await), (17, 16));
        drop(volumes);
        let volumes = open(&drive.restarted(), dir.path()).await;
        assert_eq!((keys("~vol/a/s/gone/").await, keys("~vol/copy/").await, keys("~vol/a/s/kept/").await), (0, 0, 17));
        assert_eq!(volumes.names(), [name("a")]);
    });
}

#[test]
fn extent_beyond_the_end_is_ignored() {
    run(async {
        let (drive, dir) = (Drive::new(small()), tempfile::tempdir().unwrap());
        let volumes = open(&drive, dir.path()).await;
        volumes.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
        volumes.snapshot(&name("a"), &name("s")).await.unwrap();
        drop(volumes);
        put(&drive, "~vol/a/x/ffffffffffff", b"").await;
        put(&drive, "~vol/a/s/s/x/ffffffffffff", b"").await;
        let volumes = open(&drive.restarted(), dir.path()).await;
        for device in ["a", "a@s"] {
            assert!(content(&*volumes.device(device).await.unwrap()).await.iter().all(|byte| *byte == 0));
        }
    });
}
