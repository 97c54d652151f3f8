//! Listeners and clients over loopback.

mod listeners;
mod tls;
mod util;
