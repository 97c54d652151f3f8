//! Why a program was ended.

use std::fmt;

use bytes::Bytes;
use skytether_common::{Error, Kind};

use crate::limits::{CALL_DEPTH, MAX_ARGUMENTS};

/// Which way a program accessed memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It read.
    Load,
    /// It wrote.
    Store,
}

/// What ended a program before it returned.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// It executed as many instructions as [`crate::Limits::instructions`] permits.
    InstructionLimit {
        /// The limit.
        limit: u64,
    },
    /// [`crate::Limits::deadline`] passed.
    Deadline,
    /// It accessed memory that it does not have, or wrote where it may only read.
    Memory {
        /// Whether it read or wrote.
        access: Access,
        /// The first byte of the access.
        address: u64,
        /// The length of the access in bytes.
        length: u64,
    },
    /// Its calls were nested deeper than [`crate::CALL_DEPTH`].
    CallDepth,
    /// It divided by zero.
    DivisionByZero,
    /// It ran past its last instruction.
    PastEnd,
    /// It met an instruction that the machine cannot execute.
    Instruction,
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
    /// The values that it held mapped at once are larger than [`crate::Limits::mapped_bytes`].
    MappedBytes {
        /// The limit in bytes.
        limit: usize,
    },
    /// It held more values and allocations at once than [`crate::Limits::mapped_values`].
    MappedValues {
        /// The limit.
        limit: usize,
    },
    /// Its variables and allocations are larger than [`crate::Limits::scratch_bytes`].
    ScratchLimit {
        /// The limit in bytes.
        limit: usize,
    },
    /// The caller passed more arguments than [`crate::MAX_ARGUMENTS`].
    Arguments {
        /// How many the caller passed.
        count: usize,
    },
    /// It called a helper with an argument that makes no sense.
    Argument {
        /// The helper's name.
        helper: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// The host refused a call.
    Refused {
        /// The helper's name.
        helper: &'static str,
        /// The host's error.
        error: Error,
    },
    /// The machine or a helper failed. It is a defect of this crate or of the host.
    Internal(String),
}

impl Cause {
    /// The number of the POSIX signal that ends a native program for such a reason, or 0 if none fits.
    #[must_use]
    pub fn signal(&self) -> i32 {
        match self {
            Self::Instruction | Self::PastEnd => 4,
            Self::Internal(_) => 6,
            Self::DivisionByZero => 8,
            Self::Memory { .. } | Self::CallDepth => 11,
            Self::Deadline => 14,
            Self::InstructionLimit { .. } => 24,
            Self::OutputLimit { .. } | Self::StdoutLimit { .. } => 25,
            Self::MappedBytes { .. } | Self::MappedValues { .. } | Self::ScratchLimit { .. } => 9,
            Self::Arguments { .. } | Self::Argument { .. } | Self::Refused { .. } => 0,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::InstructionLimit { .. }
            | Self::Deadline
            | Self::OutputLimit { .. }
            | Self::StdoutLimit { .. }
            | Self::MappedBytes { .. }
            | Self::MappedValues { .. }
            | Self::ScratchLimit { .. } => Kind::Exhausted,
            Self::Refused { error, .. } => error.kind(),
            Self::Internal(_) => Kind::Internal,
            _ => Kind::Invalid,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InstructionLimit { limit } => write!(f, "instruction limit: it did not end within {limit} instructions"),
            Self::Deadline => f.write_str("deadline: it did not end in time"),
            Self::Memory { access: Access::Load, address, length } => {
                write!(f, "memory access: it read {length} bytes at {address:#x}, which it does not have")
            }
            Self::Memory { access: Access::Store, address, length } => {
                write!(f, "memory access: it wrote {length} bytes at {address:#x}, where it may not write")
            }
            Self::CallDepth => write!(f, "call depth: its calls were nested deeper than {CALL_DEPTH}"),
            Self::DivisionByZero => f.write_str("division by zero"),
            Self::PastEnd => f.write_str("end of program: it ran past its last instruction; let each function return"),
            Self::Instruction => f.write_str("illegal instruction"),
            Self::OutputLimit { limit } => write!(f, "output limit: it emitted more than {limit} bytes"),
            Self::StdoutLimit { limit } => write!(f, "standard output limit: it printed more than {limit} bytes"),
            Self::MappedBytes { limit } => write!(f, "mapped bytes: it held values of more than {limit} bytes at once; release values after use"),
            Self::MappedValues { limit } => write!(f, "mapped values: it held more than {limit} values at once; release values after use"),
            Self::ScratchLimit { limit } => write!(f, "scratch limit: its variables and allocations take more than {limit} bytes"),
            Self::Arguments { count } => write!(f, "arguments: {count} were passed, and at most {MAX_ARGUMENTS} can be"),
            Self::Argument { helper, what } => write!(f, "{helper}: {what}"),
            Self::Refused { helper, error } => write!(f, "{helper}: refused: {error}"),
            Self::Internal(what) => write!(f, "internal: {what}"),
        }
    }
}

/// How a program ended that did not return.
#[derive(Debug)]
pub struct Trap {
    /// Why.
    pub cause: Cause,
    /// The instruction of the loaded `.text` at which it ended, counted in units of 8 bytes from 0, if it had started.
    pub instruction: Option<u64>,
    /// How many instructions it had executed, helpers' charges included.
    pub instructions: u64,
    /// What it had printed.
    pub stdout: Bytes,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instruction {
            Some(at) => write!(f, "eBPF program: ended at instruction {at}: {}", self.cause),
            None => write!(f, "eBPF program: did not start: {}", self.cause),
        }
    }
}

impl std::error::Error for Trap {}

impl From<Trap> for Error {
    fn from(trap: Trap) -> Self {
        Error::new(trap.cause.kind(), trap.to_string())
    }
}
