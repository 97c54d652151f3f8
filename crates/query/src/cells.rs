//! Data about cells for grouped moments that run on the host itself (`cut="raw"` and `"filter"`, or a plan that does
//! not split): obs columns and totals, fetched before the query begins.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array};
use arrow::compute::concat;
use arrow::datatypes::Float32Type;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::scalar::ScalarValue;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Blocks, DatasetName, Detail, Error, Result};
use skytether_expression::cell_sums::{CELL_SUMS, CellSumsSpec};
use skytether_expression::clipped_moments::{CLIPPED_MOMENTS, ClippedSpec};
use skytether_expression::rank_sums::{RANK_SUMS, RankSumsSpec};
use skytether_expression::{CellSource, Groups, MomentsSpec};

use crate::tables::{read_metadata, unread};
use skytether_catalog::records::root::RootRecord;
use skytether_catalog::root_store::Catalog;
use skytether_exec::profile::Collector;

/// Columns of one data set's tables about cells, by table and column.
#[derive(Debug, Default)]
struct Known {
    columns: HashMap<(&'static str, String), ArrayRef>,
    /// The blocks of matrices.
    blocks: HashMap<String, Blocks>,
    n_cells: u32,
}

/// A [`CellSource`] over data that was fetched before.
#[derive(Debug, Default)]
pub(crate) struct HostCells {
    known: Mutex<HashMap<DatasetName, Known>>,
}

/// The aggregates that ask a [`CellSource`] for what their spec names. Merging does not: states carry all that it
/// needs, so that what a query moves does not grow with the number of cells.
const ASKING: [&str; 8] =
    ["moments", "__moments_state", "rank_sums", "__rank_sums_state", CELL_SUMS, "__cell_sums_state", CLIPPED_MOMENTS, "__clipped_moments_state"];

/// What the aggregates that `plan` keeps on the host will ask for. Sub-plans are leaves, so what went down is not seen.
pub(crate) fn needs(plan: &LogicalPlan) -> Result<HashSet<MomentsSpec>> {
    let mut specs = HashSet::new();
    let mut failed = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|e| {
            e.apply(|e| {
                if let Expr::AggregateFunction(call) = e
                    && ASKING.contains(&call.func.name())
                {
                    // The spec is the last argument of each form.
                    if let Some(Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)) | ScalarValue::LargeUtf8(Some(text)), _)) =
                        call.params.args.last()
                    {
                        let spec = match call.func.name() {
                            name if name.contains(RANK_SUMS) => RankSumsSpec::from_literal(text).map(|spec| spec.of),
                            name if name.contains(CELL_SUMS) => CellSumsSpec::from_literal(text).map(|spec| spec.of),
                            name if name.contains(CLIPPED_MOMENTS) => ClippedSpec::from_literal(text).map(|spec| spec.of),
                            _ => MomentsSpec::from_literal(text),
                        };
                        match spec {
                            Ok(spec) => drop(specs.insert(spec)),
                            Err(e) => failed = Some(e),
                        }
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })
    .map_err(skytether_plan::error::from_datafusion)?;
    match failed {
        Some(e) => Err(e),
        None => Ok(specs),
    }
}

impl HostCells {
    /// Fetches what `spec` needs of `record`'s data set.
    pub(crate) async fn fetch(&self, spec: &MomentsSpec, record: &RootRecord, catalog: &Catalog, collector: &Collector) -> Result<()> {
        if let Groups::Obs { column } = &spec.groups {
            self.fetch_column("obs", column, record, catalog, collector).await?;
        }
        if spec.asks_for_totals() {
            self.fetch_column("cells", &format!("total_{}", spec.matrix), record, catalog, collector).await?;
        }
        let blocks = record.blocks(&spec.matrix)?.ok_or_else(|| Error::invalid(format!("{} of {} is no matrix", spec.matrix, record.name)))?;
        let mut known = self.lock();
        let known = known.entry(record.name.clone()).or_default();
        known.n_cells = blocks.parts().last().map_or(0, |part| part.end);
        known.blocks.insert(spec.matrix.clone(), blocks);
        Ok(())
    }

    async fn fetch_column(&self, table: &'static str, column: &str, record: &RootRecord, catalog: &Catalog, collector: &Collector) -> Result<()> {
        let wanted = (table, column.to_owned());
        if self.lock().get(&record.name).is_some_and(|k| k.columns.contains_key(&wanted)) {
            return Ok(());
        }
        let partitions = &record.table(table)?.partitions;
        let ids: Vec<_> = partitions.iter().map(|p| p.drive).collect();
        let Some(partition) = partitions.get(catalog.choose(&record.name, table, &ids)) else {
            return Err(Error::corrupt(format!("the root record of {} names no partition of {table}", record.name)));
        };
        let name = record.partition(table, partition.slot);
        let metadata = read_metadata(record, table, partition.drive, &name.key()?, catalog, collector).await?;
        let Ok(at) = metadata.schema.index_of(column) else {
            let columns: Vec<_> = metadata.schema.fields().iter().map(|f| f.name().as_str()).collect();
            let text = format!("{table} of {} has no column {column:?}; it has {}", record.name, columns.join(", "));
            return Err(Error::not_found(text).with_detail(Detail::MissingColumn { column: column.to_owned() }));
        };
        // Stripes in their order: rows of obs and cells are cells by number.
        let (group, place) = metadata.groups.place(at);
        let schema = metadata.groups.schema(&metadata.schema, group);
        let drive = &catalog.drives()[catalog.drive(&partition.drive, &record.name)?];
        let mut parts = Vec::new();
        for stripe in 0..metadata.stripes() {
            let n = u32::try_from(metadata.slice_of(stripe, group)).map_err(|_| Error::corrupt(format!("{table} of {} has too many slices", record.name)))?;
            let key = name.slice_key(n)?;
            let bytes = match skytether_runtime::within(catalog.deadline(), &drive.info().name, "read a slice", drive.get(&key)).await {
                Ok(bytes) => bytes,
                Err(e) => return Err(unread(catalog, &name, &drive.info().name, e).await),
            };
            collector.metadata(bytes.len() as u64);
            for batch in skytether_slice::decode(bytes, &metadata.layout, &schema, &[place], 1 << 16)? {
                parts.push(Arc::clone(batch?.column(0)));
            }
        }
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        let array = if parts.is_empty() {
            arrow::array::new_empty_array(metadata.schema.field(at).data_type())
        } else {
            concat(&parts).map_err(|e| Error::internal(format!("cannot put {table} of {} together", record.name)).with_source(e))?
        };
        self.lock().entry(record.name.clone()).or_default().columns.insert(wanted, array);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<DatasetName, Known>> {
        self.known.lock()
    }

    fn column(&self, dataset: &DatasetName, table: &'static str, column: &str) -> Result<ArrayRef> {
        self.lock().get(dataset).and_then(|k| k.columns.get(&(table, column.to_owned())).cloned()).ok_or_else(|| {
            Error::unsupported(format!("{column:?} of {dataset} ({table}) is not known to the host in the middle of a query: run it with cut=\"full\""))
        })
    }
}

impl CellSource for HostCells {
    fn n_cells(&self, dataset: &DatasetName) -> Result<u32> {
        self.lock().get(dataset).map(|k| k.n_cells).ok_or_else(|| Error::not_found(format!("{dataset} is not among the data sets of this query")))
    }

    fn blocks(&self, dataset: &DatasetName, matrix: &str) -> Result<Blocks> {
        let known = self.lock().get(dataset).and_then(|k| k.blocks.get(matrix).cloned());
        known.ok_or_else(|| Error::not_found(format!("{matrix} of {dataset} is not among the matrices of this query")))
    }

    fn obs_column(&self, dataset: &DatasetName, column: &str) -> Result<ArrayRef> {
        self.column(dataset, "obs", column)
    }

    fn cell_names(&self, dataset: &DatasetName) -> Result<ArrayRef> {
        self.column(dataset, "obs", "cell")
    }

    fn totals(&self, dataset: &DatasetName, matrix: &str) -> Result<Arc<Float32Array>> {
        let column = self.column(dataset, "cells", &format!("total_{matrix}"))?;
        column
            .as_primitive_opt::<Float32Type>()
            .map(|totals| Arc::new(totals.clone()))
            .ok_or_else(|| Error::corrupt(format!("the totals of {matrix} in {dataset} are {} instead of Float32", column.data_type())))
    }
}
