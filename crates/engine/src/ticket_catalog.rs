//! The tables of a ticket as DataFusion looks them up, and nothing else.
//!
//! A sub-plan names tables `[domain, dataset, table]`. For each partition `t` of the ticket there is a table `t`. A
//! matrix `m` is the dense view under its own name, and sparse rows under `m_rows` (a partition that really is called
//! `m_rows` goes first). A plain table, `data`, is also `[domain, dataset]`.
//!
//! A ticket may name partitions of several data sets, whose tables the sub-plan joins; each is bound by itself. A
//! broadcast table ([`crate::broadcast`]) is a table of the data set as well, and no stored table has such a name.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::common::TableReference;
use datafusion::error::Result as DfResult;
use skytether_common::Result;
use skytether_plan::error::to_datafusion;
use skytether_slice::Layout;

use crate::table::{PartitionTable, View};
use crate::ticket::Ticket;

/// What comes after a matrix's name for its sparse rows.
pub(crate) const ROWS: &str = "_rows";

/// The name of the catalog in which a plain table is `[domain, dataset]`; no domain can have it.
pub(crate) const PLAIN: &str = "";

/// What a plain table is called in its data set.
const DATA: &str = "data";

/// The data sets of one sub-plan, as catalogs.
#[derive(Debug, Clone)]
pub(crate) struct TicketCatalog(Arc<[Ticket]>);

impl TicketCatalog {
    /// The catalog of tickets for different data sets.
    pub(crate) fn new(tickets: Arc<[Ticket]>) -> Self {
        Self(tickets)
    }

    /// The data set that a sub-plan means by `table`, and the table's name in it. `None` for a broadcast table and for
    /// a name without a data set.
    pub(crate) fn stored<'a>(&'a self, table: &'a TableReference) -> Option<(&'a Ticket, &'a str)> {
        let (domain, dataset, name) = match table {
            TableReference::Full { catalog, schema, table } => (&**catalog, &**schema, &**table),
            TableReference::Partial { schema, table } => (&**schema, &**table, DATA),
            TableReference::Bare { .. } => return None,
        };
        let ticket = self.0.iter().find(|t| t.dataset.domain() == domain && t.dataset.dataset() == dataset)?;
        ticket.broadcast.table(name).is_none().then_some((ticket, name))
    }
}

impl CatalogProviderList for TicketCatalog {
    fn register_catalog(&self, _: String, _: Arc<dyn CatalogProvider>) -> Option<Arc<dyn CatalogProvider>> {
        // Nothing but the ticket decides what a sub-plan sees.
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        self.0.iter().map(|t| t.dataset.domain().to_owned()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        let tickets: Arc<[Ticket]> = match name {
            PLAIN => Arc::clone(&self.0),
            domain => self.0.iter().filter(|t| t.dataset.domain() == domain).cloned().collect(),
        };
        (!tickets.is_empty()).then(|| Arc::new(Domain { tickets, plain: name == PLAIN }) as _)
    }
}

/// The data sets of one domain, as schemas; or, in the catalog [`PLAIN`], the domains.
#[derive(Debug)]
struct Domain {
    tickets: Arc<[Ticket]>,
    plain: bool,
}

impl CatalogProvider for Domain {
    fn schema_names(&self) -> Vec<String> {
        let name = |t: &Ticket| if self.plain { t.dataset.domain().to_owned() } else { t.dataset.dataset().to_owned() };
        self.tickets.iter().map(name).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        if self.plain {
            let tickets: Vec<_> = self.tickets.iter().filter(|t| t.dataset.domain() == name).cloned().collect();
            return (!tickets.is_empty()).then(|| Arc::new(PlainTables(tickets)) as _);
        }
        let ticket = self.tickets.iter().find(|t| t.dataset.dataset() == name)?;
        Some(Arc::new(Tables(ticket.clone())))
    }
}

/// The plain tables of one domain, which are called as their data sets.
#[derive(Debug)]
struct PlainTables(Vec<Ticket>);

#[async_trait]
impl SchemaProvider for PlainTables {
    fn table_names(&self) -> Vec<String> {
        self.0.iter().map(|t| t.dataset.dataset().to_owned()).collect()
    }

    async fn table(&self, name: &str) -> DfResult<Option<Arc<dyn TableProvider>>> {
        match self.0.iter().find(|t| t.dataset.dataset() == name) {
            Some(ticket) => Tables(ticket.clone()).table(DATA).await,
            None => Ok(None),
        }
    }

    fn table_exist(&self, name: &str) -> bool {
        self.0.iter().any(|t| t.dataset.dataset() == name && t.partitions.contains_key(DATA))
    }
}

/// The tables of one data set.
#[derive(Debug, Clone)]
struct Tables(Ticket);

impl Tables {
    /// Table `name` of the ticket's data set.
    ///
    /// # Errors
    /// Invalid where the ticket does not name it; NotFound, Corrupt, Unavailable from the store.
    fn open(&self, name: &str) -> Result<PartitionTable> {
        let ticket = &self.0;
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

#[async_trait]
impl SchemaProvider for Tables {
    fn table_names(&self) -> Vec<String> {
        self.0.partitions.keys().cloned().collect()
    }

    async fn table(&self, name: &str) -> DfResult<Option<Arc<dyn TableProvider>>> {
        if let Some(table) = self.0.broadcast.table(name) {
            return Ok(Some(table));
        }
        let (tables, name) = (self.clone(), name.to_owned());
        let reader = Arc::clone(&self.0.reader);
        let table = reader.blocking(move || tables.open(&name)).await.map_err(to_datafusion)?;
        Ok(Some(Arc::new(table)))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.0.broadcast.table(name).is_some()
            || self.0.partitions.contains_key(name)
            || name.strip_suffix(ROWS).is_some_and(|matrix| self.0.partitions.contains_key(matrix))
    }
}
