//! One table as parts of a query see it: each with the columns that its own text names.
//!
//! [`crate::mentioned_columns`] does this for a whole query; here it is done for some of its results at a time.
//! Planners look for columns among all others. With one part per some tens of columns, the time grows with the number
//! of columns and not with its square.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, MemoryCatalogProviderList, MemorySchemaProvider, SchemaProvider, Session, TableProvider};
use datafusion::common::TableReference;
use datafusion::error::Result as DfResult;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement;
use skytether_common::Error;
use skytether_plan::error::to_datafusion;

use crate::mentioned_columns::NamedColumns;
use crate::select_shape::{is_of_one_table, plain_select};

/// The one table that a statement reads.
#[derive(Debug)]
pub(crate) struct OneTable {
    reference: TableReference,
    whole: Arc<dyn TableProvider>,
    schema: SchemaRef,
    /// Where the columns are, by their names in lower case.
    places: HashMap<String, Vec<usize>>,
}

impl OneTable {
    /// The table of `statement`, if it reads one only, and that is no view and has no constraints.
    pub(crate) async fn of(statement: &mut Statement, state: &SessionState) -> Option<Self> {
        if !is_of_one_table(plain_select(statement)?) {
            return None;
        }
        let references = state.resolve_table_references(statement).ok()?;
        let [reference] = references.as_slice() else { return None };
        let whole = state.schema_for_ref(reference.clone()).ok()?.table(reference.table()).await.ok()??;
        let constrained = whole.constraints().is_some_and(|all| all.iter().next().is_some());
        if constrained || whole.get_logical_plan().is_some() {
            return None;
        }
        let schema = whole.schema();
        let mut places: HashMap<String, Vec<usize>> = HashMap::with_capacity(schema.fields().len());
        for (at, field) in schema.fields().iter().enumerate() {
            places.entry(field.name().to_lowercase()).or_default().push(at);
        }
        Some(Self { reference: reference.clone(), whole, schema, places })
    }

    /// The table itself.
    pub(crate) fn whole(&self) -> &Arc<dyn TableProvider> {
        &self.whole
    }

    /// Where the columns of one name are.
    pub(crate) fn places(&self) -> HashMap<&str, usize> {
        self.schema.fields().iter().enumerate().map(|(at, field)| (field.name().as_str(), at)).collect()
    }

    /// A session like `state` in which the table has the columns that `part`, a statement over it, names; `None` where
    /// it may mean columns that it does not name.
    pub(crate) fn seen_by(&self, part: &Statement, state: &SessionState) -> Option<SessionState> {
        let named = NamedColumns::of(&part.to_string(), part)?;
        let mut columns: Vec<usize> = named.names().filter_map(|name| self.places.get(name)).flatten().copied().collect();
        columns.sort_unstable();
        if columns.is_empty() {
            // Rows are counted with it.
            columns.push(0);
        }
        let fields: Option<Vec<_>> = columns.iter().map(|&at| self.schema.fields().get(at).cloned()).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields?, self.schema.metadata().clone()));
        let few: Arc<dyn TableProvider> = Arc::new(FewColumns { schema, whole: Arc::clone(&self.whole) });
        let defaults = &state.config_options().catalog;
        let full = self.reference.clone().resolve(&defaults.default_catalog, &defaults.default_schema);
        let (catalogs, catalog, tables) = (MemoryCatalogProviderList::new(), MemoryCatalogProvider::new(), MemorySchemaProvider::new());
        tables.register_table(full.table.to_string(), few).ok()?;
        catalog.register_schema(&full.schema, Arc::new(tables)).ok()?;
        datafusion::catalog::CatalogProviderList::register_catalog(&catalogs, full.catalog.to_string(), Arc::new(catalog));
        let mut state = state.clone();
        state.register_catalog_list(Arc::new(catalogs));
        Some(state)
    }
}

/// A table with few of its columns, to be planned with and never to be read.
#[derive(Debug)]
struct FewColumns {
    schema: SchemaRef,
    whole: Arc<dyn TableProvider>,
}

#[async_trait]
impl TableProvider for FewColumns {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        self.whole.table_type()
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DfResult<Vec<TableProviderFilterPushDown>> {
        self.whole.supports_filters_pushdown(filters)
    }

    async fn scan(&self, _: &dyn Session, _: Option<&Vec<usize>>, _: &[Expr], _: Option<usize>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Err(to_datafusion(Error::internal("a table that a part of a query was planned with was to be read")))
    }
}
