//! Reads, writes, zeros and places.

use bytes::Bytes;
use skytether_common::Kind;
use skytether_volume::power::PowerFiles;
use skytether_volume::{BlockDevice, Durability, Extent, Zeros};

use crate::util::{Drive, KIB, MIB, bytes, content, run, small};

#[test]
fn writes_are_read_before_and_after_a_merge() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", 3 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let mut model = vec![0; 3 * MIB as usize];
        for (seed, at, len) in [(1, 0, 4096), (2, 512, 512), (3, 60 * KIB, 10 * KIB), (4, MIB - 1024, 3072), (5, 2 * MIB, MIB), (6, 100 * KIB, 2 * MIB)] {
            let data = bytes(seed, len.min(3 * MIB - at) as usize);
            volume.write(at, data.clone(), Durability::Cached).await.unwrap();
            model[at as usize..at as usize + data.len()].copy_from_slice(&data);
            assert_eq!(volume.read(at, data.len() as u32).await.unwrap(), data);
        }
        assert!(content(&*volume).await == model);
        volume.drain().await.unwrap();
        assert!(content(&*volume).await == model);
        // Small reads of evicted extents.
        for at in (0..3 * MIB).step_by(36 * 512) {
            let len = 512.min(3 * MIB - at) as u32;
            assert_eq!(volume.read(at, len).await.unwrap(), &model[at as usize..at as usize + len as usize], "at {at}");
        }
        volume.close().await.unwrap();
        let (volume, recovery) = drive.restarted().open("a", &files).await.unwrap();
        assert_eq!(recovery.dropped, 0);
        assert!(content(&*volume).await == model);
    });
}

#[test]
fn places_that_are_no_blocks_are_invalid() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        for (at, len) in [(1, 512), (0, 511), (MIB, 512), (u64::MAX - 511, 512), (MIB - 512, 1024)] {
            assert_eq!(volume.read(at, len).await.unwrap_err().kind(), Kind::Invalid, "{at} {len}");
            let data = Bytes::from(vec![0; len as usize]);
            assert_eq!(volume.write(at, data.clone(), Durability::Cached).await.unwrap_err().kind(), Kind::Invalid);
            assert_eq!(volume.compare_and_write(at, data.clone(), data, Durability::Cached).await.unwrap_err().kind(), Kind::Invalid);
            assert_eq!(volume.zero(at, len.into(), Zeros::Mapped, Durability::Cached).await.unwrap_err().kind(), Kind::Invalid);
            assert_eq!(volume.extents(at, len.into()).await.unwrap_err().kind(), Kind::Invalid);
        }
        assert!(volume.read(MIB, 0).await.unwrap().is_empty());
    });
}

fn mapped(at: u64, len: u64) -> Extent {
    Extent { at, len, mapped: true }
}

fn unmapped(at: u64, len: u64) -> Extent {
    Extent { at, len, mapped: false }
}

#[test]
fn unmapped_extents_have_no_key_and_read_as_zeros() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB + 4096).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        assert_eq!(volume.extents(0, MIB).await.unwrap(), [unmapped(0, MIB)]);
        volume.write(0, bytes(1, MIB as usize), Durability::Cached).await.unwrap();
        volume.write(MIB, bytes(1, 4096), Durability::Cached).await.unwrap();
        let keys = async || drive.context.backing.list("~vol/a/x/", None, 100).await.unwrap().len();
        for merged in [false, true] {
            if merged {
                volume.drain().await.unwrap();
                assert_eq!(keys().await, 17);
            }
            assert_eq!(volume.extents(0, MIB + 4096).await.unwrap(), [mapped(0, MIB + 4096)]);
        }
        // From within one extent to within another, and the last extent, which the volume's end cuts.
        volume.zero(60 * KIB, 200 * KIB, Zeros::Unmapped, Durability::Cached).await.unwrap();
        volume.zero(MIB, 4096, Zeros::Unmapped, Durability::Cached).await.unwrap();
        let places = [mapped(0, 64 * KIB), unmapped(64 * KIB, 192 * KIB), mapped(256 * KIB, 768 * KIB), unmapped(MIB, 4096)];
        for merged in [false, true] {
            if merged {
                volume.drain().await.unwrap();
                assert_eq!(keys().await, 13);
            }
            assert_eq!(volume.extents(0, MIB + 4096).await.unwrap(), places);
            assert_eq!(volume.extents(65 * KIB, 512).await.unwrap(), [unmapped(65 * KIB, 512)]);
            assert_eq!(volume.read(60 * KIB, 200 << 10).await.unwrap(), vec![0; 200 << 10]);
            assert_eq!(volume.read(56 * KIB, 4096).await.unwrap(), bytes(1, MIB as usize).slice(56 << 10..60 << 10));
        }
        // Zeros that stay mapped; then pieces that together unmap the extent.
        volume.zero(128 * KIB, 64 * KIB, Zeros::Mapped, Durability::Cached).await.unwrap();
        volume.drain().await.unwrap();
        assert_eq!(keys().await, 14);
        for at in (128..192).step_by(16) {
            volume.zero(at * KIB, 16 * KIB, Zeros::Unmapped, Durability::Cached).await.unwrap();
            volume.drain().await.unwrap();
        }
        assert_eq!(keys().await, 13);
        volume.zero(0, MIB + 4096, Zeros::Unmapped, Durability::Durable).await.unwrap();
        volume.drain().await.unwrap();
        assert_eq!((keys().await, volume.extents(0, MIB).await.unwrap()), (0, vec![unmapped(0, MIB)]));
    });
}

#[test]
fn huge_thin_volumes_take_zeros_without_work() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        let size = 64u64 << 40;
        drive.create("a", size).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        volume.write(size - 4096, bytes(1, 4096), Durability::Cached).await.unwrap();
        volume.write(size / 2, bytes(2, 4096), Durability::Cached).await.unwrap();
        volume.drain().await.unwrap();
        volume.zero(0, size - 64 * KIB, Zeros::Unmapped, Durability::Durable).await.unwrap();
        volume.drain().await.unwrap();
        assert_eq!(volume.read(size - 4096, 4096).await.unwrap(), bytes(1, 4096));
        assert_eq!(volume.extents(0, size).await.unwrap(), [unmapped(0, size - 64 * KIB), mapped(size - 64 * KIB, 64 * KIB)]);
        // Zeros that stay mapped take room in the journal's index, and are merged meanwhile.
        volume.zero(0, 40 * MIB, Zeros::Mapped, Durability::Cached).await.unwrap();
        assert!(volume.usage().unmerged_extents <= small().dirty_extents, "{:?}", volume.usage());
        assert_eq!(volume.extents(0, 41 * MIB).await.unwrap(), [mapped(0, 40 * MIB), unmapped(40 * MIB, MIB)]);
    });
}

#[test]
fn comparing_writes_only_what_is_as_expected() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        let (old, new) = (bytes(1, 1024), bytes(2, 1024));
        let swap = |expected: &Bytes, data: &Bytes| volume.compare_and_write(3584, expected.clone(), data.clone(), Durability::Durable);
        assert_eq!(swap(&Bytes::from(vec![0; 1024]), &old).await.unwrap(), None);
        assert_eq!(swap(&new, &old).await.unwrap(), old.iter().zip(&new).position(|(a, b)| a != b).map(|at| at as u32));
        let mut nearly = old.to_vec();
        nearly[1000] ^= 1;
        assert_eq!(swap(&nearly.into(), &new).await.unwrap(), Some(1000));
        assert_eq!(swap(&old, &new).await.unwrap(), None);
        assert_eq!(volume.read(3584, 1024).await.unwrap(), new);
        assert_eq!(swap(&old, &new.slice(..512)).await.unwrap_err().kind(), Kind::Invalid);
    });
}

#[test]
fn sequential_writes_beyond_the_journal_wait_for_merges() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", 32 * MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        for at in 0..32 {
            volume.write(at * MIB, bytes(at, MIB as usize), Durability::Cached).await.unwrap();
            assert!(files.bytes() <= small().journal_bytes + 2 * small().segment_bytes, "{} bytes", files.bytes());
            assert!(drive.context.cache.bytes() <= small().cache_bytes);
            assert!(volume.usage().journal_bytes <= small().journal_bytes && volume.usage().unmerged <= 1024, "{:?}", volume.usage());
        }
        for at in 0..32 {
            assert!(volume.read(at * MIB, MIB as u32).await.unwrap() == bytes(at, MIB as usize));
            assert!(drive.context.cache.bytes() <= small().cache_bytes);
        }
    });
}

/// What a door keeps with a volume outlives the process. One that lost the volume changes nothing of it.
#[test]
fn notes_stay_with_their_volume() {
    run(async {
        let (drive, files) = (Drive::new(small()), PowerFiles::new());
        drive.create("a", MIB).await;
        let (volume, _) = drive.open("a", &files).await.unwrap();
        assert!(volume.keeps_notes() && volume.note("keys").await.unwrap().is_none());
        for value in ["one", "two"] {
            volume.keep_note("keys", Some(value.into())).await.unwrap();
        }
        volume.keep_note("other", Some("three".into())).await.unwrap();
        let (next, _) = drive.restarted().open("a", &files).await.unwrap();
        assert_eq!(next.note("keys").await.unwrap().unwrap(), "two");
        assert_eq!(volume.keep_note("keys", None).await.unwrap_err().kind(), Kind::Conflict);
        next.keep_note("keys", None).await.unwrap();
        next.keep_note("keys", None).await.unwrap();
        assert_eq!((next.note("keys").await.unwrap(), next.note("other").await.unwrap().unwrap()), (None, Bytes::from("three")));
        assert_eq!(next.keep_note("other", Some(vec![0; 2 << 20].into())).await.unwrap_err().kind(), Kind::Exhausted);
        // They are no extents of it.
        assert!(content(&*next).await.iter().all(|byte| *byte == 0));
    });
}
