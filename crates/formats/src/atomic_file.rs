//! [`AtomicFile`]: a file that is there whole or not at all. It is written next to its place, synced and renamed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use skytether_common::{Error, Result};
use tempfile::NamedTempFile;

/// Files that this process is writing.
static UNDER_WAY: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Removes unfinished files of exports and generators, for a process that ends without waiting for them. None of them
/// gets its final name afterwards.
pub fn remove_unfinished() {
    for path in std::mem::take(&mut *UNDER_WAY.lock()) {
        // The file may just have been finished.
        let _ = std::fs::remove_file(path);
    }
}

/// A path among [`UNDER_WAY`].
#[derive(Debug)]
struct Listed(PathBuf);

impl Listed {
    fn new(path: &Path) -> Self {
        UNDER_WAY.lock().insert(path.to_path_buf());
        Self(path.to_path_buf())
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        UNDER_WAY.lock().remove(&self.0);
    }
}

/// A file that is being written. Dropped before it is [finished](Self::finish), it leaves nothing.
#[derive(Debug)]
pub struct AtomicFile {
    listed: Listed,
    file: NamedTempFile,
    to: PathBuf,
    replace: bool,
}

fn there(to: &Path) -> Error {
    Error::conflict(format!("{} exists already: choose another name, or replace it (replace=True, in the shell --replace)", to.display()))
}

impl AtomicFile {
    /// Begins the file `to`, in its final directory.
    ///
    /// # Errors
    /// `Conflict` where it exists and `replace` is false; `Invalid` for a directory, a device or a pipe; errors of the
    /// system about the directory.
    pub fn begin(to: &Path, replace: bool) -> Result<Self> {
        if to.is_dir() {
            return Err(Error::invalid(format!("{} is a directory: name a file", to.display())));
        }
        if !replace && to.symlink_metadata().is_ok() {
            return Err(there(to));
        }
        // A link stays: its target is replaced. A device or a pipe can't be.
        let followed = to.canonicalize();
        let to = followed.as_deref().unwrap_or(to);
        let before = to.metadata().ok();
        if before.as_ref().is_some_and(|before| !before.is_file()) {
            return Err(Error::invalid(format!("{} is no ordinary file, and can't be replaced by one", to.display())));
        }
        let name = to.file_name().ok_or_else(|| Error::invalid(format!("{} names no file", to.display())))?;
        let mut aside = tempfile::Builder::new();
        let prefix = format!(".{}.", name.to_string_lossy());
        aside.prefix(&prefix).suffix(".part");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // A new file gets the permissions that the process's mask leaves. A replaced file keeps its permissions.
            aside.permissions(before.map_or_else(|| std::fs::Permissions::from_mode(0o666), |before| before.permissions()));
        }
        let file = aside.tempfile_in(dir(to)).map_err(|e| Error::io("write", to, e))?;
        Ok(Self { listed: Listed::new(file.path()), file, to: to.to_path_buf(), replace })
    }

    /// The file's place.
    pub fn to(&self) -> &Path {
        &self.to
    }

    /// The file with the bytes so far, to be read.
    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// The next bytes.
    ///
    /// # Errors
    /// What the system says; `Exhausted` for a full disk.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| Error::io("write", &self.to, e))
    }

    /// Syncs the file and renames it to its place.
    ///
    /// # Errors
    /// As [`Self::write`]; `Conflict` where another file came there meanwhile.
    pub fn finish(self) -> Result<()> {
        let Self { listed, file, to, replace } = self;
        file.as_file().sync_all().map_err(|e| Error::io("write", &to, e))?;
        let placed = if replace { file.persist(&to) } else { file.persist_noclobber(&to) };
        placed.map_err(|e| if e.error.kind() == std::io::ErrorKind::AlreadyExists { there(&to) } else { Error::io("write", &to, e.error) })?;
        drop(listed);
        // The new name must be on the disk, too. Some network file systems can't sync a directory; then that is left to
        // the system.
        if let Ok(dir) = File::open(dir(&to)) {
            let _ = dir.sync_all();
        }
        Ok(())
    }
}

/// The directory that `to` is in.
fn dir(to: &Path) -> &Path {
    match to.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use skytether_common::Kind;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn file_is_whole_or_absent() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("a.bin");
        let mut file = AtomicFile::begin(&to, false).unwrap();
        file.write(b"half").unwrap();
        assert!(!to.exists());
        drop(file);
        assert!(names(dir.path()).is_empty());
        let mut file = AtomicFile::begin(&to, false).unwrap();
        file.write(b"one").unwrap();
        file.finish().unwrap();
        assert_eq!((std::fs::read(&to).unwrap(), names(dir.path())), (b"one".to_vec(), vec!["a.bin".to_owned()]));
        assert_eq!(AtomicFile::begin(&to, false).unwrap_err().kind(), Kind::Conflict);
        let mut file = AtomicFile::begin(&to, true).unwrap();
        file.write(b"two").unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"two");
    }

    #[test]
    fn file_created_meanwhile_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("a.bin");
        let file = AtomicFile::begin(&to, false).unwrap();
        std::fs::write(&to, b"theirs").unwrap();
        assert_eq!(file.finish().unwrap_err().kind(), Kind::Conflict);
        assert_eq!((std::fs::read(&to).unwrap(), names(dir.path()).len()), (b"theirs".to_vec(), 1));
    }

    #[test]
    fn places_that_can_not_be_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = AtomicFile::begin(dir.path(), true).unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.to_string().contains("directory"), "{error}");
        let error = AtomicFile::begin(&dir.path().join("none/a.bin"), true).unwrap_err();
        assert!(error.kind() == Kind::NotFound && error.to_string().contains("none/a.bin"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_modes_stay_and_devices_are_not_replaced() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        std::fs::write(&real, b"old").unwrap();
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&real, &link).unwrap();
        let mut file = AtomicFile::begin(&link, true).unwrap();
        file.write(b"new").unwrap();
        file.finish().unwrap();
        assert!(link.symlink_metadata().unwrap().file_type().is_symlink());
        assert_eq!((std::fs::read(&real).unwrap(), real.metadata().unwrap().permissions().mode() & 0o777), (b"new".to_vec(), 0o600));
        let error = AtomicFile::begin(Path::new("/dev/null"), true).unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.to_string().contains("/dev/null"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn new_file_has_the_usual_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("usual"), b"").unwrap();
        AtomicFile::begin(&dir.path().join("ours"), false).unwrap().finish().unwrap();
        let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode("ours"), mode("usual"));
    }
}
