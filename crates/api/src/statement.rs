//! What a caller asks of a fleet, and the answer under way.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};
use serde_with::As;
use serde_with::base64::Base64;
use skytether_common::{Pushdown, Result};

use crate::receipt::ReceiptHandle;

/// The longest ticket or request other than `apply`: SQL with groups of a few million cells spelled out fits.
pub const MAX_REQUEST: usize = 64 << 20;

/// A query: a text of SQL, or the bytes of a Substrait plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// One query in DataFusion's SQL.
    Sql(Arc<str>),
    /// A `substrait.Plan`.
    Substrait(Bytes),
}

impl Statement {
    /// Bytes of the text or plan.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Sql(text) => text.len(),
            Self::Substrait(plan) => plan.len(),
        }
    }

    /// Whether there is nothing of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Bytes> for Statement {
    fn from(plan: Bytes) -> Self {
        Self::Substrait(plan)
    }
}

impl From<&str> for Statement {
    fn from(text: &str) -> Self {
        Self::Sql(text.into())
    }
}

impl From<&String> for Statement {
    fn from(text: &String) -> Self {
        Self::Sql(text.as_str().into())
    }
}

/// The columns and the filter of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableScan {
    /// `domain.dataset` or `domain.dataset.table`.
    pub table: String,
    /// What a row of the result holds.
    pub output: Output,
    /// A Substrait `ExtendedExpression` with one truth value; rows where it is not true are left
    /// out. All rows without one.
    #[serde(default, with = "As::<Option<Base64>>", skip_serializing_if = "Option::is_none")]
    pub filter: Option<Vec<u8>>,
    /// The most rows; which ones is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// What a row of a scan's result holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// All columns.
    #[default]
    All,
    /// The columns of these names, in this order.
    Columns(Vec<String>),
    /// The expressions of a Substrait `ExtendedExpression`, by its names.
    Expressions(#[serde(with = "As::<Base64>")] Vec<u8>),
    /// One row for all: how many there are, as `count`.
    Count,
}

/// How a query is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryOptions {
    /// The pushdown policy.
    #[serde(default)]
    pub cut: Pushdown,
    /// Rows per batch that are asked for.
    #[serde(default = "batch_rows")]
    pub batch_rows: u32,
}

fn batch_rows() -> u32 {
    8192
}

impl Default for QueryOptions {
    fn default() -> Self {
        Self { cut: Pushdown::default(), batch_rows: batch_rows() }
    }
}

/// A running query.
pub struct Query {
    /// The columns of the result.
    pub schema: SchemaRef,
    /// The result, as it comes. Dropping it stops the query.
    pub stream: BoxStream<'static, Result<RecordBatch>>,
    /// The receipt: complete after the last row.
    pub receipt: ReceiptHandle,
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Query {
    /// The whole result in memory.
    ///
    /// # Errors
    /// The first error of the stream.
    pub fn collect(self) -> BoxFuture<'static, Result<Vec<RecordBatch>>> {
        Box::pin(async move {
            let mut this = self;

            let mut batches = Vec::new();
            while let Some(batch) = this.stream.next().await {
                batches.push(batch?);
            }
            Ok(batches)
        })
    }
}
