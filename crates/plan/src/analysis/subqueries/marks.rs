//! Joins to what subqueries give for each outer row.
//!
//! | subquery | join | what it gives |
//! |---|---|---|
//! | `EXISTS`, `IN`, `NOT EXISTS` as a condition of its own | semi or anti join | the rows of the filter |
//! | `EXISTS`, `IN` elsewhere | mark join | a column: whether the subquery has such a row |
//! | one for a value, tied to the outer row | left join | its value |

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, JoinType, Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Projection, Subquery, SubqueryAlias, lit, not, when};
use datafusion::optimizer::utils::evaluates_to_null;

use super::untied::{Names, Rows, Single, TIE, Untied, carried, is_tied_value, next, untie};

/// A plan that gets marks and values.
pub(super) struct Marks<'a> {
    plan: LogicalPlan,
    names: &'a Names,
    /// Marks that exist: the subquery, what must equal its value, and the mark.
    known: Vec<(LogicalPlan, Option<Expr>, Expr)>,
    /// Values of subqueries that are columns.
    values: Vec<(LogicalPlan, Expr)>,
    joined: bool,
}

/// Whether `of` can be NULL over rows of `schema`.
pub(super) fn may_be_unknown(of: &InSubquery, schema: &DFSchema) -> bool {
    of.expr.nullable(schema).unwrap_or(true) || of.subquery.subquery.schema().fields().first().is_none_or(|field| field.is_nullable())
}

impl<'a> Marks<'a> {
    pub(super) fn new(plan: LogicalPlan, names: &'a Cell<u32>) -> Self {
        Self { plan, names, known: Vec::new(), values: Vec::new(), joined: false }
    }

    /// Whether the plan has columns of joins.
    pub(super) fn any(&self) -> bool {
        self.joined
    }

    pub(super) fn into_plan(self) -> LogicalPlan {
        self.plan
    }

    /// `e` over the marked plan, without subqueries in conditions, or for values that are tied to the outer row.
    ///
    /// # Errors
    /// `NotImplemented` where a subquery is tied to the outer row in a way that no join expresses.
    pub(super) fn replace(&mut self, e: Expr) -> Result<Expr> {
        e.transform_up(|e| match e {
            Expr::Exists(Exists { subquery, negated }) => {
                let exists = self.exists(&subquery.subquery)?;
                Ok(Transformed::yes(if negated { not(exists) } else { exists }))
            }
            Expr::InSubquery(of) => self.membership(of).map(Transformed::yes),
            e if is_tied_value(&e) => self.tied_value(e),
            other => Ok(Transformed::no(other)),
        })
        .data()
    }

    /// `e` over the plan, without subqueries for values that are tied to the outer row.
    pub(super) fn values(&mut self, e: Expr) -> Result<Expr> {
        e.transform_up(|e| if is_tied_value(&e) { self.tied_value(e) } else { Ok(Transformed::no(e)) }).data()
    }

    fn tied_value(&mut self, e: Expr) -> Result<Transformed<Expr>> {
        match e {
            Expr::ScalarSubquery(subquery) => self.value(&subquery.subquery).map(Transformed::yes),
            other => Ok(Transformed::no(other)),
        }
    }

    /// Keeps the rows for which `conjunct`, `EXISTS` or `IN`, is true. Some condition is left where no join does so.
    pub(super) fn keep(&mut self, conjunct: Expr) -> Result<Option<Expr>> {
        let (e, denied) = match conjunct {
            Expr::Not(inner) => (*inner, true),
            other => (other, false),
        };
        let (subquery, member, negated) = match e {
            Expr::Exists(Exists { subquery, negated }) => (subquery, None, negated),
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => (subquery, Some(*expr), negated),
            other => return self.replace(if denied { not(other) } else { other }).map(Some),
        };
        let untied = untie(&subquery.subquery, self.names, Rows::Set)?;
        if untied.single.is_some() {
            let e = match member {
                Some(x) => Expr::InSubquery(InSubquery { expr: Box::new(x), subquery, negated }),
                None => Expr::Exists(Exists { subquery, negated }),
            };
            return self.replace(if denied { not(e) } else { e }).map(Some);
        }
        let join_type = if negated == denied { JoinType::LeftSemi } else { JoinType::LeftAnti };
        self.join(untied, member.as_ref().map(|x| (x, &subquery)), join_type, "__tied_sq_")?;
        Ok(None)
    }

    /// Whether `subquery` has a row.
    fn exists(&mut self, subquery: &LogicalPlan) -> Result<Expr> {
        let untied = untie(subquery, self.names, Rows::Set)?;
        match &untied.single {
            Some(single) if single.kept.is_empty() => Ok(lit(true)),
            Some(_) => Ok(self.single(untied, None)?.is_true()),
            None => self.mark(subquery, None),
        }
    }

    /// `x IN (...)`: true if a value equals `x`; else NULL if a value is NULL, or if `x` is and there is any; else
    /// false.
    fn membership(&mut self, of: InSubquery) -> Result<Expr> {
        let InSubquery { expr: x, subquery, negated } = of;
        let values = subquery.subquery.as_ref();
        let untied = untie(values, self.names, Rows::Set)?;
        if untied.single.is_some() {
            let has_row = self.exists(values)?;
            let equal = x.as_ref().clone().eq(self.value(values)?);
            let is_in = if has_row == lit(true) { equal } else { when(has_row, equal).otherwise(lit(false))? };
            return Ok(if negated { not(is_in) } else { is_in });
        }
        let equal = self.mark(values, Some(&x))?;
        let mut unknown = Vec::new();
        let value = values.schema().columns().into_iter().next().map(Expr::Column);
        if let Some(value) = value.filter(|value| is_nullable(value, values)) {
            let nulls = LogicalPlanBuilder::from(values.clone()).filter(value.is_null())?.build()?;
            unknown.push(self.mark(&nulls, None)?);
        }
        if is_nullable(&x, &self.plan) {
            let any = self.mark(values, None)?;
            unknown.push(x.is_null().and(any));
        }
        let is_in = match unknown.into_iter().reduce(Expr::or) {
            Some(unknown) => when(equal, lit(true)).when(unknown, lit(ScalarValue::Boolean(None))).otherwise(lit(false))?,
            None => equal,
        };
        Ok(if negated { not(is_in) } else { is_in })
    }

    /// A column that is true where `subquery` has a row, with `member` as its value if there is one.
    fn mark(&mut self, subquery: &LogicalPlan, member: Option<&Expr>) -> Result<Expr> {
        if let Some((_, _, mark)) = self.known.iter().find(|(plan, of, _)| of.as_ref() == member && plan == subquery) {
            return Ok(mark.clone());
        }
        let untied = untie(subquery, self.names, Rows::Set)?;
        let of = self::subquery(subquery.clone());
        let name = self.join(untied, member.map(|x| (x, &of)), JoinType::LeftMark, "__mark_")?;
        let mark = Expr::Column(Column::new(Some(name), "mark"));
        self.known.push((subquery.clone(), member.cloned(), mark.clone()));
        Ok(mark)
    }

    /// Joins `untied`, with `member` as the value of the subquery it is of. Returns the name of its relation.
    fn join(&mut self, untied: Untied, member: Option<(&Expr, &Subquery)>, join_type: JoinType, prefix: &str) -> Result<String> {
        let name = next(prefix, self.names);
        let mut side = Side::new(&name, self.plan.schema(), self.names);
        let equal = match member {
            Some((x, of)) => Some(x.clone().eq(side.place(first_column(&of.subquery)?))),
            None => None,
        };
        let conditions = equal.into_iter().map(Ok).chain(untied.ties.into_iter().map(|tie| side.condition(tie))).collect::<Result<Vec<_>>>()?;
        let right = side.over(untied.plan)?;
        self.joined |= join_type == JoinType::LeftMark;
        self.join_on(right, join_type, conditions)?;
        Ok(name)
    }

    fn join_on(&mut self, right: LogicalPlan, join_type: JoinType, conditions: Vec<Expr>) -> Result<()> {
        let condition = conjunction(conditions).unwrap_or_else(|| lit(true));
        let left = std::mem::take(&mut self.plan);
        self.plan = LogicalPlanBuilder::from(left).join_on(right, join_type, [condition])?.build()?;
        Ok(())
    }

    /// The value of `subquery`, which has one row at most for each outer row.
    fn value(&mut self, subquery: &LogicalPlan) -> Result<Expr> {
        if let Some((_, value)) = self.values.iter().find(|(plan, _)| plan == subquery) {
            return Ok(value.clone());
        }
        let untied = untie(subquery, self.names, Rows::Bag)?;
        if !untied.at_most_one {
            return not_impl_err!(
                "a subquery for one value that is tied to the outer row and may have several rows: take one of them, as by max, or write it as a join"
            );
        }
        let value = self.single(untied, Some(first_column(subquery)?))?;
        self.values.push((subquery.clone(), value.clone()));
        Ok(value)
    }

    /// `value` of a subquery with one row at most; without one, whether it has a row.
    fn single(&mut self, untied: Untied, value: Option<Expr>) -> Result<Expr> {
        let name = next("__scalar_sq_", self.names);
        let mut side = Side::new(&name, self.plan.schema(), self.names);
        let result = match &untied.single {
            Some(single) => of_single(single, value, &mut side)?,
            None => side.place(value.unwrap_or_else(|| lit(true))),
        };
        let conditions = untied.ties.into_iter().map(|tie| side.condition(tie)).collect::<Result<Vec<_>>>()?;
        let right = side.over(untied.plan)?;
        self.joined = true;
        self.join_on(right, JoinType::Left, conditions)?;
        Ok(result)
    }
}

/// What the row of `single` gives behind a left join with `side`: `value`, or whether the row is kept.
fn of_single(single: &Single, value: Option<Expr>, side: &mut Side<'_>) -> Result<Expr> {
    let (row, nothing): (Vec<Expr>, Vec<Expr>) = single.kept.iter().cloned().unzip();
    let of_nothing = value.as_ref().map(|value| single.of_nothing(value)).transpose()?;
    let (row, nothing) = match (value, of_nothing, conjunction(row), conjunction(nothing)) {
        (Some(value), Some(of_nothing), Some(row), Some(nothing)) => {
            let row = when(side.value(row)?, side.place(value)).end()?;
            (row, when(nothing, of_nothing).end()?)
        }
        (Some(value), Some(of_nothing), _, _) => (side.place(value), of_nothing),
        (_, _, Some(row), Some(nothing)) => (side.value(row)?, nothing),
        _ => return Ok(lit(true)),
    };
    // Columns are NULL without a row, and so are values of them.
    if evaluates_to_null(nothing.clone(), std::iter::empty()).unwrap_or(false) {
        return Ok(row);
    }
    let found = side.place(Expr::Column(single.found.clone()));
    when(found.is_null(), outer_columns(nothing, &side.left)?).otherwise(row)
}

fn first_column(plan: &LogicalPlan) -> Result<Expr> {
    match plan.schema().columns().into_iter().next() {
        Some(column) => Ok(Expr::Column(column)),
        None => not_impl_err!("a subquery without a column: name one"),
    }
}

/// The right side of a join: a relation with the columns of a subquery that the join needs.
struct Side<'a> {
    name: &'a str,
    left: Arc<DFSchema>,
    names: &'a Names,
    columns: Vec<(Expr, String)>,
}

impl<'a> Side<'a> {
    fn new(name: &'a str, left: &Arc<DFSchema>, names: &'a Names) -> Self {
        Self { name, left: Arc::clone(left), names, columns: Vec::new() }
    }

    /// The column of the relation that is `e` of the subquery.
    fn place(&mut self, e: Expr) -> Expr {
        let name = match self.columns.iter().find(|(known, _)| *known == e) {
            Some((_, name)) => name.clone(),
            None => {
                // A column keeps its name, unless that would be another one's.
                let free =
                    |name: &String| self.columns.iter().all(|(_, of)| of != name) && !self.left.iter().any(|(of, field)| of.is_none() && field.name() == name);
                let name = match &e {
                    Expr::Column(column) if free(&column.name) => column.name.clone(),
                    _ => next(TIE, self.names),
                };
                self.columns.push((e, name.clone()));
                name
            }
        };
        Expr::Column(Column::new(Some(self.name), name))
    }

    /// `e` of the subquery, which may name the outer row, behind the join.
    fn value(&mut self, e: Expr) -> Result<Expr> {
        if e.contains_outer() { self.condition(e) } else { Ok(self.place(e)) }
    }

    /// The tie `e` as a condition of the join.
    fn condition(&mut self, e: Expr) -> Result<Expr> {
        let e = carried(e, &mut |column| Ok(self.place(Expr::Column(column))))?;
        outer_columns(e, &self.left)
    }

    fn over(self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let mut columns: Vec<Expr> =
            self.columns.into_iter().map(|(e, name)| if matches!(&e, Expr::Column(of) if of.name == name) { e } else { e.alias(name) }).collect();
        if columns.is_empty() {
            columns.push(lit(true).alias(next(TIE, self.names)));
        }
        let plan = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?);
        Ok(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(plan), self.name)?))
    }
}

/// `e` with references to the outer row that are columns of `left` as such columns.
pub(super) fn outer_columns(e: Expr, left: &DFSchema) -> Result<Expr> {
    e.transform(|e| match e {
        Expr::OuterReferenceColumn(_, column) if left.has_column(&column) => Ok(Transformed::yes(Expr::Column(column))),
        other => Ok(Transformed::no(other)),
    })
    .data()
}

/// `plan` as a subquery, with the columns that tie it to the outer row.
pub(super) fn subquery(plan: LogicalPlan) -> Subquery {
    let outer_ref_columns = plan.all_out_ref_exprs();
    Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: Default::default() }
}

/// Whether `e` can be NULL over `plan`; unknown counts as yes.
fn is_nullable(e: &Expr, plan: &LogicalPlan) -> bool {
    e.nullable(plan.schema().as_ref()).unwrap_or(true)
}
