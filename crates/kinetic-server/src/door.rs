//! The listener: it takes connections and starts a conversation for each.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_device::Cse;
use skytether_doors::DriveDoor;
use skytether_kv::KeyValues;
use skytether_transport::{Alpn, Listener, Security, ServeContext};
use tokio::task::JoinSet;

use crate::options::{Options, SCHEME, TLS_SCHEME};
use crate::session;
use crate::shared::Shared;
use crate::watcher;

/// The store of a drive, and what its doors share once the first is served.
#[derive(Debug)]
struct Drive {
    keys: Arc<KeyValues>,
    options: Options,
    shared: Mutex<Option<Arc<Shared>>>,
}

impl Drive {
    fn shared(&self, drive: Arc<dyn Cse>) -> Result<Arc<Shared>> {
        let mut shared = self.shared.lock();
        if let Some(shared) = shared.as_ref() {
            return Ok(Arc::clone(shared));
        }
        let opened = Arc::new(Shared::open(Arc::clone(&self.keys), drive, self.options.clone())?);
        Ok(Arc::clone(shared.insert(opened)))
    }
}

/// The Kinetic protocol as a door of a drive.
#[derive(Debug, Clone)]
pub struct Kinetic {
    security: Security,
    drive: Arc<Drive>,
}

impl Kinetic {
    /// The doors of one drive, without and with TLS. They serve the keys of `keys`, and share identities, limits and
    /// counters.
    #[must_use]
    pub fn doors(keys: Arc<KeyValues>, options: Options) -> [Arc<Kinetic>; 2] {
        let drive = Arc::new(Drive { keys, options, shared: Mutex::new(None) });
        [Security::Plain, Security::Tls].map(|security| Arc::new(Kinetic { security, drive: Arc::clone(&drive) }))
    }
}

impl DriveDoor for Kinetic {
    fn scheme(&self) -> &'static str {
        match self.security {
            Security::Plain => SCHEME,
            Security::Tls => TLS_SCHEME,
        }
    }

    fn security(&self) -> Security {
        self.security
    }

    fn serve(self: Arc<Self>, drive: Arc<dyn Cse>, at: Listener, context: ServeContext) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let of = Arc::clone(&self.drive);
            let opening = tokio::task::spawn_blocking(move || of.shared(drive));
            let shared = opening.await.map_err(|e| Error::internal("opening the Kinetic store was interrupted").with_source(e))??;
            shared.set_demanding(context.auth.is_required());
            if let Ok(address) = at.endpoint().authority().parse() {
                shared.listens(address, self.security == Security::Tls);
            }
            let incoming = at.speaking_first().incoming(Alpn::Absent, &context);
            // It ends with this door; another door's goes on.
            let mut watching = JoinSet::new();
            watching.spawn(watcher::work(Arc::clone(&shared)));
            let talk = |connection| session::converse(Arc::clone(&shared), connection, context.limits.first_call_time, context.shutdown.clone());
            let conversations = incoming.converse(&context, talk).await;
            watching.shutdown().await;
            // Each tells its client that the drive shuts down.
            conversations.end(context.limits.grace).await;
            Ok(())
        })
    }
}
