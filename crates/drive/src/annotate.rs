//! The annotation of a sub-plan that ran, from the metrics of its physical operators. The bytes read are the [`Reader`](crate::reader::Reader)'s
//! to tell: operators don't see the metadata, names and totals that were read for them.

use datafusion::physical_plan::ExecutionPlan;
use skytether_plan::figures;
use skytether_wire::annotation::MAX_OPERATORS;
use skytether_wire::{Annotation, OperatorNote};

use crate::scan::{SLICES, SLICES_PRUNED, SliceScanExec};

/// Adds what the operators of `plan` counted: slices and rows of its scans, and a note per operator from the root down.
pub(crate) fn operators(plan: &dyn ExecutionPlan, annotation: &mut Annotation) {
    (annotation.slices_total, annotation.rows_read) = (Some(0), Some(0));
    visit(plan, 0, annotation);
}

fn visit(plan: &dyn ExecutionPlan, depth: u32, annotation: &mut Annotation) {
    let figures = figures::of(plan);
    if let (Some(scan), Some(metrics)) = (plan.downcast_ref::<SliceScanExec>(), plan.metrics()) {
        annotation.slices += figures::sum(&metrics, SLICES);
        annotation.slices_pruned += figures::sum(&metrics, SLICES_PRUNED);
        annotation.slices_total = annotation.slices_total.map(|slices| slices + scan.slices() as u64);
        annotation.rows_read = annotation.rows_read.map(|rows| rows + figures.rows_out);
    }
    if annotation.operators.len() < MAX_OPERATORS {
        annotation.operators.push(OperatorNote::new(figures, depth));
    }
    for child in plan.children() {
        visit(child.as_ref(), depth + 1, annotation);
    }
}
