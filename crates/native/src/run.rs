//! Running a program.

use std::sync::atomic::AtomicBool;

use skytether_common::Result;

use crate::call::{Call, Outcome};
use crate::elf;
use crate::limits::{Limits, MAX_ARGUMENTS};
use crate::trap::{Cause, Trap};

/// Runs a program once, contained. It blocks until the program has ended, which it does soon after `aborted` is set.
///
/// # Errors
/// A [`Trap`] that says what ended the program before it returned, or why it did not run.
pub fn run(call: Call<'_>, limits: &Limits, aborted: &AtomicBool) -> Result<Outcome, Trap> {
    elf::check(call.program).map_err(Cause::Program)?;
    if call.arguments.len() > MAX_ARGUMENTS {
        return Err(Cause::Arguments { count: call.arguments.len() }.into());
    }
    contained(call, limits, aborted)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use crate::contained::watch::run as contained;

/// [`elf::check`] refuses all programs here.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn contained(_: Call<'_>, _: &Limits, _: &AtomicBool) -> Result<Outcome, Trap> {
    Err(Cause::Internal("this machine cannot contain programs").into())
}

/// Checks that this machine can contain programs: it runs one that does nothing.
///
/// # Errors
/// `Unsupported` on other systems than Linux on x86-64, `Unavailable` where the kernel refuses a step.
pub fn probe() -> Result<()> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    let program = crate::contained::init::nothing();
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    let program = Vec::new();
    let call = Call { program: &program, name: "probe", arguments: &[], environment: &[], socket: None };
    run(call, &Limits::default(), &AtomicBool::new(false))?;
    Ok(())
}
