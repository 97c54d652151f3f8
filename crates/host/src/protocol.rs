//! What a host and its clients say to each other over Flight.
//!
//! | call | goes | comes |
//! |---|---|---|
//! | `DoGet` | ticket: JSON `{"sql": ..., "options": {...}}` | the schema, batches as drives send them, and last a message without rows: `{"receipt": {...}}` |
//! | `DoAction info` | nothing | [`HostInfo`] |
//! | `DoAction list`, `status` | nothing | JSON |
//! | `DoAction describe`, `drop` | `{"name": ...}` | a root record; nothing |
//! | `DoAction explain` | `{"sql": ..., "options": ..., "analyze": ...}` | text |
//! | `DoAction explanation` | the same | JSON: an [`Explanation`](crate::Explanation) |
//! | `DoAction drive/<n>/apply`, `get`, `stat`, `list`, `usage` | as a drive takes them; `apply` with the host's instance in front | as a drive answers |
//!
//! Storage of drive n of the host's list is reached through the host, so that a client ingests with the same writer as an embedded
//! fleet, up to the compare-and-set.

use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, Error, Result};
use skytether_wire::CseInfo;
use uuid::Uuid;

use crate::options::QueryOptions;
use crate::receipt::Receipt;

/// The version of this protocol; both sides must have the same.
pub(crate) const PROTOCOL: u32 = 1;

/// The longest ticket or request other than `apply`: SQL with groups of a few million cells spelled out fits.
pub(crate) const MAX_REQUEST: usize = 64 << 20;

/// Who a host is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HostInfo {
    pub(crate) protocol: u32,
    /// New with each start.
    pub(crate) instance: Uuid,
    pub(crate) drives: Vec<CseInfo>,
    /// How whoever ingests through this host cuts slices.
    pub(crate) slice_bytes: usize,
    pub(crate) zstd_level: i32,
}

/// A query.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueryRequest {
    pub(crate) sql: String,
    #[serde(default)]
    pub(crate) options: QueryOptions,
    #[serde(default)]
    pub(crate) analyze: bool,
}

/// A data set.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameRequest {
    pub(crate) name: DatasetName,
}

/// The last message of a query's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Last {
    pub(crate) receipt: Receipt,
}

/// Puts the instance that a change is meant for in front of it.
pub(crate) fn for_instance(instance: Uuid, body: &[u8]) -> bytes::Bytes {
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend_from_slice(instance.as_bytes());
    out.extend_from_slice(body);
    out.into()
}

/// Checks the instance in front of a change and takes it off.
pub(crate) fn of_instance(instance: Uuid, body: &bytes::Bytes) -> Result<bytes::Bytes> {
    match body.first_chunk::<16>() {
        None => Err(Error::invalid("a change is cut off: it does not say which start of the host it is meant for")),
        Some(meant) if meant != instance.as_bytes() => {
            Err(Error::conflict("the host was started again in the middle of this ingest, which may have lost slices: nothing was committed; ingest again"))
        }
        Some(_) => Ok(body.slice(16..)),
    }
}
