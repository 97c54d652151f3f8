//! A drive's directory: its identity file and its lock.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use backon::{BlockingRetryable, ExponentialBuilder};
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};
use uuid::Uuid;

use super::crash::Hook;
use super::files::sync_directory;

/// The format of a drive's directory that this version writes and reads.
pub(super) const FORMAT: u32 = 1;

/// No `drive.json` is longer.
const MAX_IDENTITY: u64 = 64 << 10;

/// The identity of a drive; written once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveIdentity {
    /// The one name that never changes and that placement hashes.
    pub id: Uuid,
    /// What people call it.
    pub name: String,
}

#[derive(Serialize, Deserialize)]
struct IdentityFile {
    format: u32,
    #[serde(flatten)]
    identity: DriveIdentity,
}

#[derive(Deserialize)]
struct AnyFormat {
    format: u64,
}

/// The text of `drive.json`.
pub(super) fn encode_identity(identity: &DriveIdentity) -> Result<Vec<u8>> {
    let file = IdentityFile { format: FORMAT, identity: identity.clone() };
    let mut text = serde_json::to_vec(&file).map_err(|e| Error::internal("cannot write drive.json").with_source(e))?;
    text.push(b'\n');
    Ok(text)
}

/// Reads `drive.json`; its bytes and what they say, or `None` where there is none.
pub(super) fn read_identity(path: &Path) -> Result<Option<(Vec<u8>, DriveIdentity)>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("open", path, e)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_IDENTITY).read_to_end(&mut bytes).map_err(|e| Error::io("read", path, e))?;
    let damaged = |e| Error::corrupt(format!("{} is damaged: restore it or the drive from elsewhere", path.display())).with_source(e);
    // The format's number is read first: a newer format may have other fields, and they are no damage.
    let found = serde_json::from_slice::<AnyFormat>(&bytes).map_err(damaged)?.format;
    if found != u64::from(FORMAT) {
        return Err(Error::unsupported(format!(
            "the drive in {} has format {found}, and this version reads format {FORMAT}: use the version of Skytether that wrote it or a newer one",
            path.parent().unwrap_or(path).display()
        )));
    }
    let file: IdentityFile = serde_json::from_slice(&bytes).map_err(damaged)?;
    Ok(Some((bytes, file.identity)))
}

/// Writes `drive.json` through `tmp/`, durably.
pub(super) fn write_identity(dir: &Path, bytes: &[u8], sync: bool, hook: &Hook) -> Result<()> {
    let (aside, path) = (dir.join("tmp").join("drive.json"), dir.join("drive.json"));
    let written = File::create(&aside).and_then(|mut file| {
        file.write_all(bytes)?;
        if sync {
            file.sync_all()?;
            hook.flushed(&aside);
        }
        Ok(())
    });
    written.map_err(|e| Error::io("write", &aside, e))?;
    fs::rename(&aside, &path).map_err(|e| Error::io("create", &path, e))?;
    if sync { sync_directory(dir, hook) } else { Ok(()) }
}

/// The drive is ours as long as this lives.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child process that was forked meanwhile shares the open file, and with it the lock.
        if let Err(e) = self.0.unlock() {
            tracing::warn!(error = %e, "cannot unlock a drive");
        }
    }
}

/// Between the first two looks at a lock, and between later ones at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(10));

/// How long opening waits for a drive that this very process still has open. A process may close a fleet and open it
/// again at once, while the last reads of an abandoned query hold the drive for some milliseconds.
const CLOSING: Duration = Duration::from_secs(5);

/// Why a lock was not taken.
enum Refused {
    Failed(std::io::Error),
    /// Another process has it: its id, if that is known.
    Taken(String),
}

/// Takes the drive for this process. The holder's process id is in the file.
pub(super) fn lock(dir: &Path) -> Result<Lock> {
    let path = dir.join("LOCK");
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(|e| Error::io("open", &path, e))?;
    let own = std::process::id().to_string();
    let take = || {
        file.try_lock().map_err(|refused| match refused {
            TryLockError::Error(e) => Refused::Failed(e),
            TryLockError::WouldBlock => {
                let mut pid = String::new();
                let _ = (&file).seek(SeekFrom::Start(0)).and_then(|_| (&file).take(32).read_to_string(&mut pid));
                Refused::Taken(pid.trim().to_owned())
            }
        })
    };
    let pauses = ExponentialBuilder::new().with_min_delay(PAUSES.0).with_max_delay(PAUSES.1).with_total_delay(Some(CLOSING)).without_max_times();
    take.retry(pauses).when(|refused| matches!(refused, Refused::Taken(pid) if *pid == own)).call().map_err(|refused| {
        let holder = match refused {
            Refused::Failed(e) => return Error::io("lock", &path, e),
            Refused::Taken(pid) if pid.is_empty() => "another process".to_owned(),
            Refused::Taken(pid) if pid == own => format!("this process itself (pid {pid})"),
            Refused::Taken(pid) => format!("process {pid}"),
        };
        Error::conflict(format!("the drive in {} is open in {holder}: close it there, or connect to that process instead", dir.display()))
    })?;
    let noted = file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).and_then(|_| write!(file, "{}", std::process::id()));
    if let Err(error) = noted {
        // The id is only a hint for a process that finds the drive taken. A full disk must still open, so that space
        // can be freed.
        tracing::warn!(%error, path = %path.display(), "cannot note the process id");
    }
    Ok(Lock(file))
}
