//! Limits of requests, which all parts of a request share.

/// The most bytes of a request.
pub const MAX_REQUEST: usize = 16 << 20;

/// The most bytes of an object.
pub const MAX_OBJECT: u64 = 128 << 20;

/// The most bytes of a name.
pub(crate) const MAX_NAME: usize = 1024;

/// The most entries of a list of names.
pub(crate) const MAX_ENTRIES: usize = 4096;
