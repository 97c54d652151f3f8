//! gRPC over [`Connection`](crate::Connection)s: one builder of servers, one of channels.

mod client;
mod server;

pub use client::{Channel, ChannelOptions, connect, explain_status};
pub use server::{caller, serve};
