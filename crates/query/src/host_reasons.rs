//! Why each operator of the host's physical plan is there.
//!
//! The cut gives reasons for operators of the logical super-plan. DataFusion makes the physical plan of it and does not
//! record which operator became which, so this module pairs them. An operator is recognised by its kind and by the
//! scans of drives below it. Several operators of one kind over the same scans form a chain and are paired in order. A
//! doubtful pair is left out: a wrong reason is worse than none, and the reasons are also listed separately. Operators
//! that the engine added itself say what they are for.

use std::collections::{BTreeSet, HashMap};

use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use skytether_plan::classify::operator_name;
use skytether_plan::shared::Shared;
use skytether_plan::{CutPlan, DriveScan, super_plan};

use skytether_common::plan_words::is_plumbing;
use skytether_exec::scan::{DriveScanExec, scan_numbers};
use skytether_exec::shared_result::SharedResultExec;

/// What an operator does, as far as logical and physical ones can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Projection,
    Filter,
    Limit,
    Sort,
    Aggregate,
    Window,
    Join,
    Union,
    Unnest,
    Recursion,
    Other,
}

/// The numbers of scans below an operator, in the order of the cut.
type Scans = BTreeSet<usize>;

/// For each operator of `physical`, from the root down in pre-order: why it is on the host, where known.
pub(crate) fn of(cut: &CutPlan, physical: &dyn ExecutionPlan) -> Vec<Option<String>> {
    let mut logical = Logical { cut, told: HashMap::new() };
    logical.walk(&cut.super_plan);
    let mut found = Physical { helps: Vec::new(), at: HashMap::new() };
    found.walk(physical, None);
    let mut reasons = vec![None; found.helps.len()];
    for (mut key, places) in found.at {
        if key.0 == Kind::Limit && !logical.told.contains_key(&key) {
            // The first rows of one drive alone need no merge.
            key.0 = Kind::Sort;
        }
        let Some(told) = logical.told.get(&key) else { continue };
        if told.len() == places.len() {
            for (place, reason) in places.into_iter().zip(told) {
                reasons[place].clone_from(reason);
            }
        } else if let [place] = places.as_slice() {
            // Several operators became one: the reason of the lowest one that has its own holds for all.
            let own = told.iter().flatten().find(|reason| !skytether_common::plan_words::only_follows(reason));
            reasons[*place] = own.or_else(|| told.iter().flatten().next()).cloned();
        } else if !matches!(key.0, Kind::Sort | Kind::Projection) && told.iter().all(|reason| reason == &told[0]) {
            places.into_iter().for_each(|place| reasons[place].clone_from(&told[0]));
        }
    }
    for (reason, helps) in reasons.iter_mut().zip(found.helps) {
        *reason = reason.take().or_else(|| helps.map(str::to_owned));
    }
    reasons
}

struct Logical<'a> {
    cut: &'a CutPlan,
    /// Reasons of the operators of one kind over the same scans, from the lowest up.
    told: HashMap<(Kind, Scans), Vec<Option<String>>>,
}

impl Logical<'_> {
    fn walk(&mut self, plan: &LogicalPlan) -> Scans {
        if let Some(scan) = DriveScan::of(plan) {
            // The host makes the broadcast tables separately.
            for beside in &scan.inputs {
                self.walk(beside);
            }
            return scan_number(self.cut, scan).into_iter().collect();
        }
        if let Some(shared) = Shared::of(plan).filter(|shared| !shared.here) {
            return super_plan::scans(&shared.plan).iter().filter_map(|scan| scan_number(self.cut, scan)).collect();
        }
        let scans: Scans = plan.inputs().into_iter().flat_map(|input| self.walk(input)).collect();
        // The closure never fails, so neither does the walk.
        let _ = plan.apply_subqueries(|query| {
            self.walk(query);
            Ok(datafusion::common::tree_node::TreeNodeRecursion::Jump)
        });
        let kind = match plan {
            LogicalPlan::Projection(_) => Kind::Projection,
            LogicalPlan::Filter(_) => Kind::Filter,
            LogicalPlan::Limit(_) => Kind::Limit,
            LogicalPlan::Sort(_) => Kind::Sort,
            LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) => Kind::Aggregate,
            LogicalPlan::Window(_) => Kind::Window,
            LogicalPlan::Join(_) => Kind::Join,
            LogicalPlan::Union(_) => Kind::Union,
            LogicalPlan::Unnest(_) => Kind::Unnest,
            LogicalPlan::RecursiveQuery(_) => Kind::Recursion,
            _ => Kind::Other,
        };
        if kind != Kind::Other && !scans.is_empty() {
            let reason = self.reason(plan);
            self.told.entry((kind, scans.clone())).or_default().push(reason);
        }
        scans
    }

    fn reason(&self, plan: &LogicalPlan) -> Option<String> {
        // An operator's text is long where its list is.
        if self.cut.notes.is_empty() {
            return super_plan::remainder(plan).map(str::to_owned);
        }
        let (operator, node) = (operator_name(plan), plan.display().to_string());
        let mut said = self.cut.notes.iter().filter(|note| note.operator == operator && note.node == node).map(|note| &note.reason);
        let first = said.next();
        match first {
            Some(reason) => said.all(|other| other == reason).then(|| reason.clone()),
            None => super_plan::remainder(plan).map(str::to_owned),
        }
    }
}

/// The place of `scan` in the cut. Equal scans are distinguished by their sub-plans, which are separate objects.
pub(crate) fn scan_number(cut: &CutPlan, scan: &DriveScan) -> Option<usize> {
    cut.scans.iter().position(|s| std::sync::Arc::ptr_eq(&s.sub_plan, &scan.sub_plan))
}

struct Physical {
    /// Per operator, from the root down: its purpose, if the engine added it.
    helps: Vec<Option<&'static str>>,
    at: HashMap<(Kind, Scans), Vec<usize>>,
}

impl Physical {
    fn walk(&mut self, plan: &dyn ExecutionPlan, above: Option<Kind>) -> Scans {
        let place = self.helps.len();
        self.helps.push(helps(plan));
        if let Some(scan) = plan.downcast_ref::<DriveScanExec>() {
            for beside in scan.children() {
                self.walk(beside.as_ref(), None);
            }
            return scan.of_cut().into_iter().collect();
        }
        if let Some(input) = plan.downcast_ref::<SharedResultExec>().and_then(SharedResultExec::elsewhere) {
            return scan_numbers(input.as_ref()).into_iter().flatten().map(|number| number as usize).collect();
        }
        // Windows and joins add their own sorts, which are not a sort that the query asked for.
        let kind = kind(plan).filter(|kind| *kind != Kind::Sort || !matches!(above, Some(Kind::Window | Kind::Join)));
        let nearest = if is_plumbing(plan.name(), false) { above } else { kind };
        let mut below = plan.children().into_iter().map(|child| self.walk(child.as_ref(), nearest)).collect::<Vec<_>>();
        if plan.name() == "ScalarSubqueryExec" {
            // Rows come from the first; the others are computed before.
            below.truncate(1);
        }
        let scans: Scans = below.into_iter().flatten().collect();
        if let Some(kind) = kind
            && !scans.is_empty()
        {
            self.at.entry((kind, scans.clone())).or_default().push(place);
        }
        scans
    }
}

/// What an operator is for that a query need not have asked for.
fn helps(plan: &dyn ExecutionPlan) -> Option<&'static str> {
    match plan.name() {
        "AggregateExec" => Some("a first step of the aggregate above it, on each thread"),
        "LocalLimitExec" => Some("a first step of the limit above it, on each thread"),
        "SortPreservingMergeExec" => Some("it merges the sorted rows of several threads"),
        "SortExec" => Some("what is above it needs its rows in this order"),
        "ProjectionExec" => Some("it prepares columns for what is above it"),
        "ScalarSubqueryExec" => Some("it computes the value of a subquery, once, for what is in the rest of the query"),
        "FilterExec" => Some("it filters rows that the host has"),
        "SharedResultExec" => Some("several parts of the query use its rows, which are computed once"),
        "WorkTableExec" => Some("the rows of the round before"),
        _ => None,
    }
}

/// Whether the rows of `plan` come sorted from drives.
fn sorted_below(plan: &dyn ExecutionPlan) -> bool {
    plan.children().into_iter().any(|child| {
        let through = is_plumbing(child.name(), false) || matches!(child.name(), "UnionExec" | "InterleaveExec" | "ProjectionExec");
        child.is::<DriveScanExec>() || (through && sorted_below(child.as_ref()))
    })
}

/// The kind of a physical operator; `None` for operators that only prepare another one's work.
fn kind(plan: &dyn ExecutionPlan) -> Option<Kind> {
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        return (!matches!(aggregate.mode(), AggregateMode::Partial)).then_some(Kind::Aggregate);
    }
    match plan.name() {
        "ProjectionExec" => Some(Kind::Projection),
        "FilterExec" => Some(Kind::Filter),
        "GlobalLimitExec" => Some(Kind::Limit),
        "CoalescePartitionsExec" if plan.fetch().is_some() => Some(Kind::Limit),
        "SortExec" | "SortExec(TopK)" => Some(Kind::Sort),
        // It merges sorted rows; elsewhere it joins the sorted rows of several threads.
        "SortPreservingMergeExec" if sorted_below(plan) => Some(Kind::Sort),
        "WindowAggExec" | "BoundedWindowAggExec" => Some(Kind::Window),
        "UnionExec" | "InterleaveExec" => Some(Kind::Union),
        "UnnestExec" => Some(Kind::Unnest),
        "RecursiveQueryExec" => Some(Kind::Recursion),
        name if name.ends_with("JoinExec") => Some(Kind::Join),
        _ => None,
    }
}
