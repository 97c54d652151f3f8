//! A query's cut as text: what stays above, what goes down, why, and with `analyze` what happened.

use std::fmt::Write;

use datafusion::physical_plan::display::DisplayableExecutionPlan;
use futures::StreamExt;
use skytether_common::Result;
use skytether_common::units::{counted, human_bytes, human_seconds};
use skytether_plan::describe;

use crate::options::QueryOptions;
use crate::receipt::Receipt;
use crate::session::Host;
use crate::substrait::Asked;

impl Host {
    /// The cut of a query, a text of SQL or a Substrait plan, as text: super-plan, sub-plans, and why what stayed on the host stayed there. With `analyze` the query is
    /// run and its figures follow.
    ///
    /// # Errors
    /// As [`Host::ask`], and with `analyze` the query's own.
    pub async fn explain(&self, asked: impl Into<Asked>, analyze: bool, options: &QueryOptions) -> Result<String> {
        let planned = self.plan_asked(&asked.into(), options, Vec::new()).await?;
        let mut out = String::new();
        section(&mut out, "query", &describe::logical(&planned.optimised));
        out.push_str(&describe::cut_plan(&planned.cut));
        if !out.ends_with('\n') {
            out.push('\n');
        }
        section(&mut out, "physical plan of the host", &DisplayableExecutionPlan::new(planned.physical.as_ref()).indent(false).to_string());
        if analyze {
            let mut query = self.run(planned)?;
            while let Some(batch) = query.stream.next().await {
                batch?;
            }
            out.push_str(&analysed(&query.receipt.receipt()));
        }
        Ok(out)
    }
}

fn section(out: &mut String, title: &str, body: &str) {
    let _ = writeln!(out, "{title}");
    for line in body.lines() {
        let _ = writeln!(out, "  {line}");
    }
}

/// What happened, operator by operator.
fn analysed(receipt: &Receipt) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "on the host, as it ran");
    for o in &receipt.host {
        let _ = writeln!(out, "  {}{}: {}, {}", "  ".repeat(o.depth as usize), o.name, counted(o.rows_out, "row"), human_seconds(o.seconds));
    }
    for scan in &receipt.scans {
        let _ = writeln!(out, "on the drives, of {} ({}, a plan of {})", scan.table, scan.rung.as_str(), human_bytes(scan.plan_bytes));
        for a in &scan.annotations {
            let _ = writeln!(
                out,
                "  {}: {}, {} skipped, {}, {} sent, {}",
                a.cse,
                counted(a.slices, "slice"),
                a.slices_pruned,
                counted(a.rows_out, "row"),
                human_bytes(a.bytes_sent),
                human_seconds(a.seconds)
            );
            for o in &a.operators {
                let _ = writeln!(out, "    {}{}: {}, {}", "  ".repeat(o.depth as usize), o.name, counted(o.rows_out, "row"), human_seconds(o.seconds));
            }
        }
    }
    section(&mut out, "receipt", &receipt.to_string());
    out
}
