//! The lists that belong to a 10x matrix: genes.tsv (id, name), features.tsv (id, name, feature type) and barcodes.tsv,
//! plain or gzip-compressed.
//!
//! A field that begins and ends with a quotation mark is quoted, as R's `write.table` does by default: the marks go,
//! and of a mark inside, the backslash or mark before it. A tab inside belongs to the field. A line feed ends a line
//! also within marks: no name of a gene or cell has one.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use skytether_common::{Kind, Result};

use crate::text::Lines;

/// Lists that take more memory than this are none of genes or cells, but perhaps a decompression bomb.
const MOST_BYTES: usize = 1 << 30;

/// The columns of a genes.tsv or features.tsv, in file order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Features {
    /// First column.
    pub ids: Vec<String>,
    /// Second column; the id where it is missing or empty.
    pub names: Vec<String>,
    /// Third column ("Gene Expression", "Antibody Capture", ...), empty where it is missing; `None` if no line has it.
    pub types: Option<Vec<String>>,
}

/// Reads a genes.tsv or features.tsv; further columns are ignored.
///
/// # Errors
/// No such file; [`Kind::Invalid`]: not UTF-8, a line without an id; [`Kind::Corrupt`]: gzip data truncated or
/// damaged; [`Kind::Exhausted`]: a list that takes more than 1 GiB. All but the first name the line.
pub fn read_features(path: &Path) -> Result<Features> {
    features(Lines::open(path)?)
}

/// The same from any source of bytes, which errors call `name`.
///
/// # Errors
/// Like [`read_features`].
pub fn features_from(reader: Box<dyn Read + Send>, name: impl Into<String>) -> Result<Features> {
    features(Lines::new(reader, name.into())?)
}

/// Reads a barcodes.tsv: the first column of every line.
///
/// # Errors
/// Like [`read_features`].
pub fn read_barcodes(path: &Path) -> Result<Vec<String>> {
    barcodes(Lines::open(path)?)
}

/// The same from any source of bytes, which errors call `name`.
///
/// # Errors
/// Like [`read_features`].
pub fn barcodes_from(reader: Box<dyn Read + Send>, name: impl Into<String>) -> Result<Vec<String>> {
    barcodes(Lines::new(reader, name.into())?)
}

fn features(lines: Lines) -> Result<Features> {
    let mut all = Features::default();
    let (mut types, mut typed) = (Vec::new(), false);
    each_line(lines, "gene", MOST_BYTES, |line| {
        let mut columns = Fields(Some(line));
        let id = columns.next().unwrap_or_default();
        let name = columns.next().filter(|n| !n.is_empty()).unwrap_or_else(|| id.clone());
        let kind = columns.next().unwrap_or_default();
        typed |= !kind.is_empty();
        all.ids.push(id.into_owned());
        all.names.push(name.into_owned());
        types.push(kind.into_owned());
    })?;
    all.types = typed.then_some(types);
    Ok(all)
}

fn barcodes(lines: Lines) -> Result<Vec<String>> {
    let mut all = Vec::new();
    each_line(lines, "barcode", MOST_BYTES, |line| all.push(Fields(Some(line)).next().unwrap_or_default().into_owned()))?;
    Ok(all)
}

/// The fields of a line, without the space around them and without their quotation marks.
struct Fields<'a>(Option<&'a str>);

impl<'a> Iterator for Fields<'a> {
    type Item = Cow<'a, str>;

    fn next(&mut self) -> Option<Cow<'a, str>> {
        let rest = self.0.take()?;
        if let Some((field, after)) = quoted(rest) {
            self.0 = after;
            return Some(Cow::Owned(field));
        }
        let (field, after) = rest.split_once('\t').map_or((rest, None), |(field, after)| (field, Some(after)));
        self.0 = after;
        Some(Cow::Borrowed(field.trim()))
    }
}

/// The quoted field at the beginning of `text` and what follows its tab; `None` where the field is not quoted as a
/// whole, and so has its marks for itself: `"5'" end`, `5"`.
fn quoted(text: &str) -> Option<(String, Option<&str>)> {
    let inside = text.trim_start_matches(' ').strip_prefix('"')?;
    let (mut field, mut signs) = (String::new(), inside.char_indices());
    while let Some((at, sign)) = signs.next() {
        let next = inside[at + sign.len_utf8()..].chars().next();
        match (sign, next) {
            ('\\' | '"', Some('"')) => {
                field.push('"');
                signs.next();
            }
            ('"', _) => {
                let after = inside[at + 1..].trim_start_matches([' ', '\r']);
                return match after.strip_prefix('\t') {
                    Some(after) => Some((field, Some(after))),
                    None => after.is_empty().then_some((field, None)),
                };
            }
            _ => field.push(sign),
        }
    }
    None
}

/// What a line takes at most: its text as both id and name, three strings, and what the allocator adds to them.
fn taken(line: &[u8]) -> usize {
    2 * line.len() + 3 * size_of::<String>() + 64
}

/// Calls `f` with every line but blank ones at the end, as long as they take at most `most` bytes.
fn each_line(mut lines: Lines, what: &str, most: usize, mut f: impl FnMut(&str)) -> Result<()> {
    let (mut bytes, mut blank, mut first) = (0, false, true);
    while let Some(line) = lines.next_line()? {
        bytes += taken(&line);
        if bytes > most {
            return Err(lines.error_before(Kind::Exhausted, format!("the lines so far take more than {most} bytes of memory: this is no list of {what}s")));
        }
        let Ok(mut text) = std::str::from_utf8(&line) else {
            return Err(lines.error_before(Kind::Invalid, "not UTF-8 text; save the file in that encoding"));
        };
        if std::mem::take(&mut first) {
            text = text.trim_start_matches('\u{feff}');
        }
        if text.trim().is_empty() {
            blank = true;
            continue;
        }
        if blank || text.starts_with('\t') || text.starts_with("\"\"\t") || text.trim_end() == "\"\"" {
            return Err(lines.error_before(Kind::Invalid, format!("a line without a {what}, here or just before; there must be one per line")));
        }
        f(text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &'static [u8]) -> Result<Features> {
        features_from(Box::new(text), "genes.tsv")
    }

    #[test]
    fn both_versions_and_short_lines_are_read() {
        let v2 = parsed(b"ENSG1\tCD3D\nENSG2\tMS4A1\n").unwrap();
        assert_eq!((v2.ids, v2.names, v2.types), (vec!["ENSG1".into(), "ENSG2".into()], vec!["CD3D".into(), "MS4A1".into()], None));
        let v3 = parsed(b"\xef\xbb\xbfENSG1\tCD3D\tGene Expression\textra\r\nENSG2\r\nENSG3\t\tCustom\n\n\n").unwrap();
        assert_eq!(v3.ids, ["ENSG1", "ENSG2", "ENSG3"]);
        assert_eq!(v3.names, ["CD3D", "ENSG2", "ENSG3"]);
        assert_eq!(v3.types.unwrap(), ["Gene Expression", "", "Custom"]);
        assert_eq!(barcodes_from(Box::new(&b"AAA-1\nCCC-1"[..]), "b").unwrap(), ["AAA-1", "CCC-1"]);
        assert_eq!(barcodes_from(Box::new(&b""[..]), "b").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn quoted_fields_lose_their_marks() {
        let read = parsed(b"\"ENSG1\"\t\"CD3D\"\t\"Gene Expression\"\r\n\"a\tb\"\t\"say \\\"x\\\"\"\n\"c\" \t\"say \"\"y\"\"\"\n").unwrap();
        assert_eq!(read.ids, ["ENSG1", "a\tb", "c"]);
        assert_eq!(read.names, ["CD3D", "say \"x\"", "say \"y\""]);
        assert_eq!(read.types.unwrap(), ["Gene Expression", "", ""]);
        // Marks that do not surround the field are its own.
        let own = parsed("5'\"\t\"a\" b\n\"open\tx\n\"\"\"\tend\n\"\u{e9}\"\t\"\"\n".as_bytes()).unwrap();
        assert_eq!(own.ids, ["5'\"", "\"open", "\"\"\"", "\u{e9}"]);
        assert_eq!(own.names, ["\"a\" b", "x", "end", "\u{e9}"]);
        assert_eq!(barcodes_from(Box::new(&b"\"AAA-1\"\n\"CCC-1\"\n"[..]), "b").unwrap(), ["AAA-1", "CCC-1"]);
    }

    #[test]
    fn short_lines_count_their_bytes() {
        let read = |most| {
            let mut n = 0;
            each_line(Lines::new(Box::new(std::io::Cursor::new(b"a\n".repeat(1000))), "genes.tsv".into()).unwrap(), "gene", most, |_| n += 1).map(|()| n)
        };
        // An id, a name and a type: three strings, though the text is two bytes.
        assert_eq!(read(1000 * 138).unwrap(), 1000);
        let error = read(1000 * 138 - 1).unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted);
        assert!(error.to_string().starts_with("genes.tsv, line 1000: "), "{error}");
    }

    #[test]
    fn errors_name_file_and_line() {
        let bad = parsed(b"a\tb\n\xff\n").unwrap_err();
        assert_eq!((bad.kind(), bad.to_string().starts_with("genes.tsv, line 2: not UTF-8")), (Kind::Invalid, true), "{bad}");
        assert!(parsed(b"a\n\nb\n").unwrap_err().to_string().contains("line 3: a line without a gene"));
        assert!(parsed(b"\tx\n").unwrap_err().to_string().contains("line 1"));
        assert_eq!(parsed(b"\x1f\x8b\x08\x00").unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(read_features(Path::new("no-such-folder/genes.tsv")).unwrap_err().kind(), Kind::NotFound);
    }
}
