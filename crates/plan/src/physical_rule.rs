//! The form of our own rules over physical plans: each looks at one operator at a time, from the leaves up.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

/// What a rule makes of an operator; `None` leaves it as it is.
pub type Rewrite = fn(&Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>>;

/// A rule that keeps the plan's schema.
pub struct PhysicalRule {
    name: &'static str,
    rewrite: Rewrite,
}

impl PhysicalRule {
    /// The rule `name`, which does `rewrite` to every operator.
    #[must_use]
    pub fn new(name: &'static str, rewrite: Rewrite) -> Arc<Self> {
        Arc::new(Self { name, rewrite })
    }
}

impl fmt::Debug for PhysicalRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PhysicalRule").field(&self.name).finish()
    }
}

impl PhysicalOptimizerRule for PhysicalRule {
    fn name(&self) -> &str {
        self.name
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            Ok(match (self.rewrite)(&node)? {
                Some(better) => Transformed::yes(better),
                None => Transformed::no(node),
            })
        })
        .data()
    }
}
