//! Small files of secrets: replaced as a whole, and recognised when they change.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use skytether_common::{Error, Result};

/// Who may read a file that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The owner alone. Where the former file was private too, those who could read that one.
    Owner,
    /// The owner alone where the file is new, and otherwise those who could read the former one.
    Kept,
    /// All.
    All,
}

#[cfg(unix)]
impl Access {
    /// The mode of a new file.
    fn mode(self) -> u32 {
        match self {
            Access::Owner | Access::Kept => 0o600,
            Access::All => 0o644,
        }
    }

    /// The mode of a file that replaces one of mode `former`.
    fn mode_after(self, former: u32) -> u32 {
        let former = former & 0o777;
        if self == Access::Owner && former & 0o007 != 0 { self.mode() } else { former }
    }
}

/// Replaces the file at `path` by `content`: readers see the old bytes or the new ones, also after a power loss. Owner,
/// group and, within `access`, mode stay, as a server of another user may need the file.
pub(crate) fn replace(path: &Path, content: &[u8], access: Access) -> Result<()> {
    let temporary = temporary(path)?;
    replace_through(&temporary, path, content, access).map_err(|e| Error::io("write", path, e))
}

/// As [`replace`], by way of the file `temporary`, which must be absent.
fn replace_through(temporary: &Path, path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    // Where this fails, the file belongs to another writer, which removes it.
    let mut file = create_new(temporary, access)?;
    let written = (|| {
        keep_owner(&file, path, access)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(temporary, path)?;
        // Only then is the new name on the disk.
        File::open(parent(path))?.sync_all()
    })();
    if written.is_err() {
        let _ = fs::remove_file(temporary);
    }
    written
}

fn create_new(path: &Path, access: Access) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(access.mode());
    }
    #[cfg(not(unix))]
    let _ = access;
    options.open(path)
}

/// Opens the file of a lock at `path`. A new one gets owner, group and mode of `like`, if that is there: the processes
/// that may change the one can lock the other.
pub(crate) fn open_lock(path: &Path, like: &Path) -> io::Result<File> {
    match create_new(path, Access::Kept) {
        Ok(file) => keep_owner(&file, like, Access::Kept).map(|()| file).inspect_err(|_| {
            let _ = fs::remove_file(path);
        }),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => OpenOptions::new().write(true).open(path),
        Err(e) => Err(e),
    }
}

/// Gives `file` the owner, the group and, within `access`, the mode of the file at `former`, if there is one.
#[cfg(unix)]
fn keep_owner(file: &File, former: &Path, access: Access) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let former = match fs::metadata(former) {
        Ok(former) => former,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let own = file.metadata()?;
    let (user, group) = (former.uid(), former.gid());
    if (own.uid(), own.gid()) != (user, group) {
        fchown(file, (own.uid() != user).then_some(user), (own.gid() != group).then_some(group)).map_err(|e| {
            io::Error::new(e.kind(), format!("it belongs to user {user} and group {group}, and this process can't leave it so ({e}); run it as that user"))
        })?;
    }
    // After the change of the owner, which takes bits away.
    file.set_permissions(fs::Permissions::from_mode(access.mode_after(former.mode())))
}

#[cfg(not(unix))]
fn keep_owner(_: &File, _: &Path, _: Access) -> io::Result<()> {
    Ok(())
}

/// The file that `path` means: where it is a symbolic link, what that names, which may be absent.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf> {
    let mut at = path.to_owned();
    // Linux follows no more than 40 either.
    for _ in 0..40 {
        match fs::read_link(&at) {
            Ok(target) => at = parent(&at).join(target),
            // It is no link, or absent.
            Err(_) => return Ok(at),
        }
    }
    Err(Error::invalid(format!("{}: its symbolic links go in a circle; name the file itself", path.display())))
}

/// The directory of `path`.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name in the same directory that no other writer uses. Process ids do not tell writers apart: containers that share
/// a volume have the same ones.
fn temporary(path: &Path) -> Result<PathBuf> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|e| Error::unavailable("the system gives no random numbers").with_source(e))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}.tmp", u64::from_ne_bytes(random)));
    Ok(path.with_file_name(name))
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

    /// Two writers with the same name for their temporary files, as in containers with the same process ids.
    #[test]
    fn temporary_file_of_another_writer_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (path, theirs) = (dir.path().join("a"), dir.path().join("a.tmp"));
        fs::write(&theirs, b"theirs").unwrap();
        assert_eq!(replace_through(&theirs, &path, b"ours", Access::All).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&theirs).unwrap(), b"theirs");
        assert_ne!(temporary(&path).unwrap(), temporary(&path).unwrap());
    }

    #[cfg(unix)]
    #[test]
    fn replaced_file_keeps_mode_unless_a_secret_was_open() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for (access, before, after) in [
            (Access::Kept, 0o640, 0o640),
            (Access::Kept, 0o644, 0o644),
            (Access::Owner, 0o640, 0o640),
            (Access::Owner, 0o644, 0o600),
            (Access::All, 0o600, 0o600),
        ] {
            fs::write(&path, b"one").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
            replace(&path, b"two", access).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, after, "{access:?} {before:o}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn link_is_followed_also_to_an_absent_file() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        symlink("two", at("one")).unwrap();
        symlink(at("sub/three"), at("two")).unwrap();
        assert_eq!(resolved(&at("one")).unwrap(), at("sub/three"));
        assert_eq!(resolved(&at("other")).unwrap(), at("other"));
        symlink("circle", at("circle")).unwrap();
        assert!(resolved(&at("circle")).unwrap_err().message().contains("circle"));
    }
}
