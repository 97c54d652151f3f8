//! Why a program was ended.

use std::fmt;

use bytes::Bytes;
use skytether_common::{Error, Kind};

use crate::limits::{CALL_DEPTH, MAX_ARGUMENTS};

/// What ended a program before it returned.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// It executed as many instructions as [`crate::Limits::fuel`] permits.
    FuelLimit {
        /// The limit.
        limit: u64,
    },
    /// [`crate::Limits::deadline`] passed.
    Deadline,
    /// It was told to end.
    Aborted,
    /// It executed `unreachable`: `__builtin_trap` and failed assertions are compiled to it.
    Unreachable,
    /// It accessed memory beyond the end.
    Memory,
    /// It gave an import a range that does not lie within its memory.
    Range {
        /// The import's name.
        import: &'static str,
        /// The first byte of the range.
        address: u64,
        /// The length of the range in bytes.
        length: u64,
    },
    /// It called through a pointer that points to no function of that type.
    Function,
    /// It divided by zero, or the result of a division or a conversion does not fit.
    Arithmetic,
    /// Its calls were nested deeper than [`crate::CALL_DEPTH`], or their values took more than 1 MiB.
    CallDepth,
    /// It begins with more memory than [`crate::Limits::memory_bytes`].
    MemoryLimit {
        /// The limit in bytes.
        limit: usize,
    },
    /// It emitted more than [`crate::Limits::output_bytes`].
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
    /// It called an import with an argument that makes no sense.
    Argument {
        /// The import's name.
        import: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// The host refused a call.
    Refused {
        /// The import's name.
        import: &'static str,
        /// The host's error.
        error: Error,
    },
    /// What it begins with does not fit: a segment of data or of a table lies beyond the end.
    Start(String),
    /// The machine, an import or the host failed. It is a defect.
    Internal(String),
}

impl Cause {
    /// The number of the POSIX signal that ends a native program for such a reason, or 0 if none fits.
    #[must_use]
    pub fn signal(&self) -> i32 {
        match self {
            Self::Unreachable => 4,
            Self::Internal(_) => 6,
            Self::Arithmetic => 8,
            Self::Aborted | Self::MemoryLimit { .. } => 9,
            Self::Memory | Self::Range { .. } | Self::Function | Self::CallDepth | Self::Start(_) => 11,
            Self::Deadline => 14,
            Self::FuelLimit { .. } => 24,
            Self::OutputLimit { .. } | Self::StdoutLimit { .. } => 25,
            Self::Arguments { .. } | Self::Argument { .. } | Self::Refused { .. } => 0,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::FuelLimit { .. } | Self::Deadline | Self::MemoryLimit { .. } | Self::OutputLimit { .. } | Self::StdoutLimit { .. } => Kind::Exhausted,
            Self::Aborted => Kind::Unavailable,
            Self::Refused { error, .. } => error.kind(),
            Self::Internal(_) => Kind::Internal,
            _ => Kind::Invalid,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FuelLimit { limit } => write!(f, "instruction limit: it did not end within {limit} instructions"),
            Self::Deadline => f.write_str("deadline: it did not end in time"),
            Self::Aborted => f.write_str("aborted"),
            Self::Unreachable => f.write_str("unreachable: it came to a place that its compiler or author took for impossible"),
            Self::Memory => f.write_str("memory access: beyond the end of its memory"),
            Self::Range { import, address, length } => {
                write!(f, "{import}: memory access: {length} bytes at {address:#x} do not lie within its memory")
            }
            Self::Function => f.write_str("call through a pointer: there is no function of that type"),
            Self::Arithmetic => f.write_str("arithmetic: a division by zero, or a result that does not fit"),
            Self::CallDepth => write!(f, "call depth: its calls were nested deeper than {CALL_DEPTH}, or had too many values"),
            Self::MemoryLimit { limit } => write!(f, "memory limit: it begins with more than {limit} bytes"),
            Self::OutputLimit { limit } => write!(f, "output limit: it emitted more than {limit} bytes"),
            Self::StdoutLimit { limit } => write!(f, "standard output limit: it printed more than {limit} bytes"),
            Self::Arguments { count } => write!(f, "arguments: {count} were passed, and at most {MAX_ARGUMENTS} can be"),
            Self::Argument { import, what } => write!(f, "{import}: {what}"),
            Self::Refused { import, error } => write!(f, "{import}: refused: {error}"),
            Self::Start(what) => write!(f, "it does not fit: {what}"),
            Self::Internal(what) => write!(f, "internal: {what}"),
        }
    }
}

/// How a program ended that did not return.
#[derive(Debug)]
pub struct Trap {
    /// Why.
    pub cause: Cause,
    /// How many instructions it had executed, imports' charges included.
    pub fuel: u64,
    /// What it had printed.
    pub stdout: Bytes,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebAssembly program: ended: {}", self.cause)
    }
}

impl std::error::Error for Trap {}

impl From<Trap> for Error {
    fn from(trap: Trap) -> Self {
        Error::new(trap.cause.kind(), trap.to_string())
    }
}
