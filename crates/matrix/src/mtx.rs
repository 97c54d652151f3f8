//! Matrix Market coordinate files, plain or gzip-compressed, in chunks.
//!
//! The format: a banner `%%MatrixMarket matrix coordinate <integer|real|pattern> general`, comment lines that begin
//! with `%`, a line of three numbers (rows, columns, entries), then one line per entry: row, column (from 1) and,
//! unless `pattern`, the value. See <https://math.nist.gov/MatrixMarket/formats.html>.

use std::io::Read;
use std::path::Path;

use skytether_common::{Error, Kind, Result};

use crate::text::Lines;

/// The numbers of the size line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MtxHeader {
    /// Number of rows (genes in files by Cell Ranger).
    pub rows: u32,
    /// Number of columns (cells in files by Cell Ranger).
    pub cols: u32,
    /// Number of entries that follow.
    pub entries: u64,
}

/// Reads a Matrix Market file from front to back.
#[derive(Debug)]
pub struct MtxReader {
    lines: Lines,
    header: MtxHeader,
    field: Field,
    read: u64,
    ended: bool,
}

/// The type of values by the banner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// Whole numbers; none may be rounded.
    Integer,
    Real,
    /// None: every entry is a one.
    Pattern,
}

/// What a line turned out to be; lengths include the line feed.
enum Line {
    Entry {
        len: usize,
        row: u64,
        col: u64,
        value: f64,
    },
    /// Blank or a comment.
    Nothing {
        len: usize,
    },
    /// There is no line feed in the bytes at hand.
    Incomplete,
    Bad(&'static str),
}

const SUPPORTED: &str = "supported is `%%MatrixMarket matrix coordinate integer|real|pattern general`";

impl MtxReader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// No such file; [`Kind::Invalid`]: not a Matrix Market file, wrong size line; [`Kind::Unsupported`]: dense,
    /// complex or symmetric; [`Kind::Corrupt`]: truncated or damaged gzip data. All name file and line.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(Lines::open(path)?)
    }

    /// The same from any source of bytes, which errors call `name`.
    ///
    /// # Errors
    /// Like [`MtxReader::open`].
    pub fn new(reader: Box<dyn Read + Send>, name: impl Into<String>) -> Result<Self> {
        Self::of(Lines::new(reader, name.into())?)
    }

    fn of(mut lines: Lines) -> Result<Self> {
        let banner = lines.next_line()?.unwrap_or_default();
        let banner = String::from_utf8_lossy(&banner).trim_start_matches('\u{feff}').to_ascii_lowercase();
        let words: Vec<&str> = banner.split_whitespace().collect();
        if words.first() != Some(&"%%matrixmarket") {
            return Err(lines.error_before(Kind::Invalid, "not a Matrix Market file: the first line must begin with %%MatrixMarket"));
        }
        let &[_, object, format, field, symmetry] = &words[..] else {
            return Err(lines.error_before(Kind::Invalid, format!("the banner has {} words instead of 5; {SUPPORTED}", words.len())));
        };
        let known = match field {
            "integer" => Some(Field::Integer),
            "real" => Some(Field::Real),
            "pattern" => Some(Field::Pattern),
            _ => None,
        };
        let known = known.filter(|_| object == "matrix" && format == "coordinate" && symmetry == "general");
        let Some(field) = known else {
            return Err(lines.error_before(Kind::Unsupported, format!("`{object} {format} {field} {symmetry}` matrices; {SUPPORTED}")));
        };
        let header = loop {
            let Some(line) = lines.next_line()? else {
                return Err(lines.error(Kind::Corrupt, "the file ends before the size line (rows, columns, entries)"));
            };
            let line = line.trim_ascii();
            if !line.is_empty() && line[0] != b'%' {
                break size_line(line).map_err(|why| lines.error_before(Kind::Invalid, why))?;
            }
        };
        Ok(Self { lines, header, field, read: 0, ended: false })
    }

    /// The size of the matrix.
    #[must_use]
    pub fn header(&self) -> MtxHeader {
        self.header
    }

    /// Appends up to `max` entries: row and column numbers from 0, and values (1 for `pattern`). Returns how many; 0
    /// means that all announced entries were read and nothing else follows.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: a number expected, an index that is 0 or beyond the matrix, a value that is not finite, or in
    /// an `integer` file not whole or not exact as a 64-bit float, more entries than announced; [`Kind::Corrupt`]:
    /// fewer entries than announced, truncated or damaged gzip data. All name file and line.
    pub fn read_chunk(&mut self, max: usize, rows: &mut Vec<u32>, cols: &mut Vec<u32>, vals: &mut Vec<f64>) -> Result<usize> {
        let mut n = 0;
        while n < max && !self.ended {
            match parse(self.lines.rest(), self.field) {
                Line::Entry { len, row, col, value } => {
                    if self.read == self.header.entries {
                        let why = format!("there are more entries than the {} announced", self.header.entries);
                        return Err(self.lines.error(Kind::Invalid, why));
                    }
                    // An index of 0 wraps around to one that is too large.
                    let (row0, col0) = (row.wrapping_sub(1), col.wrapping_sub(1));
                    if row0 >= u64::from(self.header.rows) || col0 >= u64::from(self.header.cols) {
                        return Err(self.outside(row, col));
                    }
                    if !value.is_finite() {
                        return Err(self.lines.error(Kind::Invalid, "the value is not a finite number"));
                    }
                    #[allow(clippy::cast_possible_truncation)]
                    {
                        rows.push(row0 as u32);
                        cols.push(col0 as u32);
                    }
                    vals.push(value);
                    self.lines.consume_line(len);
                    self.read += 1;
                    n += 1;
                }
                Line::Nothing { len } => self.lines.consume_line(len),
                Line::Incomplete => self.ended = !self.lines.more()?,
                Line::Bad(why) => return Err(self.lines.error(Kind::Invalid, why)),
            }
        }
        if self.ended && self.read < self.header.entries {
            let why = format!("the file ends after {} of {} entries; fetch it again", self.read, self.header.entries);
            return Err(self.lines.error(Kind::Corrupt, why));
        }
        Ok(n)
    }

    #[cold]
    fn outside(&self, row: u64, col: u64) -> Error {
        let MtxHeader { rows, cols, .. } = self.header;
        let (what, index, limit) = if row == 0 || row > u64::from(rows) { ("row", row, rows) } else { ("column", col, cols) };
        self.lines.error(Kind::Invalid, format!("{what} {index} does not exist; {what}s are numbered from 1 to {limit}"))
    }

    /// The name that errors use.
    #[must_use]
    pub fn name(&self) -> &str {
        self.lines.name()
    }
}

fn size_line(line: &[u8]) -> Result<MtxHeader, String> {
    let text = String::from_utf8_lossy(line);
    let numbers: Option<Vec<u64>> = text.split_whitespace().map(|w| w.parse().ok()).collect();
    let Some(&[rows, cols, entries]) = numbers.as_deref() else {
        return Err("the size line must be three numbers: rows, columns, entries".into());
    };
    let dimension = |n: u64, what: &str| u32::try_from(n).map_err(|_| format!("{n} {what} are more than the supported {}", u32::MAX));
    let header = MtxHeader { rows: dimension(rows, "rows")?, cols: dimension(cols, "columns")?, entries };
    if entries > rows * cols {
        return Err(format!("{entries} entries do not fit a matrix of {rows} rows and {cols} columns"));
    }
    Ok(header)
}

#[inline(always)]
fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\r' | 0x0b | 0x0c)
}

/// Reads decimal digits from `at` on. The number of digits shows whether the value is whole (beyond 18 it is not).
#[inline(always)]
fn digits(bytes: &[u8], at: &mut usize) -> (u64, usize) {
    let (start, mut v) = (*at, 0u64);
    while let Some(d) = bytes.get(*at).map(|b| b.wrapping_sub(b'0')).filter(|d| *d < 10) {
        v = v.wrapping_mul(10).wrapping_add(u64::from(d));
        *at += 1;
    }
    (v, *at - start)
}

#[inline(always)]
fn spaces(bytes: &[u8], at: &mut usize) -> usize {
    let start = *at;
    while bytes.get(*at).is_some_and(|b| is_space(*b)) {
        *at += 1;
    }
    *at - start
}

#[inline(always)]
fn parse(bytes: &[u8], field: Field) -> Line {
    let mut at = 0;
    spaces(bytes, &mut at);
    let (row, row_digits) = digits(bytes, &mut at);
    let gap = spaces(bytes, &mut at);
    let (col, col_digits) = digits(bytes, &mut at);
    if row_digits == 0 || gap == 0 || col_digits == 0 || row_digits > 18 || col_digits > 18 {
        return unusual(bytes);
    }
    let mut value = 1.0;
    if field != Field::Pattern {
        if spaces(bytes, &mut at) == 0 {
            return unusual(bytes);
        }
        let start = at;
        let (v, n) = digits(bytes, &mut at);
        // Up to 15 digits are exact, and the cast is a plain conversion.
        if n > 0 && n <= 15 && bytes.get(at).is_some_and(|b| is_space(*b) || *b == b'\n') {
            #[allow(clippy::cast_precision_loss)]
            {
                value = v as f64;
            }
        } else {
            while bytes.get(at).is_some_and(|b| !is_space(*b) && *b != b'\n') {
                at += 1;
            }
            let text = std::str::from_utf8(&bytes[start..at]).unwrap_or("");
            match text.parse() {
                Ok(v) if at < bytes.len() => value = v,
                _ => return unusual(bytes),
            }
            if field == Field::Integer && !is_exact(text, value) {
                return Line::Bad(
                    "the value is no whole number that a 64-bit float holds exactly, but the banner says `integer`: say `real` there if rounding is meant",
                );
            }
        }
    }
    spaces(bytes, &mut at);
    match bytes.get(at) {
        Some(b'\n') => Line::Entry { len: at + 1, row, col, value },
        _ => unusual(bytes),
    }
}

/// Whether `text`, read as the finite or other number `value`, is a whole number and `value` is it exactly.
#[cold]
#[inline(never)]
fn is_exact(text: &str, value: f64) -> bool {
    match text.parse::<i128>() {
        // Every finite float of at most 2^126 is an i128 if it is whole.
        Ok(whole) => value.abs() <= 2f64.powi(126) && value as i128 == whole,
        // R writes 100000 as 1e+05. For numbers of this size, the float shows whether the text was whole. Numbers that
        // are not finite are refused later.
        Err(_) => !value.is_finite() || (value.fract() == 0.0 && value.abs() <= 1e15),
    }
}

/// Classifies a line that is no entry.
#[cold]
#[inline(never)]
fn unusual(bytes: &[u8]) -> Line {
    let Some(len) = bytes.iter().position(|b| *b == b'\n').map(|n| n + 1) else { return Line::Incomplete };
    match bytes[..len].trim_ascii() {
        [] | [b'%', ..] => Line::Nothing { len },
        line if line.iter().all(|b| b.is_ascii_digit() || is_space(*b)) => Line::Bad("expected a row, a column and (unless the file is a pattern) a value"),
        _ => Line::Bad("expected numbers: a row, a column and (unless the file is a pattern) a value"),
    }
}
