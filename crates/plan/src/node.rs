//! The node of a super-plan that represents a sub-plan.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::common::{DFSchemaRef, Result, TableReference, plan_err};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, UserDefinedLogicalNodeCore};
use skytether_scheduler::message::PushdownLevel;

use skytether_partitioning::Placement;

/// A part of a super-plan: the rows that the drives give for a sub-plan.
///
/// No optimizer rule reaches into the sub-plan. Its inputs are the tables that are broadcast with it. Its schema is the
/// sub-plan's, qualifiers included. Columns from the drives are bound to it by position, because Substrait does not
/// carry qualifiers.
#[derive(Debug, Clone)]
pub struct DriveScan {
    /// The table that is read, as the query names it.
    pub table: TableReference,
    /// The plan for the drives.
    pub sub_plan: Arc<LogicalPlan>,
    /// How much of the query the sub-plan holds.
    pub rung: PushdownLevel,
    /// Whether every drive (`Spread`) or any one drive (`Everywhere`) runs the sub-plan.
    pub placement: Placement,
    /// The plans of the broadcast tables ([`crate::broadcast_join`]), in order.
    pub inputs: Vec<LogicalPlan>,
    /// The other tables that are read, each partitioned over the same drives by the same keys as `table`, which the
    /// sub-plan joins drive by drive.
    pub with: Vec<TableReference>,
    schema: DFSchemaRef,
}

impl DriveScan {
    /// A scan of `table` by `sub_plan`, whose schema it takes.
    #[must_use]
    pub fn new(table: TableReference, sub_plan: LogicalPlan, rung: PushdownLevel, placement: Placement) -> Self {
        let schema = Arc::clone(sub_plan.schema());
        Self { table, sub_plan: Arc::new(sub_plan), rung, placement, inputs: Vec::new(), with: Vec::new(), schema }
    }

    /// The same, with `inputs` as its broadcast tables.
    #[must_use]
    pub fn with_inputs(self, inputs: Vec<LogicalPlan>) -> Self {
        Self { inputs, ..self }
    }

    /// The same, of a sub-plan that reads these tables as well.
    #[must_use]
    pub fn with_tables(self, with: Vec<TableReference>) -> Self {
        Self { with, ..self }
    }

    /// All tables that are read, `table` first.
    pub fn tables(&self) -> impl Iterator<Item = &TableReference> {
        std::iter::once(&self.table).chain(&self.with)
    }

    /// The tables that are read, for people.
    #[must_use]
    pub fn title(&self) -> String {
        let mut names: Vec<String> = self.tables().map(ToString::to_string).collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names.join(" with ")
    }

    /// Schema of the rows, with qualifiers.
    #[must_use]
    pub fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    /// The node as a plan.
    #[must_use]
    pub fn into_plan(self) -> LogicalPlan {
        LogicalPlan::Extension(Extension { node: Arc::new(self) })
    }

    /// The scan that `plan` is, if it is one.
    #[must_use]
    pub fn of(plan: &LogicalPlan) -> Option<&DriveScan> {
        match plan {
            LogicalPlan::Extension(e) => e.node.as_any().downcast_ref(),
            _ => None,
        }
    }
}

impl PartialEq for DriveScan {
    fn eq(&self, other: &Self) -> bool {
        self.table == other.table
            && self.rung == other.rung
            && self.placement == other.placement
            && self.sub_plan == other.sub_plan
            && self.inputs == other.inputs
            && self.with == other.with
    }
}

impl Eq for DriveScan {}

impl Hash for DriveScan {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.table.hash(state);
        self.rung.hash(state);
        self.placement.hash(state);
        self.sub_plan.hash(state);
        self.inputs.hash(state);
        self.with.hash(state);
    }
}

impl PartialOrd for DriveScan {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        if self == other {
            return Some(Ordering::Equal);
        }
        match self.table.cmp(&other.table).then(self.rung.cmp(&other.rung)).then(self.with.cmp(&other.with)) {
            // Equal plans were found above, so an equal order would contradict `==`.
            Ordering::Equal => match self.sub_plan.partial_cmp(&other.sub_plan)? {
                Ordering::Equal => self.inputs.partial_cmp(&other.inputs).filter(|o| *o != Ordering::Equal),
                different => Some(different),
            },
            different => Some(different),
        }
    }
}

impl UserDefinedLogicalNodeCore for DriveScan {
    fn name(&self) -> &str {
        "DriveScan"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.inputs.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![]
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<&str> = self.schema.fields().iter().map(|c| c.name().as_str()).collect();
        write!(f, "DriveScan: {} rung={} columns=[{}]", self.title(), self.rung.as_str(), columns.join(", "))
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        if !exprs.is_empty() || inputs.len() != self.inputs.len() {
            return plan_err!("a DriveScan has no expressions, and this one {} inputs", self.inputs.len());
        }
        Ok(self.clone().with_inputs(inputs))
    }
}
