//! What all network doors share: addresses, listening, TLS, authentication, limits and shutdown.
//!
//! A door (the Flight faces of drives and hosts today, other protocols later) gets a [`ServeContext`] and a bound
//! [`Listener`]. It takes [`Connection`]s from the listener. Those have passed the limits and the TLS handshake
//! already, so that no door can leave one out.
//!
//! | module | subject |
//! |---|---|
//! | [`endpoint`] | addresses (`grpc+tls://host:port`) and registries by scheme |
//! | [`context`], [`metrics`] | [`ServeContext`], [`Limits`], [`Metrics`] |
//! | [`listener`] | binding, the rule about loopback, accepting, bounded greetings |
//! | [`conversation`] | a task for each connection; replies that are written together |
//! | [`tls`] | server and client configurations of rustls, reloaded when their files change |
//! | [`identity`], [`auth`] | who calls, and how that is found |
//! | [`token`] | bearer tokens in a file, hashed |
//! | [`pki`] | a certificate authority and the certificates of one fleet |
//! | [`grpc`] | the one builder of gRPC servers, and of gRPC channels |
//!
//! Invariants: a server without TLS does not listen beyond loopback unless its context says so; a broken certificate
//! file never replaces a working one; a token's text is on no disk.
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use skytether_transport::{Endpoint, Listener, Security, ServeContext};
//!
//! let context = ServeContext::default();
//! let at: Endpoint = "127.0.0.1:0".parse()?;
//! let listener = Listener::bind(&at, Security::Plain, &context).await?;
//! assert!(listener.url().starts_with("grpc://127.0.0.1:"));
//!
//! // Without TLS, other machines are kept out.
//! let refused = Listener::bind(&"0.0.0.0:0".parse()?, Security::Plain, &context).await.unwrap_err();
//! assert!(refused.message().contains("--insecure"));
//! # Ok::<_, skytether_common::Error>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! See also `docs/security.md`. `skytether_doors` has what implements protocols over this crate.

pub mod auth;
pub mod connection;
pub mod context;
pub mod conversation;
pub mod endpoint;
mod files;
pub mod grpc;
pub mod identity;
pub mod listener;
pub mod metrics;
pub mod pki;
mod security;
pub mod tls;
pub mod token;

pub use auth::{Authenticator, Gate};
pub use connection::{Connection, Peer};
pub use context::{Limits, ServeContext};
pub use conversation::{Conversations, write_replies};
pub use endpoint::{Endpoint, Registry};
pub use identity::{Denied, Identity, IdentityKind};
pub use listener::Listener;
pub use metrics::Metrics;
pub use security::Security;
pub use tls::{Alpn, Credentials, ServerTls, TlsFiles};
pub use token::{Secret, TokenInfo, TokenStore};
