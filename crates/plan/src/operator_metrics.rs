//! [`OperatorStats`] of DataFusion's physical operators: name, detail and metrics.

use std::fmt;

use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};
use skytether_common::operator_stats::{MAX_DETAIL, OperatorStats, shortened};

/// Metrics of memory that DataFusion's joins and some of its aggregates keep. Sorts and most aggregates keep none.
const MEMORY: [&str; 2] = ["peak_mem_used", "build_mem_used"];

/// What `plan` did itself, without its inputs.
#[must_use]
pub fn of(plan: &dyn ExecutionPlan) -> OperatorStats {
    let mut stats = OperatorStats { name: plan.name().to_owned(), detail: detail(plan), ..OperatorStats::default() };
    let Some(metrics) = plan.metrics() else { return stats };
    let rows = metrics.output_rows();
    stats.counted = rows.is_some();
    stats.rows_out = rows.unwrap_or(0) as u64;
    stats.seconds = metrics.elapsed_compute().unwrap_or(0) as f64 / 1e9;
    stats.peak_memory = MEMORY.iter().map(|name| sum(&metrics, name)).fold(0, u64::saturating_add);
    stats.bytes_spilled = metrics.spilled_bytes().unwrap_or(0) as u64;
    stats
}

/// The metric `name` of all threads together; 0 where the operator has none.
#[must_use]
pub fn sum(metrics: &MetricsSet, name: &str) -> u64 {
    metrics.sum_by_name(name).map_or(0, |value| value.as_usize() as u64)
}

/// DataFusion's tree form of an operator: without positions of columns, a line per property.
struct Tree<'a>(&'a dyn ExecutionPlan);

impl fmt::Display for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(DisplayFormatType::TreeRender, f)
    }
}

fn detail(plan: &dyn ExecutionPlan) -> String {
    let text = Tree(plan).to_string();
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != plan.name()).collect();
    shortened(&lines.join(", "), MAX_DETAIL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::SessionContext;

    #[tokio::test]
    async fn operator_shows_its_plan_and_its_metrics() {
        let context = SessionContext::new();
        let sql = "SELECT k % 3, count(*) FROM (SELECT a.value AS k FROM range(100) a JOIN range(50) b ON a.value = b.value) GROUP BY k % 3";
        let frame = context.sql(sql).await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        collect(std::sync::Arc::clone(&plan), context.task_ctx()).await.unwrap();
        let (mut at, mut found) = (&plan, vec![]);
        while let Some(input) = at.children().first() {
            at = input;
            found.push(of(at.as_ref()));
        }
        let aggregate = found.iter().find(|f| f.name == "AggregateExec").unwrap();
        assert!(aggregate.counted && aggregate.rows_out == 3 && aggregate.seconds > 0.0, "{aggregate:?}");
        assert!(aggregate.detail.contains("count") && !aggregate.detail.contains('\n') && !aggregate.detail.contains('@'), "{aggregate:?}");
        let join = found.iter().find(|f| f.name == "HashJoinExec").unwrap();
        assert!(join.rows_out == 50 && join.peak_memory > 0, "{join:?}");
    }
}
