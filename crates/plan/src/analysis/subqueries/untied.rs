//! Subqueries without their ties to the outer row.
//!
//! [`untie`] takes the conditions that name the outer row out of a subquery, up to its top, where they become the
//! condition of a join. The rows of [`Untied::plan`] for which the ties hold are then those of the subquery:
//!
//! | operator | what its ties become |
//! |---|---|
//! | filter, inner join, preserved side of an outer join | conditions above it |
//! | projection, new name | the same, over columns that it passes on |
//! | aggregate with groups, `DISTINCT` | a tie by `=` is one more key; one over keys only stays a condition |
//! | aggregate without groups | the same, and a row for outer rows without any ([`Single`]) |
//! | anything else | refused |
//!
//! DataFusion's own step knows less of names, of rows of nothing and of other branches of the subquery, and gives wrong
//! rows there. It only sees subqueries without ties.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Distinct, Expr, ExprSchemable, FetchType, Filter, Join, Limit, LogicalPlan, Operator, Projection, SkipType, Subquery, SubqueryAlias,
    lit,
};

/// Numbers for generated names.
pub(super) type Names = Cell<u32>;

/// `prefix` with the next number.
pub(super) fn next(prefix: &str, names: &Names) -> String {
    names.set(names.get() + 1);
    format!("{prefix}{}", names.get())
}

/// What counts of the rows of a subquery.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// Which there are: under `EXISTS` and `IN`.
    Set,
    /// How many of each there are.
    Bag,
    /// Their order as well, maybe: an aggregate takes them in.
    List,
}

/// A subquery without its ties.
pub(super) struct Untied {
    /// The rows for all outer rows. It has the columns of the subquery, and those that the ties name.
    pub(super) plan: LogicalPlan,
    /// Conditions over the columns of `plan` and references to the outer row.
    pub(super) ties: Vec<Expr>,
    /// Set where the subquery has a row for every outer row.
    pub(super) single: Option<Single>,
    /// Whether there is one row at most for an outer row.
    pub(super) at_most_one: bool,
}

/// An aggregate without groups: where no row of the plan is tied to the outer row, there is one all the same.
pub(super) struct Single {
    /// A column that is never NULL where there is a row.
    pub(super) found: Column,
    /// The columns of that other row.
    pub(super) nothing: HashMap<Column, Expr>,
    /// Conditions on the row, as of HAVING: over the plan, and over that other row.
    pub(super) kept: Vec<(Expr, Expr)>,
}

impl Untied {
    fn of(plan: LogicalPlan) -> Self {
        let at_most_one = plan.max_rows().is_some_and(|rows| rows <= 1);
        Self { plan, ties: Vec::new(), single: None, at_most_one }
    }

    /// Whether a condition, or the row of nothing, refers to the plan's columns.
    fn is_plain(&self) -> bool {
        self.ties.is_empty() && self.single.is_none()
    }

    /// The conditions with `place` of each column of the plan.
    fn placed(mut self, mut place: impl FnMut(Column) -> Result<Expr>) -> Result<Self> {
        self.ties = self.ties.into_iter().map(|tie| carried(tie, &mut place)).collect::<Result<_>>()?;
        if let Some(single) = &mut self.single {
            if let Expr::Column(found) = place(single.found.clone())? {
                single.found = found;
            }
            let kept = std::mem::take(&mut single.kept).into_iter().map(|(row, nothing)| Ok((carried(row, &mut place)?, nothing)));
            single.kept = kept.collect::<Result<_>>()?;
        }
        Ok(self)
    }
}

impl Single {
    /// `e`, over the columns of the row of nothing.
    pub(super) fn of_nothing(&self, e: &Expr) -> Result<Expr> {
        carried(e.clone(), &mut |column| Ok(self.nothing.get(&column).cloned().unwrap_or(Expr::Column(column))))
    }

    fn keep(&mut self, condition: Expr) -> Result<()> {
        let nothing = self.of_nothing(&condition)?;
        self.kept.push((condition, nothing));
        Ok(())
    }
}

/// `e` with `place` of each of its columns.
pub(super) fn carried(e: Expr, place: &mut impl FnMut(Column) -> Result<Expr>) -> Result<Expr> {
    e.transform(|e| match e {
        Expr::Column(column) => Ok(Transformed::new(place(column)?, true, TreeNodeRecursion::Jump)),
        other => Ok(Transformed::no(other)),
    })
    .data()
}

/// Whether a condition of `plan` names the outer row.
pub(super) fn is_tied(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(node.contains_outer_reference()))
}

/// Whether `of` names the outer row.
pub(super) fn is_tied_subquery(of: &Subquery) -> bool {
    is_tied(&of.subquery).unwrap_or(true)
}

/// Whether `e` is a subquery for one value that names the outer row.
pub(super) fn is_tied_value(e: &Expr) -> bool {
    matches!(e, Expr::ScalarSubquery(of) if is_tied_subquery(of))
}

fn below(what: &str) -> Result<Untied> {
    not_impl_err!("a subquery that is tied to the outer row below {what}: write it as a join")
}

fn elsewhere() -> Result<Untied> {
    not_impl_err!("a subquery that names the outer row elsewhere than in WHERE: write it as a join")
}

/// `plan`, a subquery whose own subqueries are joins already, without its ties.
///
/// # Errors
/// `NotImplemented` where no join has its rows.
pub(super) fn untie(plan: &LogicalPlan, names: &Names, rows: Rows) -> Result<Untied> {
    if !is_tied(plan)? {
        return Ok(Untied::of(plan.clone()));
    }
    if !matches!(plan, LogicalPlan::Filter(_) | LogicalPlan::Join(_)) && plan.contains_outer_reference() {
        return elsewhere();
    }
    match plan {
        LogicalPlan::Filter(node) => filter(node, untie(&node.input, names, rows)?),
        LogicalPlan::Projection(node) => projection(node, untie(&node.input, names, rows)?, names),
        LogicalPlan::SubqueryAlias(node) => alias(node, untie(&node.input, names, rows)?),
        LogicalPlan::Subquery(node) => untie(&node.subquery, names, rows),
        LogicalPlan::Join(node) => join(node, names, rows),
        LogicalPlan::Aggregate(node) => aggregate(node, names, rows),
        LogicalPlan::Distinct(Distinct::All(input)) => distinct(plan, untie(input, names, rows)?, names, rows),
        LogicalPlan::Sort(node) if node.fetch.is_none() => {
            let untied = untie(&node.input, names, rows)?;
            if rows == Rows::List && untied.single.is_none() { below("ORDER BY") } else { Ok(untied) }
        }
        LogicalPlan::Limit(node) => limit(node, untie(&node.input, names, rows)?),
        LogicalPlan::Sort(_) => below("LIMIT or OFFSET"),
        LogicalPlan::Union(_) => below("UNION"),
        LogicalPlan::Window(_) | LogicalPlan::Distinct(Distinct::On(_)) => {
            below("a window, DISTINCT ON, EXCEPT, INTERSECT or the optional side of an outer join")
        }
        LogicalPlan::Unnest(_) => below("unnest"),
        LogicalPlan::RecursiveQuery(_) => below("WITH RECURSIVE"),
        _ => below("another operator than WHERE, a join or an aggregate"),
    }
}

fn filter(node: &Filter, mut input: Untied) -> Result<Untied> {
    let conjuncts = split_conjunction_owned(node.predicate.clone());
    if let Some(single) = &mut input.single {
        for conjunct in conjuncts {
            single.keep(conjunct)?;
        }
        return Ok(input);
    }
    let (ties, own): (Vec<_>, Vec<_>) = conjuncts.into_iter().partition(Expr::contains_outer);
    if let Some(own) = conjunction(own) {
        input.plan = LogicalPlan::Filter(Filter::try_new(own, Arc::new(input.plan))?);
    }
    input.ties.extend(ties);
    Ok(input)
}

/// A list of results that takes in further columns.
struct Results<'a> {
    exprs: Vec<Expr>,
    names: &'a Names,
}

impl Results<'_> {
    /// The column of the results that is `e`.
    fn place(&mut self, e: Expr) -> Expr {
        let is = |of: &Expr| matches!(of, Expr::Alias(of) if *of.expr == e);
        match self.exprs.iter().find(|of| **of == e || is(of)) {
            Some(of) => {
                let (relation, name) = of.qualified_name();
                Expr::Column(Column::new(relation, name))
            }
            None => {
                let name = next(TIE, self.names);
                self.exprs.push(e.alias(name.as_str()));
                Expr::Column(Column::new_unqualified(name))
            }
        }
    }

    /// The same among keys of groups, which share their names with no other results.
    fn group(&mut self, e: Expr) -> Expr {
        if matches!(e, Expr::Column(_)) && !self.exprs.contains(&e) {
            self.exprs.push(e.clone());
            return e;
        }
        self.place(e)
    }

    fn over(self, input: LogicalPlan) -> Result<LogicalPlan> {
        Ok(LogicalPlan::Projection(Projection::try_new(self.exprs, Arc::new(input))?))
    }
}

/// What the names of columns of ties begin with.
pub(super) const TIE: &str = "__tie_";

fn projection(node: &Projection, input: Untied, names: &Names) -> Result<Untied> {
    let mut results = Results { exprs: node.expr.clone(), names };
    let nothing = match &input.single {
        Some(single) => {
            let values = node.schema.columns().into_iter().zip(&node.expr);
            values.map(|(column, e)| Ok((column, single.of_nothing(&e.clone().unalias())?))).collect::<Result<HashMap<_, _>>>()?
        }
        None => HashMap::new(),
    };
    let mut untied = input.placed(|column| Ok(results.place(Expr::Column(column))))?;
    untied.plan = results.over(untied.plan)?;
    if let Some(single) = &mut untied.single {
        single.nothing = nothing;
    }
    Ok(untied)
}

fn alias(node: &SubqueryAlias, input: Untied) -> Result<Untied> {
    let within = Arc::clone(input.plan.schema());
    let renamed = |column: Column| {
        if within.iter().filter(|(_, field)| *field.name() == column.name).count() > 1 {
            return not_impl_err!("a subquery that is tied to the outer row by one of two columns called {}: give one of them another name", column.name);
        }
        Ok(Column::new(Some(node.alias.clone()), column.name))
    };
    let mut untied = input.placed(|column| renamed(column).map(Expr::Column))?;
    untied.plan = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(untied.plan), node.alias.clone())?);
    if let Some(single) = &mut untied.single {
        let nothing = std::mem::take(&mut single.nothing).into_iter();
        single.nothing = nothing.map(|(column, e)| Ok((Column::new(Some(node.alias.clone()), column.name), e))).collect::<Result<_>>()?;
    }
    Ok(untied)
}

fn join(node: &Join, names: &Names, rows: Rows) -> Result<Untied> {
    let (left, right) = (untie(&node.left, names, rows)?, untie(&node.right, names, rows)?);
    let (left_only, right_only) = match node.join_type {
        JoinType::Inner => (false, false),
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => (true, false),
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => (false, true),
        JoinType::Full => (true, true),
    };
    if left.single.is_some() || right.single.is_some() {
        return not_impl_err!(
            "an aggregate without GROUP BY that is tied to the outer row, within a join of the subquery: write it as a subquery for one value"
        );
    }
    if left_only && !right.is_plain() || right_only && !left.is_plain() {
        return below("a window, DISTINCT ON, EXCEPT, INTERSECT or the optional side of an outer join");
    }
    let own_ties = node.filter.iter().any(Expr::contains_outer);
    if own_ties && node.join_type != JoinType::Inner {
        return not_impl_err!(
            "a subquery that is tied to the outer row under ON of an outer join, or by a subquery within it that names a row two levels out: \
             write it as a join"
        );
    }
    if node.on.iter().any(|(l, r)| l.contains_outer() || r.contains_outer()) {
        return elsewhere();
    }
    let (ties, own): (Vec<_>, Vec<_>) = node.filter.clone().map(split_conjunction_owned).unwrap_or_default().into_iter().partition(Expr::contains_outer);
    let at_most_one = left.at_most_one && (right.at_most_one || left_only && node.join_type != JoinType::Left);
    let plan = LogicalPlan::Join(Join::try_new(
        Arc::new(left.plan),
        Arc::new(right.plan),
        node.on.clone(),
        conjunction(own),
        node.join_type,
        node.join_constraint,
        node.null_equality,
        node.null_aware,
    )?);
    let ties = left.ties.into_iter().chain(right.ties).chain(ties).collect();
    Ok(Untied { plan, ties, single: None, at_most_one })
}

/// The side of `tie` without the outer row, if rows that are tied by it are those that have one value there.
fn key(tie: &Expr) -> Option<&Expr> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq | Operator::IsNotDistinctFrom, right }) = tie else { return None };
    match (left.contains_outer(), right.contains_outer()) {
        (false, true) if !right.any_column_refs() => Some(left),
        (true, false) if !left.any_column_refs() => Some(right),
        _ => None,
    }
}

/// `tie` above an operator that makes groups: with `place` of its key, or of its columns if all are in `groups`.
///
/// # Errors
/// `NotImplemented` for another tie.
fn above_groups(tie: Expr, groups: &HashSet<Column>, rows: Rows, place: &mut impl FnMut(Expr) -> Expr) -> Result<Expr> {
    if let Some(key) = key(&tie).cloned() {
        let placed = if key.any_column_refs() { place(key) } else { key };
        let Expr::BinaryExpr(BinaryExpr { left, op, right }) = tie else { return Ok(tie) };
        let (left, right) = if left.contains_outer() { (*left, placed) } else { (placed, *right) };
        return Ok(Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) }));
    }
    if rows == Rows::Set || tie.column_refs().into_iter().all(|column| groups.contains(column)) {
        return carried(tie, &mut |column| Ok(place(Expr::Column(column))));
    }
    not_impl_err!("a subquery that is tied to the outer row by another condition than = below an aggregate, GROUP BY or DISTINCT: write it as a join")
}

fn aggregate(node: &Aggregate, names: &Names, rows: Rows) -> Result<Untied> {
    if node.group_expr.iter().any(|e| matches!(e, Expr::GroupingSet(_))) {
        return not_impl_err!("grouping sets, ROLLUP or CUBE in a subquery that is tied to the outer row: write plain groups, or a join");
    }
    let is_distinct = node.aggr_expr.is_empty();
    let rows = if is_distinct { rows } else { Rows::List };
    let input = untie(&node.input, names, rows)?;
    if input.single.is_some() {
        return not_impl_err!("an aggregate over an aggregate without GROUP BY that is tied to the outer row: write it as a join");
    }
    let groups: HashSet<Column> = node.group_expr.iter().filter_map(|e| e.try_as_col().cloned()).collect();
    let keys: Vec<Expr> = input.ties.iter().filter_map(key).cloned().collect();
    let mut results = Results { exprs: node.group_expr.clone(), names };
    let ties = input.ties.into_iter().map(|tie| above_groups(tie, &groups, rows, &mut |e| results.group(e))).collect::<Result<Vec<_>>>()?;
    let key_columns: HashSet<&Column> = keys.iter().filter_map(Expr::try_as_col).collect();
    let tied = |e: &Expr| keys.contains(e) || e.column_refs().iter().all(|column| key_columns.contains(*column));
    let at_most_one = input.at_most_one || node.group_expr.iter().all(tied);
    let aggregate = Aggregate::try_new(Arc::new(input.plan), results.exprs, node.aggr_expr.clone())?;
    if !node.group_expr.is_empty() {
        return Ok(Untied { plan: LogicalPlan::Aggregate(aggregate), ties, single: None, at_most_one });
    }
    let mut nothing = HashMap::new();
    for (column, e) in node.schema.columns().into_iter().zip(&node.aggr_expr) {
        nothing.insert(column, of_no_rows(e, node)?);
    }
    let found = next("__found_", names);
    let mut columns: Vec<Expr> = aggregate.schema.columns().into_iter().map(Expr::Column).collect();
    columns.push(lit(true).alias(found.as_str()));
    let plan = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(LogicalPlan::Aggregate(aggregate)))?);
    Ok(Untied { plan, ties, single: Some(Single { found: Column::new_unqualified(found), nothing, kept: Vec::new() }), at_most_one: true })
}

/// What the aggregate `e` is over no rows.
fn of_no_rows(e: &Expr, node: &Aggregate) -> Result<Expr> {
    let e = e.clone().transform_down(|e| match &e {
        Expr::AggregateFunction(call) => {
            let value: ScalarValue = call.func.default_value(&e.get_type(node.input.schema().as_ref())?)?;
            Ok(Transformed::new(lit(value), true, TreeNodeRecursion::Jump))
        }
        _ => Ok(Transformed::no(e)),
    });
    Ok(e.data()?.unalias())
}

fn distinct(node: &LogicalPlan, input: Untied, names: &Names, rows: Rows) -> Result<Untied> {
    if rows == Rows::Set || input.single.is_some() || input.at_most_one {
        return Ok(input);
    }
    let columns = node.schema().columns();
    let mut results = Results { exprs: columns.iter().cloned().map(Expr::Column).collect(), names };
    let columns: HashSet<Column> = columns.into_iter().collect();
    let ties = input.ties.into_iter().map(|tie| above_groups(tie, &columns, rows, &mut |e| results.place(e))).collect::<Result<Vec<_>>>()?;
    let plan = LogicalPlan::Distinct(Distinct::All(Arc::new(results.over(input.plan)?)));
    Ok(Untied { plan, ties, ..input })
}

fn limit(node: &Limit, mut input: Untied) -> Result<Untied> {
    let (skip, fetch) = (node.get_skip_type()?, node.get_fetch_type()?);
    let none = matches!(fetch, FetchType::Literal(Some(0)));
    match skip {
        SkipType::Literal(skip) if (input.single.is_some() || input.at_most_one) && matches!(fetch, FetchType::Literal(_)) => {
            if skip > 0 || none {
                match &mut input.single {
                    Some(single) => single.keep(lit(false))?,
                    None => input.plan = LogicalPlan::Filter(Filter::try_new(lit(false), Arc::new(input.plan))?),
                }
            }
            Ok(input)
        }
        _ if none => {
            input.plan = LogicalPlan::Filter(Filter::try_new(lit(false), Arc::new(input.plan))?);
            input.at_most_one = true;
            Ok(input)
        }
        _ => below("LIMIT or OFFSET"),
    }
}
