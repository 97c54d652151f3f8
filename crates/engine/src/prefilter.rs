//! Late materialisation: a scan decodes the columns of conditions first, and of the other columns only rows that match.
//!
//! The bytes have been read already. Decoding and copying unwanted rows is saved: a slow processor spends most of its
//! time on that in a slice with few hits. The filter above still runs. Where many rows pass, decoding the conditions'
//! columns twice costs more than it saves, so the scan only tries it now and then.
//!
//! A matrix's lists can't be skipped without unpacking them, but those behind the last row that matches can. So a range
//! of its rows is decoded, from the first that matches to the last.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{Array, AsArray};
use arrow::datatypes::DataType;
use datafusion::catalog::Session;
use datafusion::common::DFSchema;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::physical_plan::PhysicalExpr;
use skytether_common::Result;
use skytether_slice::Layout;

use crate::reader::{Part, Partition, Reader};

/// At most one of this many rows of a slice may pass.
pub(crate) const FEW: u64 = 8;

/// Slices of fewer rows are decoded as quickly as they are looked into.
pub(crate) const LEAST: u64 = 8192;

/// At most one of this many rows of a matrix's slice may be in the range. Its lists are nearly all of the work, and
/// looking at the numbers of genes costs almost nothing.
const FEW_OF_MATRIX: u64 = 2;

/// Slices that are decoded without a try after one in which more rows passed.
const PAUSE: u32 = 15;

/// Conditions on columns that are quick to decode.
pub(crate) struct Prefilter {
    /// The stored columns that they need, ascending.
    columns: Vec<usize>,
    condition: Arc<dyn PhysicalExpr>,
    /// Whether rows are those of a matrix.
    sparse: bool,
    /// Slices until it is tried again.
    pause: AtomicU32,
}

impl fmt::Debug for Prefilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefilter({})", self.condition)
    }
}

impl Prefilter {
    /// From the parts of `filters` over numbers, times and booleans. `None` if there are none, if they need all of the
    /// stored columns `wanted`, and for wide tables.
    pub(crate) fn new(state: &dyn Session, partition: &Partition, filters: &[Expr], wanted: &[usize]) -> Option<Self> {
        let schema = &partition.metadata.schema;
        if partition.metadata.groups.len() > 1 {
            return None;
        }
        let quick = |name: &str| schema.field_with_name(name).is_ok_and(|field| field.data_type().is_primitive() || *field.data_type() == DataType::Boolean);
        let parts = filters.iter().flat_map(split_conjunction).filter(|part| !part.is_volatile());
        let parts = parts.filter(|part| !part.column_refs().is_empty() && part.column_refs().iter().all(|column| quick(&column.name)));
        let condition = conjunction(parts.cloned().collect::<Vec<_>>())?;
        let columns: BTreeSet<usize> = condition.column_refs().into_iter().filter_map(|column| schema.index_of(&column.name).ok()).collect();
        let sparse = partition.metadata.layout != Layout::Table;
        // Of a matrix only lists take long.
        if sparse && !wanted.iter().any(|&column| schema.fields().get(column).is_some_and(|field| matches!(field.data_type(), DataType::List(_)))) {
            return None;
        }
        if wanted.iter().all(|column| columns.contains(column)) || !columns.iter().all(|column| wanted.contains(column)) {
            return None;
        }
        let columns: Vec<usize> = columns.into_iter().collect();
        let read = Arc::new(schema.project(&columns).ok()?);
        let condition = state.create_physical_expr(condition, &DFSchema::try_from(read).ok()?).ok()?;
        Some(Self { columns, condition, sparse, pause: AtomicU32::new(0) })
    }

    /// The stored columns that are decoded first.
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The rows of a slice that pass, where they are few; `None` where it is as well to decode all. Of a matrix's slice
    /// all rows from the first that passes to the last.
    ///
    /// # Errors
    /// As decoding.
    pub(crate) fn rows(&self, partition: &Arc<Partition>, part: &Part, batch_rows: usize) -> Result<Option<Arc<[u32]>>> {
        if part.is_narrowed()
            || (!self.sparse && partition.metadata.stripe_rows(part.number() as usize).unwrap_or(0) < LEAST)
            || self.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
        {
            return Ok(None);
        }
        // Batches of a matrix have few rows, for the sake of the lists.
        let batch_rows = if self.sparse { batch_rows.max(LEAST as usize) } else { batch_rows };
        let (mut rows, mut seen) = (Vec::new(), 0u64);
        for batch in Reader::decode(partition, part.with_columns(self.columns.clone()), batch_rows)? {
            let batch = batch?;
            let answer = self.condition.evaluate(&batch).and_then(|answer| answer.into_array(batch.num_rows()));
            // If the condition fails here, it fails above as well, and the error is reported there.
            let Some(answer) = answer.ok().and_then(|answer| answer.as_boolean_opt().cloned()) else { return Ok(None) };
            let passed = match answer.nulls() {
                Some(nulls) => answer.values() & nulls.inner(),
                None => answer.values().clone(),
            };
            rows.extend(passed.set_indices_u32().map(|row| seen as u32 + row));
            seen += batch.num_rows() as u64;
        }
        if self.sparse {
            rows = rows.first().zip(rows.last()).map_or_else(Vec::new, |(&first, &last)| (first..=last).collect());
        }
        if rows.len() as u64 * if self.sparse { FEW_OF_MATRIX } else { FEW } > seen {
            self.pause.store(PAUSE, Ordering::Relaxed);
            return Ok(None);
        }
        Ok(Some(rows.into()))
    }
}
