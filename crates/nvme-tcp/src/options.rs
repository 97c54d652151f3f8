//! Bounds of a door, and how it names itself.

use std::time::Duration;

use crate::results::ResultLimits;

/// The scheme of addresses: `nvme-tcp://host:port`.
pub const SCHEME: &str = "nvme-tcp";

/// The subsystem that every host asks for the others.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// What the hosts of one door may take, and what they see.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of the subsystem. Without it, it follows from the drive's identity:
    /// `nqn.2014-08.org.nvmexpress:uuid:UUID`.
    pub nqn: Option<String>,
    /// The address that discovery gives. Without it, it is the one that the door listens on. That is of no use to
    /// hosts where the door listens on all addresses of a machine.
    pub advertised: Option<String>,
    /// Controllers, which are associations with hosts.
    pub controllers: usize,
    /// I/O queues of one controller.
    pub queues: u16,
    /// Entries of a queue, at least 2: commands of one connection that may be under way.
    pub entries: u16,
    /// Bytes of data that all commands of the door hold at once, at least that of the longest command. One
    /// connection has a quarter of them.
    pub bytes: usize,
    /// How long a host may take to send the rest of a unit or of a command's data, and to read an answer.
    pub patience: Duration,
    /// What each controller holds of results of EXEC.
    pub results: ResultLimits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nqn: None,
            advertised: None,
            controllers: 32,
            queues: 16,
            entries: 128,
            bytes: 256 << 20,
            patience: Duration::from_secs(60),
            results: ResultLimits::default(),
        }
    }
}
