//! What runs sub-plans in the place of a drive: recovery needs no query engine, the host gives it one.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_device::{DeliveryStream, OpenReply, Storage, SubPlan};

/// Makes executors over the values of drives.
pub trait Fallback: Send + Sync + Debug {
    /// An executor over what `values` gives, one of `drives` that share the memory for caches.
    /// Must be called in a runtime.
    ///
    /// # Errors
    /// Internal only, where the engine does not take our functions.
    fn executor(&self, values: Arc<dyn Storage>, drives: usize) -> Result<Arc<dyn FallbackExecutor>>;
}

/// Runs sub-plans in this process.
pub trait FallbackExecutor: Send + Sync + Debug {
    /// As [`skytether_device::Cse::execute`].
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>>;
    /// As [`skytether_device::Cse::open`].
    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>>;
}
