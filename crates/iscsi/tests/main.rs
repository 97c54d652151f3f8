//! The target, by an initiator of the tests' own and by real ones.

mod clients;
mod data;
mod doors;
mod hostile;
mod initiator;
mod limits;
mod login;
mod order;
mod serving;
