//! Whole jobs of the command: many files, with output as the system's tools print it, and what else there is to tell.
//!
//! Nothing here knows of arguments or terminals. A file that fails has an entry in [`Told::failed`], and the others are
//! done all the same.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use skytether_common::{Error, Result};

use crate::input::Input;
use crate::operations::{Counts, write_all};
use crate::output::{Columns, grep_count, grep_lines, sum_line};
use crate::output_file::OutputFile;
use crate::request::{Codec, Digest, Order, Pattern, Request};
use crate::session::{Done, Ran, Session, local_options};

/// What a job has to tell beyond its output.
#[derive(Debug, Default)]
pub struct Told {
    /// Files that failed, and why.
    pub failed: Vec<(PathBuf, Error)>,
    /// Files that were computed on in the target.
    pub there: u64,
    /// Files that were computed on here, and the reason of the first one.
    pub here: u64,
    /// See `here`.
    pub why: Option<String>,
    /// Whether a search found something: `grep` ends with 1 where it did not.
    pub found: bool,
}

impl Told {
    fn note(&mut self, ran: &Ran) {
        match ran {
            Ran::There => self.there += 1,
            Ran::Here { why } => {
                self.here += 1;
                if let (None, Some(why)) = (&self.why, why) {
                    self.why = Some(why.report());
                }
            }
        }
    }

    fn take<T>(&mut self, path: &Path, done: Done<T>) -> Option<T> {
        self.note(&done.ran);
        done.value.map_err(|error| self.failed.push((path.to_owned(), error))).ok()
    }
}

/// Files that are open at a time.
const WINDOW: usize = 256;

/// Opens files window by window, so that not all are open at once. `each` gets the paths and inputs of those that could
/// be opened.
fn windows(paths: &[PathBuf], told: &mut Told, mut each: impl FnMut(&[PathBuf], &[Input], &mut Told) -> Result<()>) -> Result<()> {
    for paths in paths.chunks(WINDOW) {
        let (mut opened, mut inputs) = (Vec::new(), Vec::new());
        for path in paths {
            match Input::open(path) {
                Ok(input) => {
                    opened.push(path.clone());
                    inputs.push(input);
                }
                Err(error) => told.failed.push((path.clone(), error)),
            }
        }
        each(&opened, &inputs, told)?;
    }
    Ok(())
}

fn name(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// `md5sum FILE...`, and its kin.
///
/// # Errors
/// Those of `out`.
pub fn sum(session: &Session, digest: Digest, paths: &[PathBuf], out: &mut dyn Write) -> Result<Told> {
    let mut told = Told::default();
    windows(paths, &mut told, |paths, inputs, told| {
        for (path, done) in paths.iter().zip(session.sum(digest, inputs)) {
            if let Some(digest) = told.take(path, done) {
                write_all(out, &sum_line(&digest, name(path)))?;
            }
        }
        Ok(())
    })?;
    Ok(told)
}

/// `grep -a -o -b -E PATTERN FILE...`
///
/// # Errors
/// Those of `out`.
pub fn grep(session: &Session, pattern: &Pattern, paths: &[PathBuf], out: &mut dyn Write) -> Result<Told> {
    let (mut told, several) = (Told::default(), paths.len() > 1);
    windows(paths, &mut told, |paths, inputs, told| {
        let mut any = false;
        let all = session.search(pattern, true, inputs, |number, matches| {
            any = true;
            let mut lines = Vec::new();
            grep_lines(&mut lines, paths.get(number).filter(|_| several).map(|path| name(path)), &matches);
            write_all(out, &lines)
        })?;
        told.found |= any;
        for (path, done) in paths.iter().zip(all) {
            told.take(path, done);
        }
        Ok(())
    })?;
    Ok(told)
}

/// `grep -a -c -E PATTERN FILE...`
///
/// # Errors
/// Those of `out`.
pub fn grep_lines_count(session: &Session, pattern: &Pattern, paths: &[PathBuf], out: &mut dyn Write) -> Result<Told> {
    let (mut told, several) = (Told::default(), paths.len() > 1);
    windows(paths, &mut told, |paths, inputs, told| {
        for (path, done) in paths.iter().zip(session.count(pattern, true, inputs)) {
            if let Some(count) = told.take(path, done) {
                told.found |= count > 0;
                write_all(out, &grep_count(several.then(|| name(path)), count))?;
            }
        }
        Ok(())
    })?;
    Ok(told)
}

/// `wc FILE...`
///
/// # Errors
/// Those of `out`.
pub fn wc(session: &Session, columns: Columns, utf8: bool, paths: &[PathBuf], out: &mut dyn Write) -> Result<Told> {
    let mut told = Told::default();
    let mut files: Vec<(Option<Counts>, u64, Vec<u8>)> = Vec::with_capacity(paths.len());
    windows(paths, &mut told, |paths, inputs, told| {
        for ((path, input), done) in paths.iter().zip(inputs).zip(session.word_count(utf8, inputs)) {
            let size = input.file.size().unwrap_or(0);
            files.push((told.take(path, done), size, name(path).to_vec()));
        }
        Ok(())
    })?;
    // A total is there also where some files failed.
    let missing = paths.len() - files.len();
    files.extend((0..missing).map(|_| (None, 0, Vec::new())));
    write_all(out, &columns.table(&files))?;
    Ok(told)
}

/// Where a file is made before it gets its name.
fn next_to(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}{suffix}", std::process::id()));
    path.with_file_name(name)
}

/// Runs a request into a new file of at most `room` bytes. It gets its name when it is whole, and replaces a file of
/// that name.
fn into_file(session: &Session, request: &Request, inputs: &[Input], path: &Path, room: u64, scratch: Option<u64>) -> Done<u64> {
    let mut made = Vec::new();
    let done = (|| {
        let begin = |suffix: &str, room: u64, made: &mut Vec<PathBuf>| {
            let file = OutputFile::create(next_to(path, suffix), room)?;
            made.push(file.path().to_owned());
            Ok::<_, Error>(file)
        };
        let output = begin(".part", room, &mut made)?;
        let scratch = scratch.map(|room| begin(".scratch", room, &mut made)).transpose()?;
        let outputs: Vec<&OutputFile> = std::iter::once(&output).chain(&scratch).collect();
        let done = session.run_whole(request, inputs, &outputs);
        Ok::<_, Error>((output, done))
    })();
    let done = match done {
        Err(error) => Done { value: Err(error), ran: Ran::Here { why: None } },
        Ok((mut output, done)) => done.and_then(|result| {
            let written = result.outputs.first().copied().ok_or_else(|| Error::unavailable("the target's answer is wrong: no length of the output"))?;
            output.cut(written)?;
            std::fs::rename(output.path(), path).map_err(|cause| Error::io("rename to", path, cause))?;
            Ok(written)
        }),
    };
    // What was not renamed is of no use; the output was, if all went well.
    for path in made {
        let _ = std::fs::remove_file(path);
    }
    done
}

fn total(inputs: &[Input]) -> Result<u64> {
    inputs.iter().try_fold(0u64, |sum, input| Ok(sum.saturating_add(input.file.size()?)))
}

/// `sort FILE... > OUTPUT`. The output gets its name when it is whole; it may be one of the inputs.
#[must_use]
pub fn sort_into(session: &Session, order: &Order, inputs: &[Input], output: &Path) -> Done<u64> {
    match total(inputs) {
        // Each input may lack its last newline.
        Ok(bytes) => {
            let room = bytes.saturating_add(inputs.len() as u64);
            // A sort needs 16 bytes for each element, and a quarter of the memory for all; a line has a byte at least.
            let memory = session.capabilities().map_or(local_options().memory, |capabilities| capabilities.memory);
            let scratch = (room.saturating_mul(17) > memory / 4).then_some(room);
            into_file(session, &Request::sort(order), inputs, output, room, scratch)
        }
        Err(error) => Done { value: Err(error), ran: Ran::Here { why: None } },
    }
}

/// `sort -m FILE... > OUTPUT`.
#[must_use]
pub fn merge_into(session: &Session, order: &Order, inputs: &[Input], output: &Path) -> Done<u64> {
    match total(inputs) {
        Ok(bytes) => into_file(session, &Request::merge(order), inputs, output, bytes.saturating_add(inputs.len() as u64), None),
        Err(error) => Done { value: Err(error), ran: Ran::Here { why: None } },
    }
}

/// Compresses a file into another one.
#[must_use]
pub fn compress_into(session: &Session, codec: Codec, level: Option<u64>, input: &Input, output: &Path) -> Done<u64> {
    match input.file.size() {
        // What can't be compressed grows a little: less than 1 in 255, and some headers.
        Ok(size) => {
            let room = size.saturating_add(size / 128).saturating_add(64 << 10);
            into_file(session, &Request::compress(codec, level), std::slice::from_ref(input), output, room, None)
        }
        Err(error) => Done { value: Err(error), ran: Ran::Here { why: None } },
    }
}

/// Writes the content of a compressed file into another one, of at most `room` bytes.
#[must_use]
pub fn decompress_into(session: &Session, codec: Codec, input: &Input, output: &Path, room: u64) -> Done<u64> {
    into_file(session, &Request::decompress(codec), std::slice::from_ref(input), output, room, None)
}

/// Sorts files onto a stream: in the target as far as it fits into a result.
///
/// # Errors
/// Those of `out`, and of the sort.
pub fn sort(session: &Session, order: &Order, paths: &[PathBuf], merge: bool, out: &mut dyn Write) -> Result<Told> {
    let mut told = Told::default();
    let inputs = paths.iter().map(Input::open).collect::<Result<Vec<Input>>>()?;
    let done = if merge { session.merge(order, &inputs) } else { session.sort(order, &inputs) };
    told.note(&done.ran);
    write_all(out, &done.value?)?;
    Ok(told)
}
