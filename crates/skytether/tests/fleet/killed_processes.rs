//! Processes that work on a fleet and are killed before a change on a drive: helpers of the crash tests.

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use skytether::{DatasetKind, HostOptions, Placement, RepairOptions, ResizeOptions, ScrubOptions};
use skytether_common::{Error, Result};
use skytether_device::{CseInfo, Layer};
use skytether_drive::{Cse, Drive, DriveOptions, Storage};
use skytether_host::MEMBERSHIP_KEY;
use skytether_host::{Founding, Host, UnavailableDrive};
use skytether_store::disk::DriveIdentity;
use skytether_store::{Op, Version};
use uuid::Uuid;

use crate::growth::retiring;
use crate::redundancy::dir_of;
use crate::util::{batch, name};

const DIR: &str = "SKYTETHER_TEST_KILLED_DIR";
const JOB: &str = "SKYTETHER_TEST_KILLED_JOB";
const STOP: &str = "SKYTETHER_TEST_KILLED_STOP";

/// More batches of changes than any job here sends.
pub(crate) const MANY: usize = 1000;

/// What jobs write, replace and drop.
pub(crate) const VICTIM: &str = "lab.victim";
pub(crate) const BATCHES: usize = 6;
pub(crate) const ROWS: usize = 200;

/// What the process does to the fleet until it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Writes [`VICTIM`], in the place of one that is there.
    Ingest,
    /// Makes three versions of it, each with another table `note`. The last one deletes the table of the first.
    Version,
    /// Drops it.
    Drop,
    /// Repairs damage.
    Scrub,
    /// Rebuilds what was on drives that are blank, or gone.
    Repair,
    /// Takes another drive in.
    Grow,
    /// Lets drive 1 go.
    Retire,
}

impl Job {
    const ALL: [Self; 7] = [Self::Ingest, Self::Version, Self::Drop, Self::Scrub, Self::Repair, Self::Grow, Self::Retire];
}

/// A drive that never carries out change number `stop` of all drives, and says aloud what that would have been.
#[derive(Debug)]
struct Stopping {
    drive: Arc<Drive>,
    changes: Arc<AtomicUsize>,
    stop: usize,
}

impl Layer for Stopping {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn apply(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            if self.changes.fetch_add(1, Ordering::SeqCst) == self.stop {
                say(ops.first().map_or("nothing", kind));
                std::future::pending::<()>().await;
            }
            self.drive.apply(ops).await
        })
    }
}

/// What a batch is that begins with this change: root records and the records of the fleet are the
/// only keys without a dot.
fn kind(op: &Op) -> &'static str {
    let is_part = op.key().as_str().contains('.');
    match op {
        Op::Put { key, .. } if key.as_str() == MEMBERSHIP_KEY => "member",
        Op::Put { .. } if is_part => "slices",
        Op::Put { .. } => "commit",
        Op::Link { .. } => "link",
        Op::Check { .. } => "condition",
        Op::Delete { .. } if is_part => "deletion",
        Op::Delete { .. } => "drop",
    }
}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nat {what}").unwrap();
    out.flush().unwrap();
}

/// The ids that `fleet.json` names, in order; each drive lies below the directory of its place.
fn listed(dir: &Path) -> Vec<Uuid> {
    let list: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("fleet.json")).unwrap()).unwrap();
    assert!(list["places"].is_null(), "{list}");
    list["drives"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect()
}

/// Not a test by itself: what the killed process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    // Whatever hangs, who waits for it hears of its end.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(180));
        std::process::exit(1);
    });
    let job = std::env::var(JOB).unwrap();
    let job = Job::ALL.into_iter().find(|known| format!("{known:?}") == job).unwrap();
    let stop: usize = std::env::var(STOP).unwrap().parse().unwrap();
    let changes = Arc::new(AtomicUsize::new(0));
    let stopping = |n: usize, new: Option<DriveIdentity>| {
        let options = DriveOptions { memory_limit: 64 << 20, ..DriveOptions::default() };
        let drive = Drive::open(&dir_of(&dir, n), new, options).unwrap();
        Arc::new(Stopping { drive, changes: Arc::clone(&changes), stop }) as Arc<dyn Cse>
    };
    let members = listed(&dir);
    let (here, gone): (Vec<usize>, Vec<usize>) = (0..members.len()).partition(|n| dir_of(&dir, *n).join("drive.json").exists());
    let drives = here.into_iter().map(|n| stopping(n, None)).collect();
    let lost = gone.iter().map(|n| UnavailableDrive { id: members[*n], place: *n, error: Error::unavailable("its directory is gone") }).collect();
    let mut options = HostOptions::default();
    // Many small slices, so that lanes send more than once.
    options.slices.target_bytes = 8 << 10;
    let (host, _) = Host::join_without(drives, lost, options, Founding::KnownList).await.unwrap();
    match job {
        Job::Ingest => {
            let mut writer = host.writer(&name(VICTIM), DatasetKind::Table, true).await.unwrap();
            writer.write_table("data", Placement::Spread, batch(0, 1).schema(), (0..BATCHES).map(|at| Ok(batch(at, ROWS)))).await.unwrap();
            writer.commit().await.unwrap();
        }
        Job::Version => {
            for _ in 0..3 {
                let from = host.catalog().read(&name(VICTIM)).await.unwrap().0.generation;
                let mut writer = host.version(&name(VICTIM), from).await.unwrap();
                writer.write_table("note", Placement::Spread, batch(0, 1).schema(), (0..2).map(|at| Ok(batch(at, ROWS)))).await.unwrap();
                writer.application("note", "new");
                writer.commit().await.unwrap();
            }
        }
        Job::Drop => host.catalog().drop_dataset(&name(VICTIM)).await.unwrap(),
        Job::Scrub => {
            host.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
        }
        Job::Repair => {
            // As an embedded fleet does it.
            for n in gone {
                host.put_in_place(stopping(n, Some(DriveIdentity { id: members[n], name: format!("drive-{n}") }))).unwrap();
            }
            host.repair(&RepairOptions::default(), &|_| ()).await.unwrap();
        }
        Job::Grow => {
            let (n, id) = (members.len(), Uuid::new_v4());
            let new = stopping(n, Some(DriveIdentity { id, name: format!("drive-{n}") }));
            // As above.
            let ids: Vec<Uuid> = members.into_iter().chain([id]).collect();
            fs::write(dir.join("fleet.json"), serde_json::to_vec(&serde_json::json!({"format": 1, "drives": ids})).unwrap()).unwrap();
            host.resize(vec![new], &ResizeOptions::default(), &|_| ()).await.unwrap();
        }
        Job::Retire => {
            host.resize(Vec::new(), &retiring(&[1]), &|_| ()).await.unwrap();
        }
    }
    say("end");
}

/// Has a process of its own do `job` to the fleet in `dir`, and kills it (SIGKILL) before change number `stop`; what
/// that would have been, or `end` where there are fewer.
fn run_and_kill(dir: &Path, job: Job, stop: usize) -> String {
    let mut errors = tempfile::tempfile().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_processes::child", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env(JOB, format!("{job:?}"))
        .env(STOP, stop.to_string())
        .stdout(Stdio::piped())
        .stderr(errors.try_clone().unwrap())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let at = lines.map_while(std::result::Result::ok).find_map(|line| line.strip_prefix("at ").map(str::to_owned));
    child.kill().unwrap();
    child.wait().unwrap();
    at.unwrap_or_else(|| {
        let mut told = String::new();
        errors.rewind().and_then(|()| errors.read_to_string(&mut told)).unwrap();
        panic!("{job:?}: the child failed at change {stop}: {told}")
    })
}

/// Waits until all drives of the fleet in `dir` are closed: of one that was dropped just now a last
/// read may hold them still.
pub(crate) fn closed(dir: &Path) {
    for n in 0..listed(dir).len() {
        if dir_of(dir, n).join("drive.json").exists() {
            drop(Drive::open(&dir_of(dir, n), None, DriveOptions::default()).unwrap());
        }
    }
}

pub(crate) fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Kills `job` before each change whose number is in `stops`, until it ends before, each time over a copy of the fleet
/// in `first`. `look` gets the copy, the number of the change, what it would have been, and all that in words. How
/// often each kind of change was met.
pub(crate) async fn killed_at(
    first: &Path,
    job: Job,
    stops: impl Iterator<Item = usize>,
    title: &str,
    mut look: impl AsyncFnMut(&Path, usize, &str, &str),
) -> BTreeMap<String, usize> {
    closed(first);
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for stop in stops {
        let dir = tempfile::tempdir().unwrap();
        copy_all(first, dir.path());
        let at = run_and_kill(dir.path(), job, stop);
        look(dir.path(), stop, &at, &format!("{job:?}, {title}, killed before {at} (change {stop})")).await;
        let ended = at == "end";
        *places.entry(at).or_default() += 1;
        if ended {
            break;
        }
    }
    assert_eq!(places.get("end"), Some(&1), "it never came to its end: {places:?}");
    places
}
