//! The cut of a plan into a super-plan and sub-plans.
//!
//! | module | subject |
//! |---|---|
//! | `walk` | the walk over the plan |
//! | `piece` | the parts that it puts together |
//! | `union` | operators over a union, done in each branch |
//! | `join` | joins, above all those with small tables |
//! | `colocated_join` | joins of tables that are partitioned by the keys that they join |
//! | `join_rewrite` | joins rewritten over other inputs |
//!
//! The walk is recursive. It calls the rules for unions and joins, which are methods of `walk::Walk` in their own
//! files. These call the walk for their inputs.

mod colocated_join;
mod join;
mod join_rewrite;
mod piece;
mod union;
mod walk;

use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::LogicalPlan;
use skytether_common::Result;

use crate::error::from_datafusion;
use crate::node::DriveScan;
use crate::policy::Tables;
use crate::super_plan;
use skytether_common::Pushdown;

pub use piece::Note;

/// A plan that was cut.
#[derive(Debug, Clone)]
pub struct CutPlan {
    /// The part that stays above, with a [`DriveScan`] for each part that goes down. Its schema is the original plan's.
    pub super_plan: LogicalPlan,
    /// The scans in `super_plan`, in the order of its text.
    pub scans: Vec<DriveScan>,
    /// For each operator above a drive's table that stayed on the host: why. From the leaves up.
    pub notes: Vec<Note>,
}

/// Cuts `plan`, which should be analysed and optimised (types coerced, columns pruned). Each maximal part
/// over one table on drives that `policy` and [`crate::classify()`] let go becomes a [`DriveScan`]. Cutting a
/// cut plan changes nothing.
///
/// `registry` holds the functions that host and drives share, the forms of [`crate::partial`] among them.
///
/// # Errors
/// Invalid or internal where `plan` contradicts itself; a plan that DataFusion made does not.
pub fn cut(plan: LogicalPlan, policy: Pushdown, tables: &dyn Tables, registry: &dyn FunctionRegistry) -> Result<CutPlan> {
    let (super_plan, notes) = walk::Walk::new(policy, tables, registry).all(plan).map_err(from_datafusion)?;
    Ok(CutPlan { scans: super_plan::scans(&super_plan), super_plan, notes })
}
