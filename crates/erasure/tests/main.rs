//! Codes, groups, maps, placement and digests against models. All tests are one program, because linking takes longer
//! than most of them run.

mod code;
mod common;
mod digest;
mod groups;
mod map;
mod placement;
