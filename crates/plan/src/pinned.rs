//! Conditions that stay where the query has them: those that can fail, and those that are random.
//!
//! DataFusion moves conditions down as far as their columns go, and joins those of several levels to one `AND`. So
//! `SELECT v FROM (SELECT v FROM t WHERE v <> 0) WHERE 10 / v > 1` divides by zero. It also concludes from `a.k = b.k`
//! that `10 / a.k > 4` holds for `b.k`, and divides there. A random condition moves below windows, groups and joins,
//! and gives other rows.
//!
//! While DataFusion's rules run, such a condition is the node [`Pinned`], which no rule takes for a filter. Others pass
//! through it. Afterwards it is a filter of `__pinned(condition)`, the identity, by which drives and the rules for
//! physical plans know it ([`crate::barriers`]). A condition is pinned only where something below drops rows, or makes
//! new ones. Above a join, one that is about a single side moves to that side, and one about both stays a plain filter.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, DFSchemaRef, JoinType, Result, ScalarValue, plan_err};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Extension, Filter, Join, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    UserDefinedLogicalNodeCore, Volatility, lit,
};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::failing::{cast_can_fail, may_be_zero};
use crate::wrapped_rules::Rule;

/// The name of the function by which a pinned condition is known.
pub const PINNED: &str = "__pinned";

/// Registers `__pinned`.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    registry.register_udf(udf()).map(drop)
}

fn udf() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Marker { signature: Signature::exact(vec![DataType::Boolean], Volatility::Immutable) }))
}

/// `rules` between the one that pins conditions and the one that makes filters of them.
#[must_use]
pub fn pinned(rules: Vec<Rule>) -> Vec<Rule> {
    let (pin, unpin): (Rule, Rule) = (Arc::new(Step { name: "pin_conditions", rewrite: pin }), Arc::new(Step { name: "unpin_conditions", rewrite: unpin }));
    std::iter::once(pin).chain(rules).chain([unpin]).collect()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Marker {
    signature: Signature,
}

impl ScalarUDFImpl for Marker {
    fn name(&self) -> &str {
        PINNED
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        args.args.pop().map_or_else(|| plan_err!("{PINNED} takes a condition"), Ok)
    }
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    rewrite: fn(LogicalPlan) -> Result<Transformed<LogicalPlan>>,
}

impl OptimizerRule for Step {
    fn name(&self) -> &str {
        self.name
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        (self.rewrite)(plan)
    }
}

/// A filter that is none to DataFusion's rules.
#[derive(Debug, PartialEq, Eq, PartialOrd, Hash)]
struct Pinned {
    condition: Expr,
    input: LogicalPlan,
}

impl Pinned {
    fn over(condition: Expr, input: Arc<LogicalPlan>) -> LogicalPlan {
        let node = Self { condition, input: Arc::unwrap_or_clone(input) };
        LogicalPlan::Extension(Extension { node: Arc::new(node) })
    }

    fn of(plan: &LogicalPlan) -> Option<&Self> {
        match plan {
            LogicalPlan::Extension(e) => e.node.as_any().downcast_ref(),
            _ => None,
        }
    }
}

impl UserDefinedLogicalNodeCore for Pinned {
    fn name(&self) -> &str {
        "Pinned"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![self.condition.clone()]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned: {}", self.condition)
    }

    fn with_exprs_and_inputs(&self, mut exprs: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (exprs.pop(), inputs.pop()) {
            (Some(condition), Some(input)) if exprs.is_empty() && inputs.is_empty() => Ok(Self { condition, input }),
            _ => plan_err!("a pinned condition is one expression over one input"),
        }
    }

    fn prevent_predicate_push_down_columns(&self) -> std::collections::HashSet<String> {
        std::collections::HashSet::new()
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let schema = self.input.schema();
        let own = self.condition.column_refs().into_iter().map(|column| schema.maybe_index_of_column(column)).collect::<Option<Vec<_>>>()?;
        let mut all: Vec<usize> = output_columns.iter().copied().chain(own).collect();
        all.sort_unstable();
        all.dedup();
        Some(vec![all])
    }
}

fn pin(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_down_with_subqueries(|node| match node {
        LogicalPlan::Filter(filter) => of_filter(filter),
        LogicalPlan::Join(join) => of_join(join),
        other => Ok(Transformed::no(other)),
    })
}

fn unpin(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| match Pinned::of(&node) {
        Some(Pinned { condition, input }) => {
            let known = if is_marked(condition) { condition.clone() } else { udf().call(vec![condition.clone()]) };
            Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(known, Arc::new(input.clone()))?)))
        }
        None => Ok(Transformed::no(node)),
    })
}

fn is_marked(condition: &Expr) -> bool {
    matches!(condition, Expr::ScalarFunction(ScalarFunction { func, .. }) if func.name() == PINNED)
}

/// The filter, and below it those of its conditions that are pinned, or that belong to one side of a join.
fn of_filter(filter: Filter) -> Result<Transformed<LogicalPlan>> {
    // What is tied to an outer row is found through filters and projections only.
    if !filter.input.all_out_ref_exprs().is_empty() {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    let Filter { predicate, input, .. } = filter;
    let mut changed = false;
    let (mut pinned, mut others) = (Vec::new(), Vec::new());
    for condition in split_conjunction_owned(predicate.clone()) {
        let stays = is_marked(&condition) || !has_subquery(&condition) && at_risk(&condition, &input)? && !is_of_side(&condition, &input);
        changed |= stays;
        if stays { &mut pinned } else { &mut others }.push(condition);
    }
    let mut below = input;
    if let LogicalPlan::Join(join) = below.as_ref() {
        let (join, rest) = with_sides(join.clone(), others)?;
        others = rest.data;
        if rest.transformed {
            below = Arc::new(LogicalPlan::Join(join));
            changed = true;
        }
    } else if others.iter().any(has_subquery) && others.iter().any(|e| !has_subquery(e) && can_fail(e, below.schema()).unwrap_or(true)) {
        // Subqueries become joins below the others, from which DataFusion concludes as from any join.
        let (joins, plain): (Vec<Expr>, Vec<Expr>) = others.into_iter().partition(has_subquery);
        below = Arc::new(filtered(plain, below)?);
        others = joins;
        changed = true;
    }
    if !changed {
        others.splice(0..0, pinned);
        return filtered(others, below).map(Transformed::no);
    }
    for condition in pinned {
        below = Arc::new(Pinned::over(condition, below));
    }
    filtered(others, below).map(Transformed::yes)
}

/// `input` with the rows that meet all of `conditions`, in their order.
fn filtered(conditions: Vec<Expr>, input: Arc<LogicalPlan>) -> Result<LogicalPlan> {
    match conjunction(conditions) {
        Some(all) => Filter::try_new(all, input).map(LogicalPlan::Filter),
        None => Ok(Arc::unwrap_or_clone(input)),
    }
}

/// An inner join, with those of its conditions that are about a single side on that side, if one of them can fail.
fn of_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let Some(filter) = join.filter.take_if(|_| join.join_type == JoinType::Inner) else { return Ok(Transformed::no(LogicalPlan::Join(join))) };
    let (mut join, rest) = with_sides(join, split_conjunction_owned(filter))?;
    join.filter = conjunction(rest.data);
    let join = LogicalPlan::Join(join);
    Ok(if rest.transformed { Transformed::yes(join) } else { Transformed::no(join) })
}

/// `join`, and those of `conditions` above it that stay there. Those of one side move to it together, in their order,
/// if one of them can fail: one that fails must not come before what keeps its errors away.
fn with_sides(mut join: Join, conditions: Vec<Expr>) -> Result<(Join, Transformed<Vec<Expr>>)> {
    let of: Vec<Option<bool>> = conditions.iter().map(|condition| own_side(condition, &join)).collect();
    let mut moved = Transformed::no(conditions);
    for left in [true, false] {
        let input = if left { &mut join.left } else { &mut join.right };
        let mut fails = false;
        for (condition, side) in moved.data.iter().zip(&of) {
            fails |= *side == Some(left) && (can_fail(condition, input.schema())? || at_risk(condition, input)?);
        }
        if fails {
            let own = moved.data.iter().zip(&of).filter(|(_, side)| **side == Some(left)).map(|(condition, _)| condition.clone()).collect();
            *input = Arc::new(filtered(own, Arc::clone(input))?);
            moved.transformed = true;
            // The places of the others must stay those of `of`.
            for (condition, side) in moved.data.iter_mut().zip(&of) {
                if *side == Some(left) {
                    *condition = lit(true);
                }
            }
        }
    }
    moved.data.retain(|condition| !matches!(condition, Expr::Literal(ScalarValue::Boolean(Some(true)), _)));
    Ok((join, moved))
}

/// The side of `join` to which a condition above it may move. What is about both sides of a join further down stays
/// above all of them, whose order DataFusion has yet to choose.
fn own_side(condition: &Expr, join: &Join) -> Option<bool> {
    let left = (!condition.is_volatile() && !has_subquery(condition)).then(|| side(condition, join)).flatten()?;
    let of_one = match if left { join.left.as_ref() } else { join.right.as_ref() } {
        LogicalPlan::Join(below) => own_side(condition, below).is_some(),
        _ => true,
    };
    (of_one && keeps_all(join.join_type, left)).then_some(left)
}

/// Whether a condition above `input` moves to a side of it, if that is a join.
fn is_of_side(condition: &Expr, input: &LogicalPlan) -> bool {
    matches!(input, LogicalPlan::Join(join) if own_side(condition, join).is_some())
}

fn has_subquery(condition: &Expr) -> bool {
    condition.contains_outer()
        || condition.exists(|e| Ok(matches!(e, Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_)))).unwrap_or(true)
}

/// The side that all columns of `condition` are of: whether it is the left one.
fn side(condition: &Expr, join: &Join) -> Option<bool> {
    let columns = condition.column_refs();
    let all = |schema: &DFSchema| columns.iter().all(|column| schema.maybe_index_of_column(column).is_some());
    if columns.is_empty() {
        return None;
    }
    match (all(join.left.schema()), all(join.right.schema())) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        _ => None,
    }
}

/// Whether a row of that side that meets a condition is in the join's result as if the condition were above it.
fn keeps_all(of: JoinType, left: bool) -> bool {
    match of {
        JoinType::Inner => true,
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => left,
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => !left,
        JoinType::Full => false,
    }
}

/// Whether DataFusion could move `condition` from above `input` to where it gets rows that it is not about.
fn at_risk(condition: &Expr, input: &LogicalPlan) -> Result<bool> {
    let volatile = condition.is_volatile();
    if let LogicalPlan::Join(join) = input
        && !volatile
    {
        // What is about both sides belongs to the join, which may look for equal rows by it. What drops the rows that
        // an outer join adds makes an inner one of it.
        return match own_side(condition, join) {
            Some(true) => at_risk(condition, &join.left),
            Some(false) => at_risk(condition, &join.right),
            None => Ok(false),
        };
    }
    if (volatile || can_fail(condition, input.schema())?) && !keeps_rows(input, volatile) {
        return Ok(true);
    }
    match input {
        LogicalPlan::Projection(projection) => at_risk(&replaced(condition, projection.schema.as_ref(), &projection.expr)?, &projection.input),
        LogicalPlan::SubqueryAlias(alias) => {
            let below: Vec<Expr> = alias.input.schema().columns().into_iter().map(Expr::Column).collect();
            at_risk(&replaced(condition, alias.schema.as_ref(), &below)?, &alias.input)
        }
        LogicalPlan::Aggregate(aggregate) => {
            let keys = aggregate.group_expr.len();
            let of_keys = condition.column_refs().iter().all(|c| aggregate.schema.maybe_index_of_column(c).is_some_and(|at| at < keys));
            let plain = !aggregate.group_expr.iter().any(|e| matches!(e, Expr::GroupingSet(_)));
            Ok(of_keys && plain && at_risk(&replaced(condition, aggregate.schema.as_ref(), &aggregate.group_expr)?, &aggregate.input)?)
        }
        LogicalPlan::Union(union) => {
            for branch in &union.inputs {
                let columns: Vec<Expr> = branch.schema().columns().into_iter().map(Expr::Column).collect();
                if at_risk(&replaced(condition, union.schema.as_ref(), &columns)?, branch)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        LogicalPlan::Filter(_) | LogicalPlan::Sort(_) | LogicalPlan::Distinct(_) | LogicalPlan::Window(_) | LogicalPlan::Repartition(_) => {
            match input.inputs().first() {
                Some(below) if condition.column_refs().iter().all(|c| below.schema().maybe_index_of_column(c).is_some()) => at_risk(condition, below),
                _ => Ok(false),
            }
        }
        other => match Pinned::of(other) {
            Some(pinned) => at_risk(condition, &pinned.input),
            None => Ok(false),
        },
    }
}

/// Whether each row of `input` is a stored row, and each stored row is one of these, or where DataFusion moves nothing
/// below. For random conditions rows must also not be made of several.
fn keeps_rows(input: &LogicalPlan, volatile: bool) -> bool {
    match input {
        LogicalPlan::TableScan(_) | LogicalPlan::Values(_) | LogicalPlan::EmptyRelation(_) | LogicalPlan::Limit(_) => true,
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Union(_) | LogicalPlan::Repartition(_) => {
            input.inputs().into_iter().all(|below| keeps_rows(below, volatile))
        }
        LogicalPlan::Sort(sort) => sort.fetch.is_some() || keeps_rows(&sort.input, volatile),
        LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) | LogicalPlan::Window(_) => {
            !volatile && input.inputs().into_iter().all(|below| keeps_rows(below, volatile))
        }
        _ => false,
    }
}

/// `condition` with the columns of `schema` as `exprs` compute them, one for one.
fn replaced(condition: &Expr, schema: &DFSchema, exprs: &[Expr]) -> Result<Expr> {
    let computed: HashMap<Column, &Expr> = schema.columns().into_iter().zip(exprs).collect();
    let below = |e: Expr| match &e {
        Expr::Column(column) => Ok(match computed.get(column) {
            Some(found) => Transformed::yes((*found).clone().unalias()),
            None => Transformed::no(e),
        }),
        _ => Ok(Transformed::no(e)),
    };
    condition.clone().transform_up(below).data()
}

/// Functions that are errors for some arguments.
const FAILING: &[&str] = &[
    "arrow_cast",
    "chr",
    "decode",
    "factorial",
    "from_unixtime",
    "gcd",
    "generate_series",
    "lcm",
    "ln",
    "log",
    "log10",
    "log2",
    "make_date",
    "make_time",
    "power",
    "pow",
    "range",
    "sqrt",
    "to_date",
    "to_local_time",
    "to_time",
    "to_unixtime",
];

/// Functions that are errors for some options: no constants, as these are refused while the query is planned.
const OF_OPTIONS: &[&str] = &["date_bin", "date_trunc", "encode", "left", "lpad", "repeat", "right", "rpad", "split_part", "substr", "substring", "to_char"];

/// Whether `e` is an error for some values of its columns. Sums and products beyond the largest number are not
/// counted, nor are years that nanoseconds do not hold: filters with them are common, and such values are rare.
fn can_fail(e: &Expr, schema: &DFSchema) -> Result<bool> {
    e.exists(|part| {
        Ok(match part {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide | Operator::Modulo, right }) => {
                let float = |side: &Expr| side.get_type(schema).is_ok_and(|of| of.is_floating());
                may_be_zero(right) && !float(left) && !float(right)
            }
            Expr::Cast(cast) => !matches!(cast.expr.as_ref(), Expr::Literal(..)) && cast_can_fail(&cast.expr.get_type(schema)?, cast.field.data_type()),
            Expr::ScalarFunction(ScalarFunction { func, args }) => {
                let options = || args.iter().filter(|arg| !matches!(arg, Expr::Literal(..))).count() > 1;
                FAILING.contains(&func.name()) || func.name().starts_with("to_timestamp") || OF_OPTIONS.contains(&func.name()) && options()
            }
            _ => false,
        })
    })
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::optimizer::Optimizer;
    use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::barriers::guarded;

    async fn context() -> SessionContext {
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_optimizer_rules(pinned(Optimizer::default().rules))
            .with_physical_optimizer_rules(guarded(PhysicalOptimizer::default().rules));
        let context = SessionContext::new_with_state(state.build());
        context.sql("CREATE TABLE t AS SELECT value AS x, value * 10 AS y, CAST(value AS TEXT) AS s FROM generate_series(0, 5)").await.unwrap();
        context
    }

    async fn plan(query: &str) -> String {
        context().await.sql(query).await.unwrap().into_optimized_plan().unwrap().display_indent().to_string()
    }

    #[tokio::test]
    async fn conditions_over_stored_rows_are_plain_filters() {
        for query in [
            "SELECT x FROM t WHERE 10 / x > 1",
            "SELECT x FROM (SELECT x, y FROM t) AS a WHERE 10 / x > 1",
            "SELECT x FROM (SELECT x FROM t UNION ALL SELECT y FROM t) AS a WHERE 10 / x > 1",
            "SELECT x FROM (SELECT x FROM t WHERE x > 2) AS a WHERE x + 1 > 4 AND CAST(x AS DOUBLE) < 7.5 AND x / 2 > 1",
            "SELECT a.x FROM t AS a JOIN t AS b ON a.x = b.x WHERE a.x + b.y > 3",
        ] {
            let plan = plan(query).await;
            assert!(!plan.contains(PINNED), "{query}\n{plan}");
        }
    }

    #[tokio::test]
    async fn joins_by_computed_keys_are_found() {
        let plan = plan("SELECT a.x FROM t AS a, t AS b WHERE CAST(a.s AS BIGINT) = b.x").await;
        assert!(plan.contains("Inner Join: CAST(a.s AS Int64) = b.x"), "{plan}");
    }

    #[tokio::test]
    async fn conditions_that_can_fail_stay_above_filters() {
        for query in [
            "SELECT y FROM (SELECT x, y FROM t WHERE x <> 0) AS a WHERE 10 / x > 3",
            "SELECT y FROM (SELECT 10 / x AS q, y FROM t WHERE x <> 0) AS a WHERE q > 3",
            "SELECT x FROM t WHERE x <> 0 GROUP BY x HAVING 10 / x > 3",
            "SELECT a.y FROM (SELECT x, y FROM t WHERE x > 0) AS a JOIN t AS b ON a.x = b.x WHERE 10 / a.x > 3",
        ] {
            let context = context().await;
            let plan = context.sql(query).await.unwrap().into_optimized_plan().unwrap();
            assert!(plan.display_indent().to_string().contains(PINNED), "{query}\n{}", plan.display_indent());
            let rows = context.sql(query).await.unwrap().collect().await.unwrap();
            assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 2, "{query}\n{}", plan.display_indent());
        }
    }

    #[tokio::test]
    async fn a_second_pass_pins_what_the_first_had_pinned() {
        let context = context().await;
        let query = "SELECT y FROM (SELECT x, y FROM t WHERE x <> 0) AS a WHERE 10 / x > 3 AND y < 100";
        let once = context.sql(query).await.unwrap().into_optimized_plan().unwrap();
        let twice = context.state().optimize(&once).unwrap();
        assert_eq!(once.display_indent().to_string(), twice.display_indent().to_string());
    }
}
