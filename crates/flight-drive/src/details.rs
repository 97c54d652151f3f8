//! The [`Detail`] of an error as bytes: JSON of a bounded length.
//!
//! A detail that is too long does not travel, and one that a reader does not know is no detail: kind and text of the
//! error are there in either case.

use skytether_common::{Detail, Error};

/// The longest detail, in bytes of JSON. With a text of [`super::status::MAX_TEXT`] bytes the headers of a status stay
/// below 16 KiB, the most that an HTTP/2 client accepts.
pub(crate) const MAX_DETAIL: usize = 1536;

/// The detail of `error` as it travels, if it has one.
#[must_use]
pub fn encode(error: &Error) -> Option<Vec<u8>> {
    serde_json::to_vec(error.detail()?).ok().filter(|json| json.len() <= MAX_DETAIL)
}

/// The detail in `json`, if this version knows it.
#[must_use]
pub fn decode(json: &[u8]) -> Option<Detail> {
    if json.len() > MAX_DETAIL { None } else { serde_json::from_slice(json).ok() }
}

/// The detail of `error`, if it is short enough to travel.
pub(crate) fn short(error: &Error) -> Option<Detail> {
    encode(error).and(error.detail().cloned())
}

/// `error`, with `detail` if there is one.
pub(crate) fn with(error: Error, detail: Option<Detail>) -> Error {
    match detail {
        Some(detail) => error.with_detail(detail),
        None => error,
    }
}
