//! Gives the keys of a join one type on both sides.
//!
//! DataFusion coerces comparisons before it knows the types of unions. So `(SELECT i16 UNION ALL SELECT i64) a` and
//! `EXISTS (... a.k = b.k)` with a 16-bit `b.k` become a join of 64-bit keys with 16-bit ones. Hashes of equal keys may
//! differ then, and one side refuses filters made of the other side's keys. This rule gives such pairs a common type.
//! Times of two units have none that holds all of both, and become [instants](crate::instants).

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, Join, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::instants::{differ, instant};

/// Casts keys of joins whose types differ to a common one.
#[derive(Debug, Default)]
pub struct JoinTypes;

impl OptimizerRule for JoinTypes {
    fn name(&self) -> &'static str {
        "join_types"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        None
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Join(join) => same_types(join),
            other => Ok(Transformed::no(other)),
        })
    }
}

fn same_types(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let mut changed = false;
    for (left, right) in &mut join.on {
        let (l, r) = (left.get_type(join.left.schema())?, right.get_type(join.right.schema())?);
        if l == r {
            continue;
        }
        if differ(&l, &r) {
            for key in [left, right] {
                *key = instant(std::mem::take(key));
            }
            changed = true;
            continue;
        }
        // Without a common type the join itself reports the error.
        let Some(common) = comparison_coercion(&l, &r) else { continue };
        for (key, of) in [(&mut *left, l), (&mut *right, r)] {
            if of != common {
                *key = Expr::Cast(Cast::new(Box::new(std::mem::take(key)), common.clone()));
                changed = true;
            }
        }
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
}
