//! What bounds a thread that plans a query: DataFusion's rules, each with two limits.
//!
//! - **Stopping.** A rule does not know whether a caller still waits for its plan. Before each rule, and before each
//!   operator that it looks at, the planner looks whether its caller has gone ([`stop_when`]), and ends there.
//! - **Constants.** DataFusion calculates calls of constants while it plans, and writes the result into the plan. A
//!   text of 50 MB is then copied with the plan, and sent to drives. While a rule runs, functions make results of at
//!   most [`LARGEST_CONSTANT`] ([`crate::bounded_results`]). A longer one stays a call, which is bounded as all are.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use skytether_common::{Error, Kind};

use crate::error::to_datafusion;
use crate::wrapped_rules::{Rule, wrap};

/// Bytes of a result that may become part of a plan.
const LARGEST_CONSTANT: u64 = 64 << 10;

thread_local! {
    static GONE: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
    static IN_RULE: Cell<bool> = const { Cell::new(false) };
}

/// Lets rules on this thread end once `gone` is true, from now on.
pub fn stop_when(gone: Arc<AtomicBool>) {
    GONE.set(Some(gone));
}

/// The most bytes that a function may return now, of `limit` when queries run.
pub(crate) fn largest_result(limit: u64) -> u64 {
    if IN_RULE.get() { limit.min(LARGEST_CONSTANT) } else { limit }
}

/// Whether this thread plans, and does not run a query.
pub(crate) fn is_planning() -> bool {
    IN_RULE.get()
}

/// What `rule` gives.
///
/// # Errors
/// Those of the rule, and one where the caller has stopped waiting.
pub(crate) fn step<T>(rule: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Sets back what was set, also where the rule panics.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IN_RULE.set(self.0);
        }
    }
    if GONE.with_borrow(|gone| gone.as_ref().is_some_and(|gone| gone.load(Ordering::Relaxed))) {
        return Err(to_datafusion(Error::new(Kind::Unavailable, "the caller has stopped waiting for this plan")));
    }
    let _before = Before(IN_RULE.replace(true));
    rule()
}

/// `rules`, within both limits.
#[must_use]
pub fn limited(rules: Vec<Rule>) -> Vec<Rule> {
    rules.into_iter().map(|rule| wrap(rule, |rule, plan, config| step(|| rule.rewrite(plan, config)))).collect()
}

/// `rules` for physical plans, within both limits.
#[must_use]
pub fn limited_physical(rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>) -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    rules.into_iter().map(|rule| Arc::new(Limited(rule)) as _).collect()
}

#[derive(Debug)]
struct Limited(Arc<dyn PhysicalOptimizerRule + Send + Sync>);

impl PhysicalOptimizerRule for Limited {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        step(|| self.0.optimize(plan, config))
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::optimizer::Optimizer;
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::bounded_results;

    fn context() -> SessionContext {
        let mut state = SessionStateBuilder::new().with_default_features().with_optimizer_rules(limited(Optimizer::default().rules)).build();
        bounded_results::register(&mut state).unwrap();
        SessionContext::new_with_state(state)
    }

    #[tokio::test]
    async fn long_constants_stay_calls_and_short_ones_become_values() {
        let context = context();
        let optimised = async |sql: &str| context.sql(sql).await.unwrap().into_optimized_plan().unwrap().display_indent().to_string();
        let short = optimised("SELECT repeat('ab', 3) AS x").await;
        assert!(short.contains("ababab"), "{short}");
        let long = optimised("SELECT length(repeat('ab', 100000)) AS x").await;
        assert!(long.contains("repeat(Utf8(\"ab\"), Int64(100000))"), "{long}");
        let rows = context.sql("SELECT length(repeat('ab', 100000)) AS x").await.unwrap().collect().await.unwrap();
        assert!(datafusion::arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string().contains("200000"));
    }

    #[tokio::test]
    async fn rules_end_where_the_caller_has_gone() {
        let context = context();
        let gone = Arc::new(AtomicBool::new(false));
        stop_when(Arc::clone(&gone));
        let plan = context.sql("SELECT 1 + 1 AS x").await.unwrap();
        assert!(plan.clone().into_optimized_plan().is_ok());
        gone.store(true, Ordering::Relaxed);
        let error = plan.into_optimized_plan().unwrap_err().to_string();
        assert!(error.contains("stopped waiting"), "{error}");
    }
}
