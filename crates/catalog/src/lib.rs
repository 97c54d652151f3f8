//! Which data sets exist, where they lie, and which drives are a fleet: records on the drives, and their commit.
//!
//! | module | subject |
//! |---|---|
//! | [`records`] | the forms as bytes: root records, membership, code maps, bounds, indexes |
//! | [`root_store`] | [`Catalog`](root_store::Catalog): root records over the drives |
//! | [`commit`], [`root_cache`] | a compare-and-set at the first home drive; records that are still current |
//! | [`volume_records`] | records of volumes, committed as root records are |
//! | [`rendezvous`], [`raise`] | which drives are a data set's homes, and how there come to be more of them |
//! | [`membership_store`], [`join`] | drives that found a fleet, and that join or leave one |
//! | [`rejoin`], [`replacement`] | drives that come back, and blank ones in the place of lost ones |
//! | [`fencing`] | one coordinator per term |
//! | [`health`] | which drives are here |
//! | [`indexes`], [`listing`] | definitions of indexes; the list of data sets |
//! | [`table_view`], [`record_source`], [`missing`] | questions about one data set |
//!
//! Invariants: a generation is visible if and only if its root record names it (I1); drives refuse a host of a lower
//! term (I2); garbage is deleted only while all drives answer (I3); a drive that joins takes no root record away (I13).
//! This crate reads no slices and links no query engine.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use skytether_catalog::records::membership::{Founding, Role};
//! use skytether_catalog::root_store::Catalog;
//! use skytether_device::{Storage, StorageOnly};
//! use uuid::Uuid;
//!
//! let drives: Vec<Arc<dyn Storage>> =
//!     (0..3).map(|n| Arc::new(StorageOnly::in_memory(Uuid::from_u128(n + 1), format!("drive-{n}"))) as _).collect();
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
//! runtime.block_on(async {
//!     let all = Catalog::new(drives.clone(), Duration::from_secs(10))?;
//!     let fleet = all.establish_membership(Founding::EmptyDrives, &Role::Fleet).await?;
//!     assert_eq!(fleet.drives.len(), 3);
//!     assert!(all.names().await?.is_empty());
//!
//!     // Each drive knows the others, so a catalog over some of them is refused.
//!     let some = Catalog::new(drives[..2].to_vec(), Duration::from_secs(10))?;
//!     let error = some.establish_membership(Founding::EmptyDrives, &Role::Fleet).await.unwrap_err();
//!     assert!(error.message().contains("drive-2"));
//!     Ok::<_, skytether_common::Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also `docs/internals/membership-and-fencing.md` and `docs/internals/formats/root-record.md`.

pub mod commit;
pub mod fencing;
pub mod health;
pub mod indexes;
pub mod join;
pub mod listing;
pub mod membership_store;
pub mod missing;
pub mod raise;
pub mod record_source;
pub mod records;
pub mod rejoin;
pub mod rendezvous;
pub mod replacement;
pub mod root_cache;
pub mod root_store;
pub mod table_view;
pub mod volume_records;
