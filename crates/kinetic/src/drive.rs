//! [`KineticDrive`]: a store on any Kinetic drive, as a CSE. It runs sub-plans where the drive has a query engine.
//!
//! Another client's keys are left alone: they are not listed, and a change of one is a conflict. `layout.rs` has the
//! form of versions and of our own keys, `read.rs` the reads, `apply.rs` the changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Key, Result};
use skytether_device::{Capabilities, Cse, CseInfo, DeliveryStream, ProgramKind, Storage, SubPlan};
use skytether_kinetic_protocol::StatusCode;
use skytether_kinetic_protocol::limits::told;
use skytether_store::{Entry, Op, Usage, Version};
use skytether_transport::Endpoint;
use uuid::Uuid;

use crate::client::Client;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::layout::{self, Clock, IDENTITY, LONGEST_VERSION};
use crate::options::ClientOptions;
use crate::run_query::engine;
use crate::values::Put;

/// The format of what we store, and what [`CseInfo::format`] says.
const FORMAT: u32 = 1;

/// Bytes that an engine in the drive's place may use for a sub-plan.
const MEMORY: u64 = 256 << 20;

/// A store on a Kinetic drive.
#[derive(Debug, Clone)]
pub struct KineticDrive {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) info: CseInfo,
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    /// The name and address, for errors.
    pub(crate) title: String,
    /// Whether a committed batch may have changes that are still to be done.
    pub(crate) unfinished: AtomicBool,
    /// Connections that ran sub-plans and wait for the next.
    pub(crate) idle: Mutex<Vec<Connection>>,
}

/// The record under [`IDENTITY`].
#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    format: u32,
    id: Uuid,
    name: String,
}

impl KineticDrive {
    /// Connects to the drive at `at`. On the first connection ever, the drive gets an id and a name: those of its query
    /// engine where it has one, and an id that `at` names (`kinetic://HOST:PORT?id=ID`) before all. So a blank drive
    /// can take the place of a lost one. Changes that a writer committed and did not finish are finished.
    ///
    /// # Errors
    /// Those of [`Client::connect`]; `Invalid` where `at` names another id than the drive has; `Unsupported` where a
    /// newer version wrote the drive's identity, or where the drive's versions are too short for us.
    pub async fn connect(at: &Endpoint, options: ClientOptions) -> Result<KineticDrive> {
        let asked = asked_id(at)?;
        let client = Client::connect(&Endpoint::new(at.scheme(), at.authority()), options).await?;
        let clock = Clock::default();
        let title = format!("drive at {}", at.authority());
        let engine = engine(&client).await;
        let (identity, value) =
            identity(&client, &clock, asked, engine.as_ref()).await.map_err(|e| Error::new(e.kind(), format!("{title}: {}", e.report())).with_source(e))?;
        client.expect(Bytes::from_static(IDENTITY.as_bytes()), value);
        let title = format!("drive {} at {}", identity.name, at.authority());
        let programs = engine.iter().map(|_| ProgramKind::Substrait).collect();
        // Each call has a deadline of its own, and a sub-plan ends where the drive does not answer noops.
        let capabilities = Capabilities { remote: true, heartbeats: true, programs, ..Capabilities::storage_only() };
        let memory_limit = engine.as_ref().map_or(MEMORY, |engine| engine.memory_limit);
        let (profile, device) = engine.map_or((None, None), |engine| (engine.profile, engine.device));
        let info = CseInfo { id: identity.id, name: identity.name, format: FORMAT, memory_limit, profile, device, capabilities };
        let inner = Arc::new(Inner { info, client, clock, title, unfinished: AtomicBool::new(true), idle: Mutex::default() });
        inner.finish().await?;
        Ok(KineticDrive { inner })
    }

    /// The client, for what is beyond a store: logs, programs, identities.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.inner.client
    }
}

/// The id in an address with `?id=ID`.
fn asked_id(at: &Endpoint) -> Result<Option<Uuid>> {
    if at.rest().is_empty() {
        return Ok(None);
    }
    let id = at.rest().strip_prefix("?id=").and_then(|id| id.parse().ok());
    let wrong = || Error::invalid(format!("{at} is no address of a drive: write {0}://host:port, or {0}://host:port?id=ID for a blank drive", at.scheme()));
    id.map(Some).ok_or_else(wrong)
}

/// Reads the drive's identity, or makes it, with the id that is asked for, or else that of the drive's engine; and its
/// bytes.
async fn identity(client: &Client, clock: &Clock, asked: Option<Uuid>, engine: Option<&CseInfo>) -> Result<(Identity, Bytes)> {
    let connection = client.connection().await?;
    if let Some(limit) = told(connection.limits().max_version_size)
        && (limit as usize) < LONGEST_VERSION
    {
        return Err(Error::unsupported(format!("its versions have at most {limit} bytes, and {LONGEST_VERSION} are needed: use another drive")));
    }
    let key = Bytes::from_static(IDENTITY.as_bytes());
    for _ in 0..2 {
        match client
            .read(|on| {
                let key = key.clone();
                async move { on.get(key, false).await }
            })
            .await
        {
            Ok(record) => {
                let read: Identity = serde_json::from_slice(&record.value).map_err(|e| Error::corrupt("its identity can't be read").with_source(e))?;
                if read.format != FORMAT {
                    return Err(Error::unsupported(format!("its format is {}, and this version knows {FORMAT}; update Skytether", read.format)));
                }
                if let Some(asked) = asked.filter(|asked| *asked != read.id) {
                    return Err(Error::invalid(format!("it has the id {} already, and not {asked}: erase it first, or leave ?id= out", read.id)));
                }
                return Ok((read, record.value));
            }
            Err(failure) if failure.code() == Some(StatusCode::NotFound) => {}
            Err(failure) => return Err(failure.into()),
        }
        let id = asked.or_else(|| engine.map(|engine| engine.id)).unwrap_or_else(Uuid::new_v4);
        let nameless = || format!("kinetic-{}", id.simple().to_string().chars().take(8).collect::<String>());
        let name = engine.map_or_else(nameless, |engine| engine.name.clone());
        let value =
            serde_json::to_vec(&Identity { format: FORMAT, id, name }).map_err(|e| Error::internal("cannot write a drive's identity").with_source(e))?;
        let put = Put::new(key.clone(), value.clone().into(), Some(Bytes::new()), clock.stamp(&value, 0)?.to_bytes());
        // Another client may be first: the next turn reads what is there.
        match client
            .write(|on| {
                let put = put.clone();
                async move { on.put(put).await }
            })
            .await
        {
            Ok(()) => {}
            Err(failure) if failure.code() == Some(StatusCode::VersionMismatch) || failure.is_unknown() => {}
            Err(failure) => return Err(failure.into()),
        }
    }
    Err(Error::unavailable("its identity could not be written; try again"))
}

impl Inner {
    /// The drive's name and address in front.
    pub(crate) fn named(&self, error: Error) -> Error {
        let named = Error::new(error.kind(), format!("{}: {}", self.title, error.report()));
        match error.detail().cloned() {
            Some(detail) => named.with_detail(detail),
            None => named.with_source(error),
        }
    }

    pub(crate) fn failed(&self, failure: Failure) -> Error {
        self.named(failure.into())
    }

    /// As [`Inner::failed`], for an attempt to `what`.
    pub(crate) fn failed_to(&self, what: &str, failure: Failure) -> Error {
        let error = Error::from(failure);
        self.named(Error::new(error.kind(), format!("cannot {what}: {}", error.message())))
    }
}

impl Storage for KineticDrive {
    fn info(&self) -> &CseInfo {
        &self.inner.info
    }

    fn identify(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Box::pin(async move {
            // A new connection checks the identity itself. This one asks whether the drive answers.
            self.inner.client.read(|on| async move { on.noop().await }).await.map_err(|e| self.inner.failed(e))?;
            Ok(self.inner.info.clone())
        })
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            // A task of its own: a batch that its caller gives up must not stay open on the drive.
            let inner = Arc::clone(&self.inner);
            let done = tokio::spawn(async move { inner.apply(batch).await });
            done.await.map_err(|e| Error::internal(format!("{}: a batch ended without an answer", self.inner.title)).with_source(e))?
        })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.inner.get(key).await })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { self.inner.stat(key).await })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { self.inner.list(prefix, after, limit).await })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.inner.usage().await })
    }
}

impl Cse for KineticDrive {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            if self.inner.info.capabilities.runs(plan.program.kind()) {
                return self.inner.query(&plan).await;
            }
            let (title, kind) = (&self.inner.title, plan.program.kind());
            Err(Error::unsupported(format!("{title}: it runs no programs of kind {kind} for hosts; ask its capabilities first")))
        })
    }
}

impl KineticDrive {
    /// Deletes stripes that no key names, and sub-plans and rows of the moment, if they are older than `age`: what a
    /// client left that crashed. Returns how many keys.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn collect_garbage(&self, age: std::time::Duration) -> Result<u64> {
        let before = layout::micros().saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX));
        self.inner.collect_garbage(before).await
    }

    /// Whether changes of a committed batch are still to be done, as far as this process knows.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        self.inner.unfinished.load(Ordering::SeqCst)
    }
}
