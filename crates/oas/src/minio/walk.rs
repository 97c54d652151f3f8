//! The objects of a drive, in the order of their names.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use skytether_common::{Error, Result};

/// The file of an object's versions.
pub const XL_META: &str = "xl.meta";

/// MinIO's own bucket. What is below these two is written, moved and removed all the time.
const SYSTEM: &str = ".minio.sys";
const IN_WORK: [&str; 2] = [".minio.sys/tmp", ".minio.sys/multipart"];

/// How MinIO names the directory of an object whose name ends with a slash.
const SLASH: &str = "__XLDIR__";

/// The directory of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its path.
    pub path: PathBuf,
    /// The bucket.
    pub bucket: String,
    /// The object's name in the bucket.
    pub object: String,
}

/// The objects of a drive. Directories are read one after the other, as they are needed.
#[derive(Debug)]
pub struct Walk {
    root: PathBuf,
    /// What was found and not given yet, the last first.
    ahead: VecDeque<Entry>,
}

#[derive(Debug)]
enum Entry {
    Directory(PathBuf),
    Object(PathBuf),
}

impl Walk {
    /// Those of the drive in a directory: one of those that `minio server` was given.
    ///
    /// # Errors
    /// `Invalid` where it is none.
    pub fn new(root: &Path) -> Result<Self> {
        let mark = root.join(SYSTEM).join("format.json");
        if !mark.is_file() {
            return Err(Error::invalid(format!("{} is no drive of MinIO: there is no {}; give a directory of `minio server`", root.display(), mark.display())));
        }
        Ok(Self { root: root.to_owned(), ahead: [Entry::Directory(root.to_owned())].into() })
    }

    fn place(&self, path: PathBuf) -> Place {
        let within = path.strip_prefix(&self.root).unwrap_or(&path).to_string_lossy().into_owned();
        let (bucket, object) = within.split_once('/').unwrap_or((within.as_str(), ""));
        let object = object.strip_suffix(SLASH).map_or_else(|| object.to_owned(), |name| format!("{name}/"));
        Place { bucket: bucket.to_owned(), object, path }
    }

    /// Puts what a directory has in front of all others.
    fn read(&mut self, directory: &Path) -> Result<()> {
        let failed = |cause| Error::io("read the directory", directory, cause);
        let (mut below, mut is_object) = (Vec::new(), false);
        for entry in fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            match entry.file_type().map_err(failed)? {
                kind if kind.is_dir() => below.push(entry.path()),
                kind if kind.is_file() => is_object |= entry.file_name() == XL_META,
                _ => {}
            }
        }
        below.sort();
        below.retain(|path| !IN_WORK.iter().any(|name| *path == self.root.join(name)));
        for path in below.into_iter().rev() {
            self.ahead.push_front(Entry::Directory(path));
        }
        if is_object && directory != self.root {
            self.ahead.push_front(Entry::Object(directory.to_owned()));
        }
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = Result<Place>;

    fn next(&mut self) -> Option<Result<Place>> {
        loop {
            match self.ahead.pop_front()? {
                Entry::Object(path) => return Some(Ok(self.place(path))),
                Entry::Directory(path) => match self.read(&path) {
                    Ok(()) => {}
                    // Removed since its name was read.
                    Err(error) if error.kind() == skytether_common::Kind::NotFound && path != self.root => {}
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_in_order_without_what_is_in_work() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert!(Walk::new(root).unwrap_err().mentions("minio server"));
        for object in ["b/z", "b/a/x", "b/a/x/below", "b/a/slash__XLDIR__", ".minio.sys/buckets/b", ".minio.sys/tmp/t", ".minio.sys/multipart/m"] {
            fs::create_dir_all(root.join(object)).unwrap();
            fs::write(root.join(object).join(XL_META), "").unwrap();
        }
        fs::create_dir_all(root.join("b/empty/data")).unwrap();
        fs::write(root.join(".minio.sys/format.json"), "{}").unwrap();
        let found: Vec<(String, String)> = Walk::new(root).unwrap().map(Result::unwrap).map(|place| (place.bucket, place.object)).collect();
        let expected = [(".minio.sys", "buckets/b"), ("b", "a/slash/"), ("b", "a/x"), ("b", "a/x/below"), ("b", "z")];
        assert_eq!(found, expected.map(|(bucket, object)| (bucket.to_owned(), object.to_owned())));
    }
}
