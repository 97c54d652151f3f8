//! Damaged bytes are named and never delivered.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::{Key, Kind, Result};
use skytether_device::verify::{Verified, Verify};
use skytether_store::fault::{Fault, Operation, Rule, When};
use skytether_store::{Entry, Op, Version};
use skytether_volume::power::PowerFiles;
use skytether_volume::{Backing, BlockDevice, Durability, Options, Zeros};

use crate::util::{Drive, KIB, MIB, bytes, damaged, name, passes_on, run, small};

#[test]
fn damaged_extent_is_named_and_others_are_read() {
    run(async {
        let files = PowerFiles::new();
        let (drive, volume) = damaged(&files).await;
        let error = volume.read(200 * KIB, 4096).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        let text = error.report();
        assert!(text.contains("volume a") && text.contains("extent 3") && text.contains("196608"), "{text}");
        assert!(volume.read(64 * KIB, 4096).await.unwrap() == bytes(1, MIB as usize).slice(64 << 10..68 << 10));
        // A part of it can't be merged, and stays readable in the journal; the other extents go on.
        volume.write(192 * KIB, bytes(2, 4096), Durability::Durable).await.unwrap();
        volume.write(0, bytes(3, 4096), Durability::Cached).await.unwrap();
        assert_eq!(volume.drain().await.unwrap_err().kind(), Kind::Corrupt);
        assert!(volume.read(192 * KIB, 4096).await.unwrap() == bytes(2, 4096));
        // Written as a whole, it is mended.
        volume.write(192 * KIB, bytes(4, 64 << 10), Durability::Cached).await.unwrap();
        volume.drain().await.unwrap();
        drive.store.heal();
        assert!(volume.read(192 * KIB, 64 << 10).await.unwrap() == bytes(4, 64 << 10));
    });
}

/// Writes to a damaged extent stay in the journal, and do not fill it.
#[test]
fn damaged_extent_does_not_stop_the_volume() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", 8 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        volume.write(0, bytes(1, 8 << 20), Durability::Cached).await.unwrap();
        volume.release().await.unwrap();
        let drive = drive.restarted();
        let (volume, _) = drive.open("a", &files).await.unwrap();
        drive.store.add(Rule::new(Operation::Get, When::From(1), Fault::Corrupt).under("~vol/a/x/000000000000"));
        volume.write(8192, bytes(2, 4096), Durability::Cached).await.unwrap();
        volume.zero(16384, 4096, Zeros::Mapped, Durability::Cached).await.unwrap();
        for n in 0..40 {
            volume.write((n % 7 + 1) * MIB, bytes(n, 1 << 20), Durability::Cached).await.unwrap();
        }
        assert!(volume.read(8192, 4096).await.unwrap() == bytes(2, 4096));
        volume.flush().await.unwrap();
        volume.stop().await;
        let drive = drive.restarted();
        let (volume, _) = drive.open("a", &files).await.unwrap();
        assert!(volume.read(8192, 4096).await.unwrap() == bytes(2, 4096));
        assert!(volume.read(16384, 4096).await.unwrap() == vec![0; 4096]);
        assert_eq!(volume.read(4096, 4096).await.unwrap_err().kind(), Kind::Corrupt);
        drive.store.heal();
        volume.drain().await.unwrap();
        assert!(volume.read(4096, 4096).await.unwrap() == bytes(1, 8 << 20).slice(4096..8192));
        assert!(volume.read(8192, 4096).await.unwrap() == bytes(2, 4096));
    });
}

/// A drive whose unverified reads have a flipped bit every third time.
#[derive(Debug)]
struct Flipping(Arc<dyn Backing>, AtomicU64);

impl Backing for Flipping {
    passes_on!();
    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        self.0.apply(batch)
    }
    fn get_range_unverified<'a>(&'a self, key: &'a Key, range: Range<u64>) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let mut bytes = self.0.get_range_unverified(key, range).await?.to_vec();
            if self.1.fetch_add(1, Ordering::Relaxed) % 3 == 2 {
                let at = bytes.len() / 2;
                bytes[at] ^= 1;
            }
            Ok(bytes.into())
        })
    }
}

/// Small reads do not let the store verify the whole value; they have checksums of their own, and read the whole where
/// these differ.
#[test]
fn flipped_bit_in_a_small_read_is_not_delivered() {
    run(async {
        let (mut drive, files) = (Drive::new(small()), PowerFiles::new());
        let flipping = Arc::new(Flipping(Arc::clone(&drive.context.backing), AtomicU64::new(0)));
        drive.context.backing = flipping.clone();
        drive.create("a", 4 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        for at in 0..4 {
            volume.write(at * MIB, bytes(at, MIB as usize), Durability::Cached).await.unwrap();
        }
        volume.drain().await.unwrap();
        for n in 0..200u64 {
            let at = n * 37 % 1024 * 4096;
            let found = volume.read(at, 4096).await.unwrap();
            assert!(found == bytes(at / MIB, MIB as usize).slice((at % MIB) as usize..(at % MIB) as usize + 4096), "bytes at {at} are wrong");
        }
        let unverified = flipping.1.load(Ordering::Relaxed);
        assert!(unverified > 90, "{unverified} reads were small");
    });
}

/// Any byte of a segment: a record that was durable is missed, data that was not read again is found by its checksum.
#[test]
fn damaged_journal_is_named_wherever_it_is() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        for n in 0..4u64 {
            volume.write(n * 8192, bytes(n, 8192), Durability::Cached).await.unwrap();
        }
        volume.flush().await.unwrap();
        volume.stop().await;
        drop(volume);
        let segment = "0000000000000001.segment";
        let len = files.content(segment).unwrap().len();
        for at in (0..len).step_by(97).chain([len - 1]) {
            files.damage(segment, at).unwrap();
            let error = drive.open("a", &files).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "byte {at}");
            assert!(error.report().contains("volume a") && error.report().contains(segment), "byte {at}: {}", error.report());
            files.damage(segment, at).unwrap();
        }
        // Damage while it is open.
        let (volume, recovery) = drive.open("a", &files).await.unwrap();
        assert_eq!(recovery.records, 4);
        files.damage(segment, len - 4096 - 1).unwrap();
        let error = volume.read(3 * 8192, 8192).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.report().contains("volume a") && error.report().contains("24576"), "{}", error.report());
        assert_eq!(volume.drain().await.unwrap_err().kind(), Kind::Corrupt);
        assert!(volume.read(2 * 8192, 8192).await.unwrap() == bytes(2, 8192));
    });
}

#[test]
fn missing_and_foreign_journals_are_refused() {
    use skytether_volume::files::Files;
    run(async {
        let roomy = Options { journal_bytes: 20 * MIB, ..small() };
        let (drive, files) = (Drive::new(roomy), PowerFiles::new());
        drive.create("a", 8 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        for n in 0..3 {
            volume.write(n * MIB, bytes(n, MIB as usize), Durability::Durable).await.unwrap();
        }
        volume.stop().await;
        let other = PowerFiles::new();
        assert_eq!(drive.open("a", &other).await.map(drop).unwrap_err().kind(), Kind::Conflict);
        let names = files.list().unwrap();
        assert_eq!(names.iter().filter(|name| name.ends_with(".segment")).count(), 3, "{names:?}");
        let second = "0000000000000002.segment";
        files.remove(second).unwrap();
        let error = drive.open("a", &files).await.map(drop).unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.report().contains(second), "{}", error.report());
        // The operator decides to lose what is only there.
        let mut given_up = drive.restarted();
        given_up.context.options.discard_journal = vec![name("a")];
        let (volume, _) = given_up.open("a", &files).await.unwrap();
        assert!(volume.read(0, 4096).await.unwrap() == vec![0; 4096]);
    });
}

/// Two processes with the same volume: the one that opened it first changes nothing more.
#[test]
fn volume_that_another_process_opened_is_lost() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB).await;
        let (first, _) = drive.open("a", &files).await.unwrap();
        first.write(0, bytes(1, 4096), Durability::Durable).await.unwrap();
        let mut other = drive.restarted();
        other.context.options.discard_journal = vec![name("a")];
        let (second, _) = other.open("a", &PowerFiles::new()).await.unwrap();
        second.write(0, bytes(2, 4096), Durability::Durable).await.unwrap();
        second.drain().await.unwrap();
        assert_eq!(first.drain().await.unwrap_err().kind(), Kind::Conflict);
        assert_eq!(first.write(0, bytes(3, 4096), Durability::Durable).await.unwrap_err().kind(), Kind::Conflict);
        assert!(second.read(0, 4096).await.unwrap() == bytes(2, 4096));
        first.stop().await;
        // Its journal is not taken for that of the volume.
        second.stop().await;
        assert_eq!(drive.open("a", &files).await.map(drop).unwrap_err().kind(), Kind::Conflict);
    });
}

/// A volume whose journal is damaged is given up; the journals of others, and its own where it can be read, are used.
#[test]
fn discarding_a_journal_spares_healthy_ones() {
    run(async {
        let drive = Drive::new(small());
        let (a, b) = (PowerFiles::new(), PowerFiles::new());
        for (name, files) in [("a", &a), ("b", &b)] {
            drive.create(name, MIB).await;
            let (volume, _) = drive.open(name, files).await.unwrap();
            volume.write(0, bytes(1, 4096), Durability::Durable).await.unwrap();
            volume.stop().await;
        }
        a.damage("0000000000000001.segment", 200).unwrap();
        let mut given_up = drive.restarted();
        given_up.context.options.discard_journal = vec![name("b")];
        assert_eq!(given_up.open("a", &a).await.map(drop).unwrap_err().kind(), Kind::Corrupt);
        given_up.context.options.discard_journal = vec![name("a"), name("b")];
        let (found, _) = given_up.open("a", &a).await.unwrap();
        assert!(found.read(0, 4096).await.unwrap() == vec![0; 4096]);
        let (found, recovery) = given_up.open("b", &b).await.unwrap();
        assert!(recovery.records == 1 && found.read(0, 4096).await.unwrap() == bytes(1, 4096));
    });
}

/// Three full segments: damage of any record of each, or a whole one that is gone, is a loss of durable writes.
#[test]
fn loss_of_any_segment_is_corrupt() {
    use skytether_volume::files::Files;
    run(async {
        let roomy = Options { journal_bytes: 20 * MIB, ..small() };
        let (drive, files) = (Drive::new(roomy), PowerFiles::new());
        drive.create("a", 8 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        for n in 0..12 {
            volume.write(n * 256 * KIB, bytes(n, 256 << 10), Durability::Durable).await.unwrap();
        }
        volume.stop().await;
        drop(volume);
        let segments = [1, 2, 3, 4].map(|number| format!("{number:016x}.segment"));
        for segment in &segments[..3] {
            // The head of a record, its table, its data, for the first record and others.
            for at in [70, 200, 20_000, 270_000, 600_000, 1_000_000] {
                files.damage(segment, at).unwrap();
                let error = drive.open("a", &files).await.map(drop).unwrap_err();
                assert!(error.kind() == Kind::Corrupt && error.report().contains(segment), "byte {at}: {}", error.report());
                files.damage(segment, at).unwrap();
            }
        }
        let first = files.content(&segments[0]).unwrap();
        files.remove(&segments[0]).unwrap();
        let error = drive.open("a", &files).await.map(drop).unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.report().contains(&segments[0]), "{}", error.report());
        files.create(&segments[0], &first).unwrap();
        let (volume, recovery) = drive.restarted().open("a", &files).await.unwrap();
        assert_eq!((recovery.records, recovery.dropped), (12, 0));
        for n in 0..12 {
            assert!(volume.read(n * 256 * KIB, 256 << 10).await.unwrap() == bytes(n, 256 << 10));
        }
    });
}
