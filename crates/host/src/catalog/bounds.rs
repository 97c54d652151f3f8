//! Between which values the columns of a partition lie, as its root record says.
//!
//! The metadata slices have the same for each stripe, but they are where the slices are. With this a host knows, when it has read the root record, which drives have nothing that a query wants, and doesn't ask them.

use std::collections::{BTreeMap, HashSet};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, StringArray, new_null_array};
use arrow::compute::{SortOptions, cast, sort_to_indices, take};
use arrow::datatypes::{DataType, Schema};
use datafusion::catalog::Session;
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::Expr;
use serde::{Deserialize, Serialize};
use skytether_engine::prune::kept;
use skytether_slice::{Layout, Metadata};

/// Tables of more columns have no bounds in root records, which each query reads.
const MAX_COLUMNS: usize = 64;

/// The least and the greatest value of columns, as text that casts back to the very same value. Columns of which that is not known are not named; NULL has no part in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bounds(BTreeMap<String, [String; 2]>);

impl Bounds {
    /// What `metadata` tells of numbers, dates and times.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        let fields = metadata.schema.fields();
        if metadata.layout != Layout::Table || fields.len() > MAX_COLUMNS || metadata.rows == 0 {
            return Self::default();
        }
        let bound = |name: &String, t: &DataType| {
            let (least, most) = (metadata.stats.min(name)?, metadata.stats.max(name)?);
            Some([text(&extreme(&least, t, false)?)?, text(&extreme(&most, t, true)?)?])
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

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The least or the greatest of `values`, of which each is to be known, as an array of one. Columns with a NaN have none.
fn extreme(values: &ArrayRef, t: &DataType, greatest: bool) -> Option<ArrayRef> {
    if values.data_type() != t || values.is_empty() || values.null_count() > 0 {
        return None;
    }
    let first = sort_to_indices(values, Some(SortOptions { descending: greatest, nulls_first: false }), Some(1)).ok()?;
    take(values, &first, None).ok()
}

/// A value as text, if it can be had back from that.
fn text(value: &ArrayRef) -> Option<String> {
    let text = cast(value, &DataType::Utf8).ok()?;
    let same = cast(&text, value.data_type()).is_ok_and(|back| back.as_ref() == value.as_ref());
    same.then(|| text.as_string_opt::<i32>().filter(|text| text.is_valid(0)).map(|text| text.value(0).to_owned()))?
}

/// Of partitions of a table of `schema` with these bounds, those in which all `filters` may hold somewhere.
pub(crate) fn may_match(state: &dyn Session, schema: &Schema, filters: &[Expr], bounds: &[&Bounds]) -> Vec<bool> {
    if bounds.iter().all(|bounds| bounds.is_empty()) {
        return vec![true; bounds.len()];
    }
    kept(state, schema, filters, &Partitions { schema, bounds }).unwrap_or_else(|| vec![true; bounds.len()])
}

/// Partitions as DataFusion asks for their statistics.
struct Partitions<'a> {
    schema: &'a Schema,
    bounds: &'a [&'a Bounds],
}

impl Partitions<'_> {
    fn values(&self, column: &Column, which: usize) -> Option<ArrayRef> {
        let t = self.schema.field_with_name(&column.name).ok()?.data_type();
        let texts: StringArray = self.bounds.iter().map(|bounds| bounds.0.get(&column.name).map(|both| both[which].as_str())).collect();
        // What does not fit the type is not known.
        Some(cast(&texts, t).unwrap_or_else(|_| new_null_array(t, texts.len())))
    }
}

impl PruningStatistics for Partitions<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.values(column, 0)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.values(column, 1)
    }

    fn num_containers(&self) -> usize {
        self.bounds.len()
    }

    fn null_counts(&self, _: &Column) -> Option<ArrayRef> {
        None
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        None
    }

    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Date32Array, Decimal128Array, Float32Array, Float64Array, Int64Array, TimestampMicrosecondArray, UInt64Array};
    use arrow::record_batch::RecordBatch;
    use datafusion::prelude::{Expr, SessionContext, col, lit};
    use skytether_slice::{MetadataBuilder, SliceOptions, TableSlicer};

    use super::*;

    /// The bounds of a partition with a slice for each batch.
    fn bounds(batches: &[RecordBatch]) -> Bounds {
        let schema = batches[0].schema();
        let mut metadata = MetadataBuilder::new(Layout::Table, Arc::clone(&schema), BTreeMap::new());
        for batch in batches {
            let mut slicer = TableSlicer::new(Arc::clone(&schema), SliceOptions::default());
            let first = slicer.push(batch).unwrap();
            for stripe in first.into_iter().chain(slicer.finish().unwrap()) {
                metadata.add(&stripe).unwrap();
            }
        }
        Bounds::of(&metadata.finish().unwrap())
    }

    fn one(column: impl arrow::array::Array + 'static) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable([("c", Arc::new(column) as ArrayRef, true)]).unwrap()
    }

    /// Whether a partition with `batches` is asked for `filter`; also when its bounds were written and read again.
    fn asked(batches: &[RecordBatch], filter: Expr) -> bool {
        let bounds = bounds(batches);
        let again: Bounds = serde_json::from_str(&serde_json::to_string(&bounds).unwrap()).unwrap();
        assert_eq!(again, bounds);
        may_match(&SessionContext::new().state(), &batches[0].schema(), &[filter], &[&bounds])[0]
    }

    #[test]
    fn only_what_can_not_match_is_left_out() {
        let floats = [one(Float32Array::from(vec![Some(0.1), None])), one(Float32Array::from(vec![Some(0.699_999_99), Some(-0.0)]))];
        assert!(!asked(&floats, col("c").gt(lit(0.7f32))) && asked(&floats, col("c").gt(lit(0.69f32))));
        assert!(!asked(&floats, col("c").lt(lit(0.0f32))) && asked(&floats, col("c").lt_eq(lit(0.0f32))));
        assert!(asked(&floats, col("c").is_null()) && asked(&floats, col("c").is_not_null()));
        assert!(asked(&floats, Expr::Not(Box::new(col("c").gt(lit(0.7f32))))));
        // NaN is more than any number, and nothing is known of a column with one, or with a slice of NULLs alone.
        assert!(asked(&[one(Float64Array::from(vec![1.0, f64::NAN]))], col("c").gt(lit(5.0))));
        assert!(asked(&[one(Float64Array::from(vec![1.0])), one(Float64Array::from(vec![None::<f64>]))], col("c").gt(lit(5.0))));
        assert!(!asked(&[one(Float64Array::from(vec![1.0, f64::INFINITY]))], col("c").lt(lit(0.5))));

        // As exact as the numbers are.
        let big = [one(Int64Array::from(vec![i64::MIN + 1, i64::MAX - 1]))];
        assert!(!asked(&big, col("c").gt(lit(i64::MAX - 1))) && asked(&big, col("c").gt_eq(lit(i64::MAX - 1))));
        let unsigned = [one(UInt64Array::from(vec![u64::MAX - 1]))];
        assert!(!asked(&unsigned, col("c").eq(lit(u64::MAX))) && asked(&unsigned, col("c").eq(lit(u64::MAX - 1))));
        let decimal = || Decimal128Array::from(vec![-12_345, 999]).with_precision_and_scale(10, 2).unwrap();
        let of = |value| lit(ScalarValue::Decimal128(Some(value), 10, 2));
        assert!(!asked(&[one(decimal())], col("c").lt(of(-12_345))) && asked(&[one(decimal())], col("c").lt_eq(of(-12_345))));
        let days = [one(Date32Array::from(vec![-1, 20_000]))];
        assert!(!asked(&days, col("c").gt(lit(ScalarValue::Date32(Some(20_000))))) && asked(&days, col("c").eq(lit(ScalarValue::Date32(Some(20_000))))));
        for zone in [None, Some("+02:00")] {
            let times = TimestampMicrosecondArray::from(vec![1_700_000_000_123_456, 1_700_000_000_123_457]).with_timezone_opt(zone);
            let of = |value| lit(ScalarValue::TimestampMicrosecond(Some(value), zone.map(Into::into)));
            assert!(asked(&[one(times.clone())], col("c").gt_eq(of(1_700_000_000_123_457))));
            assert!(!asked(&[one(times)], col("c").gt(of(1_700_000_000_123_457))));
        }
    }

    #[test]
    fn old_records_and_wide_tables_have_none() {
        let nothing: Bounds = Bounds::default();
        let schema = Schema::new(vec![arrow::datatypes::Field::new("c", DataType::Int64, true)]);
        let known = bounds(&[one(Int64Array::from(vec![1, 2]))]);
        let state = SessionContext::new().state();
        assert_eq!(may_match(&state, &schema, &[col("c").gt(lit(5i64))], &[&nothing, &known]), [true, false]);
        assert_eq!(may_match(&state, &schema, &[col("c").gt(lit(5i64))], &[&nothing, &nothing]), [true, true]);
        // Nor is what is no value of its type.
        let wrong: Bounds = serde_json::from_str(r#"{"c": ["x", "y"]}"#).unwrap();
        assert_eq!(may_match(&state, &schema, &[col("c").gt(lit(5i64))], &[&wrong, &known]), [true, false]);
        let columns = (0..=MAX_COLUMNS).map(|n| (format!("c{n}"), Arc::new(Int64Array::from(vec![1])) as ArrayRef));
        assert!(bounds(&[RecordBatch::try_from_iter(columns).unwrap()]).is_empty());
    }
}
