//! What a host and its clients say to each other over Flight.
//!
//! | call | goes | comes |
//! |---|---|---|
//! | `DoGet` | ticket: JSON `{"sql": ..., "options": {...}}`, or with `"substrait"`, a plan in base64, instead of `"sql"` | the schema, batches as drives send them, and last a message without rows: `{"receipt": {...}}` |
//! | `DoGet` | ticket: JSON `{"scan": {...}, "options": {...}}`, see [`TableScan`] | the same |
//! | `DoAction schema` | `{"table": ...}` | the table's columns, as an Arrow IPC schema message |
//! | `DoAction info` | nothing | [`HostInfo`] |
//! | `DoAction list`, `listing`, `status` | nothing | JSON |
//! | `DoAction describe`, `drop` | `{"name": ...}` | a root record; nothing |
//! | `DoAction explain` | `{"sql": ..., "options": ..., "analyze": ...}`, or `substrait` in the place of `sql` | text |
//! | `DoAction explanation` | the same | JSON: an [`Explanation`](crate::Explanation) |
//! | `DoAction scrub` | a [`ScrubOptions`](crate::ScrubOptions) | JSON, several: `{"progress": ...}`, and last `{"done": ...}`, a [`ScrubReport`](crate::ScrubReport) |
//! | `DoAction repair` | [`RepairOptions`](crate::RepairOptions) | the same with a [`RepairReport`](crate::RepairReport) |
//! | `DoAction resize` | [`ResizeOptions`](crate::GrowthOptions) | the same with a [`ResizeReport`](crate::GrowthReport) |
//! | `DoAction drive/<n>/apply`, `get`, `get_ranges`, `stat`, `list`, `usage` | as a drive takes them; `apply` with the host's instance in front | as a drive answers |
//!
//! Storage of drive n of the host's list is reached through the host, so that a client ingests with the same writer as an embedded
//! fleet, up to the compare-and-set, and reads tables as files (`plain`).

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::{IpcMessage, SchemaAsIpc};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, Error, Result};
use skytether_device::CseInfo;
use uuid::Uuid;

use skytether_api::receipt::Receipt;
use skytether_api::statement::Asked;
use skytether_api::statement::QueryOptions;
use skytether_api::statement::TableScan;

/// The version of this protocol; both sides must have the same.
pub(crate) const PROTOCOL: u32 = 1;

/// Who a host is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HostInfo {
    pub(crate) protocol: u32,
    /// New with each start.
    pub(crate) instance: Uuid,
    pub(crate) drives: Vec<CseInfo>,
    /// Those that are not of the fleet any more, or not yet: places in the list, which stay what they are as long as the host runs.
    #[serde(default)]
    pub(crate) outside: Vec<usize>,
    /// Those that are being emptied.
    #[serde(default)]
    pub(crate) leaving: Vec<usize>,
    /// How whoever ingests through this host cuts slices.
    pub(crate) slice_bytes: usize,
    #[serde(default = "as_many_rows_as_fit")]
    pub(crate) slice_rows: u64,
    pub(crate) zstd_level: i32,
}

fn as_many_rows_as_fit() -> u64 {
    skytether_slice::MAX_ROWS
}

/// A query.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueryRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sql: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) substrait: Option<String>,
    #[serde(default)]
    pub(crate) options: QueryOptions,
    #[serde(default)]
    pub(crate) analyze: bool,
}

impl QueryRequest {
    pub(crate) fn new(asked: &Asked, options: &QueryOptions, analyze: bool) -> Self {
        let (sql, substrait) = match asked {
            Asked::Sql(text) => (Some(text.to_string()), None),
            Asked::Substrait(plan) => (None, Some(BASE64_STANDARD.encode(plan))),
        };
        Self { sql, substrait, options: options.clone(), analyze }
    }

    pub(crate) fn asked(&self) -> Result<Asked> {
        match (&self.sql, &self.substrait) {
            (Some(text), None) => Ok(Asked::Sql(text.as_str().into())),
            (None, Some(plan)) => {
                let bytes = BASE64_STANDARD.decode(plan).map_err(|e| Error::invalid("the plan is no base64").with_source(e))?;
                Ok(Asked::Substrait(bytes.into()))
            }
            _ => Err(Error::invalid("a query is asked either as sql or as a substrait plan")),
        }
    }
}

/// What a ticket asks for: told apart by the field that it must have.
#[derive(Debug, Deserialize)]
pub(crate) struct Kind {
    #[serde(default)]
    pub(crate) scan: Option<serde::de::IgnoredAny>,
}

/// A scan of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScanRequest {
    pub(crate) scan: TableScan,
    #[serde(default)]
    pub(crate) options: QueryOptions,
}

/// A table.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableRequest {
    pub(crate) table: String,
}

/// A data set.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameRequest {
    pub(crate) name: DatasetName,
}

/// A token that is to be made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateToken {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) grants: Vec<String>,
    /// Seconds.
    #[serde(default)]
    pub(crate) lifetime: Option<u64>,
}

/// A token that was made. Its `Debug` form must not show it, so there is none.
#[derive(Serialize, Deserialize)]
pub(crate) struct CreatedToken {
    pub(crate) token: String,
}

/// The name of a token.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RevokeToken {
    pub(crate) name: String,
}

/// The last message of a query's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Last {
    pub(crate) receipt: Receipt,
}

/// A table's columns as an Arrow IPC message.
pub(crate) fn encode_schema(schema: &Schema) -> Result<Bytes> {
    let message: IpcMessage = SchemaAsIpc::new(schema, &IpcWriteOptions::default())
        .try_into()
        .map_err(|e: arrow::error::ArrowError| Error::internal("cannot write a table's schema").with_source(e))?;
    Ok(message.0)
}

/// Reads a table's columns.
pub(crate) fn decode_schema(bytes: Bytes) -> Result<SchemaRef> {
    let schema = Schema::try_from(IpcMessage(bytes)).map_err(|e| Error::corrupt("what the host says of the table's columns can't be read").with_source(e))?;
    Ok(schema.into())
}

/// Puts the instance that a change is meant for in front of it.
pub(crate) fn for_instance(instance: Uuid, body: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend_from_slice(instance.as_bytes());
    out.extend_from_slice(body);
    out.into()
}

/// Takes the instance in front of a change off.
pub(crate) fn of_instance(body: &Bytes) -> Result<(Uuid, Bytes)> {
    let meant = body.first_chunk::<16>().ok_or_else(|| Error::invalid("a change is cut off: it does not say which start of the host it is meant for"))?;
    Ok((Uuid::from_bytes(*meant), body.slice(16..)))
}

/// What a change ends with that is meant for another instance.
pub(crate) fn for_another() -> Error {
    Error::conflict(
        "the host was started again, or drives came to its fleet or left it, in the middle of this ingest, which may have lost slices: nothing was committed; ingest again",
    )
}
