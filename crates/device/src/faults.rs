//! How a caller reports faults that a CSE itself can't know of.

use std::fmt::Debug;

use crate::subplan::SubPlan;

/// Takes reports about one CSE from a caller that runs sub-plans there.
///
/// An implementation that knows of another CSE with the same data runs the reported sub-plan there
/// when it is opened again.
pub trait FaultReporter: Send + Sync + Debug {
    /// The CSE sends signs of life and completes nothing of `plan`; `why` names it.
    fn stalled(&self, plan: &SubPlan, why: &str);

    /// The CSE answered `plan` with what makes no sense: rows of other columns, or of slices that it was not asked for.
    fn protocol_violation(&self, plan: &SubPlan, why: &str);
}
