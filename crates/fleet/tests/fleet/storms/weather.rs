//! What befalls the drives and hosts of a storm, and where it strikes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use skytether_common::{Error, Key, Result};
use skytether_drive::{Cse, Drive, Storage};
use skytether_store::before::Before;
use skytether_store::memory::MemoryStore;
use skytether_store::{Op, SliceStore, Version};
use skytether_wire::decorated::Decorator;
use skytether_wire::{DeliveryStream, Opened, SubPlan};
use tokio::sync::Notify;

/// What befalls the drive that is asked for something, or the host that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strike {
    /// The host dies, before or after the change is made.
    Host { after: bool },
    /// The drive is gone until it is brought back, before or after the change is made.
    Drive { after: bool },
    /// The change is made, and the answer lost.
    Answer,
    /// The disk is full.
    Full,
    /// The drive fails this once.
    Once,
}

/// What is to befall whom: counted are the changes and reads of all hosts.
#[derive(Debug, Default)]
pub(super) struct Weather {
    pub(super) asked: AtomicU64,
    pub(super) strikes: Mutex<BTreeMap<u64, Strike>>,
    pub(super) struck: Mutex<Vec<Strike>>,
    /// How many drives may be gone at a time.
    pub(super) most: AtomicU64,
    pub(super) gone: AtomicU64,
}

impl Weather {
    fn strike(&self) -> Option<Strike> {
        let at = self.asked.fetch_add(1, Ordering::SeqCst);
        let strike = self.strikes.lock().unwrap().remove(&at)?;
        // No more than the fleet survives; but where it survives none, one that is back for the next step. One that fails once, in a fleet that goes on without it, is away until it is taken in again: what changes meanwhile it misses as one that is gone.
        let most = self.most.load(Ordering::SeqCst);
        let counts = match strike {
            Strike::Drive { .. } => true,
            Strike::Answer | Strike::Once => most > 0,
            Strike::Host { .. } | Strike::Full => false,
        };
        if counts {
            self.gone.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |gone| (gone < most.max(1)).then_some(gone + 1)).ok()?;
        }
        self.struck.lock().unwrap().push(strike);
        Some(strike)
    }
}

/// What a drive stores, while it is there.
#[derive(Debug)]
pub(super) struct Sky {
    pub(super) name: String,
    pub(super) store: MemoryStore,
    pub(super) gone: AtomicBool,
}

impl Sky {
    pub(super) fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, store: MemoryStore::new(), gone: AtomicBool::new(false) })
    }

    /// What it has under `key`, whether it is gone or not.
    pub(super) fn has(&self, key: &str) -> Option<Bytes> {
        self.store.get(&Key::new(key).unwrap()).ok()
    }
}

impl Before for Sky {
    fn behind(&self) -> Result<&dyn SliceStore> {
        if self.gone.load(Ordering::SeqCst) { Err(Error::unavailable(format!("{} is gone", self.name))) } else { Ok(&self.store) }
    }
}

/// Whether a host lives.
#[derive(Debug, Default)]
pub(super) struct Life {
    pub(super) over: AtomicBool,
    ended: Notify,
}

impl Life {
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.ended.notify_waiters();
    }

    pub(super) async fn over(&self) {
        let ended = self.ended.notified();
        if !self.over.load(Ordering::SeqCst) {
            ended.await;
        }
    }
}

/// A host's way to a drive.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) drive: Arc<Drive>,
    pub(super) sky: Arc<Sky>,
    pub(super) life: Arc<Life>,
    pub(super) weather: Arc<Weather>,
}

impl Link {
    fn living(&self) -> Result<()> {
        if self.life.over.load(Ordering::SeqCst) { Err(Error::unavailable("the host is dead")) } else { Ok(()) }
    }

    async fn asked<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.living()?;
        let lost = || Error::unavailable(format!("{} was lost", self.sky.name));
        match self.weather.strike() {
            None => work.await,
            Some(Strike::Host { after }) => {
                if after {
                    let _ = work.await;
                }
                self.life.end();
                std::future::pending().await
            }
            Some(Strike::Drive { after }) => {
                if after {
                    let _ = work.await;
                }
                self.sky.gone.store(true, Ordering::SeqCst);
                Err(lost())
            }
            Some(Strike::Answer) => {
                let _ = work.await;
                Err(lost())
            }
            Some(Strike::Full) => Err(Error::exhausted(format!("{} is full", self.sky.name))),
            Some(Strike::Once) => Err(lost()),
        }
    }
}

#[async_trait]
impl Decorator for Link {
    fn behind(&self) -> &dyn Cse {
        self.drive.as_ref()
    }

    /// As over a wire: it can be lost, and several hosts can reach it.
    fn away(&self) -> bool {
        true
    }

    async fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.asked(self.drive.apply(batch)).await
    }

    async fn get(&self, key: &Key) -> Result<Bytes> {
        self.asked(self.drive.get(key)).await
    }

    async fn execute(&self, plan: SubPlan) -> Result<DeliveryStream> {
        self.asked(self.drive.execute(plan)).await
    }

    async fn open(&self, plan: SubPlan) -> Result<Opened> {
        self.living()?;
        self.drive.open(plan).await
    }
}
