//! Constants on which client and server of the Flight form agree.

use std::time::Duration;

/// The version of the protocol; both sides must have the same.
pub const PROTOCOL: u32 = 1;

/// The longest gRPC message that either side accepts. It also bounds a batch of changes, which is one message.
pub const MAX_MESSAGE: usize = skytether_transport::context::MAX_MESSAGE;

/// The interval of a working server's signs of life if the client asks for no other.
pub const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);

/// Metadata key of a request: the interval in milliseconds at which the client wants heartbeats.
pub(crate) const HEARTBEAT_KEY: &str = "skytether-heartbeat-ms";

/// Metadata key of a request: the id of the drive that it is meant for. Metadata key of a refusal: the id of the drive
/// that listens at the address instead.
pub(crate) const DRIVE_KEY: &str = "skytether-drive";

/// First byte of an action's answers: a sign of life,
pub(crate) const ANSWER_ALIVE: u8 = 0;
/// or the answer.
pub(crate) const ANSWER_VALUE: u8 = 1;
