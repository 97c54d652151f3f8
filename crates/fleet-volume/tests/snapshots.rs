//! Snapshots and clones over a fleet: shards that drives link, also while drives are lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use skytether_common::{Key, Kind};
use skytether_fleet_volume::layout::ExtentRecord;
use skytether_store::fault::{Fault, Operation, Rule, When};
use skytether_store::{Expect, Op, SliceStore};
use skytether_volume::power::PowerFiles;
use skytether_volume::{BlockDevice, Durability, Options, SnapshotDevice, Volume, Volumes, Zeros};

use crate::util::{Drive, KIB, MIB, bytes, content, differs, name, run, small};

/// Without a cache, so that reads come to the drives.
fn uncached() -> Options {
    Options { cache_bytes: 1, ..small() }
}

/// Volume `a` of 1 MiB, written and merged.
async fn written(fleet: &Drive, files: &PowerFiles) -> Arc<Volume> {
    fleet.create("a", MIB).await;
    let (volume, _) = fleet.open("a", files).await.unwrap();
    volume.write(0, bytes(1, MIB as usize), Durability::Cached).await.unwrap();
    volume.drain().await.unwrap();
    volume
}

async fn check(device: &dyn BlockDevice, seed: u64, what: &str) {
    assert_eq!(differs(&content(device).await, &bytes(seed, MIB as usize)), None, "{what}");
}

/// The shards that the drives have, and those that records name.
fn shards(fleet: &Drive) -> (BTreeSet<(usize, Key)>, BTreeSet<(usize, Key)>) {
    let drives = 0..fleet.store.0.len();
    let place = |id| fleet.catalog.drives().iter().position(|drive| drive.info().id == id).unwrap();
    let stored = drives.clone().flat_map(|at| fleet.store.keys(at, "~fext/").into_iter().map(move |key| (at, key))).collect();
    let mut named = BTreeSet::new();
    for at in drives {
        for key in fleet.store.keys(at, "~fvol/").into_iter().filter(|key| key.as_str().contains("/x/")) {
            let record = ExtentRecord::decode(key.as_str(), &fleet.store.0[at].inner().get(&key).unwrap()[8..]).unwrap();
            let shard = Key::new(format!("~fext/{}/{:016x}", key.as_str().strip_prefix("~fvol/").unwrap(), record.generation)).unwrap();
            named.extend(record.shards.iter().map(|of| (place(of.drive), shard.clone())));
        }
    }
    (stored, named)
}

/// What a snapshot has stays, whatever becomes of the volume; no bytes are copied, and each is removed on its own.
#[test]
fn snapshots_share_bytes_and_are_removed_on_their_own() {
    run(async {
        for (scheme, drives) in [("none", 2), ("replicas:2", 3), ("ec:2+1", 3), ("ec:2+1", 5)] {
            let (fleet, dir) = (Drive::of(scheme, drives, uncached()), tempfile::tempdir().unwrap());
            let volumes = Volumes::open(fleet.context.backing.clone(), dir.path(), uncached()).await.unwrap();
            let volume = volumes.ensure(&"a=1MiB".parse().unwrap()).await.unwrap();
            volume.write(0, bytes(1, MIB as usize), Durability::Cached).await.unwrap();
            volumes.snapshot(&name("a"), &name("s")).await.unwrap();
            assert_eq!(volumes.snapshot(&name("a"), &name("s")).await.unwrap_err().kind(), Kind::Conflict);
            for at in 0..drives {
                let (own, shared) = (fleet.store.keys(at, "~fext/a/x/"), fleet.store.keys(at, "~fext/a/s/s/x/"));
                assert!(own.len() == shared.len() && (scheme == "none" || !own.is_empty()), "{scheme}: {own:?} {shared:?}");
                for (own, shared) in own.iter().zip(&shared) {
                    let [own, shared] = [own, shared].map(|key| fleet.store.0[at].inner().get(key).unwrap());
                    assert_eq!(own.as_ptr(), shared.as_ptr(), "{scheme}: the bytes were copied");
                }
            }
            volume.write(0, bytes(2, MIB as usize), Durability::Cached).await.unwrap();
            volume.drain().await.unwrap();
            volumes.snapshot(&name("a"), &name("t")).await.unwrap();
            volume.zero(0, MIB, Zeros::Unmapped, Durability::Cached).await.unwrap();
            volume.drain().await.unwrap();
            let clone = volumes.clone_snapshot(&name("a"), &name("s"), &name("b")).await.unwrap();
            clone.write(0, bytes(3, 64 << 10), Durability::Cached).await.unwrap();
            clone.drain().await.unwrap();
            for (snapshot, seed) in [("a@s", 1), ("a@t", 2)] {
                check(&*volumes.device(snapshot).await.unwrap(), seed, &format!("{scheme}: {snapshot}")).await;
            }
            assert_eq!(fleet.fleet.scrub(true, None, &mut |_| ()).await.unwrap().damaged, [], "{scheme}");
            // The volume is gone with its snapshots; what was made of one stays.
            volumes.remove_snapshot(&name("a"), &name("s")).await.unwrap();
            check(&*volumes.device("a@t").await.unwrap(), 2, scheme).await;
            volumes.remove(&name("a")).await.unwrap();
            let now = content(&*clone).await;
            assert!(now[..64 << 10] == bytes(3, 64 << 10) && now[64 << 10..] == bytes(1, MIB as usize)[64 << 10..], "{scheme}");
            let (stored, named) = shards(&fleet);
            assert!(stored == named && stored.iter().all(|(_, key)| key.as_str().starts_with("~fext/b/x/")), "{scheme}");
            assert_eq!(fleet.fleet.collect().await.unwrap().deleted, 0, "{scheme}");
            volumes.close().await.unwrap();
        }
    });
}

/// Each drive is lost in turn while a snapshot and a clone are made; then it is back, and another one is lost.
#[test]
fn snapshots_are_whole_while_drives_are_lost() {
    run(async {
        for (scheme, drives) in [("ec:2+1", 3), ("ec:2+1", 4), ("replicas:2", 3)] {
            for at in 0..drives {
                let what = format!("{scheme} over {drives} without drive {at}");
                let (fleet, files) = (Drive::of(scheme, drives, uncached()), PowerFiles::new());
                let volume = written(&fleet, &files).await;
                volume.snapshot(&name("before")).await.unwrap();
                // It fails at its first link, or is known to be lost.
                fleet.store.lose(at);
                volume.snapshot(&name("s")).await.unwrap();
                volume.write(0, bytes(2, MIB as usize), Durability::Cached).await.unwrap();
                volume.drain().await.unwrap();
                let open = async |fleet: &Drive, of: &str| SnapshotDevice::open(&fleet.context, &name("a"), &name(of)).await.unwrap();
                for of in ["before", "s"] {
                    check(&*open(&fleet, of).await, 1, &format!("{what}: {of}")).await;
                }
                fleet.store.heal();
                fleet.catalog.rejoin(Duration::from_secs(10)).await.unwrap();
                let scrubbed = fleet.fleet.scrub(false, None, &mut |_| ()).await.unwrap();
                assert!(scrubbed.damaged.iter().all(|found| found.repaired), "{what}: {:?}", scrubbed.damaged);
                volume.stop().await;
                let fleet = fleet.restarted();
                fleet.store.lose((at + 1) % drives);
                for of in ["before", "s"] {
                    check(&*open(&fleet, of).await, 1, &format!("{what}, later: {of}")).await;
                }
                check(&*fleet.open("a", &files).await.unwrap().0, 2, &what).await;
            }
        }
    });
}

/// A shard that a drive lacks can't be linked: the extent is decoded and written under the new key, whole.
#[test]
fn extents_that_lack_a_shard_are_copied_whole() {
    run(async {
        let (fleet, files) = (Drive::of("ec:2+1", 3, uncached()), PowerFiles::new());
        let volume = written(&fleet, &files).await;
        for (at, extent) in [(0, 3), (1, 7)] {
            let shard = fleet.store.keys(at, &format!("~fext/a/x/{extent:012x}/")).remove(0);
            fleet.store.0[at].inner().apply(vec![Op::Delete { key: shard, expect: Expect::Any }]).unwrap();
        }
        volume.snapshot(&name("s")).await.unwrap();
        // Those of the volume alone.
        let damaged = fleet.fleet.scrub(true, None, &mut |_| ()).await.unwrap().damaged;
        let keys: Vec<&str> = damaged.iter().map(|found| found.key.as_str()).collect();
        assert_eq!(keys, ["~fvol/a/x/000000000003", "~fvol/a/x/000000000007"]);
        check(&*SnapshotDevice::open(&fleet.context, &name("a"), &name("s")).await.unwrap(), 1, "s").await;
        // More are missing than the code covers: there is no snapshot of what can't be read.
        let shard = fleet.store.keys(2, &format!("~fext/a/x/{:012x}/", 3)).remove(0);
        fleet.store.0[2].inner().apply(vec![Op::Delete { key: shard, expect: Expect::Any }]).unwrap();
        let error = volume.snapshot(&name("t")).await.unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.report().contains("drive-0"), "{}", error.report());
        let missing = SnapshotDevice::open(&fleet.context, &name("a"), &name("t")).await.map(drop).unwrap_err();
        assert_eq!(missing.kind(), Kind::NotFound);
    });
}

/// A snapshot ends at each change of each drive: it is there as a whole, or it is not there and can be made. Nothing is
/// left of it that no record names.
#[test]
fn snapshot_that_is_cut_off_is_whole_or_absent() {
    run(async {
        let (mut made, mut absent, mut left_over) = (0, 0, 0);
        for step in 1..24u64 {
            for fault in [Fault::Fail(Kind::Exhausted), Fault::FailAfter(Kind::Unavailable)] {
                let (fleet, files) = (Drive::of(["ec:2+1", "replicas:2"][step as usize % 2], 3, small()), PowerFiles::new());
                let volume = written(&fleet, &files).await;
                let rule = Rule::new(Operation::Apply, When::From(step.div_ceil(3)), fault);
                fleet.store.0[step as usize % 3].add(rule);
                let done = volume.snapshot(&name("s")).await;
                volume.stop().await;
                fleet.store.heal();
                let next = fleet.restarted();
                let what = format!("step {step}, {fault:?}");
                let (volume, _) = next.open("a", &files).await.unwrap();
                check(&*volume, 1, &what).await;
                match SnapshotDevice::open(&next.context, &name("a"), &name("s")).await {
                    Ok(device) => {
                        made += 1;
                        check(&*device, 1, &what).await;
                    }
                    Err(error) => {
                        absent += 1;
                        assert!(error.kind() == Kind::NotFound && done.is_err(), "{what}: {error}");
                        volume.zero(0, 512 * KIB, Zeros::Unmapped, Durability::Cached).await.unwrap();
                        let now = content(&*volume).await;
                        volume.snapshot(&name("s")).await.unwrap();
                        let device = SnapshotDevice::open(&next.context, &name("a"), &name("s")).await.unwrap();
                        assert_eq!(differs(&content(&*device).await, &now), None, "{what}: something of the interrupted one is left");
                    }
                }
                let collected = next.fleet.collect().await.unwrap();
                assert!(collected.is_complete, "{what}");
                left_over += collected.deleted;
                let (stored, named) = shards(&next);
                assert_eq!(stored, named, "{what}");
            }
        }
        assert!(made > 0 && absent > 0 && left_over > 0, "{made} made, {absent} absent, {left_over} left over");
    });
}
