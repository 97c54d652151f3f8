//! Rules of the host over logical plans, before DataFusion's optimiser. Each gives a form that DataFusion answers
//! wrongly, or at any price, another form with the right answer.
//!
//! They run in this order. Later ones see what earlier ones made. Those up to `decimals` run before DataFusion coerces
//! types.
//!
//! | rule | about |
//! |---|---|
//! | [`growth`] | conditions that are too large once they are written out, and lists |
//! | [`copies`] | subqueries that are planned several times |
//! | [`group_names`] | keys of grouping sets that share a name |
//! | [`calls`] | calls that DataFusion's planner makes itself |
//! | [`frames`] | frames of windows in the order of bytes and times |
//! | [`zones`] | times without a zone next to times with one |
//! | [`time_pairs`] | times of two units next to each other |
//! | [`operand_types`] | operands that DataFusion has no common type for |
//! | [`set_comparisons`] | `ANY` and `ALL` over subqueries |
//! | [`decimals`] | floats next to decimals |
//! | [`floats`] | one zero and one NaN, where floats are compared |
//! | [`in_lists`] | lists with NULL and columns, lists that exclude each other |
//! | [`time_units`] | times of a coarse unit and constants of a finer one |
//! | [`time_bounds`] | dates that nanoseconds cannot hold |
//! | [`years`] | years that nanoseconds cannot hold |
//! | [`tidy`] | repeated sort keys, names of subqueries' results |
//! | [`structs`] | structs that a query makes NULL |
//! | [`subqueries`] | `IN` and `EXISTS` with three values |
//! | [`string_concats`] | the size of texts that `\|\|` makes |
//! | [`guards`] | conditions of `CASE` that keep errors away |
//! | [`misread`] | operators and casts that DataFusion simplifies wrongly |

mod calls;
mod copies;
mod decimals;
mod floats;
mod frames;
mod group_names;
mod growth;
mod guards;
mod in_lists;
mod misread;
mod set_comparisons;
mod string_concats;
mod structs;
mod subqueries;
mod tidy;
mod time_bounds;
mod time_pairs;
mod time_units;
mod years;
mod zones;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{Analyzer, AnalyzerRule, OptimizerRule};

use crate::operand_types;
use crate::planning::step;

/// What a rule makes of a plan.
type Rewrite = fn(LogicalPlan, &ConfigOptions) -> Result<LogicalPlan>;

/// The rules, in the order in which they run, with DataFusion's own.
#[must_use]
pub fn rules() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    let before = [
        rule("growth", growth::check),
        rule("copies", copies::check),
        rule("group_names", group_names::check),
        rule("calls", calls::rewrite),
        rule("frames", frames::rewrite),
        rule("zones", zones::rewrite),
        rule("time_pairs", time_pairs::rewrite),
        rule("operand_types", operand_types::rewrite),
        rule("decimals", decimals::rewrite),
    ];
    let typed = [
        rule("set_comparisons", set_comparisons::rewrite),
        rule("floats", floats::rewrite),
        rule("in_lists", in_lists::rewrite),
        rule("time_units", time_units::rewrite),
        rule("time_bounds", time_bounds::rewrite),
        rule("years", years::rewrite),
        rule("tidy", tidy::rewrite),
        rule("structs", structs::rewrite),
        rule("subqueries", subqueries::rewrite),
        rule("string_concats", string_concats::rewrite),
        rule("guards", guards::rewrite),
        rule("misread", misread::rewrite),
    ];
    before.into_iter().chain(Analyzer::new().rules).chain(typed).collect()
}

/// DataFusion's optimiser rules, with those of ours that have to come again before them.
#[must_use]
pub fn again(rules: Vec<Arc<dyn OptimizerRule + Send + Sync>>) -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    time_units::before_simplifying(rules)
}

fn rule(name: &'static str, rewrite: Rewrite) -> Arc<dyn AnalyzerRule + Send + Sync> {
    Arc::new(Rule { name, rewrite })
}

#[derive(Debug)]
struct Rule {
    name: &'static str,
    rewrite: Rewrite,
}

impl AnalyzerRule for Rule {
    fn name(&self) -> &str {
        self.name
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        step(|| (self.rewrite)(plan, config))
    }
}
