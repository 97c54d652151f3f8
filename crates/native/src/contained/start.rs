//! Makes the processes of a run; the drive's part of that.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use super::child;
use super::plan::{Ends, NOBODY, Plan};
use super::step::Step;
use crate::trap::Cause;

/// Name spaces that the processes of a run have for themselves.
const NAME_SPACES: i32 =
    libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;

/// The first process of a run. Dropping it kills it, and with it all others of the run, and waits for that.
pub(super) struct First {
    fd: OwnedFd,
}

impl First {
    /// Becomes readable when all processes of the run have ended.
    pub(super) fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Kills all processes of the run.
    pub(super) fn kill(&self) {
        // It can fail only where the process has ended already.
        // SAFETY: a system call with a descriptor that is open; no information goes with the signal.
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), libc::SIGKILL, null_mut::<libc::siginfo_t>(), 0) };
    }
}

impl Drop for First {
    fn drop(&mut self) {
        self.kill();
        loop {
            // SAFETY: a plain structure for which all zeros are valid; the kernel fills it.
            let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: the structure outlives the call.
            let waited = unsafe { libc::waitid(libc::P_PIDFD, self.fd.as_raw_fd() as libc::id_t, &raw mut ended, libc::WEXITED | libc::__WALL) };
            // Another error says that there is nothing to wait for: the drive's process ignores its children.
            if waited == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return;
            }
        }
    }
}

/// Blocks all signals of this thread until it is dropped. A child is born so, as a handler of the drive must not run in
/// it.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn new() -> Self {
        // SAFETY: sets of signals are plain bytes; both outlive the calls.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set outlives the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

/// Starts the processes of a plan. They die with this thread.
pub(super) fn start(plan: Plan, ends: &mut Ends) -> Result<First, Cause> {
    let refused = |step: Step, error: io::Error| Cause::Uncontained { step: step.name(), error };
    let mut fd: i32 = -1;
    let blocked = Blocked::new();
    // Not libc's `fork`, which knows no name spaces and calls handlers of libraries.
    // SAFETY: the new process has its own memory, and its stack is a copy of this one. It never returns from `first`,
    // which does not allocate or lock. The kernel writes the descriptor while this function waits.
    let process = unsafe {
        let process = libc::syscall(libc::SYS_clone, NAME_SPACES | libc::CLONE_PIDFD | libc::SIGCHLD, 0, &raw mut fd, 0, 0);
        if process == 0 {
            child::first(&plan);
        }
        process
    };
    let error = io::Error::last_os_error();
    drop(blocked);
    if process < 0 {
        return Err(refused(Step::NameSpaces, error));
    }
    // SAFETY: the kernel has just opened it for this call, so no other owner exists.
    let first = First { fd: unsafe { OwnedFd::from_raw_fd(fd) } };
    map_users(process, plan.root).map_err(|error| refused(Step::Identity, error))?;
    // If it has died, its report says why.
    let _ = ends.go.write(&[1]);
    Ok(first)
}

/// Says who the user of the new name space is outside of it.
fn map_users(process: i64, root: bool) -> io::Result<()> {
    let write = |file: &str, text: String| fs::write(format!("/proc/{process}/{file}"), text);
    // SAFETY: they only read the process's user and group.
    let (user, group) = if root { (NOBODY, NOBODY) } else { unsafe { (libc::geteuid(), libc::getegid()) } };
    if !root {
        write("setgroups", "deny".to_owned())?;
    }
    write("uid_map", format!("{NOBODY} {user} 1"))?;
    write("gid_map", format!("{NOBODY} {group} 1"))?;
    // Where memory ends, the program goes first and not the drive. No containment: it may fail.
    let _ = write("oom_score_adj", "1000".to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;

    use super::*;
    use crate::call::Call;
    use crate::contained::plan::plan;
    use crate::limits::Limits;

    /// As in the tests of this crate from outside.
    fn contains() -> bool {
        match crate::probe() {
            Ok(()) => true,
            Err(why) => {
                assert!(std::env::var("SKYTETHER_NATIVE").as_deref() != Ok("required"), "{why}");
                eprintln!("skipped: {why}");
                false
            }
        }
    }

    fn planned() -> (Plan, Ends) {
        let call = Call { program: b"no program", name: "none", arguments: &[], environment: &[], socket: None };
        plan(call, &Limits::default()).unwrap()
    }

    /// The files that attempts need, whatever earlier ones made.
    fn prepare(place: &Path) {
        for file in ["old", "older"] {
            fs::write(place.join(file), b"text").unwrap();
        }
        let _ = fs::remove_dir(place.join("directory"));
    }

    /// What the process of a test may do: files, directories, and from version 4 of Landlock on, ports.
    fn attempts(place: &Path, listener: &TcpListener) -> Vec<(&'static str, io::Result<()>)> {
        let mut all = vec![
            ("write a file", fs::write(place.join("file"), b"text")),
            ("read a file", fs::read(place.join("old")).map(drop)),
            ("read one of the system", File::open("/etc/passwd").map(drop)),
            ("list a directory", fs::read_dir("/").map(drop)),
            ("make a directory", fs::create_dir(place.join("directory"))),
            ("remove a file", fs::remove_file(place.join("older"))),
        ];
        // SAFETY: a system call without a structure; the flag asks for the version.
        if unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, null_mut::<u8>(), 0, 1) } >= 4 {
            all.push(("connect", TcpStream::connect(listener.local_addr().unwrap()).map(drop)));
            all.push(("listen", TcpListener::bind("127.0.0.1:0").map(drop)));
        }
        all
    }

    /// Landlock alone: a thread with the rights of this process restricts itself as the first process of a run does,
    /// with the same rule set, and has no other layer.
    #[test]
    fn landlock_alone_closes_files_and_ports() {
        if !contains() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        prepare(place.path());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for (what, done) in attempts(place.path(), &listener) {
            done.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        prepare(place.path());
        let (plan, _ends) = planned();
        let restricted = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: system calls without pointers; they are about this thread only, which ends here.
                unsafe {
                    assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
                    assert_eq!(child::restrict(plan.rules.as_raw_fd()), 0);
                }
                attempts(place.path(), &listener)
            });
            thread.join().unwrap()
        });
        for (what, done) in restricted {
            let error = done.expect_err(what);
            // Seccomp's refusals and those of name spaces are others.
            assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{what}: {error}");
        }
        // Only that thread was restricted.
        prepare(place.path());
        for (what, done) in attempts(place.path(), &listener) {
            done.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }

    /// A run whose rule set is none does not begin: the processes do restrict themselves by what the plan has.
    #[test]
    fn run_without_its_rule_set_does_not_begin() {
        if !contains() {
            return;
        }
        let (plan, mut ends) = planned();
        let nothing = File::open("/dev/null").unwrap();
        let first = start(Plan { rules: nothing.into(), ..plan }, &mut ends).unwrap();
        let mut report = Vec::new();
        ends.report.read_to_end(&mut report).unwrap();
        drop(first);
        assert_eq!(report.first().copied().and_then(Step::of), Some(Step::Landlock), "{report:?}");
    }
}
