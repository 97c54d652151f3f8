//! Rules of DataFusion's over logical plans that do something of ours around what they do.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// A rule over logical plans.
pub(crate) type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// What is made of a plan, with the rule itself.
pub(crate) type Around = fn(&Rule, LogicalPlan, &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>>;

/// `rules`, those that have the name of `known` with `around` in their place.
pub(crate) fn wrapped(rules: Vec<Rule>, known: &dyn OptimizerRule, around: Around) -> Vec<Rule> {
    rules.into_iter().map(|rule| if rule.name() == known.name() { wrap(rule, around) } else { rule }).collect()
}

/// `rule` with `around` in its place.
pub(crate) fn wrap(rule: Rule, around: Around) -> Rule {
    Arc::new(Wrapped { rule, around })
}

#[derive(Debug)]
struct Wrapped {
    /// DataFusion's.
    rule: Rule,
    around: Around,
}

impl OptimizerRule for Wrapped {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        (self.around)(&self.rule, plan, config)
    }
}
