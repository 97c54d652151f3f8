//! Random calls against a `Vec<u8>`.

use proptest::prelude::*;
use skytether_volume::power::PowerFiles;
use skytether_volume::{BlockDevice, Durability, SnapshotDevice, Volumes, Zeros};

use crate::util::{Drive, KIB, bytes, content, differs, is_soak, name, run, small};

const SIZE: u64 = 768 * KIB + 12 * KIB;

#[derive(Debug, Clone)]
enum Call {
    Write(u64, u64, u64, bool),
    Read(u64, u64),
    Zero(u64, u64, bool),
    Compare(u64, u64, u64, bool),
    Flush,
    Drain,
    Reopen,
    Snapshot,
}

fn call() -> impl Strategy<Value = Call> {
    let sectors = SIZE / 512;
    // Places and lengths in sectors: often few, often whole blocks and extents.
    let range =
        (0..sectors, prop_oneof![1u64..20, Just(8), Just(128), 1u64..700], prop_oneof![Just(1u64), Just(8), Just(128)]).prop_map(move |(at, len, unit)| {
            let at = at / unit * unit;
            (at * 512, len.next_multiple_of(unit).min(sectors - at) * 512)
        });
    prop_oneof![
        6 => (range.clone(), any::<u64>(), any::<bool>()).prop_map(|((at, len), seed, durable)| Call::Write(at, len, seed, durable)),
        4 => range.clone().prop_map(|(at, len)| Call::Read(at, len)),
        3 => (range.clone(), any::<bool>()).prop_map(|((at, len), unmap)| Call::Zero(at, len, unmap)),
        2 => (range, any::<u64>(), any::<bool>()).prop_map(|((at, len), seed, same)| Call::Compare(at, len.min(64 * KIB), seed, same)),
        1 => Just(Call::Flush),
        1 => Just(Call::Drain),
        1 => Just(Call::Reopen),
        1 => Just(Call::Snapshot),
    ]
}

async fn play(calls: &[Call]) {
    let (mut drive, files) = (Drive::new(small()), PowerFiles::new());
    drive.create("a", SIZE).await;
    let (mut volume, _) = drive.open("a", &files).await.unwrap();
    let mut model = vec![0; SIZE as usize];
    let mut snapshots = Vec::new();
    for (n, call) in calls.iter().enumerate() {
        match *call {
            Call::Write(at, len, seed, durable) => {
                let data = bytes(seed, len as usize);
                volume.write(at, data.clone(), if durable { Durability::Durable } else { Durability::Cached }).await.unwrap();
                model[at as usize..(at + len) as usize].copy_from_slice(&data);
            }
            Call::Read(at, len) => {
                assert!(volume.read(at, len as u32).await.unwrap() == model[at as usize..(at + len) as usize], "call {n}");
            }
            Call::Zero(at, len, unmap) => {
                let how = if unmap { Zeros::Unmapped } else { Zeros::Mapped };
                volume.zero(at, len, how, Durability::Cached).await.unwrap();
                model[at as usize..(at + len) as usize].fill(0);
                if !unmap {
                    assert!(volume.extents(at, len).await.unwrap().iter().all(|extent| extent.mapped), "call {n}");
                }
            }
            Call::Compare(at, len, seed, same) => {
                let there = &mut model[at as usize..(at + len) as usize];
                let mut expected = there.to_vec();
                let differs = (seed % len) as usize;
                if !same {
                    expected[differs] ^= 1;
                }
                let data = bytes(seed, len as usize);
                let found = volume.compare_and_write(at, expected.into(), data.clone(), Durability::Cached).await.unwrap();
                assert_eq!(found, if same { None } else { Some(differs as u32) }, "call {n}");
                if same {
                    there.copy_from_slice(&data);
                }
            }
            Call::Flush => volume.flush().await.unwrap(),
            Call::Drain => volume.drain().await.unwrap(),
            Call::Reopen => {
                // As after SIGKILL: nothing is flushed.
                volume.stop().await;
                drive = drive.restarted();
                let (opened, recovery) = drive.open("a", &files).await.unwrap();
                assert_eq!(recovery.dropped, 0);
                volume = opened;
            }
            // A fleet has no snapshots.
            Call::Snapshot if !drive.context.backing.links() => {}
            Call::Snapshot => {
                let snapshot = format!("s{n}");
                volume.snapshot(&name(&snapshot)).await.unwrap();
                snapshots.push((snapshot, model.clone()));
            }
        }
        for extent in volume.extents(0, SIZE).await.unwrap().into_iter().filter(|extent| !extent.mapped) {
            assert!(model[extent.at as usize..(extent.at + extent.len) as usize].iter().all(|byte| *byte == 0), "call {n}: {extent:?}");
        }
    }
    assert_eq!(differs(&content(&*volume).await, &model), None);
    for (snapshot, model) in snapshots {
        let device = SnapshotDevice::open(&drive.context, &name("a"), &name(&snapshot)).await.unwrap();
        assert_eq!(differs(&content(&*device).await, &model), None, "{snapshot}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if is_soak() { 5000 } else { 60 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_calls_equal_a_model(calls in prop::collection::vec(call(), 1..60)) {
        run(play(&calls));
    }
}

/// The same over a drive and a journal on the disk.
#[test]
fn volumes_on_a_disk_equal_a_model() {
    use skytether_device::StorageOnly;
    use skytether_store::disk::{DiskStore, DriveIdentity, OpenOptions};
    use skytether_volume::StorageBacking;
    use std::sync::Arc;
    let dir = tempfile::tempdir().unwrap();
    let identity = DriveIdentity { id: uuid::Uuid::from_u128(5), name: "drive-0".into() };
    let store = Arc::new(DiskStore::open(&dir.path().join("drive"), OpenOptions { create: Some(identity.clone()), ..OpenOptions::default() }).unwrap());
    let mut random = fastrand::Rng::with_seed(3);
    let mut model = vec![0; SIZE as usize];
    run(async {
        for round in 0..4 {
            let storage = StorageOnly::new(store.clone(), identity.id, "drive-0");
            let volumes = Volumes::open(Arc::new(StorageBacking::new(Arc::new(storage)).unwrap()), &dir.path().join("volumes"), small()).await.unwrap();
            let volume = volumes.ensure(&format!("a={SIZE}").parse().unwrap()).await.unwrap();
            assert_eq!(differs(&content(&*volume).await, &model), None, "round {round}");
            for _ in 0..40 {
                let at = random.u64(0..SIZE / 512) * 512;
                let data = bytes(random.u64(..), (random.u64(1..200) * 512).min(SIZE - at) as usize);
                model[at as usize..at as usize + data.len()].copy_from_slice(&data);
                volume.write(at, data, Durability::Cached).await.unwrap();
                if random.u8(0..20) == 0 {
                    volume.drain().await.unwrap();
                }
            }
            volume.flush().await.unwrap();
            assert_eq!(differs(&content(&*volume).await, &model), None, "round {round}");
            volumes.close().await.unwrap();
        }
    });
}
