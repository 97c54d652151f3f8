//! Where the chunks of a striped file lie: arithmetic, and its description as a file.
//!
//! A file is cut into chunks. K chunks are a row; M parity chunks may follow. Each member has one chunk of each row,
//! one after the other.
//!
//! See also: `docs/internals/exec-client.md`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};
use skytether_erasure::code::{BLOCK, parity_len};
use skytether_erasure::{Code, Scheme};
use skytether_volume::device::LOGICAL;

/// Members of a striped file.
const MOST_MEMBERS: usize = 256;

/// Bytes of a description.
const MOST_BYTES: u64 = 1 << 20;

/// A striped file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// Bytes of the whole.
    pub length: u64,
    /// Bytes of a chunk; with parities a multiple of 64.
    pub chunk: u64,
    /// `none`, or `ec:K+M`. With `replicas:R`, K is 1.
    #[serde(default)]
    pub redundancy: Scheme,
    /// Which member has which chunk of a row.
    #[serde(default)]
    pub order: Placement,
    /// The members: all K + M, or any number without redundancy.
    pub members: Vec<MemberFile>,
}

/// Which member has which chunk of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Member n has chunk n of each row, and the last members have the parities.
    #[default]
    Fixed,
    /// Member (n + r) mod (K + M) has chunk n of row r, so that all have parities.
    Rotating,
}

/// A file with chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberFile {
    /// Its path. One that is not absolute counts from the description's directory.
    pub path: PathBuf,
    /// The target that has it; without one, its chunks are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The file's byte with which the first chunk begins, a multiple of 512.
    #[serde(default)]
    pub offset: u64,
}

/// A chunk of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Its number, from 0.
    pub number: u64,
    /// Its first byte in the whole.
    pub position: u64,
    /// Its bytes.
    pub length: u64,
    /// The member that has it.
    pub member: usize,
    /// Its first byte in the member's file.
    pub at: u64,
}

impl Layout {
    /// Reads a description: TOML, or JSON where the name ends so.
    ///
    /// # Errors
    /// What the system says; `Invalid` for a description that is none.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |cause| Error::io("read", path, cause);
        if fs::metadata(path).map_err(failed)?.len() > MOST_BYTES {
            return Err(Error::invalid(format!("{}: a description has at most {MOST_BYTES} bytes", path.display())));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let mut layout = Self::parse(&text, is_json).map_err(|error| error.named(&path.display().to_string()))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        for member in &mut layout.members {
            member.path = directory.join(&member.path);
        }
        Ok(layout)
    }

    /// The description that `text` is: TOML, or JSON. Paths of its members stay as they are.
    ///
    /// # Errors
    /// As [`Layout::check`]; `Invalid` for a text that is none.
    pub fn parse(text: &str, is_json: bool) -> Result<Self> {
        let wrong = || Error::invalid("it describes no striped file");
        let layout: Self = if is_json {
            serde_json::from_str(text).map_err(|cause| wrong().with_source(cause))?
        } else {
            toml::from_str(text).map_err(|cause| wrong().with_source(cause))?
        };
        layout.check()?;
        Ok(layout)
    }

    /// # Errors
    /// `Invalid` where numbers do not fit together, `Unsupported` for two levels of redundancy.
    pub fn check(&self) -> Result<()> {
        let count = self.members.len();
        if self.chunk == 0 || count == 0 || count > MOST_MEMBERS {
            return Err(Error::invalid(format!("chunks of {} bytes over {count} members: give 1 to {MOST_MEMBERS} members, and longer chunks", self.chunk)));
        }
        // An answer's places count from the block in which a chunk begins, and must not be before the whole.
        if let Some(member) = self.members.iter().find(|member| !member.offset.is_multiple_of(LOGICAL.into())) {
            return Err(Error::invalid(format!("{}: offset {} is no multiple of {LOGICAL}", member.path.display(), member.offset)));
        }
        if self.redundancy.inner().is_some() {
            return Err(Error::unsupported(format!("redundancy {} has two levels; striped files have one", self.redundancy)));
        }
        if let Some(code) = self.redundancy.code() {
            if code.shards() != count {
                return Err(Error::invalid(format!("redundancy {} has {} members, not {count}", self.redundancy, code.shards())));
            }
            if !code.copies() && !self.chunk.is_multiple_of(BLOCK as u64) {
                return Err(Error::invalid(format!("chunks of {} bytes have no parities: give a multiple of {BLOCK}", self.chunk)));
            }
            if self.chunk > skytether_erasure::code::MAX_SHARD {
                return Err(Error::invalid(format!("chunks of {} bytes are too long for parities", self.chunk)));
            }
        }
        let most = self.length.checked_add(self.chunk).and_then(|sum| sum.checked_add(self.members.iter().map(|member| member.offset).max()?));
        if most.is_none_or(|most| most > i64::MAX as u64) {
            return Err(Error::invalid(format!("a striped file of {} bytes is too long", self.length)));
        }
        Ok(())
    }

    /// The code, if there is one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.redundancy.code()
    }

    /// K: chunks of a row.
    #[must_use]
    pub fn data(&self) -> usize {
        self.code().map_or(self.members.len(), Code::data)
    }

    /// How many chunks there are.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.length.div_ceil(self.chunk)
    }

    /// The chunk of that number, which is below [`Layout::chunks`].
    #[must_use]
    pub fn chunk(&self, number: u64) -> Chunk {
        let data = self.data() as u64;
        let (row, column) = (number / data, (number % data) as usize);
        let position = number * self.chunk;
        let (member, at) = self.place(row, column);
        Chunk { number, position, length: self.chunk.min(self.length - position.min(self.length)), member, at }
    }

    /// Member and place of a shard of a row: data first, then parities.
    #[must_use]
    pub fn place(&self, row: u64, shard: usize) -> (usize, u64) {
        let count = self.members.len();
        let member = match self.order {
            Placement::Fixed => shard,
            Placement::Rotating => (shard + (row % count as u64) as usize) % count,
        };
        (member, self.members.get(member).map_or(0, |member| member.offset) + row * self.chunk)
    }

    /// Lengths of the data chunks of a row, and of each of its parities.
    #[must_use]
    pub fn row(&self, row: u64) -> (Vec<usize>, usize) {
        let first = row * self.data() as u64;
        let last = (first + self.data() as u64).min(self.chunks());
        let lengths: Vec<usize> = (first..last).map(|number| self.chunk(number).length as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        (lengths, self.code().map_or(0, |code| parity_len(code, longest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(length: u64, chunk: u64, redundancy: &str, count: usize, order: Placement) -> Layout {
        let member = |n| MemberFile { path: format!("m{n}").into(), target: None, offset: 0 };
        Layout { length, chunk, redundancy: redundancy.parse().unwrap(), order, members: (0..count).map(member).collect() }
    }

    #[test]
    fn chunks_go_round_the_members() {
        let layout = layout(1000, 64, "ec:3+2", 5, Placement::Fixed);
        layout.check().unwrap();
        assert_eq!((layout.chunks(), layout.data()), (16, 3));
        assert_eq!(layout.chunk(4), Chunk { number: 4, position: 256, length: 64, member: 1, at: 64 });
        assert_eq!(layout.chunk(15), Chunk { number: 15, position: 960, length: 40, member: 0, at: 320 });
        assert_eq!((layout.row(0), layout.row(5)), ((vec![64; 3], 64), (vec![40], 64)));
    }

    #[test]
    fn rotation_gives_each_member_its_share_of_parities() {
        let layout = layout(1 << 20, 64, "ec:2+1", 3, Placement::Rotating);
        let parities: Vec<usize> = (0..6).map(|row| layout.place(row, 2).0).collect();
        assert_eq!(parities, [2, 0, 1, 2, 0, 1]);
        for row in 0..6 {
            let mut members: Vec<usize> = (0..3).map(|shard| layout.place(row, shard).0).collect();
            members.sort_unstable();
            assert_eq!(members, [0, 1, 2]);
        }
    }

    #[test]
    fn descriptions_are_read_from_toml_and_json() {
        let dir = tempfile::tempdir().unwrap();
        let members = "[[members]]\npath = \"a\"\ntarget = \"iscsi://h/t/0\"\n[[members]]\npath = \"/b\"\noffset = 4096\n";
        let toml = format!("length = 100\nchunk = 64\nredundancy = \"ec:1+1\"\n{members}");
        fs::write(dir.path().join("x.toml"), &toml).unwrap();
        let layout = Layout::read(dir.path().join("x.toml")).unwrap();
        assert_eq!((layout.members[0].path.clone(), layout.members[1].offset), (dir.path().join("a"), 4096));
        fs::write(dir.path().join("x.json"), serde_json::to_string(&layout).unwrap()).unwrap();
        assert_eq!(Layout::read(dir.path().join("x.json")).unwrap(), layout);
        fs::write(dir.path().join("y.toml"), toml.replace("chunk", "chunks")).unwrap();
        assert!(Layout::read(dir.path().join("y.toml")).unwrap_err().mentions("chunks"));
    }

    #[test]
    fn descriptions_that_do_not_fit_are_refused() {
        for (length, chunk, redundancy, count) in [(1, 0, "none", 1), (1, 64, "ec:2+1", 2), (1, 100, "ec:2+1", 3), (1, 1, "none", 0), (u64::MAX, 1, "none", 1)]
        {
            assert!(layout(length, chunk, redundancy, count, Placement::Fixed).check().is_err(), "{length} {chunk} {redundancy} {count}");
        }
    }
}
