//! Names and phrases of plans. Planners write them and receipts read them: plain text, so that a receipt needs no query
//! engine.

/// The beginning of the reason of an operator that is on the host only because of an operator below it.
pub const FOLLOWS: &str = "it follows ";

/// Whether `reason` only points to another operator, which has a reason of its own.
#[must_use]
pub fn only_follows(reason: &str) -> bool {
    reason.starts_with(FOLLOWS)
}

/// The beginning of the names of tables that travel with a sub-plan.
pub const SHIPPED_PREFIX: &str = "__shipped_";

/// The name of the `n`th table that travels with a sub-plan.
#[must_use]
pub fn shipped_table(n: usize) -> String {
    format!("{SHIPPED_PREFIX}{n}")
}

/// Whether a physical operator called `name` only passes rows on, to other threads or in other batches. `fetch`:
/// whether it also limits their number.
#[must_use]
pub fn is_plumbing(name: &str, fetch: bool) -> bool {
    match name {
        // `TurnsExec` is what older hosts call it.
        "YieldingJoinExec"
        | "TurnsExec"
        | "CooperativeExec"
        | "CoalesceBatchesExec"
        | "RepartitionExec"
        | "OutputRequirementExec"
        | "BufferExec"
        | "BarrierExec" => true,
        "CoalescePartitionsExec" => !fetch,
        _ => false,
    }
}
