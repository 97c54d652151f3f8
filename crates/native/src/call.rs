//! What is run, and what comes of it.

use std::os::fd::OwnedFd;

use bytes::Bytes;

/// What is run.
#[derive(Debug)]
pub struct Call<'a> {
    /// The file.
    pub program: &'a [u8],
    /// Its first argument, by which programs call themselves in messages.
    pub name: &'a str,
    /// The arguments that follow.
    pub arguments: &'a [Bytes],
    /// All variables of its environment.
    pub environment: &'a [(&'a str, String)],
    /// What it finds as [`crate::SOCKET_FD`]. The caller has the other end.
    pub socket: Option<OwnedFd>,
}

/// What a program that returned has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What it returned: 0 to 255.
    pub exit_code: i32,
    /// What it wrote to [`crate::OUTPUT_FD`].
    pub output: Bytes,
    /// What it printed.
    pub stdout: Bytes,
    /// The first bytes of its standard error.
    pub stderr: Bytes,
}
