//! How a table's slices are laid out, and the types of matrix values.

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};
use skytether_common::Span;

pub use skytether_common::BLOCK;

/// The type of a matrix's stored values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueType {
    /// Counts up to 65,535.
    UInt16,
    /// Counts up to 4,294,967,295.
    UInt32,
    /// Whatever single precision holds exactly.
    Float32,
    /// Everything else.
    Float64,
}

impl ValueType {
    /// The Arrow type.
    #[must_use]
    pub fn data_type(self) -> DataType {
        match self {
            ValueType::UInt16 => DataType::UInt16,
            ValueType::UInt32 => DataType::UInt32,
            ValueType::Float32 => DataType::Float32,
            ValueType::Float64 => DataType::Float64,
        }
    }

    /// Bytes per value once decoded.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            ValueType::UInt16 => 2,
            ValueType::UInt32 | ValueType::Float32 => 4,
            ValueType::Float64 => 8,
        }
    }
}

/// How the slices of a partition are laid out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// What the `parquet` crate writes for any schema.
    Table,
    /// One row per gene and block of cells; see [`crate::sparse`].
    Sparse {
        /// Cells of the matrix; indices are below it.
        n_cells: u32,
        /// Genes of the matrix; gene numbers are below it.
        n_genes: u32,
        /// Cells per block: [`BLOCK`].
        block: u32,
        /// The type of the values.
        value: ValueType,
        /// The first cell that the partition has values of: not 0 in a part that an append has added.
        #[serde(default, skip_serializing_if = "is_zero")]
        first_cell: u32,
        /// The number of the block that begins there.
        #[serde(default, skip_serializing_if = "is_zero")]
        first_block: u32,
    },
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Layout {
    /// The sparse layout of a matrix, with the usual block size.
    #[must_use]
    pub fn sparse(n_cells: u32, n_genes: u32, value: ValueType) -> Self {
        Self::sparse_part(Span::whole(n_cells), n_genes, value)
    }

    /// The sparse layout of the part of a matrix that has the cells of `span`.
    #[must_use]
    pub fn sparse_part(span: Span, n_genes: u32, value: ValueType) -> Self {
        Layout::Sparse { n_cells: span.end, n_genes, block: BLOCK, value, first_cell: span.cell, first_block: span.block }
    }

    /// The cells that the partitions of a matrix, or of a part of one, have values of.
    #[must_use]
    pub fn span(&self) -> Option<Span> {
        match *self {
            Layout::Sparse { n_cells, first_cell, first_block, .. } => Some(Span { block: first_block, cell: first_cell, end: n_cells }),
            Layout::Table => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_survive_json() {
        let part = Layout::sparse_part(Span { block: 1, cell: 5, end: 9 }, 7, ValueType::Float32);
        for layout in [Layout::Table, Layout::sparse(5, 7, ValueType::Float32), part.clone()] {
            let text = serde_json::to_string(&layout).unwrap();
            assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout, "{text}");
            // Programs from before there were parts read all others.
            assert_eq!(text.contains("first"), layout == part, "{text}");
        }
    }
}
