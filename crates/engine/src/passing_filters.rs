//! Filters over lists pass every batch on.
//!
//! DataFusion's filter gathers rows until they are as many as a batch has. That number follows from the average row
//! ([`crate::scan_spec::rows_for_width`]), but a row of a matrix has up to 65,536 values: 500 genes that most cells
//! express were one batch of 60 MB, and twice that while it was joined. A scan's batches of lists are of a good size
//! already, and what leaves the drive is joined by its bytes ([`crate::batches`]).

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use skytether_plan::physical_rule::PhysicalRule;

/// Makes filters whose rows have lists join no batches.
pub(crate) fn passing_filters() -> Arc<PhysicalRule> {
    PhysicalRule::new("passing_filters", passing)
}

fn passing(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(None) };
    let lists = filter.schema().fields().iter().any(|field| matches!(field.data_type(), DataType::List(_)));
    // A batch with more than half of these rows is passed on as it is.
    Ok(if lists && filter.batch_size() > 1 { Some(Arc::new(filter.with_batch_size(1)?)) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, ListArray, UInt32Array};
    use arrow::datatypes::UInt32Type;
    use arrow::record_batch::RecordBatch;
    use datafusion::datasource::MemTable;
    use datafusion::execution::session_state::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    /// The rows of each batch that `sql` gives, over three batches of two rows.
    async fn batches(sql: &str) -> Vec<usize> {
        let config = SessionConfig::new().with_target_partitions(1);
        let state = SessionStateBuilder::new_with_default_features().with_config(config).with_physical_optimizer_rule(passing_filters()).build();
        let context = SessionContext::new_with_state(state);
        let rows = |first: u32| {
            let lists = ListArray::from_iter_primitive::<UInt32Type, _, _>((0..2).map(|i| Some(vec![Some(first + i); 3])));
            RecordBatch::try_from_iter([("gene", Arc::new(UInt32Array::from(vec![first, first + 1])) as ArrayRef), ("idx", Arc::new(lists) as ArrayRef)])
                .unwrap()
        };
        let table = MemTable::try_new(rows(0).schema(), vec![vec![rows(0), rows(2), rows(4)]]).unwrap();
        context.register_table("x", Arc::new(table)).unwrap();
        context.sql(sql).await.unwrap().collect().await.unwrap().iter().map(RecordBatch::num_rows).collect()
    }

    #[tokio::test]
    async fn filters_over_lists_join_no_batches() {
        assert_eq!(batches("SELECT gene, idx FROM x WHERE gene > 0").await, [1, 2, 2]);
        assert_eq!(batches("SELECT gene FROM x WHERE gene > 0").await, [5]);
    }
}
