//! A partition as a table that DataFusion can scan: as stored, as sparse rows with gene names, or as the dense view.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType, col, lit};
use datafusion::physical_plan::ExecutionPlan;
use skytether_common::{Error, Result};
use skytether_plan::error::to_datafusion;

use crate::dense::{self, Dense};
use crate::indexed;
use crate::prefilter::Prefilter;
use crate::prune;
use crate::reader::Partition;
use crate::scan::SliceScanExec;
use crate::scan_spec::{ScanSpec, Shape};
use crate::ticket::Ticket;

/// How a partition is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// As it is stored.
    Stored,
    /// A matrix's sparse rows, with the gene's name in front.
    Rows,
    /// A matrix as `(gene, cell, value)`.
    Dense,
}

/// The most genes that a condition on names becomes one on numbers for, which is evaluated before lists are decoded.
const MOST_NAMED: usize = 1_000;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct PartitionTable {
    ticket: Ticket,
    partition: Arc<Partition>,
    view: View,
    schema: SchemaRef,
}

impl PartitionTable {
    pub(crate) fn new(ticket: Ticket, partition: Arc<Partition>, view: View) -> Self {
        let schema = match view {
            View::Stored => Arc::clone(&partition.metadata.schema),
            View::Rows => {
                let mut fields = vec![Arc::new(Field::new("gene", DataType::Utf8View, false))];
                fields.extend(partition.metadata.schema.fields().iter().cloned());
                Arc::new(Schema::new(fields))
            }
            View::Dense => {
                let [gene, cell, value] = dense::COLUMNS;
                Arc::new(Schema::new(vec![
                    Field::new(gene, DataType::Utf8View, false),
                    Field::new(cell, DataType::Utf8View, false),
                    Field::new(value, DataType::Float64, false),
                ]))
            }
        };
        Self { ticket, partition, view, schema }
    }

    /// Names, read off the runtime's threads.
    async fn names(&self, which: fn(&Ticket, &Partition) -> Result<ArrayRef>) -> DfResult<ArrayRef> {
        let (ticket, partition) = (self.ticket.clone(), Arc::clone(&self.partition));
        let reader = Arc::clone(&ticket.reader);
        reader.blocking(move || which(&ticket, &partition)).await.map_err(to_datafusion)
    }

    async fn plan(&self, state: &dyn Session, projection: Vec<usize>, filters: &[Expr], limit: Option<usize>) -> DfResult<SliceScanExec> {
        let mut kept = match self.view {
            View::Dense => vec![true; self.partition.metadata.stripes()],
            View::Stored | View::Rows => prune::stripes(state, &self.partition, filters),
        };
        let mut keep_only = |column: &str, wanted: &[u32]| {
            for (kept, has) in kept.iter_mut().zip(prune::stripes_with(&self.partition, column, wanted)) {
                *kept &= has;
            }
        };
        let about = |column: &str| if self.view == View::Stored { Vec::new() } else { prune::only_about(filters, column) };
        let of_genes = about("gene");
        let genes =
            if self.view != View::Stored && (projection.contains(&0) || !of_genes.is_empty()) { Some(self.names(Ticket::gene_names).await?) } else { None };
        let mut wanted_genes = None;
        if let (Some(genes), false) = (&genes, of_genes.is_empty())
            && let Some(mask) = prune::matching(state, of_genes, "gene", genes)
        {
            let wanted = prune::positions(&mask);
            keep_only("gene_id", &wanted);
            wanted_genes = Some(Arc::new(wanted));
        }
        let shape = match self.view {
            View::Stored => Shape::Stored,
            View::Rows => Shape::Rows { genes },
            View::Dense => {
                let Some(span) = self.partition.metadata.layout.span() else {
                    return Err(to_datafusion(Error::internal(format!("{} is no matrix", self.partition.title()))));
                };
                let of_cells = about("cell");
                let cells = if projection.contains(&1) || !of_cells.is_empty() { Some(self.names(Ticket::cell_names).await?) } else { None };
                let mut wanted_cells = None;
                if let (Some(cells), false) = (&cells, of_cells.is_empty())
                    && let Some(mask) = prune::matching(state, of_cells, "cell", cells)
                {
                    let wanted = prune::positions(&mask);
                    let mut blocks: Vec<u32> = wanted.iter().filter_map(|cell| span.block_of(*cell)).collect();
                    blocks.dedup();
                    keep_only("block", &blocks);
                    wanted_cells = Some(Arc::new(wanted));
                }
                let zero: ArrayRef = Arc::new(Float64Array::from(vec![0.0]));
                let nonzero_only = prune::matching(state, about("value"), "value", &zero).is_some_and(|mask| mask.true_count() == 0);
                Shape::Dense(Arc::new(Dense {
                    span,
                    projection: projection.clone(),
                    genes,
                    cells,
                    wanted_genes: wanted_genes.clone(),
                    wanted_cells,
                    nonzero_only,
                }))
            }
        };
        let first = match self.view {
            View::Stored if limit.is_none() => Prefilter::new(state, &self.partition, filters, &projection),
            View::Rows if limit.is_none() => {
                // The names of genes come first in this view, and are not stored.
                let mut stored: Vec<usize> = projection.iter().filter_map(|column| column.checked_sub(1)).collect();
                let mut filters = filters.to_vec();
                if let (Some(wanted), Ok(gene_id)) = (wanted_genes.as_ref().filter(|wanted| wanted.len() <= MOST_NAMED), self.partition.column("gene_id")) {
                    filters.push(col("gene_id").in_list(wanted.iter().map(|&gene| lit(gene)).collect(), false));
                    stored.push(gene_id);
                }
                Prefilter::new(state, &self.partition, &filters, &stored)
            }
            _ => None,
        };
        let found = match (self.view, &self.ticket.indexes) {
            (View::Stored, Some(indexes)) => {
                let first = first.as_ref().map(|first| first.columns().len());
                indexed::search(indexes, &self.ticket.reader, &self.partition, filters, &kept, &projection, first).await
            }
            _ => None,
        };
        if let Some(found) = &found {
            for (n, kept) in (0u32..).zip(&mut kept) {
                *kept &= found.wants(n);
            }
        }
        let mut stripes: Vec<u32> = kept.iter().enumerate().filter(|(_, kept)| **kept).filter_map(|(n, _)| u32::try_from(n).ok()).collect();
        let pruned = kept.len() - stripes.len();
        // DataFusion gives a limit only where no filter stands between: then the first stripes
        // that hold enough rows do.
        if let (Some(limit), true, true) = (limit, filters.is_empty(), self.view != View::Dense) {
            let mut rows = 0u64;
            stripes.retain(|&n| {
                let wanted = rows < limit as u64;
                rows += self.partition.metadata.stripe_rows(n as usize).unwrap_or(0);
                wanted
            });
        }
        let schema = Arc::new(self.schema.project(&projection)?);
        let partitions = state.config().target_partitions();
        let reader = Arc::clone(&self.ticket.reader);
        let spec = ScanSpec::new(reader, Arc::clone(&self.partition), shape, projection, stripes, partitions, limit);
        Ok(SliceScanExec::new(spec.indexed(found).first(first), schema, pruned, limit))
    }
}

#[async_trait]
impl TableProvider for PartitionTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(&self, state: &dyn Session, projection: Option<&Vec<usize>>, filters: &[Expr], limit: Option<usize>) -> DfResult<Arc<dyn ExecutionPlan>> {
        let projection = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        Ok(Arc::new(self.plan(state, projection, filters, limit).await?))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DfResult<Vec<TableProviderFilterPushDown>> {
        // They prune; the rows are still to be filtered above.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }
}
