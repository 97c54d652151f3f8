//! An index, as a root record describes it.

use serde::{Deserialize, Serialize};
use skytether_index::Definition;

/// An index as a root record has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRecord {
    /// Its name.
    pub name: String,
    /// The table that it is of.
    pub table: String,
    /// The columns by whose ranges it finds rows.
    pub columns: Vec<String>,
    /// Columns whose values it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
}

impl IndexRecord {
    /// What the drives build.
    #[must_use]
    pub fn definition(&self) -> Definition {
        Definition::new(self.columns.clone(), self.include.clone())
    }
}
