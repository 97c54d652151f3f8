//! Runs WebAssembly programs of strangers inside a drive.
//!
//! A program is a module that exports its `memory` and a function `main` without parameters, which returns an `i32`:
//! its exit code. It imports from the module `skytether` and from no other; `include/skytether_wasm.h` has its imports
//! for C. There is no WASI, so a module has no files, no clock and no environment. [`load`] checks and translates it,
//! [`run()`] executes it with a [`Host`](skytether_ebpf::Host) that has the caller's rights. The machine is `wasmi`, an
//! interpreter; this crate has the imports and the limits.
//!
//! | module | subject |
//! |---|---|
//! | `program` | what is refused; a program that is ready to run, by several threads at once |
//! | `imports` | what programs can call |
//! | `memory` | ranges of a program's memory |
//! | `state` | the meter, the outputs, the host |
//! | `limits` | what a run may use |
//! | `run`, `trap` | a run, its outcome, and why a program was ended |
//!
//! Invariants:
//! - Any bytes give a program or an error, and any program an outcome or a [`Trap`], never a panic.
//! - A program reaches its memory, and the host through imports. Nothing else.
//! - Nothing of a program runs before `main`: a module with a start function is refused.
//! - A run takes at most the memory of its [`Limits`], twice that of its outputs while they grow, 1 MiB of stack, and
//!   the last value that it read.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//!
//! use bytes::Bytes;
//! use skytether_common::Result;
//! use skytether_ebpf::Host;
//! use skytether_wasm::{Limits, load, run};
//!
//! struct Nothing;
//!
//! impl Host for Nothing {
//!     fn get(&mut self, _: &[u8]) -> Result<Option<Bytes>> { Ok(None) }
//!     fn next(&mut self, _: &[u8]) -> Result<Option<Bytes>> { Ok(None) }
//!     fn put(&mut self, _: &[u8], _: &[u8]) -> Result<()> { Ok(()) }
//! }
//!
//! // (module (memory (export "memory") 1) (func (export "main") (result i32) i32.const 7))
//! let module = b"\0asm\x01\0\0\0\x01\x05\x01\x60\0\x01\x7f\x03\x02\x01\0\x05\x03\x01\0\x01\
//!     \x07\x11\x02\x06memory\x02\0\x04main\0\0\x0a\x06\x01\x04\0\x41\x07\x0b";
//! let outcome = run(&load(module)?, &[], &mut Nothing, &Limits::default(), &AtomicBool::new(false))?;
//! assert_eq!(outcome.exit_code, 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also the table of crates in `ARCHITECTURE.md`, and crate `ebpf`.
#![forbid(unsafe_code)]

mod imports;
mod limits;
mod memory;
mod program;
mod run;
mod state;
mod trap;

pub use limits::{CALL_DEPTH, Limits, MAX_ARGUMENTS, MAX_MEMORY, MAX_MODULE};
pub use program::{Program, is_module, load};
pub use run::{Outcome, run};
pub use trap::{Cause, Trap};
