//! Running a program, and what comes of it.

use std::time::Instant;

use bytes::Bytes;
use solana_sbpf::error::{EbpfError, StableResult};
use solana_sbpf::interpreter::Interpreter;
use solana_sbpf::program::SBPFVersion;
use solana_sbpf::vm::{CallFrame, EbpfVm, ExecutionMode};

use crate::context::Context;
use crate::limits::{CALL_DEPTH, Host, Limits};
use crate::memory::{Memory, violation};
use crate::program::Program;
use crate::trap::{Cause, Trap};

/// How many instructions the interpreter executes between two looks at the clock.
const STEPS_PER_LOOK: u32 = 20_000;

/// How a program is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Compiled where the processor permits, interpreted elsewhere.
    Compiled,
    /// Interpreted.
    Interpreted,
}

/// What a program that returned has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What it returned.
    pub exit_code: i32,
    /// What it emitted.
    pub output: Bytes,
    /// What it printed.
    pub stdout: Bytes,
    /// How many instructions it executed, the charges of helpers included.
    pub instructions: u64,
}

/// Runs a program once. It finds `arguments` by the helper `st_arg`, and their number as the parameter of its entry.
///
/// # Errors
/// A [`Trap`] that says what ended the program before it returned.
pub fn run(program: &Program, arguments: &[Bytes], host: &mut dyn Host, limits: &Limits) -> Result<Outcome, Trap> {
    run_on(Engine::Compiled, program, arguments, host, limits)
}

/// [`run`], with the choice of how.
///
/// # Errors
/// As [`run`].
pub fn run_on(engine: Engine, program: &Program, arguments: &[Bytes], host: &mut dyn Host, limits: &Limits) -> Result<Outcome, Trap> {
    let executable = program.executable();
    let memory = match Memory::new(&program.image(), arguments, executable.get_config(), limits) {
        Ok(memory) => memory,
        Err(cause) => return Err(Trap { cause, instruction: None, instructions: 0, stdout: Bytes::new() }),
    };
    let compiled = engine == Engine::Compiled && program.is_compiled();
    // SAFETY: `host` is borrowed until the end of this function, and `context` does not outlive it.
    let mut context = unsafe { Context::new(memory, host, limits, compiled) };
    if let Err(cause) = context.meter.check() {
        return Err(Trap { cause, instruction: None, instructions: 0, stdout: Bytes::new() });
    }
    let stack = executable.get_config().stack_size();
    let mut machine = EbpfVm::new(executable.get_loader().clone(), SBPFVersion::V3, &mut context, stack);
    if let Some(first) = machine.registers.get_mut(1) {
        *first = arguments.len() as u64;
    }
    let result = if compiled {
        let (_, result) = machine.execute_program(executable, &mut ExecutionMode::Jit, &mut []);
        result.into()
    } else {
        interpret(&mut machine, program)
    };
    let [.., at] = machine.registers;
    let instruction = program.origin(at);
    let cause = match result {
        Ok(value) => {
            let (output, stdout) = (context.output.take(), context.stdout.take());
            return Ok(Outcome { exit_code: value as i32, output, stdout, instructions: context.meter.used() });
        }
        Err(error) => cause_of(error, &mut context),
    };
    Err(Trap { cause, instruction, instructions: context.meter.used(), stdout: context.stdout.take() })
}

/// Interprets the program, and looks at the clock from time to time.
fn interpret(machine: &mut EbpfVm<'_, Context>, program: &Program) -> Result<u64, EbpfError> {
    let executable = program.executable();
    let [.., counter] = &mut machine.registers;
    *counter = executable.get_entrypoint_instruction_offset() as u64;
    let deadline = machine.context().meter.deadline();
    machine.previous_instruction_meter = machine.context().meter.remaining();
    machine.due_insn_count = 0;
    machine.program_result = StableResult::Ok(0);
    let (registers, mut frames) = (machine.registers, vec![CallFrame::default(); CALL_DEPTH]);
    let mut interpreter = Interpreter::new(machine, executable, registers, &mut frames);
    let mut late = false;
    'run: loop {
        for _ in 0..STEPS_PER_LOOK {
            if !interpreter.step() {
                break 'run;
            }
        }
        late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late {
            break;
        }
    }
    let [.., at] = interpreter.reg;
    let [.., counter] = &mut machine.registers;
    *counter = at;
    let due = machine.due_insn_count;
    let context = machine.context();
    solana_sbpf::vm::ContextObject::consume(context, due);
    if late {
        context.cause = Some(Cause::Deadline);
        return Err(EbpfError::SyscallError("deadline".into()));
    }
    std::mem::replace(&mut machine.program_result, StableResult::Ok(0)).into()
}

/// What the machine's error is for a caller.
fn cause_of(error: EbpfError, context: &mut Context) -> Cause {
    match error {
        EbpfError::ExceededMaxInstructions => context.meter.stopped(),
        EbpfError::AccessViolation(access, address, length, _) | EbpfError::StackAccessViolation(access, address, length, _) => {
            violation(access, address, length)
        }
        EbpfError::CallDepthExceeded => Cause::CallDepth,
        EbpfError::DivideByZero => Cause::DivisionByZero,
        EbpfError::ExecutionOverrun => Cause::PastEnd,
        EbpfError::UnsupportedInstruction | EbpfError::InvalidInstruction | EbpfError::CallOutsideTextSegment => Cause::Instruction,
        EbpfError::SyscallError(error) => context.cause.take().unwrap_or_else(|| Cause::Internal(error.to_string())),
        other => Cause::Internal(other.to_string()),
    }
}
