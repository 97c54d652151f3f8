//! A drive that takes no changes: what a worker sees of the drives of another host's fleet.

use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use skytether_device::{Cse, CseInfo, Layer};
use skytether_store::{Op, Version};

/// A drive that this process only reads.
#[derive(Debug)]
pub(crate) struct ReadOnly(pub(crate) Arc<dyn Cse>);

impl Layer for ReadOnly {
    fn info(&self) -> &CseInfo {
        self.0.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.0.as_ref())
    }

    fn apply(&self, _: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        let text = format!("{} was not changed: this host is a worker and only reads; ask the host that has the fleet", self.info().name);
        Box::pin(std::future::ready(Err(Error::unsupported(text))))
    }
}
