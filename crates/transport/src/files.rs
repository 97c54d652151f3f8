//! Small files of secrets: replaced as a whole, and recognised when they change.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use skytether_common::{Error, Result};

/// Who may read a file that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The owner alone.
    Owner,
    /// All.
    All,
}

impl Access {
    #[cfg(unix)]
    fn mode(self) -> u32 {
        match self {
            Access::Owner => 0o600,
            Access::All => 0o644,
        }
    }
}

/// Replaces the file at `path` by `content`: readers see the old bytes or the new ones, also after a power loss.
pub(crate) fn replace(path: &Path, content: &[u8], access: Access) -> Result<()> {
    let (dir, temporary) = (parent(path), temporary(path));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(access.mode());
    }
    #[cfg(not(unix))]
    let _ = access;
    let written = (|| {
        let mut file = options.open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // Only then is the new name on the disk.
        File::open(dir)?.sync_all()
    })();
    written.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        Error::io("write", path, e)
    })
}

/// The directory of `path`.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name in the same directory that no other process uses.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", uuid_like()));
    path.with_file_name(name)
}

/// Sixteen hexadecimal digits that differ between processes and calls.
fn uuid_like() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static CALLS: AtomicU64 = AtomicU64::new(0);
    format!("{:x}-{:x}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed))
}

/// What changes when a file is written or replaced. The number of the file is in it because a renewed certificate often
/// has the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp(Vec<Option<(Option<SystemTime>, u64, u64)>>);

impl Stamp {
    /// The stamp of `files`; those that are absent are noted as such.
    ///
    /// It asks the file system once for each file. That takes microseconds, so it may be called from asynchronous code.
    pub(crate) fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Self {
        Self(files.into_iter().map(|path| fs::metadata(path).ok().map(|m| (m.modified().ok(), m.len(), number(&m)))).collect())
    }
}

#[cfg(unix)]
fn number(of: &Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    of.ino()
}

#[cfg(not(unix))]
fn number(_: &Metadata) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_file_has_new_stamp_and_given_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        replace(&path, b"one", Access::All).unwrap();
        let before = Stamp::of([path.as_path()]);
        assert_eq!(before, Stamp::of([path.as_path()]));
        replace(&path, b"two", Access::Owner).unwrap();
        assert_ne!(before, Stamp::of([path.as_path()]));
        assert_eq!(fs::read(&path).unwrap(), b"two");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
    }
}
