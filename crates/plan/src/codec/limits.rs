//! Limits on the size of a plan.

/// Most bytes that a plan may have.
pub const MAX_BYTES: usize = 16 << 20;

/// Most elements of one list in a plan: columns, expressions, arguments, functions.
pub const MAX_WIDTH: usize = 1 << 16;
