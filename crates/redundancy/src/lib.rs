//! wip

pub mod code;
pub mod digest;
pub mod groups;
pub mod levels;
mod random;
pub mod scheme;

pub use scheme::{Code, Scheme};
