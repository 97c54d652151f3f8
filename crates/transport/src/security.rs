//! Whether an address has TLS.

/// Whether a door speaks TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// It does not.
    Plain,
    /// It does.
    Tls,
}
