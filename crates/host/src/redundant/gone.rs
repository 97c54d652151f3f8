//! A drive that is not there at all: its directory is gone, or nobody answers at its address.

use async_trait::async_trait;
use bytes::Bytes;
use skytether_common::{Error, Key, Result};
use skytether_store::{Entry, Op, Usage, Version};
use skytether_wire::{Cse, CseInfo, DeliveryStream, Storage, SubPlan};
use uuid::Uuid;

/// A drive that could not be opened.
#[derive(Debug)]
pub struct Lost {
    /// Its id, by which the fleet knows it.
    pub id: Uuid,
    /// Its place among the host's drives.
    pub place: usize,
    /// Why.
    pub error: Error,
}

/// In the place of a drive that is not there: knows its name, and refuses everything.
#[derive(Debug)]
pub(crate) struct Gone {
    info: CseInfo,
    why: String,
}

impl Gone {
    pub(crate) fn new(id: Uuid, name: &str, why: String) -> Self {
        Self { info: CseInfo { id, name: name.to_owned(), format: 1, memory_limit: 256 << 20, profile: None }, why }
    }

    fn refuse<T>(&self) -> Result<T> {
        Err(Error::unavailable(format!("{} is lost ({})", self.info.name, self.why)))
    }
}

#[async_trait]
impl Storage for Gone {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    async fn present(&self) -> Result<CseInfo> {
        self.refuse()
    }

    async fn apply(&self, _: Vec<Op>) -> Result<Vec<Version>> {
        self.refuse()
    }

    async fn get(&self, _: &Key) -> Result<Bytes> {
        self.refuse()
    }

    async fn stat(&self, _: &Key) -> Result<Option<Entry>> {
        self.refuse()
    }

    async fn list(&self, _: &str, _: Option<&Key>, _: usize) -> Result<Vec<Entry>> {
        self.refuse()
    }

    async fn usage(&self) -> Result<Usage> {
        self.refuse()
    }
}

#[async_trait]
impl Cse for Gone {
    async fn execute(&self, _: SubPlan) -> Result<DeliveryStream> {
        self.refuse()
    }

    fn watched(&self) -> bool {
        true
    }
}
