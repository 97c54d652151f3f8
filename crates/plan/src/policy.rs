//! The pushdown policy of a query, and the placement of tables.

use datafusion::common::TableReference;

use skytether_partitioning::{ByKey, Placement};

/// The placement of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Partitioning {
    /// How the partitions relate to the table.
    pub placement: Placement,
    /// What the drives call the table, where that is not what the query calls it.
    pub stored_as: Option<TableReference>,
    /// The keys by which the table's rows are distributed over the drives, if any.
    pub by_key: Option<ByKey>,
}

impl Partitioning {
    /// A table with this placement that the drives know by the query's name for it.
    #[must_use]
    pub fn new(placement: Placement) -> Self {
        Self { placement, stored_as: None, by_key: None }
    }

    /// The same, known to the drives as `name`.
    #[must_use]
    pub fn stored_as(mut self, name: impl Into<TableReference>) -> Self {
        self.stored_as = Some(name.into());
        self
    }

    /// The same, partitioned by key.
    #[must_use]
    pub fn by_key(mut self, by_key: Option<ByKey>) -> Self {
        self.by_key = by_key;
        self
    }
}

/// What the planner must know of the tables in a plan.
pub trait Tables {
    /// The placement of `table` (as the plan's scan names it); `None` where it is not on drives and so stays on the
    /// host.
    fn partitioning(&self, table: &TableReference) -> Option<Partitioning>;

    /// The number of rows of `table`, where known.
    fn rows(&self, table: &TableReference) -> Option<u64> {
        let _ = table;
        None
    }

    /// The bytes of all rows of `table` in memory (as Arrow arrays), where known.
    fn bytes(&self, table: &TableReference) -> Option<u64> {
        let _ = table;
        None
    }
}
