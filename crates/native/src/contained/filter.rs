//! The system calls that a program may make. All others fail with EPERM, so that a program can say what it misses.
//!
//! It may compute, allocate, look at the clock, wait, end, and read and write what it has open. It cannot open, make a
//! process or thread, or signal another process.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch};

/// The program's process and thread in its name space: the first one is [`super::init`].
const ITSELF: u64 = 2;

/// Calls with any arguments.
const FREE: &[i64] = &[
    // What is open.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fstat,
    // Its root is empty. C libraries ask by this call about what is open.
    libc::SYS_newfstatat,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    // Memory, within its limit.
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Signals to itself.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_pause,
    libc::SYS_restart_syscall,
    // Time and chance.
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_time,
    libc::SYS_times,
    libc::SYS_getrandom,
    // Itself.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_uname,
    libc::SYS_getcpu,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    // What C libraries do at a start.
    libc::SYS_arch_prctl,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    // The end.
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// An argument of a call, by its number, that must have one of some values. Shorter than a register: the kernel looks
/// at the lower half of it.
type Needs = (i64, u8, SeccompCmpArgLen, &'static [u64]);

/// Calls that may be made with one of these arguments.
fn bound(program: u64) -> Vec<(i64, u8, SeccompCmpArgLen, Vec<u64>)> {
    use SeccompCmpArgLen::{Dword, Qword};
    let fixed: [Needs; 5] = [
        (libc::SYS_kill, 0, Dword, &[ITSELF]),
        (libc::SYS_tgkill, 0, Dword, &[ITSELF]),
        // It may read its limits, and not change them.
        (libc::SYS_prlimit64, 2, Qword, &[0]),
        (libc::SYS_fcntl, 1, Dword, &[libc::F_GETFL as u64, libc::F_SETFL as u64, libc::F_GETFD as u64, libc::F_SETFD as u64]),
        (libc::SYS_ioctl, 1, Dword, &[libc::TCGETS, libc::FIONREAD, libc::FIONBIO]),
    ];
    // Once: afterwards this file descriptor is closed.
    let execution = (libc::SYS_execveat, 0, Dword, vec![program]);
    fixed.into_iter().map(|(call, argument, length, values)| (call, argument, length, values.to_vec())).chain([execution]).collect()
}

/// Calls whose flags are bound: other flags reach rarely used parts of the kernel, in which faults were found (out of
/// band data of sockets: CVE-2025-38236).
fn masked() -> Result<Vec<(i64, Vec<SeccompRule>)>, Error> {
    use SeccompCmpArgLen::{Dword, Qword};
    let only = |argument, flags: libc::c_int| SeccompCondition::new(argument, Dword, SeccompCmpOp::MaskedEq(u64::from(!flags.cast_unsigned())), 0);
    // To the other end of a socket, and not to an address. Not `sendmsg`: it passes file descriptors.
    let to_no_address = SeccompCondition::new(4, Qword, SeccompCmpOp::Eq, 0)?;
    let send = SeccompRule::new(vec![only(3, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)?, to_no_address])?;
    let receive = SeccompRule::new(vec![only(3, libc::MSG_WAITALL | libc::MSG_PEEK | libc::MSG_DONTWAIT)?])?;
    // Waiting and waking. A program has one thread, and needs neither priorities nor queues that move.
    let operation = u64::from(!(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME).cast_unsigned());
    let futex = [libc::FUTEX_WAIT, libc::FUTEX_WAKE, libc::FUTEX_WAIT_BITSET, libc::FUTEX_WAKE_BITSET].into_iter().map(|which| {
        let which = u64::from(which.cast_unsigned());
        SeccompRule::new(vec![SeccompCondition::new(1, Dword, SeccompCmpOp::MaskedEq(operation), which)?])
    });
    Ok(vec![(libc::SYS_sendto, vec![send]), (libc::SYS_recvfrom, vec![receive]), (libc::SYS_futex, futex.collect::<Result<_, _>>()?)])
}

/// The filter of a program that is executed from that file descriptor.
pub(super) fn compile(program: u64) -> Result<BpfProgram, Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = FREE.iter().map(|call| (*call, Vec::new())).collect();
    for (call, argument, length, values) in bound(program) {
        let rule = |value| SeccompRule::new(vec![SeccompCondition::new(argument, length.clone(), SeccompCmpOp::Eq, value)?]);
        rules.insert(call, values.into_iter().map(rule).collect::<Result<_, _>>()?);
    }
    for (call, conditions) in masked()? {
        rules.insert(call, conditions);
    }
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    Ok(SeccompFilter::new(rules, refused, SeccompAction::Allow, TargetArch::x86_64)?.try_into()?)
}
