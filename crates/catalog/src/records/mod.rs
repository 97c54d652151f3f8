//! What lies on the drives about data sets and the fleet: plain data, with its form as bytes.

pub mod bounds;
pub mod code_map;
pub mod failure_domains;
pub mod home_slots;
pub mod index;
pub mod membership;
pub mod partition;
pub mod root;
