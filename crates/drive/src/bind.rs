//! The tables of a ticket as DataFusion looks them up, and nothing else.
//!
//! A sub-plan names tables `[domain, dataset, table]`. For each partition `t` of the ticket there is a table `t`; a matrix `m` is the dense view
//! under its own name and sparse rows under `m_rows` (a partition that really is called `m_rows` goes first). A plain table, `data`, is also
//! `[domain, dataset]`. What came beside the plan ([`crate::shipped`]) is a table of the data set as well, and no stored one has such a name.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::error::Result as DfResult;
use skytether_common::{Error, Result};
use skytether_plan::error::to_datafusion;
use skytether_slice::Layout;

use crate::reader::Ticket;
use crate::table::{PartitionTable, View, blocking};

/// What comes after a matrix's name for its sparse rows.
pub(crate) const ROWS: &str = "_rows";

/// The name of the catalog in which a plain table is `[domain, dataset]`; no domain can have it.
pub(crate) const PLAIN: &str = "";

/// Catalogs, schemas and tables of one ticket.
#[derive(Debug, Clone)]
pub(crate) struct Bound {
    ticket: Ticket,
    /// Whether this is the catalog [`PLAIN`] or below it.
    plain: bool,
}

impl Bound {
    pub(crate) fn new(ticket: Ticket) -> Self {
        Self { ticket, plain: false }
    }

    /// Table `name` of the ticket's data set.
    ///
    /// # Errors
    /// Invalid where the ticket does not name it; NotFound, Corrupt, Unavailable from the store.
    pub(crate) fn open(&self, name: &str) -> Result<PartitionTable> {
        let ticket = &self.ticket;
        if !ticket.partitions.contains_key(name)
            && let Some(matrix) = name.strip_suffix(ROWS)
            && let Some(partition) = ticket.matrix(matrix)?
        {
            return Ok(PartitionTable::new(ticket.clone(), partition, View::Rows));
        }
        let partition = ticket.open(name)?;
        let view = if matches!(partition.metadata.layout, Layout::Sparse { .. }) { View::Dense } else { View::Stored };
        Ok(PartitionTable::new(ticket.clone(), partition, view))
    }
}

impl CatalogProviderList for Bound {
    fn register_catalog(&self, _: String, _: Arc<dyn CatalogProvider>) -> Option<Arc<dyn CatalogProvider>> {
        // Nothing but the ticket decides what a sub-plan sees.
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        vec![self.ticket.dataset.domain().to_owned()]
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        let plain = name == PLAIN;
        (plain || name == self.ticket.dataset.domain()).then(|| Arc::new(Self { plain, ..self.clone() }) as _)
    }
}

impl CatalogProvider for Bound {
    fn schema_names(&self) -> Vec<String> {
        vec![self.ticket.dataset.dataset().to_owned()]
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let expected = if self.plain { self.ticket.dataset.domain() } else { self.ticket.dataset.dataset() };
        (name == expected).then(|| Arc::new(self.clone()) as _)
    }
}

#[async_trait]
impl SchemaProvider for Bound {
    fn table_names(&self) -> Vec<String> {
        self.ticket.partitions.keys().cloned().collect()
    }

    async fn table(&self, name: &str) -> DfResult<Option<Arc<dyn TableProvider>>> {
        let name = match self.plain {
            true if name == self.ticket.dataset.dataset() => "data".to_owned(),
            true => return Ok(None),
            false => name.to_owned(),
        };
        if let Some(table) = self.ticket.shipped.table(&name) {
            return Ok(Some(table));
        }
        let bound = self.clone();
        let table = blocking(move || bound.open(&name)).await.map_err(to_datafusion)?;
        Ok(Some(Arc::new(table)))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.ticket.shipped.table(name).is_some()
            || self.ticket.partitions.contains_key(name)
            || name.strip_suffix(ROWS).is_some_and(|matrix| self.ticket.partitions.contains_key(matrix))
    }
}

/// Checks that a ticket's parts agree with each other.
///
/// # Errors
/// Invalid, naming what does not.
pub(crate) fn check(plan: &skytether_wire::SubPlan) -> Result<()> {
    /// Far more than any data set has tables.
    const MAX_PARTITIONS: usize = 4096;
    if plan.plan.is_empty() {
        return Err(Error::invalid("the sub-plan is empty"));
    }
    if plan.bytes() > skytether_wire::flight::frames::MAX_PLAN {
        return Err(Error::invalid(format!("a sub-plan of {} bytes is too long: at most {}", plan.bytes(), skytether_wire::flight::frames::MAX_PLAN)));
    }
    if plan.partitions.len() > MAX_PARTITIONS {
        return Err(Error::invalid(format!("a ticket with {} partitions names too many: at most {MAX_PARTITIONS}", plan.partitions.len())));
    }
    for (table, partition) in &plan.partitions {
        if partition.dataset != plan.dataset {
            return Err(Error::invalid(format!("the ticket is for {}, but names a partition of {}", plan.dataset, partition.dataset)));
        }
        if partition.table != *table {
            return Err(Error::invalid(format!("the ticket calls a partition of table {:?} {table:?}", partition.table)));
        }
    }
    Ok(())
}
