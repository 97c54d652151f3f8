//! What EXEC computes: operations over extents of a block device, asked for by a descriptor and answered by a result.
//!
//! | module | subject |
//! |---|---|
//! | [`codes`] | numbers of the format and its bounds |
//! | [`descriptor`], [`result`], [`capabilities`] | what is asked, answered and promised, as bytes; no I/O |
//! | [`chunks`] | elements that straddle chunks of a whole, put together again; no I/O |
//! | [`engine`] | [`Offload`], the implementation of [`skytether_volume::Exec`] |
//! | [`limits`] | what an EXEC may take, and how it is stopped |
//! | [`input`], [`output`], [`job`] | reading with reads ahead, writing, one EXEC on its thread |
//! | [`operation`] | what an operation is; the registry, to which others add theirs |
//! | [`operations`] | the operations of this crate |
//!
//! See also `docs/internals/formats/exec-descriptor.md`.
#![forbid(unsafe_code)]

pub mod capabilities;
pub mod chunks;
pub mod codes;
pub mod descriptor;
pub mod engine;
pub mod input;
pub mod job;
pub mod limits;
pub mod operation;
pub mod operations;
pub mod output;
pub mod result;
#[doc(hidden)]
pub mod wire;

pub use capabilities::Capabilities;
pub use descriptor::{Argument, Descriptor, Extent, Object, Value};
pub use engine::Offload;
pub use input::ObjectReader;
pub use limits::{Limits, Options, Stop};
pub use operation::{Arguments, ObjectWork, Operation, Plan, Registry, WholeWork};
pub use result::{ExecResult, Failure, Item};
