//! The cut of a query: what stays on the host, what goes down, why, and with `analyze` what happened.

use std::fmt;

use serde::{Deserialize, Serialize};
use skytether_common::plan_words::shipped_table;
use skytether_device::PushdownLevel;

use crate::estimate::{Estimate, WorkSplit};
use crate::receipt::Receipt;
use crate::receipt_tree::Tree;

/// How a query is cut and, where it was run for that, what each part of it took. Prints as text for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The query as DataFusion optimised it, before the cut: an operator a line.
    pub query: String,
    /// What the host keeps.
    pub super_plan: String,
    /// What drives get, numbered from 0 in the order of the super-plan.
    pub sub_plans: Vec<SubPlanText>,
    /// Why operators stayed on the host that might have gone down, from the leaves up.
    pub notes: Vec<HostNote>,
    /// The operators with which the host runs the super-plan.
    pub physical: String,
    /// What happened, where the query was run.
    #[serde(default)]
    pub receipt: Option<Receipt>,
}

/// A sub-plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubPlanText {
    /// The table as SQL names it.
    pub table: String,
    /// How much of the query it holds.
    pub rung: PushdownLevel,
    /// Whether every drive with a part of the table runs it. If not, one drive runs it that has the whole table.
    pub every_drive: bool,
    /// The plan, an operator a line.
    pub plan: String,
    /// The host's plans of the tables that are broadcast for joins: `__shipped_0`, `__shipped_1` and so on in the plan.
    #[serde(default)]
    pub beside: Vec<String>,
    /// The forecast, where its work may move; what happened is in the receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<WorkSplit>,
}

/// Why an operator stayed on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNote {
    /// The operator, for example `Sort`.
    pub operator: String,
    /// The same with its expressions.
    pub node: String,
    /// Why, in words.
    pub reason: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        section(f, "query", &self.query)?;
        section(f, "super-plan", &self.super_plan)?;
        for (n, sub_plan) in self.sub_plans.iter().enumerate() {
            section(f, &format!("sub-plan {n} of {} ({})", sub_plan.table, sub_plan.rung.as_str()), &sub_plan.plan)?;
            if let Some(expected) = &sub_plan.expected {
                section(f, "  by the drives' profiles", &indented(&Estimate { expected: expected.clone(), actual: None }.to_string()))?;
            }
            for (beside, plan) in sub_plan.beside.iter().enumerate() {
                section(f, &format!("  beside it {}, the rows of", shipped_table(beside)), &indented(plan))?;
            }
        }
        if !self.notes.is_empty() {
            let notes: Vec<_> = self.notes.iter().map(|note| format!("{}: {}", note.operator, note.reason)).collect();
            section(f, "on the host", &notes.join("\n"))?;
        }
        section(f, "physical plan of the host", &self.physical)?;
        if let Some(receipt) = &self.receipt {
            section(f, "what ran where", &Tree(receipt).to_string())?;
            section(f, "receipt", &receipt.to_string())?;
        }
        Ok(())
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

fn section(f: &mut fmt::Formatter<'_>, title: &str, body: &str) -> fmt::Result {
    writeln!(f, "{title}")?;
    body.lines().try_for_each(|line| writeln!(f, "  {line}"))
}
