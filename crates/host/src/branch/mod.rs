pub mod branch;
pub mod striped_storage;
pub mod worker;
