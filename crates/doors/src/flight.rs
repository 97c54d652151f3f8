//! Arrow Flight as a door and as a connector.

use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_transport::endpoint::{DEFAULT_SCHEME, TLS_SCHEME};
use skytether_transport::{Endpoint, Listener, Security, ServeContext};
use skytether_wire::Cse;
use skytether_wire::flight::{ConnectOptions, FlightCse, serve_on};

use crate::{Connector, DriveDoor};

/// Arrow Flight, plain or over TLS.
#[derive(Debug, Clone, Copy)]
pub struct Flight(pub Security);

impl Flight {
    fn name(self) -> &'static str {
        match self.0 {
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
        self.0
    }

    fn serve(self: Arc<Self>, drive: Arc<dyn Cse>, at: Listener, context: ServeContext) -> BoxFuture<'static, Result<()>> {
        serve_on(drive, at, context)
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
