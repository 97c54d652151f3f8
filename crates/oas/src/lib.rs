//! The client of EXEC: computing in block storage over the files of a mounted file system.
//!
//! A [`Session`] takes [`Input`]s, finds out where their bytes lie, and asks the target to compute over these places.
//! What the target can't do is done here by the same operations, and the reason is told.
//!
//! ```no_run
//! use oas::{Digest, Input, Session, Settings};
//!
//! let session = Session::open("iscsi://127.0.0.1:3260/iqn.2024-01.io.skytether:drive/0", Settings::default())?;
//! for done in session.sum(Digest::Md5, &[Input::open("/mnt/file")?]) {
//!     println!("{} {:?}", oas::output::hexadecimal(&done.value?), done.ran);
//! }
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`places`], [`carrier`], [`fiemap`] | from a file to places on the disk below |
//! | [`input`], [`request`] | what is read, and what is computed |
//! | [`session`], [`operations`] | computing there or here; typed answers |
//! | [`output_file`], [`pool`] | rooms that a target writes |
//! | [`output`] | answers as `md5sum`, `grep`, `wc` and `sort` print them |
//! | [`path`], [`url`] | ways to targets |
//! | [`scsi`], [`iscsi`], [`remote`], [`node`] | EXEC over SCSI: our own initiator, and disks of the kernel's |
//! | [`layout`], [`striped`] | files whose chunks lie on several targets |
//! | `same_disk` | whether the target has the disk that files are on |
//! | [`locate`] | where files lie, for people |
//! | [`files`] | files as a block device, for computing here |
//! | [`minio`] | drives of MinIO, and the digests inside their files |
//! | [`tools`] | whole jobs of the command: many files, output as the tools print it |
//! | `threads` | the runtime of a session |
//! | [`capi`] | the same for C: `include/oas.h` |
//!
//! See also `docs/internals/exec-client.md`.
//!
//! Opening the file is all the permission that this library asks for. A process that reaches a target can read its
//! whole disk without this library.
#![deny(unsafe_code)]

pub mod capi;
pub mod carrier;
pub mod fiemap;
pub mod files;
mod group;
pub mod input;
pub mod iscsi;
pub mod layout;
pub mod locate;
pub mod minio;
pub mod node;
pub mod operations;
pub mod output;
pub mod output_file;
pub mod path;
pub mod places;
pub mod pool;
pub mod remote;
pub mod request;
mod same_disk;
pub mod scsi;
pub mod session;
pub mod striped;
mod threads;
pub mod tools;
pub mod url;

pub use input::{Input, Part};
pub use layout::Layout;
pub use operations::{Counts, Framed, Match};
pub use output_file::OutputFile;
pub use places::{Access, OpenFile, Places};
pub use pool::{Pool, Ring};
pub use request::{Answer, Codec, Digest, Elements, Format, Order, Pattern, Request, What};
pub use session::{Done, Ran, Session, Settings};
pub use skytether_offload::operations::digests::MINIO_KEY;
pub use striped::Striped;
