//! A conversation with the engine next to the OSD, within a deadline.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use skytether_ceph_protocol::proxy::{DIR, DIR_VARIABLE, Frame, socket_name};
use skytether_ceph_protocol::request::{MAX_OBJECT, deadline};
use skytether_ceph_protocol::{Refusal, Response};

/// How long an engine may take to say who it is.
const HELLO: Duration = Duration::from_millis(500);

/// Time that is left to hand the answer over.
const GRACE: Duration = Duration::from_millis(50);

/// All bytes that one call reads: no plan needs an object more often.
const MOST_READ: u64 = 4 * MAX_OBJECT;

/// Why there is no answer.
pub type Refused = (Refusal, String);

/// The socket of the engine next to this OSD.
fn socket(osd: Option<u32>) -> Result<PathBuf, Refused> {
    let number = osd.ok_or_else(|| (Refusal::NoEngine, "the class can't tell the number of its OSD by the command line".to_owned()))?;
    let dir = std::env::var_os(DIR_VARIABLE).filter(|dir| !dir.is_empty()).unwrap_or_else(|| OsString::from(DIR));
    Ok(PathBuf::from(dir).join(socket_name(number)))
}

/// A connection whose every step ends at a time.
struct Timed {
    stream: UnixStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects without waiting: an engine that does not accept would hold the OSD.
fn connect(osd: Option<u32>, until: Instant) -> Result<Timed, Refused> {
    let path = socket(osd)?;
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(libc::EAGAIN) => (Refusal::Busy, format!("the engine at {} does not take more calls", path.display())),
        Some(libc::ENOENT | libc::ECONNREFUSED) => {
            (Refusal::NoEngine, format!("no engine listens at {}: start skytether ceph engine next to the OSD", path.display()))
        }
        _ => (Refusal::NoEngine, format!("the engine at {} can't be reached: {error}", path.display())),
    };
    // SAFETY: zeros are a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err((Refusal::NoEngine, format!("the path {} is too long for a socket", path.display())));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: no pointers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was just made, and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address has that length and lives during the call.
    if unsafe { libc::connect(std::os::fd::AsRawFd::as_raw_fd(&socket), (&raw const address).cast(), length) } < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).map_err(failed)?;
    Ok(Timed { stream, until })
}

/// What a broken conversation means.
fn broken(error: &io::Error, given: Duration) -> Refused {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => (Refusal::Late, format!("the engine gave no answer within {} ms", given.as_millis())),
        io::ErrorKind::InvalidData => (Refusal::Internal, format!("the engine sent what is no frame: {error}")),
        _ => (Refusal::NoEngine, "the engine ended in the middle of the call".to_owned()),
    }
}

/// The version of the engine; or why none answers.
///
/// # Errors
/// The reason in words.
pub fn hello(osd: Option<u32>) -> Result<String, String> {
    let ask = || -> Result<String, Refused> {
        let mut engine = connect(osd, Instant::now() + HELLO)?;
        let said = Frame::Hello.write(&mut engine).and_then(|()| Frame::read(&mut engine)).map_err(|error| broken(&error, HELLO))?;
        match said {
            Frame::Done(version) => Ok(String::from_utf8_lossy(&version).into_owned()),
            _ => Err((Refusal::Internal, "the engine does not say its version".to_owned())),
        }
    };
    ask().map_err(|(_, why)| why)
}

/// Has the engine run `request`; `read` reads the object. The bytes of its response.
///
/// # Errors
/// Why there is none.
pub fn run(osd: Option<u32>, request: &[u8], mut read: impl FnMut(u64, u32) -> Result<Vec<u8>, i32>) -> Result<Vec<u8>, Refused> {
    let begun = Instant::now();
    let given = deadline(request).map_err(|wrong| (Refusal::Invalid, wrong.to_string()))?;
    let mut engine = connect(osd, begun + given + GRACE)?;
    Frame::Run(request.to_vec()).write(&mut engine).map_err(|error| broken(&error, given))?;
    let mut total = 0;
    loop {
        match Frame::read(&mut engine).map_err(|error| broken(&error, given))? {
            Frame::Read { at, len } => {
                total += u64::from(len);
                if total > MOST_READ {
                    return Err((Refusal::Internal, format!("the engine read more than {MOST_READ} bytes of an object")));
                }
                Frame::Data(read(at, len)).write(&mut engine).map_err(|error| broken(&error, given))?;
            }
            Frame::Done(response) => {
                // What comes from another process is looked at before the OSD passes it on.
                return match Response::decode(&response) {
                    Ok(_) => Ok(response),
                    Err(wrong) => Err((Refusal::Internal, format!("the engine's answer is damaged: {wrong}"))),
                };
            }
            _ => return Err((Refusal::Internal, "the engine sent a frame that is not its to send".to_owned())),
        }
    }
}
