//! What the new processes do until they execute something else.
//!
//! They are copies of one thread of the drive, whose other threads may have held locks at that moment. So this code
//! makes system calls with what the plan has, and nothing else: it does not allocate, lock, panic or return.

use std::ffi::c_long;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::{null, null_mut};

use super::plan::{NOBODY, Plan};
use super::step::Step;
use crate::limits::{OUTPUT_FD, SOCKET_FD};

/// The descriptor to which the first process writes the program's status.
const STATUS_FD: i32 = 3;

/// How a child ends that cannot go on. Nothing reads it.
const FAILED: i32 = 127;

/// The number of signals on Linux.
const SIGNALS: i32 = 64;

/// The highest number that a capability can have.
const CAPABILITIES: u64 = 63;

/// The version of the arguments of `capset`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    process: i32,
}

/// Tells the drive which step failed and why, and ends.
fn fail(plan: &Plan, step: Step) -> ! {
    // SAFETY: the address of this thread's error number is valid, and the report's bytes outlive the call.
    unsafe {
        let [a, b, c, d] = (*libc::__errno_location()).to_le_bytes();
        let report = [step as u8, a, b, c, d];
        libc::write(plan.report.as_raw_fd(), report.as_ptr().cast(), report.len());
        libc::_exit(FAILED)
    }
}

/// Goes on only if the system call succeeded.
fn done(plan: &Plan, step: Step, result: impl Into<c_long>) {
    if result.into() < 0 {
        fail(plan, step);
    }
}

/// The first process. It is born in the new name spaces, contains itself, makes the second, and becomes
/// [`super::init`].
///
/// # Safety
/// Only for a process that has just been born, as a copy of the thread that made `plan`.
pub(super) unsafe fn first(plan: &Plan) -> ! {
    // SAFETY: all are system calls. Pointers are null or to texts and values that outlive the call.
    unsafe {
        libc::close(plan.go_writer);
        let mut go = 0_u8;
        if libc::read(plan.go.as_raw_fd(), (&raw mut go).cast(), 1) != 1 {
            // The drive has ended, or it could not map users.
            libc::_exit(FAILED);
        }
        // Signals of the drive's terminal are none of the program's.
        done(plan, Step::Session, libc::setsid());
        for signal in 1..=SIGNALS {
            // What the drive ignores would be ignored by the program. Some numbers are refused, and have no handler.
            libc::signal(signal, libc::SIG_DFL);
        }
        become_nobody(plan);
        empty_file_system(plan);
        let name = c"drive";
        done(plan, Step::HostName, libc::sethostname(name.as_ptr(), name.count_bytes()));
        done(plan, Step::HostName, libc::setdomainname(name.as_ptr(), name.count_bytes()));
        give_up_rights(plan);
        // After the change of users, which resets it. Should the drive be killed, the name spaces end with it.
        done(plan, Step::Session, libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL));
        let mut go = libc::pollfd { fd: plan.go.as_raw_fd(), events: 0, revents: 0 };
        if libc::poll(&raw mut go, 1, 0) != 0 {
            // The drive was killed before.
            libc::_exit(FAILED);
        }
        let second = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0);
        done(plan, Step::Second, second);
        if second == 0 {
            become_program(plan);
        }
        done(plan, Step::Descriptors, libc::dup2(plan.status.as_raw_fd(), STATUS_FD));
        close_on_execution(plan, 0, STATUS_FD - 1);
        close_on_execution(plan, STATUS_FD + 1, i32::MAX);
        execute(plan, Step::First, &plan.init, [null()].as_ptr(), [null()].as_ptr())
    }
}

/// Leaves the drive's groups and its user.
unsafe fn become_nobody(plan: &Plan) {
    // Not libc's functions: they tell other threads, which exist in libc's lists only, and wait for them.
    // SAFETY: system calls without pointers, but for an empty list.
    unsafe {
        if plan.root {
            // Without the right to do that, a user's process keeps its groups. It can't open anything in any case.
            done(plan, Step::Groups, libc::syscall(libc::SYS_setgroups, 0, null::<libc::gid_t>()));
        }
        done(plan, Step::Groups, libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY));
        done(plan, Step::Users, libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY));
    }
}

/// Makes an empty directory in memory the root, and lets go of all other files.
unsafe fn empty_file_system(plan: &Plan) {
    let (root, here, none) = (c"/".as_ptr(), c".".as_ptr(), c"none".as_ptr());
    // Any directory that exists will do; the drive has just written below this one.
    let (place, kind) = (c"/proc".as_ptr(), c"tmpfs".as_ptr());
    let bare = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: system calls with pointers to constant texts.
    unsafe {
        done(plan, Step::Files, libc::mount(none, root, null(), libc::MS_REC | libc::MS_PRIVATE, null()));
        done(plan, Step::Files, libc::mount(none, place, kind, bare, c"size=4096,nr_inodes=2,mode=0555".as_ptr().cast()));
        done(plan, Step::Files, libc::chdir(place));
        done(plan, Step::Files, libc::syscall(libc::SYS_pivot_root, here, here));
        done(plan, Step::Files, libc::umount2(here, libc::MNT_DETACH));
        done(plan, Step::Files, libc::chdir(root));
        done(plan, Step::Files, libc::mount(none, root, null(), bare | libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY, null()));
    }
}

/// Gives up what it could do in its name spaces, for itself and all that it makes or executes.
unsafe fn give_up_rights(plan: &Plan) {
    // SAFETY: system calls with pointers to values on the stack.
    unsafe {
        done(plan, Step::Privileges, libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        done(plan, Step::Landlock, restrict(plan.rules.as_raw_fd()));
        for capability in 0..=CAPABILITIES {
            // The kernel knows fewer, and refuses the rest.
            libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
        }
        let (header, nothing) = (CapabilityHeader { version: CAPABILITY_VERSION, process: 0 }, [0_u32; 6]);
        done(plan, Step::Capabilities, libc::syscall(libc::SYS_capset, &raw const header, nothing.as_ptr()));
    }
}

/// Forbids this thread, and all that it makes or executes, what the Landlock rule set handles.
///
/// # Safety
/// None but that of what the thread does later.
pub(super) unsafe fn restrict(rules: RawFd) -> c_long {
    // SAFETY: a system call without pointers.
    unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules, 0) }
}

/// The second process: it takes its descriptors and limits, and becomes the program.
unsafe fn become_program(plan: &Plan) -> ! {
    // SAFETY: system calls with pointers to values of the plan.
    unsafe {
        for (fd, number) in [(&plan.stdin, 0), (&plan.stdout, 1), (&plan.stderr, 2), (&plan.output, OUTPUT_FD)] {
            done(plan, Step::Descriptors, libc::dup2(fd.as_raw_fd(), number));
        }
        match &plan.socket {
            Some(socket) => done(plan, Step::Descriptors, libc::dup2(socket.as_raw_fd(), SOCKET_FD)),
            None => {
                libc::close(SOCKET_FD);
            }
        }
        close_on_execution(plan, OUTPUT_FD + 1, i32::MAX);
        for (resource, limit) in &plan.limits {
            done(plan, Step::Limits, libc::setrlimit(*resource, limit));
        }
        if seccompiler::apply_filter(&plan.filter).is_err() {
            fail(plan, Step::Filter);
        }
        execute(plan, Step::Execute, &plan.program, plan.arguments.as_ptr(), plan.environment.as_ptr())
    }
}

/// Lets the kernel close all descriptors of these numbers when this process executes something else, whatever the
/// drive had opened.
unsafe fn close_on_execution(plan: &Plan, from: i32, to: i32) {
    // SAFETY: a system call without pointers.
    done(plan, Step::Descriptors, unsafe { libc::syscall(libc::SYS_close_range, from, to, libc::CLOSE_RANGE_CLOEXEC) });
}

/// Executes a memory file.
unsafe fn execute(plan: &Plan, step: Step, file: &OwnedFd, arguments: *const *const libc::c_char, environment: *const *const libc::c_char) -> ! {
    // SAFETY: a set of signals is plain bytes, for which all zeros are valid: the empty set. The lists end with null.
    unsafe {
        // The drive blocked all for the birth.
        let none: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, null_mut());
        libc::syscall(libc::SYS_execveat, file.as_raw_fd(), c"".as_ptr(), arguments, environment, libc::AT_EMPTY_PATH);
    }
    fail(plan, step)
}
