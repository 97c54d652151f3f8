//! The link of a drive in the same process: its messages take as long as if they travelled.

use futures::future::BoxFuture;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use skytether_common::{Key, Result};
use skytether_device::session::Message;
use skytether_device::size::batch_bytes;
use skytether_device::{Capabilities, Cse, CseInfo, DeliveryStream, OpenReply, ResultMessage, Session, Storage, SubPlan, Verified, Verify};
use skytether_emulation::{Direction, Link};
use skytether_index::State;
use skytether_store::{Entry, Op, Usage, Version};
use tokio::sync::mpsc;

/// Bytes of a small message: a request that names a key, an entry.
const SMALL: u64 = 128;

/// `cse` behind the link of its profile, where it has one. Rows count as their Arrow buffers, sub-plans
/// and values as their bytes.
#[must_use]
pub fn linked(cse: Arc<dyn Cse>) -> Arc<dyn Cse> {
    match cse.info().profile {
        Some(profile) => Arc::new(Linked { link: Arc::new(Link::new(&profile)), inner: cse }),
        None => cse,
    }
}

/// Bytes of a delivery.
fn delivered(message: &Result<ResultMessage>) -> u64 {
    match message {
        Ok(ResultMessage::Batch { batch, .. }) => batch_bytes(batch),
        _ => SMALL,
    }
}

#[derive(Debug)]
struct Linked {
    inner: Arc<dyn Cse>,
    link: Arc<Link>,
}

impl Linked {
    /// Sends a request of `bytes` down, and its answer up.
    async fn asked<T>(&self, bytes: u64, answer: impl Future<Output = Result<T>>, size: impl Fn(&T) -> u64) -> Result<T> {
        self.link.pass(Direction::Down, bytes).await;
        let answer = answer.await;
        self.link.pass(Direction::Up, answer.as_ref().map_or(SMALL, size)).await;
        answer
    }
}

impl Storage for Linked {
    fn info(&self) -> &CseInfo {
        self.inner.info()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn identify(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Box::pin(async move { self.asked(SMALL, self.inner.identify(), |_| SMALL).await })
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let of = |op: &Op| SMALL + if let Op::Put { value, .. } = op { value.len() as u64 } else { 0 };
            let bytes = batch.iter().map(of).sum();
            self.asked(bytes, self.inner.apply(batch), |versions| 8 * versions.len() as u64).await
        })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.asked(SMALL, self.inner.get(key), |value| value.len() as u64).await })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move {
            let bytes = SMALL + 16 * ranges.len() as u64;
            self.asked(bytes, self.inner.get_ranges_unverified(key, ranges), |parts| parts.iter().map(|part| part.len() as u64).sum()).await
        })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { self.asked(SMALL, self.inner.stat(key), |_| SMALL).await })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { self.asked(SMALL, self.inner.list(prefix, after, limit), |entries| SMALL * entries.len() as u64).await })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.asked(SMALL, self.inner.usage(), |_| SMALL).await })
    }

    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Box::pin(async move { self.asked(SMALL, self.inner.indexes(), |states| SMALL * states.len() as u64).await })
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move {
            let bytes = asked.encode().len() as u64;
            self.asked(bytes, self.inner.verify(asked), |verified| verified.encode().len() as u64).await
        })
    }
}

impl Cse for Linked {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let bytes = plan.bytes() as u64;
            let DeliveryStream { schema, messages } = self.asked(bytes, self.inner.execute(plan), |_| SMALL).await?;
            Ok(DeliveryStream { schema, messages: Box::pin(self.link.stream(Direction::Up, messages, delivered)) })
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            let bytes = plan.bytes() as u64;
            let of = |opened: &OpenReply| match opened {
                OpenReply::Whole(_) => SMALL,
                OpenReply::Session(session) => SMALL + 16 * session.slice_manifest.len() as u64,
            };
            Ok(match self.asked(bytes, self.inner.open(plan), of).await? {
                OpenReply::Whole(DeliveryStream { schema, messages }) => {
                    OpenReply::Whole(DeliveryStream { schema, messages: Box::pin(self.link.stream(Direction::Up, messages, delivered)) })
                }
                OpenReply::Session(session) => {
                    let (orders, mut ordered) = mpsc::unbounded_channel();
                    let (link, below) = (Arc::clone(&self.link), session.orders);
                    // It ends with the orders, which ends the session.
                    tokio::spawn(async move {
                        while let Some(down) = ordered.recv().await {
                            link.pass(Direction::Down, SMALL).await;
                            if below.send(down).is_err() {
                                break;
                            }
                        }
                    });
                    let size = |message: &Result<Message>| match message {
                        Ok(Message::Batch { batch, .. }) => batch_bytes(batch),
                        _ => SMALL,
                    };
                    let messages = Box::pin(self.link.stream(Direction::Up, session.messages, size));
                    OpenReply::Session(Session { orders, messages, ..session })
                }
            })
        })
    }
}
