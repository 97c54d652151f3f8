//! The public behaviour of `skytether-drive`. One test program, so that its dependencies are linked once.

mod common;

mod conditions_first;
mod doors;
mod engine;
mod flight;
mod indexes;
mod kept;
mod lanes;
mod profiles;
mod programs;
mod session;
mod two_doors;
