//! A backend that fails on purpose.
//!
//! It counts the steps that change something: commits, flushes and erasures. At the chosen one it fails, before or
//! after the step was carried out, and so does every later step: the process or the disk is gone. What callers know
//! then is what they would know after a crash, so a test opens the inner backend again and compares.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use skytether_common::{Error, Kind, Result};

use crate::backend::{Backend, Erased, Step, View};

/// When a backend fails, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Which step fails, counted from 1.
    pub at: u64,
    /// Whether that step is carried out all the same.
    pub carried_out: bool,
    /// The kind of the error.
    pub kind: Kind,
}

impl Plan {
    /// A failure that follows from `seed`, at one of the first `steps` steps.
    #[must_use]
    pub fn of(seed: u64, steps: u64) -> Self {
        // The constants of SplitMix64.
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let kind = if mixed & 2 == 0 { Kind::Unavailable } else { Kind::Exhausted };
        Self { at: 1 + (mixed >> 8) % steps.max(1), carried_out: mixed & 1 == 1, kind }
    }
}

/// A backend that fails as its plan says.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Backend>,
    plan: Plan,
    steps: AtomicU64,
}

impl Faulty {
    /// `inner`, failing by `plan`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, plan: Plan) -> Self {
        Self { inner, plan, steps: AtomicU64::new(0) }
    }

    /// Whether the failure has happened.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.steps.load(Ordering::Relaxed) >= self.plan.at
    }

    fn step(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let step = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        if step < self.plan.at {
            return work();
        }
        if step == self.plan.at && self.plan.carried_out {
            work()?;
        }
        Err(Error::new(self.plan.kind, format!("step {step} fails by the plan of a test")))
    }
}

impl Backend for Faulty {
    fn view(&self) -> Result<Box<dyn View + '_>> {
        self.inner.view()
    }

    fn commit(&self, steps: Vec<Step>, commit: u64, sync: bool) -> Result<()> {
        self.step(|| self.inner.commit(steps, commit, sync))
    }

    fn sync(&self, commit: u64) -> Result<()> {
        self.step(|| self.inner.sync(commit))
    }

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    fn throttle(&self) -> Result<()> {
        self.inner.throttle()
    }

    fn room(&self) -> Result<Option<u64>> {
        self.inner.room()
    }

    fn compact(&self) -> Result<()> {
        self.inner.compact()
    }

    fn erase(&self, secure: bool) -> Erased {
        let mut erased = Erased::Done;
        let step = self.step(|| {
            erased = self.inner.erase(secure);
            Ok(())
        });
        match step {
            Ok(()) => erased,
            Err(error) if self.plan.carried_out => Erased::Unknown(error),
            Err(error) => Erased::Nothing(error),
        }
    }

    fn stored_bytes(&self) -> Result<u64> {
        self.inner.stored_bytes()
    }
}
