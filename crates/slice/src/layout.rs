//! How a table's slices are laid out, and the types of matrix values.

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};

/// Cells per block of a matrix row.
pub const BLOCK: u32 = 65_536;

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

    /// The value type of an Arrow type, where it is one.
    #[must_use]
    pub fn from_data_type(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::UInt16 => Some(ValueType::UInt16),
            DataType::UInt32 => Some(ValueType::UInt32),
            DataType::Float32 => Some(ValueType::Float32),
            DataType::Float64 => Some(ValueType::Float64),
            _ => None,
        }
    }

    /// The narrowest type that holds every one of `values` exactly; `UInt16` where there are none.
    #[must_use]
    pub fn narrowest(values: &[f64]) -> Self {
        let mut n = Narrowest::default();
        values.iter().for_each(|&v| n.add(v));
        n.value_type()
    }

    /// The narrowest type that holds every value of both types exactly.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        use ValueType::{Float32, Float64, UInt16, UInt32};
        match (self, other) {
            (a, b) if a == b => a,
            (UInt16, UInt32) | (UInt32, UInt16) => UInt32,
            (UInt16, Float32) | (Float32, UInt16) => Float32,
            _ => Float64,
        }
    }
}

/// Finds the narrowest [`ValueType`] for values that come one by one.
///
/// Not the join of each value's own type: 70,000 and 0.5 fit `Float32` together, although the join of `UInt32` and `Float32` is `Float64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Narrowest {
    not_u16: bool,
    not_u32: bool,
    not_f32: bool,
}

impl Narrowest {
    /// Takes one value into account. NaN and infinities fit both float types; negative zero is no integer.
    #[inline]
    pub fn add(&mut self, value: f64) {
        let truncated = value as u32;
        let integer = f64::from(truncated).to_bits() == value.to_bits();
        self.not_u32 |= !integer;
        self.not_u16 |= !integer || truncated > u32::from(u16::MAX);
        self.not_f32 |= f64::from(value as f32) != value && !value.is_nan();
    }

    /// Takes all values of another search into account.
    pub fn merge(&mut self, other: &Self) {
        self.not_u16 |= other.not_u16;
        self.not_u32 |= other.not_u32;
        self.not_f32 |= other.not_f32;
    }

    /// The answer so far.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Narrowest { not_u16: false, .. } => ValueType::UInt16,
            Narrowest { not_u32: false, .. } => ValueType::UInt32,
            Narrowest { not_f32: false, .. } => ValueType::Float32,
            _ => ValueType::Float64,
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
    },
}

impl Layout {
    /// The sparse layout of a matrix, with the usual block size.
    #[must_use]
    pub fn sparse(n_cells: u32, n_genes: u32, value: ValueType) -> Self {
        Layout::Sparse { n_cells, n_genes, block: BLOCK, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_type_holds_every_value() {
        for (values, expected) in [
            (&[][..], ValueType::UInt16),
            (&[0.0, 1.0, 65_535.0], ValueType::UInt16),
            (&[65_536.0], ValueType::UInt32),
            (&[4_294_967_295.0, 1.0], ValueType::UInt32),
            (&[4_294_967_296.0], ValueType::Float32),
            (&[4_294_967_297.0], ValueType::Float64),
            (&[70_000.0, 0.5], ValueType::Float32),
            (&[-1.0], ValueType::Float32),
            (&[-0.0], ValueType::Float32),
            (&[f64::NAN, f64::INFINITY], ValueType::Float32),
            (&[0.1], ValueType::Float64),
            (&[16_777_217.0, 0.5], ValueType::Float64),
        ] {
            assert_eq!(ValueType::narrowest(values), expected, "{values:?}");
        }
    }

    #[test]
    fn joins_are_commutative_and_never_narrower() {
        use ValueType::{Float32, Float64, UInt16, UInt32};
        for a in [UInt16, UInt32, Float32, Float64] {
            for b in [UInt16, UInt32, Float32, Float64] {
                assert_eq!(a.join(b), b.join(a));
                assert!(a.join(b).width() >= a.width().max(b.width()));
            }
        }
        assert_eq!(UInt32.join(Float32), Float64);
    }

    #[test]
    fn layouts_survive_json() {
        for layout in [Layout::Table, Layout::sparse(5, 7, ValueType::Float32)] {
            let text = serde_json::to_string(&layout).unwrap();
            assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout, "{text}");
        }
    }
}
