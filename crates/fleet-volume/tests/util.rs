//! What the tests share: a fleet in memory, with what the tests of crate `volume` need of a drive.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use skytether_catalog::records::membership::{Founding, Role};
use skytether_catalog::root_store::Catalog;
use skytether_common::{Error, Key, Result};
use skytether_device::{Cse, CseInfo, Layer, Storage, StorageOnly};
use skytether_fleet_volume::FleetBacking;
use skytether_runtime::Ids;
use skytether_store::fault::{Fault, FaultStore, Operation, Rule, When};
use skytether_store::memory::MemoryStore;
use skytether_store::{Op, SliceStore, Version};
use skytether_volume::extents::ExtentCache;
use skytether_volume::files::Files;
use skytether_volume::open::{Context, create};
use skytether_volume::recovery::Recovery;
use skytether_volume::{Options, Volume};
use uuid::Uuid;

#[path = "../../volume/tests/shared.rs"]
mod shared;
pub(crate) use shared::*;

/// Redundancies that fleets of tests get in turn, and their drives.
const FLEETS: [(&str, usize); 4] = [("ec:2+1", 3), ("replicas:2", 3), ("ec:2+1", 4), ("replicas:2", 2)];

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The stores of all drives.
#[derive(Clone)]
pub(crate) struct Stores(pub(crate) Vec<Arc<FaultStore<MemoryStore>>>);

impl Stores {
    /// Adds a rule to every drive.
    pub(crate) fn add(&self, rule: Rule) {
        self.0.iter().for_each(|store| store.add(rule.clone()));
    }

    pub(crate) fn heal(&self) {
        self.0.iter().for_each(|store| store.heal());
    }

    /// Drive `at` answers nothing any more.
    pub(crate) fn lose(&self, at: usize) {
        self.0[at].add(Rule::new(Operation::Any, When::From(1), Fault::Fail(skytether_common::Kind::Unavailable)));
    }

    /// All keys below `prefix` on drive `at`.
    pub(crate) fn keys(&self, at: usize, prefix: &str) -> Vec<Key> {
        self.0[at].inner().list(prefix, None, 100_000).unwrap().into_iter().map(|entry| entry.key).collect()
    }
}

/// What the connections to all drives do on demand.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    /// Parts of extents wait while this is set, and how many wait.
    pub(crate) holds: AtomicBool,
    pub(crate) held: AtomicUsize,
    /// While this is set, changes of records are not made and not answered: they come late.
    pub(crate) swallows: AtomicBool,
    pub(crate) late: Mutex<Vec<(usize, Vec<Op>)>>,
    /// Records that are being read, and the most at a time.
    reading: AtomicUsize,
    pub(crate) most_read: AtomicUsize,
}

/// The connection to a drive.
#[derive(Debug)]
struct Way {
    at: usize,
    storage: StorageOnly,
    ways: Arc<Ways>,
}

impl Layer for Way {
    fn info(&self) -> &CseInfo {
        self.storage.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(&self.storage)
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            if batch.iter().any(|op| matches!(op, Op::Put { key, .. } if key.as_str().starts_with("~fext/"))) && self.ways.holds.load(Ordering::SeqCst) {
                self.ways.held.fetch_add(1, Ordering::SeqCst);
                while self.ways.holds.load(Ordering::SeqCst) {
                    tokio::task::yield_now().await;
                }
            }
            if self.ways.swallows.load(Ordering::SeqCst) && batch.iter().any(|op| op.key().as_str().starts_with("~fvol/")) {
                self.ways.late.lock().push((self.at, batch));
                return Err(Error::unavailable("there was no answer in time"));
            }
            self.storage.apply(batch).await
        })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let now = self.ways.reading.fetch_add(1, Ordering::SeqCst) + 1;
            self.ways.most_read.fetch_max(now, Ordering::SeqCst);
            // Others that are asked at the same time come before the answer.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let read = self.storage.get(key).await;
            self.ways.reading.fetch_sub(1, Ordering::SeqCst);
            read
        })
    }
}

/// A fleet, in the place of the one drive that the tests of crate `volume` have.
#[derive(Clone)]
pub(crate) struct Drive {
    pub(crate) store: Stores,
    pub(crate) ways: Arc<Ways>,
    pub(crate) context: Context,
    pub(crate) fleet: Arc<FleetBacking>,
    pub(crate) catalog: Catalog,
    scheme: &'static str,
}

impl Drive {
    pub(crate) fn new(options: Options) -> Self {
        let (scheme, drives) = FLEETS[NEXT.fetch_add(1, Ordering::Relaxed) % FLEETS.len()];
        Self::of(scheme, drives, options)
    }

    /// With this redundancy over this number of drives.
    pub(crate) fn of(scheme: &'static str, drives: usize, options: Options) -> Self {
        let stores = (0..drives).map(|_| Arc::new(FaultStore::new(MemoryStore::new()))).collect();
        wait(Self::begin(Stores(stores), scheme, options))
    }

    /// A host that begins over these drives.
    async fn begin(store: Stores, scheme: &'static str, options: Options) -> Self {
        let ways = Arc::new(Ways::default());
        let drive = |(at, store): (usize, &Arc<FaultStore<MemoryStore>>)| {
            let storage = StorageOnly::new(store.clone(), Uuid::from_u128(at as u128 + 1), format!("drive-{at}"));
            Arc::new(Way { at, storage, ways: Arc::clone(&ways) }) as Arc<dyn Storage>
        };
        let catalog = Catalog::new(store.0.iter().enumerate().map(drive).collect(), Duration::from_secs(20)).unwrap();
        catalog.establish(Founding::EmptyDrives, &Role::Fleet, scheme.parse().unwrap(), &BTreeMap::new(), &Ids::random()).await.unwrap();
        catalog.rejoin(Duration::from_secs(20)).await.unwrap();
        let fleet = Arc::new(FleetBacking::new(catalog.clone()).unwrap());
        fleet.settle().await.unwrap();
        let context = Context { backing: fleet.clone(), cache: Arc::new(ExtentCache::new(options.cache_bytes)), options };
        Self { store, ways, context, fleet, catalog, scheme }
    }

    /// The same fleet with another host: what is in memory is forgotten.
    pub(crate) fn restarted(&self) -> Self {
        wait(Self::begin(self.store.clone(), self.scheme, self.context.options.clone()))
    }

    pub(crate) async fn create(&self, name_: &str, size: u64) {
        create(&self.context, &name(name_), size).await.unwrap();
    }

    pub(crate) async fn open(&self, name_: &str, files: &(impl Files + Clone + 'static)) -> Result<(Arc<Volume>, Recovery)> {
        Volume::open(&self.context, &name(name_), Arc::new(files.clone())).await
    }
}

/// Waits for work in a test that is not asynchronous where it calls this.
fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(work))
}
