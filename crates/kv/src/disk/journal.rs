//! Journals of the merge tree, read before it does.
//!
//! After a loss of power, the end of the active journal can have holes. The merge tree refuses some of them for ever,
//! and takes damage elsewhere for such an end, dropping what follows without a word. So this module reads the journals
//! first: an end that was never acknowledged as durable is cut off, and any other damage is `Corrupt`.
//!
//! The format is that of fjall 3.1, `journal/entry.rs`: batches of a start (tag 1, items u32, sequence number u64),
//! items (tag 2, kind u8, compression u8 = 0, keyspace u64, length of the key u16, length of the value twice u32, key,
//! value) or clearings (tag 4, keyspace u64), and an end (tag 3, XXH3-64 of the items u64, `FJL\x03`). The tests of
//! power loss read journals that the merge tree wrote.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use skytether_common::{Error, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::codec::{STATE, State};

/// Longer keys and values are none of ours.
const MOST_KEY: usize = 8 << 10;
const MOST_VALUE: usize = 2 << 20;

/// What a journal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Scan {
    /// The end of the last whole batch.
    valid: u64,
    /// The last commit.
    commit: Option<u64>,
    /// Whether something follows that is no batch; zeros are not.
    rest: bool,
}

/// Checks the journals below `db`, and cuts off an end that was never durable. `synced` is the last commit that was.
///
/// # Errors
/// `Corrupt` where a journal is damaged before that commit, and failures of the disk.
pub(super) fn check(db: &Path, synced: u64) -> Result<()> {
    let mut journals = list(db)?;
    journals.sort_unstable();
    let mut last = None;
    let count = journals.len();
    for (index, (_, path)) in journals.into_iter().enumerate() {
        let scan = scan(&path).map_err(|e| Error::io("read", &path, e))?;
        last = scan.commit.or(last);
        if !scan.rest {
            continue;
        }
        // Earlier journals were flushed when the next one began. Without any commit, the tables have to tell.
        if index + 1 < count || last.is_some_and(|last| last < synced) {
            return Err(damaged(&path, scan.valid));
        }
        tracing::warn!(journal = %path.display(), at = scan.valid, "the end of the journal was not durable, and is not whole: it goes");
        let cut = || {
            let file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(scan.valid)?;
            file.sync_all()
        };
        cut().map_err(|e| Error::io("cut", &path, e))?;
    }
    Ok(())
}

fn damaged(path: &Path, at: u64) -> Error {
    Error::corrupt(format!("{} is damaged from byte {at} on: restore the drive from its copies", path.display()))
}

fn list(db: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut journals = Vec::new();
    for entry in fs::read_dir(db).map_err(|e| Error::io("list", db, e))? {
        let path = entry.map_err(|e| Error::io("list", db, e))?.path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
            let Some(number) = number else {
                return Err(Error::corrupt(format!("{} is no name of a journal: restore the drive from its copies", path.display())));
            };
            journals.push((number, path));
        }
    }
    Ok(journals)
}

fn scan(path: &Path) -> io::Result<Scan> {
    let mut reader = Reader { from: BufReader::with_capacity(1 << 18, File::open(path)?), at: 0 };
    let mut scan = Scan::default();
    loop {
        match batch(&mut reader) {
            Ok(Some(commit)) => {
                scan.valid = reader.at;
                scan.commit = commit.or(scan.commit);
            }
            Ok(None) => break,
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(e) => return Err(e),
        }
    }
    scan.rest = has_other_than_zeros(path, scan.valid)?;
    Ok(scan)
}

struct Reader {
    from: BufReader<File>,
    at: u64,
}

impl Reader {
    fn bytes(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.from.read_exact(into)?;
        self.at += into.len() as u64;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.bytes(&mut bytes)?;
        Ok(bytes)
    }
}

/// Reads a batch and gives its commit, if it names one; `None` where there is no whole batch.
fn batch(reader: &mut Reader) -> io::Result<Option<Option<u64>>> {
    if reader.array()? != [1u8] {
        return Ok(None);
    }
    let items = u32::from_le_bytes(reader.array()?);
    let _sequence: [u8; 8] = reader.array()?;
    let mut hash = Xxh3::new();
    let mut commit = None;
    let mut body = Vec::new();
    for _ in 0..items {
        let tag: [u8; 1] = reader.array()?;
        hash.update(&tag);
        match tag[0] {
            2 => {
                let head: [u8; 20] = reader.array()?;
                hash.update(&head);
                let [kind, compression, _, _, _, _, _, _, _, _, k0, k1, v0, v1, v2, v3, s0, s1, s2, s3] = head;
                let key = usize::from(u16::from_le_bytes([k0, k1]));
                let (value, stored) = (u32::from_le_bytes([v0, v1, v2, v3]) as usize, u32::from_le_bytes([s0, s1, s2, s3]) as usize);
                if kind > 2 || compression != 0 || value != stored || key > MOST_KEY || value > MOST_VALUE {
                    return Ok(None);
                }
                body.resize(key + value, 0);
                reader.bytes(&mut body)?;
                hash.update(&body);
                if body.get(..key) == Some(STATE) {
                    commit = body.get(key..).and_then(State::decode).map(|state| state.commit).or(commit);
                }
            }
            4 => {
                let keyspace: [u8; 8] = reader.array()?;
                hash.update(&keyspace);
            }
            _ => return Ok(None),
        }
    }
    let end: [u8; 13] = reader.array()?;
    let mut expected = [3; 13];
    expected[1..9].copy_from_slice(&hash.digest().to_le_bytes());
    expected[9..].copy_from_slice(b"FJL\x03");
    Ok((end == expected).then_some(commit))
}

fn has_other_than_zeros(path: &Path, from: u64) -> io::Result<bool> {
    use std::io::Seek;
    let mut file = BufReader::with_capacity(1 << 16, File::open(path)?);
    file.seek(io::SeekFrom::Start(from))?;
    loop {
        let part = file.fill_buf()?;
        if part.is_empty() {
            return Ok(false);
        }
        if part.iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        let len = part.len();
        file.consume(len);
    }
}
