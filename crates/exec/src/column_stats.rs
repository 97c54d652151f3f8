//! What is known about the columns of a table for estimates: bounds, shares of nulls, and bounds on distinct values.
//!
//! It comes from the metadata slice of one partition, which the host reads for the schema anyway. Rows are distributed
//! slice by slice or by a hash, so that one partition looks like all of them. Where it does not, only an estimate is
//! wrong, never an answer.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::ScalarValue;
use skytether_slice::Metadata;

/// Tables of more columns get no statistics: reading them takes longer than it helps.
const MAX_COLUMNS: usize = 256;

/// One column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Known {
    /// The least value, as [`number`] has it.
    pub(crate) min: f64,
    /// The greatest.
    pub(crate) max: f64,
    /// The share of rows that are NULL.
    pub(crate) nulls: f64,
    /// Whether values are whole numbers of some unit, so that the bounds limit their number.
    whole: bool,
}

impl Known {
    /// How many values there can be, where that is bounded.
    pub(crate) fn values(&self) -> Option<f64> {
        self.whole.then(|| (self.max - self.min + 1.0).max(1.0))
    }

    /// The share of the values between `low` and `high`, as if values were spread evenly.
    pub(crate) fn between(&self, low: f64, high: f64) -> f64 {
        let step = if self.whole { 1.0 } else { 0.0 };
        let width = self.max - self.min + step;
        let inside = high.min(self.max) - low.max(self.min) + step;
        if inside < 0.0 || (step > 0.0 && inside < step) {
            return 0.0;
        }
        if width <= 0.0 { 1.0 } else { (inside / width).clamp(0.0, 1.0) }
    }

    #[cfg(test)]
    pub(crate) fn whole(min: f64, max: f64) -> Self {
        Self { min, max, nulls: 0.0, whole: true }
    }

    #[cfg(test)]
    pub(crate) fn spread(min: f64, max: f64) -> Self {
        Self { min, max, nulls: 0.0, whole: false }
    }
}

/// A table: its rows, and what is known of its columns, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KnownTable {
    columns: HashMap<String, Known>,
}

impl KnownTable {
    /// What `metadata` has about numbers, dates and times.
    pub fn of(metadata: &Metadata) -> Self {
        if metadata.schema.fields().len() > MAX_COLUMNS || metadata.rows == 0 {
            return Self::default();
        }
        let column = |name: &str| {
            let stats = &metadata.stats;
            let (least, most) = (stats.min(name)?, stats.max(name)?);
            let whole = !least.data_type().is_floating() && !least.data_type().is_decimal();
            let (least, most) = (numbers(&least)?, numbers(&most)?);
            let (min, max) = (min(least.as_primitive::<Float64Type>())?, max(most.as_primitive::<Float64Type>())?);
            let nulls = stats.nulls(name)?.values().iter().fold(0, |sum: u64, n| sum.saturating_add(*n));
            (min.is_finite() && max.is_finite() && min <= max).then(|| Known { min, max, nulls: nulls as f64 / metadata.rows as f64, whole })
        };
        let known = metadata.schema.fields().iter().filter_map(|field| Some((field.name().clone(), column(field.name())?)));
        Self { columns: known.collect() }
    }

    /// The column called `name`.
    pub(crate) fn column(&self, name: &str) -> Option<&Known> {
        self.columns.get(name)
    }

    #[cfg(test)]
    pub(crate) fn with(columns: &[(&str, Known)]) -> Self {
        Self { columns: columns.iter().map(|(name, known)| ((*name).to_owned(), *known)).collect() }
    }
}

/// The type through which values of `t` become numbers in the same order; `None` for types without such numbers.
fn through(t: &DataType) -> Option<DataType> {
    match t {
        t if t.is_numeric() => Some(t.clone()),
        DataType::Date32 | DataType::Time32(_) => Some(DataType::Int32),
        DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => Some(DataType::Int64),
        _ => None,
    }
}

fn numbers(values: &ArrayRef) -> Option<ArrayRef> {
    let through = through(values.data_type())?;
    // Decimals as the integers that they are held in would be as good, but literals may have another scale.
    cast(&cast(values, &through).ok()?, &DataType::Float64).ok()
}

/// The number that orders a value; `None` for NULL, and for types without such a number.
pub(crate) fn number(value: &ScalarValue) -> Option<f64> {
    if value.is_null() {
        return None;
    }
    let one = numbers(&value.to_array().ok()?)?;
    let one = one.as_primitive_opt::<Float64Type>()?;
    one.is_valid(0).then(|| one.value(0))
}
