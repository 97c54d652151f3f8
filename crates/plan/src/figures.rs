//! What a physical operator did, in the terms that hosts and drives share: its name, what it was to do, and what its metrics tell.

use std::fmt;

use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};

/// The longest [`Figures::detail`], in characters.
pub const MAX_DETAIL: usize = 400;

/// Metrics that DataFusion's operators keep of their memory: joins, and some aggregates. Sorts and most aggregates keep none.
const MEMORY: [&str; 2] = ["peak_mem_used", "build_mem_used"];

/// One operator as it ran.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// The physical operator, for example `AggregateExec`.
    pub name: String,
    /// What it was to do, at most [`MAX_DETAIL`] characters.
    pub detail: String,
    /// Whether it counts rows at all; if not, `rows_out` and `seconds` say nothing.
    pub counted: bool,
    /// Rows that it gave, over all its threads.
    pub rows_out: u64,
    /// Seconds of processor time that it took without its inputs, over all its threads.
    pub seconds: f64,
    /// Bytes of memory that it held at most, where it tells; threads are added up, although they need not have had their peaks at one moment.
    pub peak_memory: u64,
    /// Bytes that it put aside on disk.
    pub bytes_spilled: u64,
}

/// What `plan` did itself, without its inputs.
#[must_use]
pub fn of(plan: &dyn ExecutionPlan) -> Figures {
    let mut figures = Figures { name: plan.name().to_owned(), detail: detail(plan), ..Figures::default() };
    let Some(metrics) = plan.metrics() else { return figures };
    let rows = metrics.output_rows();
    figures.counted = rows.is_some();
    figures.rows_out = rows.unwrap_or(0) as u64;
    figures.seconds = metrics.elapsed_compute().unwrap_or(0) as f64 / 1e9;
    figures.peak_memory = MEMORY.iter().map(|name| sum(&metrics, name)).fold(0, u64::saturating_add);
    figures.bytes_spilled = metrics.spilled_bytes().unwrap_or(0) as u64;
    figures
}

/// The metric `name` of all threads together; 0 where the operator has none.
#[must_use]
pub fn sum(metrics: &MetricsSet, name: &str) -> u64 {
    metrics.sum_by_name(name).map_or(0, |value| value.as_usize() as u64)
}

/// `text` without line breaks and other control characters, at most `longest` characters, the last three of them dots where it was longer.
#[must_use]
pub fn shortened(text: &str, longest: usize) -> String {
    let mut plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = plain.by_ref().take(longest).collect();
    if plain.next().is_some() {
        short = short.chars().take(longest.saturating_sub(3)).chain("...".chars()).collect();
    }
    short
}

/// The form that DataFusion uses for its trees: without positions of columns, a line per property.
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
    async fn an_operator_tells_what_it_was_to_do_and_what_it_did() {
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

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("ab\ncd", 5), "ab cd");
        assert_eq!(shortened("Größenordnung", 8), "Größe...");
        assert_eq!(shortened("äöü", 3), "äöü");
    }
}
