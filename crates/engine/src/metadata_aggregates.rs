//! Answers aggregates from metadata, where only plain columns of the table reach the aggregate.
//!
//! DataFusion's rule takes the bounds of a computed column for exact wherever those of its input column are. They are
//! not: `CAST(x AS VARCHAR)` orders 10 before 9, and `CAST(x AS BOOLEAN)` maps the bounds -5 and 5 to true with 0
//! between them. Counting the results of a cast must fail where the cast does. So that rule only sees aggregates whose
//! input computes nothing. It also takes an aggregate with a `FILTER` for the next aggregate below it, so there must be
//! none.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::aggregate_statistics::AggregateStatistics;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateInputMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::scan::SliceScanExec;

/// DataFusion's rules, with this one in the place of its `aggregate_statistics`.
pub(crate) fn rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let known = AggregateStatistics::new();
    PhysicalOptimizer::default().rules.into_iter().map(|rule| if rule.name() == known.name() { Arc::new(MetadataAggregates) as _ } else { rule }).collect()
}

/// [`AggregateStatistics`] for aggregates of plain columns.
#[derive(Debug)]
struct MetadataAggregates;

impl PhysicalOptimizerRule for MetadataAggregates {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_down(|node| {
            if !node.downcast_ref::<AggregateExec>().is_some_and(|aggregate| plain(halves(aggregate).input())) {
                return Ok(Transformed::no(node));
            }
            let answered = AggregateStatistics::new().optimize(Arc::clone(&node), config)?;
            Ok(if Arc::ptr_eq(&node, &answered) { Transformed::no(node) } else { Transformed::complete(answered) })
        })
        .data()
    }

    fn name(&self) -> &str {
        "aggregate_statistics"
    }

    /// As DataFusion's: literals may be less nullable than what they replace.
    fn schema_check(&self) -> bool {
        false
    }
}

/// The lower half of an aggregate, or the aggregate if it has no halves.
fn halves(aggregate: &AggregateExec) -> &AggregateExec {
    let input = aggregate.input();
    let input = input.downcast_ref::<CoalescePartitionsExec>().map_or(input, CoalescePartitionsExec::input);
    let lower = input.downcast_ref::<AggregateExec>().filter(|_| aggregate.mode().input_mode() == AggregateInputMode::Partial);
    lower.unwrap_or(aggregate)
}

/// Whether `node` passes on columns of one stored table and computes none.
fn plain(node: &Arc<dyn ExecutionPlan>) -> bool {
    if node.is::<SliceScanExec>() {
        return true;
    }
    let hands_on = match node.downcast_ref::<ProjectionExec>() {
        Some(projection) => projection.expr().iter().all(|of| of.expr.is::<Column>()),
        None => node.is::<CoalescePartitionsExec>(),
    };
    hands_on && node.children().iter().all(|child| plain(child))
}
