//! Running a program, and what comes of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use skytether_ebpf::Host;
use wasmi::{ResourceLimiter, Store, TrapCode, TypedResumableCall};

use crate::imports;
use crate::limits::{Limits, MAX_ARGUMENTS};
use crate::program::{MAIN, MEMORY, Program};
use crate::state::State;
use crate::trap::{Cause, Trap};

/// What a program that returned has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What it returned.
    pub exit_code: i32,
    /// What it emitted.
    pub output: Bytes,
    /// What it printed.
    pub stdout: Bytes,
    /// How many instructions it executed, the charges of imports included.
    pub fuel: u64,
}

/// Runs a program once. It ends soon after `aborted` is set.
///
/// # Errors
/// A [`Trap`] that says what ended the program before it returned.
pub fn run(program: &Program, arguments: &[Bytes], host: &mut dyn Host, limits: &Limits, aborted: &AtomicBool) -> Result<Outcome, Trap> {
    let mut store = Store::new(program.engine(), State::new(arguments, host, limits, aborted));
    let ended = catch_unwind(AssertUnwindSafe(|| execute(program, &mut store, limits.memory_bytes)));
    let ended = ended.unwrap_or_else(|_| Err(Cause::Internal("the machine panicked".into())));
    let left = store.get_fuel().unwrap_or(0);
    let mut state = store.into_data();
    state.meter.take_back(left);
    let (fuel, stdout) = (state.meter.used(), state.stdout.take());
    match ended {
        Ok(exit_code) => Ok(Outcome { exit_code, output: state.output.take(), stdout, fuel }),
        Err(cause) => Err(Trap { cause, fuel, stdout }),
    }
}

fn execute(program: &Program, store: &mut Store<State<'_>>, memory_bytes: usize) -> Result<i32, Cause> {
    let count = store.data().arguments.len();
    if count > MAX_ARGUMENTS {
        return Err(Cause::Arguments { count });
    }
    if program.memory_bytes() > memory_bytes as u64 {
        return Err(Cause::MemoryLimit { limit: memory_bytes });
    }
    store.data().meter.check()?;
    store.limiter(limits_of);
    let internal = |error: wasmi::Error| Cause::Internal(error.to_string());
    let linker = imports::link(program.engine()).map_err(internal)?;
    let slice = store.data_mut().meter.slice();
    store.set_fuel(slice).map_err(internal)?;
    let instance = linker.instantiate_and_start(&mut *store, program.module()).map_err(|error| Cause::Start(error.to_string()))?;
    store.data_mut().memory = instance.get_memory(&*store, MEMORY);
    let main = instance.get_typed_func::<(), i32>(&*store, MAIN).map_err(internal)?;
    let mut call = main.call_resumable(&mut *store, ()).map_err(|error| cause_of(&error))?;
    loop {
        let stopped = match call {
            TypedResumableCall::Finished(code) => return Ok(code),
            TypedResumableCall::HostTrap(trap) => {
                let told = trap.host_error().to_string();
                return Err(store.data_mut().cause.take().unwrap_or(Cause::Internal(told)));
            }
            TypedResumableCall::OutOfFuel(stopped) => stopped,
        };
        let left = store.get_fuel().map_err(internal)?;
        let meter = &mut store.data_mut().meter;
        meter.take_back(left);
        let slice = meter.slice_of(stopped.required_fuel())?;
        store.set_fuel(slice).map_err(internal)?;
        call = stopped.resume(&mut *store).map_err(|error| cause_of(&error))?;
    }
}

fn limits_of<'a, 'b>(state: &'a mut State<'b>) -> &'a mut dyn ResourceLimiter {
    &mut state.limits
}

/// What the machine's error is for a caller.
fn cause_of(error: &wasmi::Error) -> Cause {
    let Some(code) = error.as_trap_code() else { return Cause::Internal(error.to_string()) };
    match code {
        TrapCode::UnreachableCodeReached => Cause::Unreachable,
        TrapCode::MemoryOutOfBounds => Cause::Memory,
        TrapCode::TableOutOfBounds | TrapCode::IndirectCallToNull | TrapCode::BadSignature => Cause::Function,
        TrapCode::IntegerDivisionByZero | TrapCode::IntegerOverflow | TrapCode::BadConversionToInteger => Cause::Arithmetic,
        TrapCode::StackOverflow => Cause::CallDepth,
        other => Cause::Internal(other.to_string()),
    }
}
