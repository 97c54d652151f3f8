pub mod branch;
pub mod striped_storage;
pub mod worker;

pub use branch::Aggregator;
