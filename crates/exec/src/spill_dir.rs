//! Where a host spills what its memory can't hold: its own directory, which a crash leaves behind and the next host
//! deletes.
//!
//! `skytether-spill-<pid>-<id>/` holds the files. `skytether-spill-<pid>-<id>.lock` lies next to it, locked (flock)
//! while its host lives. A lock that another host can take therefore belongs to a host that has ended.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use skytether_common::{Error, Result};
use uuid::Uuid;

const PREFIX: &str = "skytether-spill-";
const LOCK: &str = ".lock";

/// One host's directory; deleted when this is dropped.
#[derive(Debug)]
pub struct SpillDirectory {
    path: PathBuf,
    lock: PathBuf,
    held: File,
}

impl SpillDirectory {
    /// Makes a directory below `parent`, which is made where absent, and deletes directories of hosts that have ended.
    ///
    /// # Errors
    /// As [`Error::io`] for a directory that can't be made.
    pub(crate) fn make(parent: &Path) -> Result<Self> {
        fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
        sweep(parent);
        let name = format!("{PREFIX}{}-{}", std::process::id(), Uuid::new_v4().simple());
        let (path, lock, aside) = (parent.join(&name), parent.join(format!("{name}{LOCK}")), parent.join(format!("{name}{LOCK}.new")));
        // Locked before it gets the name that other hosts look for: none can find it unlocked in between.
        let held = File::create(&aside).map_err(|e| Error::io("create", &aside, e))?;
        held.lock().map_err(|e| Error::io("lock", &aside, e))?;
        fs::rename(&aside, &lock).map_err(|e| Error::io("rename", &aside, e))?;
        let made = Self { path, lock, held };
        fs::create_dir(&made.path).map_err(|e| Error::io("create", &made.path, e))?;
        Ok(made)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SpillDirectory {
    fn drop(&mut self) {
        remove(&self.path, &self.lock);
        // Explicitly: a process forked meanwhile has the same lock, which closing would leave with it.
        let _ = self.held.unlock();
    }
}

/// Deletes what dead hosts left below `parent`. What can't be deleted, such as another user's, stays.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(stem) = name.to_str().filter(|n| n.starts_with(PREFIX)).and_then(|n| n.strip_suffix(LOCK)) else { continue };
        if let Ok(lock) = File::options().read(true).write(true).open(entry.path())
            && lock.try_lock().is_ok()
        {
            remove(&parent.join(stem), &entry.path());
        }
    }
}

/// Removes the lock last: a later host finds the directory by its lock.
fn remove(path: &Path, lock: &Path) {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => tracing::warn!("cannot delete {}, which is not needed any more: {e}", path.display()),
        _ => {
            let _ = fs::remove_file(lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(parent: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(parent).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn spill_files_of_dead_hosts_are_deleted_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().join("below");
        let alive = SpillDirectory::make(&parent).unwrap();
        fs::write(alive.path().join("rows"), "1").unwrap();
        // As a crash leaves it: without a lock holder.
        fs::create_dir(parent.join("skytether-spill-1-a")).unwrap();
        fs::write(parent.join("skytether-spill-1-a/rows"), "2").unwrap();
        fs::write(parent.join("skytether-spill-1-a.lock"), "").unwrap();
        fs::write(parent.join("mine.lock"), "").unwrap();
        let next = SpillDirectory::make(&parent).unwrap();
        assert!(alive.path().join("rows").exists() && next.path().exists());
        let left = names(&parent);
        assert!(left.len() == 5 && left.iter().any(|n| n == "mine.lock") && !left.iter().any(|n| n.contains("-1-a")), "{left:?}");
        drop((alive, next));
        assert_eq!(names(&parent), ["mine.lock"]);
    }
}
