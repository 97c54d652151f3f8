//! The parts of a plan that the walk puts together: what may go down, what stays above, and why.

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, TableReference};
use datafusion::logical_expr::LogicalPlan;

use crate::classify::Input;
use crate::size::fixed_width;
use crate::split::Halves;

/// Assumed bytes of a text, or of another value without a fixed width.
const LONG: u64 = 24;

/// Why an operator stayed on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The operator, for example `Sort`.
    pub operator: String,
    /// The operator with its expressions, as the super-plan shows it.
    pub node: String,
    /// Why, in words.
    pub reason: String,
}

/// A part of the plan, as far as the walk has come.
#[derive(Clone)]
pub(crate) enum Piece {
    /// All of it can go down.
    Below(Box<Below>),
    /// Its root stays above; whether drives are read anywhere below.
    Above(LogicalPlan, bool),
}

/// A part that can go down, with its properties.
#[derive(Clone)]
pub(crate) struct Below {
    pub(crate) plan: LogicalPlan,
    pub(crate) table: TableReference,
    /// What the drives call the table.
    pub(crate) stored: TableReference,
    pub(crate) input: Input,
    /// Where joins are in it.
    pub(crate) joined: Option<Joined>,
    /// The other tables that it reads, which are partitioned like `table`.
    pub(crate) with: Vec<TableReference>,
}

/// A part with joins that goes down only if that makes it give fewer rows.
#[derive(Clone)]
pub(crate) struct Joined {
    /// The small sides, in order.
    pub(crate) broadcast: Vec<LogicalPlan>,
    /// The same part with its joins on the host, and why they are there.
    pub(crate) plain: LogicalPlan,
    pub(crate) notes: Vec<Note>,
    /// Whether an operator above the joins makes few rows of many.
    pub(crate) pays: bool,
    /// What moves with its joins on the host, where it may go down for less than that, too.
    pub(crate) moves: Option<Moves>,
}

impl Below {
    /// The same with `plan`, which gives few rows of many.
    pub(crate) fn reduced(mut self, plan: LogicalPlan) -> Self {
        self.plan = plan;
        if let Some(joined) = &mut self.joined {
            joined.pays = true;
        }
        self
    }
}

/// What moves up where a join of two sides stays on the host.
#[derive(Clone, Copy)]
pub(crate) struct Moves {
    /// The rows of the larger side.
    rows: u64,
    /// The bytes of both.
    bytes: u64,
}

impl Moves {
    /// What moves where a join of `left` and `right` stays on the host.
    pub(super) fn of_both(left: &Below, right: &Below) -> Self {
        let (a, b) = (Self::of(left), Self::of(right));
        Self { rows: a.rows.max(b.rows), bytes: a.bytes.saturating_add(b.bytes) }
    }

    /// Whether rows of `schema`, one for each row of the larger side, take no more bytes than that.
    pub(crate) fn more_than(self, schema: &DFSchema) -> bool {
        self.rows.saturating_mul(width(schema)) <= self.bytes
    }

    /// What moves where the joins in `below` stay on the host.
    fn of(below: &Below) -> Self {
        match below.joined.as_ref().and_then(|joined| joined.moves) {
            Some(both) => Self { rows: both.rows, bytes: both.bytes.min(both.rows.saturating_mul(width(below.plan.schema()))) },
            None => {
                let rows = below.input.rows.unwrap_or(0);
                Self { rows, bytes: rows.saturating_mul(width(below.plan.schema())) }
            }
        }
    }
}

/// The approximate bytes of a row.
fn width(schema: &DFSchema) -> u64 {
    schema.fields().iter().map(|f| fixed_width(f.data_type()).unwrap_or(LONG)).sum()
}

/// The states of a part that goes down; they go down with it.
pub(crate) fn states(halves: &Halves, mut below: Below) -> Result<Below> {
    let plan = halves.below(below.plan.clone())?;
    below.input.operators += 1;
    Ok(below.reduced(plan))
}

/// `node`, which has one input, over `input`, which has the columns of the old one.
pub(crate) fn with_input(node: LogicalPlan, input: LogicalPlan) -> Result<LogicalPlan> {
    let mut input = Some(input);
    let plan = node.map_children(|old| Ok(Transformed::yes(input.take().unwrap_or(old))))?;
    Ok(plan.data)
}
