//! Redundancy: how a data set survives losses, as arithmetic and decisions.
//!
//! Pure: no I/O, no clock, no threads. Random choices follow from a seed. Slices are the data shards of *code groups*:
//! up to K on as many drives, with M parity shards on M other drives. Any M of them may be lost. The code is
//! systematic: every drive reads its own slices as they are, and a slice is a whole shard. Replicas are groups of 1 +
//! (R - 1).
//!
//! | module | subject |
//! |---|---|
//! | [`scheme`] | `none`, `replicas:R`, `ec:K+M`, `ec:K+M/k+m` |
//! | [`code`] | Reed-Solomon over shards of unequal length |
//! | [`groups`], [`levels`] | which slices are a group, and the drives of its parities; groups on two levels |
//! | [`map`] | the record of all groups |
//! | [`digest`], [`scrub`] | whether a group is whole, from 4 KiB of each shard |
//! | [`repair`] | which shards to read and where to write when drives are lost |
//! | [`balance`] | which shards move when drives come and go |
//!
//! Invariants: any M lost shards come back (I11); no two shards of a group are on one drive (I12).
//!
//! ```
//! use skytether_erasure::{Code, code};
//!
//! let code = Code::new(2, 1)?;
//! let (data, lens) = ([b"first".as_slice(), b"second".as_slice()], [5, 6]);
//! let parity = code::encode(code, &data)?;
//!
//! // The first shard is lost, and comes back from the other two.
//! let back = code::decode(code, &lens, &[None, Some(data[1]), Some(&parity[0])], &[0])?;
//! assert_eq!(back, ["first"]);
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! See also `docs/internals/erasure-coding.md`.

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
