//! wip

pub mod code;
pub mod scheme;

pub use scheme::{Code, Scheme};
