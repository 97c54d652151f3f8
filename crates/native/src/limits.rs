//! What a run may use.

use std::time::Instant;

/// How many arguments a program may get.
pub const MAX_ARGUMENTS: usize = 4096;

/// The file descriptor on which a program finds its socket.
pub const SOCKET_FD: i32 = 3;

/// The file descriptor to which a program writes its output.
pub const OUTPUT_FD: i32 = 4;

/// What a run may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How many bytes of addresses it may have: its own code, its variables, its stack and what it allocates.
    pub memory_bytes: u64,
    /// How many bytes of output it may write.
    pub output_bytes: usize,
    /// How many bytes it may print.
    pub stdout_bytes: usize,
    /// How many bytes of its standard error are kept. The rest is dropped.
    pub stderr_bytes: usize,
    /// When it must have ended.
    pub deadline: Option<Instant>,
}

impl Default for Limits {
    /// 256 MiB of memory, 16 MiB of output, 64 KiB printed, 4 KiB of standard error.
    fn default() -> Self {
        Self { memory_bytes: 256 << 20, output_bytes: 16 << 20, stdout_bytes: 64 << 10, stderr_bytes: 4 << 10, deadline: None }
    }
}
