//! wip

pub mod balance;
pub mod code;
pub mod digest;
pub mod groups;
pub mod levels;
pub mod map;
mod random;
pub mod repair;
pub mod scheme;
pub mod scrub;

pub use scheme::{Code, Scheme};
