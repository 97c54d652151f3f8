//! Finds the files that a name means: a file, the files of a directory, or a pattern.

use std::path::{Path, PathBuf};

use glob::MatchOptions;
use skytether_common::{Error, Result};

use super::source::failed;

/// Characters of a pattern.
const WILD: [char; 3] = ['*', '?', '['];

/// The files that `names` mean, in the order of the names. A directory means its files by name, and then those of
/// its directories, at any depth, without names that begin with `.` or `_`. A name that is no file and has `*`, `?` or
/// `[` is a pattern, as in a shell. Only a `.` in the pattern matches a leading `.`, and a pattern matches no
/// directories. What is no file, such as a link to nothing, is given too: its reader refuses it.
///
/// # Errors
/// `NotFound` for a name that means no file; `Invalid` for an invalid pattern, and for a link from a directory to one
/// that it is in; errors of the system about a directory.
pub fn find<P: AsRef<Path>>(names: &[P]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for name in names {
        let (name, before) = (name.as_ref(), files.len());
        if name.is_dir() {
            within(name, &mut Vec::new(), &mut files)?;
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
                if !file.is_dir() {
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

/// Adds the files within `dir` to `files`. The real paths of the directories that `dir` is in are `around`.
fn within(dir: &Path, around: &mut Vec<PathBuf>, files: &mut Vec<PathBuf>) -> Result<()> {
    let wrong = |e| failed("look into", dir, e);
    let real = dir.canonicalize().map_err(wrong)?;
    if around.contains(&real) {
        return Err(Error::invalid(format!("{} is a link to a directory that it is in: remove it, or name the files with a pattern", dir.display())));
    }
    let (mut own, mut dirs) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(dir).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        if entry.file_name().as_encoded_bytes().first().is_some_and(|b| matches!(b, b'.' | b'_')) {
            continue;
        }
        if entry.path().is_dir() { dirs.push(entry.path()) } else { own.push(entry.path()) }
    }
    own.sort();
    dirs.sort();
    files.extend(own);
    around.push(real);
    dirs.iter().try_for_each(|dir| within(dir, around, files))?;
    around.pop();
    Ok(())
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
        assert_eq!(found(""), ["[1].csv", "a.csv", "b.csv", "sub/c.csv", "sub/deep/e.csv", "year=2024/month=1/f.csv"]);
        assert_eq!(found("sub"), ["sub/c.csv", "sub/deep/e.csv"]);
        assert_eq!(found("year=2024"), ["year=2024/month=1/f.csv"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_to_nothing_and_in_circles_are_not_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::write(at("a.csv"), "k\n1\n").unwrap();
        std::os::unix::fs::symlink(at("gone.csv"), at("b.csv")).unwrap();
        assert_eq!(find(&[dir.path()]).unwrap(), [at("a.csv"), at("b.csv")]);
        assert_eq!(find(&[at("*.csv")]).unwrap(), [at("a.csv"), at("b.csv")]);
        std::os::unix::fs::symlink(dir.path(), at("sub/up")).unwrap();
        let error = find(&[dir.path()]).unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.to_string().contains("sub/up is a link"), "{error}");
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
