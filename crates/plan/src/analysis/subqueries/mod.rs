//! Subqueries in conditions and results, with SQL's three values.
//!
//! DataFusion turns `EXISTS` and `IN` of a filter into joins and knows only true and false there: `IN` over a NULL is
//! false where SQL has NULL, and the difference shows under `NOT`, `IS NULL` or `OR`, and in a list of results. It
//! drops `OFFSET` within `EXISTS`, and takes an aggregate without groups for one that may have no row. It loses and
//! repeats rows where a subquery is tied to the outer row. This rule rewrites such subqueries before DataFusion's own
//! rules see them:
//!
//! | form | becomes | module |
//! |---|---|---|
//! | `EXISTS` over `LIMIT`, `OFFSET`, aggregates | a constant, a count, or `EXISTS` of what decides | [`normal`] |
//! | `IN` over a single row | a comparison with a subquery for one value | [`normal`] |
//! | for one value, where there may be no row | one of a column that may be NULL | [`normal`] |
//! | `IN`, where false and NULL differ | mark joins: equal, NULL among the values, any row | [`marks`] |
//! | any of these in a list of results, a sort, a window or an aggregate | columns of the input | here |
//! | for one value, tied to the outer row | a left join | [`marks`] |
//! | `LATERAL` | a join | [`lateral`] |
//!
//! A subquery that names the outer row loses its ties to it here ([`untied`]) and becomes a join. DataFusion's rules
//! only see conjuncts `x IN (...)`, `x NOT IN (...)` and `EXISTS` without ties, for semi joins and null-aware anti
//! joins: there they are right.

mod lateral;
mod marks;
mod normal;
mod untied;

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, JoinType, Result, not_impl_err};
use datafusion::logical_expr::expr::InSubquery;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, Projection};

use self::marks::Marks;
use self::untied::{is_tied_subquery, is_tied_value};
use crate::rewriting::map_expressions;

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let (count, changed) = (Cell::new(0), Cell::new(false));
    let rewritten = plan.transform_up_with_subqueries(|node| {
        let is_lateral = match &node {
            LogicalPlan::Join(join) => lateral::is_lateral(join)?,
            _ => false,
        };
        if is_lateral || node.expressions().iter().any(has_subquery) {
            let values = map_expressions(node, normal::missing_value)?;
            let node = of_node(values.data, &count)?;
            changed.set(changed.get() | values.transformed | node.transformed);
            return Ok(Transformed::new_transformed(node.data, values.transformed | node.transformed));
        }
        // A result that was never NULL may be now.
        if changed.get() { node.recompute_schema().map(Transformed::yes) } else { Ok(Transformed::no(node)) }
    })?;
    check(&rewritten.data)?;
    Ok(rewritten.data)
}

/// Refuses `plan` where a tie is left.
fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        if node.contains_outer_reference() {
            return not_impl_err!(
                "a subquery in this place, or tied to the outer row in this way, can't be run: write it as a join, or as a column of a subquery \
                 in FROM"
            );
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn of_node(node: LogicalPlan, count: &Cell<u32>) -> Result<Transformed<LogicalPlan>> {
    match node {
        LogicalPlan::Filter(_) => match normalised(node)? {
            LogicalPlan::Filter(filter) => of_filter(filter, count),
            other => Ok(Transformed::yes(other)),
        },
        LogicalPlan::Projection(_) => match normalised(node)? {
            LogicalPlan::Projection(projection) => of_projection(projection, count),
            other => Ok(Transformed::yes(other)),
        },
        LogicalPlan::Join(join) => of_join(join, count),
        LogicalPlan::Aggregate(_) | LogicalPlan::Sort(_) | LogicalPlan::Window(_) => lifted(node, count),
        other => Ok(Transformed::no(other)),
    }
}

/// Whether `e` has a subquery that this rule is about.
fn has_subquery(e: &Expr) -> bool {
    e.exists(|e| Ok(is_predicate(e) || matches!(e, Expr::ScalarSubquery(_)))).unwrap_or(false)
}

fn has_predicate(e: &Expr) -> bool {
    e.exists(|e| Ok(is_predicate(e))).unwrap_or(false)
}

/// Whether `e` has a subquery that becomes a join here.
fn has_joined(e: &Expr) -> bool {
    e.exists(|e| Ok(is_predicate(e) || is_tied_value(e))).unwrap_or(false)
}

fn is_predicate(e: &Expr) -> bool {
    matches!(e, Expr::Exists(_) | Expr::InSubquery(_))
}

/// `node` with its subqueries in the simplest form that means the same.
fn normalised(node: LogicalPlan) -> Result<LogicalPlan> {
    Ok(map_expressions(node, normal::form)?.data)
}

fn of_filter(filter: Filter, count: &Cell<u32>) -> Result<Transformed<LogicalPlan>> {
    let Filter { predicate, input, .. } = filter;
    let columns = input.schema().columns();
    let schema = Arc::clone(input.schema());
    let mut marks = Marks::new(Arc::unwrap_or_clone(input), count);
    let mut conjuncts = Vec::new();
    for conjunct in split_conjunction_owned(predicate) {
        let conjunct = if has_joined(&conjunct) { marks.values(conjunct)? } else { conjunct };
        if !has_predicate(&conjunct) {
            conjuncts.push(conjunct);
        } else if !is_join(&conjunct, &schema) {
            conjuncts.push(marks.replace(conjunct)?);
        } else if is_tied_predicate(&conjunct) {
            conjuncts.extend(marks.keep(conjunct)?);
        } else {
            conjuncts.push(conjunct);
        }
    }
    let marked = marks.any();
    let Some(predicate) = conjunction(conjuncts) else { return Ok(Transformed::yes(marks.into_plan())) };
    let plan = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(marks.into_plan()))?);
    Ok(Transformed::yes(if marked { project(plan, columns)? } else { plan }))
}

/// Subqueries in the condition of an inner join are those of a filter above it. DataFusion puts them on a side of the
/// join, and looks for the columns of the other one within the subquery.
fn of_join(mut join: Join, count: &Cell<u32>) -> Result<Transformed<LogicalPlan>> {
    let conjuncts = join.filter.take().map(split_conjunction_owned).unwrap_or_default();
    let (above, within): (Vec<_>, Vec<_>) = conjuncts.into_iter().partition(has_joined);
    join.filter = conjunction(within);
    let join_type = join.join_type;
    let join = if lateral::is_lateral(&join)? { Transformed::yes(lateral::untied(join, count)?) } else { Transformed::no(LogicalPlan::Join(join)) };
    match (join_type, conjunction(above)) {
        (_, None) => Ok(join),
        (JoinType::Inner, Some(above)) => of_node(LogicalPlan::Filter(Filter::try_new(above, Arc::new(join.data))?), count),
        (_, Some(_)) => not_impl_err!(
            "EXISTS or IN with a subquery under ON of an outer join: compute it as a column of one side, as in \
             LEFT JOIN (SELECT b.*, b.k IN (SELECT ...) AS found FROM b) AS b ON a.k = b.k AND b.found"
        ),
    }
}

/// Whether DataFusion's joins are right for `conjunct` of a filter over rows of `schema`.
pub(super) fn is_join(conjunct: &Expr, schema: &DFSchema) -> bool {
    // The value of a join's condition has no subqueries of its own.
    let plain = |of: &InSubquery| !has_predicate(&of.expr);
    match conjunct {
        Expr::Exists(_) => true,
        Expr::Not(inner) => match inner.as_ref() {
            Expr::Exists(_) => true,
            Expr::InSubquery(of) => of.negated && plain(of),
            _ => false,
        },
        // A join without a column on the left does not know NULL either, and one with ties takes a NULL of theirs for
        // one of the values.
        Expr::InSubquery(of) if of.negated => plain(of) && !is_tied_subquery(&of.subquery) && (of.expr.any_column_refs() || !marks::may_be_unknown(of, schema)),
        Expr::InSubquery(of) => plain(of),
        _ => false,
    }
}

/// Whether `conjunct`, which is a join, names the outer row in its subquery.
fn is_tied_predicate(conjunct: &Expr) -> bool {
    match conjunct {
        Expr::Not(inner) => is_tied_predicate(inner),
        Expr::Exists(of) => is_tied_subquery(&of.subquery),
        Expr::InSubquery(of) => is_tied_subquery(&of.subquery),
        _ => false,
    }
}

fn of_projection(projection: Projection, count: &Cell<u32>) -> Result<Transformed<LogicalPlan>> {
    let Projection { expr, input, .. } = projection;
    let input = Arc::unwrap_or_clone(input);
    // Names are those of the expressions as they were.
    let names = NamePreserver::new_for_projection();
    let mut marks = Marks::new(input, count);
    let exprs = expr
        .into_iter()
        .map(|e| {
            let name = names.save(&e);
            Ok(name.restore(if has_joined(&e) { marks.replace(e)? } else { e }))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(marks.into_plan()))?)))
}

/// `node`, an aggregate, a sort or a window, over a projection that computes its subqueries.
fn lifted(node: LogicalPlan, count: &Cell<u32>) -> Result<Transformed<LogicalPlan>> {
    let Some(input) = node.inputs().first().map(|input| (*input).clone()) else { return Ok(Transformed::no(node)) };
    let before = Arc::clone(node.schema());
    // A sort keeps its input's columns, a window adds to them, an aggregate has its own.
    let kept = if matches!(node, LogicalPlan::Aggregate(_)) { 0 } else { input.schema().fields().len() };
    let mut lifted: Vec<(Expr, String)> = Vec::new();
    let exprs = node
        .expressions()
        .into_iter()
        .map(|e| {
            let replaced = e.transform_down(|e| {
                if !is_predicate(&e) && !matches!(e, Expr::ScalarSubquery(_)) {
                    return Ok(Transformed::no(e));
                }
                let name = match lifted.iter().find(|(known, _)| *known == e) {
                    Some((_, name)) => name.clone(),
                    None => {
                        count.set(count.get() + 1);
                        let name = format!("__subquery_{}", count.get());
                        lifted.push((e, name.clone()));
                        name
                    }
                };
                Ok(Transformed::yes(Expr::Column(Column::new_unqualified(name))))
            })?;
            Ok(replaced.data)
        })
        .collect::<Result<Vec<_>>>()?;
    let added = lifted.len();
    let mut columns: Vec<Expr> = input.schema().columns().into_iter().map(Expr::Column).collect();
    columns.extend(lifted.into_iter().map(|(e, name)| e.alias(name)));
    let below = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input))?);
    let below = of_node(below, count)?.data;
    let above = node.with_new_exprs(exprs, vec![below])?;
    // The columns of before, by their places.
    let after = above.schema().columns();
    let place = |at: usize| if at < kept || kept == 0 { at } else { at + added };
    let columns = before
        .iter()
        .enumerate()
        .filter_map(|(at, (qualifier, field))| {
            let now = after.get(place(at))?.clone();
            let same = now.relation.as_ref() == qualifier && now.name == *field.name();
            Some(if same { Expr::Column(now) } else { Expr::Column(now).alias_qualified(qualifier.cloned(), field.name()) })
        })
        .collect::<Vec<_>>();
    Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(above))?)))
}

/// `columns` of `plan`.
fn project(plan: LogicalPlan, columns: Vec<Column>) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Projection(Projection::try_new(columns.into_iter().map(Expr::Column).collect(), Arc::new(plan))?))
}
