//! Messages between levels: what a host says to a drive and what comes back, and the Flight form of both.
//!
//! [`Cse`] is the one trait for "a compute-storage engine that I can send a sub-plan to". A host holds a list of them and does
//! not know which are in its own process and which are behind [`flight::FlightCse`].

pub mod annotation;
pub mod cse;
pub mod decorated;
mod delivery;
pub mod flight;
pub mod session;
pub mod size;
pub mod subplan;
pub mod verify;

pub use annotation::{Annotation, OperatorNote, WorkAbove};
pub use cse::{Cse, CseInfo, Storage};
pub use delivery::{Delivery, DeliveryStream};
pub use session::{Opened, Session};
pub use skytether_adapt::message::Rung;
pub use subplan::SubPlan;
pub use verify::{Verified, Verify};
