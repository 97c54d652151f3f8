//! What befalls the drives and hosts of a storm, and where it strikes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use skytether_common::{Error, Key, Result};
use skytether_drive::{Cse, Drive, Storage};
use skytether_store::before::Before;
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore, Version};
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
    /// The drive fails so many more times, and is back then by itself.
    Flaps(u64),
    /// The drive takes its time.
    Slow,
}

impl Strike {
    /// All names, in the order of the table that is printed at the end.
    pub(super) const NAMES: [&'static str; 7] = ["host dies", "drive is gone", "answer is lost", "disk is full", "fails once", "flaps", "is slow"];

    /// What it is called there.
    pub(super) fn name(self) -> &'static str {
        Self::NAMES[match self {
            Strike::Host { .. } => 0,
            Strike::Drive { .. } => 1,
            Strike::Answer => 2,
            Strike::Full => 3,
            Strike::Once => 4,
            Strike::Flaps(_) => 5,
            Strike::Slow => 6,
        }]
    }
}

/// How long a drive takes then: many times what it takes otherwise, and far from any deadline.
const SLOW: Duration = Duration::from_millis(40);

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
            Strike::Answer | Strike::Once | Strike::Flaps(_) => most > 0,
            Strike::Host { .. } | Strike::Full | Strike::Slow => false,
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
    /// How many more requests fail.
    pub(super) flaps: AtomicU64,
    /// What its disk can't read, until it is written anew.
    damaged: Mutex<BTreeSet<String>>,
}

impl Sky {
    pub(super) fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, store: MemoryStore::new(), gone: AtomicBool::new(false), flaps: AtomicU64::new(0), damaged: Mutex::default() })
    }

    /// Damages what lies under `key`: its bytes are not what they were, or it is no longer there.
    pub(super) fn damage(&self, key: &Key, lost: bool) {
        if lost {
            self.store.apply(vec![Op::Delete { key: key.clone(), expect: Expect::Any }]).unwrap();
        } else {
            self.damaged.lock().unwrap().insert(key.as_str().to_owned());
        }
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

    fn applies(&self, batch: &[Op]) -> Result<()> {
        self.behind()?;
        let mut damaged = self.damaged.lock().unwrap();
        for op in batch.iter().filter(|op| !matches!(op, Op::Check { .. })) {
            damaged.remove(op.key().as_str());
        }
        Ok(())
    }

    fn reads(&self, key: &Key) -> Result<()> {
        if self.damaged.lock().unwrap().contains(key.as_str()) {
            return Err(Error::corrupt(format!("the value of key {key} does not match its checksum")));
        }
        Ok(())
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
        if self.sky.flaps.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |flaps| flaps.checked_sub(1)).is_ok() {
            return Err(lost());
        }
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
            Some(Strike::Flaps(times)) => {
                self.sky.flaps.store(times, Ordering::SeqCst);
                Err(lost())
            }
            Some(Strike::Slow) => {
                tokio::time::sleep(SLOW).await;
                work.await
            }
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
