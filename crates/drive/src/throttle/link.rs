//! The link of a drive in the same process: its messages take as long as if they travelled.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use skytether_common::{Key, Result};
use skytether_pace::{Direction, Link};
use skytether_store::{Entry, Op, Usage, Version};
use skytether_wire::size::batch_bytes;
use skytether_wire::{Cse, CseInfo, Delivery, DeliveryStream, Storage, SubPlan};

/// Bytes of a small message: a request that names a key, an entry.
const SMALL: u64 = 128;

/// `cse` behind the link of its profile, where it has one. Rows count as their Arrow buffers, sub-plans and values as their bytes.
#[must_use]
pub fn linked(cse: Arc<dyn Cse>) -> Arc<dyn Cse> {
    match cse.info().profile {
        Some(profile) => Arc::new(Linked { link: Arc::new(Link::new(&profile)), inner: cse }),
        None => cse,
    }
}

#[derive(Debug)]
struct Linked {
    inner: Arc<dyn Cse>,
    link: Arc<Link>,
}

impl Linked {
    /// A request of `bytes` goes down, and what answers it comes up.
    async fn asked<T>(&self, bytes: u64, answer: impl Future<Output = Result<T>>, size: impl Fn(&T) -> u64) -> Result<T> {
        self.link.pass(Direction::Down, bytes).await;
        let answer = answer.await;
        self.link.pass(Direction::Up, answer.as_ref().map_or(SMALL, size)).await;
        answer
    }
}

#[async_trait]
impl Storage for Linked {
    fn info(&self) -> &CseInfo {
        self.inner.info()
    }

    async fn present(&self) -> Result<CseInfo> {
        self.asked(SMALL, self.inner.present(), |_| SMALL).await
    }

    async fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        let of = |op: &Op| SMALL + if let Op::Put { value, .. } = op { value.len() as u64 } else { 0 };
        let bytes = batch.iter().map(of).sum();
        self.asked(bytes, self.inner.apply(batch), |versions| 8 * versions.len() as u64).await
    }

    async fn get(&self, key: &Key) -> Result<Bytes> {
        self.asked(SMALL, self.inner.get(key), |value| value.len() as u64).await
    }

    async fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        self.asked(SMALL, self.inner.stat(key), |_| SMALL).await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        self.asked(SMALL, self.inner.list(prefix, after, limit), |entries| SMALL * entries.len() as u64).await
    }

    async fn usage(&self) -> Result<Usage> {
        self.asked(SMALL, self.inner.usage(), |_| SMALL).await
    }
}

#[async_trait]
impl Cse for Linked {
    async fn execute(&self, plan: SubPlan) -> Result<DeliveryStream> {
        let bytes = plan.bytes() as u64;
        let DeliveryStream { schema, messages } = self.asked(bytes, self.inner.execute(plan), |_| SMALL).await?;
        let size = |message: &Result<Delivery>| match message {
            Ok(Delivery::Batch { batch, .. }) => batch_bytes(batch),
            _ => SMALL,
        };
        Ok(DeliveryStream { schema, messages: Box::pin(self.link.stream(Direction::Up, messages, size)) })
    }

    fn watched(&self) -> bool {
        self.inner.watched()
    }
}
