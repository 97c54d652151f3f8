//! How a host connects to a drive.

use std::time::Duration;

use skytether_transport::Credentials;

/// How patient a connection is.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// How long reaching the other side and its introduction may take.
    pub connect_timeout: Duration,
    /// The longest silence before the other side counts as dead. While it works, it sends heartbeats at a quarter of
    /// this.
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
