//! Parts of a super-plan that occur several times, computed once: a CTE that a query uses twice.
//!
//! DataFusion writes a CTE out at each use. [`share`] finds parts of a super-plan that are equal, and marks the first
//! one as the [`Shared`] result that the others read. It runs after the cut, for three reasons. Filters and columns
//! have reached the drives, so that only equal work is equal. Whatever can go down above a use has gone down. And no
//! later step moves anything into the part.
//!
//! A part is shared if all of this holds:
//! - it occurs at least twice, and reads from drives;
//! - its rows are few by kind: groups, distinct rows, first rows, or a window, which is costly to compute again;
//! - each computation gives the same: no volatile function, no outer column, no parameter;
//! - it has no subquery in an expression, because DataFusion computes that at the root of the plan around it;
//! - it neither is nor is in a recursive query, whose rounds share one table.
//!
//! The largest part is shared first, then what still occurs twice: within it, or elsewhere. A part that only names or
//! computes columns of another one is left to that one if that has more uses.
//!
//! See also `skytether_exec::shared_result`, which runs it.

use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Expr, Extension, FetchType, JoinType, Limit, LogicalPlan, UserDefinedLogicalNodeCore, Volatility};

use crate::cut::CutPlan;
use crate::error::from_datafusion;
use crate::generated_names;
use crate::node::DriveScan;
use crate::super_plan;

/// The most results that one query shares: each costs a walk over the plan.
const MOST: usize = 16;

/// A result that a query uses several times. One of these nodes has the plan that computes it as its input. The others
/// have none, and read what that one computes.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Its number within the query, from 1.
    pub number: usize,
    /// How often the query uses it.
    pub uses: usize,
    /// What computes it.
    pub plan: Arc<LogicalPlan>,
    /// Whether it is computed at this node.
    pub here: bool,
    /// The columns as they are called at this node.
    schema: DFSchemaRef,
}

impl Shared {
    /// The shared result that `plan` is, if it is one.
    #[must_use]
    pub fn of(plan: &LogicalPlan) -> Option<&Self> {
        match plan {
            LogicalPlan::Extension(e) => e.node.as_any().downcast_ref(),
            _ => None,
        }
    }

    fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }
}

/// What a shared result is called in explanations and receipts. `here`: whether it is computed at this place.
#[must_use]
pub fn title(number: usize, uses: usize, here: bool) -> String {
    if here { format!("{number}, computed once and used {uses} times") } else { format!("{number}, computed elsewhere in this plan") }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && self.here == other.here && self.plan == other.plan
    }
}

impl Eq for Shared {}

impl Hash for Shared {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number.hash(state);
        self.here.hash(state);
    }
}

impl PartialOrd for Shared {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match self.number.cmp(&other.number).then(self.here.cmp(&other.here)) {
            Ordering::Equal => self.plan.partial_cmp(&other.plan),
            different => Some(different),
        }
    }
}

impl UserDefinedLogicalNodeCore for Shared {
    fn name(&self) -> &str {
        "SharedResult"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        if self.here { vec![&self.plan] } else { vec![] }
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedResult: {}", title(self.number, self.uses, self.here))
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        match <[_; 1]>::try_from(inputs) {
            Ok([input]) if exprs.is_empty() && self.here => Ok(Self { schema: Arc::clone(input.schema()), plan: Arc::new(input), ..self.clone() }),
            Err(none) if exprs.is_empty() && none.is_empty() && !self.here => Ok(self.clone()),
            _ => plan_err!("a shared result has no expressions, and an input only where it is computed"),
        }
    }
}

/// `cut` with a [`Shared`] result for each part of its super-plan that occurs several times, where computing it once
/// pays.
///
/// # Errors
/// Internal for a plan that does not hold together.
pub fn share(mut cut: CutPlan) -> skytether_common::Result<CutPlan> {
    if cut.scans.len() < 2 {
        return Ok(cut);
    }
    let forms = Forms { numbered: generated_names::has_some(&cut.super_plan).map_err(from_datafusion)? };
    let mut seen = HashSet::new();
    if cut.scans.iter().all(|scan| seen.insert(forms.of(&scan.clone().into_plan()))) {
        // Equal parts read from drives by equal scans.
        return Ok(cut);
    }
    for number in 1..=MOST {
        let Some(part) = largest(&cut.super_plan, &forms).map_err(from_datafusion)? else { return Ok(cut) };
        cut.super_plan = replaced(cut.super_plan, &part, &forms, number).map_err(from_datafusion)?;
        cut.scans = super_plan::scans(&cut.super_plan);
        // Each copy has told why its operators are on the host.
        let mut told = HashSet::new();
        cut.notes.retain(|note| told.insert((note.operator.clone(), note.node.clone(), note.reason.clone())));
    }
    Ok(cut)
}

/// The form of parts in which they are compared.
struct Forms {
    /// Whether generated names are numbered for that.
    numbered: bool,
}

impl Forms {
    fn of(&self, part: &LogicalPlan) -> LogicalPlan {
        // A part that holds together no more with other names is compared as it is.
        let numbered = if self.numbered { generated_names::numbered(part).ok() } else { None };
        numbered.unwrap_or_else(|| part.clone())
    }

    fn is(&self, node: &LogicalPlan, part: &LogicalPlan) -> bool {
        if self.numbered { is_small(node) && self.of(node) == *part } else { node == part }
    }
}

/// The largest part of `plan` that occurs several times and may be shared, with how often it occurs.
fn largest(plan: &LogicalPlan, forms: &Forms) -> Result<Option<(LogicalPlan, usize)>> {
    // How often each part occurs, and its place.
    let mut parts: HashMap<LogicalPlan, (usize, usize)> = HashMap::new();
    plan.apply_with_subqueries(|node| {
        if matches!(node, LogicalPlan::RecursiveQuery(_)) {
            return Ok(TreeNodeRecursion::Jump);
        }
        if is_small(node) {
            let place = parts.len();
            parts.entry(forms.of(node)).or_insert((0, place)).0 += 1;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut best: Option<((usize, Reverse<usize>), &LogicalPlan, usize)> = None;
    for (part, (times, place)) in &parts {
        // A part that is only other columns of a part with more uses adds nothing to it.
        let more = parts.get(core(part)).is_some_and(|(more, _)| more > times);
        let Some(size) = (if *times > 1 && !more { size_of_shareable(part)? } else { None }) else { continue };
        let rank = (size, Reverse(*place));
        if best.as_ref().is_none_or(|(best, ..)| *best < rank) {
            best = Some((rank, part, *times));
        }
    }
    Ok(best.map(|(_, part, times)| (part.clone(), times)))
}

/// `part` without what only names or computes columns of its rows.
fn core(part: &LogicalPlan) -> &LogicalPlan {
    match part {
        LogicalPlan::Projection(projection) => core(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => core(&alias.input),
        part => part,
    }
}

/// `plan` with shared result `number` in the place of each `part`.
fn replaced(plan: LogicalPlan, (part, uses): &(LogicalPlan, usize), forms: &Forms, number: usize) -> Result<LogicalPlan> {
    let mut first: Option<Arc<LogicalPlan>> = None;
    plan.transform_down_with_subqueries(|node| {
        if matches!(node, LogicalPlan::RecursiveQuery(_)) {
            return Ok(Transformed::new(node, false, TreeNodeRecursion::Jump));
        }
        if !forms.is(&node, part) {
            return Ok(Transformed::no(node));
        }
        let (here, schema) = (first.is_none(), Arc::clone(node.schema()));
        let shared = Shared { number, uses: *uses, plan: Arc::clone(first.get_or_insert_with(|| Arc::new(node))), here, schema };
        Ok(Transformed::new(shared.into_plan(), true, TreeNodeRecursion::Jump))
    })
    .data()
}

/// Whether the rows of `plan` are few by kind, or costly to compute again.
fn is_small(plan: &LogicalPlan) -> bool {
    if let Some(scan) = DriveScan::of(plan) {
        return is_small(&scan.sub_plan);
    }
    match plan {
        LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) | LogicalPlan::Window(_) => true,
        LogicalPlan::Limit(limit) if fetches(limit) => true,
        LogicalPlan::Sort(sort) if sort.fetch.is_some() => true,
        LogicalPlan::Values(_) | LogicalPlan::EmptyRelation(_) => true,
        LogicalPlan::Join(join) => match join.join_type {
            JoinType::LeftSemi | JoinType::LeftAnti => is_small(&join.left),
            JoinType::RightSemi | JoinType::RightAnti => is_small(&join.right),
            _ => is_small(&join.left) && is_small(&join.right),
        },
        LogicalPlan::Limit(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Union(_) => plan.inputs().into_iter().all(is_small),
        _ => false,
    }
}

fn fetches(limit: &Limit) -> bool {
    matches!(limit.get_fetch_type(), Ok(FetchType::Literal(Some(_))))
}

/// How many operators `part` has; `None` if it reads from no drive, or if computing it again may give other rows.
fn size_of_shareable(part: &LogicalPlan) -> Result<Option<usize>> {
    let (mut size, mut drives, mut same) = (0, false, true);
    part.apply(|node| {
        size += 1;
        same &= is_same_each_time(node)?;
        if let Some(scan) = DriveScan::of(node) {
            drives = true;
            scan.sub_plan.apply(|node| {
                size += 1;
                same &= is_same_each_time(node)?;
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(if same { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok((drives && same).then_some(size))
}

/// Whether `node` gives the same rows for the same input, wherever it is in a plan.
fn is_same_each_time(node: &LogicalPlan) -> Result<bool> {
    if matches!(node, LogicalPlan::RecursiveQuery(_)) {
        return Ok(false);
    }
    let mut same = true;
    node.apply_expressions(|expr| {
        expr.apply(|e| {
            same &= match e {
                Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::Placeholder(_)
                | Expr::ScalarVariable(..) => false,
                Expr::ScalarFunction(call) => call.func.signature().volatility != Volatility::Volatile,
                Expr::AggregateFunction(call) => call.func.signature().volatility != Volatility::Volatile,
                Expr::WindowFunction(call) => call.fun.signature().volatility != Volatility::Volatile,
                _ => true,
            };
            Ok(if same { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
        })
    })?;
    Ok(same)
}
