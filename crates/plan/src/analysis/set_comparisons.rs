//! `x > ANY (SELECT ...)` and `x > ALL (SELECT ...)`, as `IN` and `EXISTS`.
//!
//! DataFusion does so after the rules of the analysis. Here it comes before them, so that they see what is compared.
//! The result keeps the name of the comparison.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue, not_impl_err, plan_err};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, ExprSchemable, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Subquery, binary_expr, lit, not, when};

use crate::rewriting::{input_columns, map_expressions};

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let schema = input_columns(&node);
        let node = match node {
            LogicalPlan::Filter(filter) => conditions(filter, &schema)?,
            other => Transformed::no(other),
        };
        let changed = node.transformed;
        let node = map_expressions(node.data, |e| match e {
            Expr::SetComparison(of) => value(of, &schema).map(Transformed::yes),
            other => Ok(Transformed::no(other)),
        })?;
        Ok(Transformed::new_transformed(node.data, node.transformed || changed))
    })
    .data()
}

/// Conditions of their own are one semi or anti join: only true counts.
fn conditions(filter: Filter, schema: &DFSchema) -> Result<Transformed<LogicalPlan>> {
    if !filter.predicate.exists(|e| Ok(matches!(e, Expr::SetComparison(_))))? {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    let conjuncts = split_conjunction_owned(filter.predicate).into_iter().map(|conjunct| match conjunct {
        Expr::SetComparison(of) if is_membership(&of).is_none() => {
            let comparison = comparison(&of, schema)?;
            match of.quantifier {
                SetQuantifier::Any => exists(&of.subquery, comparison),
                SetQuantifier::All => exists(&of.subquery, comparison.is_not_true()).map(not),
            }
        }
        other => Ok(other),
    });
    let predicate = conjunction(conjuncts.collect::<Result<Vec<_>>>()?).unwrap_or_else(|| lit(true));
    Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, filter.input)?)))
}

/// Whether `of` is `IN` (false) or `NOT IN` (true).
fn is_membership(of: &SetComparison) -> Option<bool> {
    match (of.op, &of.quantifier) {
        (Operator::Eq, SetQuantifier::Any) => Some(false),
        (Operator::NotEq, SetQuantifier::All) => Some(true),
        _ => None,
    }
}

/// `ANY` is true if one comparison is, else NULL if one is, else false. `ALL` is false if one is, else NULL, else true.
fn value(of: SetComparison, schema: &DFSchema) -> Result<Expr> {
    if let Some(negated) = is_membership(&of) {
        return Ok(Expr::InSubquery(InSubquery { expr: of.expr, subquery: of.subquery, negated }));
    }
    let comparison = comparison(&of, schema)?;
    let nullable = of.expr.nullable(schema).unwrap_or(true) || of.subquery.subquery.schema().fields().iter().any(|field| field.is_nullable());
    let unknown = if nullable { Some(exists(&of.subquery, comparison.clone().is_null())?) } else { None };
    let (decided, value) = match of.quantifier {
        SetQuantifier::Any => (exists(&of.subquery, comparison)?, true),
        SetQuantifier::All => (exists(&of.subquery, not(comparison))?, false),
    };
    let mut cases = when(decided, lit(value));
    if let Some(unknown) = unknown {
        cases = cases.when(unknown, lit(ScalarValue::Boolean(None)));
    }
    cases.otherwise(lit(!value))
}

/// What is compared, over the rows of the subquery.
fn comparison(of: &SetComparison, schema: &DFSchema) -> Result<Expr> {
    let Some((relation, field)) = of.subquery.subquery.schema().iter().next() else { return plan_err!("a subquery without a column: name one") };
    let value = Expr::Column(Column::new(relation.cloned(), field.name()));
    let x = of.expr.as_ref().clone().transform(|e| match e {
        Expr::Column(column) => {
            let field = Arc::clone(schema.field_from_column(&column)?);
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) => {
            not_impl_err!("ANY and ALL next to another subquery: compute that as a column of a subquery in FROM")
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(binary_expr(x.data, of.op, value))
}

fn exists(subquery: &Subquery, condition: Expr) -> Result<Expr> {
    let plan = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone()).filter(condition)?.build()?;
    let outer_ref_columns = plan.all_out_ref_exprs();
    Ok(Expr::Exists(Exists { subquery: Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: subquery.spans.clone() }, negated: false }))
}
