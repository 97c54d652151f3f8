//! Reads plain or compressed text line by line; errors name file and line.

use std::fs::File;
use std::io::{Chain, Cursor, ErrorKind, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use skytether_common::{Error, Kind, Result};

const BUFFER: usize = 256 * 1024;
/// No line of the formats read here comes near this.
const LONGEST_LINE: usize = 1 << 20;

/// A reader of plain or gzip-compressed text.
pub(crate) struct Lines {
    name: String,
    reader: Box<dyn Read + Send>,
    compressed: bool,
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    finished: bool,
    line: u64,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines({} at line {})", self.name, self.line)
    }
}

impl Lines {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        Self::new(Box::new(file), path.display().to_string())
    }

    /// Recognises gzip by its first two bytes.
    pub(crate) fn new(mut reader: Box<dyn Read + Send>, name: String) -> Result<Self> {
        let mut magic = [0; 2];
        let mut n = 0;
        while n < magic.len() {
            match reader.read(&mut magic[n..]) {
                Ok(0) => break,
                Ok(more) => n += more,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", &name, e)),
            }
        }
        let compressed = magic == [0x1f, 0x8b];
        let whole: Chain<Cursor<Vec<u8>>, _> = Cursor::new(magic[..n].to_vec()).chain(reader);
        // Members one after another are what block-compressing tools write.
        let reader: Box<dyn Read + Send> = if compressed { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
        Ok(Self { name, reader, compressed, buffer: vec![0; BUFFER], at: 0, end: 0, finished: false, line: 1 })
    }

    /// The bytes at hand; at the end of the text a line feed is put after the last line if there is none.
    #[inline(always)]
    pub(crate) fn rest(&self) -> &[u8] {
        &self.buffer[self.at..self.end]
    }

    /// Moves past `n` bytes, which end a line.
    #[inline(always)]
    pub(crate) fn consume_line(&mut self, n: usize) {
        self.at += n;
        self.line += 1;
    }

    /// Brings more bytes behind the rest; false at the end.
    pub(crate) fn more(&mut self) -> Result<bool> {
        if self.finished {
            return Ok(false);
        }
        self.buffer.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        if self.end == self.buffer.len() {
            if self.end > LONGEST_LINE {
                return Err(self.error(Kind::Invalid, "the line is too long; is this the right file?"));
            }
            self.buffer.resize(self.end * 2, 0);
        }
        loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.finished = true;
                    if self.end > 0 && self.buffer[self.end - 1] != b'\n' {
                        self.buffer[self.end] = b'\n';
                        self.end += 1;
                        return Ok(true);
                    }
                    return Ok(false);
                }
                Ok(n) => {
                    self.end += n;
                    return Ok(true);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if self.compressed && matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput) => {
                    let why = if e.kind() == ErrorKind::UnexpectedEof { "truncated" } else { "damaged" };
                    return Err(self.error(Kind::Corrupt, format!("the gzip data are {why} about here; fetch the file again")).with_source(e));
                }
                Err(e) => return Err(Error::io("read", &self.name, e)),
            }
        }
    }

    /// The next line without its end (LF or CRLF), or `None` at the end.
    pub(crate) fn next_line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut searched = 0;
        loop {
            if let Some(found) = self.rest()[searched..].iter().position(|b| *b == b'\n') {
                let whole = &self.rest()[..searched + found];
                let line = whole.strip_suffix(b"\r").unwrap_or(whole).to_vec();
                self.consume_line(searched + found + 1);
                return Ok(Some(line));
            }
            searched = self.rest().len();
            if !self.more()? {
                return Ok(None);
            }
        }
    }

    /// An error about the current line.
    pub(crate) fn error(&self, kind: Kind, why: impl std::fmt::Display) -> Error {
        self.error_at(kind, self.line, why)
    }

    /// An error about the line before, the one that [`Lines::next_line`] returned.
    pub(crate) fn error_before(&self, kind: Kind, why: impl std::fmt::Display) -> Error {
        self.error_at(kind, self.line - 1, why)
    }

    fn error_at(&self, kind: Kind, line: u64, why: impl std::fmt::Display) -> Error {
        Error::new(kind, format!("{}, line {line}: {why}", self.name))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}
