//! Finds the files that a name means: a file, the files of a directory, or a pattern.

use std::path::{Path, PathBuf};

use glob::MatchOptions;
use skytether_common::{Error, Result};

use super::hive::is_key;
use super::source::failed;

/// Characters of a pattern.
const WILD: [char; 3] = ['*', '?', '['];

/// The files that `names` mean, in the order of the names. A directory means its files by name, without those that
/// begin with `.` or `_`, and then those of its directories called `key=value`. A name that is no file and has `*`, `?`
/// or `[` is a pattern, as in a shell. Only a `.` in the pattern matches a leading `.`, and a pattern matches no
/// directories.
///
/// # Errors
/// `NotFound` for a name that means no file; `Invalid` for an invalid pattern; errors of the system about a directory.
pub fn find<P: AsRef<Path>>(names: &[P]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for name in names {
        let (name, before) = (name.as_ref(), files.len());
        if name.is_dir() {
            files.extend(within(name)?);
        } else if name.exists() {
            files.push(name.to_path_buf());
        } else if let Some(pattern) = name.to_str().filter(|text| text.contains(WILD)) {
            // With this option the walk skips hidden files even where the pattern has the dot.
            let dotted = pattern.split(std::path::is_separator).any(|part| part.starts_with('.') && part.contains(WILD));
            let options = MatchOptions { require_literal_leading_dot: !dotted, ..MatchOptions::new() };
            let found = glob::glob_with(pattern, options).map_err(|e| Error::invalid(format!("{pattern:?} is no pattern of files")).with_source(e))?;
            for file in found {
                let file = file.map_err(|e| {
                    let at = e.path().to_path_buf();
                    failed("look into", &at, e.into())
                })?;
                if file.is_file() {
                    files.push(file);
                }
            }
        }
        if files.len() == before {
            return Err(Error::not_found(format!("no file is called or matches {}", name.display())));
        }
    }
    Ok(files)
}

fn within(dir: &Path) -> Result<Vec<PathBuf>> {
    let wrong = |e| failed("look into", dir, e);
    let (mut files, mut keys) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(dir).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let name = entry.file_name();
        let aside = name.as_encoded_bytes().first().is_some_and(|b| matches!(b, b'.' | b'_'));
        if !aside && entry.path().is_file() {
            files.push(entry.path());
        } else if name.to_str().is_some_and(is_key) && entry.path().is_dir() {
            keys.push(entry.path());
        }
    }
    files.sort();
    keys.sort();
    for key in keys {
        files.extend(within(&key)?);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_common::Kind;

    #[test]
    fn names_directories_and_patterns_skip_hidden_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["sub", "empty", "sub/deep", "year=2024", "year=2024/month=1"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        for name in ["b.csv", "a.csv", ".hidden.csv", "_SUCCESS", "[1].csv", "sub/c.csv", "sub/.d.csv", "sub/deep/e.csv", "year=2024/month=1/f.csv"] {
            std::fs::write(at(name), "k\n1\n").unwrap();
        }
        let found = |name: &str| -> Vec<String> {
            let files = find(&[at(name)]).unwrap();
            files.iter().map(|file| file.strip_prefix(dir.path()).unwrap().display().to_string()).collect()
        };
        assert_eq!(found("*.csv"), ["[1].csv", "a.csv", "b.csv"]);
        assert_eq!(found(".*.csv"), [".hidden.csv"]);
        assert_eq!(found("[1].csv"), ["[1].csv"]);
        assert_eq!(found("**/*.csv"), ["[1].csv", "a.csv", "b.csv", "sub/c.csv", "sub/deep/e.csv", "year=2024/month=1/f.csv"]);
        assert_eq!(found(""), ["[1].csv", "a.csv", "b.csv", "year=2024/month=1/f.csv"]);
        assert_eq!(found("sub"), ["sub/c.csv"]);
    }

    #[test]
    fn pattern_without_a_file_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["no.csv", "*.csv", ""] {
            let error = find(&[dir.path().join(name)]).unwrap_err();
            assert!(error.kind() == Kind::NotFound && error.to_string().contains("no file is called or matches"), "{name}: {error}");
        }
        assert_eq!(find(&[dir.path().join("[")]).unwrap_err().kind(), Kind::Invalid);
    }
}
