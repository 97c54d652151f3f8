//! Answers as `md5sum`, `grep -o -b`, `wc` and `sort` print them (coreutils 9.1, grep 3.8), byte for byte.
//!
//! Names are bytes: a path need not be text.

use crate::operations::{Counts, Match};

/// Bytes as digits.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |text, byte| text + &format!("{byte:02x}"))
}

/// A line of `md5sum`, `sha256sum` and `b3sum`: the digest, two spaces, the name. Where the name has a backslash, a
/// newline or a carriage return, these are escaped, and the line begins with a backslash.
#[must_use]
pub fn sum_line(digest: &[u8], name: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(2 * digest.len() + name.len() + 4);
    if name.iter().any(|byte| matches!(byte, b'\\' | b'\n' | b'\r')) {
        line.push(b'\\');
    }
    line.extend_from_slice(hexadecimal(digest).as_bytes());
    line.extend_from_slice(b"  ");
    for &byte in name {
        match byte {
            b'\\' => line.extend_from_slice(b"\\\\"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            byte => line.push(byte),
        }
    }
    line.push(b'\n');
    line
}

/// Lines of `grep -o -b`: the name if there are several files, the offset, the match. `-a` is implied: matches in files
/// that are no text are printed, too.
pub fn grep_lines(out: &mut Vec<u8>, name: Option<&[u8]>, matches: &[Match]) {
    for found in matches {
        if let Some(name) = name {
            out.extend_from_slice(name);
            out.push(b':');
        }
        out.extend_from_slice(found.at.to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(&found.text);
        out.push(b'\n');
    }
}

/// A line of `grep -c`.
#[must_use]
pub fn grep_count(name: Option<&[u8]>, count: u64) -> Vec<u8> {
    let mut line = Vec::new();
    if let Some(name) = name {
        line.extend_from_slice(name);
        line.push(b':');
    }
    line.extend_from_slice(count.to_string().as_bytes());
    line.push(b'\n');
    line
}

/// The columns of `wc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// `-l`.
    pub lines: bool,
    /// `-w`.
    pub words: bool,
    /// `-m`.
    pub characters: bool,
    /// `-c`.
    pub bytes: bool,
}

impl Default for Columns {
    /// Those without an option.
    fn default() -> Self {
        Self { lines: true, words: true, characters: false, bytes: true }
    }
}

impl Columns {
    fn values(self, counts: &Counts) -> Vec<u64> {
        let all = [(self.lines, counts.lines), (self.words, counts.words), (self.characters, counts.characters), (self.bytes, counts.bytes)];
        all.into_iter().filter(|(shown, _)| *shown).map(|(_, value)| value).collect()
    }

    /// The width of the numbers: that of the sum of the sizes of all files, whether they could be counted or not. One
    /// number of one file is not padded.
    #[must_use]
    pub fn width(self, sizes: &[u64]) -> usize {
        let columns = [self.lines, self.words, self.characters, self.bytes].into_iter().filter(|shown| *shown).count();
        if sizes.len() == 1 && columns == 1 {
            return 1;
        }
        sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size)).to_string().len()
    }

    /// A line of `wc`. A newline in a name is shown as `wc` does it, in quotes of a shell.
    #[must_use]
    pub fn line(self, counts: &Counts, width: usize, name: &[u8]) -> Vec<u8> {
        let numbers: Vec<String> = self.values(counts).into_iter().map(|value| format!("{value:>width$}")).collect();
        let mut line = numbers.join(" ").into_bytes();
        line.push(b' ');
        if name.contains(&b'\n') {
            line.extend_from_slice(&quoted(name));
        } else {
            line.extend_from_slice(name);
        }
        line.push(b'\n');
        line
    }

    /// All lines: one for each file, and the total of several. Files without counts have no line.
    #[must_use]
    pub fn table(self, files: &[(Option<Counts>, u64, Vec<u8>)]) -> Vec<u8> {
        let width = self.width(&files.iter().map(|(_, size, _)| *size).collect::<Vec<_>>());
        let mut out = Vec::new();
        let mut total = Counts::default();
        for (counts, _, name) in files {
            if let Some(counts) = counts {
                out.extend_from_slice(&self.line(counts, width, name));
                total = total.plus(*counts);
            }
        }
        if files.len() > 1 {
            out.extend_from_slice(&self.line(&total, width, b"total"));
        }
        out
    }
}

/// A name in quotes of a shell, control characters in `$'...'`.
fn quoted(name: &[u8]) -> Vec<u8> {
    let mut out = b"'".to_vec();
    for &byte in name {
        match byte {
            b'\n' => out.extend_from_slice(b"'$'\\n''"),
            b'\'' => out.extend_from_slice(b"'\\''"),
            byte => out.push(byte),
        }
    }
    out.push(b'\'');
    out
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn run(dir: &Path, program: &str, arguments: &[&[u8]]) -> Vec<u8> {
        let mut command = Command::new(program);
        command.args(arguments.iter().map(|argument| OsStr::from_bytes(argument))).current_dir(dir).env("LC_ALL", "C.UTF-8");
        command.output().unwrap().stdout
    }

    fn write(dir: &Path, name: &[u8], bytes: &[u8]) {
        std::fs::write(dir.join(OsStr::from_bytes(name)), bytes).unwrap();
    }

    fn counts_of(text: &str) -> Counts {
        let lines = text.matches('\n').count() as u64;
        Counts { lines, words: text.split_whitespace().count() as u64, characters: text.chars().count() as u64, bytes: text.len() as u64 }
    }

    #[test]
    fn sums_of_any_name_are_those_of_md5sum() {
        let dir = tempfile::tempdir().unwrap();
        let empty = [0xd4, 0x1d, 0x8c, 0xd9, 0x8f, 0x00, 0xb2, 0x04, 0xe9, 0x80, 0x09, 0x98, 0xec, 0xf8, 0x42, 0x7e];
        for name in [&b"a"[..], b"a b", b"back\\slash", b"new\nline", b"return\r", b"\xff\xfe", b" *x"] {
            write(dir.path(), name, b"");
            assert_eq!(sum_line(&empty, name), run(dir.path(), "md5sum", &[b"--", name]), "{name:?}");
        }
    }

    #[test]
    fn counts_of_one_file_are_those_of_wc() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "x", "a b\nc\n", "z\u{fc}rich \u{20ac}\n\n", &"word ".repeat(5000)] {
            write(dir.path(), b"f", text.as_bytes());
            let file = [(Some(counts_of(text)), text.len() as u64, b"f".to_vec())];
            for (options, columns) in [
                (&b"-lwc"[..], Columns::default()),
                (b"-l", Columns { words: false, bytes: false, ..Columns::default() }),
                (b"-c", Columns { words: false, lines: false, ..Columns::default() }),
                (b"-lwmc", Columns { characters: true, ..Columns::default() }),
            ] {
                let ours = String::from_utf8(columns.table(&file)).unwrap();
                assert_eq!(ours, String::from_utf8(run(dir.path(), "wc", &[options, b"f"])).unwrap());
            }
        }
    }

    #[test]
    fn totals_have_the_width_of_wc() {
        let dir = tempfile::tempdir().unwrap();
        for texts in [vec!["a\n", "b c\n"], vec!["", &"x\n".repeat(3000)], vec!["one two\n"; 12]] {
            let names: Vec<Vec<u8>> = (0..texts.len()).map(|n| format!("f {n}").into_bytes()).collect();
            let files: Vec<_> = texts.iter().zip(&names).map(|(text, name)| (Some(counts_of(text)), text.len() as u64, name.clone())).collect();
            texts.iter().zip(&names).for_each(|(text, name)| write(dir.path(), name, text.as_bytes()));
            let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            assert_eq!(Columns::default().table(&files), run(dir.path(), "wc", &names));
            let lines = Columns { words: false, bytes: false, ..Columns::default() };
            assert_eq!(lines.table(&files), run(dir.path(), "wc", &[&[&b"-l"[..]], &names[..]].concat()));
        }
    }

    #[test]
    fn a_newline_in_a_name_is_shown_as_wc_does() {
        let dir = tempfile::tempdir().unwrap();
        for name in [&b"a\nb"[..], b"it's", b"it's\nhere", b"a b"] {
            write(dir.path(), name, b"x\n");
            let counts = Counts { lines: 1, words: 1, characters: 2, bytes: 2 };
            let ours = Columns::default().table(&[(Some(counts), 2, name.to_vec())]);
            assert_eq!(String::from_utf8_lossy(&ours), String::from_utf8_lossy(&run(dir.path(), "wc", &[b"--", name])));
        }
    }

    #[test]
    fn lines_of_matches_are_those_of_grep() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), b"f", b"one two\nthree two\n");
        write(dir.path(), b"g", b"none\n");
        let at = |at: u64| Match { at, text: "two".into() };
        let mut ours = Vec::new();
        grep_lines(&mut ours, None, &[at(4), at(14)]);
        assert_eq!(ours, run(dir.path(), "grep", &[b"-o", b"-b", b"two", b"f"]));
        ours.clear();
        grep_lines(&mut ours, Some(b"f"), &[at(4), at(14)]);
        assert_eq!(ours, run(dir.path(), "grep", &[b"-o", b"-b", b"two", b"f", b"g"]));
        let counts = [grep_count(Some(b"f"), 2), grep_count(Some(b"g"), 0)].concat();
        assert_eq!(counts, run(dir.path(), "grep", &[b"-c", b"two", b"f", b"g"]));
    }
}
