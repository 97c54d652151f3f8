//! The listener: it takes connections and starts a conversation for each.

use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use skytether_device::Cse;
use skytether_doors::DriveDoor;
use skytether_transport::{Alpn, Listener, ServeContext};
use skytether_volume::BlockDevice;
use tokio::sync::Semaphore;

use crate::options::{Options, SCHEME};
use crate::session::{self, Shared};
use crate::wire::{NAME_MOST, PAYLOAD_MOST};

/// NBD as a door of a drive: each volume is an export of its name.
///
/// NBD has no command for computations: EXEC goes by the other block doors.
#[derive(Debug)]
pub struct Nbd {
    shared: Arc<Shared>,
}

impl Nbd {
    /// The door to `volumes`.
    ///
    /// # Errors
    /// `Invalid` where two volumes have one name, or a name is longer than 4,096 bytes.
    pub fn new(volumes: Vec<(String, Arc<dyn BlockDevice>)>, options: Options) -> Result<Arc<Self>> {
        for (number, (name, _)) in volumes.iter().enumerate() {
            if name.len() > NAME_MOST {
                return Err(Error::invalid(format!("the volume's name has {} bytes; NBD takes {NAME_MOST}", name.len())));
            }
            if volumes[..number].iter().any(|(other, _)| other == name) {
                return Err(Error::invalid(format!("two volumes have the name {name:?}; give each its own")));
            }
        }
        // Less than one request would wait for ever.
        let bytes = options.bytes.clamp(PAYLOAD_MOST as usize, Semaphore::MAX_PERMITS);
        let options = Options { requests: options.requests.max(1), bytes, ..options };
        Ok(Arc::new(Self { shared: Arc::new(Shared { volumes, options, bytes: Arc::new(Semaphore::new(bytes)) }) }))
    }
}

impl DriveDoor for Nbd {
    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn serve(self: Arc<Self>, _: Arc<dyn Cse>, at: Listener, context: ServeContext) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            if context.auth.is_required() {
                let text = "NBD clients can't prove who they are, but this drive requires authentication; leave this address out";
                return Err(Error::invalid(format!("{}: {text}", at.url())));
            }
            let incoming = at.speaking_first().incoming(Alpn::Absent, &context);
            let talk = |connection| session::converse(Arc::clone(&self.shared), connection, context.limits.first_call_time, context.shutdown.clone());
            incoming.converse(&context, talk).await.end(context.limits.grace).await;
            Ok(())
        })
    }
}
