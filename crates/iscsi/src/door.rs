//! The listener: it takes connections and serves each on a task of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_device::Cse;
use skytether_doors::DriveDoor;
use skytether_scsi::{Target, Unit};
use skytether_transport::{Alpn, Connection, Listener, ServeContext};
use skytether_volume::{BlockDevice, Exec};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::connection::{self, Shared};
use crate::login::TargetIdentity;
use crate::memory::Memory;
use crate::options::{Options, SCHEME, check_name, default_name};

/// Volumes as logical units of one target.
///
/// The volumes are its logical units from 1 on. Unit 0 is no device: it tells which there are.
pub struct Iscsi {
    /// By their logical units, ascending.
    volumes: Vec<(u8, String, Arc<dyn BlockDevice>)>,
    exec: Option<Arc<dyn Exec>>,
    options: Arc<Options>,
    /// Made when the name of the drive is known. All listeners share it.
    shared: Mutex<Option<Arc<Shared>>>,
}

impl std::fmt::Debug for Iscsi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.volumes.iter().map(|(_, name, _)| name).collect();
        f.debug_struct("Iscsi").field("volumes", &names).field("options", &self.options).finish_non_exhaustive()
    }
}

impl Iscsi {
    /// A door to `volumes`, which come with their names, and to what computes over them. They are the logical units 1,
    /// 2 and so on in their order.
    ///
    /// # Errors
    /// `Invalid` for more than 255 volumes, and for options that don't fit together.
    pub fn new(volumes: Vec<(String, Arc<dyn BlockDevice>)>, exec: Option<Arc<dyn Exec>>, options: Options) -> Result<Arc<Self>> {
        if volumes.len() > usize::from(u8::MAX) {
            return Err(Error::invalid(format!("iscsi: {} volumes: a target has at most {}", volumes.len(), u8::MAX)));
        }
        Self::numbered((1..=u8::MAX).zip(volumes).map(|(lun, (name, device))| (lun, name, device)).collect(), exec, options)
    }

    /// A door to `volumes`, which come with their logical units and names: a volume keeps its unit when others come and
    /// go.
    ///
    /// # Errors
    /// `Invalid` for unit 0, for two volumes with one unit, and for options that don't fit together.
    pub fn numbered(mut volumes: Vec<(u8, String, Arc<dyn BlockDevice>)>, exec: Option<Arc<dyn Exec>>, options: Options) -> Result<Arc<Self>> {
        options.check()?;
        volumes.sort_by_key(|(lun, ..)| *lun);
        if let Some((_, name, _)) = volumes.first().filter(|(lun, ..)| *lun == 0) {
            return Err(Error::invalid(format!("iscsi: the volume {name:?} can't be logical unit 0, which is no device: give a number from 1 on")));
        }
        if let Some([(lun, one, _), (_, other, _)]) = volumes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::invalid(format!("iscsi: the volumes {one:?} and {other:?} can't both be logical unit {lun}; give each its own")));
        }
        Ok(Arc::new(Self { volumes, exec, options: Arc::new(options), shared: Mutex::new(None) }))
    }

    /// The name of the target of a drive that is called `drive`.
    #[must_use]
    pub fn target_name(&self, drive: &str) -> String {
        self.options.name.clone().unwrap_or_else(|| default_name(drive))
    }

    /// The logical unit of each volume, with its name.
    #[must_use]
    pub fn luns(&self) -> Vec<(u8, String)> {
        self.volumes.iter().map(|(lun, name, _)| (*lun, name.clone())).collect()
    }

    fn shared(&self, drive: &str) -> Result<Arc<Shared>> {
        let mut shared = self.shared.lock();
        if let Some(shared) = shared.as_ref() {
            return Ok(Arc::clone(shared));
        }
        let name = self.target_name(drive);
        check_name(&name)?;
        let units = self.volumes.iter().map(|(lun, _, device)| Unit { lun: *lun, device: Arc::clone(device), exec: self.exec.clone() });
        let scsi = skytether_scsi::Options { name: name.clone(), transfer: self.options.transfer, ..skytether_scsi::Options::default() };
        let made = Arc::new(Shared {
            identity: Arc::new(TargetIdentity { name, alias: drive.to_owned(), secrets: self.options.secrets.clone() }),
            target: Target::new(units.collect(), scsi),
            options: Arc::clone(&self.options),
            sessions: Arc::default(),
            memory: Memory::new(self.options.memory),
            unasked: Memory::new(self.options.unasked_memory),
        });
        Ok(Arc::clone(shared.insert(made)))
    }

    /// Serves one connection, which need not be a socket, until it ends: for fuzzing.
    ///
    /// # Errors
    /// `Invalid` where `drive` gives no name of a target.
    #[doc(hidden)]
    pub async fn converse<S>(&self, drive: &str, connection: S) -> Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        connection::serve(self.shared(drive)?, connection, "memory".to_owned(), None, CancellationToken::new()).await;
        Ok(())
    }

    async fn listen(self: Arc<Self>, drive: Arc<dyn Cse>, at: Listener, context: ServeContext) -> Result<()> {
        if context.auth.is_required() && self.options.secrets.is_none() {
            return Err(Error::invalid(format!("{}: iSCSI authenticates by CHAP alone, and there are no secrets: give a file of them", at.url())));
        }
        let shared = self.shared(&drive.info().name)?;
        for error in shared.target.restore().await {
            tracing::error!(error = error.report(), "a logical unit is not served");
        }
        // An address of all interfaces is none that an initiator can reach.
        let address = at.endpoint().authority().parse().ok().filter(|at: &SocketAddr| !at.ip().is_unspecified()).map(|at| at.to_string());
        let incoming = at.incoming(Alpn::Absent, &context);
        let talk = |connection: Connection| {
            let peer = connection.peer().address.to_string();
            connection::serve(Arc::clone(&shared), connection, peer, address.clone(), context.shutdown.clone())
        };
        // At the end, each asks its initiator to log out.
        incoming.converse(&context, talk).await.end(context.limits.grace).await;
        Ok(())
    }
}

impl DriveDoor for Iscsi {
    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn serve(self: Arc<Self>, drive: Arc<dyn Cse>, at: Listener, context: ServeContext) -> BoxFuture<'static, Result<()>> {
        Box::pin(self.listen(drive, at, context))
    }
}
