//! Snapshots and clones.

use skytether_common::{Error, Kind};
use skytether_store::fault::{Fault, Operation, Rule, When};
use skytether_volume::power::PowerFiles;
use skytether_volume::{BlockDevice, Durability, SnapshotDevice, Zeros};

use crate::util::{Drive, KIB, MIB, bytes, content, damaged, name, run, small};

#[test]
fn snapshot_stays_while_the_volume_changes() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        volume.write(0, bytes(1, 300 << 10), Durability::Cached).await.unwrap();
        let before = content(&*volume).await;
        volume.snapshot(&name("s")).await.unwrap();
        assert_eq!(volume.snapshot(&name("s")).await.unwrap_err().kind(), Kind::Conflict);
        volume.write(4096, bytes(2, 200 << 10), Durability::Cached).await.unwrap();
        volume.zero(256 * KIB, 64 * KIB, Zeros::Unmapped, Durability::Cached).await.unwrap();
        volume.drain().await.unwrap();
        let device = SnapshotDevice::open(&drive.restarted().context, &name("a"), &name("s")).await.unwrap();
        assert!(content(&*device).await == before);
        assert!(device.read(512, 1536).await.unwrap() == before[512..2048]);
        assert!(device.info().read_only && device.info().name == "a@s" && device.info().id != volume.info().id);
        let mapped: u64 = device.extents(0, MIB).await.unwrap().iter().filter(|extent| extent.mapped).map(|extent| extent.len).sum();
        assert_eq!(mapped, 320 * KIB);
        for refused in [
            device.write(0, bytes(1, 512), Durability::Cached).await.unwrap_err(),
            device.zero(0, 512, Zeros::Mapped, Durability::Cached).await.unwrap_err(),
            device.compare_and_write(0, bytes(1, 512), bytes(1, 512), Durability::Cached).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(refused.kind(), Kind::Conflict);
        }
    });
}

/// Fails at each change of the drive in turn: the snapshot is there as a whole, or it is not there and can be made.
#[test]
fn interrupted_snapshot_is_whole_or_absent() {
    run(async {
        let mut made = 0;
        for step in 1u64.. {
            let (drive, files) = (Drive::new(small()), PowerFiles::new());
            drive.create("a", MIB).await;
            let (volume, _) = drive.open("a", &files).await.unwrap();
            volume.write(0, bytes(1, MIB as usize), Durability::Cached).await.unwrap();
            let fault = if step % 2 == 0 { Fault::Fail(Kind::Unavailable) } else { Fault::FailAfter(Kind::Unavailable) };
            drive.store.add(Rule::new(Operation::Apply, When::Nth(step.div_ceil(2)), fault));
            let done = volume.snapshot(&name("s")).await;
            let hit = drive.store.injected() > 0;
            drive.store.heal();
            volume.stop().await;
            match SnapshotDevice::open(&drive.context, &name("a"), &name("s")).await {
                Ok(device) => {
                    made += 1;
                    assert!(content(&*device).await == bytes(1, MIB as usize));
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::NotFound);
                    assert!(done.is_err());
                    let (volume, _) = drive.restarted().open("a", &files).await.unwrap();
                    volume.zero(0, 512 * KIB, Zeros::Unmapped, Durability::Cached).await.unwrap();
                    let now = content(&*volume).await;
                    volume.snapshot(&name("s")).await.unwrap();
                    let device = SnapshotDevice::open(&drive.context, &name("a"), &name("s")).await.unwrap();
                    assert!(content(&*device).await == now, "step {step}: something of the interrupted one is left");
                }
            }
            if !hit {
                assert!(step > 6 && made >= 2, "{step} {made}");
                return;
            }
        }
    });
}

#[test]
fn snapshot_of_a_damaged_volume_is_refused() {
    run(async {
        let files = PowerFiles::new();
        let (_drive, volume) = damaged(&files).await;
        volume.write(192 * KIB, bytes(2, 4096), Durability::Cached).await.unwrap();
        let error: Error = volume.snapshot(&name("s")).await.unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.report().contains("extent 3"), "{}", error.report());
    });
}
