//! Colocated joins: both tables are partitioned by the keys that they join, so each drive joins its own rows.
//!
//! Rows with equal keys, NULLs included, are on one drive. So every kind of join that looks for the matches of single
//! rows is correct drive by drive. A drive reads one side into a hash table in memory: the left one, for which the plan
//! chooses the side that surely fits.
//!
//! A join's result may be larger than its inputs. So the join goes down in three cases:
//! - an operator above it makes few rows of many;
//! - it only chooses among rows of one side;
//! - its result is estimated to be smaller than the inputs that would move up otherwise.

use datafusion::common::{JoinType, Result};
use datafusion::logical_expr::{Join, LogicalPlan};

use super::join_rewrite::{over, swapped, within_a_side};
use super::piece::{Below, Joined, Moves, Piece};
use super::walk::Walk;
use crate::classify::{Input, MAX_OPERATORS, MAX_SORTED};
use crate::partition::Whole;
use crate::size::most_bytes;
use skytether_common::Pushdown;
use skytether_partitioning::Placement;

/// The most bytes of the side that a drive reads into memory, the table that finds its rows included.
const MAX_BUILT: u64 = MAX_SORTED;

/// Bytes that a hash table takes per row, in addition to the row.
const PER_ROW: u64 = 32;

/// How two sides are joined drive by drive.
pub(crate) struct ColocatedJoin {
    whole: Whole,
    /// Whether drives read the left side into memory.
    left_is_built: bool,
}

impl Walk<'_> {
    /// How drives join their own rows of both sides. The error says why they may not, in words, where both sides are
    /// partitioned by key.
    pub(crate) fn colocated(&self, join: &Join, left: &Below, right: &Below) -> std::result::Result<ColocatedJoin, Option<String>> {
        if matches!(self.policy, Pushdown::Raw | Pushdown::Filter) || join.null_aware {
            return Err(None);
        }
        let by_key = |side: &Below| side.input.by_key && side.input.placement == Placement::Spread;
        if !by_key(left) || !by_key(right) {
            return Err(None);
        }
        if matches!(join.join_type, JoinType::LeftMark | JoinType::RightMark) {
            return Err(None);
        }
        if left.input.limited || right.input.limited {
            return Err(Some("one of its sides is limited over all drives together".into()));
        }
        let broadcasts = |side: &Below| side.joined.as_ref().is_some_and(|joined| !joined.broadcast.is_empty());
        if broadcasts(left) || broadcasts(right) || left.input.operators + right.input.operators + 3 > MAX_OPERATORS {
            return Err(Some("one sub-plan does not hold all that its sides do".into()));
        }
        let whole = Whole::of_join(join, left.input.whole.as_ref(), right.input.whole.as_ref()).map_err(|why| Some(why.to_owned()))?;
        self.carried(join).map_err(Some)?;
        let built = |plan: &LogicalPlan, input: &Input| {
            let rows = input.most_rows?;
            most_bytes(plan, rows, &|_| input.bytes).map(|bytes| bytes.saturating_add(rows.saturating_mul(PER_ROW))).filter(|bytes| *bytes <= MAX_BUILT)
        };
        let left_is_built = match (built(&join.left, &left.input), built(&join.right, &right.input)) {
            (Some(l), Some(r)) => l <= r,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return Err(Some("neither of its sides surely fits into a drive's memory".into())),
        };
        Ok(ColocatedJoin { whole, left_is_built })
    }

    /// The join of two parts, drive by drive.
    pub(crate) fn joined_colocated(&mut self, join: &Join, left: &Below, right: &Below, colocated: ColocatedJoin) -> Result<Piece> {
        const REASON: &str = "its rows may take more room than those of its sides, and nothing above it makes few of many";
        let ([l, r], notes) = self.on_the_host(join, [left, right], REASON);
        let plain = over(join, l, r)?;
        let down = Join { filter: within_a_side(join), ..join.clone() };
        let plan = match colocated.left_is_built {
            true => over(&down, left.plan.clone(), right.plan.clone())?,
            false => swapped(&down, left.plan.clone(), right.plan.clone())?,
        };
        let kept = match join.join_type {
            JoinType::LeftSemi | JoinType::LeftAnti => Some(&left.input),
            JoinType::RightSemi | JoinType::RightAnti => Some(&right.input),
            _ => None,
        };
        let input = Input {
            placement: Placement::Spread,
            limited: false,
            operators: left.input.operators + right.input.operators + 3,
            rows: kept.and_then(|side| side.rows),
            bytes: kept.and_then(|side| side.bytes),
            most_rows: kept.and_then(|side| side.most_rows),
            by_key: join.join_type != JoinType::Full,
            whole: colocated.whole.told(),
        };
        let moves = Some(Moves::of_both(left, right));
        let with = left.with.iter().chain([&right.table]).chain(&right.with).cloned().collect();
        let joined = Some(Joined { broadcast: Vec::new(), plain, notes, pays: kept.is_some(), moves });
        Ok(Piece::Below(Box::new(Below { plan, table: left.table.clone(), stored: left.stored.clone(), input, joined, with })))
    }
}
