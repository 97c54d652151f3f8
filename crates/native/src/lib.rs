//! Runs native programs of strangers inside a drive, contained by the kernel.
//!
//! A program is a statically linked ELF file of this machine. It runs in name spaces of its own (users, processes,
//! files, network, IPC, host name, control groups), over an empty file system, without capabilities, under Landlock,
//! seccomp and resource limits. It reads its arguments, and writes to pipes that [`run`] reads. A socket that the
//! caller hands over is its only way to anything else.
//!
//! | module | subject |
//! |---|---|
//! | `elf` | which files are programs that this machine can run |
//! | `limits`, `trap` | what a run may use, and why a program was ended |
//! | `call` | what is run, and its outcome |
//! | `run` | a run on any machine |
//! | `contained` | a run on a machine that can contain it |
//! | `contained::filter` | the system calls that a program may make |
//! | `contained::init` | the first process of the name spaces, a program of 60 bytes |
//! | `contained::step` | what is done to contain a program, in order |
//! | `contained::plan` | all that the new processes need, made before they exist |
//! | `contained::child` | what the new processes do until they execute something else |
//! | `contained::start` | makes the processes; the drive's part of that |
//! | `contained::watch` | watches a run until its end |
//!
//! Invariants:
//! - A program runs contained or not at all. If the kernel refuses a step, the error names the step.
//! - Between its birth and its execution a new process makes system calls that its plan lists, and nothing else: no
//!   memory is allocated and no lock is taken, because threads of the drive may have held locks when it was born.
//! - When [`run`] returns, all processes of the run have ended.
//! - A run takes its program's memory (the limit), the outputs (their limits), and two processes.
//!
//! Linux on x86-64 only. Elsewhere, [`check`] refuses all programs.
//!
//! See also `docs/internals/kinetic.md`.

mod call;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod contained;
mod elf;
mod limits;
mod run;
mod trap;

pub use call::{Call, Outcome};
pub use elf::check;
pub use limits::{Limits, MAX_ARGUMENTS, OUTPUT_FD, SOCKET_FD};
pub use run::{probe, run};
pub use trap::{Cause, Trap};
