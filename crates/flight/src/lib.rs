mod actions;
pub mod client;
pub mod long_call;
pub mod protocol;
pub mod server;

pub use client::RemoteHost;
pub use server::{Face, serve, serve_on};
