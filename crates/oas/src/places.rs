//! From a path on a mounted file system to the places of its bytes on the device below.
//!
//! Opening the file is the permission: input is opened for reading, output for reading and writing. Places are only
//! true while the file does not change, so they come with a [`Fingerprint`], and [`OpenFile::is_unchanged`] compares
//! it after the computation.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat, fstat, fstatfs, fsync};
use skytether_common::{Error, Result};
use skytether_offload::codes::MOST_EXTENTS;
use skytether_offload::{Extent, Object};
use skytether_volume::device::LOGICAL;

use crate::carrier::{Carrier, carrier};
use crate::fiemap::{self, RawExtent, flag};

const BLOCK: u64 = LOGICAL as u64;

/// How often places are asked for while the file changes.
const TRIES: usize = 4;

/// File systems whose answers are not places on one device, by their magic numbers (`linux/magic.h`).
const REFUSED: [(u64, &str); 5] = [
    (0x9123_683E, "btrfs gives addresses of its own, not places on the device"),
    (0xF2F5_2010, "f2fs moves data, and may lie on several devices"),
    (0xCA45_1A4E, "bcachefs moves data, and may lie on several devices"),
    (0x2FC1_2FC1, "ZFS moves data, and lies on several devices"),
    (0x794C_7630, "an overlay has the files of other file systems; give the path below it"),
];

/// Flags that say that the device has no bytes which are those of the file.
const NO_PLACE: [(u32, &str); 7] = [
    (flag::UNKNOWN, "UNKNOWN: the place is not known"),
    (flag::DELALLOC, "DELALLOC: the bytes are not on the device yet"),
    (flag::ENCODED, "ENCODED: the bytes are compressed or encoded"),
    (flag::DATA_ENCRYPTED, "DATA_ENCRYPTED: the bytes are encrypted"),
    (flag::NOT_ALIGNED, "NOT_ALIGNED: the bytes do not begin with a block"),
    (flag::DATA_INLINE, "DATA_INLINE: the bytes are inside metadata"),
    (flag::DATA_TAIL, "DATA_TAIL: the bytes share a block with those of other files"),
];

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Input: `O_RDONLY`.
    Read,
    /// Output: `O_RDWR`.
    Write,
}

/// A file of the caller's.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    path: PathBuf,
    access: Access,
}

/// What changes when a file does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    inode: (u64, u64),
    size: u64,
    modified: (i64, u64),
    changed: (i64, u64),
    extents: Vec<RawExtent>,
}

/// Where the bytes of a file lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The bytes as a virtual object: all of the file, on the disk of `carrier`.
    pub object: Object,
    /// The disk.
    pub carrier: Carrier,
    /// Whether extents belong to other files, too.
    pub shared: bool,
    /// Whether some bytes are allocated and were never written.
    pub unwritten: bool,
    /// What must not have changed for these places to be true.
    pub fingerprint: Fingerprint,
}

impl Places {
    /// The extents as the kernel gave them.
    pub(crate) fn extents(&self) -> &[RawExtent] {
        &self.fingerprint.extents
    }

    /// The same places as those of an output: the target may write there.
    ///
    /// # Errors
    /// `Unsupported` where writing to the device would change other files, or where the file system would not show
    /// what was written: shared and unwritten extents, holes.
    pub fn as_output(&self) -> Result<&Object> {
        if self.shared {
            return Err(Error::unsupported("SHARED: other files have these extents, too, and would change; copy the file without reflinks"));
        }
        if self.unwritten || self.object.extents.iter().any(Extent::is_hole) {
            return Err(Error::unsupported("UNWRITTEN extents and holes read as zeros whatever the device has there; write the file once before"));
        }
        Ok(&self.object)
    }
}

impl OpenFile {
    /// Opens a regular file.
    ///
    /// # Errors
    /// What the system says; `Invalid` where it is no regular file.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Self> {
        let path = path.as_ref();
        let file = OpenOptions::new().read(true).write(access == Access::Write).open(path).map_err(|cause| Error::io("open", path, cause))?;
        Self::of(file, path, access)
    }

    /// A file that the caller opened, for `access` at least.
    ///
    /// # Errors
    /// `Invalid` where it is no regular file.
    pub fn of(file: File, path: impl AsRef<Path>, access: Access) -> Result<Self> {
        let opened = Self { file, path: path.as_ref().to_owned(), access };
        if FileType::from_raw_mode(opened.stat()?.st_mode) != FileType::RegularFile {
            return Err(Error::invalid(format!("{} is no regular file", opened.path.display())));
        }
        Ok(opened)
    }

    /// Its path, as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What it was opened for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its length in bytes, now.
    ///
    /// # Errors
    /// `Unavailable` where the system does not say.
    pub fn size(&self) -> Result<u64> {
        Ok(size(&self.stat()?))
    }

    fn stat(&self) -> Result<Stat> {
        fstat(&self.file).map_err(|cause| Error::io("look at", &self.path, cause.into()))
    }

    /// Where its bytes lie, after all that is cached was written.
    ///
    /// # Errors
    /// `Unsupported` where a place can't be told or does not have the file's bytes, by the name of the reason;
    /// `Exhausted` for too many extents; `Conflict` where the file keeps changing.
    pub fn places(&self) -> Result<Places> {
        self.ask().map_err(|error| error.named(&self.path.display().to_string()))
    }

    fn ask(&self) -> Result<Places> {
        let fs = fstatfs(&self.file).map_err(|cause| Error::io("look at the file system of", &self.path, cause.into()))?;
        if let Some((_, why)) = REFUSED.iter().find(|(magic, _)| *magic == fs.f_type as u64 & 0xFFFF_FFFF) {
            return Err(Error::unsupported(*why));
        }
        if fiemap::is_realtime(self.file.as_fd()) {
            return Err(Error::unsupported("the file lies on the real-time device of its file system, which is another one"));
        }
        let carrier = carrier(self.stat()?.st_dev)?;
        let mut before = self.fingerprint()?;
        for _ in 0..TRIES {
            let after = self.fingerprint()?;
            if before == after {
                return places(after, carrier);
            }
            before = after;
        }
        Err(Error::conflict("the file changes all the time, so that its places are not known"))
    }

    /// Whether the file is as it was when `places` were asked for. What was computed of a changed file is worth
    /// nothing.
    ///
    /// # Errors
    /// As [`OpenFile::places`].
    pub fn is_unchanged(&self, places: &Places) -> Result<bool> {
        Ok(self.fingerprint()? == places.fingerprint)
    }

    fn fingerprint(&self) -> Result<Fingerprint> {
        fsync(&self.file).map_err(|cause| Error::io("sync", &self.path, cause.into()))?;
        let extents = fiemap::extents(self.file.as_fd(), MOST_EXTENTS)?;
        let stat = self.stat()?;
        Ok(Fingerprint {
            inode: (stat.st_dev, stat.st_ino),
            size: size(&stat),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            extents,
        })
    }
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// The places by what the kernel says.
fn places(fingerprint: Fingerprint, carrier: Carrier) -> Result<Places> {
    let found = object(fingerprint.size, &fingerprint.extents, carrier.base)?;
    Ok(Places { object: found.object, carrier, shared: found.shared, unwritten: found.unwritten, fingerprint })
}

/// An object, whether extents of it belong to other files, too, and whether some were never written.
struct Found {
    object: Object,
    shared: bool,
    unwritten: bool,
}

/// The object of a file of `size` bytes with these extents, on a file system that begins at `base` of its disk.
///
/// # Errors
/// As [`OpenFile::places`].
#[doc(hidden)]
pub fn of_extents(size: u64, extents: &[RawExtent], base: u64) -> Result<Object> {
    object(size, extents, base).map(|found| found.object)
}

fn object(size: u64, raw: &[RawExtent], base: u64) -> Result<Found> {
    let end = size.checked_next_multiple_of(BLOCK).ok_or_else(|| Error::invalid("the file ends beyond all numbers"))?;
    let (mut extents, mut at): (Vec<Extent>, u64) = (Vec::new(), 0);
    let (mut shared, mut unwritten) = (false, false);
    let mut push = |extent: Extent| match extents.last_mut() {
        Some(last) if last.is_hole() && extent.is_hole() => last.length += extent.length,
        Some(last) if !last.is_hole() && !extent.is_hole() && last.place + last.length == extent.place => last.length += extent.length,
        _ if extent.length > 0 => extents.push(extent),
        _ => {}
    };
    for raw in raw {
        let last = raw.logical.checked_add(raw.length).ok_or_else(|| Error::invalid("an extent ends beyond all numbers"))?;
        if raw.logical >= end || last <= at {
            continue;
        }
        if let Some((_, why)) = NO_PLACE.iter().find(|(bit, _)| raw.flags & bit != 0) {
            return Err(Error::unsupported(*why));
        }
        if raw.logical < at || !(raw.logical | raw.length | raw.physical).is_multiple_of(BLOCK) {
            return Err(Error::unsupported("extents overlap, or are not of whole blocks"));
        }
        push(Extent::hole(raw.logical - at));
        let length = last.min(end) - raw.logical;
        at = raw.logical + length;
        shared |= raw.flags & flag::SHARED != 0;
        if raw.flags & flag::UNWRITTEN != 0 {
            unwritten = true;
            push(Extent::hole(length));
            continue;
        }
        let place = raw.physical.checked_add(base).ok_or_else(|| Error::invalid("a place is beyond all numbers"))?;
        push(Extent::new(place, length));
    }
    push(Extent::hole(end - at));
    let object = Object::new(size, extents);
    object.check()?;
    Ok(Found { object, shared, unwritten })
}

/// The bytes from `from` to `to` of `object`, as an object of its own.
///
/// # Errors
/// `Invalid` where they are not within the object.
pub fn slice(object: &Object, from: u64, to: u64) -> Result<Object> {
    if from > to || to > object.length {
        return Err(Error::invalid(format!("bytes {from} to {to} are not in an object of {}", object.length)));
    }
    let first = from - from % BLOCK;
    let end = to.next_multiple_of(BLOCK);
    let (mut at, mut extents) = (0, Vec::new());
    for extent in &object.extents {
        let (low, high) = (at.max(first), (at + extent.length).min(end));
        if low < high {
            let place = if extent.is_hole() { extent.place } else { extent.place + (low - at) };
            extents.push(Extent { place, length: high - low });
        }
        at += extent.length;
    }
    Ok(Object { length: to - first, begin: from - first, extents, ..Object::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::Disk;

    fn raw(logical: u64, physical: u64, length: u64, flags: u32) -> RawExtent {
        RawExtent { logical, physical, length, flags, ..RawExtent::default() }
    }

    fn of(size: u64, extents: Vec<RawExtent>) -> Result<Places> {
        let fingerprint = Fingerprint { inode: (1, 2), size, modified: (0, 0), changed: (0, 0), extents };
        places(fingerprint, Carrier { name: "loop0".into(), base: 512, disk: Disk::Other })
    }

    #[test]
    fn gaps_and_unwritten_extents_are_zeros() {
        let found = of(20_000, vec![raw(4096, 8192, 4096, 0), raw(8192, 65_536, 4096, flag::UNWRITTEN), raw(16_384, 40_960, 8192, flag::LAST)]).unwrap();
        // 20,000 bytes end in the block that ends at 20,480.
        assert_eq!(found.object.extents, [Extent::hole(4096), Extent::new(8704, 4096), Extent::hole(8192), Extent::new(41_472, 4096)]);
        assert!(found.unwritten && !found.shared && found.as_output().is_err());
        assert_eq!(of(5000, vec![]).unwrap().object.extents, [Extent::hole(5120)]);
        assert_eq!(of(0, vec![]).unwrap().object, Object::default());
    }

    #[test]
    fn neighbours_are_joined() {
        let found = of(8192, vec![raw(0, 8192, 4096, 0), raw(4096, 12_288, 4096, flag::LAST)]).unwrap();
        assert_eq!(found.object.extents, [Extent::new(8704, 8192)]);
        assert!(found.as_output().is_ok());
    }

    #[test]
    fn flags_without_a_place_are_refused_by_name() {
        for (bit, why) in NO_PLACE {
            let error = of(4096, vec![raw(0, 4096, 4096, bit | flag::LAST)]).unwrap_err();
            assert_eq!((error.kind(), error.message()), (skytether_common::Kind::Unsupported, why));
        }
        // Beyond the end, they don't matter.
        assert!(of(4096, vec![raw(0, 4096, 4096, 0), raw(4096, 0, 4096, flag::DELALLOC)]).is_ok());
    }

    #[test]
    fn shared_extents_are_read_and_never_written() {
        let found = of(4096, vec![raw(0, 4096, 4096, flag::SHARED | flag::LAST)]).unwrap();
        assert!(found.shared && found.as_output().unwrap_err().mentions("SHARED"));
    }

    #[test]
    fn slices_begin_anywhere() {
        let object = Object::new(3000, vec![Extent::new(0, 1024), Extent::hole(512), Extent::new(8192, 1536)]);
        let part = slice(&object, 700, 2000).unwrap();
        assert_eq!((part.begin, part.length), (188, 1488));
        assert_eq!(part.extents, [Extent::new(512, 512), Extent::hole(512), Extent::new(8192, 512)]);
        assert!(slice(&object, 0, 3000).unwrap() == object && slice(&object, 10, 3001).is_err());
        assert_eq!(slice(&object, 5, 5).unwrap().seen(), 0);
    }
}
