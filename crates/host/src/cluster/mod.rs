pub mod cluster;
pub mod options;
pub mod status;
