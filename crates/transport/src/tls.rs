//! TLS by rustls with ring: versions 1.2 and 1.3.

mod client;
mod pem;
mod server;

pub use client::Credentials;
pub(crate) use client::{Connector, LastAlert, explain};
pub use server::{Alpn, ServerTls, TlsFiles};
