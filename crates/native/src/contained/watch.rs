//! Watches a run until its end.

use std::io::{self, PipeReader, Read};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::plan::{Ends, plan};
use super::start::{First, start};
use super::step::Step;
use crate::call::{Call, Outcome};
use crate::limits::Limits;
use crate::trap::{Cause, Trap};

/// How often the drive looks whether a run was aborted.
const LOOK: Duration = Duration::from_millis(20);

/// How much is read at once, in bytes.
const CHUNK: usize = 64 << 10;

/// The length of a status, and of a report of a step that failed, in bytes.
const STATUS: usize = 4;
const REPORT: usize = 5;

/// What comes out of a pipe.
struct Stream {
    /// `None` after its end.
    pipe: Option<PipeReader>,
    bytes: Vec<u8>,
    limit: usize,
    /// Whether more came than the limit.
    over: bool,
}

impl Stream {
    fn new(pipe: PipeReader, limit: usize) -> Self {
        Self { pipe: Some(pipe), bytes: Vec::new(), limit, over: false }
    }

    /// Reads what is there; it must be readable.
    fn read(&mut self, chunk: &mut [u8]) {
        let Some(pipe) = &mut self.pipe else { return };
        match pipe.read(chunk) {
            Ok(0) => self.pipe = None,
            Ok(read) => {
                let room = self.limit - self.bytes.len();
                self.over |= read > room;
                self.bytes.extend_from_slice(chunk.get(..read.min(room)).unwrap_or_default());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.pipe = None,
        }
    }
}

/// What comes from the processes of a run, in the order of the pipes.
struct Streams([Stream; 5]);

impl Streams {
    /// Waits until something comes, the processes end, or the time is over; reads what is there. Whether all processes
    /// have ended.
    fn wait(&mut self, first: &First, most: Duration, chunk: &mut [u8]) -> Result<bool, Cause> {
        let watched = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative descriptor is not looked at.
        let [report, status, stdout, stderr, output] = &self.0;
        let fds = [report, status, stdout, stderr, output].map(|stream| stream.pipe.as_ref().map_or(-1, |pipe| pipe.as_raw_fd()));
        let [report, status, stdout, stderr, output] = fds.map(watched);
        let mut fds = [watched(first.fd()), report, status, stdout, stderr, output];
        let most = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the array outlives the call, and its length is given.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, most) };
        if ready < 0 {
            return match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => Ok(false),
                _ => Err(Cause::Internal("the drive cannot wait for the program")),
            };
        }
        let [ended, fds @ ..] = fds;
        for (stream, fd) in self.0.iter_mut().zip(fds) {
            if fd.revents != 0 {
                stream.read(chunk);
            }
        }
        // What is in the pipes after the end was written before it.
        Ok(ended.revents != 0 && fds.iter().all(|fd| fd.revents & libc::POLLIN == 0))
    }

    /// The limit that was exceeded.
    fn exceeded(&self) -> Option<Cause> {
        let [_, _, stdout, _, output] = &self.0;
        if stdout.over {
            Some(Cause::StdoutLimit { limit: stdout.limit })
        } else if output.over {
            Some(Cause::OutputLimit { limit: output.limit })
        } else {
            None
        }
    }
}

/// See [`crate::run`].
pub(crate) fn run(call: Call<'_>, limits: &Limits, aborted: &AtomicBool) -> Result<Outcome, Trap> {
    let (plan, mut ends) = plan(call, limits)?;
    let first = start(plan, &mut ends)?;
    // The writing end of `go` stays open as long as the drive lives.
    let Ends { go: _go, report, status, stdout, stderr, output } = ends;
    let mut streams = Streams([
        Stream::new(report, REPORT),
        Stream::new(status, STATUS),
        Stream::new(stdout, limits.stdout_bytes),
        Stream::new(stderr, limits.stderr_bytes),
        Stream::new(output, limits.output_bytes),
    ]);
    let stopped = watch(&first, &mut streams, limits, aborted);
    drop(first);
    let exceeded = streams.exceeded();
    let [report, status, stdout, stderr, output] = streams.0.map(|stream| Bytes::from(stream.bytes));
    let ended = match stopped.or(exceeded) {
        Some(cause) => Err(cause),
        None => exit_code(&report, &status, limits),
    };
    match ended {
        Ok(exit_code) => Ok(Outcome { exit_code, output, stdout, stderr }),
        Err(cause) => Err(Trap { cause, stdout, stderr }),
    }
}

/// Waits for the end of all processes. Why it ended them, if it did.
fn watch(first: &First, streams: &mut Streams, limits: &Limits, aborted: &AtomicBool) -> Option<Cause> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let left = limits.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let cause = match streams.wait(first, LOOK.min(left.unwrap_or(LOOK)), &mut chunk) {
            Ok(true) => return None,
            Err(cause) => Some(cause),
            Ok(false) if aborted.load(Ordering::Relaxed) => Some(Cause::Aborted),
            Ok(false) if left.is_some_and(|left| left.is_zero()) => Some(Cause::Deadline),
            Ok(false) => streams.exceeded(),
        };
        if cause.is_some() {
            return cause;
        }
    }
}

/// What the program returned, by what the processes told.
fn exit_code(report: &[u8], status: &[u8], limits: &Limits) -> Result<i32, Cause> {
    if let [step, error @ ..] = report
        && let Some(step) = Step::of(*step)
        && let Ok(error) = error.try_into()
    {
        let error = io::Error::from_raw_os_error(i32::from_le_bytes(error));
        return Err(if step == Step::Execute { Cause::Unexecutable(error) } else { Cause::Uncontained { step: step.name(), error } });
    }
    let Ok(status) = status.try_into().map(i32::from_le_bytes) else { return Err(Cause::Internal("its processes were ended from outside")) };
    if libc::WIFEXITED(status) {
        Ok(libc::WEXITSTATUS(status))
    } else {
        Err(Cause::Signal { signal: libc::WTERMSIG(status), memory_bytes: limits.memory_bytes })
    }
}
