//! Records what a store does to its directory, before each of its steps and after each of its flushes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use skytether_store::disk::crash::{CrashPoint, Fate, Step};

use super::disk::{Change, Event, Node};

/// The only file that is changed after it was written.
pub(crate) const INDEX: &str = "index.redb";

/// What a drive holds at some time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Holds {
    /// The number of acknowledged batches.
    pub(crate) least: usize,
    /// The number of batches that were begun.
    pub(crate) most: usize,
    /// The highest version of those that were acknowledged.
    pub(crate) newest: u64,
}

#[derive(Debug, Clone)]
pub(crate) enum Noted {
    Event(Event),
    /// What was to be done next.
    Moment(String),
    /// What the drive holds from now on.
    Holds(Holds),
}

/// Notes what happens in a directory.
#[derive(Debug)]
pub(crate) struct Recorder {
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<PathBuf, Node>,
    /// The number of the file that has each inode. Inodes are used again, but only after a step in which they have no
    /// file.
    inodes: BTreeMap<u64, u64>,
    contents: BTreeMap<u64, Vec<u8>>,
    /// Files that there were so far.
    files: u64,
    noted: Vec<Noted>,
}

impl Recorder {
    /// Of what happens from now on in `dir`, which holds this. What is there already was flushed.
    pub(crate) fn new(dir: &Path, holds: Holds) -> Arc<Self> {
        let mut state = State { noted: vec![Noted::Holds(holds)], ..State::default() };
        state.look(dir);
        let paths: Vec<PathBuf> = state.names.keys().cloned().chain([PathBuf::new()]).collect();
        state.noted.extend(paths.into_iter().map(|path| Noted::Event(Event::Flushed(path))));
        Arc::new(Self { dir: dir.to_owned(), state: Mutex::new(state) })
    }

    /// Notes what the drive holds.
    pub(crate) fn holds(&self, holds: Holds) {
        let mut state = self.state.lock();
        state.look(&self.dir);
        state.noted.extend([Noted::Moment("the end of a call".to_owned()), Noted::Holds(holds), Noted::Moment("the next call".to_owned())]);
    }

    /// All that was noted.
    pub(crate) fn noted(&self) -> Vec<Noted> {
        std::mem::take(&mut self.state.lock().noted)
    }
}

impl CrashPoint for Recorder {
    fn before(&self, step: Step) -> Fate {
        let mut state = self.state.lock();
        state.look(&self.dir);
        state.noted.push(Noted::Moment(format!("{step:?}")));
        Fate::Go
    }

    fn flushed(&self, path: &Path) {
        // The directory above is none of ours.
        let Ok(path) = path.strip_prefix(&self.dir) else { return };
        let mut state = self.state.lock();
        if state.look(&self.dir) {
            state.noted.push(Noted::Moment(format!("the flush of {:?}", path.display())));
        }
        state.noted.push(Noted::Event(Event::Flushed(path.to_owned())));
    }
}

impl State {
    /// Notes what is other than at the last look; whether anything is.
    fn look(&mut self, dir: &Path) -> bool {
        let noted = self.noted.len();
        let mut found = Vec::new();
        list(dir, Path::new(""), &mut found);
        let (mut names, mut inodes): (BTreeMap<PathBuf, Node>, BTreeMap<u64, u64>) = (BTreeMap::new(), BTreeMap::new());
        for (path, inode) in found {
            let Some(inode) = inode else {
                names.insert(path, Node::Directory);
                continue;
            };
            let known: Option<u64> = self.inodes.get(&inode).or_else(|| inodes.get(&inode)).copied();
            let file = known.unwrap_or(self.files);
            self.files += u64::from(known.is_none());
            inodes.insert(inode, file);
            if known.is_none() || path == Path::new(INDEX) {
                let now = fs::read(dir.join(&path)).unwrap();
                let was = self.contents.remove(&file).unwrap_or_default();
                self.noted.extend(changes(was, &now).into_iter().map(|change| Noted::Event(Event::Change { file, change })));
                self.contents.insert(file, now);
            }
            names.insert(path, Node::File(file));
        }
        let gone = self.names.keys().filter(|path| !names.contains_key(*path)).map(|path| (path.clone(), None));
        let other = names.iter().filter(|(path, node)| self.names.get(*path) != Some(*node)).map(|(path, node)| (path.clone(), Some(*node)));
        self.noted.extend(gone.chain(other).map(|(path, node)| Noted::Event(Event::Name { path, node })));
        (self.names, self.inodes) = (names, inodes);
        self.noted.len() > noted
    }
}

/// Everything below `dir` except the lock, which is created again: paths, and the inodes of files.
fn list(dir: &Path, inside: &Path, found: &mut Vec<(PathBuf, Option<u64>)>) {
    let Ok(entries) = fs::read_dir(dir.join(inside)) else { return };
    for entry in entries {
        let entry = entry.unwrap();
        let (path, metadata) = (inside.join(entry.file_name()), entry.metadata().unwrap());
        if metadata.is_dir() {
            found.push((path.clone(), None));
            list(dir, &path, found);
        } else if path != Path::new("LOCK") {
            found.push((path, Some(metadata.ino())));
        }
    }
}

/// What makes `now` of `was`. One write has happened in between at most, or one that was followed by no step.
fn changes(mut was: Vec<u8>, now: &[u8]) -> Vec<Change> {
    let mut changes = Vec::new();
    if was.len() != now.len() {
        changes.push(Change::Len(now.len()));
        was.resize(now.len(), 0);
    }
    let differs = |pair: (&u8, &u8)| pair.0 != pair.1;
    let ends = (was.iter().zip(now).position(differs), was.iter().zip(now).rposition(differs));
    if let (Some(first), Some(last)) = ends {
        changes.push(Change::Bytes { at: first, bytes: now[first..=last].to_vec() });
    }
    changes
}
