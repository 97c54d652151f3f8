//! The column that `USING` and `NATURAL` merge, in right and full joins.
//!
//! SQL says: the merged column is the left one in inner and left joins, the right one in right joins, and whichever is
//! there in full joins. DataFusion always takes the left one. Here such a join becomes a relation of its own, in
//! parentheses, and [`MergedKeys`] plans it as a join with `ON` below a projection that merges the keys. What is left
//! of the former keys, `a.k` and `b.k`, stays only where the query names one: `SELECT *` has each key once.
//!
//! DataFusion plans inner and left joins rightly, and keeps `a.k` and `b.k`. But it takes the key in a `WHERE` for
//! ambiguous. A query that fails with that is planned again, with the keys of these joins merged as well.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::common::{Column, JoinType, Result, TableReference, plan_err};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{Join, JoinConstraint, JoinOperator, Select, TableFactor, TableWithJoins, VisitMut, VisitorMut};

use crate::side_keys::{self, SideKeys};

/// Plans right and full joins by `USING` and `NATURAL`.
#[derive(Debug)]
pub(crate) struct MergedKeys {
    sides: SideKeys,
    of: Joins,
}

/// The joins whose keys are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joins {
    /// Right and full ones.
    Outer,
    /// Inner and left ones as well.
    All,
}

impl Joins {
    pub(crate) fn kind(self, operator: &JoinOperator) -> Option<(JoinType, &JoinConstraint)> {
        let (join_type, constraint) = match operator {
            JoinOperator::Right(constraint) | JoinOperator::RightOuter(constraint) => (JoinType::Right, constraint),
            JoinOperator::FullOuter(constraint) => (JoinType::Full, constraint),
            JoinOperator::Join(constraint) | JoinOperator::Inner(constraint) if self == Self::All => (JoinType::Inner, constraint),
            JoinOperator::Left(constraint) | JoinOperator::LeftOuter(constraint) if self == Self::All => (JoinType::Left, constraint),
            _ => return None,
        };
        matches!(constraint, JoinConstraint::Using(_) | JoinConstraint::Natural).then_some((join_type, constraint))
    }

    fn merge(self, join: &Join) -> bool {
        self.kind(&join.join_operator).is_some()
    }
}

/// Puts parentheses around the joins of `statement` that need a merged key. Returns their planner, if there are any.
///
/// # Errors
/// A select list that names the keys of both sides alike.
pub(crate) fn wrap(statement: &mut Statement, of: Joins) -> skytether_common::Result<Option<MergedKeys>> {
    let Statement::Statement(inner) = statement else { return Ok(None) };
    let mut any = Merging { any: false, of };
    let _ = VisitMut::visit(inner.as_mut(), &mut any);
    if !any.any {
        return Ok(None);
    }
    let sides = side_keys::rename(inner.as_mut(), of)?;
    let _ = VisitMut::visit(inner.as_mut(), &mut Wrapped { of });
    Ok(Some(MergedKeys { sides, of }))
}

struct Merging {
    any: bool,
    of: Joins,
}

impl VisitorMut for Merging {
    type Break = ();

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        self.any |= select.from.iter().any(|from| from.joins.iter().any(|join| self.of.merge(join)));
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        self.any |= matches!(factor, TableFactor::NestedJoin { table_with_joins, .. } if table_with_joins.joins.iter().any(|join| self.of.merge(join)));
        ControlFlow::Continue(())
    }
}

struct Wrapped {
    of: Joins,
}

impl VisitorMut for Wrapped {
    type Break = ();

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        select.from.iter_mut().for_each(|from| self.wrap(from));
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor
            && (table_with_joins.joins.len() > 1 || !table_with_joins.joins.iter().any(|join| self.of.merge(join)))
        {
            self.wrap(table_with_joins);
        }
        ControlFlow::Continue(())
    }
}

impl Wrapped {
    fn wrap(&mut self, from: &mut TableWithJoins) {
        let joins = std::mem::take(&mut from.joins);
        for join in joins {
            if self.of.merge(&join) {
                let relation = std::mem::replace(&mut from.relation, nothing());
                let left = if from.joins.is_empty() { relation } else { nested(relation, std::mem::take(&mut from.joins)) };
                from.relation = nested(left, vec![join]);
            } else {
                from.joins.push(join);
            }
        }
    }
}

fn nested(relation: TableFactor, joins: Vec<Join>) -> TableFactor {
    TableFactor::NestedJoin { table_with_joins: Box::new(TableWithJoins { relation, joins }), alias: None }
}

fn nothing() -> TableFactor {
    TableFactor::Table {
        name: datafusion::sql::sqlparser::ast::ObjectName(Vec::new()),
        alias: None,
        args: None,
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    }
}

impl RelationPlanner for MergedKeys {
    fn plan_relation(&self, relation: TableFactor, context: &mut dyn RelationPlannerContext) -> Result<RelationPlanning> {
        let original = |relation| Ok(RelationPlanning::Original(Box::new(relation)));
        let TableFactor::NestedJoin { table_with_joins, alias } = relation else { return original(relation) };
        let Some((join_type, constraint)) =
            table_with_joins.joins.first().and_then(|join| self.of.kind(&join.join_operator)).filter(|_| table_with_joins.joins.len() == 1)
        else {
            return original(TableFactor::NestedJoin { table_with_joins, alias });
        };
        let constraint = constraint.clone();
        let natural = matches!(constraint, JoinConstraint::Natural);
        let TableWithJoins { relation, mut joins } = *table_with_joins;
        let Some(join) = joins.pop() else { return original(relation) };
        let (left, right) = (context.plan(relation)?, context.plan(join.relation)?);
        let names = match constraint {
            JoinConstraint::Using(names) => names
                .into_iter()
                .map(|mut name| match (name.0.pop().and_then(|part| part.as_ident().cloned()), name.0.is_empty()) {
                    (Some(ident), true) => Ok(context.normalize_ident(ident)),
                    _ => plan_err!("USING names columns that both sides have, without a relation"),
                })
                .collect::<Result<Vec<_>>>()?,
            _ => common(&left, &right),
        };
        let plan = self.merged(left, right, join_type, &names, natural)?;
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
    }
}

/// The names of columns that both sides have, in the order of `left`.
fn common(left: &LogicalPlan, right: &LogicalPlan) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for field in left.schema().fields() {
        if right.schema().fields().iter().any(|other| other.name() == field.name()) && !names.contains(field.name()) {
            names.push(field.name().clone());
        }
    }
    names
}

impl MergedKeys {
    fn merged(&self, left: LogicalPlan, right: LogicalPlan, join_type: JoinType, names: &[String], natural: bool) -> Result<LogicalPlan> {
        let keys = names.iter().map(|name| Ok((Key::of(&left, name)?, Key::of(&right, name)?))).collect::<Result<Vec<_>>>()?;
        let conditions: Vec<Expr> = keys.iter().map(|(l, r)| l.value().eq(r.value())).collect();
        let columns: Vec<Column> = left.schema().columns().into_iter().chain(right.schema().columns()).collect();
        let plan = LogicalPlanBuilder::from(left).join_on(right, join_type, conditions)?.build()?;
        let merged = keys.iter().zip(names).map(|((l, r), name)| {
            let value = match join_type {
                JoinType::Right => r.value(),
                JoinType::Full => coalesce(vec![l.value(), r.value()]),
                _ => l.value(),
            };
            value.alias_qualified(Some(TableReference::bare(l.merged_relation())), name)
        });
        let mut exprs: Vec<Expr> = merged.collect();
        for column in columns {
            if !keys.iter().any(|(l, r)| l.is(&column) || r.is(&column)) {
                exprs.push(Expr::Column(column));
            } else if let Some(relation) = column.relation.clone()
                && let Some(hidden) = self.sides.hidden(relation.table(), &column.name)
            {
                exprs.push(Expr::Column(column).alias_qualified(Some(relation), hidden));
            } else if natural
                && let Some(relation) = column.relation.clone()
                && self.sides.names(relation.table(), &column.name)
            {
                let (table, name) = (relation.table(), &column.name);
                return plan_err!("{table}.{name}: NATURAL merges {name} of both sides: write USING ({name}) to name the key of one side");
            }
        }
        LogicalPlanBuilder::from(plan).project(exprs)?.build()
    }
}

/// What relations of merged keys are called, so that `k` is never ambiguous next to `a.k`.
const MERGED: &str = "__merged_";

/// A key of one side.
struct Key {
    column: Column,
    /// Further names of it: of the other side of inner joins within.
    others: HashSet<Column>,
}

impl Key {
    /// The column called `name` of `plan`: of the keys that an inner join within has merged, the left one.
    fn of(plan: &LogicalPlan, name: &str) -> Result<Self> {
        let sets = plan.using_columns()?;
        let column = Column::from_name(name).normalize_with_schemas_and_ambiguity_check(&[&[plan.schema()]], &sets)?;
        let others = sets.into_iter().filter(|set| set.contains(&column)).flatten().filter(|other| other.name == name).collect();
        Ok(Self { column, others })
    }

    fn value(&self) -> Expr {
        Expr::Column(self.column.clone())
    }

    fn is(&self, column: &Column) -> bool {
        *column == self.column || self.others.contains(column)
    }

    fn merged_relation(&self) -> String {
        match self.column.relation.as_ref().map(TableReference::table) {
            Some(merged) if merged.starts_with(MERGED) => merged.to_owned(),
            relation => format!("{MERGED}{}", relation.unwrap_or_default()),
        }
    }
}
