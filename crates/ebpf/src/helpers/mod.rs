//! The helpers that programs call: `include/skytether_ebpf.h` describes them for programmers.
//!
//! Each helper charges the instruction meter for its work and checks every range of addresses. A helper that fails ends
//! the program: it leaves the cause in the context. Helpers run between frames of compiled code, which a panic cannot
//! cross: [`guard`] turns one into a cause.

mod bulk;
mod simple;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use skytether_common::{Error, Result};
use solana_sbpf::program::{BuiltinFunctionDefinition, BuiltinProgram};

use crate::context::Context;
use crate::trap::Cause;

/// What each call costs, in instructions.
const CALL: u64 = 20;
/// What each call of the host costs besides.
const HOST_CALL: u64 = 1000;
/// How many bytes a helper copies, compares or searches for one instruction.
const BYTES_PER_INSTRUCTION: u64 = 8;

/// What copying, comparing or searching `bytes` costs.
fn cost_of(bytes: u64) -> u64 {
    bytes / BYTES_PER_INSTRUCTION
}

/// A helper failed, and [`Context::cause`] says why.
#[derive(Debug)]
struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a helper failed")
    }
}

impl std::error::Error for Stopped {}

/// A helper: from five registers to one.
type Helper = fn(&mut Context, [u64; 5]) -> Result<u64, Cause>;

fn guard(context: &mut Context, arguments: [u64; 5], helper: Helper) -> Result<u64, Stopped> {
    let run = AssertUnwindSafe(|| {
        context.meter.work(CALL)?;
        helper(context, arguments)
    });
    let result = catch_unwind(run).unwrap_or_else(|_| Err(Cause::Internal("a helper or the host panicked".into())));
    result.map_err(|cause| {
        context.cause = Some(cause);
        Stopped
    })
}

macro_rules! helpers {
    ($($number:literal $name:literal $type:ident $function:path;)*) => {
        $(
            struct $type;

            impl BuiltinFunctionDefinition<Context> for $type {
                type Error = Stopped;

                fn rust(context: &mut Context, a: u64, b: u64, c: u64, d: u64, e: u64) -> Result<u64, Stopped> {
                    guard(context, [a, b, c, d, e], $function)
                }
            }
        )*

        /// The name of the helper with that number.
        pub(crate) fn name(number: i32) -> Option<&'static str> {
            match number {
                $($number => Some($name),)*
                _ => None,
            }
        }

        /// The number of the helper with that name.
        pub(crate) fn number(name: &[u8]) -> Option<i32> {
            let name = name.strip_prefix(b"st_")?;
            $(if name == $name.as_bytes() {
                return Some($number);
            })*
            None
        }

        /// Tells the machine about all helpers.
        pub(crate) fn register(loader: &mut BuiltinProgram<Context>) -> Result<()> {
            $(
                let registered = loader.register_definition::<$type>($name);
                registered.map_err(|error| Error::internal(format!("eBPF helper {}: {error}", $name)))?;
            )*
            Ok(())
        }
    };
}

helpers! {
    1 "get" Get simple::get;
    2 "next" Next simple::next;
    3 "put" Put simple::put;
    4 "emit" Emit simple::emit;
    5 "print" Print simple::print;
    6 "arg_count" ArgumentCount simple::argument_count;
    7 "arg" Argument simple::argument;
    8 "alloc" Allocate simple::allocate;
    9 "release" Release simple::release;
    10 "remaining" Remaining simple::remaining;
    11 "compare" Compare simple::compare;
    12 "find" Find simple::find;
    13 "copy" Copy simple::copy;
    14 "fill" Fill simple::fill;
    15 "float" Float simple::float;
    20 "select" Select bulk::select;
    21 "count" Count bulk::count;
    22 "aggregate" AggregateField bulk::aggregate;
    23 "sum" Sum bulk::sum;
    24 "minmax" MinMax bulk::minmax;
    25 "emit_selected" EmitSelected bulk::emit_selected;
    26 "count_bits" CountBits bulk::count_bits;
}
