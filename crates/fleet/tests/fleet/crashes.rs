//! Killed before any change that an ingest makes on a drive, a fleet reopens with the data set absent, old or whole, and nothing leaks.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use skytether_common::Result;
use skytether_drive::{Cse, Drive, DriveOptions, Storage};
use skytether_fleet::{DatasetKind, HostOptions, Placement};
use skytether_host::Host;
use skytether_store::{Op, Version};
use skytether_wire::decorated::{Decorated, Decorator};

use crate::util::{batch, batches, ingest, name, open, usage, value};

const DIR: &str = "SKYTETHER_TEST_CRASH_DIR";
const STOP: &str = "SKYTETHER_TEST_CRASH_STOP";
const DRIVES: usize = 3;
const BATCHES: usize = 6;
const ROWS: usize = 200;
/// More batches of changes than an ingest of this size sends.
const MANY: usize = 100;

/// A drive that never carries out change number `stop` of all drives, and says aloud what that would have been.
#[derive(Debug)]
struct Stopping {
    drive: Arc<Drive>,
    changes: Arc<AtomicUsize>,
    stop: usize,
}

#[async_trait]
impl Decorator for Stopping {
    fn behind(&self) -> &dyn Cse {
        self.drive.as_ref()
    }

    async fn apply(&self, ops: Vec<Op>) -> Result<Vec<Version>> {
        if self.changes.fetch_add(1, Ordering::SeqCst) == self.stop {
            let what = match &ops[0] {
                Op::Delete { .. } => "deletion",
                Op::Put { key, .. } if key.as_str() == "lab/victim" => "commit",
                Op::Put { .. } | Op::Link { .. } | Op::Check { .. } => "slices",
            };
            say(what);
            std::future::pending::<()>().await;
        }
        self.drive.apply(ops).await
    }
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nat {what}").unwrap();
    out.flush().unwrap();
}

fn drive(dir: &Path, n: usize) -> Arc<Drive> {
    Drive::open(&dir.join("drives").join(n.to_string()), None, DriveOptions { memory_limit: 64 << 20, ..DriveOptions::default() }).unwrap()
}

/// Not a test by itself: what the killed process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let stop = std::env::var(STOP).unwrap().parse().unwrap();
    let changes = Arc::new(AtomicUsize::new(0));
    let drives = (0..DRIVES).map(|n| Arc::new(Decorated(Stopping { drive: drive(&dir, n), changes: Arc::clone(&changes), stop })) as Arc<dyn Cse>).collect();
    let mut options = HostOptions::default();
    // Many small slices, so that lanes send more than once.
    options.slices.target_bytes = 8 << 10;
    let host = Host::new(drives, options).unwrap();
    let mut writer = host.writer(&name("lab.victim"), DatasetKind::Table, true).await.unwrap();
    writer.write_table("data", Placement::Spread, batch(0, 1).schema(), (0..BATCHES).map(|at| Ok(batch(at, ROWS)))).await.unwrap();
    writer.commit().await.unwrap();
    say("end");
}

/// Runs the child and kills it where it stops; where that is.
fn run_and_kill(dir: &Path, stop: usize) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crashes::child", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env(STOP, stop.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let at =
        BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::<_, std::io::Error>::ok).find_map(|l| l.strip_prefix("at ").map(str::to_owned));
    child.kill().unwrap();
    child.wait().unwrap();
    at.expect("the child failed")
}

async fn keys_on_disk(dir: &Path) -> u64 {
    let mut keys = 0;
    for n in 0..DRIVES {
        keys += drive(dir, n).usage().await.unwrap().keys;
    }
    keys
}

/// Kills an ingest before each of its changes in turn. `old` is how many rows there are before, if any.
async fn kill_everywhere(old: Option<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), DRIVES).await.unwrap();
    ingest(&fleet, "lab.bystander", &batches(2, 300), false).await.unwrap();
    let alone = usage(&fleet).await;
    drop(fleet);
    let (mut places, mut collected) = (Vec::new(), 0);
    for stop in 0..MANY {
        let fleet = open(dir.path(), DRIVES).await.unwrap();
        if let Some(rows) = old {
            ingest(&fleet, "lab.victim", &batches(1, rows), false).await.unwrap();
        }
        drop(fleet);
        let at = run_and_kill(dir.path(), stop);
        let left = keys_on_disk(dir.path()).await;
        let fleet = open(dir.path(), DRIVES).await.unwrap();
        let deleted = left - usage(&fleet).await.0;
        collected += deleted;
        let there = fleet.list().await.unwrap().iter().any(|d| d.name == name("lab.victim"));
        let rows = if there { Some(value(&fleet, "SELECT count(*) FROM lab.victim").await.unwrap().parse::<usize>().unwrap()) } else { None };
        let expected = if at == "deletion" || at == "end" { Some(BATCHES * ROWS) } else { old };
        assert_eq!(rows, expected, "killed before {at} (change {stop})");
        if at == "deletion" {
            assert!(deleted > 0, "killed before a deletion, and nothing was left to collect");
        }
        if there {
            fleet.drop_dataset(&name("lab.victim")).await.unwrap();
        }
        assert_eq!(usage(&fleet).await, alone, "killed before {at} (change {stop})");
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.bystander").await.unwrap(), "600");
        places.push(at);
        if places.last().is_some_and(|at| at == "end") {
            break;
        }
    }
    let count = |what: &str| places.iter().filter(|at| *at == what).count();
    assert_eq!((count("commit"), count("end")), (1, 1), "{places:?}");
    assert!(count("slices") >= DRIVES, "every lane should send: {places:?}");
    assert_eq!(count("deletion") > 0, old.is_some(), "{places:?}");
    assert!(collected > 0, "no kill left anything behind: {places:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_ingest_is_absent_or_whole_and_leaves_nothing() {
    kill_everywhere(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_replacement_leaves_the_old_or_the_new() {
    kill_everywhere(Some(70)).await;
}
