//! Mark joins: a column that says, for each outer row, whether a subquery has a row.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, JoinType, Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, expr_to_columns};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, lit, not, when};
use datafusion::optimizer::decorrelate::PullUpCorrelatedExpr;

use super::{is_nullable, ties};

/// The column of a subquery whose values count.
const MEMBER: &str = "__member";

/// A plan that gets marks.
pub(super) struct Marks<'a> {
    plan: LogicalPlan,
    count: &'a Cell<u32>,
    /// Marks that exist: the subquery, what must equal its value, and the mark.
    known: Vec<(LogicalPlan, Option<Expr>, Expr)>,
}

/// Whether `of` can be NULL over rows of `schema`.
pub(super) fn may_be_unknown(of: &InSubquery, schema: &DFSchema) -> bool {
    of.expr.nullable(schema).unwrap_or(true) || of.subquery.subquery.schema().fields().first().is_none_or(|field| field.is_nullable())
}

impl<'a> Marks<'a> {
    pub(super) fn new(plan: LogicalPlan, count: &'a Cell<u32>) -> Self {
        Self { plan, count, known: Vec::new() }
    }

    /// Whether the plan has marks.
    pub(super) fn any(&self) -> bool {
        !self.known.is_empty()
    }

    pub(super) fn into_plan(self) -> LogicalPlan {
        self.plan
    }

    /// `e` over the marked plan, without subqueries in conditions.
    ///
    /// # Errors
    /// `NotImplemented` where a subquery is tied to the outer row in a way that no join expresses.
    pub(super) fn replace(&mut self, e: Expr) -> Result<Expr> {
        e.transform_up(|e| match e {
            Expr::Exists(Exists { subquery, negated }) => {
                let mark = self.mark(&subquery.subquery, None)?;
                Ok(Transformed::yes(if negated { not(mark) } else { mark }))
            }
            Expr::InSubquery(of) => self.membership(of).map(Transformed::yes),
            other => Ok(Transformed::no(other)),
        })
        .data()
    }

    /// `x IN (...)`: true if a value equals `x`; else NULL if a value is NULL, or if `x` is and there is any; else
    /// false.
    fn membership(&mut self, of: InSubquery) -> Result<Expr> {
        let InSubquery { expr: x, subquery, negated } = of;
        let values = subquery.subquery.as_ref();
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
        ties::check(subquery)?;
        self.count.set(self.count.get() + 1);
        let name = format!("__mark_{}", self.count.get());
        let value = match (member, subquery.schema().columns().into_iter().next()) {
            (Some(_), Some(column)) => Expr::Column(column),
            _ => lit(true),
        };
        let values = LogicalPlanBuilder::from(subquery.clone()).project([value.alias(MEMBER)])?.build()?;
        let mut pull_up = PullUpCorrelatedExpr::new().with_exists_sub_query(member.is_none());
        let values = values.rewrite(&mut pull_up).data()?;
        if !pull_up.can_pull_up {
            return not_impl_err!(
                "a subquery under IN or EXISTS that names the outer row elsewhere than in WHERE, or below LIMIT, OFFSET, UNION or an \
                 aggregate: write it as a join"
            );
        }
        let tied: BTreeSet<Column> = pull_up.correlated_subquery_cols_map.into_values().flatten().collect();
        let ties = Ties::new(&values, tied)?;
        let right = LogicalPlanBuilder::from(values).project(ties.columns())?.alias(name.as_str())?.build()?;
        let mut conditions = pull_up.join_filters.into_iter().map(|e| ties.renamed(e, &name)).collect::<Result<Vec<_>>>()?;
        conditions.extend(member.map(|x| x.clone().eq(Expr::Column(Column::new(Some(name.as_str()), MEMBER)))));
        let condition = conjunction(conditions).unwrap_or_else(|| lit(true));
        let mut needed = HashSet::new();
        expr_to_columns(&condition, &mut needed)?;
        let columns: Vec<Expr> = right.schema().columns().into_iter().filter(|column| needed.contains(column)).map(Expr::Column).collect();
        let right = if columns.is_empty() { right } else { LogicalPlanBuilder::from(right).project(columns)?.build()? };
        let left = std::mem::take(&mut self.plan);
        self.plan = LogicalPlanBuilder::from(left).join_on(right, JoinType::LeftMark, [condition])?.build()?;
        let mark = Expr::Column(Column::new(Some(name), "mark"));
        self.known.push((subquery.clone(), member.cloned(), mark.clone()));
        Ok(mark)
    }
}

/// The columns of a subquery's rows. Those that tie it to the outer row get names of their own: both sides of a join
/// may have one of the same name.
struct Ties {
    all: Vec<Column>,
    /// Tied columns as conditions name them, with their places in `all`.
    places: HashMap<Column, usize>,
}

impl Ties {
    fn new(rows: &LogicalPlan, tied: BTreeSet<Column>) -> Result<Self> {
        let all = rows.schema().columns();
        let mut places = HashMap::new();
        for column in tied {
            // A relation with a new name, around the one that the condition names, has the column by its name.
            let by_name: Vec<usize> = all.iter().enumerate().filter(|(_, of)| of.name == column.name).map(|(at, _)| at).collect();
            let place = match (all.iter().position(|of| *of == column), by_name.as_slice()) {
                (Some(place), _) => place,
                (None, [place]) => *place,
                _ => return not_impl_err!("a subquery whose columns {} are of several relations: give one of them another name", column.name),
            };
            places.insert(column, place);
        }
        Ok(Self { all, places })
    }

    fn columns(&self) -> Vec<Expr> {
        let named = |(at, column): (usize, &Column)| {
            let tied = self.places.values().any(|place| *place == at);
            if tied { Expr::Column(column.clone()).alias(tie(at)) } else { Expr::Column(column.clone()) }
        };
        self.all.iter().enumerate().map(named).collect()
    }

    /// `e` with tied columns as columns of the relation `name`.
    fn renamed(&self, e: Expr, name: &str) -> Result<Expr> {
        e.transform(|e| match e {
            Expr::Column(column) => Ok(match self.places.get(&column) {
                Some(place) => Transformed::yes(Expr::Column(Column::new(Some(name), tie(*place)))),
                None => Transformed::no(Expr::Column(column)),
            }),
            other => Ok(Transformed::no(other)),
        })
        .data()
    }
}

fn tie(place: usize) -> String {
    format!("__tie_{place}")
}

/// `plan` as a subquery, with the columns that tie it to the outer row.
pub(super) fn subquery(plan: LogicalPlan) -> datafusion::logical_expr::Subquery {
    let outer_ref_columns = plan.all_out_ref_exprs();
    datafusion::logical_expr::Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: Default::default() }
}
