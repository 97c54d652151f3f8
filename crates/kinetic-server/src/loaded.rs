//! Programs that are loaded, whichever machine runs them.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use skytether_common::Error;
use skytether_ebpf::{Host, Limits};
use skytether_kinetic_protocol::program::ProgramResult;

/// A program that was checked, and translated or compiled.
#[derive(Debug)]
pub(crate) enum Loaded {
    Ebpf(skytether_ebpf::Program),
    Wasm(skytether_wasm::Program),
}

impl Loaded {
    /// The program of these bytes: a module of WebAssembly by its first bytes, an eBPF object otherwise.
    pub(crate) fn load(bytes: &[u8]) -> Result<Self, Error> {
        if skytether_wasm::is_module(bytes) { skytether_wasm::load(bytes).map(Self::Wasm) } else { skytether_ebpf::load(bytes).map(Self::Ebpf) }
    }

    /// Runs it within the limits. What it gave as its output is there only if it returned.
    pub(crate) fn run(&self, arguments: &[Bytes], host: &mut dyn Host, limits: &Limits, aborted: &AtomicBool) -> (ProgramResult, Option<Bytes>) {
        let (exit_code, output, stdout) = match self {
            Self::Ebpf(program) => match skytether_ebpf::run(program, arguments, host, limits) {
                Ok(ended) => (ended.exit_code, ended.output, ended.stdout),
                Err(trap) => return (stopped(trap.cause.signal(), trap.to_string(), trap.stdout, aborted), None),
            },
            Self::Wasm(program) => {
                let limits = skytether_wasm::Limits { output_bytes: limits.output_bytes, deadline: limits.deadline, ..skytether_wasm::Limits::default() };
                match skytether_wasm::run(program, arguments, host, &limits, aborted) {
                    Ok(ended) => (ended.exit_code, ended.output, ended.stdout),
                    Err(trap) => return (stopped(trap.cause.signal(), trap.to_string(), trap.stdout, aborted), None),
                }
            }
        };
        (ProgramResult { exit_code, signal: 0, message: "finished".to_owned(), output: stdout }, Some(output))
    }
}

/// How a program that was stopped ended. It is no error of the request.
fn stopped(signal: i32, message: String, stdout: Bytes, aborted: &AtomicBool) -> ProgramResult {
    /// The signal of a program that was ended from outside (SIGKILL).
    const KILLED: i32 = 9;
    let (signal, message) = if aborted.load(Ordering::Relaxed) { (KILLED, "aborted".to_owned()) } else { (signal, message) };
    ProgramResult { exit_code: -1, signal, message, output: stdout }
}
