//! Full drives and full journals: zeros come through.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use skytether_common::{Error, Key, Kind, Result};
use skytether_device::verify::{Verified, Verify};
use skytether_store::{Entry, Op, Version};
use skytether_volume::power::PowerFiles;
use skytether_volume::{Backing, BlockDevice, Durability, Zeros};

use crate::util::{Drive, KIB, MIB, bytes, passes_on, run, small};

/// A drive that has room for a number of extents.
#[derive(Debug)]
struct Full(Arc<dyn Backing>, usize, Mutex<BTreeSet<Key>>);

impl Backing for Full {
    passes_on!();
    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let mut after = self.2.lock().clone();
            let mut puts = false;
            for op in &batch {
                match op {
                    Op::Put { key, .. } if key.as_str().contains("/x/") => {
                        puts = true;
                        after.insert(key.clone());
                    }
                    Op::Delete { key, .. } => drop(after.remove(key)),
                    _ => {}
                }
            }
            // Deletions give space back after the batch.
            if puts && after.union(&self.2.lock()).count() > self.1 {
                return Err(Error::exhausted("the drive is full"));
            }
            *self.2.lock() = after;
            self.0.apply(batch).await
        })
    }
    fn get_range_unverified<'a>(&'a self, key: &'a Key, range: Range<u64>) -> BoxFuture<'a, Result<Bytes>> {
        self.0.get_range_unverified(key, range)
    }
}

#[test]
fn full_drive_is_emptied_by_unmapping() {
    run(async {
        let (mut drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.context.backing = Arc::new(Full(Arc::clone(&drive.context.backing), 64, Mutex::default()));
        drive.create("a", 64 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let mut written = 0;
        let error = loop {
            match volume.write(written * 64 * KIB, bytes(written, 64 << 10), Durability::Cached).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), Kind::Exhausted);
        // All that is on the drive is given back; the writes in the journal stay.
        volume.zero(0, 64 * 64 * KIB, Zeros::Unmapped, Durability::Durable).await.unwrap();
        volume.drain().await.or(volume.drain().await).or(volume.drain().await).unwrap();
        for n in 0..written {
            let expected = if n < 64 { Bytes::from(vec![0; 64 << 10]) } else { bytes(n, 64 << 10) };
            assert!(volume.read(n * 64 * KIB, 64 << 10).await.unwrap() == expected, "extent {n} of {written}");
        }
    });
}

#[test]
fn zeros_come_through_sustained_random_writes() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", 128 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let writer = |seed: u64| {
            let (volume, done) = (Arc::clone(&volume), Arc::clone(&done));
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(seed);
                while !done.load(Ordering::Relaxed) {
                    let at = 64 * MIB + random.u64(0..16_000) * 4096;
                    volume.write(at, vec![7; 4096].into(), Durability::Cached).await.unwrap();
                }
            })
        };
        let writers: Vec<_> = (0..8).map(writer).collect();
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let zeroed = volume.zero(0, 32 * MIB, Zeros::Mapped, Durability::Cached).await;
        done.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.unwrap();
        }
        zeroed.unwrap();
    });
}
