//! All that the new processes need, made before they exist.

use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, Scope};
use seccompiler::BpfProgram;

use super::filter;
use super::init;
use super::step::Step;
use crate::call::Call;
use crate::limits::Limits;
use crate::trap::{Cause, Trap};

/// The user and the group that a program sees as its own. Where the drive is root, they are its own outside as well.
pub(super) const NOBODY: u32 = 65_534;

/// The size of a program's stack, in bytes.
const STACK: u64 = 8 << 20;

/// How many file descriptors a program may have.
const DESCRIPTORS: u64 = 16;

/// The first number of the descriptors below: they are moved to lower ones.
const HIGH: i32 = 10;

/// A list of texts as `execveat` wants it.
pub(super) struct Texts {
    _texts: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl Texts {
    fn new(texts: Vec<CString>) -> Self {
        let pointers = texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Self { _texts: texts, pointers }
    }

    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

/// What the new processes have. The drive drops it when they exist, and with it its copies of their descriptors.
pub(super) struct Plan {
    /// Whether the drive is root, and so can make the program another user.
    pub(super) root: bool,
    /// The drive's end of `go`, which the child must not keep.
    pub(super) go_writer: i32,
    /// A byte comes here when the drive has mapped users.
    pub(super) go: OwnedFd,
    /// Here goes the step that failed, and its error. It closes when both processes execute something else.
    pub(super) report: OwnedFd,
    /// Here the first process writes how the program ended.
    pub(super) status: OwnedFd,
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) socket: Option<OwnedFd>,
    pub(super) output: OwnedFd,
    pub(super) init: OwnedFd,
    pub(super) program: OwnedFd,
    /// Landlock's rule set: it handles all kinds of access, and has no rule.
    pub(super) rules: OwnedFd,
    pub(super) filter: BpfProgram,
    pub(super) limits: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
    pub(super) arguments: Texts,
    pub(super) environment: Texts,
}

/// The drive's ends.
pub(super) struct Ends {
    pub(super) go: PipeWriter,
    pub(super) report: PipeReader,
    pub(super) status: PipeReader,
    pub(super) stdout: PipeReader,
    pub(super) stderr: PipeReader,
    pub(super) output: PipeReader,
}

fn unplanned(error: io::Error) -> Cause {
    Cause::Uncontained { step: Step::Plan.name(), error }
}

/// The same descriptor with a number from [`HIGH`] on, so that none is in the way of the low ones that programs get.
fn high(fd: impl Into<OwnedFd>) -> io::Result<OwnedFd> {
    let fd = fd.into();
    // SAFETY: a system call on a descriptor that is open.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this call, so no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// A file in memory that can be executed and not changed any more.
fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let create = |flags| {
        // SAFETY: the name ends with a byte of 0, and lives as long as the call.
        unsafe { libc::memfd_create(c"program".as_ptr(), flags) }
    };
    let mut fd = create(flags | libc::MFD_EXEC);
    if fd < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // A kernel before 6.3 knows no such flag: all its memory files can be executed.
        fd = create(flags);
    }
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this call, so no other owner exists.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(bytes)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: a system call on a descriptor that is open.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } < 0 {
        return Err(io::Error::last_os_error());
    }
    high(file)
}

/// A rule set that forbids all that this kernel's Landlock knows: files, ports, signals, sockets.
fn rules() -> io::Result<OwnedFd> {
    let known = ABI::V6;
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(known))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(known)))
        .and_then(|rules| rules.scope(Scope::from_all(known)))
        .and_then(Ruleset::create);
    let fd: Option<OwnedFd> = ruleset.map_err(io::Error::other)?.into();
    high(fd.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "this kernel has no Landlock"))?)
}

/// The limits of resources. The kernel's list of processes and threads counts this program only.
fn resources(limits: &Limits) -> Vec<(libc::__rlimit_resource_t, libc::rlimit)> {
    // The drive watches the deadline. Should it not come to do that, this ends what loops.
    let seconds = limits.deadline.map_or(libc::RLIM_INFINITY, |deadline| deadline.saturating_duration_since(Instant::now()).as_secs() + 2);
    [
        (libc::RLIMIT_AS, limits.memory_bytes),
        (libc::RLIMIT_STACK, STACK.min(limits.memory_bytes)),
        (libc::RLIMIT_CPU, seconds),
        (libc::RLIMIT_NOFILE, DESCRIPTORS),
        (libc::RLIMIT_NPROC, 1),
        (libc::RLIMIT_FSIZE, 0),
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_MEMLOCK, 0),
        (libc::RLIMIT_MSGQUEUE, 0),
        (libc::RLIMIT_SIGPENDING, 64),
    ]
    .map(|(resource, most)| (resource, libc::rlimit { rlim_cur: most, rlim_max: most }))
    .to_vec()
}

fn texts<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Result<Texts, Cause> {
    let texts = texts.map(|text| CString::new(text).map_err(|_| Cause::Zero)).collect::<Result<_, _>>()?;
    Ok(Texts::new(texts))
}

/// Plans a run.
pub(super) fn plan(call: Call<'_>, limits: &Limits) -> Result<(Plan, Ends), Trap> {
    let arguments = texts([call.name.as_bytes()].into_iter().chain(call.arguments.iter().map(|argument| &argument[..])))?;
    let variables: Vec<String> = call.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let environment = texts(variables.iter().map(String::as_bytes))?;
    let descriptors = || -> io::Result<(Plan, Ends)> {
        let (go, go_writer) = io::pipe()?;
        let (report, report_writer) = io::pipe()?;
        let (status, status_writer) = io::pipe()?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        let (output, output_writer) = io::pipe()?;
        // Its other end is closed: a program finds the end of its input.
        let (stdin, _) = io::pipe()?;
        let program = memory_file(call.program)?;
        let plan = Plan {
            // SAFETY: it only reads the process's user.
            root: unsafe { libc::geteuid() } == 0,
            go_writer: go_writer.as_raw_fd(),
            go: high(go)?,
            report: high(report_writer)?,
            status: high(status_writer)?,
            stdin: high(stdin)?,
            stdout: high(stdout_writer)?,
            stderr: high(stderr_writer)?,
            socket: call.socket.map(high).transpose()?,
            output: high(output_writer)?,
            init: memory_file(&init::wait())?,
            filter: filter::compile(program.as_raw_fd() as u64).map_err(io::Error::other)?,
            program,
            rules: rules()?,
            limits: resources(limits),
            arguments,
            environment,
        };
        Ok((plan, Ends { go: go_writer, report, status, stdout, stderr, output }))
    };
    descriptors().map_err(|error| unplanned(error).into())
}
