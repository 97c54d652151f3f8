//! A table source of which only some columns are of interest.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::logical_expr::TableSource;

/// A table of which only these columns are of interest. Sub-plans never carry more: encoding names every column of a
/// table, and the time of a reader grows with the square of their number.
pub(crate) struct ColumnSource(pub(crate) SchemaRef);

impl TableSource for ColumnSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0)
    }
}
