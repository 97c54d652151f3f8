//! Which drives a query leaves out, by the bounds in the root record.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::pruning::PrunableStatistics;
use datafusion::common::stats::Precision;
use datafusion::common::{Column, ScalarValue, Statistics};
use datafusion::logical_expr::expr_rewriter::unnormalize_col;
use datafusion::logical_expr::{Expr, LogicalPlan};
use skytether_engine::prune::kept;

use skytether_catalog::records::bounds::Bounds;

/// Statistics of the columns of `schema` whose names are in `about`.
fn statistics(bounds: &Bounds, schema: &Schema, about: &HashSet<&str>) -> Statistics {
    let mut statistics = Statistics::new_unknown(schema);
    for (field, column) in schema.fields().iter().zip(&mut statistics.column_statistics).filter(|(field, _)| about.contains(field.name().as_str())) {
        let both = bounds.get(field.name());
        // A bound that is unknown, or does not fit the type, is a NULL of that type. Statistics of several drives have
        // no other value for that.
        let value = |which: usize| {
            let value = both.and_then(|both| ScalarValue::try_from_string(both[which].clone(), field.data_type()).ok());
            value.or_else(|| ScalarValue::try_from(field.data_type()).ok()).map_or(Precision::Absent, Precision::Exact)
        };
        (column.min_value, column.max_value) = (value(0), value(1));
    }
    statistics
}

/// Of partitions of a table of `schema` with these bounds, those in which all `filters` may hold somewhere.
pub(crate) fn may_match(state: &dyn Session, schema: &SchemaRef, filters: &[Expr], bounds: &[&Bounds]) -> Vec<bool> {
    let all = || vec![true; bounds.len()];
    if bounds.iter().all(|bounds| bounds.is_empty()) {
        return all();
    }
    let about: HashSet<&str> = filters.iter().flat_map(Expr::column_refs).map(Column::name).collect();
    let statistics = bounds.iter().map(|bounds| Arc::new(statistics(bounds, schema, &about))).collect();
    kept(state, schema, filters, &PrunableStatistics::new(statistics, Arc::clone(schema))).unwrap_or_else(all)
}

/// What must hold of each row of the only table that `plan` reads, before anything is made of it.
pub(crate) fn conditions(plan: &LogicalPlan) -> Vec<Expr> {
    fn of_scan(plan: &LogicalPlan) -> Option<Vec<Expr>> {
        match plan {
            LogicalPlan::TableScan(scan) => Some(scan.filters.clone()),
            // It renames no column, and by what table they are called makes no difference here.
            LogicalPlan::SubqueryAlias(alias) => of_scan(&alias.input),
            LogicalPlan::Filter(filter) => of_scan(&filter.input).map(|mut all| {
                all.push(filter.predicate.clone());
                all
            }),
            _ => None,
        }
    }
    match (of_scan(plan), plan.inputs().as_slice()) {
        (Some(all), _) => all.into_iter().map(unnormalize_col).collect(),
        (None, [input]) => conditions(input),
        _ => Vec::new(),
    }
}

/// Whether `plan` gives no rows where its table has none.
pub(crate) fn empties(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(_) => true,
        LogicalPlan::SubqueryAlias(_) | LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::Sort(_) | LogicalPlan::Limit(_) => {
            plan.inputs().into_iter().all(empties)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Date32Array, Decimal128Array, Float32Array, Float64Array, Int64Array, TimestampMicrosecondArray, UInt64Array};
    use arrow::record_batch::RecordBatch;
    use datafusion::prelude::{SessionContext, col, lit};
    use skytether_slice::{Layout, MetadataBuilder, SliceOptions, TableSlicer};

    use arrow::array::{Array, ArrayRef};
    use arrow::datatypes::DataType;
    use std::collections::BTreeMap;

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

    fn one(column: impl Array + 'static) -> RecordBatch {
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
    fn only_impossible_matches_are_pruned() {
        let floats = [one(Float32Array::from(vec![Some(0.1), None])), one(Float32Array::from(vec![Some(0.7), Some(-0.0)]))];
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
        let schema = Arc::new(Schema::new(vec![arrow::datatypes::Field::new("c", DataType::Int64, true)]));
        let known = bounds(&[one(Int64Array::from(vec![1, 2]))]);
        let state = SessionContext::new().state();
        assert_eq!(may_match(&state, &schema, &[col("c").gt(lit(5i64))], &[&nothing, &known]), [true, false]);
        assert_eq!(may_match(&state, &schema, &[col("c").gt(lit(5i64))], &[&nothing, &nothing]), [true, true]);
        // Nor is what is no value of its type.
        let wrong: Bounds = serde_json::from_str(r#"{"c": ["x", "y"]}"#).unwrap();
        assert_eq!(may_match(&state, &schema, &[col("c").gt(lit(5i64))], &[&wrong, &known]), [true, false]);
        let columns = (0..=64).map(|n| (format!("c{n}"), Arc::new(Int64Array::from(vec![1])) as ArrayRef));
        assert!(bounds(&[RecordBatch::try_from_iter(columns).unwrap()]).is_empty());
    }
}
