//! What a host sees of a drive, whatever transport is between them.
//!
//! - [`Storage`] and [`Cse`] are the two traits of a compute-storage engine (CSE): bytes under keys, and sub-plans that
//!   run next to them. [`Capabilities`] say which of their methods a CSE has. A host holds a list of `Arc<dyn Cse>` and
//!   does not know which are in its own process.
//! - [`SubPlan`] goes down: a [`Program`] and its inputs. [`ResultMessage`]s, or the messages of a [`Session`], come
//!   back, and an [`Annotation`] last.
//! - [`Layer`] is a CSE that does some things differently from the one that it wraps.
//! - [`FaultReporter`] takes reports of a caller about a CSE.
//! - [`StorageOnly`] is the smallest CSE, over any store.
//! - [`kept`] has names and bytes of results that a CSE keeps.
//! - [`ticket`] has the bytes of sub-plans, and [`arrow_messages`] reads rows that come from elsewhere.
//!
//! Invariant: a method that is not among a CSE's capabilities answers `Unsupported`. Functions of [`negotiate`] ask
//! first, and take another way. This crate has no transport and no query engine: `skytether-flight-drive` is the
//! transport over Arrow Flight, and `skytether-drive` implements the traits over a store and an engine.
//!
//! ```
//! use bytes::Bytes;
//! use skytether_common::{Key, Kind};
//! use skytether_device::{ProgramKind, Storage, StorageOnly};
//! use skytether_store::{Expect, Op};
//! use uuid::Uuid;
//!
//! let drive = StorageOnly::in_memory(Uuid::from_u128(1), "drive-0");
//! assert!(!drive.capabilities().runs(ProgramKind::Substrait));
//!
//! let key = Key::new("a/b")?;
//! let put = |value: &'static str, expect| vec![Op::Put { key: key.clone(), value: Bytes::from(value), expect }];
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! runtime.block_on(async {
//!     drive.apply(put("first", Expect::Absent)).await?;
//!     // A change with a condition that does not hold changes nothing.
//!     assert_eq!(drive.apply(put("second", Expect::Absent)).await.unwrap_err().kind(), Kind::Conflict);
//!     assert_eq!(drive.get(&key).await?, "first");
//!     Ok::<_, skytether_common::Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also ARCHITECTURE.md, section 9, and `docs/internals/adaptive-execution.md`.

pub mod annotation;
pub mod arrow_messages;
pub mod capabilities;
pub mod conform;
pub mod cse;
pub mod delivery;
pub mod faults;
pub mod kept;
pub mod layer;
pub mod negotiate;
pub mod program;
pub mod session;
pub mod size;
pub mod storage_only;
pub mod subplan;
pub mod ticket;
pub mod verify;

pub use annotation::{Annotation, OperatorNote, ParentWork};
pub use capabilities::{Batches, Capabilities};
pub use cse::{Cse, CseInfo, Storage};
pub use delivery::{DeliveryStream, ResultMessage};
pub use faults::FaultReporter;
pub use layer::Layer;
pub use program::{Program, ProgramKind};
pub use session::{OpenReply, Session};
pub use skytether_scheduler::message::PushdownLevel;
pub use storage_only::StorageOnly;
pub use subplan::SubPlan;
pub use verify::{Verified, Verify};
