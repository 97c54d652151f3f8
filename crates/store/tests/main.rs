//! Stores against a model: crashes, losses of power and the contract that each backend keeps. One program for all of
//! them: linking takes longer than most of them run.

mod common;
mod contract;
mod crash;
mod disk;
mod power;
