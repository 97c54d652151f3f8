//! What all tests need: a host in memory, programs from assembled text, runs in both engines.

use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use skytether_ebpf::{Engine, Limits, Outcome, Program, Trap, run_on};
use solana_sbpf::assembler::assemble;
use solana_sbpf::memory_region::MemoryMapping;
use solana_sbpf::program::{BuiltinProgram, SBPFVersion};
use solana_sbpf::vm::{Config, ContextObject};

pub(crate) use crate::values::Values;

pub(crate) const BOTH: [Engine; 2] = [Engine::Interpreted, Engine::Compiled];

/// The assembler wants to know what its programs run with, and those that it makes here never do.
struct NeverRun;

impl ContextObject for NeverRun {
    fn consume(&mut self, _: u64) {}

    fn get_remaining(&self) -> u64 {
        0
    }

    fn active_mapping_ptr(&mut self) -> NonNull<MemoryMapping> {
        NonNull::dangling()
    }
}

/// The instructions of a text in the assembler's language; helpers are called as `syscall NUMBER`.
pub(crate) fn instructions(text: &str) -> Vec<u8> {
    let config = Config { enabled_sbpf_versions: SBPFVersion::V3..=SBPFVersion::V3, ..Config::default() };
    let executable = assemble::<NeverRun>(text, Arc::new(BuiltinProgram::new_loader(config))).unwrap();
    executable.get_text_bytes().1.to_vec()
}

pub(crate) fn program(text: &str) -> Program {
    Program::from_instructions(&instructions(text)).unwrap()
}

pub(crate) fn small() -> Limits {
    Limits { instructions: 1_000_000, output_bytes: 1000, stdout_bytes: 100, mapped_bytes: 10_000, mapped_values: 4, scratch_bytes: 10_000, deadline: None }
}

/// Runs a program in both engines, which must agree, and gives the result of one with the host afterwards.
pub(crate) fn both(program: &Program, arguments: &[&[u8]], host: &Values, limits: &Limits) -> (Result<Outcome, Trap>, Values) {
    let arguments: Vec<Bytes> = arguments.iter().map(|argument| Bytes::copy_from_slice(argument)).collect();
    let [interpreted, compiled] = BOTH.map(|engine| {
        let mut host = host.clone();
        (run_on(engine, program, &arguments, &mut host, limits), host)
    });
    match (&interpreted.0, &compiled.0) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (Err(one), Err(other)) => {
            assert_eq!(one.cause.to_string(), other.cause.to_string());
            assert_eq!((one.instruction, one.instructions, &one.stdout), (other.instruction, other.instructions, &other.stdout), "{one}");
        }
        (one, other) => panic!("interpreted: {one:?}, compiled: {other:?}"),
    }
    assert_eq!(interpreted.1.0, compiled.1.0);
    compiled
}

/// The cause for which a program ends in both engines.
pub(crate) fn trap(text: &str, limits: &Limits) -> Trap {
    let host = Values::with(&[("key", b"value"), ("large", &[7; 6000]), ("secret", b"x")]);
    both(&program(text), &[b"key", b"large", b"secret", b"panic"], &host, limits).0.unwrap_err()
}
