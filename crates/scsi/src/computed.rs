//! The result of an EXEC.

use bytes::Bytes;
use tokio::time::Instant;

/// A result that EXEC IN can fetch.
#[derive(Debug, Clone)]
pub(crate) struct Computed {
    pub(crate) lun: u8,
    pub(crate) list: u32,
    pub(crate) result: Bytes,
    pub(crate) since: Instant,
}

impl Computed {
    pub(crate) fn len(&self) -> usize {
        self.result.len()
    }
}
