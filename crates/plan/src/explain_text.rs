//! Plans as text: for snapshots, `explain` and logs.

use datafusion::logical_expr::LogicalPlan;

use crate::cut::CutPlan;
use crate::node::DriveScan;

/// A logical plan, one operator a line, indented by depth.
#[must_use]
pub fn logical(plan: &LogicalPlan) -> String {
    plan.display_indent().to_string()
}

/// The sub-plan of `scan`.
#[must_use]
pub fn sub_plan(scan: &DriveScan) -> String {
    logical(&scan.sub_plan)
}

/// A super-plan: as [`logical`], each `DriveScan` numbered by a following list of sub-plans.
#[must_use]
pub fn super_plan(plan: &LogicalPlan) -> String {
    logical(plan)
}

/// Everything about a cut: the super-plan, each sub-plan, and why what stayed above stayed there.
#[must_use]
pub fn cut_plan(cut: &CutPlan) -> String {
    let mut out = format!("super-plan\n{}\n", indent(&super_plan(&cut.super_plan)));
    for (n, scan) in cut.scans.iter().enumerate() {
        out.push_str(&format!("sub-plan {n} of {} ({})\n{}\n", scan.title(), scan.rung.as_str(), indent(&sub_plan(scan))));
    }
    if !cut.notes.is_empty() {
        out.push_str("on the host\n");
        for note in &cut.notes {
            out.push_str(&format!("  {}: {}\n", note.operator, note.reason));
        }
    }
    out
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
