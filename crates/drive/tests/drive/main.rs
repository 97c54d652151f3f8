//! The public behaviour of `skytether-drive`: one program, so that what it stands on is compiled and linked once.

mod common;

mod conditions_first;
mod doors;
mod engine;
mod flight;
mod indexes;
mod profiles;
mod programs;
mod session;
