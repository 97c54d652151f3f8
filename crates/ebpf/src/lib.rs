//! Runs eBPF programs of strangers inside a drive.
//!
//! A program is an object file that clang wrote (`clang-14 -target bpf -mcpu=v3 -O2 -c`, with
//! `include/skytether_ebpf.h`). [`load`] checks and compiles it, [`run()`] executes it with a [`Host`] that has the
//! caller's rights. The machine is `solana-sbpf`; this crate has the loader, the helpers and the limits.
//!
//! | module | subject |
//! |---|---|
//! | `loader` | sections, symbols and relocations of object files |
//! | `code` | what is refused, and where clang and the machine differ |
//! | `program` | a program that is ready to run, by several threads at once |
//! | `memory` | the regions of one run; the unsafe code about addresses |
//! | `context` | the meter, the outputs, the pointer to the host |
//! | `helpers` | what programs can call |
//! | `columns` | loops over one field of many records |
//! | [`records`] | what bulk helpers do with records; the WebAssembly machine has the same |
//! | `sink` | what a program prints and emits |
//! | `limits` | what a program may reach, and what a run may use |
//! | `run`, `trap` | a run, its outcome, and why a program was ended |
//!
//! Invariants:
//! - Any bytes give a program or an error, and any program an outcome or a [`Trap`], never a panic.
//! - A program reaches its own regions of memory, and the host through helpers. Nothing else.
//! - A run takes at most the memory of its [`Limits`], twice that of its outputs while they grow, 400 KiB, and 48 bytes
//!   for each value that it may map.
//! - Values are mapped where they are. A program reads them without a copy, and cannot write to them.
//!
//! ```
//! use bytes::Bytes;
//! use skytether_common::Result;
//! use skytether_ebpf::{Host, Limits, Program, run};
//!
//! struct Nothing;
//!
//! impl Host for Nothing {
//!     fn get(&mut self, _: &[u8]) -> Result<Option<Bytes>> { Ok(None) }
//!     fn next(&mut self, _: &[u8]) -> Result<Option<Bytes>> { Ok(None) }
//!     fn put(&mut self, _: &[u8], _: &[u8]) -> Result<()> { Ok(()) }
//! }
//!
//! // mov r0, 7; exit
//! let program = Program::from_instructions(&[0xb7, 0, 0, 0, 7, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0])?;
//! let outcome = run(&program, &[], &mut Nothing, &Limits::default())?;
//! assert_eq!(outcome.exit_code, 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also the table of crates in `ARCHITECTURE.md`.

mod code;
mod columns;
mod context;
mod helpers;
mod limits;
mod loader;
mod memory;
mod program;
pub mod records;
mod run;
mod sink;
mod trap;

pub use limits::{CALL_DEPTH, Host, Limits, MAX_ARGUMENTS};
pub use loader::{load, load_entry};
pub use program::Program;
pub use run::{Engine, Outcome, run, run_on};
pub use sink::Sink;
pub use trap::{Access, Cause, Trap};
