//! The sub-plan as it travels to a CSE.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, PartitionName};
use skytether_scheduler::message::PushdownLevel;
use uuid::Uuid;

use crate::program::Program;

/// The longest program of a sub-plan together with what travels next to it, in bytes.
pub const MAX_PLAN: usize = 16 << 20;

/// A program with its inputs: a complete, independent query over the partitions that one CSE manages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubPlan {
    /// The query that this is a part of; the same for all its sub-plans.
    pub query: Uuid,
    /// The data set that the plan reads.
    pub dataset: DatasetName,
    /// For each table of the data set that the plan may see, by its name in the data set: the partition at this CSE.
    /// Nothing else is accessible to the plan.
    pub partitions: BTreeMap<String, PartitionName>,
    /// Other data sets that the plan reads, each with its partitions in the same way: of tables that are partitioned
    /// by the same keys, so that the CSE can join its own rows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub with: BTreeMap<DatasetName, BTreeMap<String, PartitionName>>,
    /// How much of the plan is asked for (the plan holds just that).
    pub rung: PushdownLevel,
    /// What runs over them.
    #[serde(skip)]
    pub program: Program,
    /// Sets of join keys that the plan refers to by these names (`skytether_plan::keys`). They travel outside of the
    /// plan, as data: engines copy and print the literals of a plan freely.
    #[serde(skip)]
    pub filters: BTreeMap<String, Bytes>,
    /// Small tables that the plan joins with, by name, as Arrow IPC streams (`skytether_plan::broadcast_join`). They
    /// are no tables of the data set, and gone when the plan is done.
    #[serde(skip)]
    pub tables: BTreeMap<String, Bytes>,
    /// Rows per batch that the sender would like.
    pub batch_rows: u32,
    /// Whether the CSE may answer from a result that it kept, and keep this one ([`crate::kept`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
}

impl SubPlan {
    /// `plan`, a Substrait plan, as a query of its own over tables that the engine is given, and no partitions.
    #[must_use]
    pub fn over_given(dataset: DatasetName, plan: Bytes, filters: BTreeMap<String, Bytes>, tables: BTreeMap<String, Bytes>) -> Self {
        Self {
            query: Uuid::new_v4(),
            dataset,
            partitions: BTreeMap::new(),
            with: BTreeMap::new(),
            rung: PushdownLevel::Full,
            program: Program::Substrait(plan),
            filters,
            tables,
            batch_rows: 0,
            keep: false,
        }
    }

    /// The data sets that the plan reads, each with its partitions, the first one first.
    pub fn datasets(&self) -> impl Iterator<Item = (&DatasetName, &BTreeMap<String, PartitionName>)> {
        std::iter::once((&self.dataset, &self.partitions)).chain(&self.with)
    }

    /// Bytes of the plan, its join filters and its broadcast tables.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.program.bytes().len() + self.filters.values().chain(self.tables.values()).map(Bytes::len).sum::<usize>()
    }
}
