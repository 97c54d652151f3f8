//! Long lists of results over one table, optimised in parts before the cut.
//!
//! [`crate::chunked`] plans each part of the list as a query of its own over the columns that it names. Here
//! DataFusion's rules rewrite each part, and the results become one plan: the plan that the rules would have made of
//! the whole list. Each rule looks columns up by name and computes their types again. A part has few columns, so this
//! is fast, and parts are rewritten in parallel.
//!
//! Three rules need the list as a whole:
//! - Two of them find what is computed twice, or what the scan may compute. A walk through all expressions shows
//!   whether they have work; if so, they get the joined plan.
//! - The third gives each operator the columns that are wanted above it. This module does that with an index of names.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, ScalarValue, TableReference};
use datafusion::datasource::provider_as_source;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Aggregate, Expr, ExpressionPlacement, Filter, LogicalPlan, Projection, SubqueryAlias, TableScan, TableScanBuilder};
use datafusion::optimizer::{Optimizer, OptimizerRule};
use skytether_plan::wide_projection::{aggregate, projection};

use crate::narrow_table::OneTable;

/// Where the rules begin that see a list as a whole.
const OF_THE_WHOLE: &str = "common_sub_expression_eliminate";

/// Those rules, as far as they are known here. The last one rewrites joins.
const KNOWN: [&str; 5] = [OF_THE_WHOLE, "extract_leaf_expressions", "push_down_leaf_projections", "optimize_projections", "join_types"];

/// Rewrites an aggregate whose calls are all alike.
const SINGLE_DISTINCT: &str = "single_distinct_aggregation_to_group_by";

/// DataFusion's rules in two halves.
pub(crate) struct Rules {
    of_parts: Optimizer,
    of_the_whole: Optimizer,
    /// Whether all of the second half are known.
    known: bool,
}

impl Rules {
    /// The rules of `state`; `None` where they are not in the order that is expected.
    pub(crate) fn of(state: &SessionState) -> Option<Self> {
        let all = state.optimizers();
        let (first, rest) = all.split_at(all.iter().position(|rule| rule.name() == OF_THE_WHOLE)?);
        let of_parts: Vec<Arc<dyn OptimizerRule + Send + Sync>> = first.iter().filter(|rule| rule.name() != SINGLE_DISTINCT).cloned().collect();
        Some(Self {
            of_parts: Optimizer::with_rules(of_parts),
            known: rest.iter().all(|rule| KNOWN.contains(&rule.name())),
            of_the_whole: Optimizer::with_rules(rest.to_vec()),
        })
    }

    /// The parts of `plan`, which has some results of a list, after the rules that can rewrite them separately. `None`
    /// where it is not made of the operators of such a list, or where the whole list must report the error.
    pub(crate) fn part(&self, plan: LogicalPlan, state: &SessionState) -> Option<Part> {
        let analysed = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {}).ok()?;
        Part::of(self.of_parts.optimize(analysed, state, |_, _| {}).ok()?)
    }

    /// The optimised plan of all `parts` of a list over `table`.
    pub(crate) fn joined(&self, parts: Vec<Part>, table: &OneTable, state: &SessionState) -> Option<LogicalPlan> {
        let joined = Joined::of(parts)?;
        if self.known && !joined.has_work_for_the_whole() {
            return joined.finished(table);
        }
        self.of_the_whole.optimize(joined.plain(table)?, state, |_, _| {}).ok()
    }
}

/// A plan that is a projection over at most one aggregate over filters and aliases of one scan.
pub(crate) struct Part {
    results: Vec<Expr>,
    aggregate: Option<Calls>,
    /// From the highest down.
    below: Vec<Step>,
    scan: TableScan,
}

/// Of an aggregate.
struct Calls {
    groups: Vec<Expr>,
    calls: Vec<Expr>,
}

#[derive(Clone, PartialEq)]
enum Step {
    Filter(Expr),
    Alias(TableReference),
}

impl Part {
    fn of(plan: LogicalPlan) -> Option<Self> {
        let LogicalPlan::Projection(Projection { expr: results, input, .. }) = plan else { return None };
        let mut at = Arc::unwrap_or_clone(input);
        let mut aggregate = None;
        if let LogicalPlan::Aggregate(Aggregate { input, group_expr, aggr_expr, .. }) = at {
            aggregate = Some(Calls { groups: group_expr, calls: aggr_expr });
            at = Arc::unwrap_or_clone(input);
        }
        let mut below = Vec::new();
        loop {
            at = match at {
                LogicalPlan::Filter(Filter { predicate, input, .. }) => {
                    below.push(Step::Filter(predicate));
                    Arc::unwrap_or_clone(input)
                }
                LogicalPlan::SubqueryAlias(SubqueryAlias { alias, input, .. }) => {
                    below.push(Step::Alias(alias));
                    Arc::unwrap_or_clone(input)
                }
                LogicalPlan::TableScan(scan) if scan.projection.is_none() && scan.filters.is_empty() && scan.fetch.is_none() => {
                    return Some(Self { results, aggregate, below, scan });
                }
                _ => return None,
            };
        }
    }
}

/// All parts of a list.
struct Joined {
    results: Vec<Expr>,
    aggregate: Option<Calls>,
    below: Vec<Step>,
    table: TableReference,
}

impl Joined {
    /// The plan of all `parts` together. `None` where they are over different rows, or where their names refer to
    /// something that only the planner knows.
    fn of(parts: Vec<Part>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let Part { mut results, aggregate, below, scan } = parts.next()?;
        let (mut calls, groups) = match aggregate {
            Some(Calls { groups, calls }) => (Some(Distinct::of(calls)?), groups),
            None => (None, Vec::new()),
        };
        for part in parts {
            if part.below != below || part.scan.table_name != scan.table_name {
                return None;
            }
            match (&mut calls, part.aggregate) {
                (None, None) => {}
                (Some(calls), Some(own)) if own.groups == groups => calls.add(own.calls)?,
                _ => return None,
            }
            results.extend(part.results);
        }
        let mut names = HashSet::with_capacity(results.len());
        if !results.iter().all(|result| names.insert(result.schema_name().to_string())) {
            return None;
        }
        let aggregate = calls.map(|calls| Calls { groups, calls: calls.calls });
        let one_distinct = aggregate.as_ref().is_some_and(|aggregate| distinct_arguments(&aggregate.calls) == 1);
        (!one_distinct).then_some(Self { results, aggregate, below, table: scan.table_name })
    }

    /// Whether something in one operator is computed twice, or by functions that scans may compute.
    fn has_work_for_the_whole(&self) -> bool {
        let mut filters = self.below.iter().filter_map(|step| match step {
            Step::Filter(predicate) => Some(predicate),
            Step::Alias(_) => None,
        });
        let aggregate = self.aggregate.as_ref();
        is_work(&self.results)
            || aggregate.is_some_and(|aggregate| is_work(aggregate.groups.iter().chain(&aggregate.calls)))
            || filters.any(|predicate| is_work([predicate]))
    }

    /// The plan with all columns of `table`.
    fn plain(self, table: &OneTable) -> Option<LogicalPlan> {
        let mut plan = LogicalPlan::TableScan(TableScanBuilder::new(self.table, provider_as_source(Arc::clone(table.whole()))).build().ok()?);
        for step in self.below.iter().rev() {
            plan = step.over(plan)?;
        }
        if let Some(Calls { groups, calls }) = self.aggregate {
            plan = LogicalPlan::Aggregate(aggregate(Arc::new(plan), groups, calls).ok()?);
        }
        projection(self.results, Arc::new(plan)).map(LogicalPlan::Projection).ok()
    }

    /// The plan in which each operator has only the columns of `table` that are wanted above it.
    fn finished(self, table: &OneTable) -> Option<LogicalPlan> {
        let places = table.places();
        let columns = match &self.aggregate {
            Some(Calls { groups, calls }) => wanted(groups.iter().chain(calls), &places)?,
            None => wanted(&self.results, &places)?,
        };
        let below = Below { table: &self.table, whole: table, places: &places };
        let mut plan = below.plan(&self.below, &columns)?;
        if let Some(Calls { groups, calls }) = self.aggregate {
            plan = LogicalPlan::Aggregate(aggregate(Arc::new(below.no_more_than(plan, &columns)?), groups, calls).ok()?);
        }
        let schema = plan.schema();
        let same = |((qualifier, field), result): ((Option<&TableReference>, _), &Expr)| {
            let field: &Arc<arrow::datatypes::Field> = field;
            matches!(result, Expr::Column(column) if column.relation.as_ref() == qualifier && column.name == *field.name())
        };
        if self.results.len() == schema.fields().len() && schema.iter().zip(&self.results).all(same) {
            return Some(plan);
        }
        projection(self.results, Arc::new(plan)).map(LogicalPlan::Projection).ok()
    }
}

/// The calls of several aggregates, each once.
struct Distinct {
    calls: Vec<Expr>,
    /// Where the call of a name is.
    names: HashMap<String, usize>,
}

impl Distinct {
    fn of(calls: Vec<Expr>) -> Option<Self> {
        let mut all = Self { calls: Vec::with_capacity(calls.len()), names: HashMap::new() };
        all.add(calls)?;
        Some(all)
    }

    /// `None` where two calls of one name differ: results refer to them by name, which has no casts, and only the
    /// planner knows what to say then.
    fn add(&mut self, calls: Vec<Expr>) -> Option<()> {
        for call in calls {
            let name = call.schema_name().to_string();
            match self.names.entry(name) {
                Entry::Vacant(new) => {
                    new.insert(self.calls.len());
                    self.calls.push(call);
                }
                Entry::Occupied(known) if self.calls.get(*known.get()) == Some(&call) => {}
                Entry::Occupied(_) => return None,
            }
        }
        Some(())
    }
}

impl Step {
    fn over(&self, input: LogicalPlan) -> Option<LogicalPlan> {
        match self {
            Self::Filter(predicate) => Filter::try_new(predicate.clone(), Arc::new(input)).map(LogicalPlan::Filter).ok(),
            Self::Alias(alias) => SubqueryAlias::try_new(Arc::new(input), alias.clone()).map(LogicalPlan::SubqueryAlias).ok(),
        }
    }
}

/// The operators below a list.
struct Below<'a> {
    table: &'a TableReference,
    whole: &'a OneTable,
    places: &'a HashMap<&'a str, usize>,
}

impl Below<'_> {
    /// `steps` over the scan, from the highest down, with the columns `columns`.
    fn plan(&self, steps: &[Step], columns: &BTreeSet<usize>) -> Option<LogicalPlan> {
        let Some((step, rest)) = steps.split_first() else {
            let source = provider_as_source(Arc::clone(self.whole.whole()));
            let scan = TableScanBuilder::new(self.table.clone(), source).with_projection(Some(columns.iter().copied().collect()));
            return scan.build().map(LogicalPlan::TableScan).ok();
        };
        let mut more = columns.clone();
        if let Step::Filter(predicate) = step {
            more.extend(wanted([predicate], self.places)?);
        }
        let input = self.plan(rest, &more)?;
        step.over(self.no_more_than(input, &more)?)
    }

    /// `plan` with no other columns than `columns`.
    fn no_more_than(&self, plan: LogicalPlan, columns: &BTreeSet<usize>) -> Option<LogicalPlan> {
        let schema = plan.schema();
        if columns.len() >= schema.fields().len() {
            return Some(plan);
        }
        let wanted = schema.iter().filter(|(_, field)| self.places.get(field.name().as_str()).is_some_and(|place| columns.contains(place)));
        let wanted = wanted.map(|(qualifier, field)| Expr::Column(Column::new(qualifier.cloned(), field.name()))).collect();
        projection(wanted, Arc::new(plan)).map(LogicalPlan::Projection).ok()
    }
}

/// Where the columns of a table are that `exprs` name; `None` for others.
fn wanted<'e>(exprs: impl IntoIterator<Item = &'e Expr>, places: &HashMap<&str, usize>) -> Option<BTreeSet<usize>> {
    let (mut found, mut all) = (BTreeSet::new(), true);
    for expr in exprs {
        let walked = expr.apply(|e| {
            if let Expr::Column(column) = e {
                match places.get(column.name.as_str()) {
                    Some(place) => drop(found.insert(*place)),
                    None => all = false,
                }
            }
            Ok(TreeNodeRecursion::Continue)
        });
        walked.ok()?;
    }
    all.then_some(found)
}

/// How many different arguments the calls with DISTINCT have.
fn distinct_arguments(calls: &[Expr]) -> usize {
    let mut arguments = Vec::new();
    for call in calls {
        if let Expr::AggregateFunction(call) = call
            && call.params.distinct
        {
            for argument in &call.params.args {
                if !arguments.contains(&argument) {
                    arguments.push(argument);
                }
            }
            // One is what matters.
            if arguments.len() > 1 {
                break;
            }
        }
    }
    arguments.len()
}

/// Whether a rule that sees all of `exprs` may find something to do.
fn is_work<'e>(exprs: impl IntoIterator<Item = &'e Expr>) -> bool {
    let mut marks = Marks::default();
    exprs.into_iter().any(|expr| marks.of(expr).is_none())
}

/// Marks of expressions: equal ones have the same mark.
#[derive(Default)]
struct Marks(HashSet<u64>);

impl Marks {
    /// The mark of `expr`; `None` where a part of it that is computed has the mark of another that was seen, or
    /// its place may be in a scan.
    fn of(&mut self, expr: &Expr) -> Option<u64> {
        use std::hash::{DefaultHasher, Hash, Hasher};

        let mut hasher = DefaultHasher::new();
        std::mem::discriminant(expr).hash(&mut hasher);
        let computed = match expr {
            Expr::Column(column) => {
                column.name.hash(&mut hasher);
                false
            }
            Expr::Literal(value, _) => {
                ScalarValue::hash(value, &mut hasher);
                false
            }
            // An alias is resolved to its expression.
            Expr::Alias(alias) => return self.of(&alias.expr),
            Expr::Cast(cast) => {
                cast.field.data_type().hash(&mut hasher);
                true
            }
            Expr::BinaryExpr(binary) => {
                binary.op.hash(&mut hasher);
                true
            }
            Expr::AggregateFunction(call) => {
                (call.func.name(), call.params.distinct).hash(&mut hasher);
                true
            }
            Expr::ScalarFunction(call) => {
                if expr.placement() == ExpressionPlacement::MoveTowardsLeafNodes {
                    return None;
                }
                call.name().hash(&mut hasher);
                true
            }
            // Plans of their own.
            Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_) => return None,
            _ => true,
        };
        let mut all = true;
        let walked = expr.apply_children(|child| {
            Ok(match self.of(child) {
                Some(mark) => {
                    mark.hash(&mut hasher);
                    TreeNodeRecursion::Continue
                }
                None => {
                    all = false;
                    TreeNodeRecursion::Stop
                }
            })
        });
        walked.ok()?;
        let mark = hasher.finish();
        (all && (!computed || self.0.insert(mark))).then_some(mark)
    }
}

#[cfg(test)]
mod tests;
