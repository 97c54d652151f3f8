//! Stores against a model: crashes, power losses and the contract that each backend keeps. All tests are one program,
//! because linking takes longer than most of them run.

mod common;
mod contract;
mod crash;
mod disk;
mod power;
