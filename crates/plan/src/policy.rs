//! How much may go down, and where a table lies.

use std::fmt;
use std::str::FromStr;

use datafusion::common::TableReference;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

use crate::partition::ByKey;

/// How much of a plan is sent down; the words are those of `fleet.sql(..., cut=...)`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// All that can go down; drives may push back.
    #[default]
    Adaptive,
    /// All that can go down.
    Full,
    /// Scan, filter, projection and limit.
    Filter,
    /// The scan with its projection alone.
    Raw,
}

impl Cut {
    /// The policy in a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Cut::Adaptive => "adaptive",
            Cut::Full => "full",
            Cut::Filter => "filter",
            Cut::Raw => "raw",
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Cut {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "adaptive" => Ok(Cut::Adaptive),
            "full" => Ok(Cut::Full),
            "filter" => Ok(Cut::Filter),
            "raw" => Ok(Cut::Raw),
            other => Err(Error::invalid(format!("{other:?} is no way to cut: use adaptive, full, filter or raw"))),
        }
    }
}

/// How the partitions of a table relate to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The partitions together are the table; no row is in two of them.
    Spread,
    /// Each partition is the whole table; one drive is asked.
    Everywhere,
}

/// Where a table lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Partitioning {
    /// How the partitions relate to the table.
    pub placement: Placement,
    /// What the drives call the table, where that is not what the query calls it.
    pub stored_as: Option<TableReference>,
    /// By which keys its rows are dealt to the drives, if they are.
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
    /// Where `table` (as the plan's scan names it) lies; `None` where it is not on drives and so stays on the host.
    fn partitioning(&self, table: &TableReference) -> Option<Partitioning>;

    /// How many rows `table` has, where that is known.
    fn rows(&self, table: &TableReference) -> Option<u64> {
        let _ = table;
        None
    }

    /// How many bytes all rows of `table` take in memory (as Arrow arrays), where that is known.
    fn bytes(&self, table: &TableReference) -> Option<u64> {
        let _ = table;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_read_and_written() {
        for cut in [Cut::Adaptive, Cut::Full, Cut::Filter, Cut::Raw] {
            assert_eq!(cut.to_string().parse::<Cut>().unwrap(), cut);
            assert_eq!(serde_json::to_value(cut).unwrap(), serde_json::json!(cut.as_str()));
        }
        assert_eq!("Full".parse::<Cut>().unwrap_err().kind(), skytether_common::Kind::Invalid);
        assert_eq!(Cut::default(), Cut::Adaptive);
    }
}
