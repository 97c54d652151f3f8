//! [`PyOas`]: computing in the block storage below files.
//!
//! Files come as a path and the number of an open file, or -1. Answers go as tuples: the value or None, the exception
//! or None, whether the target computed it, and if not, why.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oas::tools;
use oas::{Access, Codec, Counts, Digest, Done, Elements, Framed, Input, OpenFile, Order, Pattern, Ran, Session, Settings, What};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use pyo3_arrow::PyTable;
use skytether::QueryOptions;
use skytether_common::{Error, Result};
use skytether_file_sql::FileTable;
use tokio_util::sync::CancellationToken;

use crate::errors::{OrRaise, to_py};
use crate::runtime::{block, stopped};

/// Files that are open at a time.
const WINDOW: usize = 256;

/// Where to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// The disk below the first file of each call.
    Below,
    Url(String),
    /// Here.
    None,
}

/// Sessions with targets, of the process that made them: threads do not survive a fork.
#[derive(Default)]
struct Made {
    process: u32,
    /// By the file system's device; none for the one of a URL.
    sessions: HashMap<Option<u64>, Arc<Session>>,
}

/// A session of Python's.
#[pyclass(name = "Oas", module = "skytether._internal", frozen)]
pub struct PyOas {
    target: Target,
    settings: Settings,
    made: Mutex<Made>,
}

/// A file of Python's.
struct Given {
    path: PathBuf,
    file: Option<File>,
}

impl Given {
    /// The files with these paths and numbers. A number is duplicated: Python may close its own.
    fn all(files: Vec<(PathBuf, i32)>) -> PyResult<Vec<Self>> {
        let given = |(path, number): (PathBuf, i32)| {
            if number < 0 {
                return Ok(Self { path, file: None });
            }
            // SAFETY: it is borrowed for this call only, during which Python's lock is held: the file object lives.
            #[allow(unsafe_code)]
            let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
            let own = borrowed.try_clone_to_owned().map_err(|cause| Error::io("use", &path, cause))?;
            Ok(Self { path, file: Some(own.into()) })
        };
        files.into_iter().map(given).collect::<Result<_>>().or_raise()
    }

    fn open(&self) -> Result<OpenFile> {
        match &self.file {
            None => OpenFile::open(&self.path, Access::Read),
            Some(file) => {
                let file = file.try_clone().map_err(|cause| Error::io("use", &self.path, cause))?;
                OpenFile::of(file, &self.path, Access::Read)
            }
        }
    }

    fn input(&self) -> Result<Input> {
        Ok(Input::of(Arc::new(self.open()?)))
    }
}

/// Value, exception, whether it was computed there, reason.
type Told<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, bool, Option<String>);

fn told<'py, T>(py: Python<'py>, done: Done<T>, convert: impl FnOnce(T) -> PyResult<Bound<'py, PyAny>>) -> PyResult<Told<'py>> {
    let none = || py.None().into_bound(py);
    let (value, error) = match done.value {
        Ok(value) => (convert(value)?, none()),
        Err(error) => (none(), to_py(&error).into_value(py).into_bound(py).into_any()),
    };
    let reason = match &done.ran {
        Ran::There => None,
        Ran::Here { why } => why.as_ref().map(|why| why.report()),
    };
    Ok((value, error, done.ran.is_there(), reason))
}

fn all_told<'py, T>(py: Python<'py>, all: Vec<Done<T>>, convert: impl Fn(T) -> PyResult<Bound<'py, PyAny>>) -> PyResult<Vec<Told<'py>>> {
    all.into_iter().map(|done| told(py, done, &convert)).collect()
}

fn bytes<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    Ok(PyBytes::new(py, bytes).into_any())
}

fn failed<T>(error: Error) -> Done<T> {
    Done { value: Err(error), ran: Ran::Here { why: None } }
}

fn digest(name: &str, key: Option<Vec<u8>>) -> Result<Digest> {
    let keyed = |key: Option<Vec<u8>>| match key {
        None => Ok(oas::MINIO_KEY),
        Some(key) => key.try_into().map_err(|key: Vec<u8>| Error::invalid(format!("the key has {} bytes; HighwayHash-256 has one of 32", key.len()))),
    };
    let found = match name {
        "highwayhash" => return Ok(Digest::Highway256(keyed(key)?)),
        "md5" => Digest::Md5,
        "sha256" => Digest::Sha256,
        "blake3" => Digest::Blake3,
        "crc32c" => Digest::Crc32c,
        "crc32" => Digest::Crc32,
        "crc64" => Digest::Crc64Nvme,
        _ => return Err(Error::invalid(format!("{name:?} is no digest: md5, sha256, blake3, crc32c, crc32, crc64 or highwayhash"))),
    };
    match key {
        None => Ok(found),
        Some(_) => Err(Error::invalid(format!("{name} has no key; highwayhash has one"))),
    }
}

fn codec(name: &str) -> Result<Codec> {
    match name {
        "zstd" => Ok(Codec::Zstd),
        "lz4" => Ok(Codec::Lz4),
        _ => Err(Error::invalid(format!("{name:?} is no format: zstd or lz4"))),
    }
}

/// Of lines, or of records: bytes, place of the key, its bytes.
fn order(record: Option<(u64, u64, u64)>, reverse: bool, unique: bool) -> Order {
    let elements = match record {
        None => Elements::Lines,
        Some((length, key_at, key_length)) => Elements::Records { length, key_at, key_length },
    };
    Order { elements, reverse, unique }
}

fn pattern(strings: Vec<Vec<u8>>, expression: Option<String>, ignore_case: bool) -> Pattern {
    Pattern { what: expression.map_or(What::Strings(strings), What::Regex), ignore_case, utf8: true }
}

/// A file sorted or merged from others, or from one: what `tools` does to get it.
type Writing = Box<dyn FnOnce(&Session, &[Input], &std::path::Path) -> Done<u64> + Send>;

#[pymethods]
impl PyOas {
    /// `target`: a URL, none for the disk below the files; `here`: none for both, true for here, false for there only.
    #[new]
    fn new(target: Option<String>, here: Option<bool>, seconds: f64, parallel: usize) -> PyResult<Self> {
        let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
        let time = time.ok_or_else(|| Error::invalid(format!("the timeout is {seconds} s; give a number of seconds above 0"))).or_raise()?;
        let parallel = parallel.try_into().map_err(|_| Error::invalid("parallel is 0; give a number of requests above 0")).or_raise()?;
        let settings = Settings { here: here != Some(false), time, parallel, ..Settings::default() };
        let target = match (here, target) {
            (Some(true), _) => Target::None,
            (_, Some(url)) => Target::Url(url),
            (_, None) => Target::Below,
        };
        let made = Self { target, settings, made: Mutex::default() };
        // A wrong URL is told at once.
        if made.target != Target::Below {
            made.session(None).or_raise()?;
        }
        Ok(made)
    }

    /// The target's name, if it is known before a file is.
    fn name(&self) -> PyResult<Option<String>> {
        match self.target {
            Target::Below => Ok(None),
            _ => Ok(self.session(None).or_raise()?.name()),
        }
    }

    fn sum<'py>(&self, py: Python<'py>, files: Vec<(PathBuf, i32)>, name: &str, key: Option<Vec<u8>>) -> PyResult<Vec<Told<'py>>> {
        let digest = digest(name, key).or_raise()?;
        let all = self.each(py, files, move |session, inputs| Ok(session.sum(digest, inputs)))?;
        all_told(py, all, |sum| bytes(py, &sum))
    }

    /// The first bad frame of each file, or -1.
    fn verify_framed<'py>(&self, py: Python<'py>, files: Vec<(PathBuf, i32)>, name: &str, key: Option<Vec<u8>>, block: u64) -> PyResult<Vec<Told<'py>>> {
        let digest = digest(name, key).or_raise()?;
        let all = self.each(py, files, move |session, inputs| Ok(session.verify_framed(digest, block, inputs)))?;
        let number = |framed| match framed {
            Framed::Right => Ok((-1i64).into_pyobject(py)?.into_any()),
            Framed::Bad(frame) => Ok(frame.into_pyobject(py)?.into_any()),
        };
        all_told(py, all, number)
    }

    /// Lines, words, characters and bytes of each file.
    fn wc<'py>(&self, py: Python<'py>, files: Vec<(PathBuf, i32)>) -> PyResult<Vec<Told<'py>>> {
        let all = self.each(py, files, |session, inputs| Ok(session.word_count(true, inputs)))?;
        let counts = |of: Counts| Ok((of.lines, of.words, of.characters, of.bytes).into_pyobject(py)?.into_any());
        all_told(py, all, counts)
    }

    /// Place and text of each match of each file.
    fn grep<'py>(
        &self,
        py: Python<'py>,
        files: Vec<(PathBuf, i32)>,
        strings: Vec<Vec<u8>>,
        expression: Option<String>,
        ignore_case: bool,
        texts: bool,
    ) -> PyResult<Vec<Told<'py>>> {
        let pattern = pattern(strings, expression, ignore_case);
        let search = move |session: &Session, inputs: &[Input]| {
            let mut found: Vec<Vec<oas::Match>> = inputs.iter().map(|_| Vec::new()).collect();
            let done = session.search(&pattern, texts, inputs, |number, matches| {
                found.get_mut(number).ok_or_else(|| Error::internal("matches of a file that was not given"))?.extend(matches);
                Ok(())
            })?;
            Ok(done.into_iter().zip(found).map(|(done, found)| done.and_then(|_| Ok(found))).collect())
        };
        let all = self.each(py, files, search)?;
        let matches = |found: Vec<oas::Match>| {
            let pairs =
                found.into_iter().map(|found| (found.at, PyBytes::new(py, &found.text)).into_pyobject(py)).collect::<PyResult<Vec<Bound<'_, PyTuple>>>>()?;
            Ok(PyList::new(py, pairs)?.into_any())
        };
        all_told(py, all, matches)
    }

    /// How many matches each file has, or how many lines with some.
    fn count<'py>(
        &self,
        py: Python<'py>,
        files: Vec<(PathBuf, i32)>,
        strings: Vec<Vec<u8>>,
        expression: Option<String>,
        ignore_case: bool,
        lines: bool,
    ) -> PyResult<Vec<Told<'py>>> {
        let pattern = pattern(strings, expression, ignore_case);
        let all = self.each(py, files, move |session, inputs| Ok(session.count(&pattern, lines, inputs)))?;
        all_told(py, all, |count| Ok(count.into_pyobject(py)?.into_any()))
    }

    /// Sorts files, or merges sorted ones: the bytes, or with an `output` the number of those written there.
    #[allow(clippy::too_many_arguments, reason = "those of Python's method")]
    fn sort<'py>(
        &self,
        py: Python<'py>,
        files: Vec<(PathBuf, i32)>,
        output: Option<PathBuf>,
        merge: bool,
        record: Option<(u64, u64, u64)>,
        reverse: bool,
        unique: bool,
    ) -> PyResult<Told<'py>> {
        let order = order(record, reverse, unique);
        if let Some(output) = output {
            let into = if merge { tools::merge_into } else { tools::sort_into };
            return self.write_file(py, files, output, Box::new(move |session, inputs, output| into(session, &order, inputs, output)));
        }
        let files = Given::all(files)?;
        let done = self.ask(py, files, move |session, files| {
            let inputs = files.iter().map(Given::input).collect::<Result<Vec<_>>>()?;
            Ok(if merge { session.merge(&order, &inputs) } else { session.sort(&order, &inputs) })
        })?;
        told(py, done, |sorted| bytes(py, &sorted))
    }

    fn compress<'py>(&self, py: Python<'py>, file: (PathBuf, i32), output: PathBuf, form: &str, level: Option<u64>) -> PyResult<Told<'py>> {
        let codec = codec(form).or_raise()?;
        let into = move |session: &Session, inputs: &[Input], output: &std::path::Path| match inputs {
            [input] => tools::compress_into(session, codec, level, input, output),
            _ => failed(Error::internal("one file is compressed at a time")),
        };
        self.write_file(py, vec![file], output, Box::new(into))
    }

    fn decompress<'py>(&self, py: Python<'py>, file: (PathBuf, i32), output: PathBuf, form: &str, room: u64) -> PyResult<Told<'py>> {
        let codec = codec(form).or_raise()?;
        let into = move |session: &Session, inputs: &[Input], output: &std::path::Path| match inputs {
            [input] => tools::decompress_into(session, codec, input, output, room),
            _ => failed(Error::internal("one file is decompressed at a time")),
        };
        self.write_file(py, vec![file], output, Box::new(into))
    }

    /// Runs a query over files, which are one table.
    fn sql(&self, py: Python<'_>, query: String, files: Vec<(PathBuf, i32)>, input: Option<&str>) -> PyResult<Queried> {
        let (files, input) = (Given::all(files)?, input.map(format).transpose().or_raise()?);
        let first = files.first().map(Given::open).transpose().or_raise()?;
        let session = self.session(first.as_ref()).or_raise()?;
        let (schema, batches, ran, receipt) = block(py, async move {
            let opening = tokio::task::spawn_blocking(move || files.iter().map(Given::input).collect::<Result<Vec<_>>>());
            let table = FileTable::open(session, opening.await.map_err(stopped)??, input).await?;
            let query = table.sql(&query, &QueryOptions::default()).await?;
            let (schema, receipt) = (query.schema.clone(), query.receipt.clone());
            let batches = query.collect().await?;
            Ok((schema, batches, table.ran(), receipt.receipt()))
        })?;
        let told = (receipt.to_json().to_string(), receipt.to_string().trim_end().to_owned(), receipt.tree());
        Ok((PyTable::try_new(batches, schema)?, ran.there, ran.here, ran.why, told))
    }
}

/// Rows, plans that ran there and here, why the first of these did, and the receipt as JSON, as a tree and with all
/// operators.
type Queried = (PyTable, u64, u64, Option<String>, (String, String, String));

fn format(name: &str) -> Result<oas::Format> {
    match name {
        "csv" => Ok(oas::Format::Csv),
        "json" => Ok(oas::Format::Json),
        "parquet" => Ok(oas::Format::Parquet),
        _ => Err(Error::invalid(format!("{name:?} is no format of files: csv, json or parquet"))),
    }
}

impl PyOas {
    /// The session for files of a device.
    fn session(&self, first: Option<&OpenFile>) -> Result<Arc<Session>> {
        let device = match (&self.target, first) {
            (Target::Below, Some(file)) => Some(file.file().metadata().map_err(|cause| Error::io("look at", file.path(), cause))?.dev()),
            _ => None,
        };
        let mut made = self.made.lock();
        if made.process != std::process::id() {
            // Those of the parent process wait for threads that are not there.
            std::mem::forget(std::mem::take(&mut made.sessions));
            made.process = std::process::id();
        }
        if let Some(session) = made.sessions.get(&device) {
            return Ok(session.clone());
        }
        let settings = self.settings.clone();
        let session = Arc::new(match (&self.target, first) {
            (Target::Url(url), _) => Session::open(url, settings)?,
            (Target::Below, Some(file)) => Session::below(file, settings)?,
            (Target::Below | Target::None, _) => Session::local(settings)?,
        });
        // What can't be told now may be told later: another disk, for example.
        if session.name().is_some() || self.target == Target::None {
            made.sessions.insert(device, session.clone());
        }
        Ok(session)
    }

    /// Works with the session for these files, without Python's lock. Ctrl-C ends it.
    fn ask<T, W>(&self, py: Python<'_>, files: Vec<Given>, work: W) -> PyResult<T>
    where
        T: Send + 'static,
        W: FnOnce(&Session, &[Given]) -> Result<T> + Send + 'static,
    {
        // Each file's own error is told later.
        let first = files.first().and_then(|file| file.open().ok());
        let session = self.session(first.as_ref()).or_raise()?;
        block(py, async move {
            let stop = CancellationToken::new();
            let session = session.stopped_by(stop.clone());
            // This future is dropped by Ctrl-C. The thread notices that by its session.
            let _interrupted = stop.drop_guard();
            tokio::task::spawn_blocking(move || work(&session, &files)).await.map_err(stopped)?
        })
    }

    /// An answer for each file, in their order.
    fn each<T, W>(&self, py: Python<'_>, files: Vec<(PathBuf, i32)>, work: W) -> PyResult<Vec<Done<T>>>
    where
        T: Send + 'static,
        W: Fn(&Session, &[Input]) -> Result<Vec<Done<T>>> + Send + 'static,
    {
        let files = Given::all(files)?;
        self.ask(py, files, move |session, files| {
            let mut all = Vec::with_capacity(files.len());
            for files in files.chunks(WINDOW) {
                let opened: Vec<Result<Input>> = files.iter().map(Given::input).collect();
                let inputs: Vec<Input> = opened.iter().filter_map(|input| input.as_ref().ok().cloned()).collect();
                let mut answers = work(session, &inputs)?.into_iter();
                for input in opened {
                    all.push(match input {
                        Ok(_) => answers.next().unwrap_or_else(|| failed(Error::internal("an answer is missing"))),
                        Err(error) => failed(error),
                    });
                }
            }
            Ok(all)
        })
    }

    /// One answer for all files, written into another one.
    fn write_file<'py>(&self, py: Python<'py>, files: Vec<(PathBuf, i32)>, output: PathBuf, into: Writing) -> PyResult<Told<'py>> {
        let files = Given::all(files)?;
        let done = self.ask(py, files, move |session, files| {
            let inputs = files.iter().map(Given::input).collect::<Result<Vec<_>>>()?;
            Ok(into(session, &inputs, &output))
        })?;
        told(py, done, |written| Ok(written.into_pyobject(py)?.into_any()))
    }
}
