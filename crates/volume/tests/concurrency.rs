//! Many callers at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use skytether_volume::power::PowerFiles;
use skytether_volume::{BlockDevice, Durability, Options, SnapshotDevice, Zeros};

use crate::util::{Drive, KIB, MIB, bytes, content, name, run, small};

/// Writers of parts of one block, each with its own sector, lose nothing of each other.
#[test]
fn writers_of_parts_of_a_block_lose_nothing() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let write = |sector: u64| {
            let volume = Arc::clone(&volume);
            tokio::spawn(async move {
                for n in 1..=50u8 {
                    volume.write(60 * KIB + sector * 512, vec![n; 512].into(), Durability::Cached).await.unwrap();
                    if n % 10 == 0 && sector == 0 {
                        volume.drain().await.unwrap();
                    }
                }
            })
        };
        let writers: Vec<_> = (0..16).map(write).collect();
        for writer in writers {
            writer.await.unwrap();
        }
        assert!(volume.read(60 * KIB, 8192).await.unwrap().iter().all(|byte| *byte == 50));
    });
}

/// Counters that are incremented by comparing lose no step.
#[test]
fn concurrent_comparisons_lose_no_step() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let count = || {
            let volume = Arc::clone(&volume);
            tokio::spawn(async move {
                for _ in 0..100 {
                    loop {
                        let before = volume.read(512, 512).await.unwrap();
                        let mut after = before.to_vec();
                        let next = u64::from_le_bytes(after[..8].try_into().unwrap()) + 1;
                        after[..8].copy_from_slice(&next.to_le_bytes());
                        if volume.compare_and_write(512, before, after.into(), Durability::Cached).await.unwrap().is_none() {
                            break;
                        }
                    }
                }
            })
        };
        let counters: Vec<_> = (0..8).map(|_| count()).collect();
        for counter in counters {
            counter.await.unwrap();
        }
        let found = volume.read(512, 512).await.unwrap();
        assert_eq!(u64::from_le_bytes(found[..8].try_into().unwrap()), 800);
    });
}

/// Readers see each block whole and never older than before, while it is written, merged and linked.
#[test]
fn readers_see_whole_blocks_and_never_older_ones() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let reader = |block: u64| {
            let (volume, done) = (Arc::clone(&volume), Arc::clone(&done));
            tokio::spawn(async move {
                let (mut last, mut reads) = (0, 0u64);
                while !done.load(Ordering::Relaxed) {
                    let found = volume.read(block * 4096, 4096).await.unwrap();
                    let value = u64::from_le_bytes(found[..8].try_into().unwrap());
                    assert!(found == value.to_le_bytes().repeat(512), "block {block} is mixed");
                    assert!(value >= last, "block {block} had {last} and has {value}");
                    (last, reads) = (value, reads + 1);
                    tokio::task::yield_now().await;
                }
                reads
            })
        };
        let readers: Vec<_> = (0..4).map(reader).collect();
        for value in 1..=600u64 {
            volume.write(0, value.to_le_bytes().repeat(4 * 512).into(), Durability::Cached).await.unwrap();
            match value % 50 {
                0 if drive.context.backing.links() => drop(volume.snapshot(&name(&format!("s{value}"))).await.unwrap()),
                0 | 10 | 20 | 30 => volume.drain().await.unwrap(),
                40 => volume.flush().await.unwrap(),
                _ => {}
            }
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.await.unwrap() > 0);
        }
    });
}

/// Readers of an extent that is written, merged, unmapped and merged again see data or zeros, and no damage.
#[test]
fn readers_of_unmapped_extents_see_no_damage() {
    run(async {
        let (drive, files) = (Drive::new(Options { cache_bytes: 1, ..small() }), PowerFiles::new());
        drive.create("a", MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let reader = |n: u64| {
            let (volume, done) = (Arc::clone(&volume), Arc::clone(&done));
            tokio::spawn(async move {
                let (mut zeros, mut data) = (0u64, 0u64);
                while !done.load(Ordering::Relaxed) {
                    let found = volume.read(n * 32 * KIB, 8192).await.unwrap();
                    let first = found[0];
                    assert!(found[..4096].iter().all(|byte| *byte == first) && (first == 0 || first == 7));
                    *(if first == 0 { &mut zeros } else { &mut data }) += 1;
                    tokio::task::yield_now().await;
                }
                (zeros, data)
            })
        };
        let readers: Vec<_> = (0..2).map(reader).collect();
        for _ in 0..300 {
            volume.write(0, vec![7; 64 << 10].into(), Durability::Cached).await.unwrap();
            volume.drain().await.unwrap();
            volume.zero(0, 64 * KIB, Zeros::Unmapped, Durability::Cached).await.unwrap();
            volume.drain().await.unwrap();
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let (zeros, data) = reader.await.unwrap();
            assert!(zeros > 0 && data > 0, "{zeros} {data}");
        }
    });
}

/// Calls that are dropped at any time leave a volume that goes on.
#[test]
fn dropped_calls_leave_a_volume_that_goes_on() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", 8 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        for n in 0..400u64 {
            let at = random.u64(0..1000) * 4096;
            let patience = std::time::Duration::from_micros(random.u64(0..300));
            let data = vec![n as u8; 300 << 10];
            let call = async {
                match n % 4 {
                    0 => volume.drain().await.unwrap(),
                    1 => volume.write(at, data.into(), Durability::Durable).await.unwrap(),
                    2 => volume.write(at + 512, data.into(), Durability::Cached).await.unwrap(),
                    _ => drop(volume.read(at, 100 << 10).await.unwrap()),
                }
            };
            drop(tokio::time::timeout(patience, call).await);
        }
        volume.drain().await.unwrap();
        let before = content(&*volume).await;
        volume.flush().await.unwrap();
        volume.stop().await;
        let (volume, _) = drive.restarted().open("a", &files).await.unwrap();
        assert!(content(&*volume).await == before);
    });
}

/// Reads that are dropped at once leave nothing in memory beyond the cache.
#[test]
fn dropped_reads_keep_no_extents() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", 4 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        volume.write(0, bytes(1, 4 << 20), Durability::Cached).await.unwrap();
        volume.release().await.unwrap();
        drop(volume);
        let drive = drive.restarted();
        let (volume, _) = drive.open("a", &files).await.unwrap();
        for extent in 0..64 {
            // Polled once.
            drop(futures::FutureExt::now_or_never(volume.read(extent * 64 * KIB, 64 << 10)));
        }
        let mut waited = 0;
        while volume.loads() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            waited += 1;
            assert!(waited < 500, "{} loads never end", volume.loads());
        }
        assert!(content(&*volume).await == bytes(1, 4 << 20));
    });
}

/// What is acknowledged while a volume is released is in its extents.
#[test]
fn writes_during_a_release_are_kept_or_refused() {
    run(async {
        for round in 0..20u64 {
            let (drive, files) = (Drive::new(small()), PowerFiles::new());
            drive.create("a", MIB).await;
            let (volume, _) = drive.open("a", &files).await.unwrap();
            let writer = |n: u64| {
                let volume = Arc::clone(&volume);
                tokio::spawn(async move {
                    let mut last = 0;
                    for value in 1..=u64::MAX {
                        if volume.write(n * 4096, value.to_le_bytes().repeat(512).into(), Durability::Cached).await.is_err() {
                            break;
                        }
                        last = value;
                    }
                    last
                })
            };
            let writers: Vec<_> = (0..4).map(writer).collect();
            tokio::time::sleep(std::time::Duration::from_millis(round % 4)).await;
            volume.release().await.unwrap();
            let (again, _) = drive.restarted().open("a", &PowerFiles::new()).await.unwrap();
            for (n, writer) in writers.into_iter().enumerate() {
                let found = again.read(n as u64 * 4096, 4096).await.unwrap();
                assert_eq!(u64::from_le_bytes(found[..8].try_into().unwrap()), writer.await.unwrap());
            }
        }
    });
}

/// Snapshots that are made while a client writes are of one moment, with all that was acknowledged before.
#[test]
fn snapshots_of_a_volume_in_use_are_of_one_moment() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", 4 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let (acknowledged, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        // The second place never has a later number than the first.
        let places = [0, 3 * MIB];
        let writing = {
            let (volume, acknowledged, over) = (Arc::clone(&volume), Arc::clone(&acknowledged), Arc::clone(&over));
            tokio::spawn(async move {
                for number in 1u64.. {
                    for place in places {
                        let block = number.to_le_bytes().repeat(512);
                        volume.write(place, block.into(), Durability::Cached).await.unwrap();
                    }
                    acknowledged.store(number, Ordering::SeqCst);
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            })
        };
        for n in 0..8 {
            let (of, before) = (name(&format!("s{n}")), acknowledged.load(Ordering::SeqCst));
            volume.snapshot(&of).await.unwrap();
            let device = SnapshotDevice::open(&drive.context, &name("a"), &of).await.unwrap();
            let mut found = Vec::new();
            for place in places {
                let block = device.read(place, 4096).await.unwrap();
                let number = u64::from_le_bytes(block[..8].try_into().unwrap());
                assert_eq!(block, number.to_le_bytes().repeat(512), "snapshot {n}");
                found.push(number);
            }
            assert!(found[1] >= before && (found[1]..=found[1] + 1).contains(&found[0]), "snapshot {n}: {found:?} after {before}");
            while acknowledged.load(Ordering::SeqCst) < before + 20 {
                tokio::task::yield_now().await;
            }
        }
        over.store(true, Ordering::SeqCst);
        writing.await.unwrap();
    });
}
