//! The files of a journal, behind a trait so that tests can take away what was not flushed.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of journal files.
pub trait Files: Send + Sync + Debug {
    /// Where it is, for people.
    fn place(&self) -> String;
    /// The names of all files.
    ///
    /// # Errors
    /// Those of the system.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes or replaces a file. After a loss of power it is there with this content, or as it was before; when this
    /// returns it is there.
    ///
    /// # Errors
    /// Those of the system.
    fn create(&self, name: &str, content: &[u8]) -> io::Result<Arc<dyn FileIo>>;
    /// Opens a file to read and write.
    ///
    /// # Errors
    /// Those of the system.
    fn open(&self, name: &str) -> io::Result<Arc<dyn FileIo>>;
    /// Takes a file away, durably when this returns, but keeps its space for [`Self::reuse`]. A crash removes it.
    ///
    /// # Errors
    /// Those of the system.
    fn retire(&self, name: &str) -> io::Result<()>;
    /// Makes the file `name` of the retired one, and writes `head` to its begin. Its name is durable when this returns,
    /// `head` is not. Pages that the system has in memory are written without being allocated again.
    ///
    /// # Errors
    /// Those of the system.
    fn reuse(&self, retired: &str, name: &str, head: &[u8]) -> io::Result<Arc<dyn FileIo>>;
    /// Forgets a retired file.
    ///
    /// # Errors
    /// Those of the system.
    fn discard(&self, retired: &str) -> io::Result<()>;
    /// Removes a file, durably when this returns. A reader that has it open can still read it.
    ///
    /// # Errors
    /// Those of the system.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// An open file.
#[expect(clippy::len_without_is_empty, reason = "the length is asked of the system, and may fail")]
pub trait FileIo: Send + Sync + Debug {
    /// Its length in bytes.
    ///
    /// # Errors
    /// Those of the system.
    fn len(&self) -> io::Result<u64>;
    /// Writes `parts` one after the other, from `at` on. They survive the end of the process; [`Self::sync`] makes them
    /// durable.
    ///
    /// # Errors
    /// Those of the system; then any part of them may have been written.
    fn write_at(&self, at: u64, parts: &[&[u8]]) -> io::Result<()>;
    /// Fills `to` with the bytes from `at` on. Without `wait`, `false` where that would wait for the disk.
    ///
    /// # Errors
    /// Those of the system; `UnexpectedEof` behind the end.
    fn read_at(&self, at: u64, to: &mut [u8], wait: bool) -> io::Result<bool>;
    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// Those of the system. It is unknown then what is durable.
    fn sync(&self) -> io::Result<()>;
}

/// A directory of the local file system.
#[derive(Debug)]
pub struct DiskFiles(PathBuf);

impl DiskFiles {
    /// The directory `dir`, which is made where it is missing.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        // The names of directories that were just made must last as well. A parent that this process may not read was
        // made by another user, before.
        for parent in dir.canonicalize()?.ancestors().skip(1) {
            if File::open(parent).and_then(|parent| parent.sync_all()).is_err() {
                break;
            }
        }
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "tmp") {
                fs::remove_file(&path)?;
            }
        }
        Ok(Self(dir.to_owned()))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

impl Files for DiskFiles {
    fn place(&self) -> String {
        self.0.display().to_string()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    }

    fn create(&self, name: &str, content: &[u8]) -> io::Result<Arc<dyn FileIo>> {
        let (tmp, path) = (self.0.join(format!("{name}.tmp")), self.0.join(name));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&tmp)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&tmp, &path)?;
        self.sync_names()?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn FileIo>> {
        Ok(Arc::new(DiskFile(File::options().read(true).write(true).open(self.0.join(name))?)))
    }

    fn retire(&self, name: &str) -> io::Result<()> {
        fs::rename(self.0.join(name), self.0.join(format!("{name}.tmp")))?;
        self.sync_names()
    }

    fn reuse(&self, retired: &str, name: &str, head: &[u8]) -> io::Result<Arc<dyn FileIo>> {
        let path = self.0.join(format!("{retired}.tmp"));
        let file = File::options().read(true).write(true).open(&path)?;
        file.write_all_at(head, 0)?;
        fs::rename(&path, self.0.join(name))?;
        self.sync_names()?;
        Ok(Arc::new(DiskFile(file)))
    }

    fn discard(&self, retired: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(format!("{retired}.tmp")))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))?;
        self.sync_names()
    }
}

#[derive(Debug)]
struct DiskFile(File);

impl FileIo for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn write_at(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let all: usize = parts.iter().map(|part| part.len()).sum();
        let mut done = rustix::io::pwritev(&self.0, &slices, at)?;
        if done == all {
            return Ok(());
        }
        // Rare: the system wrote a part only.
        let mut from = at;
        for part in parts {
            let skip = done.min(part.len());
            done -= skip;
            self.0.write_all_at(&part[skip..], from + skip as u64)?;
            from += part.len() as u64;
        }
        Ok(())
    }

    fn read_at(&self, at: u64, to: &mut [u8], wait: bool) -> io::Result<bool> {
        if wait {
            return self.0.read_exact_at(to, at).map(|()| true);
        }
        #[cfg(target_os = "linux")]
        {
            let mut parts = [io::IoSliceMut::new(to)];
            match rustix::io::preadv2(&self.0, &mut parts, at, rustix::io::ReadWriteFlags::NOWAIT) {
                Ok(read) => Ok(read == to.len()),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INTR) => Ok(false),
                Err(e) => Err(e.into()),
            }
        }
        #[cfg(not(target_os = "linux"))]
        Ok(false)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
