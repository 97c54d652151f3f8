//! The directory of a store, and how an erasure replaces its content.
//!
//! | name | content |
//! |---|---|
//! | `LOCK` | locked by the process that has the store open |
//! | `CURRENT` | `skytether-kv 1`, and the number of the directory that counts |
//! | `<number>/db` | the merge tree |
//! | `<number>/ready` | empty; it is there once the merge tree is complete |
//! | `<number>/synced` | the last commit that is durable: number (u64), CRC-32C (u32), little-endian |
//! | `<number>/OVERWRITE` | empty; the files are overwritten before they are removed, unless the number is current |
//!
//! A new content is complete under the next number before `CURRENT` names it, by an atomic rename. What other numbers
//! have is garbage, and the next opening removes it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use skytether_common::checksum::crc32c;
use skytether_common::{Error, Result};

const MAGIC: &str = "skytether-kv 1";
const CURRENT: &str = "CURRENT";
const CURRENT_NEW: &str = "CURRENT.new";
const LOCK: &str = "LOCK";
/// The directory of the merge tree.
pub(super) const DB: &str = "db";
const READY: &str = "ready";
const OVERWRITE: &str = "OVERWRITE";

/// Makes `dir` if need be, and locks it until the file is dropped.
pub(super) fn lock(dir: &Path) -> Result<File> {
    let mut new = fs::DirBuilder::new();
    new.recursive(true);
    // Settings may hold secrets, and values are for those whom the store's owner lets read.
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut new, 0o700);
    new.create(dir).map_err(|e| Error::io("create", dir, e))?;
    let path = dir.join(LOCK);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(|e| Error::io("open", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Error::conflict(format!("the key-value store in {} is open in another process or place: close it there", dir.display())))
        }
        Err(TryLockError::Error(e)) => Err(Error::io("lock", &path, e)),
    }
}

/// The directory of this number.
pub(super) fn numbered(dir: &Path, number: u64) -> PathBuf {
    dir.join(number.to_string())
}

/// The numbers that have a directory.
fn numbers(dir: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| Error::io("list", dir, e))? {
        let entry = entry.map_err(|e| Error::io("list", dir, e))?;
        match entry.file_name().to_str() {
            Some(LOCK | CURRENT | CURRENT_NEW) => {}
            Some(name) if name.parse::<u64>().is_ok_and(|number| number.to_string() == name) => numbers.extend(name.parse::<u64>().ok()),
            _ => {
                let text = format!("{} holds {}, which is no part of a key-value store: name another directory", dir.display(), entry.path().display());
                return Err(Error::invalid(text));
            }
        }
    }
    Ok(numbers)
}

/// A number that no content ever had.
///
/// # Errors
/// `Unavailable` where the directory can't be listed.
pub(super) fn next_number(dir: &Path) -> Result<u64> {
    Ok(numbers(dir)?.into_iter().max().map_or(0, |highest| highest + 1))
}

/// The number that counts; `None` for a store that is to be made.
pub(super) fn current(dir: &Path) -> Result<Option<u64>> {
    let path = dir.join(CURRENT);
    let numbers = numbers(dir)?;
    match fs::read_to_string(&path) {
        Ok(text) => {
            let number = text.strip_prefix(MAGIC).and_then(|rest| rest.trim().parse::<u64>().ok());
            match number.filter(|number| format!("{MAGIC}\n{number}\n") == text) {
                Some(number) if numbered(dir, number).join(READY).exists() => Ok(Some(number)),
                Some(number) => {
                    Err(Error::corrupt(format!("{} is missing or not complete: restore the drive from its copies", numbered(dir, number).display())))
                }
                None if text.starts_with("skytether-kv ") && !text.starts_with(MAGIC) => {
                    Err(Error::unsupported(format!("a newer version wrote {}: open it with that version", path.display())))
                }
                None => Err(Error::corrupt(format!("{} is damaged: write \"{MAGIC}\" and the number of the directory into it", path.display()))),
            }
        }
        Err(e) if e.kind() == std::io::ErrorKind::InvalidData => Err(Error::corrupt(format!("{} is damaged", path.display())).with_source(e)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            // A crash while the store was made, or a lost file.
            let ready: Vec<u64> = numbers.iter().copied().filter(|number| numbered(dir, *number).join(READY).exists()).collect();
            match ready[..] {
                [] => {
                    numbers.iter().try_for_each(|number| refuse_strangers(&numbered(dir, *number)))?;
                    Ok(None)
                }
                [number] => {
                    set_current(dir, number)?;
                    Ok(Some(number))
                }
                _ => Err(Error::corrupt(format!("{} is missing: write \"{MAGIC}\" and the number of the directory into it", path.display()))),
            }
        }
        Err(e) => Err(Error::io("read", &path, e)),
    }
}

/// Refuses a directory that a store did not begin to make: what is there would be removed.
fn refuse_strangers(home: &Path) -> Result<()> {
    for entry in fs::read_dir(home).map_err(|e| Error::io("list", home, e))? {
        let path = entry.map_err(|e| Error::io("list", home, e))?.path();
        if !matches!(path.file_name().and_then(|name| name.to_str()), Some(DB | Synced::NAME | OVERWRITE)) {
            let text = format!("{} is no part of a key-value store: name another directory", path.display());
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}

/// Makes `number` the one that counts, in one step.
pub(super) fn set_current(dir: &Path, number: u64) -> Result<()> {
    let (new, path) = (dir.join(CURRENT_NEW), dir.join(CURRENT));
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(format!("{MAGIC}\n{number}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)
    };
    write().map_err(|e| Error::io("write", &path, e))?;
    sync_directory(dir)
}

/// Says that the directory of a number is complete.
pub(super) fn set_ready(home: &Path) -> Result<()> {
    mark(home, READY)
}

/// Says that the files of a number are overwritten before they are removed.
pub(super) fn set_overwrite(home: &Path) -> Result<()> {
    mark(home, OVERWRITE)
}

fn mark(home: &Path, name: &str) -> Result<()> {
    let path = home.join(name);
    File::create(&path).and_then(|file| file.sync_all()).map_err(|e| Error::io("create", &path, e))?;
    sync_directory(home)
}

pub(super) fn sync_directory(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::io("flush", dir, e))
}

/// Removes the directories of all numbers but `current`, as their erasure wanted it.
pub(super) fn clean(dir: &Path, current: Option<u64>) -> Result<()> {
    for number in numbers(dir)? {
        if Some(number) != current {
            destroy(&numbered(dir, number))?;
        }
    }
    if let Some(number) = current {
        // An erasure that did not come to its end before the crash.
        remove_if_there(&numbered(dir, number).join(OVERWRITE))?;
    }
    remove_if_there(&dir.join(CURRENT_NEW))
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path, e)),
        _ => Ok(()),
    }
}

/// Removes a directory of files; overwrites them first where its mark says so. The mark goes last.
pub(super) fn destroy(home: &Path) -> Result<()> {
    if home.join(OVERWRITE).exists() {
        overwrite(home)?;
        for entry in fs::read_dir(home).map_err(|e| Error::io("list", home, e))? {
            let path = entry.map_err(|e| Error::io("list", home, e))?.path();
            if path.is_dir() {
                fs::remove_dir_all(&path).map_err(|e| Error::io("remove", &path, e))?;
            }
        }
        sync_directory(home)?;
    }
    match fs::remove_dir_all(home) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", home, e)),
        _ => Ok(()),
    }
}

/// Writes zeros over all files below `dir`, and flushes them.
fn overwrite(dir: &Path) -> Result<()> {
    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
    for entry in fs::read_dir(dir).map_err(|e| Error::io("list", dir, e))? {
        let entry = entry.map_err(|e| Error::io("list", dir, e))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(|e| Error::io("list", dir, e))?);
        if kind.is_dir() {
            overwrite(&path)?;
        } else if kind.is_file() {
            let zero = || {
                let file = OpenOptions::new().write(true).open(&path)?;
                let (mut at, len) = (0, file.metadata()?.len());
                while at < len {
                    let part = (len - at).min(ZEROS.len() as u64);
                    file.write_all_at(&ZEROS[..part as usize], at)?;
                    at += part;
                }
                file.sync_all()
            };
            zero().map_err(|e| Error::io("overwrite", &path, e))?;
        }
    }
    Ok(())
}

/// How many bytes of the disk the files below `dir` occupy. Files that go meanwhile don't count.
pub(super) fn occupied(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        entries => entries.map_err(|e| Error::io("list", dir, e))?,
    };
    for entry in entries {
        let Ok(entry) = entry else { continue };
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes += occupied(&entry.path())?,
            // `st_blocks` counts 512 bytes.
            Ok(meta) => bytes += meta.blocks() * 512,
            Err(_) => {}
        }
    }
    Ok(bytes)
}

/// The file that says which commit is durable. It is not flushed itself: what is on disk may be older than the truth,
/// and never newer.
#[derive(Debug)]
pub(super) struct Synced(File);

impl Synced {
    const NAME: &str = "synced";

    /// The file in `home`, and the commit that it names; 0 where it is not readable.
    pub(super) fn open(home: &Path) -> Result<(Self, u64)> {
        let path = home.join(Self::NAME);
        let open = || {
            let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
            let mut bytes = Vec::new();
            (&file).take(12).read_to_end(&mut bytes)?;
            Ok((file, bytes))
        };
        let (file, bytes) = open().map_err(|e| Error::io("open", &path, e))?;
        let commit = bytes.first_chunk::<8>().filter(|number| bytes.get(8..) == Some(&crc32c(&number[..]).to_le_bytes()));
        Ok((Self(file), commit.map_or(0, |number| u64::from_le_bytes(*number))))
    }

    /// Writes that `commit` is durable.
    pub(super) fn set(&self, commit: u64) -> std::io::Result<()> {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&commit.to_le_bytes());
        let crc = crc32c(&bytes[..8]);
        bytes[8..].copy_from_slice(&crc.to_le_bytes());
        self.0.write_all_at(&bytes, 0)
    }
}
