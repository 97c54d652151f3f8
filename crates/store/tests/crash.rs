//! A batch stopped at every step, by a crash and by an error of the system, and a process killed while it writes.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::common::{assert_no_leaks, bytes, contents, delete, everything, files, identity, key, open, put};
use skytether_common::Kind;
use skytether_common::checksum::crc32c;
use skytether_store::disk::crash::{CrashPoint, Fate, Step};
use skytether_store::disk::{DiskStore, OpenOptions, Sync};
use skytether_store::{Expect, Op, SliceStore};

/// Gives the step with this number, counted from 0 once armed, its fate.
#[derive(Debug)]
struct At {
    countdown: Mutex<Option<usize>>,
    fate: Fate,
    hit: Mutex<Option<Step>>,
}

impl At {
    fn new(fate: Fate) -> Arc<Self> {
        Arc::new(Self { countdown: Mutex::default(), fate, hit: Mutex::default() })
    }

    fn arm(&self, n: usize) {
        *self.countdown.lock() = Some(n);
    }

    fn hit(&self) -> Option<Step> {
        *self.hit.lock()
    }
}

impl CrashPoint for At {
    fn before(&self, step: Step) -> Fate {
        let mut countdown = self.countdown.lock();
        match countdown.as_mut() {
            Some(0) => {
                *countdown = None;
                *self.hit.lock() = Some(step);
                self.fate
            }
            Some(n) => {
                *n -= 1;
                Fate::Go
            }
            None => Fate::Go,
        }
    }
}

fn old_batch() -> Vec<Op> {
    vec![put("keep", bytes(1, 5000)), put("replace", bytes(2, 70_000)), put("remove", bytes(3, 10))]
}

fn new_batch() -> Vec<Op> {
    let kept = bytes(1, 5000);
    let (len, crc32c) = (kept.len() as u64, crc32c(&kept));
    let link = Op::Link { key: key("linked"), from: key("keep"), len, crc32c, expect: Expect::Any };
    vec![put("replace", bytes(4, 300)), delete("remove"), put("add/1", bytes(5, 100_000)), put("add/2", b"".as_slice()), link]
}

fn open_with(dir: &Path, at: &Arc<At>) -> DiskStore {
    DiskStore::open(dir, OpenOptions { create: Some(identity()), crash_point: Some(at.clone()), ..OpenOptions::default() }).unwrap()
}

#[test]
fn batch_stopped_at_any_step_is_whole_or_absent() {
    let (old, new) = (contents(&[old_batch()]), contents(&[old_batch(), new_batch()]));
    let mut steps = Vec::new();
    let (mut olds, mut news) = (0, 0);
    for n in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let at = At::new(Fate::Crash);
        let store = open_with(dir.path(), &at);
        let versions = store.apply(old_batch()).unwrap();
        at.arm(n);
        let done = store.apply(new_batch());
        let Some(step) = at.hit() else {
            done.unwrap();
            break;
        };
        steps.push(step);
        if step != Step::Unlink {
            assert_eq!(done.unwrap_err().kind(), Kind::Unavailable, "{step:?}");
        }
        assert_eq!(store.get(&key("keep")).unwrap_err().kind(), Kind::Unavailable, "the store must be dead after {step:?}");
        drop(store);

        let store = open(dir.path());
        let found = everything(&store);
        if matches!(step, Step::Committed | Step::Unlink) {
            assert_eq!(found, new, "acknowledged before {step:?}");
        } else if !matches!(step, Step::WriteIndex | Step::SyncIndex) {
            assert_eq!(found, old, "stopped at {step:?}, step {n}");
        }
        assert!(found == old || found == new, "half a batch after {step:?}, step {n}: {found:?}");
        if found == old {
            olds += 1
        } else {
            news += 1
        }
        assert_eq!(store.recovery().damaged, []);
        assert_no_leaks(dir.path(), &store);
        // It goes on, and versions do not come again.
        let more = store.apply(new_batch()).unwrap();
        assert!(more[0] > versions[2], "{more:?} after {versions:?}");
        assert_eq!(everything(&store), new);
        assert_no_leaks(dir.path(), &store);
    }
    for step in [
        Step::WriteValue,
        Step::SyncValue,
        Step::Rename,
        Step::SyncDirectories,
        Step::CommitIndex,
        Step::WriteIndex,
        Step::SyncIndex,
        Step::Committed,
        Step::Unlink,
    ] {
        assert!(steps.contains(&step), "{step:?} was never reached: {steps:?}");
    }
    assert!(olds > 0 && news > 0, "{olds} {news}");
}

#[test]
fn step_refused_by_the_system_changes_and_leaks_nothing() {
    let (old, new) = (contents(&[old_batch()]), contents(&[old_batch(), new_batch()]));
    for (refusal, kind) in [(ErrorKind::StorageFull, Kind::Exhausted), (ErrorKind::Other, Kind::Unavailable)] {
        let mut unknown = Vec::new();
        for n in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let at = At::new(Fate::Fail(refusal));
            let store = open_with(dir.path(), &at);
            store.apply(old_batch()).unwrap();
            at.arm(n);
            let done = store.apply(new_batch());
            let Some(step) = at.hit() else {
                done.unwrap();
                break;
            };
            if matches!(step, Step::Committed | Step::Unlink) {
                // Only tidying is left: the batch is there, and what could not be removed goes at the next opening.
                done.unwrap();
                assert_eq!(everything(&store), new);
            } else {
                let error = done.unwrap_err();
                if let Err(e) = store.usage() {
                    assert_eq!(error.kind(), Kind::Unavailable, "{step:?}, step {n}: {error}");
                    assert!(error.to_string().contains("nobody can know") && std::error::Error::source(&error).is_some(), "{error}");
                    // It is unknown what a failed flush left on the disk; the store says so instead of guessing.
                    assert_eq!(e.kind(), Kind::Unavailable, "{e}");
                    assert!(e.to_string().contains("open it again"), "{e}");
                    unknown.push(step);
                } else {
                    assert_eq!(error.kind(), kind, "{step:?}, step {n}: {error}");
                    assert_eq!(everything(&store), old, "{step:?}, step {n}");
                    assert_no_leaks(dir.path(), &store);
                    // What is certain stays so across another end of the process: no copy of the
                    // refused batch may come back.
                    let copy = tempfile::tempdir().unwrap();
                    copy_tree(dir.path(), copy.path());
                    assert_eq!(everything(&open(copy.path())), old, "{step:?}, step {n}: opened after a crash");
                    store.apply(new_batch()).unwrap();
                    assert_eq!(everything(&store), new, "{step:?}, step {n}");
                    assert_no_leaks(dir.path(), &store);
                }
            }
            drop(store);
            let store = open(dir.path());
            let found = everything(&store);
            assert!(found == new || (unknown.last() == Some(&step) && found == old), "{step:?}, step {n}");
            assert_eq!(store.recovery().damaged, []);
            assert_no_leaks(dir.path(), &store);
        }
        println!("{refusal:?}: outcome unknown after {unknown:?}");
        assert!(unknown.iter().all(|step| matches!(step, Step::WriteIndex | Step::SyncIndex)), "{unknown:?}");
    }
}

fn copy_tree(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_crash_and_a_damaged_header_never_give_an_older_state() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.apply(old_batch()).unwrap();
    store.apply(new_batch()).unwrap();
    store.apply(vec![put("add/3", bytes(6, 77))]).unwrap();
    let before = everything(&store);
    // The directory as it is while the store is open is what a killed process leaves.
    let dead = tempfile::tempdir().unwrap();
    copy_tree(dir.path(), dead.path());
    drop(store);
    let index = std::fs::read(dead.path().join("index.redb")).unwrap();
    assert_eq!(index[9] & 2, 2, "the copy looks properly closed");
    let (mut found, mut harmless) = (0, 0);
    for at in 0..320 {
        for bit in 0..8 {
            // All of the byte that has no checksum, and one bit of each other.
            if at != 9 && bit != at % 8 {
                continue;
            }
            let copy = tempfile::tempdir().unwrap();
            copy_tree(dead.path(), copy.path());
            let mut bad = index.clone();
            bad[at] ^= 1 << bit;
            std::fs::write(copy.path().join("index.redb"), bad).unwrap();
            match DiskStore::open(copy.path(), crate::common::options(Sync::None)) {
                Ok(store) => {
                    assert_eq!(everything(&store), before, "bit {bit} of byte {at}");
                    assert_eq!(store.recovery().damaged, [], "bit {bit} of byte {at}");
                    harmless += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind(), Kind::Corrupt, "bit {bit} of byte {at}: {e}");
                    found += 1;
                }
            }
        }
    }
    println!("{found} found, {harmless} harmless");
    assert!(found > 100 && harmless > 0, "{found} {harmless}");
}

const DIRECTORY: &str = "SKYTETHER_TEST_INGEST_DIRECTORY";
const KEPT: u64 = 4;

fn batch(i: u64) -> Vec<Op> {
    let mut ops: Vec<Op> = (0..3).map(|j| put(&format!("b/{i}/{j}"), bytes(i * 3 + j, ((i * 7919 + j * 104_729) % 150_000) as usize))).collect();
    ops.push(put("root", i.to_le_bytes().to_vec()));
    if let Some(gone) = i.checked_sub(KEPT) {
        ops.extend((0..3).map(|j| delete(&format!("b/{gone}/{j}"))));
    }
    ops
}

/// Not a test by itself: the process that the next test kills.
#[test]
fn ingesting_child() {
    let Some(dir) = std::env::var_os(DIRECTORY) else { return };
    let store = DiskStore::open(Path::new(&dir), crate::common::options(Sync::Full)).unwrap();
    let mut out = std::io::stdout();
    let next = store.get(&key("root")).map_or(0, |root| u64::from_le_bytes(root.as_ref().try_into().unwrap()) + 1);
    for i in next.. {
        store.apply(batch(i)).unwrap();
        writeln!(out, "\nacknowledged {i}").and_then(|()| out.flush()).unwrap();
    }
}

#[test]
fn a_killed_process_leaves_whole_batches() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = None;
    let mut interrupted = 0;
    for round in 0..20u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::ingesting_child", "--exact", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut acknowledged = last;
        let mut note = |line: String| {
            if let Some(i) = line.strip_prefix("acknowledged ") {
                acknowledged = Some(i.parse::<u64>().unwrap());
            }
            line.starts_with("acknowledged ")
        };
        // Waits for this number of batches, and then a while into the next one.
        let mut wanted = 1 + round % 3;
        while wanted > 0 {
            let Some(line) = lines.next() else { panic!("the child ended by itself in round {round}") };
            wanted -= u32::from(note(line));
        }
        for _ in 0..u64::from(round) * 40_000 {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines {
            note(line);
        }

        let store = open(dir.path());
        let recovery = store.recovery();
        interrupted += u32::from(recovery.orphans_removed + recovery.temporary_removed > 0);
        assert_eq!(recovery.damaged, []);
        let root = u64::from_le_bytes(store.get(&key("root")).unwrap().as_ref().try_into().unwrap());
        let acknowledged = acknowledged.unwrap();
        assert!(root == acknowledged || root == acknowledged + 1, "batch {acknowledged} was acknowledged, {root} is there");
        assert_eq!(everything(&store), contents(&(root.saturating_sub(KEPT)..=root).map(batch).collect::<Vec<_>>()), "after {root}");
        assert_no_leaks(dir.path(), &store);
        last = Some(root);
    }
    println!("{interrupted} of 20 kills hit a batch in the middle");
    assert!(interrupted > 0, "no kill ever hit a batch in the middle");
    assert_eq!(files(dir.path()).len(), 3 * KEPT as usize + 4);
}
