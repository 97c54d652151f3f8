//! The public behaviour of `skytether-plan`. One test program, so that its dependencies are linked once.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/proto.rs"]
mod proto;

mod differential;
mod expressions;
mod hostile;
mod limits;
mod options;
mod shared;
mod snapshots;
mod substrait_import;
mod substrait_import_limits;
