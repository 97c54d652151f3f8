//! What client and server of the Flight form agree on.

use std::time::Duration;

/// The version of what this module says over a connection; both sides must have the same.
pub const PROTOCOL: u32 = 1;

/// The longest gRPC message that either side takes. A batch of changes is one message, so this bounds it too.
pub const MAX_MESSAGE: usize = 80 << 20;

/// How often a server shows that it lives while it works and the client did not ask for another interval.
pub const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);

/// Metadata key of a request: the interval in milliseconds at which the client wants signs of life.
pub(crate) const HEARTBEAT_KEY: &str = "skytether-heartbeat-ms";

/// Metadata key of a request: the id of the drive that it is meant for; of a refusal: the id of the drive that answers there instead.
pub(crate) const DRIVE_KEY: &str = "skytether-drive";

/// First byte of an action's answers: a sign of life,
pub(crate) const ANSWER_ALIVE: u8 = 0;
/// or the answer.
pub(crate) const ANSWER_VALUE: u8 = 1;
