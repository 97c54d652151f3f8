//! [`CsvNulls`]: blank lines in separated values of one column.

use std::io::{self, Read};

/// Bytes that are processed at a time.
const CHUNK: usize = 1 << 16;

/// A reader that writes two quotes into the blank lines of separated values with one column. There a blank line is a
/// row without a value, and the next reader would skip it. Values of several columns, by their first line, stay as they
/// are.
pub(super) struct CsvNulls<R> {
    inner: R,
    by: u8,
    quote: u8,
    lines: Lines,
    state: BlankState,
    /// What is ready to be read, from `at` on.
    ready: Vec<u8>,
    at: usize,
    read: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// The first line that is not blank names the columns.
    Names,
    /// Rows of one column.
    Rows,
    /// Several columns.
    Wide,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlankState {
    /// At the start of a line.
    Start,
    /// After a `\r` that ended a line: a `\n` belongs to it.
    Return,
    Bare,
    Quoted,
    /// After a quote within a quoted value: its end, or the first of two.
    Closing,
}

impl<R: Read> CsvNulls<R> {
    pub(super) fn new(inner: R, by: u8, quote: u8) -> Self {
        Self { inner, by, quote, lines: Lines::Names, state: BlankState::Start, ready: Vec::new(), at: 0, read: Vec::new() }
    }

    fn follow(&mut self, byte: u8) {
        let ended = if byte == b'\r' { BlankState::Return } else { BlankState::Start };
        self.state = match (self.state, byte) {
            (BlankState::Quoted, byte) if byte == self.quote => BlankState::Closing,
            (BlankState::Quoted, _) => BlankState::Quoted,
            (BlankState::Start | BlankState::Return | BlankState::Closing, byte) if byte == self.quote => BlankState::Quoted,
            (BlankState::Return, b'\n') => BlankState::Start,
            (BlankState::Start | BlankState::Return, b'\n' | b'\r') => {
                if self.lines == Lines::Rows {
                    self.ready.extend_from_slice(&[self.quote; 2]);
                }
                ended
            }
            (BlankState::Bare | BlankState::Closing, b'\n' | b'\r') => {
                if self.lines == Lines::Names {
                    self.lines = Lines::Rows;
                }
                ended
            }
            (_, byte) => {
                if byte == self.by && self.lines == Lines::Names {
                    self.lines = Lines::Wide;
                }
                BlankState::Bare
            }
        };
        self.ready.push(byte);
    }
}

impl<R: Read> Read for CsvNulls<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.ready.len() {
            if self.lines == Lines::Wide {
                return self.inner.read(buf);
            }
            self.ready.clear();
            self.at = 0;
            let mut read = std::mem::take(&mut self.read);
            read.resize(CHUNK, 0);
            let n = self.inner.read(&mut read)?;
            read[..n].iter().for_each(|byte| self.follow(*byte));
            self.read = read;
        }
        let n = buf.len().min(self.ready.len() - self.at);
        buf[..n].copy_from_slice(&self.ready[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_of_one_column_are_values() {
        for (text, read) in [
            ("v\n1\n\n2\n", "v\n1\n\"\"\n2\n"),
            ("v\r\n1\r\n\r\n2\r\n\r\n", "v\r\n1\r\n\"\"\r\n2\r\n\"\"\r\n"),
            ("\n\n\"v,\"\"\n\nw\"\n\n1", "\n\n\"v,\"\"\n\nw\"\n\"\"\n1"),
            ("v\n\"a\n\nb\"\"\n\n\"\n\n", "v\n\"a\n\nb\"\"\n\n\"\n\"\"\n"),
            ("v\n5\" pipe\n\n", "v\n5\" pipe\n\"\"\n"),
            ("v,w\n1,2\n\n3,4\n", "v,w\n1,2\n\n3,4\n"),
            ("v\n1,2\n\n", "v\n1,2\n\"\"\n"),
            ("", ""),
        ] {
            let mut found = String::new();
            // A byte at a time, so that no state is lost between reads.
            let mut blank = CsvNulls::new(text.as_bytes(), b',', b'"');
            let mut byte = [0];
            while blank.read(&mut byte).unwrap() == 1 {
                found.push(char::from(byte[0]));
            }
            assert_eq!(found, read);
        }
    }
}
