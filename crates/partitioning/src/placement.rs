//! How the partitions of a table relate to it.

use serde::{Deserialize, Serialize};

/// How the partitions of a table relate to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The partitions together are the table; no row is in two of them.
    Spread,
    /// Each partition is the whole table; queries use one drive.
    Everywhere,
}
