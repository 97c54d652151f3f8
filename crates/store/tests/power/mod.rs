//! Power losses at any moment, torn writes to the index, and disks that acknowledge flushes without doing them.
//!
//! The tests record a store's writes and flushes and replay them on a [`Disk`] that can lose power. They open what each
//! loss leaves.
#![allow(clippy::unwrap_used, clippy::panic)]

mod disk;
mod record;

use std::collections::HashSet;
use std::path::Path;

use crate::common::{assert_no_leaks, bytes, contents, delete, everything, identity, key, options, put};
use bytes::Bytes;
use fastrand::Rng;

use disk::{Change, Disk, Event, Image, Leaves, Node};
use record::{Holds, INDEX, Noted, Recorder};
use skytether_common::Kind;
use skytether_common::checksum::crc32c;
use skytether_store::disk::{DiskStore, OpenOptions, Sync};
use skytether_store::{Expect, Op, SliceStore};

/// Length of the index's header.
const HEADER: usize = 320;

/// Adds something, replaces something, has another name for what the batch before added, and takes
/// the one before that away.
fn batch(n: usize) -> Vec<Op> {
    let added = |n: usize| bytes(10 * n as u64 + 1, 1500 + n);
    let mut ops = vec![put(&format!("a/{n}"), added(n)), put("root", bytes(10 * n as u64 + 2, 40))];
    if let Some(before) = n.checked_sub(1) {
        let (from, value) = (key(&format!("a/{before}")), added(before));
        ops.push(Op::Link { key: key(&format!("l/{n}")), from, len: value.len() as u64, crc32c: crc32c(&value), expect: Expect::Any });
    }
    if let Some(gone) = n.checked_sub(2) {
        ops.push(delete(&format!("a/{gone}")));
    }
    ops
}

/// What a store holds after the first `n` batches.
fn state(n: usize) -> Vec<(String, Bytes)> {
    contents(&(0..n).map(batch).collect::<Vec<_>>())
}

/// How many batches a store holds that has this, whole; as many as it may.
fn held(found: &[(String, Bytes)], holds: Holds, what: &str) -> usize {
    let held = (holds.least..=holds.most).find(|n| found == state(*n));
    let keys = || found.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>();
    held.unwrap_or_else(|| panic!("{what}: {:?} is not what {} or {} batches leave", keys(), holds.least, holds.most))
}

/// Opens and closes the drive in `dir` once per entry of `runs`, and writes that number of batches in between. Returns
/// what happened in the directory.
fn record(dir: &Path, mut holds: Holds, runs: &[usize]) -> Vec<Noted> {
    let recorder = Recorder::new(dir, holds);
    recorder.holds(holds);
    for batches in runs {
        let watched = OpenOptions { create: Some(identity()), crash_point: Some(recorder.clone()), ..OpenOptions::default() };
        let store = DiskStore::open(dir, watched).unwrap();
        // A state that a reader has seen must stay.
        holds.least = held(&everything(&store), holds, "opened");
        holds.most = holds.least;
        recorder.holds(holds);
        for _ in 0..*batches {
            holds.most += 1;
            recorder.holds(holds);
            let versions = store.apply(batch(holds.least)).unwrap();
            holds.least += 1;
            holds.newest = versions.into_iter().fold(holds.newest, u64::max);
            recorder.holds(holds);
        }
        drop(store);
        recorder.holds(holds);
    }
    recorder.noted()
}

/// That a drive that was left like this opens, holds what it may, and can be used on; how many batches it holds.
fn opens_whole(image: &Image, holds: Holds, what: &str) -> usize {
    let dir = tempfile::tempdir().unwrap();
    image.write(dir.path());
    let store = DiskStore::open(dir.path(), options(Sync::None)).unwrap_or_else(|e| panic!("{what}: {}", e.report()));
    assert_eq!(store.recovery().damaged, [], "{what}");
    let held = held(&everything(&store), holds, what);
    assert_no_leaks(dir.path(), &store);
    let versions = store.apply(batch(held)).unwrap_or_else(|e| panic!("{what}: {}", e.report()));
    assert!(versions[0] > holds.newest, "{what}: version {} comes again", versions[0]);
    assert_eq!(everything(&store), state(held + 1), "{what}");
    assert_no_leaks(dir.path(), &store);
    held
}

/// What was found after losses of power.
#[derive(Debug, Default)]
struct Tally {
    images: usize,
    /// Those without a batch that was begun and not acknowledged, and those with it.
    old: usize,
    new: usize,
}

/// Loses power at each moment that was noted, in several ways.
fn lose_power(noted: &[Noted], ways: &[Leaves], random: &mut Rng) -> Tally {
    let (mut disk, mut holds) = (Disk::default(), Holds::default());
    let (mut tally, mut seen) = (Tally::default(), HashSet::new());
    for (at, noted) in noted.iter().enumerate() {
        match noted {
            Noted::Event(event) => disk.apply(event),
            Noted::Holds(now) => holds = *now,
            Noted::Moment(step) => {
                for way in ways {
                    let image = disk.after(*way, random);
                    if !seen.insert((image.digest(), holds.least, holds.most)) {
                        continue;
                    }
                    let held = opens_whole(&image, holds, &format!("power lost before {step} (note {at}), of what was not flushed is left: {way:?}"));
                    tally.images += 1;
                    if holds.least < holds.most {
                        tally.old += usize::from(held == holds.least);
                        tally.new += usize::from(held == holds.most);
                    }
                }
            }
        }
    }
    tally
}

/// At every moment of a run: the batch under way is whole or absent.
#[test]
fn power_loss_keeps_acknowledged_batches_and_is_atomic() {
    let dir = tempfile::tempdir().unwrap();
    // The drive is made, and opened once more after it was closed, which cuts the index to what is used.
    let noted = record(dir.path(), Holds::default(), &[3, 2]);
    // No value is so long.
    let index_len = |noted: &Noted| match noted {
        Noted::Event(Event::Change { change: Change::Len(len), .. }) => Some(*len).filter(|len| *len > 4096),
        _ => None,
    };
    let lens: Vec<usize> = noted.iter().filter_map(index_len).collect();
    assert!(lens.windows(2).any(|pair| pair[0] > pair[1]), "the index never shrank: {lens:?}");
    let tally = lose_power(&noted, &[Leaves::Nothing, Leaves::All, Leaves::Some], &mut Rng::with_seed(1));
    println!("{tally:?}; lengths of the index: {lens:?}");
    assert!(tally.images > 150 && tally.old > 20 && tally.new > 10, "{tally:?}");
}

/// Whether of the index's two commit slots the one that does not count is the newer one: its commit was cut
/// off between its two phases.
fn is_between_phases(index: &[u8]) -> bool {
    let id = |slot: usize| u64::from_le_bytes(index[64 + 128 * slot + 104..][..8].try_into().unwrap());
    let primary = usize::from(index[9] & 1);
    id(1 - primary) > id(primary)
}

/// Some of the drives that the end of a process leaves in the middle of something, and what they hold.
fn left_in_the_middle(noted: &[Noted]) -> Vec<(Image, Holds)> {
    let (mut disk, mut holds, mut random) = (Disk::default(), Holds::default(), Rng::with_seed(0));
    let (mut left, mut moments, mut between) = (Vec::new(), 0, 0);
    for noted in noted {
        match noted {
            Noted::Event(event) => disk.apply(event),
            Noted::Holds(now) => holds = *now,
            Noted::Moment(_) if disk.node("drive.json").is_none() => {}
            Noted::Moment(step) => {
                moments += 1;
                let image = disk.after(Leaves::All, &mut random);
                // All of the first phase is written then, and not flushed.
                let is_between = step == "SyncIndex" && image.file(INDEX).is_some_and(|index| index.len() >= HEADER && is_between_phases(index));
                between += usize::from(is_between);
                if moments % 50 == 25 || (is_between && between <= 2) {
                    left.push((image, holds));
                }
            }
        }
    }
    assert!(between >= 2, "no commit was seen between its phases");
    left
}

#[test]
fn power_loss_during_recovery_is_recovered_too() {
    let dir = tempfile::tempdir().unwrap();
    let noted = record(dir.path(), Holds::default(), &[2, 1]);
    let (mut images, mut random) = (0, Rng::with_seed(2));
    for (image, holds) in left_in_the_middle(&noted) {
        let dir = tempfile::tempdir().unwrap();
        image.write(dir.path());
        let noted = record(dir.path(), holds, &[1]);
        images += lose_power(&noted, &[Leaves::Nothing, Leaves::Some], &mut random).images;
    }
    println!("{images} images");
    assert!(images > 100, "{images}");
}

/// After how many of `len` bytes a write is cut off, which goes to `at` of the index.
fn cuts(at: usize, len: usize, random: &mut Rng) -> Vec<usize> {
    match len {
        0 | 1 => Vec::new(),
        _ if at < HEADER => (1..len).step_by(5).collect(),
        _ => vec![1, 1 + random.usize(..len - 1), len - 1],
    }
}

#[test]
fn torn_index_write_leaves_a_drive_that_opens() {
    let dir = tempfile::tempdir().unwrap();
    let noted = record(dir.path(), Holds::default(), &[2, 2]);
    let (mut disk, mut holds, mut random) = (Disk::default(), Holds::default(), Rng::with_seed(3));
    let (mut pages, mut headers, mut seen) = (0, 0, HashSet::new());
    for (n, noted) in noted.iter().enumerate() {
        match noted {
            Noted::Holds(now) => holds = *now,
            Noted::Moment(_) => {}
            Noted::Event(event) => {
                // Without `drive.json`, opening creates the drive again, whatever its index is.
                if let Event::Change { file, change: Change::Bytes { at, bytes } } = event
                    && disk.node(INDEX) == Some(Node::File(*file))
                    && disk.node("drive.json").is_some()
                {
                    for len in cuts(*at, bytes.len(), &mut random) {
                        let mut torn = disk.clone();
                        torn.apply(&Event::Change { file: *file, change: Change::Bytes { at: *at, bytes: bytes[..len].to_vec() } });
                        let image = torn.after(Leaves::All, &mut random);
                        if seen.insert((image.digest(), holds.least, holds.most)) {
                            opens_whole(&image, holds, &format!("a write of {} bytes to {at} of the index ends after {len} (note {n})", bytes.len()));
                            if *at < HEADER { headers += 1 } else { pages += 1 }
                        }
                    }
                }
                disk.apply(event);
            }
        }
    }
    println!("{pages} pages and {headers} headers cut off");
    assert!(pages > 20 && headers > 20, "{pages} pages, {headers} headers");
}

/// The result of opening a drive whose disk has lost acknowledged flushes.
enum Found {
    /// It does not open, and reports why.
    Refused,
    /// It has the state after `batches` batches. `damaged` of its values are damaged, and the store knows all of them.
    Opened { batches: usize, damaged: usize },
}

/// That a drive is taken for none that it never was.
fn found_out(image: &Image, most: usize, what: &str) -> Found {
    let dir = tempfile::tempdir().unwrap();
    image.write(dir.path());
    let store = match DiskStore::open(dir.path(), options(Sync::None)) {
        Ok(store) => store,
        Err(e) => {
            assert_eq!(e.kind(), Kind::Corrupt, "{what}: {}", e.report());
            assert!(e.report().contains(dir.path().to_str().unwrap()), "{what}: {}", e.report());
            return Found::Refused;
        }
    };
    let entries = store.list("", None, usize::MAX).unwrap();
    let entries: Vec<_> = entries.iter().map(|entry| (entry.key.as_str().to_owned(), entry.len, entry.crc32c)).collect();
    let told = |n: usize| state(n).into_iter().map(|(key, value)| (key, value.len() as u64, crc32c(&value))).collect::<Vec<_>>();
    let batches = (0..=most).find(|n| told(*n) == entries).unwrap_or_else(|| panic!("{what}: it never was like this: {entries:?}"));
    let mut damaged = 0;
    for (name, value) in state(batches) {
        match store.get(&key(&name)) {
            Ok(found) => assert_eq!(found, value, "{what}: {name}"),
            Err(e) => {
                assert!(e.kind() == Kind::Corrupt && e.to_string().contains(&name), "{what}: {e}");
                damaged += 1;
            }
        }
    }
    Found::Opened { batches, damaged }
}

/// The disk acknowledges flushes that it does not make. A state that opens existed before, and its damage is known.
#[test]
fn lying_disk_gives_an_error_or_an_earlier_state() {
    let dir = tempfile::tempdir().unwrap();
    let noted = record(dir.path(), Holds::default(), &[3, 2]);
    let (mut disk, mut holds, mut random) = (Disk::default(), Holds::default(), Rng::with_seed(4));
    let (mut refused, mut older, mut newest, mut damage, mut seen) = (0, 0, 0, 0, HashSet::new());
    for (at, noted) in noted.iter().enumerate() {
        match noted {
            Noted::Event(event) => disk.apply(event),
            Noted::Holds(now) => {
                holds = *now;
                // From the first batch on that was flushed in earnest.
                disk.lies |= holds.least > 0;
            }
            Noted::Moment(_) if !disk.lies => {}
            Noted::Moment(step) => {
                for way in [Leaves::Nothing, Leaves::Some, Leaves::Earlier] {
                    let image = disk.after(way, &mut random);
                    if !seen.insert(image.digest()) {
                        continue;
                    }
                    match found_out(&image, holds.most, &format!("power lost before {step} (note {at}), of what was said to be flushed is left: {way:?}")) {
                        Found::Refused => {
                            assert_ne!(way, Leaves::Nothing, "what was flushed in earnest is whole");
                            refused += 1;
                        }
                        Found::Opened { batches, damaged } => {
                            assert!(way != Leaves::Nothing || (batches, damaged) == (1, 0), "{batches} batches, {damaged} values damaged");
                            older += usize::from(batches < holds.least);
                            newest += usize::from(batches >= holds.least);
                            damage += usize::from(damaged > 0);
                        }
                    }
                }
            }
        }
    }
    println!("{refused} refused, {older} older, {newest} as acknowledged, {damage} with damaged values");
    assert!(refused > 20 && older > 5 && newest > 5 && damage > 5, "{refused} refused, {older} older, {newest} as acknowledged, {damage} with damaged values");
}
