//! Limits on the depth of expressions.
//!
//! Code that works on expressions recurses as deep as they are, and a stack that overflows ends the process. The depth
//! of a plan's messages bounds that only in part. A call of many arguments may become a tree, and shared relations
//! within subqueries nest without an end. The optimiser also merges expressions of several projections above one
//! another. So levels are counted as they are built, and added up along the relations below one another.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion::common::DataFusionError;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::Expr;

/// Levels around and below the relation or expression that is being read.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    /// Expressions around the one that is being read, those around its relation included.
    within: AtomicUsize,
    /// The most levels of an expression of this relation.
    own: AtomicUsize,
    /// The most levels that the relations below it have together.
    below: AtomicUsize,
    /// What `within` was where this relation began.
    start: AtomicUsize,
}

/// The counts of the enclosing relation.
#[derive(Debug)]
pub(crate) struct Around {
    own: usize,
    below: usize,
    start: usize,
}

impl Levels {
    pub(crate) fn enter_relation(&self) -> Around {
        let start = self.start.swap(self.within.load(Relaxed), Relaxed);
        Around { own: self.own.swap(0, Relaxed), below: self.below.swap(0, Relaxed), start }
    }

    /// The levels of the relation that is left and of what is below it.
    pub(crate) fn leave_relation(&self, around: Around) -> usize {
        let levels = self.own.swap(around.own, Relaxed) + self.below.load(Relaxed);
        self.below.store(around.below.max(levels), Relaxed);
        self.start.store(around.start, Relaxed);
        levels
    }

    /// How many expressions are around the one that begins.
    pub(crate) fn enter_expression(&self) -> usize {
        self.within.fetch_add(1, Relaxed)
    }

    /// Takes note of the levels of `built`, if nothing of this relation is around it.
    pub(crate) fn leave_expression(&self, built: &Expr) -> Result<(), DataFusionError> {
        let around = self.within.fetch_sub(1, Relaxed) - 1;
        if around == self.start.load(Relaxed) {
            self.own.fetch_max(depth(built)?, Relaxed);
        }
        Ok(())
    }
}

/// The levels below the root of `expr`: none for a column or a literal.
fn depth(expr: &Expr) -> Result<usize, DataFusionError> {
    let (mut deepest, mut level) = (0, vec![expr]);
    while !level.is_empty() {
        let mut next = Vec::new();
        for e in level {
            e.apply_children(|child| {
                next.push(child);
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        deepest += usize::from(!next.is_empty());
        level = next;
    }
    Ok(deepest)
}

/// The expressions that `expr` is made of, counted up to `most`.
pub(crate) fn nodes(expr: &Expr, most: usize) -> Result<usize, DataFusionError> {
    let (mut count, mut left) = (0, vec![expr]);
    while let Some(e) = left.pop()
        && count < most
    {
        count += 1;
        e.apply_children(|child| {
            left.push(child);
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(count)
}
