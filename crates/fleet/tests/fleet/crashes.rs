//! Killed at any point of an ingest, a fleet reopens with the data set absent or whole, and nothing leaks.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::util::{batch, batches, ingest, name, open, usage, value};

const DIR: &str = "SKYTETHER_TEST_CRASH_DIR";
const BATCHES: usize = 12;
const ROWS: usize = 400;

/// Not a test by itself: what the killed process does. It says each step aloud, so that the parent can kill it there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let say = |what: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "step {what}").unwrap();
        out.flush().unwrap();
    };
    let fleet = open(&dir, 3).await.unwrap();
    say("open");
    let rows = (0..BATCHES).map(|at| {
        say(&at.to_string());
        Ok(batch(at, ROWS))
    });
    fleet.ingest_table(&name("lab.victim"), batch(0, 1).schema(), rows, true).await.unwrap();
    say("committed");
}

/// Runs the child and kills it when it has said `steps` steps, or lets it end.
fn run_and_kill(dir: &Path, steps: usize) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crashes::child", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok).filter(|l| l.contains("step ")).take(steps).count();
    child.kill().unwrap();
    child.wait().unwrap();
    said == steps
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_ingest_is_absent_or_whole_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.bystander", &batches(2, 300), false).await.unwrap();
    let alone = usage(&fleet).await;
    drop(fleet);

    for steps in 1..=BATCHES + 2 {
        assert!(run_and_kill(dir.path(), steps), "the child ended before step {steps}");
        let fleet = open(dir.path(), 3).await.unwrap();
        let there = fleet.list().await.unwrap().iter().any(|d| d.name == name("lab.victim"));
        if there {
            assert_eq!(value(&fleet, "SELECT count(*) FROM lab.victim").await.unwrap(), (BATCHES * ROWS).to_string(), "killed at step {steps}");
            fleet.drop_dataset(&name("lab.victim")).await.unwrap();
        }
        assert!(there || steps < BATCHES + 2, "a commit that was reported is lost");
        assert_eq!(usage(&fleet).await, alone, "killed at step {steps}");
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.bystander").await.unwrap(), "600");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_replacement_leaves_the_old_or_the_new() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.victim", &batches(1, 70), false).await.unwrap();
    drop(fleet);
    for steps in [2, BATCHES / 2, BATCHES + 1] {
        assert!(run_and_kill(dir.path(), steps));
        let fleet = open(dir.path(), 3).await.unwrap();
        let rows = value(&fleet, "SELECT count(*) FROM lab.victim").await.unwrap();
        assert!(rows == "70" || rows == (BATCHES * ROWS).to_string(), "{rows} rows after a kill at step {steps}");
        let record = fleet.describe(&name("lab.victim")).await.unwrap();
        let slices: u64 = record.tables["data"].partitions.iter().map(|p| u64::from(p.slices) + 1).sum();
        // The root record, and on each of the three drives that of the fleet's members.
        assert_eq!(usage(&fleet).await.0, slices + 1 + 3, "more keys than the root record names");
    }
}
