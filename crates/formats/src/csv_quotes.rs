//! [`Quotes`]: whether the last quote in separated values is closed.

use std::io::{self, Read};

/// A reader that tracks quotes by the rules of the reader behind it: a quote opens a value only as its first byte, and
/// two quotes within a quoted value are one.
pub(super) struct Quotes<R> {
    inner: R,
    by: u8,
    state: QuoteState,
    line: u64,
    opened: u64,
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
    pub(super) fn new(inner: R, by: u8) -> Self {
        Self { inner, by, state: QuoteState::Start, line: 1, opened: 0 }
    }

    /// The line, from 1, of the quote that is open.
    pub(super) fn open(&self) -> Option<u64> {
        (self.state == QuoteState::Quoted).then_some(self.opened)
    }

    fn follow(&mut self, byte: u8) {
        self.state = match (self.state, byte) {
            (QuoteState::Quoted, b'"') => QuoteState::Closing,
            (QuoteState::Quoted, _) => QuoteState::Quoted,
            (QuoteState::Start, b'"') => {
                self.opened = self.line;
                QuoteState::Quoted
            }
            (QuoteState::Closing, b'"') => QuoteState::Quoted,
            (_, b'\n' | b'\r') => QuoteState::Start,
            (_, byte) if byte == self.by => QuoteState::Start,
            _ => QuoteState::Bare,
        };
        self.line += u64::from(byte == b'\n');
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        buf[..n].iter().for_each(|byte| self.follow(*byte));
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
            let mut quotes = Quotes::new(text.as_bytes(), b',');
            io::copy(&mut quotes, &mut io::sink()).unwrap();
            assert_eq!(quotes.open(), open, "{text:?}");
        }
    }
}
