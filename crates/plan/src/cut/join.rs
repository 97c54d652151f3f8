//! Joins in the walk over a plan.

use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::logical_expr::{Join, LogicalPlan};

use super::join_rewrite::{over, swapped, within_a_side};
use super::piece::{Below, Joined, Note, Piece};
use super::walk::Walk;
use crate::broadcast_join;
use crate::classify::{MAX_OPERATORS, operator_name};
use crate::expressions::check;
use skytether_common::Pushdown;
use skytether_partitioning::Placement;

impl Walk<'_> {
    /// A join, whose sides are cut first. It may go down with one of them if the other is small.
    pub(crate) fn join(&mut self, join: Join) -> Result<Piece> {
        let left = self.plan(join.left.as_ref().clone())?;
        let right = self.plan(join.right.as_ref().clone())?;
        let apart = match (&left, &right) {
            (Piece::Below(l), Piece::Below(r)) => match self.colocated(&join, l, r) {
                Ok(colocated) => return self.joined_colocated(&join, l, r, colocated),
                Err(why) => why,
            },
            _ => None,
        };
        let why = match self.goes(&join, &left, &right) {
            Ok(left_is_large) => {
                let (large, small) = if left_is_large { (left, right) } else { (right, left) };
                let Piece::Below(large) = large else { return datafusion::common::internal_err!("a join was to go down with a side that does not") };
                return self.joined(join, *large, small, left_is_large);
            }
            Err(why) => apart.map_or_else(|| why.clone(), |apart| format!("{apart}; {why}")),
        };
        let ((left, a), (right, b)) = (self.above(left), self.above(right));
        let (plan, c) = self.subqueries(over(&join, left, right)?)?;
        if a || b || c {
            self.note(&plan, &why);
        }
        Ok(Piece::Above(plan, a || b || c))
    }

    /// Whether `join` may go down with its left side (true) or its right side, or why it may not, in words.
    fn goes(&mut self, join: &Join, left: &Piece, right: &Piece) -> std::result::Result<bool, String> {
        match self.policy {
            Pushdown::Raw => return Err("cut=raw sends only scans down".into()),
            Pushdown::Filter => return Err("cut=filter sends no joins down".into()),
            Pushdown::Adaptive | Pushdown::Full => {}
        }
        if join.null_aware {
            return Err("NOT IN asks whether there is a NULL among all rows".into());
        }
        if join.null_equality != NullEquality::NullEqualsNothing {
            return Err("the join takes NULLs for equal".into());
        }
        if join.on.is_empty() {
            return Err("a join without equal keys compares every pair, which the host does once".into());
        }
        let below = |piece: &Piece| match piece {
            Piece::Below(below) => {
                let own = below.joined.as_ref().map_or(0, |joined| joined.broadcast.len());
                below.input.placement == Placement::Spread && !below.input.limited && below.input.operators + 2 < MAX_OPERATORS && own < MAX_BROADCAST
            }
            Piece::Above(..) => false,
        };
        let (with_left, with_right) = match (below(left), below(right)) {
            (false, false) => return Err(neither(left, right)),
            (a, b) => (a && broadcast_join::keeps(join.join_type, true), b && broadcast_join::keeps(join.join_type, false)),
        };
        if !with_left && !with_right {
            return Err(match join.join_type {
                JoinType::LeftMark | JoinType::RightMark => "sub-plans do not carry joins that mark rows".into(),
                _ => "whether a row has a match, only the rows of all drives together tell".into(),
            });
        }
        let too_large = |walk: &mut Self, piece: &Piece, other: u64| {
            let notes = walk.notes_len();
            let plan = walk.above(piece.clone()).0;
            walk.forget_notes(notes);
            broadcast_join::too_large(&plan, other, walk.tables)
        };
        let right_too_large = with_left.then(|| too_large(self, right, self.rows(left)));
        let left_too_large = with_right.then(|| too_large(self, left, self.rows(right)));
        let left_is_large = match (left_too_large, right_too_large) {
            // If each is so much smaller than the other, neither has rows.
            (_, Some(None)) => true,
            (Some(None), _) => false,
            (Some(Some(why)), None) => return Err(format!("its left side is not small enough for every drive: it {why}")),
            (None, Some(Some(why))) => return Err(format!("its right side is not small enough for every drive: it {why}")),
            (left, right) => {
                let said = |why: Option<Option<String>>| why.flatten().unwrap_or_default();
                return Err(format!("neither side is small enough for every drive: the left one {}, the right one {}", said(left), said(right)));
            }
        };
        self.carried(join)?;
        Ok(left_is_large)
    }

    /// Whether sub-plans carry the conditions of `join`; if not, why.
    pub(crate) fn carried(&self, join: &Join) -> std::result::Result<(), String> {
        let exprs = join.on.iter().all(|(l, r)| check(l, join.left.schema(), self.registry).is_ok() && check(r, join.right.schema(), self.registry).is_ok());
        let both = join.left.schema().join(join.right.schema()).map_err(|_| "both sides have a column of the same name".to_owned())?;
        if !exprs || join.filter.as_ref().is_some_and(|f| check(f, &both, self.registry).is_err()) {
            return Err("its condition has parts that sub-plans do not carry".into());
        }
        Ok(())
    }

    fn rows(&self, piece: &Piece) -> u64 {
        match piece {
            Piece::Below(below) => self.tables.rows(&below.table).unwrap_or(u64::MAX),
            Piece::Above(..) => 0,
        }
    }

    /// The inputs of `join` that are `below`, for a plan with the join on the host, and the notes of that plan. The
    /// last note gives the `reason` for which the join stays there.
    pub(crate) fn on_the_host<const N: usize>(&mut self, join: &Join, below: [&Below; N], reason: &str) -> ([LogicalPlan; N], Vec<Note>) {
        let before = self.notes_len();
        let inputs = below.map(|below| self.above(Piece::Below(Box::new(below.clone()))).0);
        let mut notes = self.forget_notes(before);
        let node = LogicalPlan::Join(join.clone());
        notes.push(Note { operator: operator_name(&node), node: node.display().to_string(), reason: reason.into() });
        (inputs, notes)
    }

    /// The join over `large`, with the rows of `small` broadcast.
    fn joined(&mut self, join: Join, large: Below, small: Piece, left_is_large: bool) -> Result<Piece> {
        let (small, _) = self.above(small);
        let ([plain], notes) = self.on_the_host(&join, [&large], "nothing above it makes few rows of many, so the drives' rows are joined here");
        let (mut broadcast, mut input) = (large.joined.map(|joined| joined.broadcast).unwrap_or_default(), large.input);
        let leaf = broadcast_join::leaf(broadcast.len(), &large.stored, &small)?;
        broadcast.push(small.clone());
        input.operators += 2;
        // A row may find many.
        (input.rows, input.most_rows) = (None, None);
        let down = Join { filter: within_a_side(&join), ..join.clone() };
        let (plan, plain) = if left_is_large {
            // Where drives join tables of their own, they read the left side of each join first:
            // it must be the small one.
            let plan = if large.with.is_empty() { over(&down, large.plan, leaf)? } else { swapped(&down, large.plan, leaf)? };
            (plan, over(&join, plain, small)?)
        } else {
            (over(&down, leaf, large.plan)?, over(&join, small, plain)?)
        };
        Ok(Piece::Below(Box::new(Below {
            plan,
            input,
            table: large.table,
            stored: large.stored,
            joined: Some(Joined { broadcast, plain, notes, pays: false, moves: None }),
            with: large.with,
        })))
    }
}

/// Why a join does not go down where neither of its sides could take it along, in words.
fn neither(left: &Piece, right: &Piece) -> String {
    let one = |piece: &Piece| match piece {
        Piece::Above(..) => "is made on the host",
        Piece::Below(below) if below.input.placement == Placement::Everywhere => "lies whole on one drive",
        Piece::Below(below) if below.input.limited => "is limited over all drives together",
        Piece::Below(_) => "has as many operators or small tables as a sub-plan holds",
    };
    match (one(left), one(right)) {
        (a, b) if a == b => format!("each of its sides {a}"),
        (a, b) => format!("its left side {a}, its right side {b}"),
    }
}

/// The most broadcast tables of one sub-plan.
const MAX_BROADCAST: usize = 8;
