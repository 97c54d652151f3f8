//! One file for each command: its arguments, and `run`.

pub(crate) mod calibrate;
pub(crate) mod describe;
pub(crate) mod drive;
pub(crate) mod drop;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod host;
pub(crate) mod index;
pub(crate) mod ingest;
pub(crate) mod init;
pub(crate) mod locate;
pub(crate) mod ls;
pub(crate) mod maintenance;
pub(crate) mod oas;
mod oas_scrub;
pub(crate) mod pki;
pub(crate) mod program;
pub(crate) mod resize;
pub(crate) mod shell;
pub(crate) mod sql;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod volume;
