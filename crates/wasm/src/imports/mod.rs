//! What programs import from the module `skytether`: `include/skytether_wasm.h` describes it for programmers.
//!
//! Each import charges for its work and checks every range of memory. One that fails ends the program: it leaves the
//! cause in the state. Imports run between frames of the machine, which a panic cannot cross: [`call`] turns one into a
//! cause.

mod bulk;
mod simple;

use std::panic::{AssertUnwindSafe, catch_unwind};

use skytether_common::{Error, Result};
use wasmi::{Caller, Engine, ExternType, FuncType, Linker, ValType};

use crate::memory::Memory;
use crate::state::State;
use crate::trap::Cause;

/// The module that programs import from.
pub(crate) const MODULE: &str = "skytether";

/// What each call costs, in instructions.
const CALL: u64 = 20;
/// What each call of the host costs besides.
const HOST_CALL: u64 = 1000;
/// How many bytes an import copies for one instruction.
const BYTES_PER_INSTRUCTION: u64 = 8;

/// What copying `bytes` costs.
fn cost_of(bytes: u64) -> u64 {
    bytes / BYTES_PER_INSTRUCTION
}

/// Does the work of an import, on the program's memory and the state, with the machine's fuel in the meter.
fn call<R>(
    caller: &mut Caller<'_, State<'_>>,
    import: &'static str,
    work: impl FnOnce(&mut Memory<'_>, &mut State<'_>) -> Result<R, Cause>,
) -> Result<R, wasmi::Error> {
    let fuel = caller.get_fuel()?;
    caller.data_mut().meter.take_back(fuel);
    let result = match caller.data().memory {
        Some(memory) => {
            let (bytes, state) = memory.data_and_store_mut(&mut *caller);
            let run = AssertUnwindSafe(|| state.meter.work(CALL).and_then(|()| work(&mut Memory::new(bytes, import), state)));
            catch_unwind(run).unwrap_or_else(|_| Err(Cause::Internal(format!("{import} or the host panicked"))))
        }
        None => Err(Cause::Internal(format!("{import} was called before the program had memory"))),
    };
    let slice = caller.data_mut().meter.slice();
    caller.set_fuel(slice)?;
    result.map_err(|cause| {
        let told = wasmi::Error::new(cause.to_string());
        caller.data_mut().cause = Some(cause);
        told
    })
}

macro_rules! imports {
    (@type u32) => { ValType::I32 };
    (@type i32) => { ValType::I32 };
    (@type u64) => { ValType::I64 };
    (@type i64) => { ValType::I64 };
    ($($name:ident ($($parameter:ident),*) $(-> $result:ident)? = $function:path;)*) => {
        /// The type of the import with that name.
        fn type_of(name: &str) -> Option<FuncType> {
            match name {
                $(stringify!($name) => Some(FuncType::new([$(imports!(@type $parameter)),*], [$(imports!(@type $result))?])),)*
                _ => None,
            }
        }

        /// The imports of a run.
        pub(crate) fn link<'a>(engine: &Engine) -> Result<Linker<State<'a>>, wasmi::Error> {
            let mut linker = Linker::new(engine);
            $(linker.func_wrap(MODULE, stringify!($name), $function)?;)*
            Ok(linker)
        }

        /// The names of all imports.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

imports! {
    arg_count() -> u32 = simple::argument_count;
    arg(u32, u32, u32) -> i64 = simple::argument;
    get(u32, u32, u32, u32) -> i64 = simple::get;
    read(u64, u32, u32) -> i64 = simple::read;
    next(u32, u32, u32, u32) -> i64 = simple::next;
    put(u32, u32, u32, u32) = simple::put;
    emit(u32, u32) = simple::emit;
    print(u32, u32) = simple::print;
    remaining() -> u64 = simple::remaining;
    select(u32, u32, u64, u32, u32) -> u64 = bulk::select;
    count(u32, u32, u64) -> u64 = bulk::count;
    aggregate(u32, u32, u32) -> u64 = bulk::aggregate;
    sum(u32, u32) -> u64 = bulk::sum;
    minmax(u32, u32, u32) -> u32 = bulk::minmax;
    emit_selected(u32, u32) -> u64 = bulk::emit_selected;
    count_bits(u32, u64) -> u64 = bulk::count_bits;
}

/// Refuses an import that a drive does not have, by its name.
pub(crate) fn check(module: &str, name: &str, wanted: &ExternType) -> Result<()> {
    let called = format!("{}.{}", shown(module), shown(name));
    if module.starts_with("wasi") {
        return Err(Error::unsupported(format!("it imports {called}, and a drive has no WASI: no files, clocks or environment; use {MODULE}'s imports")));
    }
    let known = if module == MODULE { type_of(name) } else { None };
    let Some(known) = known else {
        return Err(Error::unsupported(format!("it imports {called}, which a drive does not have; it has {MODULE}.{}", NAMES.join(", "))));
    };
    match wanted {
        ExternType::Func(wanted) if *wanted == known => Ok(()),
        ExternType::Func(wanted) => {
            let (known, wanted) = (signature(&known), signature(wanted));
            Err(Error::invalid(format!("it imports {called} as {wanted}, and it is {known}; include skytether_wasm.h")))
        }
        _ => Err(Error::invalid(format!("it imports {called}, which is a function, as something else"))),
    }
}

/// A name of a stranger, short enough for an error.
fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}

fn signature(of: &FuncType) -> String {
    let list = |types: &[ValType]| types.iter().map(|one| format!("{one:?}").to_lowercase()).collect::<Vec<_>>().join(", ");
    format!("({}) -> ({})", list(of.params()), list(of.results()))
}
