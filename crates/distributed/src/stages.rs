//! Cuts a physical plan into stages.
//!
//! A stage ends where rows change hands: at a repartition by hash, and below the merge of all partitions. Its tasks are
//! numbered. Of a stage with P partitions going in, task t of T has those with the numbers p for which p modulo T is t,
//! so each partition has one owner, whatever P and T are.
//!
//! | below the cut | tasks |
//! |---|---|
//! | operators that treat each partition by itself | one for each worker, at most one for each partition |
//! | a join whose partitions share a build side, and operators that this module does not know | one |
//! | operators with the value of a scalar subquery | none: they stay with the operator that computes the value |

use std::fmt::Write;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{NullEquality, Result as DfResult};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions};
use skytether_exec::scan::DriveScanExec;

use crate::join_keys::{JoinKeys, Runs, Teller, Told};
use crate::spilling_join::SpillingJoinExec;
use crate::stage_read::{Links, PickExec, StageReadExec};

/// A physical plan.
pub type Plan = Arc<dyn ExecutionPlan>;

/// Operators that treat each partition by itself, besides those that have a case of their own.
const APART: &[&str] = &[
    "FilterExec",
    "ProjectionExec",
    "CoalesceBatchesExec",
    "CooperativeExec",
    "YieldingJoinExec",
    "AggregateExec",
    "SortExec",
    "PartialSortExec",
    "LocalLimitExec",
    "GlobalLimitExec",
    "WindowAggExec",
    "BoundedWindowAggExec",
    "SortMergeJoinExec",
    "DataSourceExec",
    "EmptyExec",
    "PlaceholderRowExec",
];

/// Those among them that take so much memory or time that other hosts are worth asking.
const HEAVY: &[&str] = &["AggregateExec", "SortExec", "PartialSortExec", "WindowAggExec", "BoundedWindowAggExec", "SortMergeJoinExec"];

/// How rows leave a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// Each task deals its rows to all partitions, by the hash of a key.
    Hash,
    /// Each partition goes on as it is.
    Pass,
}

/// A part of the plan between two exchanges.
#[derive(Debug)]
pub struct Stage {
    /// Its number: stages below have lower ones.
    pub number: usize,
    /// How its rows leave it.
    pub exchange: Exchange,
    /// How many tasks run it.
    pub tasks: usize,
    /// What it runs; for [`Exchange::Hash`] with the repartition on top.
    pub plan: Plan,
}

/// A plan, cut.
#[derive(Debug)]
pub struct Stages {
    /// What the coordinator runs.
    pub root: Plan,
    /// What workers run.
    pub stages: Vec<Stage>,
    /// The joins whose keys scans wait for.
    pub(crate) keys: Vec<JoinKeys>,
    /// What joins that run here tell.
    pub(crate) told: Arc<Told>,
}

impl Stages {
    /// Cuts `plan` for `workers` hosts. What it reads from stages comes by `links`.
    ///
    /// # Errors
    /// Those of operators that do not take their new inputs.
    pub fn of(plan: &Plan, workers: usize, links: &Arc<dyn Links>) -> DfResult<Self> {
        let mut cutter = Cutter { workers: workers.max(1), links, stages: Vec::new(), keys: Vec::new(), told: Arc::default() };
        let root = cutter.part(plan)?.plan;
        let Cutter { stages, keys, told, .. } = cutter;
        for key in keys.iter().filter(|key| key.runs.is_none()) {
            // No part of the query tells them.
            key.complete(None);
        }
        Ok(Self { root, stages, keys, told })
    }

    /// The plan and all that it reads, as text: equal on two hosts if both run the same.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.described();
        for stage in &self.stages {
            identities(stage.plan.as_ref(), &mut text);
        }
        identities(self.root.as_ref(), &mut text);
        text
    }

    /// The stages for people, the coordinator's part first.
    #[must_use]
    pub fn described(&self) -> String {
        let show = |plan: &Plan| DisplayableExecutionPlan::new(plan.as_ref()).indent(false).to_string();
        let mut text = format!("host\n{}", indented(&show(&self.root)));
        for stage in self.stages.iter().rev() {
            // Writing into a string can't fail.
            let _ = write!(text, "stage {} ({} tasks)\n{}", stage.number, stage.tasks, indented(&show(&stage.plan)));
        }
        text
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

fn identities(plan: &dyn ExecutionPlan, text: &mut String) {
    if let Some(scan) = plan.downcast_ref::<DriveScanExec>() {
        text.push_str(&scan.identity());
        text.push('\n');
    }
    plan.children().into_iter().for_each(|child| identities(child.as_ref(), text));
}

impl Stage {
    /// What task `task` runs.
    ///
    /// # Errors
    /// Those of operators that do not take their new inputs.
    pub fn of_task(&self, task: usize) -> DfResult<Plan> {
        let deal = self.plan.downcast_ref::<RepartitionExec>().filter(|_| self.exchange == Exchange::Hash);
        let part = deal.map_or(&self.plan, RepartitionExec::input);
        let own: Vec<bool> = (0..count(part)).map(|partition| partition % self.tasks == task).collect();
        let mine = restricted(part, &own)?;
        let Some(deal) = deal else { return Ok(mine) };
        let mine = if own.contains(&false) {
            let numbers = own.iter().enumerate().filter(|(_, own)| **own).map(|(partition, _)| partition).collect();
            Arc::new(PickExec::new(mine, numbers)) as Plan
        } else {
            mine
        };
        Ok(Arc::new(RepartitionExec::try_new(mine, deal.partitioning().clone())?))
    }

    /// Its first operators, for people.
    #[must_use]
    pub fn title(&self) -> String {
        let (mut names, mut at) = (Vec::new(), Some(&self.plan));
        while let Some(plan) = at {
            names.push(plan.name().trim_end_matches("Exec"));
            let children = plan.children();
            at = if names.len() < 5 { children.first().copied() } else { None };
        }
        names.dedup();
        names.join(" <- ")
    }
}

/// `plan` with scans that only read the drives whose partitions are among `own`.
fn restricted(plan: &Plan, own: &[bool]) -> DfResult<Plan> {
    if own.iter().all(|own| *own) {
        return Ok(Arc::clone(plan));
    }
    if let Some(scan) = plan.downcast_ref::<DriveScanExec>() {
        return Ok(Arc::new(scan.of_targets(own.to_vec())));
    }
    let inputs = plan.children();
    if inputs.is_empty() {
        return Ok(Arc::clone(plan));
    }
    let mut first = 0;
    let inputs = inputs.into_iter().map(|input| {
        let partitions = count(input);
        if plan.is::<UnionExec>() {
            first += partitions;
            return restricted(input, own.get(first - partitions..first).unwrap_or(&[]));
        }
        // One partition made of several needs all of them.
        if partitions == own.len() { restricted(input, own) } else { Ok(Arc::clone(input)) }
    });
    let inputs = inputs.collect::<DfResult<Vec<_>>>()?;
    replaced(plan, inputs)
}

fn count(plan: &Plan) -> usize {
    plan.output_partitioning().partition_count()
}

fn replaced(plan: &Plan, inputs: Vec<Plan>) -> DfResult<Plan> {
    if plan.children().into_iter().zip(&inputs).all(|(old, new)| Arc::ptr_eq(old, new)) {
        return Ok(Arc::clone(plan));
    }
    Arc::clone(plan).replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// What an operator is. The name of a sort, for example, also says which kind of sort it is.
fn kind(node: &Plan) -> &str {
    node.name().split('(').next().unwrap_or_default()
}

/// Whether an expression of `plan` has the value of a scalar subquery.
fn has_subquery_value(plan: &Plan) -> DfResult<bool> {
    fn within(expr: &Arc<dyn PhysicalExpr>) -> bool {
        expr.is::<ScalarSubqueryExpr>() || expr.children().into_iter().any(within)
    }
    let mut found = false;
    plan.apply_expressions(&mut |expr| {
        found |= within(expr);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

/// A part of the plan that no exchange divides.
struct Part {
    plan: Plan,
    /// Whether several tasks may run it.
    many: bool,
    /// Whether other hosts are worth asking.
    heavy: bool,
    /// Whether it can't leave the operator above it that computes a scalar subquery.
    bound: bool,
}

struct Cutter<'a> {
    workers: usize,
    links: &'a Arc<dyn Links>,
    stages: Vec<Stage>,
    keys: Vec<JoinKeys>,
    told: Arc<Told>,
}

impl Cutter<'_> {
    fn part(&mut self, node: &Plan) -> DfResult<Part> {
        if node.is::<DriveScanExec>() {
            if !node.children().is_empty() {
                // One task computes the tables and keys that go down with it, once. Several would each compute their
                // own, and a LIMIT, ties or random() may give each of them other rows.
                return whole(node);
            }
            return Ok(Part { plan: Arc::clone(node), many: true, heavy: false, bound: false });
        }
        if let Some(deal) = node.downcast_ref::<RepartitionExec>() {
            if !matches!(deal.partitioning(), Partitioning::Hash(..)) || deal.preserve_order() {
                return whole(node);
            }
            let part = self.part(deal.input())?;
            if part.bound || has_subquery_value(node)? {
                return Ok(Part { plan: replaced(node, vec![part.plan])?, many: false, bound: true, ..part });
            }
            let tasks = self.tasks(&part);
            let plan = replaced(node, vec![part.plan])?;
            return Ok(self.stage(Exchange::Hash, plan, tasks, true));
        }
        if node.is::<CoalescePartitionsExec>() || node.is::<SortPreservingMergeExec>() {
            let [input] = node.children()[..] else { return whole(node) };
            let part = self.part(input)?;
            let (heavy, bound) = (part.heavy, part.bound);
            let below = self.apart(part, true);
            return Ok(Part { plan: replaced(node, vec![below])?, many: !bound, heavy: heavy && bound, bound });
        }
        if let Some(subquery) = node.downcast_ref::<ScalarSubqueryExec>() {
            let mut inputs = vec![self.part(subquery.input())?.plan];
            for link in subquery.subqueries() {
                inputs.push(self.part(&link.plan)?.plan);
            }
            return Ok(Part { plan: replaced(node, inputs)?, many: false, heavy: true, bound: false });
        }
        let join = node.downcast_ref::<HashJoinExec>();
        let shares = join.is_some_and(|join| *join.partition_mode() != PartitionMode::Partitioned)
            || ["NestedLoopJoinExec", "CrossJoinExec", "PiecewiseMergeJoinExec"].contains(&kind(node));
        if !shares && join.is_none() && !node.is::<UnionExec>() && !APART.contains(&kind(node)) {
            return whole(node);
        }
        let inputs = node.children().into_iter().map(Arc::clone).collect::<Vec<_>>();
        let inputs = inputs.iter().map(|input| self.part(input)).collect::<DfResult<Vec<_>>>()?;
        let bound = inputs.iter().any(|input| input.bound) || has_subquery_value(node)?;
        let heavy = shares || join.is_some() || HEAVY.contains(&kind(node)) || inputs.iter().any(|input| input.heavy);
        // What several tasks can do is not left to one, and what one must do leaves the rest to several.
        let cuts = shares || inputs.len() > 1 || HEAVY.contains(&kind(node));
        let many = !shares && !bound && (cuts || inputs.iter().all(|input| input.many));
        let inputs = inputs.into_iter().map(|input| if bound || !cuts || input.many != shares { input.plan } else { self.apart(input, false) });
        let inputs = inputs.collect();
        let teller = join.and_then(|join| self.keys_of(join));
        Ok(Part { plan: SpillingJoinExec::around(replaced(node, inputs)?, teller), many, heavy, bound })
    }

    fn tasks(&self, part: &Part) -> usize {
        if part.many { count(&part.plan).clamp(1, self.workers) } else { 1 }
    }

    /// Notes the keys of a join that scans wait for.
    fn keys_of(&mut self, join: &HashJoinExec) -> Option<Teller> {
        let filter = join.dynamic_expressions_produced().pop()?;
        let probe = join.on().iter().map(|(_, probe)| Arc::clone(probe)).collect();
        self.keys.push(JoinKeys::new(self.keys.len(), filter, probe, join.right().schema()));
        // Where NULL equals NULL, a list of keys lacks one.
        let tells = join.null_equality == NullEquality::NullEqualsNothing;
        tells.then(|| Teller::new(self.keys.len() - 1, &self.told))
    }

    /// `part` as a stage of its own, where other hosts are worth asking. `at_once` as in [`Cutter::stage`].
    fn apart(&mut self, part: Part, at_once: bool) -> Plan {
        if part.bound || !part.heavy {
            return part.plan;
        }
        let tasks = self.tasks(&part);
        self.stage(Exchange::Pass, part.plan, tasks, at_once).plan
    }

    /// A stage of its own. The reader reads all partitions `at_once`, or some of them later or never.
    fn stage(&mut self, exchange: Exchange, plan: Plan, tasks: usize, at_once: bool) -> Part {
        let number = self.stages.len() + 1;
        if at_once {
            self.joins_run(&plan, Runs { stage: number, tasks, first: 0, partitions: count(&plan) });
        }
        let read = StageReadExec::new(number, tasks, exchange, Arc::clone(self.links), Arc::clone(plan.properties()));
        self.stages.push(Stage { number, exchange, tasks, plan });
        Part { plan: Arc::new(read), many: true, heavy: false, bound: false }
    }

    /// Notes where the joins of `plan` run, which runs at `runs`.
    fn joins_run(&mut self, plan: &Plan, runs: Runs) {
        let joins = plan.downcast_ref::<SpillingJoinExec>().and_then(SpillingJoinExec::tells);
        if let Some(keys) = joins.and_then(|number| self.keys.get_mut(number)) {
            keys.runs = Some(runs);
        }
        let mut first = runs.first;
        for input in plan.children() {
            let partitions = count(input);
            let of_union = plan.is::<UnionExec>();
            // One partition made of several is read as the operator likes.
            if of_union || partitions == runs.partitions {
                self.joins_run(input, Runs { first, partitions, ..runs });
            }
            first += if of_union { partitions } else { 0 };
        }
    }
}

/// What one task runs as it is, with all that is below. Its joins send keys to its scans by themselves.
fn whole(node: &Plan) -> DfResult<Part> {
    fn any(node: &Plan) -> DfResult<bool> {
        if has_subquery_value(node)? {
            return Ok(true);
        }
        node.children().into_iter().try_fold(false, |found, child| Ok(found || any(child)?))
    }
    Ok(Part { plan: Arc::clone(node), many: false, heavy: true, bound: any(node)? })
}
