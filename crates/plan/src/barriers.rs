//! Barriers for rules of DataFusion that move something too far down the physical plan.
//!
//! - **Filters.** DataFusion moves filters, and those that joins make, down. On the way it finds a filter's column
//!   in the next operator by name. Where two columns have that name, as after a join of `a.c` and `b.c`, it takes the
//!   first of them, and rows are dropped by the wrong column. While these rules run, a barrier is above every operator
//!   with such columns. It lets no filter pass that names one of them. The same goes for a filter that names no column
//!   at all, above an aggregate that has a row without any input.
//! - **Lists, structs and maps.** A join makes a filter of the keys of one side for the other, and `min` and `max` make
//!   one of what they found. For nested values such filters are computed in several ways, which take NULLs within them
//!   for different things: rows were lost. Some keys were errors. A barrier below lets no filter of such values pass.
//! - **Pinned conditions.** A filter takes the conditions above it into its own. A barrier below a filter whose
//!   condition can fail, or is random, keeps it in its place.
//! - **Limits.** Where the input of `ORDER BY x LIMIT 3` is sorted by `x`, DataFusion drops the sort and gives its
//!   limit to whatever sorts below, also below a `DISTINCT`, which then has too few rows. While this rule runs, a
//!   barrier below such a sort hides the order, so that the sort stays.
//! - **Sorts over unions.** A column that is a constant in each branch of a union, another one in each, is no key of
//!   DataFusion's sorts of the branches. All branches share the threshold of `ORDER BY x LIMIT 3`, and rows are dropped
//!   by the remaining keys. While the same rule runs, a barrier above such a union hides that these columns are
//!   constant. Where branches have columns that are equal, a sort that moves into them sorts by one of these. The union
//!   does not know that the other is sorted as well, and there is no plan. There, a barrier keeps sorts above.
//! - **Constants of joins.** A sort by a column that is a constant below a join moves below that join, and is left out
//!   there. The join does not know that the column is a constant, and there is no plan. While this rule runs, a barrier
//!   keeps sorts above joins of such inputs. It is made before those of unions, which hide the constants of branches.
//! - **Constants of one row.** The columns of an aggregate without groups are constants, and a sort above a window
//!   over them is left out. Then the window's rows are divided, the constants are lost, and there is no plan. While
//!   this rule runs, a barrier above such a window hides that they are constant.
//! - **Projections.** A filter may show some columns of its input only. DataFusion moves a projection below such a
//!   filter, and takes places among the shown columns for places in the input: `WHERE a.k = 5` became `b.k = 5`. While
//!   this rule runs, a barrier is above every such filter.
//! - **Outer joins.** DataFusion takes a constant of the optional side for a constant of the join, where it is NULL in
//!   some rows. A barrier above hides that. It stays in the plan.
//! - **Offsets.** `ORDER BY id OFFSET 1` below a sort by another column lost its own sort. While the rule runs, a
//!   barrier below the offset asks for its order, and one above keeps other sorts out.
//! - **Grouping sets.** A key of `CUBE` is NULL in some rows, and DataFusion goes on to take it for the constant that
//!   it is in the input: `WHERE k = 5 GROUP BY CUBE (k) ORDER BY k` comes unsorted. The same goes for two keys that are
//!   equal in the input. A barrier above hides that. It stays in the plan, because all operators above ask.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{AcrossPartitions, Distribution, EquivalenceProperties, LexOrdering, OrderingRequirements, PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_optimizer::projection_pushdown::ProjectionPushdown;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements, PlanProperties,
    ReplaceChildrenOptions,
};

use crate::computed_equalities::computed_equalities;
use crate::nested_sorts::{constant_sorts, nested_sorts};
use crate::physical_rule::PhysicalRule;
use crate::pinned::PINNED;

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// `rules`, those that move filters, limits or projections too far with barriers.
#[must_use]
pub fn guarded(rules: Vec<Rule>) -> Vec<Rule> {
    let filters = [FilterPushdown::new().name().to_owned(), FilterPushdown::new_post_optimization().name().to_owned()];
    let limits = EnsureRequirements::new().name().to_owned();
    let projections = ProjectionPushdown::new().name().to_owned();
    let guarded = |rule: Rule| -> Vec<Rule> {
        if filters.iter().any(|name| name == rule.name()) {
            // After the last rule that moves a limit into a sort, and before sorts make filters.
            let sorts: Option<Rule> = (filters[1] == rule.name()).then(|| nested_sorts() as Rule);
            sorts.into_iter().chain([Arc::new(Guarded { rule, fences: &[BarrierExec::for_filters] }) as Rule]).collect()
        } else if limits == rule.name() {
            vec![computed_equalities(), constant_sorts(), Arc::new(Guarded { rule, fences: &[BarrierExec::for_constants, BarrierExec::for_sorts] })]
        } else if projections == rule.name() {
            vec![Arc::new(Guarded { rule, fences: &[BarrierExec::for_projections] })]
        } else {
            vec![rule]
        }
    };
    let lasting: Rule = PhysicalRule::new("lasting_barriers", below_lasting_barrier);
    std::iter::once(lasting).chain(rules.into_iter().flat_map(guarded)).collect()
}

/// A barrier that stays in the plan, above what takes columns for constants or for equal that are not: an aggregate
/// with grouping sets, and an outer join whose optional side has constants, which are NULL where that side has no row.
fn below_lasting_barrier(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let has_sets = node.downcast_ref::<AggregateExec>().is_some_and(|a| a.group_expr().has_grouping_set());
    let misled = match (join_type(node), node.children().as_slice()) {
        (Some(of), [left, right]) => {
            let left = matches!(of, JoinType::Right | JoinType::Full) && has_constants(left);
            left || matches!(of, JoinType::Left | JoinType::Full) && has_constants(right)
        }
        _ => has_sets && !node.equivalence_properties().eq_group().is_empty(),
    };
    let barrier = || Arc::new(BarrierExec { stays: true, ..BarrierExec::new(Arc::clone(node), HashSet::new(), false) });
    Ok(misled.then(|| barrier() as Arc<dyn ExecutionPlan>))
}

fn join_type(node: &Arc<dyn ExecutionPlan>) -> Option<JoinType> {
    let hashed = node.downcast_ref::<HashJoinExec>().map(|join| *join.join_type());
    let nested = || node.downcast_ref::<NestedLoopJoinExec>().map(|join| *join.join_type());
    hashed.or_else(nested).or_else(|| node.downcast_ref::<SortMergeJoinExec>().map(|join| join.join_type()))
}

type Fence = fn(Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>>;

#[derive(Debug)]
struct Guarded {
    rule: Rule,
    /// Put barriers where operators need them, one after the other.
    fences: &'static [Fence],
}

impl PhysicalOptimizerRule for Guarded {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let mut fenced = plan;
        for fence in self.fences {
            fenced = fenced.transform_up(fence).data()?;
        }
        self.rule
            .optimize(fenced, config)?
            .transform_up(|node| {
                Ok(match node.downcast_ref::<BarrierExec>() {
                    Some(barrier) if !barrier.stays => Transformed::yes(Arc::clone(&barrier.input)),
                    _ => Transformed::no(node),
                })
            })
            .data()
    }

    fn name(&self) -> &str {
        self.rule.name()
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }
}

/// Its input, as it is, or without its order.
#[derive(Debug)]
struct BarrierExec {
    input: Arc<dyn ExecutionPlan>,
    /// The places of columns that filters may name.
    single: HashSet<usize>,
    ordered: bool,
    /// Whether it is part of the plan that runs.
    stays: bool,
    /// The order that its input keeps.
    keeps: Option<LexOrdering>,
    properties: Arc<PlanProperties>,
}

impl BarrierExec {
    fn new(input: Arc<dyn ExecutionPlan>, single: HashSet<usize>, ordered: bool) -> Self {
        let mut known = if ordered { input.equivalence_properties().clone() } else { EquivalenceProperties::new(input.schema()) };
        known.clear_per_partition_constants();
        let properties = Arc::new(input.properties().as_ref().clone().with_eq_properties(known));
        Self { input, single, ordered, stays: false, keeps: None, properties }
    }

    /// `node`, below a barrier if it has columns of one name, or a row of nothing; above one if it is a filter whose
    /// condition stays in its place.
    fn for_filters(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        if let Some(filter) = node.downcast_ref::<FilterExec>().filter(|filter| is_pinned(filter.predicate())) {
            let barrier = Arc::new(Self::new(Arc::clone(filter.input()), HashSet::new(), true));
            return node.replace_children(vec![barrier], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute)).map(Transformed::yes);
        }
        let node = Self::for_nested_values(node)?;
        let single = single_columns(&node.data);
        // A filter without columns would pass an aggregate that has a row without any input.
        let aggregate = node.data.downcast_ref::<AggregateExec>();
        let of_nothing = aggregate.is_some_and(|a| a.group_expr().is_true_no_grouping() || a.group_expr().has_grouping_set());
        if single.len() == node.data.schema().fields().len() && !of_nothing {
            return Ok(node);
        }
        Ok(Transformed::yes(Arc::new(Self::new(node.data, single, true))))
    }

    /// `node`; if it makes a filter of lists, structs or maps, with a barrier that keeps this filter out of its input.
    fn for_nested_values(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let (side, values): (usize, Vec<Arc<dyn PhysicalExpr>>) = if let Some(join) = node.downcast_ref::<HashJoinExec>() {
            (1, join.on().iter().map(|(_, probed)| Arc::clone(probed)).collect())
        } else if let Some(aggregate) = node.downcast_ref::<AggregateExec>().filter(|a| *a.mode() == AggregateMode::Partial) {
            // No other has a filter. Over states, the arguments would be columns of what is no input any more.
            let calls = aggregate.aggr_expr().iter().filter(|call| matches!(call.fun().name(), "min" | "max"));
            (0, calls.flat_map(|call| call.expressions()).collect())
        } else {
            return Ok(Transformed::no(node));
        };
        let mut inputs: Vec<Arc<dyn ExecutionPlan>> = node.children().into_iter().map(Arc::clone).collect();
        let Some(input) = inputs.get_mut(side) else { return Ok(Transformed::no(node)) };
        let schema = input.schema();
        let mut single = single_columns(input);
        let mut any = false;
        for value in values {
            if value.data_type(&schema)?.is_nested() {
                any = true;
                collect_columns(&value).iter().for_each(|column| _ = single.remove(&column.index()));
            }
        }
        if !any {
            return Ok(Transformed::no(node));
        }
        *input = Arc::new(Self::new(Arc::clone(input), single, true));
        node.replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute)).map(Transformed::yes)
    }

    /// `node`, below a barrier if it is a join or a window that loses constants.
    fn for_constants(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let loses = !node.is::<UnionExec>() && loses_constants(&node);
        Ok(if loses { Transformed::yes(Arc::new(Self::new(node, HashSet::new(), false))) } else { Transformed::no(node) })
    }

    /// `node`, next to a barrier if it is a union or a sort that needs one.
    fn for_sorts(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        if node.is::<UnionExec>() { Ok(Self::for_unions(node)) } else { Self::for_limits(node) }
    }

    /// `node`, below a barrier if it is a filter that shows some columns of its input only.
    fn for_projections(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let shows_some = node.downcast_ref::<FilterExec>().is_some_and(|filter| filter.projection().is_some());
        Ok(if shows_some { Transformed::yes(Arc::new(Self::new(node, HashSet::new(), true))) } else { Transformed::no(node) })
    }

    /// A union, below a barrier if its branches have columns that are equal, or constants of their own. Floats are
    /// sorted by a key that is computed from them (see `float_keys`), which no branch knows to be a constant.
    fn for_unions(union: Arc<dyn ExecutionPlan>) -> Transformed<Arc<dyn ExecutionPlan>> {
        let has_equal = |branch: &Arc<dyn ExecutionPlan>| {
            let classes = branch.equivalence_properties().eq_group();
            classes.iter().any(|class| class.iter().filter(|e| !e.is::<Literal>()).count() > 1)
        };
        let has_float = |branch: &Arc<dyn ExecutionPlan>| {
            let (known, schema) = (branch.equivalence_properties(), branch.schema());
            known.constants().iter().any(|of| of.expr.data_type(&schema).is_ok_and(|of| of.is_floating()))
        };
        let equal = union.children().into_iter().any(|branch| has_equal(branch) || has_float(branch));
        if equal || has_own_constants(&union) { Transformed::yes(Arc::new(Self::new(union, HashSet::new(), !equal))) } else { Transformed::no(union) }
    }

    /// `node`, above a barrier if it is a sort with a limit over what is sorted so and is not the rows of a scan.
    fn for_limits(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        if let Some(limit) = node.downcast_ref::<GlobalLimitExec>()
            && limit.skip() > 0
            && let Some(input) = with_kept_sort(limit.input())?
        {
            let limit = node.replace_children(vec![input], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))?;
            return Ok(Transformed::yes(Arc::new(Self::new(limit, HashSet::new(), false))));
        }
        let Some(sort) = node.downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_some()) else { return Ok(Transformed::no(node)) };
        let input = sort.input();
        if !changes_rows(input) || !input.equivalence_properties().ordering_satisfy(sort.expr().clone())? {
            return Ok(Transformed::no(node));
        }
        let barrier = Arc::new(Self::new(Arc::clone(input), HashSet::new(), false));
        node.replace_children(vec![barrier], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute)).map(Transformed::yes)
    }
}

/// The places of columns whose name no other column of `node` has.
fn single_columns(node: &Arc<dyn ExecutionPlan>) -> HashSet<usize> {
    let schema = node.schema();
    let mut columns: HashMap<&str, usize> = HashMap::new();
    schema.fields().iter().for_each(|field| *columns.entry(field.name()).or_default() += 1);
    schema.fields().iter().enumerate().filter(|(_, field)| columns[field.name().as_str()] == 1).map(|(at, _)| at).collect()
}

/// `node` with a barrier above the sort whose order it has, which asks for that order.
fn with_kept_sort(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(sort) = node.downcast_ref::<SortExec>() {
        let barrier = BarrierExec { keeps: Some(sort.expr().clone()), ..BarrierExec::new(Arc::clone(node), HashSet::new(), true) };
        return Ok(Some(Arc::new(barrier)));
    }
    match (node.children().as_slice(), node.maintains_input_order().as_slice()) {
        ([input], [true]) => match with_kept_sort(input)? {
            Some(input) => {
                let again = Arc::clone(node).replace_children(vec![input], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute));
                again.map(Some)
            }
            None => Ok(None),
        },
        _ => Ok(None),
    }
}

/// Whether a condition has a part that is pinned ([`crate::pinned`]).
fn is_pinned(condition: &Arc<dyn PhysicalExpr>) -> bool {
    condition.downcast_ref::<ScalarFunctionExpr>().is_some_and(|call| call.name() == PINNED) || condition.children().into_iter().any(is_pinned)
}

fn has_constants(node: &Arc<dyn ExecutionPlan>) -> bool {
    !node.equivalence_properties().constants().is_empty()
}

/// Whether columns are constants of each partition, another one in each.
fn has_own_constants(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.equivalence_properties().constants().iter().any(|of| of.across_partitions == AcrossPartitions::Heterogeneous)
}

/// Whether columns are constants below `node`, and may be none above.
fn loses_constants(node: &Arc<dyn ExecutionPlan>) -> bool {
    let divides = node.is::<WindowAggExec>() || node.is::<BoundedWindowAggExec>();
    let mut inputs = node.children().into_iter();
    if inputs.len() > 1 { inputs.any(has_constants) } else { divides && inputs.any(has_own_constants) }
}

/// Whether an operator below gives other rows than it gets.
fn changes_rows(node: &Arc<dyn ExecutionPlan>) -> bool {
    let children = node.children();
    match (children.as_slice(), node.cardinality_effect()) {
        ([], _) => false,
        ([input], CardinalityEffect::Equal) => changes_rows(input),
        _ => true,
    }
}

impl DisplayAs for BarrierExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "BarrierExec")
    }
}

impl ExecutionPlan for BarrierExec {
    fn name(&self) -> &str {
        "BarrierExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        vec![self.keeps.clone().map(OrderingRequirements::from)]
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        // Several partitions would have an order each.
        let distribution = if self.keeps.is_some() { Distribution::SinglePartition } else { Distribution::UnspecifiedDistribution };
        InputDistributionRequirements::new(vec![distribution])
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![self.ordered]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self { stays: self.stays, keeps: self.keeps.clone(), ..Self::new(input, self.single.clone(), self.ordered) })),
            Err(other) => internal_err!("BarrierExec has one input, not {}", other.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn gather_filters_for_pushdown(&self, _: FilterPushdownPhase, filters: Vec<Arc<dyn PhysicalExpr>>, _: &ConfigOptions) -> Result<FilterDescription> {
        let below = if filters.iter().any(|filter| collect_columns(filter).is_empty()) {
            ChildFilterDescription::all_unsupported(&filters)
        } else {
            ChildFilterDescription::from_child_with_allowed_indices(&filters, self.single.clone(), &self.input)?
        };
        Ok(FilterDescription::new().with_child(below))
    }

    fn handle_child_pushdown_result(
        &self,
        _: FilterPushdownPhase,
        result: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        Ok(FilterPushdownPropagation::if_all(result))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
    use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
    use datafusion::prelude::SessionContext;

    use super::*;

    /// Both sides of the join have `c0`, and the condition cannot be turned into an inner join.
    const QUERY: &str = "WITH w AS (SELECT -1 AS c0, 1 AS c1 UNION ALL SELECT s AS c0, 2 AS c1 FROM t) \
        SELECT b.c0 AS c2, a.c0 AS x FROM w a RIGHT JOIN w b ON b.c1 = a.c1 WHERE CASE a.c0 WHEN 1 THEN FALSE ELSE TRUE END ORDER BY c2, x";

    #[tokio::test]
    async fn filter_of_one_side_stays_on_that_side() {
        let state = SessionStateBuilder::new().with_default_features().with_physical_optimizer_rules(guarded(PhysicalOptimizer::default().rules)).build();
        let context = SessionContext::new_with_state(state);
        context.sql("CREATE TABLE t AS SELECT * FROM (VALUES (1), (NULL)) AS v (s)").await.unwrap();
        let rows = context.sql(QUERY).await.unwrap().collect().await.unwrap();
        let text = pretty_format_batches(&rows).unwrap().to_string();
        let rows: Vec<String> = text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.replace([' ', '|'], ";")).collect();
        let cells: Vec<Vec<&str>> = rows.iter().map(|row| row.split(';').filter(|cell| !cell.is_empty()).collect()).collect();
        assert_eq!(cells, [vec!["-1", "-1"], vec!["1"], vec![]], "{text}");
        let plan = context.sql(QUERY).await.unwrap().create_physical_plan().await.unwrap();
        let shown = datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string();
        // That of the outer join stays, whose left side has a constant in each branch; those of filters are gone.
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        let barriers: Vec<usize> = (0..lines.len()).filter(|at| lines[*at] == "BarrierExec").collect();
        assert!(barriers.len() == 1 && lines[barriers[0] + 1].starts_with("HashJoinExec"), "{shown}");
    }

    /// The filters of a plan for `condition` above a join, from the top. Both sides have the column `k` and a filter
    /// that takes others in.
    async fn filters(condition: &str) -> Vec<String> {
        let config = datafusion::prelude::SessionConfig::new().with_target_partitions(1);
        let rules = guarded(vec![Arc::new(FilterPushdown::new())]);
        let state = SessionStateBuilder::new().with_default_features().with_config(config).with_physical_optimizer_rules(rules);
        // Without it there is no hash join, and other joins let no filter pass.
        let state = state.with_optimizer_rules(vec![Arc::new(ExtractEquijoinPredicate::new())]);
        let context = SessionContext::new_with_state(state.build());
        for name in ["a", "b"] {
            context.sql(&format!("CREATE TABLE {name} AS SELECT value AS k, value AS {name}_v FROM generate_series(1, 100)")).await.unwrap();
        }
        let side = |name: &str| format!("(SELECT * FROM {name} WHERE {name}_v > 1) AS {name}");
        let sql = format!("SELECT a_v, b_v FROM {} JOIN {} ON a.k = b.k WHERE {condition}", side("a"), side("b"));
        let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
        let shown = datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string();
        shown.lines().filter(|line| line.contains("FilterExec")).map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn filters_of_other_columns_pass() {
        let [a, b] = filters("b_v < 5").await.try_into().unwrap();
        assert!(a.contains("a_v") && !a.contains("b_v") && !a.contains("< 5"), "{a}");
        assert!(b.contains("b_v") && b.contains("< 5"), "{b}");
    }

    #[tokio::test]
    async fn filters_of_a_name_that_comes_twice_stay() {
        let [top, a, b] = filters("b.k < 5").await.try_into().unwrap();
        assert!(top.contains("< 5") && !a.contains("< 5") && !b.contains("< 5"), "{top} {a} {b}");
    }

    #[tokio::test]
    async fn keys_of_grouping_sets_are_no_constants() {
        let rules = guarded(PhysicalOptimizer::default().rules);
        let context = SessionContext::new_with_state(SessionStateBuilder::new().with_default_features().with_physical_optimizer_rules(rules).build());
        context.sql("CREATE TABLE t AS SELECT value % 2 AS k FROM generate_series(0, 99)").await.unwrap();
        for order in ["k NULLS FIRST", "k NULLS LAST"] {
            let sql = format!("SELECT k, count(*) AS n FROM (SELECT k, count(*) FROM t WHERE k = 1 GROUP BY CUBE (k)) u GROUP BY k ORDER BY {order}");
            let rows = context.sql(&sql).await.unwrap().collect().await.unwrap();
            let text = pretty_format_batches(&rows).unwrap().to_string();
            let lines: Vec<&str> = text.lines().filter(|line| line.ends_with("| 1 |")).collect();
            let null_first = lines.first().is_some_and(|line| line.starts_with("|   |"));
            assert!(lines.len() == 2 && null_first == order.ends_with("FIRST"), "{text}");
        }
    }

    #[tokio::test]
    async fn limit_stays_above_a_distinct() {
        let config = datafusion::prelude::SessionConfig::new().with_target_partitions(2);
        let rules = guarded(PhysicalOptimizer::default().rules);
        let state = SessionStateBuilder::new().with_default_features().with_config(config).with_physical_optimizer_rules(rules).build();
        let context = SessionContext::new_with_state(state);
        context.sql("CREATE TABLE t AS SELECT value % 10 AS x FROM generate_series(0, 99)").await.unwrap();
        let half = "(SELECT x FROM t ORDER BY x LIMIT 50)";
        let all = format!("SELECT * FROM {half} UNION ALL SELECT * FROM {half} UNION ALL SELECT * FROM {half}");
        for (query, values) in [
            (format!("SELECT DISTINCT x FROM ({all}) AS u ORDER BY x LIMIT 4"), ["0", "1", "2", "3"]),
            (format!("SELECT x FROM ({all}) AS u WHERE x % 2 = 1 GROUP BY x HAVING count(*) > 1 ORDER BY x LIMIT 4"), ["1", "3", "", ""]),
        ] {
            let rows = context.sql(&query).await.unwrap().collect().await.unwrap();
            let text = pretty_format_batches(&rows).unwrap().to_string();
            let mut got: Vec<&str> = text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.trim_matches(['|', ' '])).collect();
            got.resize(4, "");
            assert_eq!(got, values, "{query}\n{text}");
        }
    }

    async fn sorted(query: &str) -> Vec<String> {
        let config = datafusion::prelude::SessionConfig::new().with_target_partitions(2);
        let rules = guarded(PhysicalOptimizer::default().rules);
        let state = SessionStateBuilder::new().with_default_features().with_config(config).with_physical_optimizer_rules(rules).build();
        let context = SessionContext::new_with_state(state);
        context.sql("CREATE TABLE t AS SELECT value % 4 AS k, value AS u FROM generate_series(0, 9)").await.unwrap();
        let rows = context.sql(query).await.unwrap().collect().await.unwrap();
        let text = pretty_format_batches(&rows).unwrap().to_string();
        text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.replace([' ', '|'], "")).collect()
    }

    #[tokio::test]
    async fn constants_of_branches_are_keys_of_a_limit() {
        let query = "SELECT 3 AS a, g AS b FROM (VALUES (1), (2), (3), (4)) x (g) \
            UNION ALL SELECT 1 AS a, 7 + n * 0 AS b FROM (SELECT k, count(*) AS n FROM t GROUP BY k) y ORDER BY 1, 2 LIMIT 3";
        assert_eq!(sorted(query).await, ["17", "17", "17"]);
    }

    #[tokio::test]
    async fn branches_with_equal_columns_are_sorted() {
        let query = "SELECT max(u) AS a, max(u) AS b FROM t GROUP BY k UNION ALL SELECT u AS a, u AS b FROM t GROUP BY u, k ORDER BY 2, 1";
        assert_eq!(sorted(query).await, ["00", "11", "22", "33", "44", "55", "66", "66", "77", "77", "88", "88", "99", "99"]);
    }

    /// The filter of a join is where the sort is, on the side of `b`.
    #[tokio::test]
    async fn joins_by_nested_keys_make_no_filter() {
        for key in ["[CASE WHEN u = 7 THEN u END]", "[[u]]", "{'f': CASE WHEN u = 7 THEN u END, 'g': u}", "{'f': [u]}", "MAP {'f': u}"] {
            let table = |name: &str| format!("(SELECT u, {key} AS y FROM t WHERE u > 6) AS {name}");
            let query = format!("SELECT b.u, row_number() OVER (ORDER BY b.u) FROM {} JOIN {} ON a.y = b.y AND a.u = b.u", table("a"), table("b"));
            assert_eq!(sorted(&query).await, ["71", "82", "93"], "{query}");
            let query = format!("SELECT b.u FROM {} WHERE y IN (SELECT y FROM {}) ORDER BY b.u", table("b"), table("a"));
            assert_eq!(sorted(&query).await, ["7", "8", "9"], "{query}");
        }
    }

    #[tokio::test]
    async fn sorts_stay_above_joins_of_constant_branches() {
        let table = "(SELECT 1 AS x, 5 AS y UNION ALL SELECT 2 AS x, 6 AS y)";
        assert_eq!(sorted(&format!("SELECT b.x FROM {table} a JOIN {table} b ON a.y = b.y ORDER BY b.x DESC")).await, ["2", "1"]);
        let query = format!("SELECT b.x, row_number() OVER (ORDER BY b.x) FROM {table} a JOIN {table} b ON a.y = b.y");
        assert_eq!(sorted(&query).await, ["11", "22"]);
    }

    #[tokio::test]
    async fn arguments_of_merged_extremes_are_not_looked_at() {
        for query in ["SELECT min(u - u) FILTER (WHERE k > 2) AS m FROM t", "SELECT max(u - u) AS m FROM (SELECT k, u FROM t LIMIT 9) v"] {
            assert_eq!(sorted(query).await, ["0"], "{query}");
        }
    }
}
