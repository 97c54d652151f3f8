pub mod bind_values;
pub mod catalog_metadata;
mod forward;
pub mod service;
pub mod statements;
