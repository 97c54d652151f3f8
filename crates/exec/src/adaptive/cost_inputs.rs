//! What a sub-plan costs, as the decisions of `skytether_scheduler` see it: kinds of operators, rows and bytes, as far
//! as they are known before it runs.

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};
use skytether_common::Result;
use skytether_plan::error::from_datafusion;
use skytether_plan::pushdown_level;
use skytether_scheduler::work::{Kind, Operator, Output, Work};

use crate::estimate::Estimates;

/// Bytes of a value of varying length.
const TEXT: f64 = 24.0;

/// Bytes of a group without its key: each state is a number or two.
const STATE: f64 = 16.0;

/// The cost of `plan` over a table of `rows` rows; `sparse` where that is a matrix.
///
/// # Errors
/// Internal only.
pub fn work(plan: &LogicalPlan, tables: &Estimates, rows: u64, sparse: bool) -> Result<Work> {
    let parts = pushdown_level::split(plan).map_err(from_datafusion)?;
    let lower = parts.as_ref().map_or(plan, |parts| &parts.lower);
    let read = scanned_width(lower);
    let decode = if sparse { Operator { kind: Kind::DecodeSparse, units_per_row: 1.0 } } else { Operator { kind: Kind::Decode, units_per_row: read } };
    let mut operators = vec![decode];
    if computes(lower) {
        operators.push(Operator { kind: Kind::Compute, units_per_row: 1.0 });
    }
    let per_row = (tables.given(lower).rows as f64 / rows.max(1) as f64).clamp(0.0, 1e3);
    let filtered = Output::Rows { per_row, bytes_per_row: width(lower) };
    let Some(aggregate) = parts.as_ref().and_then(|parts| aggregate(&parts.upper)) else {
        return Ok(Work { lower: operators, upper: Vec::new(), filtered, result: filtered });
    };
    let groups = if aggregate.group_expr.is_empty() { 1.0 } else { tables.given(plan).rows as f64 };
    let kind = if is_moments(aggregate) { Kind::Moments } else { Kind::HashAggregate { groups } };
    let calls = aggregate.aggr_expr.len().max(1) as f64;
    let upper = vec![Operator { kind, units_per_row: if kind == Kind::Moments { 1.0 } else { 1.0 + 0.1 * (calls - 1.0) } }];
    let bytes_per_group = width(plan).max(STATE);
    Ok(Work { lower: operators, upper, filtered, result: Output::Groups { groups, bytes_per_group } })
}

/// Of the bytes of a row of `schema`, the share that the scan of `plan` reads.
pub fn share_read(plan: &LogicalPlan, schema: &Schema) -> f64 {
    let all = schema.fields().iter().map(|field| value(field.data_type())).sum::<f64>().max(1.0);
    (scanned_width(plan) / all).min(1.0)
}

fn aggregate(plan: &LogicalPlan) -> Option<&Aggregate> {
    let mut at = plan;
    loop {
        match at {
            LogicalPlan::Aggregate(aggregate) if matches!(aggregate.input.as_ref(), LogicalPlan::Extension(_)) => return Some(aggregate),
            other => {
                let inputs = other.inputs();
                let [input] = inputs.as_slice() else { return None };
                at = input;
            }
        }
    }
}

fn is_moments(aggregate: &Aggregate) -> bool {
    aggregate.aggr_expr.iter().any(|call| match call.clone().unalias() {
        Expr::AggregateFunction(call) => call.func.name().contains("moments"),
        _ => false,
    })
}

/// Whether a projection or a filter of `plan` computes something.
fn computes(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Filter(_) | LogicalPlan::Join(_) => true,
        LogicalPlan::Projection(projection) => {
            projection.expr.iter().any(|expr| !matches!(expr.clone().unalias(), Expr::Column(_))) || computes(&projection.input)
        }
        other => other.inputs().iter().any(|input| computes(input)),
    }
}

fn value(data_type: &DataType) -> f64 {
    data_type.primitive_width().map_or(TEXT, |width| width as f64)
}

/// Bytes of a row that `plan` gives.
fn width(plan: &LogicalPlan) -> f64 {
    plan.schema().fields().iter().map(|field| value(field.data_type())).sum::<f64>().max(1.0)
}

/// Bytes of a row that its scan reads.
fn scanned_width(plan: &LogicalPlan) -> f64 {
    match plan {
        LogicalPlan::TableScan(scan) => scan.projected_schema.fields().iter().map(|field| value(field.data_type())).sum::<f64>().max(1.0),
        other => other.inputs().iter().map(|input| scanned_width(input)).fold(1.0, f64::max),
    }
}
