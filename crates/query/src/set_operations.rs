//! `EXCEPT ALL` and `INTERSECT ALL`, which count copies.
//!
//! DataFusion plans both as an anti or a semi join: every copy of a row that the other side has goes, or stays. Here
//! the copies of a row are numbered on both sides, and the join compares the numbers, too. The statement gets a
//! relation in place of the operation, in a form that no text has, and [`Copies`] plans it.

use std::ops::ControlFlow;

use datafusion::common::{Column, JoinType, NullEquality, Result, plan_err};
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast::{
    Ident, Join, JoinOperator, Query, Select, SetExpr, SetOperator, SetQuantifier, Statement as Inner, TableAlias, TableFactor, TableWithJoins, VisitMut,
    VisitorMut,
};
use skytether_plan::window_functions::row_number;

/// The name of the relation. A text can give it only by writing it on purpose, to no effect but an error.
const NAME: &str = "__set operation with copies";

/// Puts relations in place of `EXCEPT ALL` and `INTERSECT ALL`. Returns whether there were any.
pub(crate) fn take_out(statement: &mut Statement) -> bool {
    let Statement::Statement(statement) = statement else { return false };
    let mut replaced = Replaced(false);
    let _ = VisitMut::visit(statement.as_mut(), &mut replaced);
    replaced.0
}

struct Replaced(bool);

impl VisitorMut for Replaced {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        self.0 |= replace(&mut query.body);
        ControlFlow::Continue(())
    }
}

fn replace(body: &mut SetExpr) -> bool {
    let SetExpr::SetOperation { left, right, op, set_quantifier } = body else { return false };
    let below = replace(left) | replace(right);
    let operator = match (&op, &set_quantifier) {
        (SetOperator::Except | SetOperator::Minus, SetQuantifier::All) => JoinOperator::OuterApply,
        (SetOperator::Intersect, SetQuantifier::All) => JoinOperator::CrossApply,
        _ => return below,
    };
    let (Some(left), Some(right), Some(mut select)) = (derived(left.clone()), derived(right.clone()), star()) else { return below };
    let join = Join { relation: right, global: false, join_operator: operator };
    let alias = TableAlias { explicit: true, name: Ident::with_quote('"', NAME), columns: Vec::new(), at: None };
    let table_with_joins = Box::new(TableWithJoins { relation: left, joins: vec![join] });
    select.from = vec![TableWithJoins { relation: TableFactor::NestedJoin { table_with_joins, alias: Some(alias) }, joins: Vec::new() }];
    *body = SetExpr::Select(select);
    true
}

/// `SELECT *`, without a relation.
fn star() -> Option<Box<Select>> {
    match *parsed()?.body {
        SetExpr::Select(select) => Some(select),
        _ => None,
    }
}

fn derived(body: Box<SetExpr>) -> Option<TableFactor> {
    let subquery = match *body {
        SetExpr::Query(query) => query,
        body => Box::new(Query { body: Box::new(body), ..*parsed()? }),
    };
    Some(TableFactor::Derived { lateral: false, subquery, alias: None, sample: None })
}

fn parsed() -> Option<Box<Query>> {
    match DFParser::parse_sql("SELECT * FROM t").ok()?.pop_front()? {
        Statement::Statement(statement) => match *statement {
            Inner::Query(query) => Some(query),
            _ => None,
        },
        _ => None,
    }
}

/// Plans the relations that [`take_out`] makes.
#[derive(Debug)]
pub(crate) struct Copies;

impl RelationPlanner for Copies {
    fn plan_relation(&self, relation: TableFactor, context: &mut dyn RelationPlannerContext) -> Result<RelationPlanning> {
        let original = |relation| Ok(RelationPlanning::Original(Box::new(relation)));
        let TableFactor::NestedJoin { table_with_joins, alias: Some(alias) } = relation else { return original(relation) };
        let join_type = match table_with_joins.joins.as_slice() {
            [Join { join_operator: JoinOperator::OuterApply, .. }] if alias.name.value == NAME => JoinType::LeftAnti,
            [Join { join_operator: JoinOperator::CrossApply, .. }] if alias.name.value == NAME => JoinType::LeftSemi,
            _ => return original(TableFactor::NestedJoin { table_with_joins, alias: Some(alias) }),
        };
        let TableWithJoins { relation, mut joins } = *table_with_joins;
        let Some(join) = joins.pop() else { return original(relation) };
        let (left, right) = (context.plan(relation)?, context.plan(join.relation)?);
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(counted(left, right, join_type)?, None))))
    }
}

/// The rows of `left` that have, or do not have, an equal row among `right`, copy by copy.
fn counted(left: LogicalPlan, right: LogicalPlan, join_type: JoinType) -> Result<LogicalPlan> {
    let columns = left.schema().fields().len();
    if columns != right.schema().fields().len() {
        let what = if join_type == JoinType::LeftAnti { "EXCEPT" } else { "INTERSECT" };
        return plan_err!("{what} ALL of {columns} columns and {}: both sides must have as many", right.schema().fields().len());
    }
    let names: Vec<String> = left.schema().fields().iter().map(|field| field.name().clone()).collect();
    let (left, right) = (numbered(left, "__left")?, numbered(right, "__right")?);
    let keys = |plan: &LogicalPlan| plan.schema().columns();
    let (on_left, on_right) = (keys(&left), keys(&right));
    let kept: Vec<Expr> = on_left.iter().zip(names).map(|(column, name)| Expr::Column(column.clone()).alias(name)).collect();
    LogicalPlanBuilder::from(left).join_detailed(right, join_type, (on_left, on_right), None, NullEquality::NullEqualsNull)?.project(kept)?.build()
}

/// `plan` with plain names, as `relation`, and the number of each copy of a row as its last column.
fn numbered(plan: LogicalPlan, relation: &str) -> Result<LogicalPlan> {
    let plain: Vec<Expr> = plan.schema().columns().into_iter().enumerate().map(|(at, column)| Expr::Column(column).alias(format!("c{at}"))).collect();
    let plan = LogicalPlanBuilder::from(plan).project(plain)?.alias(relation)?.build()?;
    let columns: Vec<Column> = plan.schema().columns();
    let copy = row_number().partition_by(columns.iter().cloned().map(Expr::Column).collect()).build()?;
    let plan = LogicalPlanBuilder::from(plan).window([copy])?.build()?;
    let number = plan.schema().columns().pop().map(|number| Expr::Column(number).alias("__copy"));
    let all: Vec<Expr> = columns.into_iter().map(Expr::Column).chain(number).collect();
    LogicalPlanBuilder::from(plan).project(all)?.alias(relation)?.build()
}
