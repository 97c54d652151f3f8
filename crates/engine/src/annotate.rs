//! The annotation of a sub-plan that ran, from the metrics of its physical operators.
//!
//! The [`Reader`](crate::reader::Reader) counts the bytes, because operators do not see the metadata, names and totals
//! that were read for them.

use datafusion::physical_plan::ExecutionPlan;
use skytether_device::annotation::MAX_OPERATORS;
use skytether_device::{Annotation, OperatorNote};
use skytether_plan::operator_metrics;

use crate::scan::{PASSED_OVER, SLICES, SLICES_PRUNED, SLICES_TOLD, SliceScanExec};
use crate::throttle::ThrottledExec;

/// Adds what the operators of `plan` counted: slices and rows of its scans, and a note per operator from the root
/// down. `slices` are those of all tables that were to be scanned; a table without a scan in `plan` was not
/// needed beyond its metadata.
pub(crate) fn operators(plan: &dyn ExecutionPlan, slices: u64, annotation: &mut Annotation) {
    (annotation.slices_total, annotation.rows_read) = (Some(slices), Some(0));
    let scanned = visit(plan, 0, annotation);
    annotation.slices_told += slices.saturating_sub(scanned);
}

/// The slices of the tables that are scanned.
fn visit(plan: &dyn ExecutionPlan, depth: u32, annotation: &mut Annotation) -> u64 {
    if plan.is::<ThrottledExec>() {
        return plan.children().into_iter().map(|child| visit(child.as_ref(), depth, annotation)).sum();
    }
    let mut slices = 0;
    let stats = operator_metrics::of(plan);
    if let (Some(scan), Some(metrics)) = (plan.downcast_ref::<SliceScanExec>(), plan.metrics()) {
        annotation.slices += operator_metrics::sum(&metrics, SLICES);
        annotation.slices_pruned += operator_metrics::sum(&metrics, SLICES_PRUNED);
        annotation.slices_told += operator_metrics::sum(&metrics, SLICES_TOLD);
        slices += scan.spec.slices() as u64;
        annotation.indexes.extend(scan.spec.found().map(|found| found.note.clone()));
        annotation.rows_read = annotation.rows_read.map(|rows| rows + stats.rows_out + operator_metrics::sum(&metrics, PASSED_OVER));
    }
    if annotation.operators.len() < MAX_OPERATORS {
        annotation.operators.push(OperatorNote::new(stats, depth));
    }
    for child in plan.children() {
        slices += visit(child.as_ref(), depth + 1, annotation);
    }
    slices
}
