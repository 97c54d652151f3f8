//! The listener: it takes connections and starts a conversation for each.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_device::Cse;
use skytether_doors::DriveDoor;
use skytether_transport::{Alpn, Listener, ServeContext};
use skytether_volume::{BlockDevice, Exec};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::controller::{Namespace, Subsystem};
use crate::identify::TRANSFER;
use crate::logs::Counters;
use crate::options::{DISCOVERY_NQN, Options, SCHEME};
use crate::session;

/// The highest number of a namespace. Linux takes each as a part of a device's name; higher ones have no use.
pub const NAMESPACE_MOST: u32 = 0xffff;

/// The longest name of a subsystem, in bytes.
const NQN_MOST: usize = 223;

/// NVMe/TCP as a door of a drive: one subsystem with a namespace for each volume.
pub struct NvmeTcp {
    volumes: Arc<[Namespace]>,
    exec: Option<Arc<dyn Exec>>,
    options: Options,
}

impl fmt::Debug for NvmeTcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmeTcp").field("volumes", &self.volumes).field("options", &self.options).finish_non_exhaustive()
    }
}

/// The name of the subsystem of a drive that has no other.
#[must_use]
pub fn nqn_of(drive: Uuid) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{drive}")
}

impl NvmeTcp {
    /// The door to `volumes`, which are the namespaces 1, 2 and so on in their order. `exec` computes over them.
    ///
    /// # Errors
    /// As [`Self::numbered`].
    pub fn new(volumes: Vec<(String, Arc<dyn BlockDevice>)>, exec: Option<Arc<dyn Exec>>, options: Options) -> Result<Arc<Self>> {
        Self::numbered((1..).zip(volumes).map(|(number, (name, device))| (number, name, device)).collect(), exec, options)
    }

    /// The door to `volumes`, which come with the numbers of their namespaces: a volume keeps its number when others
    /// come and go. `exec` computes over them.
    ///
    /// # Errors
    /// `Invalid` where a number is 0 or above [`NAMESPACE_MOST`], where two volumes have one number, or one identity,
    /// by which hosts would take them for one, and where the subsystem's name is none.
    pub fn numbered(mut volumes: Vec<(u32, String, Arc<dyn BlockDevice>)>, exec: Option<Arc<dyn Exec>>, options: Options) -> Result<Arc<Self>> {
        volumes.sort_by_key(|(number, ..)| *number);
        for (place, (number, name, device)) in volumes.iter().enumerate() {
            if !(1..=NAMESPACE_MOST).contains(number) {
                return Err(Error::invalid(format!("the volume {name:?} can't be namespace {number}: give a number from 1 to {NAMESPACE_MOST}")));
            }
            if let Some((_, other, _)) = volumes[..place].iter().find(|(other, ..)| other == number) {
                return Err(Error::invalid(format!("the volumes {other:?} and {name:?} can't both be namespace {number}; give each its own")));
            }
            let id = device.info().id;
            if let Some((_, other, _)) = volumes[..place].iter().find(|(_, _, other)| other.info().id == id) {
                return Err(Error::invalid(format!("the volumes {other:?} and {name:?} have one identity, {id}; NVMe hosts would take them for one")));
            }
        }
        if let Some(nqn) = &options.nqn
            && (!nqn.starts_with("nqn.") || nqn.len() > NQN_MOST || nqn == DISCOVERY_NQN)
        {
            return Err(Error::invalid(format!("{nqn:?} is no name of a subsystem: write nqn.YYYY-MM.DOMAIN:NAME, at most {NQN_MOST} bytes")));
        }
        // Less than one command would wait for ever.
        let bytes = options.bytes.clamp(2 * TRANSFER as usize, Semaphore::MAX_PERMITS);
        let mut results = options.results;
        results.bytes = results.bytes.max(exec.as_ref().map_or(0, |exec| exec.limits().result as usize));
        let options = Options { bytes, results, entries: options.entries.max(2), queues: options.queues.max(1), ..options };
        let volumes = volumes.into_iter().map(|(number, _, device)| Namespace { number, device }).collect();
        Ok(Arc::new(Self { volumes, exec, options }))
    }

    fn subsystem(&self, drive: &dyn Cse, at: &Listener) -> Result<Subsystem> {
        let serial = drive.info().id;
        let (host, port) = at.endpoint().socket()?;
        let host = self.options.advertised.clone().unwrap_or_else(|| host.to_owned());
        Ok(Subsystem {
            nqn: self.options.nqn.clone().unwrap_or_else(|| nqn_of(serial)),
            serial,
            address: (host, port.to_string()),
            volumes: Arc::clone(&self.volumes),
            exec: self.exec.clone(),
            bytes: Arc::new(Semaphore::new(self.options.bytes)),
            options: self.options.clone(),
            counters: Counters::default(),
            controllers: Mutex::default(),
            uncached: Mutex::default(),
        })
    }
}

impl DriveDoor for NvmeTcp {
    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn serve(self: Arc<Self>, drive: Arc<dyn Cse>, at: Listener, context: ServeContext) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            if context.auth.is_required() {
                let text = "NVMe/TCP hosts can't prove who they are, but this drive requires authentication; leave this address out";
                return Err(Error::invalid(format!("{}: {text}", at.url())));
            }
            let subsystem = Arc::new(self.subsystem(drive.as_ref(), &at)?);
            let incoming = at.incoming(Alpn::Absent, &context);
            let talk = |connection| session::converse(Arc::clone(&subsystem), connection, context.limits.first_call_time, context.shutdown.clone());
            incoming.converse(&context, talk).await.end(context.limits.grace).await;
            Ok(())
        })
    }
}
