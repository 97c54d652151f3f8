//! Drives that are lost while volumes are written, merges that are cut off, and hosts that take volumes over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use skytether_common::Kind;
use skytether_fleet_volume::layout::ExtentRecord;
use skytether_store::SliceStore;
use skytether_store::fault::{Fault, Operation, Rule, When};
use skytether_volume::power::PowerFiles;
use skytether_volume::{BlockDevice, Durability, Options, Volume, Zeros};

use crate::util::{Drive, KIB, MIB, bytes, content, differs, name, run, small};

const SIZE: usize = 768 << 10;

/// A volume with what it should hold.
struct Written {
    volume: Arc<Volume>,
    model: Vec<u8>,
    random: fastrand::Rng,
}

impl Written {
    async fn new(fleet: &Drive, files: &PowerFiles, seed: u64) -> Self {
        fleet.create("a", SIZE as u64).await;
        Self { volume: fleet.open("a", files).await.unwrap().0, model: vec![0; SIZE], random: fastrand::Rng::with_seed(seed) }
    }

    /// Random changes and merges. All must succeed.
    async fn change(&mut self, count: usize) {
        for _ in 0..count {
            let at = self.random.usize(0..SIZE / 4096) * 4096;
            let len = (self.random.usize(1..40) * 4096).min(SIZE - at);
            match self.random.u8(0..10) {
                0 => self.volume.drain().await.unwrap(),
                1 | 2 => {
                    self.volume.zero(at as u64, len as u64, Zeros::Unmapped, Durability::Cached).await.unwrap();
                    self.model[at..at + len].fill(0);
                }
                _ => {
                    let data = bytes(self.random.u64(..), len);
                    self.volume.write(at as u64, data.clone(), Durability::Cached).await.unwrap();
                    self.model[at..at + len].copy_from_slice(&data);
                }
            }
        }
    }

    async fn check(&self, what: &str) {
        assert_eq!(differs(&content(&*self.volume).await, &self.model), None, "{what}");
    }
}

/// Without a cache, so that reads come to the drives.
fn uncached() -> Options {
    Options { cache_bytes: 1, ..small() }
}

/// Each drive is lost in turn in the middle of writes; then it is back, and another one is lost.
#[test]
fn lost_drive_costs_no_write_and_may_come_back() {
    run(async {
        for (scheme, drives) in [("ec:2+1", 3), ("replicas:2", 3), ("ec:2+1", 5), ("ec:2+2", 4), ("replicas:2", 2)] {
            for at in 0..drives {
                let what = format!("{scheme} over {drives} without drive {at}");
                let (fleet, files) = (Drive::of(scheme, drives, uncached()), PowerFiles::new());
                let mut written = Written::new(&fleet, &files, at as u64).await;
                written.change(30).await;
                // At some change of this drive, in the middle of a merge.
                fleet.store.0[at].add(Rule::new(Operation::Apply, When::Nth(3), Fault::FailAfter(Kind::Unavailable)));
                written.change(10).await;
                fleet.store.lose(at);
                written.change(60).await;
                written.volume.drain().await.unwrap();
                written.check(&what).await;
                // It is back, and its copies from before do not count.
                fleet.store.heal();
                fleet.catalog.rejoin(Duration::from_secs(10)).await.unwrap();
                written.check(&what).await;
                // What was written with fewer parities is written again.
                let scrubbed = fleet.fleet.scrub(false, None, &mut |_| ()).await.unwrap();
                assert!(scrubbed.damaged.iter().all(|found| found.repaired), "{what}: {:?}", scrubbed.damaged);
                written.change(30).await;
                written.volume.drain().await.unwrap();
                fleet.store.lose((at + 1) % drives);
                written.check(&what).await;
                written.change(20).await;
                written.volume.stop().await;
                // Another host begins without the lost drive.
                written.volume = fleet.restarted().open("a", &files).await.unwrap().0;
                written.check(&what).await;
            }
        }
    });
}

/// With more drives lost than the redundancy covers, nothing is invented: reads and merges fail, and go on later.
#[test]
fn too_many_lost_drives_are_an_error_until_they_are_back() {
    run(async {
        let (fleet, files) = (Drive::of("ec:2+1", 3, uncached()), PowerFiles::new());
        let mut written = Written::new(&fleet, &files, 1).await;
        written.change(40).await;
        written.volume.drain().await.unwrap();
        fleet.store.lose(0);
        fleet.store.lose(1);
        let mut failed = 0;
        for at in (0..SIZE as u64).step_by(64 << 10) {
            match written.volume.read(at, 4096).await {
                Ok(found) => assert!(found == written.model[at as usize..at as usize + 4096]),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Unavailable);
                    assert!(error.report().contains("volume a") && error.report().contains("drive-"), "{}", error.report());
                    failed += 1;
                }
            }
        }
        assert!(failed > 0);
        let data = bytes(7, 64 << 10);
        written.volume.write(0, data.clone(), Durability::Durable).await.unwrap();
        written.model[..64 << 10].copy_from_slice(&data);
        assert_eq!(written.volume.drain().await.unwrap_err().kind(), Kind::Unavailable);
        fleet.store.heal();
        fleet.catalog.rejoin(Duration::from_secs(10)).await.unwrap();
        written.volume.drain().await.unwrap();
        written.check("all drives are back").await;
    });
}

/// How many shards lie on the drives, and how many of them extent records name.
fn shards(fleet: &Drive) -> (usize, usize) {
    let drives = 0..fleet.store.0.len();
    let stored = drives.clone().map(|at| fleet.store.keys(at, "~fext/").len()).sum();
    let mut named = std::collections::BTreeMap::new();
    for at in drives {
        for key in fleet.store.keys(at, "~fvol/a/x/") {
            let record = ExtentRecord::decode(key.as_str(), &fleet.store.0[at].inner().get(&key).unwrap()[8..]).unwrap();
            named.insert(key, record.shards.len());
        }
    }
    (stored, named.values().sum())
}

/// A merge ends at each of its changes of each drive: the extents are old or new, and what is left over is deleted.
#[test]
fn merge_that_is_cut_off_leaves_old_or_new_extents() {
    run(async {
        let mut left_over = 0;
        for step in 1..30u64 {
            for fault in [Fault::Fail(Kind::Exhausted), Fault::FailAfter(Kind::Unavailable)] {
                let (fleet, files) = (Drive::of(["ec:2+1", "replicas:2"][step as usize % 2], 3, small()), PowerFiles::new());
                let mut written = Written::new(&fleet, &files, step).await;
                written.change(20).await;
                written.volume.drain().await.unwrap();
                let at = step as usize % 3;
                fleet.store.0[at].add(Rule::new(Operation::Apply, When::From(step.div_ceil(3)), fault));
                for n in 0..6 {
                    let data = bytes(1000 * step + n, 5 * 4096);
                    let place = (n as usize * 31 % 180) * 4096;
                    written.volume.write(place as u64, data.clone(), Durability::Durable).await.unwrap();
                    written.model[place..place + data.len()].copy_from_slice(&data);
                    let _ = written.volume.drain().await;
                }
                written.volume.stop().await;
                fleet.store.heal();
                let next = fleet.restarted();
                written.volume = next.open("a", &files).await.unwrap().0;
                written.check(&format!("step {step}")).await;
                let collected = next.fleet.collect().await.unwrap();
                assert!(collected.is_complete, "step {step}");
                left_over += collected.deleted;
                let (stored, named) = shards(&next);
                assert_eq!(stored, named, "step {step}");
                written.check(&format!("step {step}, collected")).await;
                written.volume.drain().await.unwrap();
                written.check(&format!("step {step}, merged")).await;
                let (stored, named) = shards(&next);
                assert_eq!(stored, named, "step {step}, merged");
            }
        }
        assert!(left_over > 0, "no merge left anything over");
    });
}

/// What a merge could not delete on a drive that was down is deleted when it is back.
#[test]
fn parts_on_a_drive_that_was_down_are_collected() {
    run(async {
        let (fleet, files) = (Drive::of("ec:2+1", 3, small()), PowerFiles::new());
        let mut written = Written::new(&fleet, &files, 1).await;
        let leftovers = fleet.fleet.leftovers();
        for seed in [1, 2] {
            let data = bytes(seed, 64 << 10);
            written.volume.write(0, data.clone(), Durability::Durable).await.unwrap();
            written.model[..64 << 10].copy_from_slice(&data);
            written.volume.drain().await.unwrap();
            if seed == 1 {
                fleet.store.lose(1);
            }
        }
        assert!(!fleet.fleet.collect().await.unwrap().is_complete && fleet.fleet.leftovers() > leftovers);
        fleet.store.heal();
        fleet.catalog.rejoin(Duration::from_secs(10)).await.unwrap();
        let collected = fleet.fleet.collect().await.unwrap();
        assert!(collected.is_complete && collected.deleted > 0, "{collected:?}");
        let (stored, named) = shards(&fleet);
        assert_eq!(stored, named);
        written.check("collected").await;
    });
}

/// Two hosts with the same volume: the one that opened it first changes nothing more.
#[test]
fn volume_of_a_fleet_that_another_host_opened_is_lost() {
    run(async {
        let (fleet, files) = (Drive::of("ec:2+1", 3, small()), PowerFiles::new());
        fleet.create("a", MIB).await;
        let (first, _) = fleet.open("a", &files).await.unwrap();
        first.write(0, bytes(1, 4096), Durability::Durable).await.unwrap();
        let mut other = fleet.restarted();
        // Its last writes are in a journal that the other host does not have.
        assert_eq!(other.open("a", &PowerFiles::new()).await.map(drop).unwrap_err().kind(), Kind::Conflict);
        other.context.options.discard_journal = vec![name("a")];
        let (second, _) = other.open("a", &PowerFiles::new()).await.unwrap();
        second.write(0, bytes(2, 4096), Durability::Durable).await.unwrap();
        second.drain().await.unwrap();
        assert_eq!(first.drain().await.unwrap_err().kind(), Kind::Conflict);
        assert_eq!(first.write(0, bytes(3, 4096), Durability::Durable).await.unwrap_err().kind(), Kind::Conflict);
        assert!(second.read(0, 4096).await.unwrap() == bytes(2, 4096));
        assert_eq!(shards(&other), (3, 3));
    });
}

/// The host's disk is lost with its journal: what was merged is there, without as many drives as may be lost.
#[test]
fn merged_extents_survive_the_loss_of_the_journal() {
    run(async {
        for (scheme, drives) in [("ec:2+1", 3), ("replicas:2", 2)] {
            let (fleet, files) = (Drive::of(scheme, drives, small()), PowerFiles::new());
            let mut written = Written::new(&fleet, &files, 5).await;
            written.change(40).await;
            written.volume.drain().await.unwrap();
            written.volume.write(0, bytes(9, 4096), Durability::Durable).await.unwrap();
            written.volume.stop().await;
            fleet.store.lose(1);
            let mut other = fleet.restarted();
            other.context.options.discard_journal = vec![name("a")];
            written.volume = other.open("a", &PowerFiles::new()).await.unwrap().0;
            written.check(scheme).await;
        }
    });
}

/// Small reads take the parts of shards, and not whole extents.
#[test]
fn small_reads_over_shards_are_right_wherever_they_are() {
    run(async {
        for scheme in ["ec:2+1", "ec:3+1", "replicas:2"] {
            let (fleet, files) = (Drive::of(scheme, 4, Options { extent: 128 << 10, ..small() }), PowerFiles::new());
            fleet.create("a", 4 * MIB).await;
            let (volume, _) = fleet.open("a", &files).await.unwrap();
            let all = bytes(3, 4 << 20);
            for at in 0..4 {
                volume.write(at * MIB, all.slice((at * MIB) as usize..((at + 1) * MIB) as usize), Durability::Cached).await.unwrap();
            }
            volume.drain().await.unwrap();
            for n in 0..400u64 {
                let (at, len) = (n * 37 % 1000 * 4096, n % 8 * 4 * KIB + 4 * KIB);
                let len = len.min(4 * MIB - at);
                assert!(volume.read(at, len as u32).await.unwrap() == all.slice(at as usize..(at + len) as usize), "{scheme}: {len} bytes at {at}");
            }
        }
    });
}

/// A merge that began before a drive was marked as leaving may have parts there: who empties the drive waits for it.
/// Later merges have none.
#[test]
fn drive_that_leaves_waits_for_merges_that_began_before() {
    run(async {
        let (fleet, files) = (Drive::of("ec:2+1", 4, small()), PowerFiles::new());
        let mut written = Written::new(&fleet, &files, 3).await;
        let health = fleet.catalog.health();
        for leaving in 0..4 {
            let parts = || fleet.store.keys(leaving, "~fext/").len();
            fleet.ways.holds.store(true, Ordering::SeqCst);
            let merging = {
                let data = bytes(leaving as u64, SIZE);
                written.volume.write(0, data.clone(), Durability::Cached).await.unwrap();
                written.model.copy_from_slice(&data);
                let volume = Arc::clone(&written.volume);
                tokio::spawn(async move { volume.drain().await })
            };
            // Parts are on their way to every drive.
            while fleet.ways.held.load(Ordering::SeqCst) < 4 {
                tokio::task::yield_now().await;
            }
            health.set_leaving(leaving, true);
            let early = fleet.fleet.await_merges(Duration::from_millis(30)).await.unwrap_err();
            assert!(early.kind() == Kind::Unavailable && early.message().contains("are being written"), "{early}");
            let waiting = {
                let backing = Arc::clone(&fleet.fleet);
                tokio::spawn(async move { backing.await_merges(Duration::from_secs(60)).await })
            };
            fleet.ways.holds.store(false, Ordering::SeqCst);
            waiting.await.unwrap().unwrap();
            // They are there now, where the one who empties the drive sees them.
            assert!(parts() > 0);
            merging.await.unwrap().unwrap();
            // What is written from now on is on the others.
            let before = parts();
            let data = bytes(100 + leaving as u64, SIZE);
            written.volume.write(0, data.clone(), Durability::Cached).await.unwrap();
            written.model.copy_from_slice(&data);
            written.volume.drain().await.unwrap();
            assert!(before > 0 && parts() == 0, "{} parts of {before} are left on drive {leaving}", parts());
            written.check("while it leaves").await;
            health.set_leaving(leaving, false);
            fleet.ways.held.store(0, Ordering::SeqCst);
        }
    });
}

/// It is unknown whether a merge was made. Who empties a drive waits until its extents are written again.
#[test]
fn unknown_outcomes_are_settled_by_the_next_merge() {
    run(async {
        let mut unknown = 0;
        for at in 0..3 {
            for by_itself in [true, false] {
                let (fleet, files) = (Drive::of("ec:2+1", 3, small()), PowerFiles::new());
                let mut written = Written::new(&fleet, &files, at as u64).await;
                written.change(20).await;
                written.volume.drain().await.unwrap();
                let leftovers = fleet.fleet.leftovers();
                for (n, store) in fleet.store.0.iter().enumerate() {
                    let fault = if n == at { Fault::FailAfter(Kind::Unavailable) } else { Fault::Fail(Kind::Exhausted) };
                    store.add(Rule::new(Operation::Apply, When::From(1), fault).under("~fvol/"));
                }
                let data = bytes(5, SIZE);
                written.volume.write(0, data.clone(), Durability::Cached).await.unwrap();
                written.model.copy_from_slice(&data);
                let error = written.volume.drain().await.unwrap_err();
                fleet.store.heal();
                fleet.catalog.rejoin(Duration::from_secs(10)).await.unwrap();
                let waits = fleet.fleet.await_merges(Duration::from_millis(30)).await;
                assert_eq!(waits.is_err(), error.kind() == Kind::Unavailable, "drive {at}: {error}");
                if waits.is_err() {
                    unknown += 1;
                    if by_itself {
                        written.volume.drain().await.unwrap();
                        fleet.fleet.await_merges(Duration::ZERO).await.unwrap();
                        assert!(fleet.fleet.leftovers() > leftovers);
                    }
                }
                // Of all extents, as nothing is on a drive without a number.
                let moved = fleet.fleet.move_off(&BTreeSet::from([9]), Duration::ZERO, None).await.unwrap();
                assert_eq!((moved.extents, moved.left), (0, Vec::new()));
                written.check("moved").await;
                written.volume.drain().await.unwrap();
                written.check("merged").await;
                assert!(fleet.fleet.collect().await.unwrap().is_complete);
                let (stored, named) = shards(&fleet);
                assert_eq!(stored, named, "drive {at}");
                written.check("collected").await;
            }
        }
        assert!(unknown > 0);
    });
}

/// It is unknown whether a new extent was merged, and the extent is removed. That holds up no drive that leaves, and
/// the extent does not come back when the drives make that change after all.
#[test]
fn removed_extents_of_unknown_outcome_are_settled() {
    run(async {
        for merges in [false, true] {
            let (fleet, files) = (Drive::of("ec:2+1", 3, small()), PowerFiles::new());
            let mut written = Written::new(&fleet, &files, 1).await;
            let leftovers = fleet.fleet.leftovers();
            fleet.ways.swallows.store(true, Ordering::SeqCst);
            written.volume.write(64 << 10, bytes(5, 64 << 10), Durability::Cached).await.unwrap();
            assert_eq!(written.volume.drain().await.unwrap_err().kind(), Kind::Unavailable);
            fleet.ways.swallows.store(false, Ordering::SeqCst);
            fleet.catalog.rejoin(Duration::from_secs(10)).await.unwrap();
            assert_eq!(fleet.fleet.await_merges(Duration::from_millis(30)).await.unwrap_err().kind(), Kind::Unavailable);
            assert!(fleet.fleet.leftovers() > leftovers);
            written.volume.zero(64 << 10, 64 << 10, Zeros::Unmapped, Durability::Cached).await.unwrap();
            if merges {
                written.volume.drain().await.unwrap();
                fleet.fleet.await_merges(Duration::ZERO).await.unwrap();
            } else {
                fleet.fleet.move_off(&BTreeSet::from([9]), Duration::ZERO, None).await.unwrap();
            }
            let late: Vec<_> = std::mem::take(&mut *fleet.ways.late.lock());
            assert!(!late.is_empty());
            for (at, batch) in late {
                assert_eq!(fleet.store.0[at].inner().apply(batch).unwrap_err().kind(), Kind::Conflict);
            }
            written.volume.drain().await.unwrap();
            assert!(fleet.fleet.collect().await.unwrap().is_complete);
            assert_eq!(shards(&fleet), (0, 0));
            written.volume.stop().await;
            written.volume = fleet.restarted().open("a", &files).await.unwrap().0;
            written.check("opened again").await;
        }
    });
}

/// A drive that fails is asked for nothing else by the merge or the snapshot that it fails: each call to one that hangs
/// takes the whole deadline.
#[test]
fn lost_drive_is_asked_once() {
    run(async {
        for snapshots in [false, true] {
            let (fleet, files) = (Drive::of("ec:2+1", 4, small()), PowerFiles::new());
            let written = Written::new(&fleet, &files, 1).await;
            written.volume.write(0, bytes(1, 64 << 10), Durability::Cached).await.unwrap();
            if snapshots {
                written.volume.drain().await.unwrap();
            }
            for store in &fleet.store.0 {
                store.add(Rule::new(Operation::Apply, When::From(1), Fault::Fail(Kind::Unavailable)).under("~fext/"));
            }
            let at = (0..4).find(|at| snapshots && !fleet.store.keys(*at, "~fext/").is_empty());
            fleet.store.0.iter().enumerate().filter(|(n, _)| at.is_some_and(|at| at != *n)).for_each(|(_, store)| store.heal());
            let done = if snapshots { written.volume.snapshot(&name("s")).await.map(drop) } else { written.volume.drain().await };
            assert_eq!(done.is_ok(), snapshots, "{done:?}");
            let asked: Vec<u64> = fleet.store.0.iter().map(|store| store.injected()).collect();
            assert!(asked.iter().all(|times| *times <= 1) && asked.contains(&1), "{asked:?}");
        }
    });
}

/// A flush that merges waits for a merge that hangs no longer than was agreed.
#[test]
fn flush_waits_for_another_merge_with_a_deadline() {
    run(async {
        let options = Options { flush_merges: true, stall: Duration::from_millis(300), ..small() };
        let (fleet, files) = (Drive::of("ec:2+1", 3, options), PowerFiles::new());
        let mut written = Written::new(&fleet, &files, 1).await;
        written.volume.write(0, bytes(3, 4096), Durability::Cached).await.unwrap();
        written.model[..4096].copy_from_slice(&bytes(3, 4096));
        fleet.ways.holds.store(true, Ordering::SeqCst);
        let merging = {
            let volume = Arc::clone(&written.volume);
            tokio::spawn(async move { volume.drain().await })
        };
        while fleet.ways.held.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let late = tokio::time::timeout(Duration::from_secs(20), written.volume.flush()).await.unwrap().unwrap_err();
        assert!(late.kind() == Kind::Unavailable && late.message().contains("journal alone"), "{late}");
        fleet.ways.holds.store(false, Ordering::SeqCst);
        merging.await.unwrap().unwrap();
        written.volume.flush().await.unwrap();
        written.check("later").await;
    });
}

/// Where a flush merges, what was flushed survives the loss of the journal and of a drive, also of one that is lost in
/// the middle of writes.
#[test]
fn flushes_that_merge_survive_the_loss_of_the_journal() {
    run(async {
        for (scheme, drives) in [("ec:2+1", 3), ("replicas:2", 2), ("ec:2+1", 4)] {
            for lost in 0..drives {
                let options = Options { flush_merges: true, ..uncached() };
                let (fleet, files) = (Drive::of(scheme, drives, options), PowerFiles::new());
                let mut written = Written::new(&fleet, &files, lost as u64).await;
                written.change(20).await;
                written.volume.flush().await.unwrap();
                fleet.store.lose(lost);
                written.change(20).await;
                for place in [0, 300 << 10, SIZE - 4096] {
                    let data = bytes(place as u64 + 9, 4096);
                    written.volume.write(place as u64, data.clone(), Durability::Durable).await.unwrap();
                    written.model[place..place + 4096].copy_from_slice(&data);
                }
                // Not flushed: it may be lost.
                written.volume.write(64 << 10, bytes(1, 4096), Durability::Cached).await.unwrap();
                written.volume.stop().await;
                let mut other = fleet.restarted();
                other.context.options.discard_journal = vec![name("a")];
                written.volume = other.open("a", &PowerFiles::new()).await.unwrap().0;
                written.check(&format!("{scheme} over {drives} without drive {lost}")).await;
            }
        }
    });
}

/// Flushes that merge end while others write, and fail where the drives do not take what they cover.
#[test]
fn flushes_that_merge_are_bounded() {
    run(async {
        let options = Options { flush_merges: true, stall: Duration::from_millis(300), ..small() };
        let (fleet, files) = (Drive::of("ec:2+1", 3, options), PowerFiles::new());
        let mut written = Written::new(&fleet, &files, 1).await;
        let writing = {
            let volume = Arc::clone(&written.volume);
            tokio::spawn(async move {
                for n in 0.. {
                    let at = n * 37 % 190 * 4096;
                    // It may find no room in time.
                    let _ = volume.write(at, bytes(n, 4096), Durability::Cached).await;
                    tokio::task::yield_now().await;
                }
            })
        };
        for _ in 0..20 {
            tokio::time::timeout(Duration::from_secs(20), written.volume.flush()).await.unwrap().unwrap();
        }
        writing.abort();
        let _ = writing.await;
        written.volume.flush().await.unwrap();
        written.model = content(&*written.volume).await;
        fleet.store.lose(0);
        fleet.store.lose(1);
        written.volume.write(0, bytes(3, 4096), Durability::Cached).await.unwrap();
        assert_eq!(written.volume.flush().await.unwrap_err().kind(), Kind::Unavailable);
        fleet.store.heal();
        fleet.catalog.rejoin(Duration::from_secs(10)).await.unwrap();
        written.volume.flush().await.unwrap();
        written.model[..4096].copy_from_slice(&bytes(3, 4096));
        written.check("later").await;
    });
}
