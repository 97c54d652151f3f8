//! The schema of sparse slices, and the values of a row.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::layout::ValueType;

/// Column numbers of [`sparse_schema`].
pub mod column {
    /// Number of the gene, from 0.
    pub const GENE: usize = 0;
    /// Number of the block of cells, from 0.
    pub const BLOCK: usize = 1;
    /// Length of the two lists.
    pub const NNZ: usize = 2;
    /// Absolute cell numbers, strictly ascending.
    pub const IDX: usize = 3;
    /// Values, one per cell number.
    pub const VAL: usize = 4;
    /// Sum of the values.
    pub const SUM: usize = 5;
    /// Sum of the values' squares.
    pub const SUMSQ: usize = 6;
}

/// The schema of sparse slices: `gene_id, block, nnz, idx, val, sum, sumsq`, nothing nullable.
#[must_use]
pub fn sparse_schema(value: ValueType) -> SchemaRef {
    let list = |t| DataType::List(Arc::new(Field::new("item", t, false)));
    let field = |name: &str, t| Field::new(name, t, false);
    Arc::new(Schema::new(vec![
        field("gene_id", DataType::UInt32),
        field("block", DataType::UInt32),
        field("nnz", DataType::UInt32),
        field("idx", list(DataType::UInt32)),
        field("val", list(value.data_type())),
        field("sum", DataType::Float64),
        field("sumsq", DataType::Float64),
    ]))
}

/// The columns that validation needs in addition to the projection.
pub(super) fn needs(projection: &[usize]) -> Vec<usize> {
    let lists = projection.iter().any(|&c| c == column::IDX || c == column::VAL);
    let idx = projection.contains(&column::IDX);
    let mut needs = Vec::new();
    if lists && !projection.contains(&column::NNZ) {
        needs.push(column::NNZ);
    }
    if idx && !projection.contains(&column::BLOCK) {
        needs.push(column::BLOCK);
    }
    needs
}

/// The values of one row, in any of the stored types.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// [`ValueType::UInt16`].
    U16(&'a [u16]),
    /// [`ValueType::UInt32`].
    U32(&'a [u32]),
    /// [`ValueType::Float32`].
    F32(&'a [f32]),
    /// [`ValueType::Float64`].
    F64(&'a [f64]),
}

impl Values<'_> {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Values::U16(v) => v.len(),
            Values::U32(v) => v.len(),
            Values::F32(v) => v.len(),
            Values::F64(v) => v.len(),
        }
    }

    /// No values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stored type of the values.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Values::U16(_) => ValueType::UInt16,
            Values::U32(_) => ValueType::UInt32,
            Values::F32(_) => ValueType::Float32,
            Values::F64(_) => ValueType::Float64,
        }
    }
}
