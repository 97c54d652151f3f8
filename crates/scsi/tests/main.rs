//! Tests of the command set through its public interface.

mod bench;
mod blocks;
mod copies;
mod durability;
mod exec;
mod identity;
mod kept;
mod modes;
mod parsing;
mod reservations;
mod sanitize;
mod tasks;
mod thin;
