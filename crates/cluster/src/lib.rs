pub mod cluster;
pub mod join;
pub mod options;
pub mod status;
