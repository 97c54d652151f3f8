//! The sub-plan as it travels down.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, PartitionName};
use uuid::Uuid;

use crate::annotation::Rung;

/// A complete, independent query over the partitions that one CSE manages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubPlan {
    /// The query that this is a part of; the same for all its sub-plans.
    pub query: Uuid,
    /// The data set that the plan reads.
    pub dataset: DatasetName,
    /// For each table of the data set that the plan may see, by its name in the data set: the partition at this CSE. Nothing else is accessible to the plan.
    pub partitions: BTreeMap<String, PartitionName>,
    /// How much of the plan is asked for (the plan holds just that).
    pub rung: Rung,
    /// The plan: a Substrait `Plan` message. Tables are named `[domain, dataset, table]`.
    #[serde(skip)]
    pub plan: Bytes,
    /// Rows per batch that the sender would like.
    pub batch_rows: u32,
}
