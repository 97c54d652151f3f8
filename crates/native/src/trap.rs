//! Why a program was ended.

use std::{fmt, io};

use bytes::Bytes;
use skytether_common::{Error, Kind};

use crate::limits::MAX_ARGUMENTS;

/// What ended a program before it returned.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// A signal that it caused, or sent itself.
    Signal {
        /// The signal's number.
        signal: i32,
        /// [`crate::Limits::memory_bytes`]: many a program crashes where it gets no more memory.
        memory_bytes: u64,
    },
    /// [`crate::Limits::deadline`] passed.
    Deadline,
    /// The caller of [`crate::run`] aborted it.
    Aborted,
    /// It wrote more output than [`crate::Limits::output_bytes`].
    OutputLimit {
        /// The limit in bytes.
        limit: usize,
    },
    /// It printed more than [`crate::Limits::stdout_bytes`].
    StdoutLimit {
        /// The limit in bytes.
        limit: usize,
    },
    /// The caller passed more arguments than [`crate::MAX_ARGUMENTS`].
    Arguments {
        /// How many the caller passed.
        count: usize,
    },
    /// An argument, or a variable of the environment, has a byte of 0.
    Zero,
    /// [`crate::check`] refuses it.
    Program(Error),
    /// The kernel does not execute it.
    Unexecutable(io::Error),
    /// The kernel refused a step of its containment. So it did not run.
    Uncontained {
        /// The step.
        step: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
    /// The run failed. It is a defect of this crate.
    Internal(&'static str),
}

impl Cause {
    /// The number of the POSIX signal that ended the program, or that ends one for such a reason; 0 if none fits.
    #[must_use]
    pub fn signal(&self) -> i32 {
        match self {
            Self::Signal { signal, .. } => *signal,
            Self::Aborted => 9,
            Self::Deadline => 14,
            Self::OutputLimit { .. } | Self::StdoutLimit { .. } => 25,
            Self::Arguments { .. } | Self::Zero | Self::Program(_) | Self::Unexecutable(_) | Self::Uncontained { .. } | Self::Internal(_) => 0,
        }
    }

    /// Whether the program ran. If not, the request for it is refused.
    #[must_use]
    pub fn has_run(&self) -> bool {
        self.signal() != 0
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Deadline | Self::OutputLimit { .. } | Self::StdoutLimit { .. } => Kind::Exhausted,
            Self::Program(error) => error.kind(),
            Self::Uncontained { .. } => Kind::Unavailable,
            Self::Internal(_) => Kind::Internal,
            Self::Signal { .. } | Self::Aborted | Self::Arguments { .. } | Self::Zero | Self::Unexecutable(_) => Kind::Invalid,
        }
    }
}

/// The name of a signal that programs commonly end by.
fn name(signal: i32) -> &'static str {
    match signal {
        4 => "illegal instruction",
        5 => "trap",
        6 => "it aborted itself",
        7 => "bus error",
        8 => "arithmetic error",
        9 => "killed",
        11 => "segmentation fault",
        13 => "it wrote to a closed socket",
        14 => "alarm",
        15 => "terminated",
        24 => "processor time",
        _ => "no common one",
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal { signal, memory_bytes } => {
                write!(f, "signal {signal} ({}); it could have {} MiB of memory", name(*signal), memory_bytes >> 20)
            }
            Self::Deadline => f.write_str("deadline: it did not end in time"),
            Self::Aborted => f.write_str("aborted"),
            Self::OutputLimit { limit } => write!(f, "output limit: it wrote more than {limit} bytes of output"),
            Self::StdoutLimit { limit } => write!(f, "standard output limit: it printed more than {limit} bytes"),
            Self::Arguments { count } => write!(f, "arguments: {count} were passed, and at most {MAX_ARGUMENTS} can be"),
            Self::Zero => f.write_str("arguments: one has a byte of 0, which ends arguments of native programs"),
            Self::Program(error) => write!(f, "{error}"),
            Self::Unexecutable(error) => write!(f, "the kernel does not execute it: {error}"),
            Self::Uncontained { step, error } => {
                write!(f, "this machine cannot contain programs: the kernel refuses {step}: {error}; allow that, or turn native programs off")
            }
            Self::Internal(what) => write!(f, "internal: {what}"),
        }
    }
}

/// How a program ended that did not return.
#[derive(Debug)]
pub struct Trap {
    /// Why.
    pub cause: Cause,
    /// What it had printed.
    pub stdout: Bytes,
    /// The first bytes of its standard error.
    pub stderr: Bytes,
}

impl From<Cause> for Trap {
    /// For a program that did not run.
    fn from(cause: Cause) -> Self {
        Self { cause, stdout: Bytes::new(), stderr: Bytes::new() }
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            // It names its subject.
            Cause::Program(error) => write!(f, "{error}"),
            cause if cause.has_run() => write!(f, "native program: ended: {cause}"),
            cause => write!(f, "native program: did not run: {cause}"),
        }
    }
}

impl std::error::Error for Trap {}

impl From<Trap> for Error {
    fn from(trap: Trap) -> Self {
        Error::new(trap.cause.kind(), trap.to_string())
    }
}
