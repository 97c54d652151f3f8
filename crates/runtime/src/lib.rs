//! Run-time helpers of the layers above storage: threads for work that blocks, deadlines, ids, and a list that grows
//! while others read it.
//!
//! `common` reads no clock and starts no thread; this crate does, and knows nothing of drives, queries or DataFusion.
//!
//! ```
//! use skytether_runtime::{AppendVec, Threads};
//!
//! let drives = AppendVec::new(vec!["drive-0"]);
//! let before: &[&str] = &drives;
//! drives.push("drive-1");
//! assert_eq!((before.len(), drives.len()), (1, 2));
//!
//! let threads = Threads::new(2);
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! assert_eq!(runtime.block_on(threads.run(|| Ok(6 * 7)))?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariants: blocking work holds no thread of the async runtime; an element of an [`AppendVec`] stays where it is for
//! as long as the list. See also ARCHITECTURE.md, section 3.

pub mod append_vec;
pub mod deadline;
pub mod ids;
pub mod threads;

pub use append_vec::AppendVec;
pub use deadline::within;
pub use ids::Ids;
pub use threads::{Threads, spawn_blocking_thread, waiting};
