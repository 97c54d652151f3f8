//! Bounds of the columns of a partition, as its root record has them.
//!
//! The metadata slices have bounds for each stripe, but they lie with the slices. With these bounds a host knows from
//! the root record which drives have no matching row, and does not ask them.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{CastOptions, SortOptions, cast_with_options, sort_to_indices};
use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};
use skytether_slice::{Layout, Metadata};

/// Tables of more columns have no bounds in root records, which each query reads.
pub(crate) const MAX_COLUMNS: usize = 64;

/// The least and the greatest value of columns, as text that casts back to the very same value. Columns with unknown
/// bounds are left out; NULLs don't count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bounds(BTreeMap<String, [String; 2]>);

impl Bounds {
    /// The bounds that `metadata` has of numbers, dates and times.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        let fields = metadata.schema.fields();
        if metadata.layout != Layout::Table || fields.len() > MAX_COLUMNS || metadata.rows == 0 {
            return Self::default();
        }
        let bound = |name: &String, t: &DataType| {
            // Columns with a NaN have none.
            let is_known = |values: &ArrayRef| values.data_type() == t && values.null_count() == 0;
            let (least, most) = (metadata.stats.min(name).filter(is_known)?, metadata.stats.max(name).filter(is_known)?);
            Some([text(&extreme(&least, false)?)?, text(&extreme(&most, true)?)?])
        };
        let is_ordered = |t: &DataType| t.is_numeric() || t.is_temporal();
        Self(
            fields
                .iter()
                .filter(|field| is_ordered(field.data_type()))
                .filter_map(|field| Some((field.name().clone(), bound(field.name(), field.data_type())?)))
                .collect(),
        )
    }

    /// The least and the greatest value of a column, as text.
    #[must_use]
    pub fn get(&self, column: &str) -> Option<&[String; 2]> {
        self.0.get(column)
    }

    /// Whether no bounds are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The least value of `values`, or the greatest, as an array of one. `None` if it is NULL or there is none.
fn extreme(values: &ArrayRef, greatest: bool) -> Option<ArrayRef> {
    let options = SortOptions { descending: greatest, nulls_first: false };
    let first = sort_to_indices(values, Some(options), Some(1)).ok()?;
    let at = first.values().first().copied().map(|at| at as usize).filter(|&at| values.is_valid(at))?;
    Some(values.slice(at, 1))
}

/// The only value of an array as text, if that casts back to the very same value.
fn text(value: &ArrayRef) -> Option<String> {
    // An overflow must be an error, not NULL.
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let texts = cast_with_options(value, &DataType::Utf8, &options).ok()?;
    let back = cast_with_options(&texts, value.data_type(), &options).ok()?;
    // Compared by bits: -0.0 is not 0.0 here.
    (back.to_data() == value.to_data()).then(|| texts.as_string::<i32>().value(0).to_owned())
}
