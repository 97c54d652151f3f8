//! Runs on disk. All runs of a transposition share one temporary file without a name, so nothing is left behind however
//! the process ends.
//!
//! A spilled run has a section for each block in which it has entries. A section has the genes' records one after
//! another; each gene's first gap counts from the block's start. A directory of `n_genes + 1` u64 LE offsets into them
//! follows. So both writing and reading in (block, gene) order are sequential.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use skytether_common::{Error, Result};
use skytether_slice::BLOCK;

use crate::numbers::Form;
use crate::records::{self, Decoded};
use crate::run::{Cursor, Run};

/// Bytes written at once.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes read at once per run and reader.
const READ_BYTES: usize = 64 * 1024;

/// The cell after the last one of a block.
pub(crate) fn block_end(block: u32, n_cells: u32) -> u32 {
    (block + 1).checked_mul(BLOCK).map_or(n_cells, |end| end.min(n_cells))
}

/// The temporary file.
#[derive(Debug)]
pub(crate) struct SpillFile {
    file: File,
    dir: PathBuf,
    len: u64,
    pending: Vec<u8>,
}

#[derive(Debug)]
struct Section {
    block: u32,
    records: u64,
    directory: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct SpilledRun {
    form: Form,
    sections: Vec<Section>,
}

impl SpillFile {
    /// A new file in `dir`, which must exist.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(dir).map_err(|e| failed("create a temporary file in", dir, e))?;
        Ok(Self { file, dir: dir.to_owned(), len: 0, pending: Vec::new() })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.pending.extend_from_slice(bytes);
        self.len += bytes.len() as u64;
        if self.pending.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.pending).map_err(|e| failed("write a temporary file in", &self.dir, e))?;
        self.pending.clear();
        Ok(())
    }

    /// Writes a tidy run.
    ///
    /// # Errors
    /// A full or failing disk.
    pub(crate) fn write(&mut self, run: &Run, n_cells: u32, n_genes: u32) -> Result<SpilledRun> {
        let mut cursors: Vec<Cursor> = (0..n_genes).map(|g| run.start(g)).collect();
        let mut sections = Vec::new();
        let (mut scratch, mut cells, mut bits, mut out) = (Vec::new(), Vec::new(), Vec::<u64>::new(), Vec::new());
        let mut directory = Vec::with_capacity((n_genes as usize + 1) * 8);
        let mut block = 0;
        loop {
            let (start, end) = (block * BLOCK, block_end(block, n_cells));
            let records = self.len;
            let mut pending = u32::MAX;
            directory.clear();
            for (gene, cursor) in (0..).zip(&mut cursors) {
                directory.extend_from_slice(&(self.len - records).to_le_bytes());
                if cursor.pending < end {
                    cells.clear();
                    bits.clear();
                    out.clear();
                    run.read(gene, cursor, end, &mut scratch, &mut cells, &mut bits)?;
                    let mut next = start;
                    for (cell, bits) in cells.iter().zip(&bits) {
                        records::push_bits(&mut out, run.form, cell - next, *bits);
                        next = cell + 1;
                    }
                    self.append(&out)?;
                }
                pending = pending.min(cursor.pending);
            }
            directory.extend_from_slice(&(self.len - records).to_le_bytes());
            if self.len > records {
                sections.push(Section { block, records, directory: self.len });
                self.append(&directory)?;
            }
            if pending >= n_cells {
                break;
            }
            block = pending / BLOCK;
        }
        self.flush()?;
        self.pending = Vec::new();
        Ok(SpilledRun { form: run.form, sections })
    }
}

impl SpilledRun {
    /// A reader of one block's rows, for genes from `gene` on in order; `None` if the run has nothing in the block.
    pub(crate) fn section<'f>(&self, file: &'f SpillFile, block: u32, gene: u32) -> Result<Option<SectionReader<'f>>> {
        let Ok(found) = self.sections.binary_search_by_key(&block, |s| s.block) else { return Ok(None) };
        let section = &self.sections[found];
        let mut directory = Window::new(file, section.directory + u64::from(gene) * 8);
        let at = directory.offset()?;
        Ok(Some(SectionReader { form: self.form, directory, records: Window::new(file, section.records + at), at }))
    }
}

/// Reads a section gene by gene.
#[derive(Debug)]
pub(crate) struct SectionReader<'f> {
    form: Form,
    directory: Window<'f>,
    records: Window<'f>,
    at: u64,
}

impl SectionReader<'_> {
    /// Appends the next gene's entries, which belong to cells from `start` to before `end`.
    pub(crate) fn read<T: Decoded>(&mut self, start: u32, end: u32, cells: &mut Vec<u32>, values: &mut Vec<T>) -> Result<()> {
        let to = self.directory.offset()?;
        let longest = u64::from(BLOCK) * records::MAX_RECORD as u64;
        let len = to.checked_sub(self.at).filter(|len| *len <= longest);
        let len = len.and_then(|len| usize::try_from(len).ok()).ok_or_else(damaged)?;
        self.at = to;
        let mut next = start;
        let bytes = self.records.take(len)?;
        let (used, _) = records::decode(bytes, true, self.form, &mut next, end, cells, values)?;
        if used == len { Ok(()) } else { Err(damaged()) }
    }
}

/// A failure of the spill directory `dir`; where it is full, with what to do about it.
fn failed(action: &str, dir: &Path, cause: io::Error) -> Error {
    if matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        let what = "there is no space left for the transposition's temporary file: free some there, or set TMPDIR to a directory on a larger disk";
        return Error::exhausted(format!("cannot {action} {}; {what}", dir.display())).with_source(cause);
    }
    Error::io(action, dir, cause)
}

fn damaged() -> Error {
    Error::corrupt("the transposition's temporary file is damaged; check the disk of the spill directory and start again")
}

/// Sequential reading by positioned reads, so that threads do not disturb each other.
#[derive(Debug)]
struct Window<'f> {
    file: &'f SpillFile,
    /// The place of the bytes after `bytes`.
    next: u64,
    bytes: Vec<u8>,
    at: usize,
}

impl<'f> Window<'f> {
    fn new(file: &'f SpillFile, next: u64) -> Self {
        Self { file, next, bytes: Vec::new(), at: 0 }
    }

    fn take(&mut self, n: usize) -> Result<&[u8]> {
        if self.bytes.len() - self.at < n {
            self.bytes.drain(..self.at);
            self.at = 0;
            let have = self.bytes.len();
            let remain = usize::try_from(self.file.len.saturating_sub(self.next)).unwrap_or(usize::MAX);
            let want = n.max(READ_BYTES).min(have.saturating_add(remain));
            if want < n {
                return Err(damaged());
            }
            self.bytes.resize(want, 0);
            let dir = &self.file.dir;
            let read = self.file.file.read_exact_at(&mut self.bytes[have..], self.next);
            read.map_err(|e| Error::io("read a temporary file in", dir, e))?;
            self.next += (want - have) as u64;
        }
        let from = self.at;
        self.at += n;
        Ok(&self.bytes[from..self.at])
    }

    fn offset(&mut self) -> Result<u64> {
        let bytes = self.take(8)?.try_into().map_err(|_| damaged())?;
        Ok(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use skytether_common::Kind;

    use super::*;

    #[test]
    fn a_full_disk_says_what_to_do() {
        // Every write to this device fails as one to a full disk does.
        let file = File::options().write(true).open("/dev/full").unwrap();
        let mut spill = SpillFile { file, dir: "/scratch/spill".into(), len: 0, pending: Vec::new() };
        spill.append(b"records").unwrap();
        let error = spill.flush().unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted);
        assert!(["/scratch/spill", "free some there", "TMPDIR"].iter().all(|what| error.to_string().contains(what)), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }
}
