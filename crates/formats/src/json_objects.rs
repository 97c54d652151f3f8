//! [`Objects`]: the objects of a JSON file, one a line or elements of one array, as texts of bounded length.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use skytether_common::{Error, Result};

use super::location::Location;
use super::source::{Failure, Text, failed};

/// The longest row of a text file. What parses a row takes some times as much memory.
pub(super) const MAX_ROW: usize = 64 << 20;

/// Where an object is in its file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Line(usize),
    /// In a file that is one array, which may have no lines.
    Element(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(n) => write!(f, "line {n}"),
            Place::Element(n) => write!(f, "element {n}"),
        }
    }
}

/// Lines that are not empty, or elements of an array if the file begins with `[`, with their places. What they hold is
/// not checked.
pub(super) struct Objects {
    path: PathBuf,
    reader: BufReader<Text>,
    failure: Failure,
    number: usize,
    array: Option<Array>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Array {
    /// Behind `[`.
    Begin,
    /// Behind a comma.
    Next,
    /// Behind `]`, or an error.
    End,
}

impl Objects {
    pub(super) fn open(path: &Location) -> Result<Self> {
        let text = Text::open(path)?;
        let failure = text.failure();
        let mut objects = Self { path: path.to_path_buf(), reader: BufReader::new(text), failure, number: 0, array: None };
        if objects.skip_space()? == Some(b'[') {
            objects.reader.consume(1);
            objects.number = 0;
            objects.array = Some(Array::Begin);
        }
        Ok(objects)
    }

    fn failed(&self, e: std::io::Error) -> Error {
        self.failure.or(&self.path, failed("read", &self.path, e))
    }

    /// The next byte that is no white space; counts lines.
    fn skip_space(&mut self) -> Result<Option<u8>> {
        loop {
            let found = match self.reader.fill_buf() {
                Ok([]) => return Ok(None),
                Ok(bytes) => {
                    let n = bytes.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(bytes.len());
                    let lines = bytes[..n].iter().filter(|b| **b == b'\n').count();
                    Ok((n, lines, bytes.get(n).copied()))
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => Err(e),
            };
            let (n, lines, next) = found.map_err(|e| self.failed(e))?;
            self.reader.consume(n);
            self.number += if self.array.is_none() { lines } else { 0 };
            if next.is_some() {
                return Ok(next);
            }
        }
    }

    fn too_long(&self, place: Place) -> Error {
        Error::exhausted(format!(
            "{}: {place} is longer than {} MiB, the most that one row may take: is the file something else than rows?",
            self.path.display(),
            MAX_ROW >> 20
        ))
    }

    fn text(&self, place: Place, bytes: Vec<u8>) -> Result<(Place, String)> {
        match String::from_utf8(bytes) {
            Ok(text) => Ok((place, text)),
            Err(e) => Err(Error::invalid(format!("{}: {place} is no text", self.path.display())).with_source(e)),
        }
    }

    fn line(&mut self) -> Result<Option<(Place, String)>> {
        let mut line = Vec::new();
        loop {
            self.number += 1;
            line.clear();
            let place = Place::Line(self.number);
            let read = (&mut self.reader).take(MAX_ROW as u64 + 1).read_until(b'\n', &mut line);
            match read.map_err(|e| self.failed(e))? {
                0 => return Ok(None),
                n if n > MAX_ROW => return Err(self.too_long(place)),
                _ if line.trim_ascii().is_empty() => {}
                _ => return self.text(place, line).map(Some),
            }
        }
    }

    fn element(&mut self, state: Array) -> Result<Option<(Place, String)>> {
        self.array = Some(Array::End);
        let next = self.skip_space()?;
        if next == Some(b']') && state == Array::Begin {
            self.reader.consume(1);
            return self.ended().map(|()| None);
        }
        self.number += 1;
        let place = Place::Element(self.number);
        let (mut bytes, mut depth, mut quoted, mut escaped) = (Vec::new(), 0usize, false, false);
        loop {
            let read = match self.reader.fill_buf() {
                Ok(read) => Ok(read),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => Err(e),
            };
            let chunk = match read {
                Ok(chunk) => chunk,
                Err(e) => return Err(self.failed(e)),
            };
            if chunk.is_empty() {
                return Err(Error::invalid(format!("{}: the array ends within {place}: fetch the file again", self.path.display())));
            }
            let mut end = None;
            for (at, byte) in chunk.iter().enumerate() {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if quoted => escaped = true,
                    b'"' => quoted = !quoted,
                    _ if quoted => {}
                    b'{' | b'[' => depth += 1,
                    b',' | b']' if depth == 0 => {
                        end = Some((at, *byte));
                        break;
                    }
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            let n = end.map_or(chunk.len(), |(at, _)| at);
            if bytes.len() + n > MAX_ROW {
                return Err(self.too_long(place));
            }
            bytes.extend_from_slice(&chunk[..n]);
            self.reader.consume(n + usize::from(end.is_some()));
            match end {
                None => {}
                Some(_) if bytes.trim_ascii().is_empty() => return Err(Error::invalid(format!("{}: {place} is empty", self.path.display()))),
                Some((_, b',')) => {
                    self.array = Some(Array::Next);
                    return self.text(place, bytes).map(Some);
                }
                Some(_) => {
                    self.ended()?;
                    return self.text(place, bytes).map(Some);
                }
            }
        }
    }

    fn ended(&mut self) -> Result<()> {
        match self.skip_space()? {
            None => Ok(()),
            Some(_) => Err(Error::invalid(format!("{}: the file goes on after its array: a file is one array, or lines of objects", self.path.display()))),
        }
    }
}

impl Iterator for Objects {
    type Item = Result<(Place, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.array {
            None => self.line().transpose(),
            Some(Array::End) => None,
            Some(state) => self.element(state).transpose(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(text: &str) -> std::result::Result<Vec<String>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        std::fs::write(&path, text).unwrap();
        let all = Objects::open(&Location::file(&path)).and_then(|all| all.collect::<Result<Vec<_>>>());
        all.map(|all| all.into_iter().map(|(place, text)| format!("{place}: {}", text.trim())).collect()).map_err(|e| e.to_string())
    }

    #[test]
    fn objects_are_lines_or_elements_of_an_array() {
        assert_eq!(objects("\n{\"a\": 1}\n\n{\"a\": 2}").unwrap(), ["line 2: {\"a\": 1}", "line 4: {\"a\": 2}"]);
        let tricky = "{\"a\": \"],}\\\"[\", \"b\": [[1], {\"c\": 2}]}";
        assert_eq!(objects(&format!(" \n[ {tricky},\n {{}} ] \n")).unwrap(), [format!("element 1: {tricky}"), "element 2: {}".into()]);
        assert_eq!(objects("[]").unwrap(), Vec::<String>::new());
        assert_eq!(objects("[1, [2, 3]]").unwrap(), ["element 1: 1", "element 2: [2, 3]"]);
        for (wrong, says) in [
            ("[{}, ", "within element 2"),
            ("[{}", "within element 1"),
            ("[{},]", "element 2 is empty"),
            ("[{}] {}", "goes on"),
            ("[,{}]", "element 1 is empty"),
        ] {
            assert!(objects(wrong).unwrap_err().contains(says), "{wrong}: {:?}", objects(wrong));
        }
    }

    #[test]
    fn a_row_beyond_the_limit_is_refused_by_place() {
        let long = "x".repeat(MAX_ROW);
        for (text, place) in [(format!("{{}}\n{long}\n"), "line 2"), (format!("[{{}}, \"{long}\"]"), "element 2")] {
            let error = objects(&text).unwrap_err();
            assert!(error.contains(place) && error.contains("longer than 64 MiB"), "{error}");
        }
    }
}
