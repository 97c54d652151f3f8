//! Rewrites a plan from the dense view to its sparse rows: `cell_moments(cell, value, groups, transform)` becomes
//! `moments(idx, val, block, spec)`.
//!
//! It applies to an aggregate over one dense view under three conditions. Only projections, aliases and filters on
//! genes are between them; all its functions are `cell_moments(cell, value, ...)`; its groups are made of genes'
//! columns. Sparse rows represent all cells, zeros included, so the two are equal. Any other plan stays as it is.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result as DfResult, ScalarValue, TableReference};
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::logical_plan::TableScanBuilder;
use datafusion::logical_expr::{Aggregate, AggregateUDF, Cast, Expr, Filter, LogicalPlan, Projection, SubqueryAlias, TableSource};
use skytether_common::DatasetName;

use crate::aggregate::is_text;
use crate::cell_moments::{CELL_MOMENTS, spec_of};
use crate::df_error::through;

/// Finds the sparse rows of a dense view: their source, their name, and their data set and matrix.
pub type RowsOf<'a> = dyn Fn(&TableReference) -> Option<(Arc<dyn TableSource>, TableReference, DatasetName, String)> + 'a;

/// The columns of sparse rows that `moments` takes.
const SPARSE: [&str; 3] = ["idx", "val", "block"];

/// Rewrites every aggregate of `plan`, subqueries included, that can be. `rows_of` gives the sparse rows of a dense
/// view, `None` for any other table; `moments` is the aggregate function to call. The plan's schema stays the same.
///
/// # Errors
/// Invalid where the literal arguments of `cell_moments` are no groups or no transform.
pub fn rewrite(plan: LogicalPlan, rows_of: &RowsOf<'_>, moments: &Arc<AggregateUDF>) -> DfResult<Transformed<LogicalPlan>> {
    plan.transform_up_with_subqueries(|node| match &node {
        LogicalPlan::Aggregate(aggregate) => match rewrite_aggregate(aggregate, rows_of, moments)? {
            Some(new) => Ok(Transformed::yes(new)),
            None => Ok(Transformed::no(node)),
        },
        _ => Ok(Transformed::no(node)),
    })
}

/// An aggregate's input over sparse rows.
struct Sparse {
    plan: LogicalPlan,
    /// The name in front of the columns [`SPARSE`].
    qualifier: TableReference,
    /// What the dense input's columns that are not genes' are: cell or value.
    dense: HashMap<Column, Dense>,
    dataset: DatasetName,
    matrix: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Dense {
    Cell,
    Value,
}

impl Sparse {
    /// Which of the view's columns `expr` is. A cast that leaves every cell's name and every value what it was changes
    /// nothing; any other (to integers, say) is what the query asks for, and then `expr` is no column of the view.
    fn dense(&self, expr: &Expr) -> Option<Dense> {
        match expr {
            Expr::Column(column) => self.dense.get(column).copied().or_else(|| {
                let mut of_that_name = self.dense.iter().filter(|(c, _)| column.relation.is_none() && c.name == column.name);
                of_that_name.next().map(|(_, d)| *d).filter(|_| of_that_name.next().is_none())
            }),
            Expr::Alias(alias) => self.dense(&alias.expr),
            Expr::Cast(Cast { expr, field }) => self.dense(expr).filter(|dense| match dense {
                Dense::Cell => is_text(field.data_type()),
                Dense::Value => field.data_type() == &DataType::Float64,
            }),
            _ => None,
        }
    }

    /// Whether `expr` is about genes alone.
    fn of_genes(&self, expr: &Expr) -> bool {
        let mut genes = true;
        let walked = expr.apply(|e| {
            genes &= !matches!(e, Expr::Column(_)) || self.dense(e).is_none();
            genes &= !matches!(e, Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::OuterReferenceColumn(..));
            Ok(if genes { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
        });
        walked.is_ok() && genes && !expr.is_volatile()
    }

    fn column(&self, name: &str) -> Expr {
        Expr::Column(Column::new(Some(self.qualifier.clone()), name))
    }
}

fn rewrite_aggregate(aggregate: &Aggregate, rows_of: &RowsOf<'_>, moments: &Arc<AggregateUDF>) -> DfResult<Option<LogicalPlan>> {
    if aggregate.aggr_expr.is_empty()
        || !aggregate.aggr_expr.iter().all(|e| call(e).is_some())
        || aggregate.group_expr.iter().any(|e| matches!(e, Expr::GroupingSet(_)))
    {
        return Ok(None);
    }
    let Some(sparse) = sparse_input(&aggregate.input, rows_of)? else { return Ok(None) };
    if !aggregate.group_expr.iter().all(|e| sparse.of_genes(e)) {
        return Ok(None);
    }
    let mut calls = Vec::with_capacity(aggregate.aggr_expr.len());
    for expr in &aggregate.aggr_expr {
        let Some(new) = rewrite_call(expr, &sparse, moments)? else { return Ok(None) };
        calls.push(new);
    }
    // Several calls may become the same one; the aggregate holds it once.
    let mut distinct: Vec<Expr> = Vec::new();
    for call in &calls {
        if !distinct.contains(call) {
            distinct.push(call.clone());
        }
    }
    let new = Aggregate::try_new(Arc::new(sparse.plan), aggregate.group_expr.clone(), distinct.clone())?;
    let groups = aggregate.group_expr.len();
    let place = |i: usize| if i < groups { i } else { groups + distinct.iter().position(|c| *c == calls[i - groups]).unwrap_or(0) };
    let named = (0..aggregate.schema.fields().len())
        .map(|i| {
            let (old_table, old) = aggregate.schema.qualified_field(i);
            let column = Column::from(new.schema.qualified_field(place(i)));
            let same = column.name == *old.name() && column.relation.as_ref() == old_table;
            if same { Expr::Column(column) } else { Expr::Column(column).alias_qualified(old_table.cloned(), old.name()) }
        })
        .collect();
    Ok(Some(LogicalPlan::Projection(Projection::try_new(named, Arc::new(LogicalPlan::Aggregate(new)))?)))
}

/// The call of `cell_moments` that `expr` is.
fn call(expr: &Expr) -> Option<&AggregateFunction> {
    match expr {
        Expr::AggregateFunction(call) if call.func.name() == CELL_MOMENTS => Some(call),
        Expr::Alias(alias) => call(&alias.expr),
        _ => None,
    }
}

fn rewrite_call(expr: &Expr, sparse: &Sparse, moments: &Arc<AggregateUDF>) -> DfResult<Option<Expr>> {
    let Some(old) = call(expr) else { return Ok(None) };
    let AggregateFunctionParams { args, distinct, filter, order_by, null_treatment } = &old.params;
    let [cell, value, groups, transform] = args.as_slice() else { return Ok(None) };
    let plain = !distinct && order_by.is_empty() && null_treatment.is_none() && filter.as_ref().is_none_or(|f| sparse.of_genes(f));
    if !plain || sparse.dense(cell) != Some(Dense::Cell) || sparse.dense(value) != Some(Dense::Value) {
        return Ok(None);
    }
    let (Some(Some(groups)), Some(transform)) = (text(groups), text(transform)) else { return Ok(None) };
    let spec = spec_of(Some((&sparse.dataset, &sparse.matrix)), &groups, transform.as_deref()).map_err(through)?;
    let spec = Expr::Literal(ScalarValue::Utf8(Some(spec.to_literal().map_err(through)?)), None);
    let args = SPARSE.iter().map(|name| sparse.column(name)).chain([spec]).collect();
    Ok(Some(Expr::AggregateFunction(AggregateFunction::new_udf(Arc::clone(moments), args, false, filter.clone(), vec![], None))))
}

/// The text of a literal, perhaps in a cast: `Some(None)` for NULL, `None` where it is no such literal.
fn text(expr: &Expr) -> Option<Option<String>> {
    match expr {
        Expr::Literal(ScalarValue::Null, _) => Some(None),
        Expr::Literal(value, _) => value.try_as_str().map(|t| t.map(str::to_owned)),
        Expr::Cast(Cast { expr, .. }) => text(expr),
        Expr::Alias(alias) => text(&alias.expr),
        _ => None,
    }
}

/// The same input over sparse rows; `None` where it is not one dense view's genes.
fn sparse_input(plan: &LogicalPlan, rows_of: &RowsOf<'_>) -> DfResult<Option<Sparse>> {
    match plan {
        LogicalPlan::TableScan(scan) if scan.fetch.is_none() => {
            let Some((source, table, dataset, matrix)) = rows_of(&scan.table_name) else { return Ok(None) };
            let rows = source.schema();
            // The genes' columns that the dense scan gives, and what moments need.
            let genes = scan.projected_schema.fields().iter().map(|f| f.name().as_str()).filter(|name| !matches!(*name, "cell" | "value"));
            let mut projection = Vec::new();
            for name in genes.clone().chain(SPARSE) {
                let Ok(at) = rows.index_of(name) else { return Ok(None) };
                projection.push(at);
            }
            projection.sort_unstable();
            projection.dedup();
            let filter_genes: Vec<usize> = scan
                .filters
                .iter()
                .flat_map(|f| f.column_refs().into_iter().map(|c| c.name.clone()).collect::<Vec<_>>())
                .filter_map(|n| rows.index_of(&n).ok())
                .collect();
            for at in filter_genes {
                if !projection.contains(&at) {
                    projection.push(at);
                }
            }
            let new = LogicalPlan::TableScan(TableScanBuilder::new(table, source).with_projection(Some(projection)).build()?);
            // Under the view's own name, so that all columns of genes above keep theirs.
            let alias = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(new), scan.table_name.clone())?);
            let dense = [("cell", Dense::Cell), ("value", Dense::Value)].map(|(name, is)| (Column::new(Some(scan.table_name.clone()), name), is)).into();
            let mut sparse = Sparse { plan: alias, qualifier: scan.table_name.clone(), dense, dataset, matrix };
            for filter in &scan.filters {
                if !sparse.of_genes(filter) {
                    return Ok(None);
                }
                sparse.plan = LogicalPlan::Filter(Filter::try_new(filter.clone(), Arc::new(sparse.plan))?);
            }
            Ok(Some(sparse))
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let Some(below) = sparse_input(&alias.input, rows_of)? else { return Ok(None) };
            let dense = below.dense.into_iter().map(|(c, is)| (Column::new(Some(alias.alias.clone()), c.name), is)).collect();
            let plan = LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(below.plan), alias.alias.clone())?);
            Ok(Some(Sparse { plan, qualifier: alias.alias.clone(), dense, dataset: below.dataset, matrix: below.matrix }))
        }
        LogicalPlan::Filter(filter) => {
            let Some(mut below) = sparse_input(&filter.input, rows_of)? else { return Ok(None) };
            if !below.of_genes(&filter.predicate) {
                return Ok(None);
            }
            below.plan = LogicalPlan::Filter(Filter::try_new(filter.predicate.clone(), Arc::new(below.plan))?);
            Ok(Some(below))
        }
        LogicalPlan::Projection(projection) => {
            let Some(below) = sparse_input(&projection.input, rows_of)? else { return Ok(None) };
            let mut dense = HashMap::new();
            let mut exprs = Vec::new();
            for (i, expr) in projection.expr.iter().enumerate() {
                let out = Column::from(projection.schema.qualified_field(i));
                match below.dense(expr) {
                    Some(is) => {
                        dense.insert(out, is);
                    }
                    None if below.of_genes(expr) && !SPARSE.contains(&out.name.as_str()) => exprs.push(expr.clone()),
                    None => return Ok(None),
                }
            }
            exprs.extend(SPARSE.iter().map(|name| below.column(name)));
            let plan = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(below.plan))?);
            Ok(Some(Sparse { plan, dense, qualifier: below.qualifier, dataset: below.dataset, matrix: below.matrix }))
        }
        _ => Ok(None),
    }
}
