//! What the machine and the imports share during one run: meter, outputs, arguments and the host.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use skytether_ebpf::{Host, Sink};
use wasmi::{Memory, StoreLimits, StoreLimitsBuilder};

use crate::limits::{Limits, MAX_MEMORY, TABLES};
use crate::trap::Cause;

/// How many instructions the machine executes between two looks at the clock: some milliseconds.
const SLICE: u64 = 500_000;

/// Counts instructions, watches the deadline, and looks whether the program is to end.
///
/// The machine gets a slice of the instructions at a time, as its fuel. What it did not use comes back.
pub(crate) struct Meter<'a> {
    limit: u64,
    /// Without the slice that the machine has.
    remaining: u64,
    deadline: Option<Instant>,
    aborted: &'a AtomicBool,
}

impl Meter<'_> {
    /// Takes `amount` instructions for work of an import.
    pub(crate) fn charge(&mut self, amount: u64) -> Result<(), Cause> {
        let enough = amount <= self.remaining;
        self.remaining = self.remaining.saturating_sub(amount);
        if enough { Ok(()) } else { Err(Cause::FuelLimit { limit: self.limit }) }
    }

    /// Fails where the program is to end.
    pub(crate) fn check(&self) -> Result<(), Cause> {
        if self.aborted.load(Ordering::Relaxed) {
            return Err(Cause::Aborted);
        }
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

    /// How many instructions were executed or charged.
    pub(crate) fn used(&self) -> u64 {
        self.limit - self.remaining
    }

    /// Takes back what the machine did not use.
    pub(crate) fn take_back(&mut self, fuel: u64) {
        self.remaining = self.remaining.saturating_add(fuel).min(self.limit);
    }

    /// The machine's next slice.
    pub(crate) fn slice(&mut self) -> u64 {
        let slice = SLICE.min(self.remaining);
        self.remaining -= slice;
        slice
    }

    /// The machine's next slice, of at least `required` instructions: it needs them for its next step.
    pub(crate) fn slice_of(&mut self, required: u64) -> Result<u64, Cause> {
        self.check()?;
        if required > self.remaining {
            self.remaining = 0;
            return Err(Cause::FuelLimit { limit: self.limit });
        }
        let slice = SLICE.max(required).min(self.remaining);
        self.remaining -= slice;
        // A step may need nothing, and then one instruction is enough to go on.
        if slice == 0 { Err(Cause::FuelLimit { limit: self.limit }) } else { Ok(slice) }
    }
}

/// The state of one run.
pub(crate) struct State<'a> {
    pub(crate) host: &'a mut dyn Host,
    pub(crate) arguments: &'a [Bytes],
    /// The value that `get` found last.
    pub(crate) value: Bytes,
    pub(crate) meter: Meter<'a>,
    pub(crate) output: Sink,
    pub(crate) stdout: Sink,
    /// The program's memory; `None` before it starts.
    pub(crate) memory: Option<Memory>,
    pub(crate) limits: StoreLimits,
    /// Why an import failed.
    pub(crate) cause: Option<Cause>,
}

impl<'a> State<'a> {
    pub(crate) fn new(arguments: &'a [Bytes], host: &'a mut dyn Host, limits: &Limits, aborted: &'a AtomicBool) -> Self {
        let (tables, elements) = TABLES;
        let store = StoreLimitsBuilder::new().memory_size(limits.memory_bytes.min(MAX_MEMORY)).memories(1).instances(1);
        Self {
            host,
            arguments,
            value: Bytes::new(),
            meter: Meter { limit: limits.fuel, remaining: limits.fuel, deadline: limits.deadline, aborted },
            output: Sink::new(limits.output_bytes),
            stdout: Sink::new(limits.stdout_bytes),
            memory: None,
            limits: store.tables(tables).table_elements(elements).build(),
            cause: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_take_all_instructions_and_no_more() {
        let aborted = AtomicBool::new(false);
        let mut meter = Meter { limit: SLICE + 10, remaining: SLICE + 10, deadline: None, aborted: &aborted };
        assert_eq!(meter.slice(), SLICE);
        meter.take_back(1);
        assert_eq!((meter.remaining(), meter.used()), (11, SLICE - 1));
        assert!(matches!(meter.slice_of(12), Err(Cause::FuelLimit { .. })));
        assert_eq!(meter.used(), SLICE + 10);
        meter.take_back(5);
        assert_eq!(meter.slice_of(5).unwrap(), 5);
        assert!(meter.slice_of(0).is_err());
    }

    #[test]
    fn step_larger_than_a_slice_gets_what_it_needs() {
        let aborted = AtomicBool::new(false);
        let mut meter = Meter { limit: 10 * SLICE, remaining: 10 * SLICE, deadline: None, aborted: &aborted };
        assert_eq!(meter.slice_of(3 * SLICE).unwrap(), 3 * SLICE);
        aborted.store(true, Ordering::Relaxed);
        assert!(matches!(meter.slice_of(1), Err(Cause::Aborted)));
    }
}
