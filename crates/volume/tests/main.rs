//! Tests of volumes, one program.

mod basic;
mod concurrency;
mod crash;
mod damage;
mod full;
mod manager;
mod model;
mod shared;
mod snapshots;
mod util;
