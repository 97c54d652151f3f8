//! Verifying the objects of a drive: part files in the target, small objects here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Serialize;
use skytether_common::{Error, Kind, Result};
use skytether_offload::operations::digests::MINIO_KEY;

use super::walk::{Place, Walk, XL_META};
use super::xl_meta::{DIGEST, Object, Part, Version, XlMeta};
use crate::input::Input;
use crate::operations::{Framed, framed};
use crate::request::{Digest, Request};
use crate::session::{Done, Ran, Session};

/// Files that are open at a time.
const WINDOW: usize = 256;

/// How often an object is looked at that is written meanwhile.
const TRIES: usize = 3;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All bytes are those that were written.
    Ok,
    /// They are not.
    Bad,
    /// It could not be verified.
    Failed,
}

/// A part that was verified, or a file that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// The bucket.
    pub bucket: String,
    /// The object's name in the bucket.
    pub object: String,
    /// The version's id, or `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The number of the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<u64>,
    /// The file: that of the part, or `xl.meta` for data inside it.
    pub file: PathBuf,
    /// The file's bytes that belong to the part, digests included.
    pub bytes: u64,
    /// What was found.
    pub state: State,
    /// Why it is not ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The first frame that is not what was written, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<u64>,
    /// Whether the target verified it.
    pub there: bool,
}

/// What came out in all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Parts that are what was written.
    pub ok: u64,
    /// Those that are not.
    pub bad: u64,
    /// What could not be verified.
    pub failed: u64,
    /// Bytes of part files that were verified, wherever.
    pub bytes: u64,
    /// Parts that the target verified.
    pub there: u64,
    /// Parts in files of their own that were verified here, and why the first one was.
    pub here: u64,
    /// See `here`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A part that is to be verified.
struct Job {
    checked: Checked,
    frame: u64,
    data: Data,
}

enum Data {
    /// In a file of its own.
    File,
    /// In `xl.meta`.
    Inline(Bytes),
    /// What was found is known already.
    Known,
}

/// An object that is to be verified.
struct Found {
    place: Place,
    /// `xl.meta` as it was.
    meta: Bytes,
    jobs: Vec<Job>,
}

/// Verifies a drive of MinIO: the directory that was given to `minio server`. `each` gets the parts in their order, but
/// for objects that are written meanwhile, which come last.
///
/// # Errors
/// Those of `each`; `Invalid` where the directory is no drive of MinIO. What happens to single objects is in their
/// [`Checked`].
pub fn scrub(session: &Session, root: &Path, each: &mut dyn FnMut(Checked) -> Result<()>) -> Result<Summary> {
    let mut run = Run { session, summary: Summary::default(), each };
    let (mut found, mut parts, mut again) = (Vec::new(), 0, Vec::new());
    for place in Walk::new(root)? {
        match place {
            Ok(place) => {
                let object = look(place);
                // Those without parts, such as deleted ones, may be any number.
                if !object.jobs.is_empty() {
                    parts += object.jobs.len();
                    found.push(object);
                }
            }
            Err(error) => run.tell(failed(root.to_owned(), &error))?,
        }
        if parts >= WINDOW {
            run.verify(std::mem::take(&mut found), false, &mut again)?;
            parts = 0;
        }
    }
    run.verify(found, false, &mut again)?;
    for attempt in 2..=TRIES {
        for place in std::mem::take(&mut again) {
            run.verify(vec![look(place)], attempt == TRIES, &mut again)?;
        }
    }
    Ok(run.summary)
}

fn failed(file: PathBuf, error: &Error) -> Checked {
    let state = if error.kind() == Kind::Corrupt { State::Bad } else { State::Failed };
    let (bucket, object) = Default::default();
    Checked { bucket, object, version: None, part: None, file, bytes: 0, state, why: Some(error.report()), frame: None, there: false }
}

/// The parts of an object. None if it is gone.
fn look(place: Place) -> Found {
    let file = place.path.join(XL_META);
    let whole = |error: &Error| Checked { bucket: place.bucket.clone(), object: place.object.clone(), ..failed(file.clone(), error) };
    let known = |error: &Error| Job { checked: whole(error), frame: 0, data: Data::Known };
    let (meta, jobs) = match fs::read(&file) {
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => (Bytes::new(), Vec::new()),
        Err(cause) => (Bytes::new(), vec![known(&Error::io("read", &file, cause))]),
        Ok(bytes) => {
            let bytes = Bytes::from(bytes);
            let jobs = match XlMeta::parse(&bytes) {
                Err(error) => vec![known(&error)],
                Ok(meta) => {
                    let of = |version: &Version| match version {
                        Version::Object(object) => object.parts.iter().map(|part| job(&place, &meta, object, part)).collect(),
                        Version::Empty => Vec::new(),
                        Version::Older => vec![known(&Error::unsupported("a version has the form of MinIO before 2020, which is not read"))],
                    };
                    meta.versions.iter().flat_map(of).collect()
                }
            };
            (bytes, jobs)
        }
    };
    Found { place, meta, jobs }
}

fn job(place: &Place, meta: &XlMeta, object: &Object, part: &Part) -> Job {
    let bytes = object.file_size(part);
    let inline = meta.inline(object);
    let file = match inline {
        Some(_) => place.path.join(XL_META),
        None => place.path.join(object.data_dir.to_string()).join(format!("part.{}", part.number)),
    };
    let checked = Checked {
        bucket: place.bucket.clone(),
        object: place.object.clone(),
        version: Some(object.id_text()),
        part: Some(part.number),
        file,
        bytes,
        state: State::Ok,
        why: None,
        frame: None,
        there: false,
    };
    let data = inline.map_or(Data::File, |data| Data::Inline(data.clone()));
    Job { checked, frame: object.frame(), data }
}

struct Run<'a> {
    session: &'a Session,
    summary: Summary,
    each: &'a mut dyn FnMut(Checked) -> Result<()>,
}

impl Run<'_> {
    /// Verifies objects, and tells what came out. Those that were not right, and have changed since, go to `again`. If
    /// this is the last time, they could not be verified.
    fn verify(&mut self, mut found: Vec<Found>, last: bool, again: &mut Vec<Place>) -> Result<()> {
        // Those with frames of one length are one request.
        let mut files: BTreeMap<u64, Vec<&mut Job>> = BTreeMap::new();
        for job in found.iter_mut().flat_map(|object| &mut object.jobs) {
            match &job.data {
                Data::File => files.entry(job.frame).or_default().push(job),
                Data::Inline(bytes) => {
                    let value = self.inline(bytes.clone(), job);
                    job.note(value);
                }
                Data::Known => {}
            }
        }
        for (frame, mut jobs) in files {
            jobs.chunks_mut(WINDOW).for_each(|jobs| self.files(jobs, frame));
        }
        for Found { place, meta, mut jobs } in found {
            // A server replaced the object meanwhile, or removed it: what was found says nothing of what is there now.
            let is_right = jobs.iter().all(|job| job.checked.state == State::Ok);
            if !is_right && fs::read(place.path.join(XL_META)).map(Bytes::from).ok().as_ref() != Some(&meta) {
                if !last {
                    again.push(place);
                    continue;
                }
                for job in jobs.iter_mut().filter(|job| job.checked.state == State::Bad) {
                    job.checked.frame = None;
                    job.is(State::Failed, "it changes all the time while it is verified".to_owned());
                }
            }
            jobs.into_iter().try_for_each(|job| self.tell(job.checked))?;
        }
        Ok(())
    }

    fn files(&mut self, jobs: &mut [&mut Job], frame: u64) {
        let (mut inputs, mut opened) = (Vec::new(), Vec::new());
        for job in jobs {
            let found = Input::open(&job.checked.file).and_then(|input| Ok((input.file.size()?, input)));
            match found {
                Ok((size, _)) if size != job.checked.bytes => job.size(size),
                Ok((_, input)) => {
                    inputs.push(input);
                    opened.push(job);
                }
                Err(error) if error.kind() == Kind::NotFound => job.is(State::Bad, "the file is not there".to_owned()),
                Err(error) => job.is(State::Failed, error.report()),
            }
        }
        let found = self.session.verify_framed(Digest::Highway256(MINIO_KEY), frame, &inputs);
        for (job, Done { value, ran }) in opened.into_iter().zip(found) {
            job.note(value);
            match ran {
                Ran::There => {
                    job.checked.there = true;
                    self.summary.there += 1;
                }
                Ran::Here { why } => {
                    self.summary.here += 1;
                    self.summary.why = self.summary.why.take().or_else(|| why.map(|why| why.report()));
                }
            }
        }
    }

    fn inline(&self, bytes: Bytes, job: &mut Job) -> Result<Framed> {
        if bytes.len() as u64 != job.checked.bytes {
            job.size(bytes.len() as u64);
            return Ok(Framed::Right);
        }
        let request = Request::verify_framed(Digest::Highway256(MINIO_KEY), job.frame);
        framed(&self.session.run_bytes(&request, bytes, crate::input::Part::default())?)
    }

    fn tell(&mut self, checked: Checked) -> Result<()> {
        match checked.state {
            State::Ok => {
                self.summary.ok += 1;
                self.summary.bytes += checked.bytes;
            }
            State::Bad => self.summary.bad += 1,
            State::Failed => self.summary.failed += 1,
        }
        (self.each)(checked)
    }
}

impl Job {
    fn is(&mut self, state: State, why: String) {
        self.checked.state = state;
        self.checked.why = Some(why);
    }

    fn size(&mut self, found: u64) {
        self.is(State::Bad, format!("it has {found} bytes, and {} were written", self.checked.bytes));
    }

    fn note(&mut self, found: Result<Framed>) {
        match found {
            Ok(Framed::Right) => {}
            Ok(Framed::Bad(frame)) => {
                let first = frame.saturating_mul(self.frame.saturating_add(DIGEST));
                let end = first.saturating_add(self.frame).saturating_add(DIGEST).min(self.checked.bytes);
                self.checked.frame = Some(frame);
                self.is(State::Bad, format!("frame {frame}, bytes {first} to {end} of it, is not what was written"));
            }
            // The drive below knows by itself that its bytes are not what was written.
            Err(error) if error.kind() == Kind::Corrupt => self.is(State::Bad, error.report()),
            Err(error) => self.is(State::Failed, error.report()),
        }
    }
}
