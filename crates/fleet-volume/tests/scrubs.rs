//! Damage: named, decoded around, and repaired.

use std::sync::Arc;

use skytether_common::{Key, Kind};
use skytether_fleet_volume::layout::ExtentRecord;
use skytether_store::{Expect, Op, SliceStore};
use skytether_volume::power::PowerFiles;
use skytether_volume::{BlockDevice, Durability, Options, Volume, Volumes};

use crate::util::{Drive, MIB, bytes, content, name, run, small};

/// Volume `a` of 1 MiB, written and merged, without a cache.
async fn written(scheme: &'static str, drives: usize) -> (Drive, Arc<Volume>) {
    let (fleet, files) = (Drive::of(scheme, drives, Options { cache_bytes: 1, ..small() }), PowerFiles::new());
    fleet.create("a", MIB).await;
    let (volume, _) = fleet.open("a", &files).await.unwrap();
    volume.write(0, bytes(1, MIB as usize), Durability::Cached).await.unwrap();
    volume.drain().await.unwrap();
    (fleet, volume)
}

/// Puts other bytes of the same length under a key of a drive.
fn rot(fleet: &Drive, at: usize, key: &Key) {
    let store = fleet.store.0[at].inner();
    let mut bytes = store.get(key).unwrap().to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    store.apply(vec![Op::Put { key: key.clone(), value: bytes.into(), expect: Expect::Any }]).unwrap();
}

/// The keys of the data shards that a drive has, in the order of the extents.
fn data_shards(fleet: &Drive, at: usize) -> Vec<Key> {
    let id = fleet.catalog.drives()[at].info().id;
    let mut found = Vec::new();
    for home in 0..fleet.store.0.len() {
        for key in fleet.store.keys(home, "~fvol/a/x/") {
            let record = ExtentRecord::decode(key.as_str(), &fleet.store.0[home].inner().get(&key).unwrap()[8..]).unwrap();
            if record.shards[..record.data()].iter().any(|shard| shard.drive == id) {
                found.extend(fleet.store.keys(at, &format!("~fext/{}/", &key.as_str()[6..])));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn delete(fleet: &Drive, at: usize, key: &Key) {
    fleet.store.0[at].inner().apply(vec![Op::Delete { key: key.clone(), expect: Expect::Any }]).unwrap();
}

#[test]
fn damaged_shards_are_decoded_named_and_repaired() {
    run(async {
        for (scheme, drives) in [("ec:2+1", 3), ("replicas:2", 2), ("ec:2+2", 5)] {
            let (fleet, volume) = written(scheme, drives).await;
            let (other, missing) = (data_shards(&fleet, 0)[0].clone(), data_shards(&fleet, 1).last().unwrap().clone());
            rot(&fleet, 0, &other);
            delete(&fleet, 1, &missing);
            assert!(content(&*volume).await == bytes(1, MIB as usize), "{scheme}");
            assert!(fleet.fleet.degraded_reads() > 0, "{scheme}");
            // A scrub that changes nothing names both, again and again.
            for _ in 0..2 {
                let found = fleet.fleet.scrub(true, None, &mut |_| ()).await.unwrap();
                assert_eq!(found.volumes, 1);
                let mut texts: Vec<String> = found.damaged.iter().map(|found| format!("{} {}", found.faults[0].drive, found.faults[0].what)).collect();
                texts.sort();
                assert!(texts.len() == 2 && texts[0].contains("drive-0 has other bytes") && texts[1].contains("drive-1 lacks shard"), "{scheme}: {texts:?}");
                assert!(found.damaged.iter().all(|found| !found.repaired));
            }
            let found = fleet.fleet.scrub(false, None, &mut |_| ()).await.unwrap();
            assert!(found.damaged.len() == 2 && found.damaged.iter().all(|found| found.repaired), "{scheme}: {:?}", found.damaged);
            assert_eq!(fleet.fleet.scrub(false, None, &mut |_| ()).await.unwrap().damaged, []);
            assert!(content(&*volume).await == bytes(1, MIB as usize), "{scheme}");
            // Nothing is left of the old shards but the one that is nowhere.
            assert_eq!(fleet.fleet.collect().await.unwrap().deleted, 0, "{scheme}");
            // The volume that was open meanwhile goes on.
            volume.write(0, bytes(2, MIB as usize), Durability::Cached).await.unwrap();
            volume.drain().await.unwrap();
            assert!(content(&*volume).await == bytes(2, MIB as usize), "{scheme}");
        }
    });
}

#[test]
fn damaged_and_missing_records_are_repaired_from_other_homes() {
    run(async {
        let (fleet, volume) = written("ec:2+1", 3).await;
        let home = (0..3).find(|at| !fleet.store.keys(*at, "~fvol/a/").is_empty()).unwrap();
        let records = fleet.store.keys(home, "~fvol/a/");
        assert_eq!(records.len(), 17);
        delete(&fleet, home, &records[3]);
        delete(&fleet, home, &Key::new("~fvol/a/header").unwrap());
        let found = fleet.fleet.scrub(false, None, &mut |_| ()).await.unwrap();
        assert!(found.damaged.len() == 2 && found.damaged.iter().all(|found| found.repaired), "{:?}", found.damaged);
        assert_eq!(fleet.fleet.scrub(true, None, &mut |_| ()).await.unwrap().damaged, []);
        assert_eq!(fleet.store.keys(home, "~fvol/a/"), records);
        // The header has its version: the volume that is open was not lost.
        volume.write(0, bytes(2, 4096), Durability::Cached).await.unwrap();
        volume.drain().await.unwrap();
    });
}

/// More shards of an extent are damaged than parities: it is named, never invented, and mended by a write of it all.
#[test]
fn damage_beyond_the_redundancy_is_named() {
    run(async {
        let (fleet, volume) = written("ec:2+1", 3).await;
        for at in 0..2 {
            let keys = fleet.store.keys(at, "~fext/a/x/000000000003/");
            rot(&fleet, at, &keys[0]);
        }
        let error = volume.read(3 * 65536, 4096).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        let text = error.report();
        assert!(text.contains("volume a") && text.contains("extent 3") && text.contains("drive-0") && text.contains("drive-1"), "{text}");
        let found = fleet.fleet.scrub(false, None, &mut |_| ()).await.unwrap();
        assert!(found.damaged.len() == 1 && !found.damaged[0].repaired && found.damaged[0].error.is_some(), "{:?}", found.damaged);
        volume.write(3 * 65536, bytes(4, 65536), Durability::Cached).await.unwrap();
        volume.drain().await.unwrap();
        assert!(volume.read(3 * 65536, 65536).await.unwrap() == bytes(4, 65536));
        assert_eq!(fleet.fleet.scrub(false, None, &mut |_| ()).await.unwrap().damaged, []);
    });
}

/// The volumes of a fleet, as `skytether host serve` opens them: listed, scrubbed, removed.
#[test]
fn volumes_of_a_fleet_are_listed_scrubbed_and_removed() {
    run(async {
        let (fleet, dir) = (Drive::of("ec:2+1", 4, small()), tempfile::tempdir().unwrap());
        let open = || Volumes::open(fleet.context.backing.clone(), dir.path(), small());
        let volumes = open().await.unwrap();
        for (n, wanted) in ["a=1MiB", "b=2MiB"].iter().enumerate() {
            let volume = volumes.ensure(&wanted.parse().unwrap()).await.unwrap();
            assert_eq!(volume.number(), n as u32 + 1);
            volume.write(0, bytes(n as u64, MIB as usize), Durability::Cached).await.unwrap();
            volume.drain().await.unwrap();
        }
        volumes.close().await.unwrap();
        drop(volumes);
        let volumes = open().await.unwrap();
        let listed: Vec<_> = volumes.list().await.unwrap().into_iter().map(|found| (found.name, found.number, found.extents)).collect();
        assert_eq!(listed, [("a".to_owned(), 1, 16), ("b".to_owned(), 2, 16)]);
        rot(&fleet, 2, &fleet.store.keys(2, "~fext/b/")[0].clone());
        assert_eq!(volumes.scrub(&name("a"), None, false).await.unwrap().damaged, []);
        for (repair, left) in [(false, 1), (true, 1), (true, 0)] {
            let found = volumes.scrub(&name("b"), None, repair).await.unwrap();
            assert_eq!((found.extents, found.damaged.len()), (16, left));
            assert!(found.damaged.iter().all(|found| found.repaired == repair && found.why.contains("drive-2")), "{:?}", found.damaged);
        }
        volumes.remove(&name("b")).await.unwrap();
        for at in 0..4 {
            assert_eq!((fleet.store.keys(at, "~fext/b/").len(), fleet.store.keys(at, "~fvol/b/").len()), (0, 0));
        }
        // No number is given twice.
        assert_eq!(volumes.ensure(&"c=1MiB".parse().unwrap()).await.unwrap().number(), 3);
    });
}

/// Both copies of a record are whole, and one is older, as a drive has it that missed a change.
#[test]
fn older_copy_of_a_record_is_found_and_replaced() {
    run(async {
        for first in [true, false] {
            for which in ["header", "x/000000000003"] {
                let (fleet, volume) = written("ec:2+1", 3).await;
                let record = Key::new(format!("~fvol/a/{which}")).unwrap();
                let homes = fleet.catalog.homes_of_record(&record).unwrap();
                assert_eq!(homes.len(), 2);
                let copy = |at: usize| fleet.store.0[at].inner().get(&record).unwrap();
                let older = copy(homes[0]);
                // A new one of each: a header by another change of it, and an extent by another write.
                let newer = fleet.catalog.read_record(&record).await.unwrap().unwrap().body;
                if which == "header" {
                    let put = Op::Put { key: record.clone(), value: newer, expect: Expect::Any };
                    fleet.catalog.commit_records(vec![put]).await.unwrap();
                } else {
                    volume.write(3 * 65536, bytes(2, 65536), Durability::Cached).await.unwrap();
                    volume.drain().await.unwrap();
                }
                let newest = copy(homes[0]);
                assert!(newest != older && copy(homes[1]) == newest);
                let stale = homes[usize::from(!first)];
                fleet.store.0[stale].inner().apply(vec![Op::Put { key: record.clone(), value: older, expect: Expect::Any }]).unwrap();
                let what = format!("{which} at home {stale}");
                let found = fleet.fleet.scrub(true, None, &mut |_| ()).await.unwrap().damaged;
                let texts: Vec<&str> = found.iter().flat_map(|found| &found.faults).map(|fault| fault.what.as_str()).collect();
                assert!(found.len() == 1 && texts.contains(&"have different copies of the record"), "{what}: {found:?}");
                let names = found[0].faults.iter().find(|fault| fault.what.contains("different")).unwrap().drive.clone();
                assert!(homes.iter().all(|at| names.contains(&format!("drive-{at}"))), "{what}: {names}");
                let mended = fleet.fleet.scrub(false, None, &mut |_| ()).await.unwrap().damaged;
                assert!(mended.len() == 1 && mended[0].repaired, "{what}: {mended:?}");
                assert!(copy(homes[0]) == copy(homes[1]), "{what}");
                assert_eq!(fleet.fleet.scrub(true, None, &mut |_| ()).await.unwrap().damaged, [], "{what}");
                if which != "header" {
                    assert!(volume.read(3 * 65536, 65536).await.unwrap() == bytes(2, 65536), "{what}");
                }
            }
        }
    });
}

/// Records are read many at a time: over a network, one after the other would take a round trip each.
#[test]
fn collecting_reads_many_records_at_a_time() {
    run(async {
        let (fleet, _volume) = written("ec:2+1", 3).await;
        fleet.ways.most_read.store(0, std::sync::atomic::Ordering::SeqCst);
        let collected = fleet.fleet.collect().await.unwrap();
        assert!(collected.is_complete && collected.deleted == 0);
        let most = fleet.ways.most_read.load(std::sync::atomic::Ordering::SeqCst);
        assert!((8..=32).contains(&most), "{most} at a time");
    });
}
