//! [`Quotes`]: whether the last quote in separated values is closed, and rows are of bounded length.

use std::io::{self, Read};

use super::json_objects::MAX_ROW;

/// A reader that tracks quotes by the rules of the reader behind it: a quote opens a value only as its first byte, and
/// two quotes within a quoted value are one.
pub(super) struct Quotes<R> {
    inner: R,
    by: u8,
    quote: u8,
    state: QuoteState,
    line: u64,
    opened: u64,
    /// Bytes of the row so far, and the line that it began in.
    row: usize,
    began: u64,
    long: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QuoteState {
    /// Before the first byte of a value.
    Start,
    Bare,
    Quoted,
    /// After a quote within a quoted value: its end, or the first of two.
    Closing,
}

impl<R: Read> Quotes<R> {
    pub(super) fn new(inner: R, by: u8, quote: u8) -> Self {
        Self { inner, by, quote, state: QuoteState::Start, line: 1, opened: 0, row: 0, began: 1, long: false }
    }

    /// The line, from 1, where a row begins that is longer than [`MAX_ROW`].
    pub(super) fn too_long(&self) -> Option<u64> {
        self.long.then_some(self.began)
    }

    /// The line, from 1, of the quote that is open.
    pub(super) fn open(&self) -> Option<u64> {
        (self.state == QuoteState::Quoted).then_some(self.opened)
    }

    fn follow(&mut self, byte: u8) {
        self.state = match (self.state, byte) {
            (QuoteState::Quoted, byte) if byte == self.quote => QuoteState::Closing,
            (QuoteState::Quoted, _) => QuoteState::Quoted,
            (QuoteState::Start, byte) if byte == self.quote => {
                self.opened = self.line;
                QuoteState::Quoted
            }
            (QuoteState::Closing, byte) if byte == self.quote => QuoteState::Quoted,
            (_, b'\n' | b'\r') => {
                // Of a line break of two bytes the second is a row of its own here.
                (self.row, self.began) = (0, self.line + 1);
                QuoteState::Start
            }
            (_, byte) if byte == self.by => QuoteState::Start,
            _ => QuoteState::Bare,
        };
        self.row += 1;
        self.line += u64::from(byte == b'\n');
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        for byte in &buf[..n] {
            self.follow(*byte);
            if self.row > MAX_ROW {
                self.long = true;
                return Err(io::Error::other("a row is too long"));
            }
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_quote_is_found_where_it_opens() {
        for (text, open) in [
            ("a,b\n1,2\n", None),
            ("a,b\n1,\"x\n\ny\"\n", None),
            ("a,b\n1,\"x\n2,y\n", Some(2)),
            ("a,b\n1,\"\"\"\"\n", None),
            ("a,b\n1,\"\"\"\n", Some(2)),
            // A size in inches.
            ("a,b\n1,5\" pipe\n", None),
            ("a,b\n\"x\"y\",1\n", None),
            ("a\r\n\"x\"\r\n\"", Some(3)),
        ] {
            let mut quotes = Quotes::new(text.as_bytes(), b',', b'"');
            io::copy(&mut quotes, &mut io::sink()).unwrap();
            assert_eq!(quotes.open(), open, "{text:?}");
        }
    }
}
