//! A table source that shows only some columns of a table.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::logical_expr::TableSource;

/// A table that shows only these columns. Sub-plans never carry more: encoding names every column of a table, and a
/// reader's time grows with the square of their number.
pub(crate) struct ColumnSource(pub(crate) SchemaRef);

impl TableSource for ColumnSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }
}
