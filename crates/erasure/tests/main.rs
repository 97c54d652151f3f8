//! Codes, groups, maps, placement and digests against models. One program for all of them: linking takes
//! longer than most of them run.

mod code;
mod common;
mod digest;
mod groups;
mod map;
mod placement;
