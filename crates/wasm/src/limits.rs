//! What a run may use.

use std::time::Instant;

/// The longest module in bytes.
pub const MAX_MODULE: usize = 4 << 20;

/// The most bytes of memory that a module may begin with, and that a run may have.
pub const MAX_MEMORY: usize = 64 << 20;

/// How deep the calls of a program may be nested.
pub const CALL_DEPTH: usize = 1000;

/// How many arguments a program may get.
pub const MAX_ARGUMENTS: usize = 4096;

/// How many bytes the values of all calls under way may take.
pub(crate) const STACK_BYTES: usize = 1 << 20;

/// How many tables a module may have, and how many elements each of them.
pub(crate) const TABLES: (usize, usize) = (4, 10_000);

/// What a run may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How many instructions it may execute, the charges of imports included.
    pub fuel: u64,
    /// How many bytes of memory it may have. At most [`MAX_MEMORY`].
    pub memory_bytes: usize,
    /// How many bytes it may emit.
    pub output_bytes: usize,
    /// How many bytes it may print.
    pub stdout_bytes: usize,
    /// When it must have ended. Imports look at the clock, and the machine does after 500,000 instructions.
    pub deadline: Option<Instant>,
}

impl Default for Limits {
    /// 10⁹ instructions, 64 MiB of memory, 16 MiB of output, 64 KiB printed.
    fn default() -> Self {
        Self { fuel: 1_000_000_000, memory_bytes: MAX_MEMORY, output_bytes: 16 << 20, stdout_bytes: 64 << 10, deadline: None }
    }
}
