pub mod bind_values;
pub mod catalog_metadata;
pub mod forward;
pub mod service;
pub mod statements;
