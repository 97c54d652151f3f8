//! Redundancy: what keeps a data set from loss, as arithmetic and decisions. Pure: no I/O, no clock, no threads; what is to look random follows from a seed.
//!
//! Slices are the data shards of *code groups*: up to K on as many drives, with M parity shards on M further ones, any M of which may be lost. The code is systematic, so that every drive reads its own slices as
//! they are, and a slice is a whole shard. Replicas are groups of 1 + (R - 1).
//!
//! | room | subject |
//! |---|---|
//! | [`scheme`] | `none`, `replicas:R`, `ec:K+M`, `ec:K+M/k+m` |
//! | [`code`] | Reed-Solomon over shards of unequal length |
//! | [`groups`], [`levels`] | which slices are a group, and where its parities go; the same across hosts and within each |
//! | [`map`] | the record of all groups |
//! | [`digest`], [`scrub`] | whether a group is whole, from 4 KiB of each shard |
//! | [`repair`], [`balance`] | what to read and where to write when drives are lost; what moves when they come and go |

pub mod balance;
pub mod code;
pub mod digest;
pub mod groups;
pub mod levels;
pub mod map;
mod random;
pub mod repair;
pub mod scheme;
pub mod scrub;

pub use scheme::{Code, Scheme};
