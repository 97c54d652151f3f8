pub mod client;
pub mod long_call;
pub mod protocol;
pub mod server;
