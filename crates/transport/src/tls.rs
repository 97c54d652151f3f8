//! TLS by rustls with ring: versions 1.2 and 1.3.

mod client;
mod pem;
mod server;

pub(crate) use client::{Connector, LastAlert, explain};
pub use client::{Credentials, Stream, dial};
pub use server::{Alpn, ServerTls, TlsFiles};
