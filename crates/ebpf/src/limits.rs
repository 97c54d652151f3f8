//! What a program may reach, and what a run may use.

use std::time::Instant;

use bytes::Bytes;
use skytether_common::Result;

/// How deep the calls of a program may be nested.
pub const CALL_DEPTH: usize = 64;

/// How many arguments a program may get.
pub const MAX_ARGUMENTS: usize = 4096;

/// What a program may reach. It has the rights of the caller, and may refuse every call.
pub trait Host: Send {
    /// The value of `key`, or `None` if there is none.
    ///
    /// # Errors
    /// Any error ends the program.
    fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>>;

    /// The first key after `after`, or `None` if there is none.
    ///
    /// # Errors
    /// Any error ends the program.
    fn next(&mut self, after: &[u8]) -> Result<Option<Bytes>>;

    /// Stores `value` under `key`.
    ///
    /// # Errors
    /// Any error ends the program.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
}

/// What a run may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How many instructions it may execute, the charges of helpers included.
    pub instructions: u64,
    /// How many bytes it may emit.
    pub output_bytes: usize,
    /// How many bytes it may print.
    pub stdout_bytes: usize,
    /// How many bytes of values it may hold mapped at once.
    pub mapped_bytes: usize,
    /// How many values and allocations it may hold at once. At most 65,536.
    pub mapped_values: usize,
    /// How many bytes its variables and allocations may take. The stack, of 256 KiB, is not among them.
    pub scratch_bytes: usize,
    /// When it must have ended.
    ///
    /// Helpers and the interpreter look at the clock. Compiled code does not: between two helper calls it may execute
    /// one instruction for each nanosecond that is left. So it may end some time before the deadline if its
    /// instructions are quick, and after it if they wait for memory.
    pub deadline: Option<Instant>,
}

impl Default for Limits {
    /// 10⁹ instructions, 16 MiB of output and of scratch memory, 64 KiB printed, 64 MiB mapped in 1,024 values.
    fn default() -> Self {
        Self {
            instructions: 1_000_000_000,
            output_bytes: 16 << 20,
            stdout_bytes: 64 << 10,
            mapped_bytes: 64 << 20,
            mapped_values: 1024,
            scratch_bytes: 16 << 20,
            deadline: None,
        }
    }
}
