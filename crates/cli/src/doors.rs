//! The protocols that the program knows, by scheme: where another door is registered.

use std::sync::Arc;

use skytether_doors::{Connectors, DriveDoors};
use skytether_transport::endpoint::{DEFAULT_SCHEME, TLS_SCHEME};
use skytether_transport::{Registry, Security};

/// How a host reaches drives.
pub(crate) fn connectors() -> Arc<Connectors> {
    Arc::new(skytether_flight_drive::connectors())
}

/// How a drive, or an aggregator, is served.
pub(crate) fn of_drives() -> DriveDoors {
    skytether_flight_drive::drive_doors()
}

/// How a host is served. Its Flight protocol and Flight SQL share a port.
pub(crate) fn of_hosts() -> Registry<Security> {
    let mut faces = Registry::new("a host");
    faces.register(DEFAULT_SCHEME, Security::Plain);
    faces.register(TLS_SCHEME, Security::Tls);
    faces
}
