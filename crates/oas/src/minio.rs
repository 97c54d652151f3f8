//! The drives of a MinIO server: which files they have, and the digests inside these files.
//!
//! MinIO stores a share of each object on every drive of a set, in frames: 32 bytes of HighwayHash-256, then at most a
//! shard block of data. A scrub reads the small files `xl.meta` here, and has the frames of part files verified in the
//! target. What travels is a few kilobytes for each object, however large it is.
//!
//! | module | subject |
//! |---|---|
//! | [`msgpack`] | the encoding of `xl.meta`, as far as it is needed |
//! | [`xl_meta`] | the versions of an object, and the places of their data |
//! | [`walk`] | the objects of a drive |
//! | [`scrub`] | verifying them |
//!
//! See also `docs/internals/exec-client.md`.

pub mod msgpack;
pub mod scrub;
pub mod walk;
pub mod xl_meta;

pub use scrub::{Checked, State, Summary, scrub};
pub use xl_meta::{Part, Version, XlMeta};
