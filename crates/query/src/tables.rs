//! Resolves the tables that a query names: from a reference in the text to a root record, a schema and a placement.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList, MemorySchemaProvider, SchemaProvider, Session, TableProvider,
};
use datafusion::common::TableReference;
use datafusion::datasource::provider_as_source;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, TableSource, TableType};
use datafusion::physical_plan::ExecutionPlan;
use quick_cache::sync::Cache;
use skytether_common::names::part_table;
use skytether_common::{DatasetName, Error, Key, Kind, PartitionName, Result};
use skytether_plan::error::to_datafusion;
use skytether_plan::{Partitioning, Tables};
use skytether_slice::Metadata;

use crate::information_schema;
use crate::mentioned_columns::NamedColumns;
use skytether_catalog::missing;
use skytether_catalog::records::root::{RootRecord, TableRecord};
use skytether_catalog::root_store::Catalog;
use skytether_catalog::table_view::{View, choose};
use skytether_exec::column_stats::KnownTable;
use skytether_exec::estimate::Estimated;
use skytether_exec::profile::Collector;

/// The catalog of references that name only `domain.dataset`; no domain can be called so.
pub(crate) const PLAIN: &str = "@";

/// Schemas that are remembered; a partition's schema never changes.
const MAX_SCHEMAS: usize = 4096;

/// Slices of a partition whose statistics are quickly read.
const TELLING: u32 = 64;

/// A table that a query names.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) record: Arc<RootRecord>,
    /// The table's name in the root record.
    pub(crate) stored: String,
    /// The name to which a ticket binds its partitions: the same, but for a part of a matrix the name of the matrix.
    pub(crate) bound: String,
    /// How a query names its parts, for a matrix of several: the rows of the table are those of all parts.
    pub(crate) parts: Vec<TableReference>,
    /// Whether it is one of these.
    is_part: bool,
    /// The table's name in SQL; what drives know it by.
    pub(crate) shown: String,
    pub(crate) view: View,
    pub(crate) schema: SchemaRef,
    /// Statistics of its columns; none for views of matrices.
    known: Arc<KnownTable>,
}

impl Named {
    /// The table's record.
    pub(crate) fn table(&self) -> Result<&TableRecord> {
        self.record.table(&self.stored)
    }

    /// The rows that the table shows.
    pub(crate) fn rows(&self) -> Result<u64> {
        let table = self.table()?;
        let all = !self.parts.is_empty();
        let (matrix, rows) = if all { (self.record.matrix(&self.stored), self.record.rows_of(&self.stored)) } else { (table.matrix, table.rows) };
        Ok(match (self.view, matrix) {
            (View::Dense, Some(matrix)) => {
                let first = table.part.map_or(0, |part| part.first_cell);
                u64::from(matrix.genes) * u64::from(matrix.cells.saturating_sub(first))
            }
            _ => rows,
        })
    }

    /// The figures for estimates of rows over it.
    pub(crate) fn estimated(&self) -> Result<Estimated> {
        Ok(Estimated { rows: self.rows()?, known: Arc::clone(&self.known) })
    }

    /// The table for a plan.
    pub(crate) fn source(&self) -> Arc<dyn TableSource> {
        provider_as_source(self.provider())
    }

    /// The same with the columns of `schema` only.
    pub(crate) fn source_of(&self, schema: &SchemaRef) -> Arc<dyn TableSource> {
        provider_as_source(self.showing(schema))
    }

    fn provider(&self) -> Arc<dyn TableProvider> {
        self.showing(&self.schema)
    }

    /// The table with the columns of `schema` only.
    fn showing(&self, schema: &SchemaRef) -> Arc<dyn TableProvider> {
        Arc::new(Provider { schema: Arc::clone(schema), table: self.at_drives().to_string() })
    }

    /// The name by which drives know the table.
    pub(crate) fn at_drives(&self) -> TableReference {
        TableReference::full(self.record.name.domain(), self.record.name.dataset(), self.shown.as_str())
    }
}

/// All tables of one query.
#[derive(Debug, Default)]
pub(crate) struct NamedTables {
    by_reference: HashMap<TableReference, Arc<Named>>,
    records: HashMap<DatasetName, Arc<RootRecord>>,
    /// Tables about the fleet itself, which the host has.
    about: HashMap<TableReference, Arc<dyn TableProvider>>,
}

impl Tables for NamedTables {
    fn partitioning(&self, table: &TableReference) -> Option<Partitioning> {
        let named = self.by_reference.get(table)?;
        let table = named.table().ok()?;
        Some(Partitioning::new(table.placement).stored_as(named.at_drives()).by_key(table.by_key().filter(|_| named.view == View::Stored)))
    }

    fn rows(&self, table: &TableReference) -> Option<u64> {
        self.by_reference.get(table)?.rows().ok()
    }

    fn bytes(&self, table: &TableReference) -> Option<u64> {
        let named = self.by_reference.get(table)?;
        named.table().ok()?.memory_bytes.filter(|_| named.view == View::Stored)
    }
}

impl NamedTables {
    /// The table that a scan of `reference` reads.
    pub(crate) fn get(&self, reference: &TableReference) -> Option<&Arc<Named>> {
        self.by_reference.get(reference)
    }

    /// The record of a data set, if the query names it.
    pub(crate) fn record(&self, name: &DatasetName) -> Option<&Arc<RootRecord>> {
        self.records.get(name)
    }

    /// Finds what `references` name. References of one part that are not among `names` name no data set and are left to
    /// the SQL planner (`WITH`, functions).
    pub(crate) async fn resolve(
        references: Vec<TableReference>,
        names: &BTreeMap<String, DatasetName>,
        catalog: &Catalog,
        schemas: &SchemaCache,
        collector: &Collector,
    ) -> Result<Self> {
        let mut tables = Self::default();
        for reference in references {
            if let Some((asked, domain)) = information_schema::Asked::of(&reference) {
                let table = information_schema::table(asked, domain, catalog, schemas, collector).await?;
                tables.about.insert(reference, table);
                continue;
            }
            let (name, shown) = match &reference {
                TableReference::Bare { table } => match names.get(&**table) {
                    Some(name) => (name.clone(), None),
                    None => continue,
                },
                TableReference::Partial { schema, table } => (DatasetName::new(&**schema, &**table)?, None),
                TableReference::Full { catalog, schema, table } => (DatasetName::new(&**catalog, &**schema)?, Some(table.to_string())),
            };
            tables.add(reference, name, shown, catalog, schemas, collector).await?;
        }
        Ok(tables)
    }

    pub(crate) async fn add(
        &mut self,
        reference: TableReference,
        name: DatasetName,
        shown: Option<String>,
        catalog: &Catalog,
        schemas: &SchemaCache,
        collector: &Collector,
    ) -> Result<()> {
        let record = match self.records.get(&name) {
            Some(record) => Arc::clone(record),
            None => {
                let (record, bytes) = catalog.read_cached(&name).await?;
                collector.metadata(bytes);
                collector.stored(record.bytes());
                self.records.insert(name.clone(), Arc::clone(&record));
                record
            }
        };
        let (stored, shown, view) = choose(&record, shown)?;
        let (schema, known) = schemas.get(&record, &stored, view, catalog, collector).await?;
        let whole = Named { record, bound: stored.clone(), stored, parts: Vec::new(), is_part: false, shown, view, schema, known };
        let parts = self.add_parts(&whole);
        self.by_reference.insert(reference, Arc::new(Named { parts, ..whole }));
        Ok(())
    }

    /// Adds the parts of a matrix that has several; what they are called here, which no query can write.
    fn add_parts(&mut self, whole: &Named) -> Vec<TableReference> {
        let parts = whole.record.parts(&whole.stored);
        if parts.len() < 2 {
            return Vec::new();
        }
        let named = parts.into_iter().enumerate().map(|(number, stored)| {
            let reference = TableReference::full(whole.record.name.domain(), whole.record.name.dataset(), part_table(number, &whole.shown));
            self.by_reference.insert(reference.clone(), Arc::new(Named { stored, is_part: true, ..whole.clone() }));
            reference
        });
        named.collect()
    }

    /// Whether a table is a matrix of several parts.
    pub(crate) fn has_parts(&self) -> bool {
        self.by_reference.values().any(|named| !named.parts.is_empty())
    }

    /// The same tables, and for each dense view of a matrix the view of its sparse rows.
    pub(crate) async fn with_rows(&self, catalog: &Catalog, schemas: &SchemaCache, collector: &Collector) -> Result<Self> {
        let mut all = Self { by_reference: self.by_reference.clone(), records: self.records.clone(), about: self.about.clone() };
        for named in self.by_reference.values().filter(|n| n.view == View::Dense && !n.is_part) {
            let rows = rows_of(named);
            all.add(rows.clone(), named.record.name.clone(), Some(rows.table().to_owned()), catalog, schemas, collector).await?;
        }
        Ok(all)
    }

    /// Whether the schema of any table is such a one.
    pub(crate) fn any_schema(&self, such: impl Fn(&SchemaRef) -> bool) -> bool {
        self.by_reference.values().any(|named| such(&named.schema))
    }

    /// The tables as DataFusion looks them up.
    pub(crate) fn catalog_list(&self) -> Result<Arc<dyn CatalogProviderList>> {
        self.listed(|named, _| named.provider())
    }

    /// The same, wide tables with none but the `columns` that are named; `None` where that hides nothing.
    pub(crate) fn catalog_list_of(&self, columns: &NamedColumns) -> Result<Option<Arc<dyn CatalogProviderList>>> {
        let few: HashMap<_, _> = self.by_reference.iter().filter_map(|(r, named)| Some((r, columns.among(&named.schema)?))).collect();
        if few.is_empty() {
            return Ok(None);
        }
        let shown = |named: &Named, reference: &TableReference| few.get(reference).map_or_else(|| named.provider(), |schema| named.showing(schema));
        self.listed(shown).map(Some)
    }

    fn listed(&self, provider: impl Fn(&Named, &TableReference) -> Arc<dyn TableProvider>) -> Result<Arc<dyn CatalogProviderList>> {
        let list = MemoryCatalogProviderList::new();
        let stored = self.by_reference.iter().map(|(reference, named)| (reference, provider(named, reference)));
        for (reference, table) in stored.chain(self.about.iter().map(|(reference, table)| (reference, Arc::clone(table)))) {
            let full = reference.clone().resolve(PLAIN, PLAIN);
            let catalog = list.catalog(&full.catalog).unwrap_or_else(|| {
                let new: Arc<dyn CatalogProvider> = Arc::new(MemoryCatalogProvider::new());
                list.register_catalog(full.catalog.to_string(), Arc::clone(&new));
                new
            });
            let schema = match catalog.schema(&full.schema) {
                Some(schema) => schema,
                None => {
                    let new: Arc<dyn SchemaProvider> = Arc::new(MemorySchemaProvider::new());
                    catalog.register_schema(&full.schema, Arc::clone(&new)).map_err(skytether_plan::error::from_datafusion)?;
                    new
                }
            };
            schema.register_table(full.table.to_string(), table).map_err(skytether_plan::error::from_datafusion)?;
        }
        Ok(Arc::new(list))
    }
}

/// The reference of the sparse rows of a dense view.
pub(crate) fn rows_of(dense: &Named) -> TableReference {
    TableReference::full(dense.record.name.domain(), dense.record.name.dataset(), format!("{}_rows", dense.stored))
}

/// The schema of a matrix's dense view.
#[must_use]
pub(crate) fn dense_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("gene", DataType::Utf8View, false),
        Field::new("cell", DataType::Utf8View, false),
        Field::new("value", DataType::Float64, false),
    ]))
}

/// The schema of a matrix's rows: the gene's name, then the sparse columns.
#[must_use]
pub(crate) fn rows_schema(sparse: &Schema) -> SchemaRef {
    let mut fields = vec![Arc::new(Field::new("gene", DataType::Utf8View, false))];
    fields.extend(sparse.fields().iter().cloned());
    Arc::new(Schema::new(fields))
}

/// A schema, and statistics of its columns.
type Described = (SchemaRef, Arc<KnownTable>);

/// Schemas of tables, and statistics of their columns, by the key of a partition's metadata slice.
#[derive(Debug)]
pub(crate) struct SchemaCache(Cache<Key, Described>);

impl Default for SchemaCache {
    fn default() -> Self {
        Self(Cache::new(MAX_SCHEMAS))
    }
}

impl SchemaCache {
    /// The columns of a table, and statistics of those that are stored.
    pub(crate) async fn get(&self, record: &RootRecord, table: &str, view: View, catalog: &Catalog, collector: &Collector) -> Result<Described> {
        if view == View::Dense {
            return Ok((dense_schema(), Arc::default()));
        }
        let (stored, known) = self.stored(record, table, catalog, collector).await?;
        Ok(if view == View::Rows { (rows_schema(&stored), Arc::default()) } else { (stored, known) })
    }

    async fn stored(&self, record: &RootRecord, table: &str, catalog: &Catalog, collector: &Collector) -> Result<Described> {
        let partitions = &record.table(table)?.partitions;
        // Any partition will do: for large tables the one with the least statistics, for others the one with the most.
        let (least, most) = (partitions.iter().min_by_key(|p| p.slices), partitions.iter().max_by_key(|p| p.slices));
        let Some(partition) = most.filter(|p| p.slices <= TELLING).or(least) else {
            return Err(Error::corrupt(format!("the root record of {} names no partition of {table}", record.name)));
        };
        let key = record.partition(table, partition.slot).key()?;
        if let Some(known) = self.0.get(&key) {
            return Ok(known);
        }
        let metadata = read_metadata(record, table, partition.drive, &key, catalog, collector).await?;
        let described = (Arc::clone(&metadata.schema), Arc::new(KnownTable::of(&metadata)));
        self.0.insert(key, described.clone());
        Ok(described)
    }
}

/// The metadata slice under `key` at `drive`.
pub(crate) async fn read_metadata(
    record: &RootRecord,
    table: &str,
    drive: uuid::Uuid,
    key: &Key,
    catalog: &Catalog,
    collector: &Collector,
) -> Result<Metadata> {
    let drive = &catalog.drives()[catalog.drive(&drive, &record.name)?];
    let name = &drive.info().name;
    let what = format!("read the metadata of {} ({table})", record.name);
    let bytes = match skytether_runtime::within(catalog.deadline(), name, &what, drive.get(key)).await {
        Ok(bytes) => bytes,
        Err(e) => return Err(unread(catalog, &record.partition(table, 0), name, e).await),
    };
    collector.metadata(bytes.len() as u64);
    Metadata::decode(&bytes).map_err(|e| e.context(format!("{name}: the metadata slice {key} can't be read")))
}

/// Why `drive` could not give a part of `partition`, which a root record named a moment ago.
pub(crate) async fn unread(catalog: &Catalog, partition: &PartitionName, drive: &str, error: Error) -> Error {
    if error.kind() == Kind::NotFound {
        missing::explain(catalog, partition, drive, error).await
    } else {
        error.context(format!("{drive} could not give what the query needs to know of {}", partition.dataset))
    }
}

/// A table for the SQL planner: it has a schema, and all else happens in the cut.
#[derive(Debug)]
struct Provider {
    schema: SchemaRef,
    table: String,
}

#[async_trait]
impl TableProvider for Provider {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(&self, _: &dyn Session, _: Option<&Vec<usize>>, _: &[Expr], _: Option<usize>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Err(to_datafusion(Error::internal(format!("the scan of {} was not cut", self.table))))
    }
}
