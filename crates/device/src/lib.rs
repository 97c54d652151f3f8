//! What a host sees of a drive, whatever transport is between them.
//!
//! - [`Storage`] and [`Cse`] are the two traits of a compute-storage engine (CSE): bytes under keys, and sub-plans that
//!   run next to them. [`Capabilities`] say which of their methods a CSE has. A host holds a list of `Arc<dyn Cse>`
//!   and does not know which are in its own process.
//! - [`SubPlan`] goes down: a [`Program`] and its inputs. [`ResultMessage`]s, or the messages of a [`Session`], come
//!   back, and an [`Annotation`] last.
//! - [`Layer`] is a CSE that does some things differently from the one that it wraps.
//! - [`FaultReporter`] takes reports of a caller about a CSE.
//!
//! This crate has no transport and no query engine. `skytether-flight-drive` is the transport over Arrow Flight, and
//! `skytether-drive` implements the traits over a store. See also `docs/internals/adaptive-execution.md`.

pub mod annotation;
pub mod capabilities;
pub mod conform;
pub mod cse;
pub mod delivery;
pub mod faults;
pub mod layer;
pub mod negotiate;
pub mod program;
pub mod session;
pub mod size;
pub mod subplan;
pub mod verify;

pub use annotation::{Annotation, OperatorNote, ParentWork};
pub use capabilities::{Batches, Capabilities};
pub use cse::{Cse, CseInfo, Storage};
pub use delivery::{DeliveryStream, ResultMessage};
pub use faults::FaultReporter;
pub use layer::Layer;
pub use program::{Program, ProgramKind};
pub use session::{OpenReply, Session};
pub use skytether_adapt::message::PushdownLevel;
pub use subplan::SubPlan;
pub use verify::{Verified, Verify};
