//! How a query is cut, and with `analyze` what each part of it took.

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use futures::StreamExt;
use skytether_common::Result;
use skytether_partitioning::Placement;
use skytether_plan::explain_text;

use crate::planner::Planner;
use skytether_api::estimate::WorkSplit;
use skytether_api::explanation::{Explanation, HostNote, SubPlanText};
use skytether_api::statement::{QueryOptions, Statement};
use skytether_exec::scan::DriveScanExec;

impl Planner {
    /// The cut of a query as text: see [`Self::explanation`].
    ///
    /// # Errors
    /// As there.
    pub async fn explain(&self, asked: impl Into<Statement>, analyze: bool, options: &QueryOptions) -> Result<String> {
        Ok(self.explanation(asked, analyze, options).await?.to_string())
    }

    /// The cut of a query, a text of SQL or a Substrait plan: super-plan, sub-plans, and why what stayed on the host
    /// stayed there. With `analyze` the query is run, and its figures are with it.
    ///
    /// # Errors
    /// As [`Planner::sql`], and with `analyze` the query's own.
    pub async fn explanation(&self, asked: impl Into<Statement>, analyze: bool, options: &QueryOptions) -> Result<Explanation> {
        let planned = self.plan_asked(&asked.into(), options, Vec::new()).await?;
        let cut = &planned.cut;
        let mut explanation = Explanation {
            query: explain_text::logical(&planned.optimised),
            super_plan: explain_text::super_plan(&cut.super_plan),
            sub_plans: cut
                .scans
                .iter()
                .enumerate()
                .map(|(number, scan)| SubPlanText {
                    table: scan.title(),
                    rung: scan.rung,
                    every_drive: scan.placement == Placement::Spread,
                    plan: explain_text::sub_plan(scan),
                    beside: scan.inputs.iter().map(explain_text::logical).collect(),
                    expected: expected(planned.physical.as_ref(), number),
                })
                .collect(),
            notes: cut.notes.iter().map(|n| HostNote { operator: n.operator.clone(), node: n.node.clone(), reason: n.reason.clone() }).collect(),
            physical: DisplayableExecutionPlan::new(planned.physical.as_ref()).indent(false).to_string(),
            receipt: None,
        };
        if analyze {
            let mut query = self.run(planned)?;
            while let Some(batch) = query.stream.next().await {
                batch?;
            }
            explanation.receipt = Some(query.receipt.receipt());
        }
        Ok(explanation)
    }
}

/// What sub-plan `number` of the cut is expected to take.
fn expected(plan: &dyn ExecutionPlan, number: usize) -> Option<WorkSplit> {
    match plan.downcast_ref::<DriveScanExec>().filter(|scan| scan.of_cut() == Some(number)) {
        Some(scan) => scan.expected(),
        None => plan.children().into_iter().find_map(|child| expected(child.as_ref(), number)),
    }
}
