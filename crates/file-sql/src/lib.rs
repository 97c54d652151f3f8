//! SQL over files of a mounted file system, in the block storage below them.
//!
//! Each file is a drive of a host whose sub-plans are EXEC queries: the host plans a query as over any fleet, and the
//! target that has the disk below a file runs the sub-plan over the file's extents. So aggregates of several files come
//! as states and are merged above, and what can't go down is done here. What the target can't do is done here as well,
//! by the same engine over the file, with the reason.
//!
//! | module | subject |
//! |---|---|
//! | [`table`] | [`FileTable`]: the files as one table, and queries over it |
//! | `drive` | some files as a drive that runs sub-plans |
//! | `files` | a plan over files: there, or here |
//! | [`source`] | [`Source`]: where the files are; those of a mounted file system |
//! | `record` | what a host is told of the table |
//!
//! The table is named [`TABLE`]. A query reads it, and no other.
//!
//! See also `docs/block.md` and `docs/internals/exec-client.md`.
#![forbid(unsafe_code)]

mod drive;
mod files;
mod record;
pub mod source;
pub mod table;

pub use files::Where;
pub use source::Source;
pub use table::{FileTable, TABLE};
