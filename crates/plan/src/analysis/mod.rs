//! Rules of the host over logical plans whose types are known, before DataFusion's optimiser. Each gives a form that
//! DataFusion answers wrongly, or at any price, another form with the right answer.
//!
//! They run in this order. Later ones see what earlier ones made.
//!
//! | rule | about |
//! |---|---|
//! | [`floats`] | one zero and one NaN, where floats are compared |
//! | [`in_lists`] | lists that exclude each other |
//! | [`time_units`] | times of a coarse unit and constants of a finer one |
//! | [`time_bounds`] | dates and years that nanoseconds cannot hold |
//! | [`tidy`] | repeated sort keys, names of subqueries' results |
//! | [`subqueries`] | `IN` and `EXISTS` with three values |
//! | [`string_concats`] | the size of texts that `\|\|` makes |

mod floats;
mod in_lists;
mod string_concats;
mod subqueries;
mod tidy;
mod time_bounds;
mod time_units;

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::AnalyzerRule;

use crate::operand_types;

/// What a rule makes of a plan.
type Rewrite = fn(LogicalPlan, &ConfigOptions) -> Result<LogicalPlan>;

/// The rules, in the order in which they run.
#[must_use]
pub fn rules() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    vec![
        rule("floats", floats::rewrite),
        rule("in_lists", in_lists::rewrite),
        rule("time_units", time_units::rewrite),
        rule("time_bounds", time_bounds::rewrite),
        rule("tidy", tidy::rewrite),
        rule("subqueries", subqueries::rewrite),
        rule("string_concats", string_concats::rewrite),
    ]
}

/// The rules that run before DataFusion finds the types of operands.
#[must_use]
pub fn early_rules() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    vec![rule("operand_types", operand_types::rewrite)]
}

fn rule(name: &'static str, rewrite: Rewrite) -> Arc<dyn AnalyzerRule + Send + Sync> {
    Arc::new(Rule { name, rewrite })
}

struct Rule {
    name: &'static str,
    rewrite: Rewrite,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rule").field(&self.name).finish()
    }
}

impl AnalyzerRule for Rule {
    fn name(&self) -> &str {
        self.name
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        (self.rewrite)(plan, config)
    }
}
