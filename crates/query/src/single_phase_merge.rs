//! Merges states in one phase.
//!
//! DataFusion aggregates in two phases, so that few rows remain before rows are distributed by group. Drives send few
//! rows already: each has merged its own, and sends a group at most once for each branch of a union. A first phase
//! would mostly merge states with nothing and write them out once more.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use skytether_plan::partial::is_merge;
use skytether_plan::physical_rule::PhysicalRule;

/// Turns `FinalPartitioned <- Repartition <- Partial` over merge forms into `SinglePartitioned <- Repartition`.
pub(crate) fn merge_once() -> Arc<PhysicalRule> {
    PhysicalRule::new("merge_once", merged_once)
}

fn merged_once(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(last) = node.downcast_ref::<AggregateExec>().filter(|a| *a.mode() == AggregateMode::FinalPartitioned) else { return Ok(None) };
    let Some(repartition) = last.input().downcast_ref::<RepartitionExec>() else { return Ok(None) };
    let Partitioning::Hash(_, partitions) = repartition.partitioning() else { return Ok(None) };
    let Some(first) = repartition.input().downcast_ref::<AggregateExec>().filter(|a| *a.mode() == AggregateMode::Partial) else { return Ok(None) };
    let merges = first.aggr_expr().iter().all(|f| is_merge(f.fun())) && !first.aggr_expr().is_empty();
    if !merges || !first.group_expr().is_single() || first.group_expr().is_true_no_grouping() {
        return Ok(None);
    }
    let by = Partitioning::Hash(first.group_expr().input_exprs(), *partitions);
    let input = Arc::new(RepartitionExec::try_new(Arc::clone(first.input()), by)?);
    let single = AggregateExec::try_new(
        AggregateMode::SinglePartitioned,
        first.group_expr().clone(),
        first.aggr_expr().to_vec(),
        first.filter_expr().to_vec(),
        input,
        first.input_schema(),
    )?
    .with_limit_options(last.limit_options());
    Ok((single.schema() == last.schema()).then(|| Arc::new(single) as _))
}
