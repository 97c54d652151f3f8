//! The look-up of the tables that a plan names.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::TableReference;
use datafusion::logical_expr::TableSource;
use skytether_common::Result;

/// Where the tables are that a plan names.
#[async_trait]
pub trait TableLookup: Send + Sync {
    /// The table that a plan calls by these names, as it writes them.
    ///
    /// # Errors
    /// Not found; invalid for names that no table can have; errors of the look-up.
    async fn find(&self, names: &[String]) -> Result<(TableReference, Arc<dyn TableSource>)>;
}
