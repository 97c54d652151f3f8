//! Arrow Flight as a door and as a connector.

use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_device::Cse;
use skytether_doors::{ConnectOptions, Connector, Connectors, DriveDoor, DriveDoors};
use skytether_transport::endpoint::{DEFAULT_SCHEME, TLS_SCHEME};
use skytether_transport::{Endpoint, Listener, Registry, Security, ServeContext};

use crate::client::FlightCse;
use crate::server::{SharedLimits, serve_on};

/// Arrow Flight, plain or over TLS.
#[derive(Debug, Clone)]
pub struct Flight {
    security: Security,
    shared: SharedLimits,
}

impl Flight {
    /// A door or connector; doors with the same `shared` limit each drive once for all its ports.
    #[must_use]
    pub fn new(security: Security, shared: SharedLimits) -> Self {
        Self { security, shared }
    }

    fn name(&self) -> &'static str {
        match self.security {
            Security::Plain => DEFAULT_SCHEME,
            Security::Tls => TLS_SCHEME,
        }
    }
}

impl DriveDoor for Flight {
    fn scheme(&self) -> &'static str {
        self.name()
    }

    fn security(&self) -> Security {
        self.security
    }

    fn serve(self: Arc<Self>, drive: Arc<dyn Cse>, at: Listener, context: ServeContext) -> BoxFuture<'static, Result<()>> {
        serve_on(drive, at, context, &self.shared)
    }
}

impl Connector for Flight {
    fn scheme(&self) -> &'static str {
        self.name()
    }

    fn connect<'a>(&'a self, at: &'a Endpoint, options: &'a ConnectOptions) -> BoxFuture<'a, Result<Arc<dyn Cse>>> {
        Box::pin(async move {
            let drive = FlightCse::connect(&at.to_string(), options.clone()).await?;
            Ok(drive as Arc<dyn Cse>)
        })
    }
}

/// A registry of doors with those of Arrow Flight. Callers register other doors.
#[must_use]
pub fn drive_doors() -> DriveDoors {
    let mut doors = Registry::new("a drive");
    let shared = SharedLimits::default();
    for security in [Security::Plain, Security::Tls] {
        let door: Arc<dyn DriveDoor> = Arc::new(Flight::new(security, shared.clone()));
        doors.register(door.scheme(), door);
    }
    doors
}

/// A registry of connectors with those of Arrow Flight. Callers register others.
#[must_use]
pub fn connectors() -> Connectors {
    let mut connectors = Registry::new("an address of a drive");
    for security in [Security::Plain, Security::Tls] {
        let connector: Arc<dyn Connector> = Arc::new(Flight::new(security, SharedLimits::default()));
        connectors.register(connector.scheme(), connector);
    }
    connectors
}
