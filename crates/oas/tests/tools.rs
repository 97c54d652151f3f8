//! Whole jobs, without a target: their output is that of the system's tools.

use std::fs;
use std::path::{Path, PathBuf};

use oas::output::Columns;
use oas::{Codec, Digest, Input, Order, Pattern, Session, Settings, tools};

use crate::mounted::{noise, system, text};

const NAMES: [&str; 6] = ["a", "b b", "empty", "no newline", "binary", "back\\slash"];

fn fixture() -> (tempfile::TempDir, Session) {
    let dir = tempfile::tempdir().unwrap();
    let contents = [text(1, 50_000), b"needle\n\nhay needle\r\n".to_vec(), Vec::new(), b"x needle".to_vec(), noise(2, 30_000), text(3, 500)];
    for (name, content) in NAMES.iter().zip(contents) {
        fs::write(dir.path().join(name), content).unwrap();
    }
    (dir, Session::local(Settings::default()).unwrap())
}

/// The tools print names as they were given, so these jobs run where the files are.
fn paths(dir: &Path) -> Vec<PathBuf> {
    NAMES.iter().map(|name| dir.join(name)).collect()
}

fn whole_names(dir: &Path) -> Vec<String> {
    paths(dir).iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

fn same(ours: &[u8], theirs: &[u8]) {
    assert_eq!(String::from_utf8_lossy(ours), String::from_utf8_lossy(theirs));
    assert!(ours == theirs);
}

fn with<'a>(options: &[&'a str], names: &'a [String]) -> Vec<&'a str> {
    options.iter().copied().chain(names.iter().map(String::as_str)).collect()
}

#[test]
fn sums_are_printed_as_the_tools_do() {
    let (dir, session) = fixture();
    let names = whole_names(dir.path());
    for (digest, program) in [(Digest::Md5, "md5sum"), (Digest::Sha256, "sha256sum")] {
        let mut out = Vec::new();
        let told = tools::sum(&session, digest, &paths(dir.path()), &mut out).unwrap();
        same(&out, &system(dir.path(), program, &with(&[], &names), "C"));
        assert!(told.failed.is_empty() && told.here == 6 && told.why.is_none());
    }
}

#[test]
fn words_are_printed_as_wc_does() {
    let (dir, session) = fixture();
    let names = whole_names(dir.path());
    for (utf8, locale) in [(true, "C.UTF-8"), (false, "C")] {
        for (options, columns) in [
            (&["-lwc"][..], Columns::default()),
            (&["-m"], Columns { lines: false, words: false, characters: true, bytes: false }),
            (&["-lwmc"], Columns { characters: true, ..Columns::default() }),
        ] {
            let mut out = Vec::new();
            tools::wc(&session, columns, utf8, &paths(dir.path()), &mut out).unwrap();
            same(&out, &system(dir.path(), "wc", &with(options, &names), locale));
            out.clear();
            tools::wc(&session, columns, utf8, &paths(dir.path())[..1], &mut out).unwrap();
            same(&out, &system(dir.path(), "wc", &with(options, &names[..1]), locale));
        }
    }
}

#[test]
fn matches_are_printed_as_grep_does() {
    let (dir, session) = fixture();
    let names = whole_names(dir.path());
    for (options, pattern) in [
        (["-aobE", "needle|hay"], Pattern::regex("needle|hay")),
        (["-aobE", "[a-z]+e"], Pattern::regex("[a-z]+e")),
        (["-aobF", "needle"], Pattern::string("needle")),
        (["-aoibF", "NEEDLE"], Pattern { ignore_case: true, ..Pattern::string("NEEDLE") }),
    ] {
        let mut out = Vec::new();
        let pattern = Pattern { utf8: false, ..pattern };
        let told = tools::grep(&session, &pattern, &paths(dir.path()), &mut out).unwrap();
        same(&out, &system(dir.path(), "grep", &with(&options, &names), "C"));
        assert!(told.found);
        out.clear();
        tools::grep(&session, &pattern, &paths(dir.path())[1..2], &mut out).unwrap();
        same(&out, &system(dir.path(), "grep", &with(&options, &names[1..2]), "C"));
    }
    let mut out = Vec::new();
    tools::grep_lines_count(&session, &Pattern::string("needle"), &paths(dir.path()), &mut out).unwrap();
    same(&out, &system(dir.path(), "grep", &with(&["-acF", "needle"], &names), "C"));
    let told = tools::grep(&session, &Pattern::string("nowhere"), &paths(dir.path()), &mut Vec::new()).unwrap();
    assert!(!told.found);
}

#[test]
fn lines_are_sorted_and_merged_as_sort_does() {
    let (dir, session) = fixture();
    let names = whole_names(dir.path());
    for (options, order) in
        [(vec![], Order::LINES), (vec!["-r"], Order { reverse: true, ..Order::LINES }), (vec!["-u"], Order { unique: true, ..Order::LINES })]
    {
        let expected = system(dir.path(), "sort", &with(&options, &names), "C");
        let mut out = Vec::new();
        tools::sort(&session, &order, &paths(dir.path()), false, &mut out).unwrap();
        assert!(out == expected, "{options:?}");
        let inputs: Vec<Input> = paths(dir.path()).iter().map(|path| Input::open(path).unwrap()).collect();
        let sorted = dir.path().join("sorted");
        tools::sort_into(&session, &order, &inputs, &sorted).value.unwrap();
        assert!(fs::read(&sorted).unwrap() == expected);
        let merged = dir.path().join("merged");
        let twice = [Input::open(&sorted).unwrap(), Input::open(&sorted).unwrap()];
        tools::merge_into(&session, &order, &twice, &merged).value.unwrap();
        let options = [&["-m"][..], &options].concat();
        assert!(fs::read(&merged).unwrap() == system(dir.path(), "sort", &[&options[..], &["sorted", "sorted"]].concat(), "C"));
    }
}

#[test]
fn compressed_files_come_back() {
    let (dir, session) = fixture();
    for codec in [Codec::Zstd, Codec::Lz4] {
        for path in paths(dir.path()) {
            let (packed, back) = (dir.path().join("packed"), dir.path().join("back"));
            tools::compress_into(&session, codec, None, &Input::open(&path).unwrap(), &packed).value.unwrap();
            tools::decompress_into(&session, codec, &Input::open(&packed).unwrap(), &back, 1 << 20).value.unwrap();
            assert!(fs::read(&back).unwrap() == fs::read(&path).unwrap(), "{path:?}");
        }
    }
}

#[test]
fn a_file_that_fails_leaves_the_others() {
    let (dir, session) = fixture();
    let files = [dir.path().join("a"), dir.path().join("gone"), dir.path().to_owned(), dir.path().join("empty")];
    let mut out = Vec::new();
    let told = tools::sum(&session, Digest::Md5, &files, &mut out).unwrap();
    assert_eq!(told.failed.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>(), files[1..3]);
    assert_eq!(out.split(|byte| *byte == b'\n').count(), 3);
    let mut out = Vec::new();
    tools::wc(&session, Columns::default(), true, &files[..2], &mut out).unwrap();
    let names: Vec<&str> = files[..2].iter().map(|path| path.to_str().unwrap()).collect();
    same(&out, &system(dir.path(), "wc", &names, "C.UTF-8"));
}
