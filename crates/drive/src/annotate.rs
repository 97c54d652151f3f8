//! The annotation of a sub-plan that ran, from the metrics of its physical operators. The bytes read are the [`Reader`](crate::reader::Reader)'s
//! to tell: operators don't see the metadata, names and totals that were read for them.

use datafusion::physical_plan::ExecutionPlan;
use skytether_wire::{Annotation, OperatorNote};

use crate::scan::{SLICES, SLICES_PRUNED};

/// Adds what the operators of `plan` counted: slices, and a note per operator from the root down.
pub(crate) fn operators(plan: &dyn ExecutionPlan, annotation: &mut Annotation) {
    visit(plan, 0, annotation);
}

fn visit(plan: &dyn ExecutionPlan, depth: u32, annotation: &mut Annotation) {
    let (mut rows_out, mut seconds) = (0, 0.0);
    if let Some(metrics) = plan.metrics() {
        let sum = |name: &str| metrics.sum_by_name(name).map_or(0, |v| v.as_usize() as u64);
        rows_out = metrics.output_rows().unwrap_or(0) as u64;
        seconds = metrics.elapsed_compute().unwrap_or(0) as f64 / 1e9;
        annotation.slices += sum(SLICES);
        annotation.slices_pruned += sum(SLICES_PRUNED);
    }
    annotation.operators.push(OperatorNote { name: plan.name().to_owned(), depth, rows_out, seconds });
    for child in plan.children() {
        visit(child.as_ref(), depth + 1, annotation);
    }
}
