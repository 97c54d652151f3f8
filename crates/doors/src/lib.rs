//! Doors of drives, and connectors to them, by the scheme of an address.
//!
//! A [`DriveDoor`] offers a drive (any [`Cse`]) over one protocol. `drive serve --listen URL` finds it in a registry,
//! binds the port, and hands it the [`Listener`]. A [`Connector`] is the other side: it makes a [`Cse`] from an
//! address. The first of both are those of Arrow Flight (crate `flight-drive`), `grpc` and `grpc+tls`.
//!
//! A sibling is a crate of its own that implements the trait, and a line where the registry is made. A test of crate
//! `drive` (`doors.rs`) proves that: it serves a line protocol next to Flight on one drive.
//!
//! Invariant: a door never binds a port itself, so that the rule about loopback and TLS holds for all of them
//! ([`Listener::bind`]).
//!
//! ```
//! use std::sync::Arc;
//!
//! use futures::future::BoxFuture;
//! use skytether_common::Result;
//! use skytether_device::{Cse, StorageOnly};
//! use skytether_doors::{ConnectOptions, Connector, Connectors};
//! use skytether_transport::Endpoint;
//! use uuid::Uuid;
//!
//! /// Drives in memory, named by their address.
//! #[derive(Debug)]
//! struct Memory;
//!
//! impl Connector for Memory {
//!     fn scheme(&self) -> &'static str {
//!         "memory"
//!     }
//!
//!     fn connect<'a>(&'a self, at: &'a Endpoint, _: &'a ConnectOptions) -> BoxFuture<'a, Result<Arc<dyn Cse>>> {
//!         let drive: Arc<dyn Cse> = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), at.authority()));
//!         Box::pin(async move { Ok(drive) })
//!     }
//! }
//!
//! let mut connectors = Connectors::new("an address of a drive");
//! connectors.register("memory", Arc::new(Memory));
//! let at: Endpoint = "memory://drive-0".parse()?;
//! let drive = futures::executor::block_on(connectors.get(&at)?.connect(&at, &ConnectOptions::default()))?;
//! assert_eq!(drive.info().name, "drive-0");
//!
//! // An unknown scheme is refused, and the error lists those that are known.
//! let error = connectors.get(&"smoke://signal".parse()?).unwrap_err();
//! assert!(error.message().contains("memory"));
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! See also `docs/security.md` and ARCHITECTURE.md, section 9.

mod options;

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_device::Cse;
use skytether_transport::{Endpoint, Listener, Registry, Security, ServeContext};

pub use options::ConnectOptions;

/// One protocol by which a drive is reached.
pub trait DriveDoor: Send + Sync + Debug {
    /// The scheme of its addresses.
    fn scheme(&self) -> &'static str;

    /// Whether it is a door with TLS.
    fn security(&self) -> Security {
        Security::Plain
    }

    /// Serves `drive` on `at` until the context's shutdown.
    ///
    /// # Errors
    /// `Unavailable` where the port fails.
    fn serve(self: Arc<Self>, drive: Arc<dyn Cse>, at: Listener, context: ServeContext) -> BoxFuture<'static, Result<()>>;
}

/// One protocol by which drives are asked.
pub trait Connector: Send + Sync + Debug {
    /// The scheme of its addresses.
    fn scheme(&self) -> &'static str;

    /// Connects to the drive at `at` and asks for its identity.
    ///
    /// # Errors
    /// `Invalid` for a malformed address, and for certificates that either side refuses; `Unavailable` where no server
    /// answers in time; `Unsupported` where it speaks another protocol.
    fn connect<'a>(&'a self, at: &'a Endpoint, options: &'a ConnectOptions) -> BoxFuture<'a, Result<Arc<dyn Cse>>>;
}

/// Doors of drives by scheme.
pub type DriveDoors = Registry<Arc<dyn DriveDoor>>;

/// Connectors by scheme.
pub type Connectors = Registry<Arc<dyn Connector>>;

/// Which of `doors` have TLS, as binding their ports needs it.
#[must_use]
pub fn securities(doors: &DriveDoors) -> Registry<Security> {
    doors.map(|door| door.security())
}
