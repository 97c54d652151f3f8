//! [`CephFile`]: a file whose bytes are read from its objects, with a count of what was read.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_common::{Error, Kind, Result};

use super::layout::Layout;
use super::mount::{Found, OpenFile, Stamp};
use super::version_of;
use crate::calls::Called;
use crate::cluster::{Pool, c_text};

/// The end of a file, which holds the footers of Parquet and Arrow files: kept while the files are.
pub(super) const TAIL: u64 = 64 << 10;

/// The end of a file's bytes, once they were read.
pub(super) type Tail = Arc<Mutex<Option<Bytes>>>;

/// Bytes that lie in one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRange {
    /// The object's name.
    pub object: String,
    /// Its bytes.
    pub range: Range<u64>,
}

/// What was read of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectReads {
    /// The object's name.
    pub object: String,
    /// How many reads.
    pub reads: u64,
    /// How many bytes.
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) enum Source {
    Object { object: CString, version: u64 },
    Striped { file: OpenFile, stamp: Stamp, layout: Layout },
}

/// An open file.
#[derive(Debug)]
pub struct CephFile {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) pool: Arc<Pool>,
    pub(super) namespace: String,
    pub(super) source: Source,
    pub(super) tail: Option<Tail>,
    /// Reads and bytes of each object.
    pub(super) tally: Mutex<BTreeMap<String, (u64, u64)>>,
}

pub(super) fn replaced(name: &str) -> Error {
    Error::conflict(format!("{name} was changed or replaced after it was listed: make the data set again"))
}

impl CephFile {
    /// Its name, as listed.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.size
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// In which objects the bytes `range` lie, in their order.
    #[must_use]
    pub fn objects(&self, range: Range<u64>) -> Vec<ObjectRange> {
        let range = range.start..range.end.min(self.size).max(range.start);
        match &self.source {
            Source::Object { .. } if range.is_empty() => Vec::new(),
            Source::Object { object, .. } => vec![ObjectRange { object: object.to_string_lossy().into_owned(), range }],
            Source::Striped { stamp, layout, .. } => {
                let named = |number| format!("{:x}.{number:08x}", stamp.inode);
                layout.parts(range).into_iter().map(|part| ObjectRange { object: named(part.number), range: part.range }).collect()
            }
        }
    }

    /// The bytes `range`, fewer at the end of the file.
    ///
    /// # Errors
    /// `Conflict` where the file is not what was listed any more; those of the cluster.
    pub fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let range = range.start..range.end.min(self.size).max(range.start);
        let tail = self.size.saturating_sub(TAIL);
        match &self.tail {
            Some(kept) if range.start >= tail && !range.is_empty() => {
                let mut kept = kept.lock();
                let bytes = match &*kept {
                    Some(bytes) => bytes.clone(),
                    None => kept.insert(self.fetch(tail..self.size)?).clone(),
                };
                Ok(bytes.slice((range.start - tail) as usize..(range.end - tail) as usize))
            }
            _ => self.fetch(range),
        }
    }

    fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        for part in self.objects(range) {
            let wanted = (part.range.end - part.range.start) as usize;
            let (object, version) = match &self.source {
                Source::Object { object, version } => (object.clone(), Some(*version)),
                Source::Striped { .. } => (c_text(&part.object)?, None),
            };
            let read = self.pool.read_version(&object, std::slice::from_ref(&part.range), version).map_err(|e| match version {
                Some(_) if e.kind() == Kind::Conflict => replaced(&self.name).with_source(e),
                _ => e.context(format!("cannot read {}", self.name)),
            })?;
            let mut read = match (read.and_then(|mut parts| parts.pop()), version) {
                (Some(read), _) => read,
                // A hole in a file has no object; an object that is gone is no hole.
                (None, None) => Vec::new(),
                (None, Some(_)) => return Err(replaced(&self.name)),
            };
            let mut tally = self.tally.lock();
            let of = tally.entry(part.object).or_default();
            *of = (of.0 + 1, of.1 + read.len() as u64);
            drop(tally);
            read.resize(wanted, 0);
            bytes.append(&mut read);
        }
        // After the read: what was written before it is seen now.
        self.check()?;
        Ok(bytes.into())
    }

    /// Calls a method of an object class in the OSD that has `object`, which has bytes of this file.
    ///
    /// # Errors
    /// `Conflict` where the file is not what was listed any more. Errors of Ceph and of the method are in what was
    /// [`Called`].
    pub fn call(&self, object: &str, class: &str, method: &str, input: &[u8]) -> Result<Called> {
        let called = self.pool.call(&c_text(object)?, class, method, input)?;
        match &self.source {
            // After the call, as with reads; in a context of its own, which keeps the version.
            Source::Object { object, version } => {
                let own = self.pool.cluster.pool(&self.pool.name, &self.namespace)?;
                match version_of(&own, object) {
                    Ok(now) if now == (self.size, *version) => Ok(called),
                    Ok(_) => Err(replaced(&self.name)),
                    Err(e) if e.kind() == Kind::NotFound => Err(replaced(&self.name)),
                    Err(e) => Err(e),
                }
            }
            Source::Striped { .. } => self.check().map(|()| called),
        }
    }

    /// Whether the file is still what was listed.
    ///
    /// # Errors
    /// `Conflict` where it is not. (Of an object each read checks it.)
    fn check(&self) -> Result<()> {
        match &self.source {
            Source::Striped { file, stamp, .. } if file.stamp()? != Found::File(*stamp) => Err(replaced(&self.name)),
            _ => Ok(()),
        }
    }

    /// The pool and the namespace of its objects.
    #[must_use]
    pub fn pool(&self) -> (&str, &str) {
        (&self.pool.name, &self.namespace)
    }

    /// What was read so far of each object.
    #[must_use]
    pub fn reads(&self) -> Vec<ObjectReads> {
        self.tally.lock().iter().map(|(object, (reads, bytes))| ObjectReads { object: object.clone(), reads: *reads, bytes: *bytes }).collect()
    }
}
