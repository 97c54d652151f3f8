//! Where the root record of a data set is read: on the drives, or from the host through which they are reached.

use std::fmt::Debug;

use futures::future::BoxFuture;
use skytether_common::{DatasetName, Result};

use crate::records::root::RootRecord;
use crate::root_store::Catalog;

/// Gives root records.
pub trait RecordSource: Send + Sync + Debug {
    /// The newest root record of `name`.
    ///
    /// # Errors
    /// `NotFound`; what the drives or the host say.
    fn record<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>>;
}

impl RecordSource for Catalog {
    fn record<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>> {
        Box::pin(async move { Ok(self.read(name).await?.0) })
    }
}
