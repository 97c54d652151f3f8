//! How a drive serves the protocol.

use std::path::PathBuf;
use std::time::Duration;

use skytether_common::Result;
use skytether_doors::ConnectOptions;
use skytether_kinetic_protocol::Limits;

use crate::query_engine::QueryEngine;

/// The scheme of addresses without TLS.
pub const SCHEME: &str = "kinetic";

/// The scheme of addresses with TLS.
pub const TLS_SCHEME: &str = "kinetics";

/// Which limits the drive announces, and keeps. No single set suits all clients. Where a profile tells no number of
/// connections, they have the bound that all doors have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// Those of the Java simulator: keys of 4,096 bytes, batches of 15 operations.
    Java,
    /// Those of a real drive: keys of 1,024 bytes, batches of 64 MiB.
    #[default]
    Drive,
}

impl Profile {
    /// The limits.
    #[must_use]
    pub fn limits(self) -> Limits {
        match self {
            Profile::Java => Limits::JAVA,
            Profile::Drive => Limits::DRIVE,
        }
    }
}

/// How a drive serves the protocol.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which limits it announces.
    pub profile: Profile,
    /// How long a client may take to read an answer, and to send the rest of a frame that it has begun (default: 60 s).
    pub patience: Duration,
    /// Whether a request must have the number that the greeting gave its connection. Old clients do not send it.
    pub enforce_connection_id: bool,
    /// Whether it runs native programs of its clients. Where the machine cannot contain them, the drive is not served.
    pub native_programs: bool,
    /// Where the store lies; its file system gives the capacity. `None`: in memory.
    pub directory: Option<PathBuf>,
    /// How it reaches the drives that it pushes values to, and which certificates of theirs it trusts.
    pub connect: ConnectOptions,
    /// What runs sub-plans for hosts that put data sets under its keys; `None`: nothing does.
    pub queries: Option<QueryEngine>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            patience: Duration::from_secs(60),
            enforce_connection_id: false,
            native_programs: false,
            directory: None,
            connect: ConnectOptions::default(),
            queries: None,
        }
    }
}

impl Options {
    /// Checks that this machine can do what they ask for. It blocks for some milliseconds.
    ///
    /// # Errors
    /// Those of [`skytether_native::probe`] where native programs are to run.
    pub fn check(&self) -> Result<()> {
        if self.native_programs { skytether_native::probe() } else { Ok(()) }
    }
}
