pub mod append_vec;
pub mod ids;
