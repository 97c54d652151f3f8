//! Statistics of all stripes of a partition, column by column.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt64Array};
use arrow::compute;
use arrow::datatypes::SchemaRef;

/// Bounds of one column: one entry per stripe.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    pub(super) min: ArrayRef,
    pub(super) max: ArrayRef,
    pub(super) nulls: UInt64Array,
}

impl PartialEq for Bounds {
    fn eq(&self, other: &Self) -> bool {
        self.min.as_ref() == other.min.as_ref() && self.max.as_ref() == other.max.as_ref() && self.nulls == other.nulls
    }
}

/// Statistics of a partition's stripes: arrays with one entry per stripe, in the form of DataFusion's
/// `PruningStatistics`. A null bound means unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct StatsTable {
    schema: SchemaRef,
    /// The place of each column by its name: a query may ask for each of 20,000 columns.
    places: HashMap<String, usize>,
    rows: UInt64Array,
    columns: Vec<Option<Bounds>>,
}

impl StatsTable {
    pub(super) fn assemble(schema: SchemaRef, rows: UInt64Array, columns: Vec<Option<Bounds>>) -> Self {
        // If two columns have the same name, the first one counts, as in Arrow.
        let places = schema.fields().iter().enumerate().rev().map(|(i, field)| (field.name().clone(), i)).collect();
        Self { schema, places, rows, columns }
    }

    pub(super) fn columns(&self) -> &[Option<Bounds>] {
        &self.columns
    }

    /// Number of stripes.
    #[must_use]
    pub fn stripes(&self) -> usize {
        self.rows.len()
    }

    /// Rows of each stripe.
    #[must_use]
    pub fn rows(&self) -> &UInt64Array {
        &self.rows
    }

    /// Lower bounds of `column`, of the column's type; `None` where there is no such column or its type has no bounds.
    #[must_use]
    pub fn min(&self, column: &str) -> Option<ArrayRef> {
        self.bound(column, |b| &b.min)
    }

    /// Upper bounds, likewise.
    #[must_use]
    pub fn max(&self, column: &str) -> Option<ArrayRef> {
        self.bound(column, |b| &b.max)
    }

    /// Null counts, likewise.
    #[must_use]
    pub fn nulls(&self, column: &str) -> Option<UInt64Array> {
        self.columns.get(*self.places.get(column)?)?.as_ref().map(|b| b.nulls.clone())
    }

    /// The stored bounds of column `column` in stripe `stripe`, and its null count. The bounds are arrays of one value,
    /// of the type that [`stats_type`](crate::stats::stats_type) gives.
    pub(crate) fn of(&self, column: usize, stripe: usize) -> Option<(ArrayRef, ArrayRef, u64)> {
        let bounds = self.columns.get(column)?.as_ref().filter(|bounds| stripe < bounds.min.len())?;
        Some((bounds.min.slice(stripe, 1), bounds.max.slice(stripe, 1), bounds.nulls.value(stripe)))
    }

    fn bound(&self, column: &str, which: impl Fn(&Bounds) -> &ArrayRef) -> Option<ArrayRef> {
        let at = *self.places.get(column)?;
        let (field, array) = (self.schema.field(at), which(self.columns.get(at)?.as_ref()?));
        if array.data_type() == field.data_type() {
            return Some(Arc::clone(array));
        }
        // The bounds of a dictionary column are stored as plain values.
        compute::cast(array, field.data_type()).ok()
    }
}
