//! The column that `USING` and `NATURAL` merge.
//!
//! SQL says: the merged column is the left one in inner and left joins, the right one in right joins, and whichever is
//! there in full joins. DataFusion always takes the left one, and below `*` the one whose relation's name comes first.
//! Here such a join becomes a relation of its own, in parentheses. [`MergedKeys`] plans it as a join with `ON` below a
//! projection that merges the keys. The merged key has the left key's place. What is left of the former keys, `a.k` and
//! `b.k`, stays only where the query names one: `SELECT *` has each key once.
//!
//! DataFusion plans inner and left joins rightly where no `*` is, and keeps `a.k` and `b.k`. But it takes the key in a
//! `WHERE` for ambiguous. A query that fails with that is planned again, with the keys of these joins merged as well.
//!
//! Which columns `NATURAL` merges, and which ones `a.*` has, is only known while the join is planned. Then the query is
//! planned once more, with their names written out ([`Learned`]).

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::{Column, JoinType, Result, TableReference, internal_err, plan_err};
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, Join, JoinConstraint, JoinOperator, Select, SelectItem, SetExpr, Statement as SqlStatement, TableFactor, TableWithJoins, Visit, VisitMut,
    Visitor, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use crate::join_numbers::{Learned, Mark, number};
use crate::side_keys::{self, SideKeys};

/// Plans joins by `USING` and `NATURAL`.
#[derive(Debug)]
pub(crate) struct MergedKeys {
    sides: SideKeys,
    of: Joins,
    learned: Arc<Learned>,
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

impl Joins {
    /// Those whose keys are merged in `statement` at first: all, if a `*` shows the keys of an inner or a left one, or
    /// if one is in a subquery. There, a key that is ambiguous would be taken for a column of the outer row.
    pub(crate) fn of(statement: &Statement) -> Self {
        let Statement::Statement(inner) = statement else { return Self::Outer };
        if Visit::visit(inner.as_ref(), &mut Starred).is_break() { Self::All } else { Self::Outer }
    }

    /// Whether `from` joins by `USING` or `NATURAL`, outside of subqueries.
    fn any_in(self, from: &TableWithJoins) -> bool {
        let within = |factor: &TableFactor| matches!(factor, TableFactor::NestedJoin { table_with_joins, .. } if self.any_in(table_with_joins));
        within(&from.relation) || from.joins.iter().any(|join| self.merge(join) || within(&join.relation))
    }
}

/// Ends at a `*` over joins by `USING` or `NATURAL`, and at such joins in parentheses with a name, which are a `*` of
/// their own.
struct Starred;

impl Visitor for Starred {
    type Break = ();

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        let star = select.projection.iter().any(|item| matches!(item, SelectItem::Wildcard(_)));
        if star && select.from.iter().any(|from| Joins::All.any_in(from)) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn pre_visit_expr(&mut self, e: &SqlExpr) -> ControlFlow<()> {
        match e {
            SqlExpr::Subquery(query) | SqlExpr::Exists { subquery: query, .. } | SqlExpr::InSubquery { subquery: query, .. } => {
                Visit::visit(query.as_ref(), &mut Merging { of: Joins::All })
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::NestedJoin { table_with_joins, alias: Some(_) } if Joins::All.any_in(table_with_joins) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Puts parentheses around the joins of `statement` that need a merged key. Returns their planner, if there are any.
///
/// # Errors
/// A select list that names the keys of both sides alike.
pub(crate) fn wrap(statement: &mut Statement, of: Joins, learned: &Arc<Learned>) -> skytether_common::Result<Option<MergedKeys>> {
    let Statement::Statement(inner) = statement else { return Ok(None) };
    if Visit::visit(inner.as_ref(), &mut Merging { of }).is_continue() {
        return Ok(None);
    }
    let _ = VisitMut::visit(inner.as_mut(), &mut Named { of });
    number(inner.as_mut(), of, learned);
    let sides = side_keys::rename(inner.as_mut(), of, learned)?;
    let _ = VisitMut::visit(inner.as_mut(), &mut Wrapped { of });
    Ok(Some(MergedKeys { sides, of, learned: Arc::clone(learned) }))
}

/// Ends at a join whose keys are merged.
struct Merging {
    of: Joins,
}

impl Visitor for Merging {
    type Break = ();

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        if select.from.iter().any(|from| self.of.any_in(from)) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Joins in parentheses with a name become subqueries: nothing outside names the relations within.
struct Named {
    of: Joins,
}

impl VisitorMut for Named {
    type Break = ();

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::NestedJoin { table_with_joins, alias: Some(alias) } = factor
            && self.of.any_in(table_with_joins)
            && let Some(SqlStatement::Query(mut subquery)) =
                Parser::parse_sql(&GenericDialect {}, "SELECT * FROM x").ok().and_then(|mut statements| statements.pop())
            && let SetExpr::Select(select) = subquery.body.as_mut()
        {
            select.from = vec![table_with_joins.as_ref().clone()];
            *factor = TableFactor::Derived { lateral: false, subquery, alias: Some(alias.clone()), sample: None };
        }
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
        let JoinConstraint::Using(mut names) = constraint.clone() else { return internal_err!("a join by NATURAL without a number") };
        let Some(mark) = Mark::take(&mut names) else { return internal_err!("a join by USING without a number") };
        let TableWithJoins { relation, mut joins } = *table_with_joins;
        let Some(join) = joins.pop() else { return original(relation) };
        let (left, right) = (context.plan(relation)?, context.plan(join.relation)?);
        self.learned.sides(mark.join, &[left.schema(), right.schema()]);
        let names = if mark.natural {
            let names = common(&left, &right);
            self.learned.natural(mark.join, &names);
            names
        } else {
            names
                .into_iter()
                .map(|mut name| match (name.0.pop().and_then(|part| part.as_ident().cloned()), name.0.is_empty()) {
                    (Some(ident), true) => Ok(context.normalize_ident(ident)),
                    _ => plan_err!("USING names columns that both sides have, without a relation"),
                })
                .collect::<Result<Vec<_>>>()?
        };
        let plan = self.merged(left, right, join_type, &names, mark.join)?;
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
    fn merged(&self, left: LogicalPlan, right: LogicalPlan, join_type: JoinType, names: &[String], join: usize) -> Result<LogicalPlan> {
        let keys = names.iter().map(|name| Ok((Key::of(&left, name)?, Key::of(&right, name)?))).collect::<Result<Vec<_>>>()?;
        let conditions: Vec<Expr> = keys.iter().map(|(l, r)| l.value().eq(r.value())).collect();
        let columns: Vec<Column> = left.schema().columns().into_iter().chain(right.schema().columns()).collect();
        let plan = LogicalPlanBuilder::from(left).join_on(right, join_type, conditions)?.build()?;
        let merged = |(l, r): &(Key, Key)| {
            let value = match join_type {
                JoinType::Right => r.value(),
                JoinType::Full => coalesce(vec![l.value(), r.value()]),
                _ => l.value(),
            };
            value.alias_qualified(Some(TableReference::bare(l.merged_relation())), &l.column.name)
        };
        let mut exprs: Vec<Expr> = Vec::new();
        for column in columns {
            exprs.extend(keys.iter().find(|(l, _)| l.column == column).map(merged));
            if !keys.iter().any(|(l, r)| l.is(&column) || r.is(&column)) {
                exprs.push(Expr::Column(column));
            } else if let Some(relation) = column.relation.clone()
                && let Some(hidden) = self.sides.hidden(join, relation.table(), &column.name)
            {
                exprs.push(Expr::Column(column).alias_qualified(Some(relation), hidden));
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
