//! How many rows a sub-plan gives, roughly: so that joins read their smaller side first.
//!
//! Only tables' numbers of rows are known; a join is taken to find a row for each of its larger side. Shares are those of textbooks (Selinger et al., SIGMOD 1979): a tenth for an equality, a third for a range; it matters
//! that a filtered table counts for less than a whole one, not by how much.

use std::collections::HashMap;

use datafusion::common::TableReference;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, FetchType, LogicalPlan, Operator};

/// Groups per row of an aggregate's input, where it has group keys.
const GROUPS: f64 = 0.1;

/// The rows that `plan` gives over tables of so many rows; at least 1. Tables that are not listed are small.
pub(crate) fn rows(plan: &LogicalPlan, tables: &HashMap<TableReference, u64>) -> u64 {
    estimate(plan, tables).clamp(1.0, 1e18) as u64
}

fn estimate(plan: &LogicalPlan, tables: &HashMap<TableReference, u64>) -> f64 {
    let below = || plan.inputs().iter().map(|input| estimate(input, tables)).fold(0.0, f64::max);
    match plan {
        LogicalPlan::TableScan(scan) => tables.get(&scan.table_name).copied().unwrap_or(1) as f64,
        LogicalPlan::Filter(filter) => split_conjunction(&filter.predicate).into_iter().fold(below(), |rows, condition| rows * share(condition)),
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => 1.0,
        LogicalPlan::Aggregate(_) => (below() * GROUPS).max(1.0),
        LogicalPlan::Limit(limit) => match limit.get_fetch_type() {
            Ok(FetchType::Literal(Some(fetch))) => below().min(fetch as f64),
            _ => below(),
        },
        LogicalPlan::Sort(sort) => sort.fetch.map_or_else(below, |fetch| below().min(fetch as f64)),
        _ => below(),
    }
}

/// The share of rows for which `condition` holds.
fn share(condition: &Expr) -> f64 {
    match condition {
        Expr::BinaryExpr(both) => match both.op {
            Operator::Eq | Operator::IsNotDistinctFrom => 0.1,
            Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => 1.0 / 3.0,
            Operator::And => share(&both.left) * share(&both.right),
            Operator::Or => (share(&both.left) + share(&both.right)).min(1.0),
            _ => 0.9,
        },
        Expr::InList(list) => {
            let among = (0.1 * list.list.len() as f64).min(0.5);
            if list.negated { 1.0 - among } else { among }
        }
        Expr::Between(between) => {
            if between.negated {
                0.75
            } else {
                0.25
            }
        }
        Expr::Like(like) => {
            if like.negated {
                0.9
            } else {
                0.1
            }
        }
        Expr::IsNull(_) => 0.1,
        Expr::Not(inner) => 1.0 - share(inner),
        _ => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::logical_expr::{col, lit, logical_plan::builder::table_scan};

    #[test]
    fn what_is_filtered_counts_for_less_and_never_for_nothing() {
        let schema = Schema::new(vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Utf8, false)]);
        let scan = || table_scan(Some("t"), &schema, None).unwrap();
        let of = |builder: datafusion::logical_expr::LogicalPlanBuilder, table| rows(&builder.build().unwrap(), &HashMap::from([("t".into(), table)]));
        assert_eq!(of(scan(), 1000), 1000);
        let equal = of(scan().filter(col("a").eq(lit(1i64))).unwrap(), 1000);
        let range = of(scan().filter(col("a").gt(lit(1i64))).unwrap(), 1000);
        let both = of(scan().filter(col("a").gt(lit(1i64)).and(col("b").eq(lit("x")))).unwrap(), 1000);
        assert!(1 <= both && both < equal && equal < range && range < 1000, "{both} {equal} {range}");
        assert_eq!(of(scan().limit(0, Some(7)).unwrap(), 1000), 7);
        assert_eq!(of(scan().filter(col("a").eq(lit(1i64))).unwrap(), 0), 1);
        let groups = of(scan().aggregate(vec![col("a")], Vec::<Expr>::new()).unwrap(), 1000);
        assert!(groups < 1000);
    }
}
