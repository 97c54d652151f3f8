//! A sub-plan's ticket: the partitions that it may read, and the readers that open them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use skytether_common::{Blocks, DatasetName, Error, PartitionName, Result};
use skytether_slice::Layout;

use crate::broadcast::BroadcastTables;
use crate::indexed::IndexLookup;
use crate::reader::{Partition, Reader};

/// The partitions of one data set that a sub-plan may see, with what reads them.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) reader: Arc<Reader>,
    /// The indexes of the drive, where it has any.
    pub(crate) indexes: Option<Arc<IndexLookup>>,
    pub(crate) dataset: DatasetName,
    pub(crate) partitions: Arc<BTreeMap<String, PartitionName>>,
    pub(crate) broadcast: BroadcastTables,
}

impl Ticket {
    /// The partition of table `table`, opened.
    ///
    /// # Errors
    /// Invalid where the ticket does not name it; as [`Reader::partition`].
    pub(crate) fn open(&self, table: &str) -> Result<Arc<Partition>> {
        let name = self.partitions.get(table).ok_or_else(|| {
            let named: Vec<&str> = self.partitions.keys().map(String::as_str).collect();
            Error::invalid(format!("the sub-plan needs table {table:?} of {}, which its ticket does not name; it names {}", self.dataset, named.join(", ")))
        })?;
        self.reader.partition(name)
    }

    /// Whether `table` is named, and a matrix.
    ///
    /// # Errors
    /// As [`Ticket::open`].
    pub(crate) fn matrix(&self, table: &str) -> Result<Option<Arc<Partition>>> {
        if !self.partitions.contains_key(table) {
            return Ok(None);
        }
        let partition = self.open(table)?;
        Ok(matches!(partition.metadata.layout, Layout::Sparse { .. }).then_some(partition))
    }

    /// The blocks of the matrix that the ticket names, or of the one part of it that it names. `None` without a matrix.
    ///
    /// # Errors
    /// As [`Ticket::open`].
    pub(crate) fn blocks(&self) -> Result<Option<Blocks>> {
        let of_cells_or_genes = |table: &str| matches!(table, "obs" | "cells" | "var" | "raw_var") || table.starts_with("var_");
        for table in self.partitions.keys().filter(|table| !of_cells_or_genes(table)) {
            if let Some(span) = self.open(table)?.metadata.layout.span() {
                return Blocks::new(vec![span]).map(Some);
            }
        }
        Ok(None)
    }

    /// The table with the names of a matrix's genes: `raw_var` for `raw_x` and `raw_layer_<name>`, `var_<name>` for
    /// `features_<name>`, whose features are others.
    pub(crate) fn genes_of(matrix: &str) -> Cow<'static, str> {
        match matrix.strip_prefix("features_") {
            Some(name) => format!("var_{name}").into(),
            None if matrix.starts_with("raw_") => "raw_var".into(),
            None => "var".into(),
        }
    }

    /// One name per gene of `matrix`.
    ///
    /// # Errors
    /// As [`Ticket::open`]; Corrupt where genes and names do not fit together.
    pub(crate) fn gene_names(&self, matrix: &Partition) -> Result<ArrayRef> {
        let Layout::Sparse { n_genes, .. } = matrix.metadata.layout else {
            return Err(Error::internal(format!("{} is no matrix", matrix.title())));
        };
        self.names(matrix, &Self::genes_of(matrix.name.whole()), "gene", |names| names == n_genes as usize, n_genes)
    }

    /// The names of all cells: one per cell of `matrix`, and those of cells in its later parts.
    ///
    /// # Errors
    /// As [`Ticket::gene_names`].
    pub(crate) fn cell_names(&self, matrix: &Partition) -> Result<ArrayRef> {
        let Layout::Sparse { n_cells, .. } = matrix.metadata.layout else {
            return Err(Error::internal(format!("{} is no matrix", matrix.title())));
        };
        self.names(matrix, "obs", "cell", |names| names >= n_cells as usize, n_cells)
    }

    fn names(&self, matrix: &Partition, table: &str, column: &str, fit: impl Fn(usize) -> bool, expected: u32) -> Result<ArrayRef> {
        let partition = self.open(table)?;
        let names = self.reader.column(&partition, column)?;
        if !fit(names.len()) {
            return Err(Error::corrupt(format!("{} has {} rows, the matrix {} has {expected} of them", partition.title(), names.len(), matrix.title())));
        }
        arrow::compute::cast(&names, &arrow::datatypes::DataType::Utf8View)
            .map_err(|e| Error::corrupt(format!("column {column:?} of {} holds no names", partition.title())).with_source(e))
    }
}

/// The tables that a sub-plan over the rows of `matrix` reads besides, whole: the cells with their labels and totals,
/// and the names of genes. A sub-plan over another table reads nothing but that.
#[must_use]
pub fn tables_beside(matrix: &str) -> [Cow<'static, str>; 3] {
    ["obs".into(), "cells".into(), Ticket::genes_of(matrix)]
}

/// Checks that a ticket's parts agree with each other.
///
/// # Errors
/// Invalid, naming what does not.
pub(crate) fn check(plan: &skytether_device::SubPlan) -> Result<()> {
    /// Far more than any data set has tables.
    const MAX_PARTITIONS: usize = 4096;
    /// More than a sub-plan has room to join.
    const MAX_DATASETS: usize = 16;
    if plan.program.substrait()?.is_empty() {
        return Err(Error::invalid("the sub-plan is empty"));
    }
    if plan.bytes() > skytether_device::subplan::MAX_PLAN {
        return Err(Error::invalid(format!("a sub-plan of {} bytes is too long: at most {}", plan.bytes(), skytether_device::subplan::MAX_PLAN)));
    }
    if plan.with.len() >= MAX_DATASETS || plan.with.contains_key(&plan.dataset) {
        return Err(Error::invalid(format!("a ticket names each data set once, and at most {MAX_DATASETS} of them")));
    }
    let partitions = plan.datasets().map(|(_, partitions)| partitions.len()).sum::<usize>();
    if partitions > MAX_PARTITIONS {
        return Err(Error::invalid(format!("a ticket with {partitions} partitions names too many: at most {MAX_PARTITIONS}")));
    }
    for (dataset, partitions) in plan.datasets() {
        for (table, partition) in partitions {
            if partition.dataset != *dataset {
                return Err(Error::invalid(format!("the ticket is for {dataset}, but names a partition of {}", partition.dataset)));
            }
            if partition.table != *table && partition.whole() != *table {
                return Err(Error::invalid(format!("the ticket calls a partition of table {:?} {table:?}", partition.table)));
            }
        }
    }
    Ok(())
}
