//! The memory of a store is bounded, whatever is written to it.
//!
//! A child process writes and reads: this test program, told by a variable to run [`child_that_fills_a_store`] alone.

use std::path::Path;
use std::process::Command;

use skytether_kv::{Change, Durability, KeyValues, Options};

use crate::util::{bytes, quick, wait};

const DIRECTORY: &str = "SKYTETHER_KV_FILL";

/// Writes 160 MiB of small values and 160 MiB of large ones, reads some, and prints its peak of memory in KiB.
#[test]
fn child_that_fills_a_store() {
    let Some(dir) = std::env::var_os(DIRECTORY) else { return };
    let options = Options { cache_bytes: 4 << 20, memtable_bytes: 4 << 20, queue_bytes: 4 << 20, ..quick() };
    let store = KeyValues::open(Path::new(&dir), &options).unwrap();
    for at in 0..160u64 {
        let key = |part: u64| (at << 32 | part).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
        let small = (0..1024).map(|part| Change::put(key(part), bytes(part, 1024))).collect();
        wait(store.write(small, Durability::Back)).unwrap();
        wait(store.write(vec![Change::put(at.to_string(), bytes(at, 1 << 20))], Durability::Back)).unwrap();
        assert_eq!(store.get(&key(7)).unwrap().unwrap().value, bytes(7, 1024));
    }
    for at in 0..160u64 {
        assert_eq!(store.get(at.to_string().as_bytes()).unwrap().unwrap().value, bytes(at, 1 << 20));
    }
    assert_eq!(store.usage().unwrap().keys, 160 * 1025);
    drop(store);
    // Opening reads the journals again.
    drop(KeyValues::open(Path::new(&dir), &options).unwrap());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("\npeak {}", peak.split_whitespace().next().unwrap());
}

#[test]
fn memory_stays_bounded_while_a_store_fills() {
    let dir = tempfile::tempdir().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::child_that_fills_a_store", "--nocapture"])
        .env(DIRECTORY, dir.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    let peak = output.lines().find_map(|line| line.strip_prefix("peak ")).unwrap_or_else(|| panic!("{output} {child:?}"));
    let mib = peak.parse::<u64>().unwrap() >> 10;
    // 320 MiB are stored: memtables take up to 32 MiB, journals that are read again up to 64 MiB.
    assert!(mib < 160, "{mib} MiB");
}
