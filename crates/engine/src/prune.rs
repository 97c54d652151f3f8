//! Pruning: which stripes, genes and cells a query's filters keep, found without reading a slice.
//!
//! It is one-sided: what is dropped cannot match, what is kept may. The filters still run above the scan.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema, UInt32Type};
use arrow::record_batch::RecordBatch;
use datafusion::catalog::Session;
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use skytether_plan::float_keys::without_keys;
use skytether_plan::opaque_values::without_opaque;

use crate::reader::Partition;

/// The parts of `filters` that must all hold and that only refer to `column`.
pub(crate) fn only_about(filters: &[Expr], column: &str) -> Vec<Expr> {
    parts(filters).filter(|e| refers_to(e, |name| name == column)).cloned().collect()
}

fn parts(filters: &[Expr]) -> impl Iterator<Item = &Expr> {
    filters.iter().flat_map(split_conjunction).filter(|e| !e.is_volatile())
}

fn refers_to(expr: &Expr, allowed: impl Fn(&str) -> bool) -> bool {
    let columns = expr.column_refs();
    !columns.is_empty() && columns.iter().all(|c| allowed(&c.name))
}

/// For each of `values` of `column`, whether all `filters` can hold; `None` where that is unknown.
pub(crate) fn matching(state: &dyn Session, filters: Vec<Expr>, column: &str, values: &ArrayRef) -> Option<BooleanArray> {
    let filter = conjunction(filters)?;
    let schema = Arc::new(Schema::new(vec![Field::new(column, values.data_type().clone(), true)]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(values)]).ok()?;
    let filter = state.create_physical_expr(filter, &DFSchema::try_from(schema).ok()?).ok()?;
    let answer = filter.evaluate(&batch).ok()?.into_array(values.len()).ok()?;
    let answer = answer.as_boolean_opt()?;
    // NULL is no match.
    Some(match answer.nulls() {
        Some(nulls) => BooleanArray::new(answer.values() & nulls.inner(), None),
        None => answer.clone(),
    })
}

/// The positions at which `mask` is true.
pub(crate) fn positions(mask: &BooleanArray) -> Vec<u32> {
    mask.values().set_indices().filter_map(|i| u32::try_from(i).ok()).collect()
}

/// The containers of `statistics` in which all `filters`, over columns of `schema`, may hold somewhere; `None` where
/// that is unknown.
pub fn kept(state: &dyn Session, schema: &Schema, filters: &[Expr], statistics: &impl PruningStatistics) -> Option<Vec<bool>> {
    let all = DFSchema::try_from(schema.clone()).ok()?;
    let known: Vec<Expr> = parts(filters).filter(|e| refers_to(e, |name| schema.index_of(name).is_ok()) && !misleads(e, &all)).cloned().collect();
    let filter = without_keys(conjunction(known)?);
    // Only the columns of the filter: planners search the whole schema.
    let columns: BTreeSet<usize> = filter.column_refs().into_iter().filter_map(|c| schema.index_of(&c.name).ok()).collect();
    let file = schema.project(&columns.into_iter().collect::<Vec<_>>()).map(Arc::new).ok()?;
    let named = DFSchema::try_from(Arc::clone(&file)).ok()?;
    let filter = without_opaque(filter, &named);
    let kept = state
        .create_physical_expr(filter, &named)
        .and_then(|filter| PruningPredicateBuilder::new().with_file_schema(file).try_build(filter))
        .and_then(|predicate| predicate.prune(statistics));
    match kept {
        Ok(kept) => (kept.len() == statistics.num_containers()).then_some(kept),
        Err(error) => {
            tracing::debug!(%error, "cannot prune by these filters");
            None
        }
    }
}

/// Whether bounds of the columns of `e` say nothing about it, and DataFusion takes them for bounds: it takes any cast
/// and any minus for monotone. The time of a moment is none, nor is a cast that gives NULL for some values, nor minus
/// at the smallest number. Intervals are compared by their length, and bounds field by field.
fn misleads(e: &Expr, schema: &DFSchema) -> bool {
    let of = |e: &Expr| e.get_type(schema).ok();
    let wrong = |part: &Expr| match part {
        Expr::Negative(inner) => of(inner).is_none_or(|of| !of.is_floating()),
        Expr::Cast(cast) => of(&cast.expr).is_none_or(|from| !is_monotone(&from, cast.field.data_type())),
        Expr::TryCast(_) => true,
        Expr::Column(_) | Expr::ScalarFunction(_) => matches!(of(part), None | Some(DataType::Interval(_))),
        _ => false,
    };
    e.exists(|part| Ok(wrong(part))).unwrap_or(true)
}

fn is_monotone(from: &DataType, to: &DataType) -> bool {
    let moment = |of: &DataType| matches!(of, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64);
    match (from, to) {
        (DataType::Dictionary(_, from), to) => is_monotone(from, to),
        (from, DataType::Dictionary(_, to)) => is_monotone(from, to),
        (from, to) => from == to || from.is_numeric() && to.is_numeric() || moment(from) && moment(to) || from.is_string() && to.is_string(),
    }
}

/// The stripes in which `filters` (over the partition's stored columns) may hold somewhere.
pub(crate) fn stripes(state: &dyn Session, partition: &Partition, filters: &[Expr]) -> Vec<bool> {
    let metadata = &partition.metadata;
    kept(state, &metadata.schema, filters, &Statistics(partition)).unwrap_or_else(|| vec![true; metadata.stripes()])
}

/// The stripes whose range of `column` (UInt32) holds one of the ascending `wanted`.
pub(crate) fn stripes_with(partition: &Partition, column: &str, wanted: &[u32]) -> Vec<bool> {
    let all = vec![true; partition.metadata.stripes()];
    let Some((min, max)) = bounds(partition, column) else { return all };
    (0..all.len())
        .map(|n| {
            if min.is_null(n) || max.is_null(n) {
                return true;
            }
            let first = wanted.partition_point(|&w| w < min.value(n));
            wanted.get(first).is_some_and(|&w| w <= max.value(n))
        })
        .collect()
}

/// Lowest and highest value of a UInt32 column, stripe by stripe.
pub(crate) fn bounds(partition: &Partition, column: &str) -> Option<(UInt32Array, UInt32Array)> {
    let stats = &partition.metadata.stats;
    let (min, max) = (stats.min(column)?, stats.max(column)?);
    let (min, max) = (min.as_primitive_opt::<UInt32Type>()?.clone(), max.as_primitive_opt::<UInt32Type>()?.clone());
    (min.len() == partition.metadata.stripes() && max.len() == min.len()).then_some((min, max))
}

/// A partition's statistics as DataFusion asks for them.
struct Statistics<'a>(&'a Partition);

impl PruningStatistics for Statistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.0.metadata.stats.min(&column.name)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.0.metadata.stats.max(&column.name)
    }

    fn num_containers(&self) -> usize {
        self.0.metadata.stripes()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        Some(Arc::new(self.0.metadata.stats.nulls(&column.name)?))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        Some(Arc::new(self.0.metadata.stats.rows().clone()))
    }

    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
