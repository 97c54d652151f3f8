//! Kinetic as a connector: addresses of the schemes `kinetic` and `kinetics`.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_device::Cse;
use skytether_doors::{ConnectOptions, Connector, Connectors};
use skytether_transport::{Endpoint, Security};

use crate::connection::{SCHEME, TLS_SCHEME};
use crate::drive::KineticDrive;
use crate::options::{ClientOptions, Identity};

/// How old stripes are that a new connection deletes if no key names them.
const GARBAGE_AGE: Duration = Duration::from_secs(24 * 3600);

/// Kinetic, plain or over TLS.
#[derive(Debug, Clone, Copy)]
pub struct Kinetic {
    security: Security,
}

impl Connector for Kinetic {
    fn scheme(&self) -> &'static str {
        match self.security {
            Security::Plain => SCHEME,
            Security::Tls => TLS_SCHEME,
        }
    }

    fn connect<'a>(&'a self, at: &'a Endpoint, options: &'a ConnectOptions) -> BoxFuture<'a, Result<Arc<dyn Cse>>> {
        Box::pin(async move {
            let options = ClientOptions { identity: Identity::from_environment()?, cluster_version: None, connect: options.clone() };
            let drive = KineticDrive::connect(at, options).await?;
            let garbage = drive.clone();
            tokio::spawn(async move {
                match garbage.collect_garbage(GARBAGE_AGE).await {
                    Ok(0) => {}
                    Ok(stripes) => tracing::info!(stripes, "deleted stripes that no key names"),
                    Err(error) => tracing::debug!(%error, "stripes that no key names are not deleted now"),
                }
            });
            Ok(Arc::new(drive) as Arc<dyn Cse>)
        })
    }
}

/// Adds the connectors of Kinetic drives.
pub fn connectors_into(connectors: &mut Connectors) {
    for security in [Security::Plain, Security::Tls] {
        let connector: Arc<dyn Connector> = Arc::new(Kinetic { security });
        connectors.register(connector.scheme(), connector);
    }
}
