//! Listeners and clients over loopback.

mod calls;
mod listeners;
mod tls;
mod util;
