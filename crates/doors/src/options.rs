//! How a host connects to a drive.

use std::time::Duration;

use skytether_transport::Credentials;

/// How patient a connection is.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// How long reaching the other side and its introduction may take.
    pub connect_timeout: Duration,
    /// Silence for so long means that the other side is dead. It sends signs of life at a
    /// quarter of this while it works.
    pub idle_timeout: Duration,
    /// How often an idle connection is probed; a probe has the idle timeout to be answered.
    pub keepalive: Option<Duration>,
    /// What the connection shows, and which certificates it trusts.
    pub credentials: Credentials,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(30),
            keepalive: Some(Duration::from_secs(10)),
            credentials: Credentials::default(),
        }
    }
}
