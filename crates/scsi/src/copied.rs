//! A copy, as RECEIVE COPY RESULTS tells of it.

use crate::sense::Sense;

/// What RECEIVE COPY RESULTS tells of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Copied {
    /// The list identifier.
    pub(crate) list: u32,
    /// None while it runs.
    pub(crate) ended: Option<Result<(), Sense>>,
    /// Segments and bytes that were copied.
    pub(crate) segments: u16,
    pub(crate) bytes: u64,
}
