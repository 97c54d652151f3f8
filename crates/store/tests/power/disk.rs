//! A simulated disk that loses power: it keeps what was flushed, and a random part of the other writes.
//!
//! Contents and names are separate, as on file systems: a flush of a file keeps its content, and a flush of the
//! directory keeps its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use fastrand::Rng;

/// What disks write whole or not at all.
const SECTOR: usize = 512;

/// The target of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Directory,
    /// A file by its number: two names of one file have the same.
    File(u64),
}

/// A change of what is in a file.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// It has this length from now on; what is new of it is zeros.
    Len(usize),
    /// The file has these bytes at this place from now on.
    Bytes { at: usize, bytes: Vec<u8> },
}

impl Change {
    fn make(&self, content: &mut Vec<u8>) {
        match self {
            Self::Len(len) => content.resize(*len, 0),
            Self::Bytes { at, bytes } => lay(content, *at, bytes),
        }
    }
}

/// Puts `bytes` at a place; bytes beyond the end are dropped.
fn lay(content: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(room) = content.get_mut(at..) {
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
    }
}

/// What happened to a directory.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// The name refers to this node from now on, or to none.
    Name { path: PathBuf, node: Option<Node> },
    /// A file changed.
    Change { file: u64, change: Change },
    /// The file, or the directory, of this name was flushed.
    Flushed(PathBuf),
}

/// What is left of all that was not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaves {
    Nothing,
    /// All of it: the process ends, and the machine does not.
    All,
    /// Each name as it was or as it is, and of what was written pieces: as drawn.
    Some,
    /// The same of names, and each file as it was at some time since its flush.
    Earlier,
}

#[derive(Debug, Clone, Default)]
struct File {
    kept: Vec<u8>,
    /// What was not flushed, in order.
    pending: Vec<Change>,
}

impl File {
    fn settle(&mut self) {
        for change in self.pending.drain(..) {
            change.make(&mut self.kept);
        }
    }

    fn after(&self, leaves: Leaves, random: &mut Rng) -> Vec<u8> {
        let mut content = self.kept.clone();
        let first = match leaves {
            Leaves::Nothing => 0,
            Leaves::All => self.pending.len(),
            Leaves::Earlier => random.usize(..self.pending.len() + 1),
            Leaves::Some => {
                self.pieces(&mut content, random);
                0
            }
        };
        self.pending[..first].iter().for_each(|change| change.make(&mut content));
        content
    }

    /// Applies the pending changes in part. Lengths are the file system's own records, and it keeps their order;
    /// written bytes reach the disk in any order.
    fn pieces(&self, content: &mut Vec<u8>, random: &mut Rng) {
        let mut lens = random.usize(..self.pending.iter().filter(|change| matches!(change, Change::Len(_))).count() + 1);
        for change in &self.pending {
            match change {
                Change::Len(_) if lens == 0 => {}
                Change::Len(_) => {
                    lens -= 1;
                    change.make(content);
                }
                Change::Bytes { at, bytes } => match random.usize(..4) {
                    0 => {}
                    1 => lay(content, *at, bytes),
                    2 => lay(content, *at, &bytes[..random.usize(..bytes.len())]),
                    _ => {
                        let mut from = 0;
                        while from < bytes.len() {
                            let to = (from + SECTOR - (at + from) % SECTOR).min(bytes.len());
                            if random.usize(..2) == 0 {
                                lay(content, at + from, &bytes[from..to]);
                            }
                            from = to;
                        }
                    }
                },
            }
        }
    }
}

/// A directory on such a disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk {
    kept: BTreeMap<PathBuf, Node>,
    now: BTreeMap<PathBuf, Node>,
    files: BTreeMap<u64, File>,
    /// Whether it acknowledges flushes without doing them.
    pub(crate) lies: bool,
}

impl Disk {
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Name { path, node: Some(node) } => {
                self.now.insert(path.clone(), *node);
            }
            Event::Name { path, node: None } => {
                self.now.remove(path);
            }
            Event::Change { file, change } => self.files.entry(*file).or_default().pending.push(change.clone()),
            Event::Flushed(_) if self.lies => {}
            Event::Flushed(path) => match self.now.get(path) {
                Some(Node::File(file)) => self.files.entry(*file).or_default().settle(),
                // The directory itself has no name here.
                Some(Node::Directory) | None => self.settle_names(path),
            },
        }
    }

    fn settle_names(&mut self, dir: &Path) {
        self.kept.retain(|path, _| !is_in(path, dir));
        let now = self.now.iter().filter(|(path, _)| is_in(path, dir));
        self.kept.extend(now.map(|(path, node)| (path.clone(), *node)));
    }

    /// The node that `path` refers to.
    pub(crate) fn node(&self, path: &str) -> Option<Node> {
        self.now.get(Path::new(path)).copied()
    }

    /// What is found after the power went, or the process ended.
    pub(crate) fn after(&self, leaves: Leaves, random: &mut Rng) -> Image {
        let mut image = Image::default();
        let mut contents: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        // Directories come before what is in them.
        let paths: BTreeSet<&PathBuf> = self.kept.keys().chain(self.now.keys()).collect();
        for path in paths {
            let (kept, now) = (self.kept.get(path), self.now.get(path));
            let node = match leaves {
                Leaves::Nothing => kept,
                Leaves::All => now,
                Leaves::Some | Leaves::Earlier if kept == now || random.usize(..2) == 0 => now,
                Leaves::Some | Leaves::Earlier => kept,
            };
            let is_held = is_in(path, Path::new("")) || path.parent().is_some_and(|parent| image.directories.contains(parent));
            match node.filter(|_| is_held) {
                None => {}
                Some(Node::Directory) => {
                    image.directories.insert(path.clone());
                }
                Some(Node::File(file)) => {
                    let content = contents.entry(*file).or_insert_with(|| self.files.get(file).map(|file| file.after(leaves, random)).unwrap_or_default());
                    image.files.insert(path.clone(), content.clone());
                }
            }
        }
        image
    }
}

/// Whether `path` is a name in `dir` itself.
fn is_in(path: &Path, dir: &Path) -> bool {
    path.parent() == Some(dir)
}

/// What is found in a directory.
#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct Image {
    directories: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Image {
    pub(crate) fn write(&self, to: &Path) {
        for path in &self.directories {
            fs::create_dir_all(to.join(path)).unwrap();
        }
        for (path, content) in &self.files {
            fs::write(to.join(path), content).unwrap();
        }
    }

    pub(crate) fn file(&self, path: &str) -> Option<&[u8]> {
        self.files.get(Path::new(path)).map(Vec::as_slice)
    }

    /// Distinguishes it from other images.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}
