//! A process that is killed in the middle of writes. Its parent checks what it had acknowledged.
//!
//! The child is this test program, told by a variable to run [`child_that_writes`] alone.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use skytether_kv::{Change, Durability, KeyValues, Options};

use crate::util::{bytes, is_soak, value, wait};

const DIRECTORY: &str = "SKYTETHER_KV_CRASH";

fn options() -> Options {
    // Tiny memtables, so that crashes hit tables and compactions as well.
    Options { memtable_bytes: 200_000, ..Options::default() }
}

fn large_or_small(at: u32) -> usize {
    if at.is_multiple_of(7) { 40_000 } else { 300 }
}

/// The batch number `at` of a caller: a key of its own, and one that all its batches overwrite.
fn batch(caller: u8, at: u32) -> Vec<Change> {
    let mut own = vec![caller];
    own.extend(at.to_be_bytes());
    let len = large_or_small(at);
    vec![Change::put(own, bytes(u64::from(at), len)), Change::put(vec![caller], at.to_be_bytes().to_vec())]
}

/// Writes until it is killed, and prints each acknowledgement.
#[test]
fn child_that_writes() {
    let Some(dir) = std::env::var_os(DIRECTORY) else { return };
    let store = KeyValues::open(Path::new(&dir), &options()).unwrap();
    std::thread::scope(|scope| {
        for caller in 0..4u8 {
            let store = &store;
            scope.spawn(move || {
                let first = value(store, &[caller]).map_or(0, |at| u32::from_be_bytes(at.try_into().unwrap()) + 1);
                for at in first.. {
                    let durability = if at % 3 == 0 { Durability::Through } else { Durability::Back };
                    wait(store.write(batch(caller, at), durability)).unwrap();
                    // One call, so that a line is whole.
                    println!("\ndone {caller} {at}");
                }
            });
        }
    });
}

#[test]
fn killed_process_loses_no_acknowledged_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = [None::<u32>; 4];
    let mut random = fastrand::Rng::new();
    let (rounds, most) = if is_soak() { (300, 2000) } else { (6, 250) };
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child_that_writes", "--nocapture"])
            .env(DIRECTORY, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (kill_after, mut read, deadline) = (random.usize(1..most), 0, Instant::now() + Duration::from_secs(60));
        let mut note = |line: String| {
            let Some((caller, at)) = line.strip_prefix("done ").and_then(|rest| rest.split_once(' ')) else { return false };
            let (Ok(caller), Ok(at)) = (caller.parse::<usize>(), at.parse()) else { return false };
            acknowledged[caller] = acknowledged[caller].max(Some(at));
            true
        };
        while read < kill_after && Instant::now() < deadline {
            let Some(line) = lines.next() else { break };
            read += usize::from(note(line.unwrap()));
        }
        child.kill().unwrap();
        for line in lines.map_while(Result::ok) {
            note(line);
        }
        child.wait().unwrap();
        assert!(read > 0, "the child wrote nothing in round {round}");
        let store = KeyValues::open(dir.path(), &options()).unwrap();
        let mut keys = 0;
        for (caller, last) in acknowledged.iter_mut().enumerate() {
            let caller = caller as u8;
            // The process died and not the machine, so also what was not flushed is there.
            let there = value(&store, &[caller]).map(|at| u32::from_be_bytes(at.try_into().unwrap()));
            assert!(there >= *last, "round {round}, caller {caller}: {there:?}, but {last:?} was acknowledged");
            let Some(there) = there else { continue };
            assert!(there <= last.map_or(0, |last| last + 1), "a caller writes one batch at a time");
            // The next child goes on from here, also where this was not acknowledged.
            *last = Some(there);
            for at in there.saturating_sub(50)..=there {
                let own = &batch(caller, at)[0];
                assert_eq!(value(&store, &own.key), Some(bytes(u64::from(at), large_or_small(at))), "round {round}, {caller} {at}");
            }
            keys += u64::from(there) + 2;
        }
        assert_eq!(store.usage().unwrap().keys, keys, "round {round}");
        let verified = store.verify(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded, false, usize::MAX, None).unwrap();
        assert_eq!((verified.checked, verified.damaged.len()), (keys, 0), "round {round}");
    }
}
