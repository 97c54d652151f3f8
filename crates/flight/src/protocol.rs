//! The messages between a host and its clients over Flight.
//!
//! | call | request | answer |
//! |---|---|---|
//! | `DoGet` | ticket: JSON `{"sql", "options"}` | schema, batches as drives send them, last `{"receipt"}` |
//! | `DoGet` | ticket: JSON `{"scan", "options"}`, see [`TableScan`] | the same |
//! | `DoGet` | ticket: JSON `{"stage"}`, see `skytether_distributed::wire` | schema, batches, last the rows' number |
//! | `DoAction` | an action: see `actions` | one answer; for long work `{"progress"}` and last `{"done"}` |
//!
//! In place of `"sql"` a ticket may have `"substrait"`, a plan in base64; `"values"` are those of its parameters.
//! Clients reach the storage of drive n of the host's list through the host. So a client ingests with the same writer
//! as an embedded fleet, up to the compare-and-set, and reads tables as files. See also
//! `docs/internals/formats/flight-protocol.md`.

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::{IpcMessage, SchemaAsIpc};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, Error, Result};
use skytether_device::CseInfo;
use skytether_flight_drive::frames;
use skytether_store::Op;
use uuid::Uuid;

use skytether_api::receipt::Receipt;
use skytether_api::service::Prepared;
use skytether_api::statement::QueryOptions;
use skytether_api::statement::Statement;
use skytether_api::statement::TableScan;
use skytether_api::values::Values;

/// The version of this protocol; both sides must have the same.
pub(crate) const PROTOCOL: u32 = 1;

/// The identity of a host and its properties.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HostInfo {
    pub(crate) protocol: u32,
    /// New with each start.
    pub(crate) instance: Uuid,
    pub(crate) drives: Vec<CseInfo>,
    /// Drives that have left the fleet, or have not joined: places in the list, which don't change while the host runs.
    #[serde(default)]
    pub(crate) outside: Vec<usize>,
    /// Drives that are being emptied.
    #[serde(default)]
    pub(crate) leaving: Vec<usize>,
    /// How clients that ingest through this host cut slices.
    pub(crate) slice_bytes: usize,
    #[serde(default = "as_many_rows_as_fit")]
    pub(crate) slice_rows: u64,
    pub(crate) zstd_level: i32,
}

fn as_many_rows_as_fit() -> u64 {
    skytether_slice::MAX_ROWS
}

/// A query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Values for its parameters, as [`Values::encode`] writes them, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) values: Option<String>,
}

impl QueryRequest {
    pub(crate) fn new(asked: &Statement, values: &Values, options: &QueryOptions, analyze: bool) -> Result<Self> {
        let values = if values.is_empty() { None } else { Some(BASE64_STANDARD.encode(values.encode()?)) };
        let (sql, substrait) = match asked {
            Statement::Sql(text) => (Some(text.to_string()), None),
            Statement::Substrait(plan) => (None, Some(BASE64_STANDARD.encode(plan))),
        };
        Ok(Self { sql, substrait, options: options.clone(), analyze, values })
    }

    pub(crate) fn asked(&self) -> Result<Statement> {
        match (&self.sql, &self.substrait) {
            (Some(text), None) => Ok(Statement::Sql(text.as_str().into())),
            (None, Some(plan)) => {
                let bytes = BASE64_STANDARD.decode(plan).map_err(|e| Error::invalid("the plan is no base64").with_source(e))?;
                Ok(Statement::Substrait(bytes.into()))
            }
            _ => Err(Error::invalid("a query is asked either as sql or as a substrait plan")),
        }
    }

    /// The query, for calls that take no values.
    pub(crate) fn asked_without_values(&self) -> Result<Statement> {
        match &self.values {
            None => self.asked(),
            Some(_) => Err(Error::invalid("values of parameters are taken where a query is run, and for the columns of its result")),
        }
    }

    pub(crate) fn values(&self) -> Result<Values> {
        let Some(values) = &self.values else { return Ok(Values::default()) };
        Values::decode(&BASE64_STANDARD.decode(values).map_err(|e| Error::invalid("the values of the parameters are no base64").with_source(e))?)
    }
}

/// The columns and parameters of a query, before its parameters have values: schemas as Arrow IPC messages in base64.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PreparedAnswer {
    schema: String,
    /// A column for each parameter.
    parameters: String,
}

impl PreparedAnswer {
    pub(crate) fn new(prepared: &Prepared) -> Result<Self> {
        let parameters = Schema::new(prepared.parameters.clone());
        Ok(Self { schema: BASE64_STANDARD.encode(encode_schema(&prepared.schema)?), parameters: BASE64_STANDARD.encode(encode_schema(&parameters)?) })
    }

    pub(crate) fn prepared(&self) -> Result<Prepared> {
        let schema = |text: &str| {
            let bytes = BASE64_STANDARD.decode(text).map_err(|e| Error::corrupt("what the host says of the query is no base64").with_source(e))?;
            decode_schema(bytes.into())
        };
        let parameters = schema(&self.parameters)?.fields().iter().map(|field| field.as_ref().clone()).collect();
        Ok(Prepared { schema: schema(&self.schema)?, parameters })
    }
}

/// The kind of a ticket, by the field that it must have.
#[derive(Debug, Deserialize)]
pub(crate) struct Kind {
    #[serde(default)]
    pub(crate) scan: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    pub(crate) stage: Option<serde::de::IgnoredAny>,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableRequest {
    pub(crate) table: String,
}

/// A data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameRequest {
    pub(crate) name: DatasetName,
}

/// A snapshot of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnapshotRequest {
    pub(crate) volume: String,
    pub(crate) snapshot: String,
}

/// A token to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// Changes for one instance of a host: after a restart they are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) instance: Uuid,
    pub(crate) batch: Vec<Op>,
}

/// The form of a [`Change`] in an action: the instance, then the batch as a drive takes it.
pub(crate) mod change {
    use super::{Bytes, Change, Error, Result, Uuid, frames};

    pub(crate) fn encode(change: &Change) -> Result<Bytes> {
        let batch = frames::encode_batch(&change.batch)?;
        let mut out = Vec::with_capacity(16 + batch.len());
        out.extend_from_slice(change.instance.as_bytes());
        out.extend_from_slice(&batch);
        Ok(out.into())
    }

    pub(crate) fn decode(_: &str, body: &Bytes) -> Result<Change> {
        let meant = body.first_chunk::<16>().ok_or_else(|| Error::invalid("a change is cut off: it does not say which start of the host it is meant for"))?;
        Ok(Change { instance: Uuid::from_bytes(*meant), batch: frames::decode_batch(&body.slice(16..))? })
    }
}

/// What a change ends with that is meant for another instance.
pub(crate) fn for_another() -> Error {
    Error::conflict(
        "the host was started again, or drives came to its fleet or left it, in the middle of this ingest, which may have lost slices: nothing was committed; ingest again",
    )
}
