//! What of durability reaches the device.

use std::sync::Arc;

use skytether_scsi::{Management, Nexus, Target, Unit};
use skytether_volume::memory::{Recorded, RecordingDevice};
use skytether_volume::{Durability, Zeros};

use crate::bench::{bad, cdb10, cdb16, connect, good, options};

const CACHED: Durability = Durability::Cached;
const DURABLE: Durability = Durability::Durable;

async fn recording() -> (Arc<RecordingDevice>, Arc<Nexus>) {
    let device = Arc::new(RecordingDevice::new("v", 1 << 20));
    let target = Target::new(vec![Unit { lun: 0, device: device.clone(), exec: None }], options());
    (device, connect(&target, "a").await)
}

/// MODE SELECT(6) of the caching page.
async fn write_cache(nexus: &Nexus, on: bool) {
    let mut list = vec![0; 24];
    (list[4], list[5], list[6]) = (0x08, 0x12, u8::from(on) << 2);
    good(nexus, &[0x15, 0x10, 0, 0, 24, 0], &list).await;
}

#[tokio::test]
async fn force_unit_access_reaches_the_device() {
    let (device, nexus) = recording().await;
    for (fua, durability) in [(0, CACHED), (0x08, DURABLE)] {
        good(&nexus, &cdb10(0x2A, fua, 0, 1), &[1; 512]).await;
        good(&nexus, &cdb16(0x8A, fua, 0, 1), &[1; 512]).await;
        assert_eq!(device.take(), [Recorded::Write(durability); 2]);
        good(&nexus, &cdb16(0x89, fua, 0, 1), &[1; 1024]).await;
        good(&nexus, &cdb16(0x8B, fua, 0, 1), &[1; 512]).await;
        assert_eq!(device.take(), [Recorded::CompareAndWrite(durability); 2]);
    }
    good(&nexus, &cdb10(0x2E, 0, 0, 1), &[1; 512]).await;
    assert_eq!(device.take(), [Recorded::Write(DURABLE)]);
    // What is read with FUA is on the medium.
    good(&nexus, &cdb10(0x28, 0x08, 0, 1), b"").await;
    assert_eq!(device.take(), [Recorded::Flush]);
}

#[tokio::test]
async fn synchronize_cache_flushes() {
    let (device, nexus) = recording().await;
    good(&nexus, &cdb10(0x35, 0, 0, 0), b"").await;
    good(&nexus, &cdb16(0x91, 0, 0, 0), b"").await;
    // STOP makes durable, too.
    good(&nexus, &[0x1B, 0, 0, 0, 0, 0], b"").await;
    assert_eq!(device.take(), [Recorded::Flush; 3]);
}

#[tokio::test]
async fn all_changes_are_durable_without_a_write_cache() {
    let (device, nexus) = recording().await;
    let unmap = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &8_u64.to_be_bytes(), &8_u32.to_be_bytes(), &[0; 4]].concat();
    write_cache(&nexus, false).await;
    device.take();
    good(&nexus, &cdb10(0x2A, 0, 0, 1), &[1; 512]).await;
    good(&nexus, &cdb16(0x89, 0, 0, 1), &[1; 1024]).await;
    good(&nexus, &cdb10(0x42, 0, 0, 24), &unmap).await;
    assert_eq!(device.take(), [Recorded::Write(DURABLE), Recorded::CompareAndWrite(DURABLE), Recorded::Zero(Zeros::Unmapped, DURABLE)]);
    write_cache(&nexus, true).await;
    good(&nexus, &cdb10(0x2A, 0, 0, 1), &[1; 512]).await;
    assert_eq!(device.take(), [Recorded::Write(CACHED)]);
}

#[tokio::test]
async fn write_cache_is_flushed_as_it_is_switched_off() {
    let (device, nexus) = recording().await;
    good(&nexus, &cdb10(0x2A, 0, 0, 1), &[1; 512]).await;
    write_cache(&nexus, false).await;
    assert_eq!(device.take(), [Recorded::Write(CACHED), Recorded::Flush]);
    // Nothing is cached then.
    write_cache(&nexus, false).await;
    write_cache(&nexus, true).await;
    assert_eq!(device.take(), []);
}

#[tokio::test]
async fn write_cache_stays_off_over_a_reset() {
    let (device, nexus) = recording().await;
    write_cache(&nexus, false).await;
    nexus.manage(Management::LunReset { lun: 0 }).await;
    assert_eq!(bad(&nexus, &[0; 6], b"").await.0, 6);
    device.take();
    good(&nexus, &cdb10(0x2A, 0, 0, 1), &[1; 512]).await;
    assert_eq!(device.take(), [Recorded::Write(DURABLE)]);
}
