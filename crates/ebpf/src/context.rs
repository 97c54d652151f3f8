//! What the machine and the helpers share during one run: memory, meter, output and the host.

use std::ptr::NonNull;
use std::time::Instant;

use solana_sbpf::memory_region::MemoryMapping;
use solana_sbpf::vm::ContextObject;

use crate::limits::{Host, Limits};
use crate::memory::Memory;
use crate::sink::Sink;
use crate::trap::Cause;

/// How many instructions compiled code may execute between two helper calls for each second that is left.
///
/// Compiled code has no clock. Loops that access memory execute about 600 million instructions a second on a machine of
/// 2024, loops without memory up to four times 10⁹.
pub(crate) const INSTRUCTIONS_PER_SECOND: u64 = 1_000_000_000;
/// More than any run can execute, and little enough that the machine's sums do not overflow.
const MAX_INSTRUCTIONS: u64 = 1 << 60;

/// Counts instructions and watches the deadline.
pub(crate) struct Meter {
    limit: u64,
    remaining: u64,
    deadline: Option<Instant>,
    /// Whether the code that runs cannot look at the clock.
    compiled: bool,
}

impl Meter {
    pub(crate) fn new(limits: &Limits, compiled: bool) -> Self {
        let limit = limits.instructions.min(MAX_INSTRUCTIONS);
        Self { limit, remaining: limit, deadline: limits.deadline, compiled }
    }

    /// Takes `amount` instructions for work of a helper.
    pub(crate) fn charge(&mut self, amount: u64) -> Result<(), Cause> {
        let enough = amount <= self.remaining;
        self.remaining = self.remaining.saturating_sub(amount);
        if enough { Ok(()) } else { Err(self.exhausted()) }
    }

    /// Fails once the deadline has passed.
    pub(crate) fn check(&self) -> Result<(), Cause> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) { Err(Cause::Deadline) } else { Ok(()) }
    }

    /// [`Meter::charge`] and [`Meter::check`].
    pub(crate) fn work(&mut self, amount: u64) -> Result<(), Cause> {
        self.charge(amount)?;
        self.check()
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.remaining
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How many instructions were executed or charged.
    pub(crate) fn used(&self) -> u64 {
        self.limit - self.remaining
    }

    fn exhausted(&self) -> Cause {
        Cause::InstructionLimit { limit: self.limit }
    }

    /// Why the machine stopped counting: all instructions are used up, or those that fit before the deadline are.
    pub(crate) fn stopped(&self) -> Cause {
        if self.remaining == 0 { self.exhausted() } else { Cause::Deadline }
    }

    /// How many instructions the machine may execute until the next helper call.
    fn allowed(&self) -> u64 {
        let Some(deadline) = self.deadline.filter(|_| self.compiled) else { return self.remaining };
        let left = deadline.saturating_duration_since(Instant::now());
        let fit = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX).saturating_mul(INSTRUCTIONS_PER_SECOND / 1_000_000_000);
        self.remaining.min(fit)
    }
}

/// The caller's host, without its lifetime: the machine's types have none.
pub(crate) struct HostPointer(NonNull<dyn Host>);

impl HostPointer {
    /// # Safety
    /// `host` is not used until after the last use of the result.
    unsafe fn new(host: &mut (dyn Host + '_)) -> Self {
        // SAFETY: the two types differ in the lifetime only, which the caller answers for.
        Self(unsafe { std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host + 'static>>(NonNull::from(host)) })
    }

    pub(crate) fn get(&mut self) -> &mut dyn Host {
        // SAFETY: see `new`.
        unsafe { self.0.as_mut() }
    }
}

/// The state of one run.
pub(crate) struct Context {
    pub(crate) memory: Memory,
    pub(crate) meter: Meter,
    pub(crate) output: Sink,
    pub(crate) stdout: Sink,
    pub(crate) host: HostPointer,
    /// Why a helper failed.
    pub(crate) cause: Option<Cause>,
}

impl Context {
    /// # Safety
    /// `host` is not used while the result lives.
    pub(crate) unsafe fn new(memory: Memory, host: &mut (dyn Host + '_), limits: &Limits, compiled: bool) -> Self {
        Self {
            memory,
            meter: Meter::new(limits, compiled),
            output: Sink::new(limits.output_bytes),
            stdout: Sink::new(limits.stdout_bytes),
            // SAFETY: the caller says so.
            host: unsafe { HostPointer::new(host) },
            cause: None,
        }
    }
}

impl ContextObject for Context {
    fn consume(&mut self, amount: u64) {
        self.meter.remaining = self.meter.remaining.saturating_sub(amount);
    }

    fn get_remaining(&self) -> u64 {
        self.meter.allowed()
    }

    fn active_mapping_ptr(&mut self) -> NonNull<MemoryMapping> {
        NonNull::from(self.memory.mapping())
    }
}
