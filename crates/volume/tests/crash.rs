//! Ends of the process, losses of power and failing steps: what was acknowledged as durable is there, and each physical
//! block is old or new.

use std::sync::Arc;
use std::time::Duration;

use skytether_common::Kind;
use skytether_store::fault::{Fault, Operation, Rule, When};
use skytether_volume::power::{Failure, PowerFiles};
use skytether_volume::{BlockDevice, Durability, Options, Volume, Zeros};

use crate::util::{Drive, KIB, bytes, content, is_soak, run, small};

const BLOCK: usize = 4096;
const BLOCKS: usize = 96;
const SIZE: u64 = (BLOCKS * BLOCK) as u64;

/// What each block may have: the value that is durable, and all that were written since. Values are numbers that fill
/// the block, so that a mixed one is seen.
struct Model(Vec<Vec<u64>>);

fn filled(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK / 8)
}

impl Model {
    fn new() -> Self {
        Self(vec![vec![0]; BLOCKS])
    }

    fn written(&mut self, blocks: std::ops::Range<usize>, value: u64) {
        for block in &mut self.0[blocks] {
            block.push(value);
        }
    }

    /// All that is acknowledged is durable now.
    fn durable(&mut self) {
        for block in &mut self.0 {
            *block = vec![block[block.len() - 1]];
        }
    }

    /// Compares, and takes what was found as the present.
    fn check(&mut self, found: &[u8], only_last: bool, seed: u64) {
        for (at, (block, may)) in found.chunks(BLOCK).zip(&mut self.0).enumerate() {
            let value = u64::from_le_bytes(block[..8].try_into().unwrap());
            assert!(block == filled(value), "seed {seed}: block {at} is mixed");
            assert!(may.contains(&value), "seed {seed}: block {at} has {value}, not one of {may:?}");
            assert!(!only_last || may[may.len() - 1] == value, "seed {seed}: block {at} has {value}, not the last of {may:?}");
            *may = vec![value];
        }
    }
}

/// Random changes; whether one failed. `model` knows what may be there afterwards.
async fn change(volume: &Volume, model: &mut Model, random: &mut fastrand::Rng, count: usize) -> Option<Kind> {
    for _ in 0..count {
        let from = random.usize(0..BLOCKS);
        let blocks = from..(from + random.usize(1..24)).min(BLOCKS);
        let (at, len) = ((blocks.start * BLOCK) as u64, blocks.len() * BLOCK);
        let durability = if random.u8(0..6) == 0 { Durability::Durable } else { Durability::Cached };
        let mut changed = true;
        let done = match random.u8(0..12) {
            0 => volume.flush().await.map(|()| model.durable()),
            1 => {
                changed = false;
                volume.drain().await
            }
            2 | 3 => {
                model.written(blocks, 0);
                let how = if random.bool() { Zeros::Mapped } else { Zeros::Unmapped };
                volume.zero(at, len as u64, how, durability).await
            }
            _ => {
                let value = random.u64(1..);
                model.written(blocks, value);
                volume.write(at, value.to_le_bytes().repeat(len / 8).into(), durability).await
            }
        };
        if let Err(error) = done {
            return Some(error.kind());
        }
        if changed && durability == Durability::Durable {
            // A flush is for all that was written before.
            model.durable();
        }
    }
    None
}

fn options() -> Options {
    Options { stall: Duration::from_millis(50), idle: Duration::from_millis(1), ..small() }
}

async fn opened(drive: &Drive, files: &PowerFiles, seed: u64) -> Arc<Volume> {
    drive.open("a", files).await.unwrap_or_else(|error| panic!("seed {seed}: {}", error.report())).0
}

fn rounds() -> u64 {
    if is_soak() { 5000 } else { 150 }
}

/// The process ends without a flush: everything that was acknowledged is there.
#[test]
fn killed_process_loses_nothing_acknowledged() {
    run(async {
        for seed in 0..rounds() {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut drive, files) = (Drive::new(options()), PowerFiles::new());
            drive.create("a", SIZE).await;
            let mut model = Model::new();
            for _ in 0..3 {
                let volume = opened(&drive, &files, seed).await;
                let count = random.usize(0..25);
                assert_eq!(change(&volume, &mut model, &mut random, count).await, None, "seed {seed}");
                volume.stop().await;
                drive = drive.restarted();
                let volume = opened(&drive, &files, seed).await;
                model.check(&content(&*volume).await, true, seed);
                volume.stop().await;
            }
        }
    });
}

/// Of what was not flushed, any sectors are lost.
#[test]
fn power_loss_keeps_what_was_flushed_and_whole_blocks() {
    run(async {
        let (mut dropped, mut reused) = (0, 0);
        for seed in 0..rounds() {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut drive, files) = (Drive::new(options()), PowerFiles::new());
            drive.create("a", SIZE).await;
            let mut model = Model::new();
            for _ in 0..3 {
                let (volume, recovery) = drive.open("a", &files).await.unwrap_or_else(|error| panic!("seed {seed}: {}", error.report()));
                dropped += recovery.dropped;
                model.check(&content(&*volume).await, false, seed);
                // Recovery made durable what it found.
                model.durable();
                let count = random.usize(0..25);
                assert_eq!(change(&volume, &mut model, &mut random, count).await, None, "seed {seed}");
                volume.stop().await;
                drop(volume);
                let kept = random.u8(..);
                files.lose_power(|| random.u8(..) < kept);
                drive = drive.restarted();
            }
            let volume = opened(&drive, &files, seed).await;
            model.check(&content(&*volume).await, false, seed);
            reused += files.reused();
        }
        assert!(dropped > 0, "no loss of power cut off a record before others");
        assert!(reused > 0, "no file of the journal was used again");
    });
}

/// A step of the journal's disk fails, or it and all later ones; then the power is lost.
#[test]
fn failing_journal_says_so_and_keeps_what_was_durable() {
    run(async {
        let mut failures = 0;
        for seed in 0..2 * rounds() {
            let mut random = fastrand::Rng::with_seed(seed);
            let (drive, files) = (Drive::new(options()), PowerFiles::new());
            drive.create("a", SIZE).await;
            let mut model = Model::new();
            let volume = opened(&drive, &files, seed).await;
            let at = files.steps() + random.u64(1..60);
            files.fail(Some(Failure { at, carried_out: random.bool(), stays: random.bool() }));
            if let Some(kind) = change(&volume, &mut model, &mut random, 60).await {
                assert!(matches!(kind, Kind::Unavailable | Kind::Exhausted), "seed {seed}: {kind:?}");
                failures += 1;
                // Reads go on.
                let found = content(&*volume).await;
                for (block, may) in found.chunks(BLOCK).zip(&model.0) {
                    assert!(may.contains(&u64::from_le_bytes(block[..8].try_into().unwrap())), "seed {seed}");
                }
            }
            volume.stop().await;
            drop(volume);
            let kept = random.u8(..);
            files.lose_power(|| random.u8(..) < kept);
            let volume = opened(&drive.restarted(), &files, seed).await;
            model.check(&content(&*volume).await, false, seed);
        }
        assert!(failures > 20, "{failures}");
    });
}

/// A block is durable, a newer one is not, and the next flush fails.
async fn about_to_fail() -> (Drive, PowerFiles, Arc<Volume>) {
    let (drive, files) = (Drive::new(small()), PowerFiles::new());
    drive.create("a", SIZE).await;
    let volume = opened(&drive, &files, 0).await;
    volume.write(0, bytes(1, BLOCK), Durability::Durable).await.unwrap();
    volume.write(0, bytes(2, BLOCK), Durability::Cached).await.unwrap();
    files.fail(Some(Failure { at: files.steps() + 1, carried_out: false, stays: true }));
    (drive, files, volume)
}

/// A flush that failed is never followed by one that succeeds: what the system dropped is not known.
#[test]
fn failed_flush_is_never_forgotten() {
    run(async {
        let (drive, files, volume) = about_to_fail().await;
        for _ in 0..3 {
            assert_eq!(volume.flush().await.unwrap_err().kind(), Kind::Unavailable);
            // The disk is well again.
            files.fail(None);
            assert_eq!(volume.write(0, bytes(3, BLOCK), Durability::Cached).await.unwrap_err().kind(), Kind::Unavailable);
        }
        assert!(volume.read(0, BLOCK as u32).await.unwrap() == bytes(2, BLOCK));
        volume.stop().await;
        drop(volume);
        files.lose_power(|| false);
        let volume = opened(&drive.restarted(), &files, 0).await;
        assert!(volume.read(0, BLOCK as u32).await.unwrap() == bytes(1, BLOCK));
    });
}

/// A flush fails and the process ends. What its successor reads is durable, though the system takes it for written.
#[test]
fn what_is_read_after_a_failed_flush_is_durable() {
    run(async {
        let (drive, files, volume) = about_to_fail().await;
        assert_eq!(volume.flush().await.unwrap_err().kind(), Kind::Unavailable);
        // The disk is well again.
        files.fail(None);
        volume.stop().await;
        drop(volume);
        files.restart();
        let volume = opened(&drive.restarted(), &files, 0).await;
        volume.flush().await.unwrap();
        assert!(volume.read(0, BLOCK as u32).await.unwrap() == bytes(2, BLOCK));
        volume.stop().await;
        drop(volume);
        files.lose_power(|| false);
        let volume = opened(&drive.restarted(), &files, 0).await;
        assert!(volume.read(0, BLOCK as u32).await.unwrap() == bytes(2, BLOCK));
    });
}

/// The drive fails at any operation, with an answer that got lost or not; then the process ends.
#[test]
fn failing_store_never_loses_acknowledged_writes() {
    run(async {
        let mut failures = 0;
        for seed in 0..2 * rounds() {
            let mut random = fastrand::Rng::with_seed(seed);
            let (drive, files) = (Drive::new(options()), PowerFiles::new());
            drive.create("a", SIZE).await;
            let mut model = Model::new();
            let volume = opened(&drive, &files, seed).await;
            let fault = if random.bool() { Fault::Fail(Kind::Unavailable) } else { Fault::FailAfter(Kind::Unavailable) };
            let when = match random.u8(0..3) {
                0 => When::Nth(random.u64(1..8)),
                1 => When::From(random.u64(1..8)),
                _ => When::Chance { per_mille: 300, seed },
            };
            let operation = if random.bool() { Operation::Apply } else { Operation::Any };
            drive.store.add(Rule::new(operation, when, fault));
            for _ in 0..8 {
                let failed = change(&volume, &mut model, &mut random, 6).await;
                failures += u64::from(failed.is_some());
            }
            drive.store.heal();
            // With the drive back, the same volume goes on.
            volume.write(0, filled(7).into(), Durability::Cached).await.unwrap();
            model.written(0..1, 7);
            if random.bool() {
                volume.drain().await.unwrap_or_else(|error| panic!("seed {seed}: {}", error.report()));
            }
            model.check(&content(&*volume).await, true, seed);
            volume.stop().await;
            let volume = opened(&drive.restarted(), &files, seed).await;
            model.check(&content(&*volume).await, true, seed);
        }
        assert!(failures > 20, "{failures}");
    });
}

/// With a drive that fails, writers wait for the deadline and then learn why.
#[test]
fn full_journal_over_a_failing_drive_is_an_error() {
    run(async {
        for (fault, kind) in [(Kind::Unavailable, Kind::Unavailable), (Kind::Exhausted, Kind::Exhausted)] {
            let (drive, files) = (Drive::new(options()), PowerFiles::new());
            drive.create("a", 64 << 20).await;
            let volume = opened(&drive, &files, 0).await;
            drive.store.add(Rule::new(Operation::Apply, When::From(1), Fault::Fail(fault)));
            let mut done = 0;
            let error = loop {
                match volume.write(done * 512 * KIB, bytes(done, 512 << 10), Durability::Cached).await {
                    Ok(()) => done += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), kind);
            assert!(error.report().contains("volume a") && error.report().contains("injected fault"), "{}", error.report());
            assert!(files.bytes() <= options().journal_bytes + 2 * options().segment_bytes);
            // What was acknowledged is there; and when the drive is back, all goes on.
            for n in 0..done {
                assert!(volume.read(n * 512 * KIB, 512 << 10).await.unwrap() == bytes(n, 512 << 10));
            }
            volume.flush().await.unwrap();
            drive.store.heal();
            volume.drain().await.unwrap();
            volume.write(0, bytes(99, 512 << 10), Durability::Durable).await.unwrap();
        }
    });
}
