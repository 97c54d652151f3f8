pub mod client;
pub mod forward;
pub mod long_call;
pub mod protocol;
pub mod server;
