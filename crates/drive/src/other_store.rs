//! A drive's engine over another store, such as the keys of its Kinetic clients.
//!
//! Both engines share the drive's memory, its turns and its processor, so that what comes through another door is
//! bounded with all the rest. Indexes, kept results and shared reads belong to the drive's own store.

use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_device::{Capabilities, Cse, CseInfo, DeliveryStream, Layer, ProgramKind, Storage, StorageOnly, SubPlan};
use skytether_engine::{Engine, Reader};
use skytether_store::SliceStore;
use skytether_store::memory::MemoryStore;

use crate::drive::Drive;
use crate::throttle::SlowDisk;

/// Caches of metadata and columns are smaller than those over the drive's own store by this factor.
const CACHE_SHARES: usize = 2;

#[derive(Debug)]
struct OtherStore {
    drive: Arc<Drive>,
    values: StorageOnly,
    info: CseInfo,
    engine: Arc<Engine>,
}

impl Drive {
    /// This drive's engine over tables that its caller gives ([`Engine::start_over`]), and over no slices.
    ///
    /// # Errors
    /// As [`Drive::new`].
    pub fn file_engine(&self) -> Result<Arc<Engine>> {
        let reader = Reader::sharing(Arc::new(MemoryStore::new()), CACHE_SHARES).paced(self.context.processor.clone());
        let engine = Engine::new(self.info().name.clone(), Arc::new(reader), Arc::clone(&self.context.memory), self.threads, 1)?;
        Ok(Arc::new(engine.with_turns(Arc::clone(&self.context.turns))))
    }

    /// This drive's engine over its own slices, which surveys them one by one ([`Engine::apart`]): for slices that are
    /// processed in several places.
    ///
    /// # Errors
    /// As [`Drive::new`].
    pub fn engine_apart(&self) -> Result<Arc<Engine>> {
        let reader = Reader::sharing(Arc::clone(self.store()), CACHE_SHARES).paced(self.context.processor.clone());
        let engine = Engine::new(self.info().name.clone(), Arc::new(reader), Arc::clone(&self.context.memory), self.threads, 1)?;
        Ok(Arc::new(engine.with_turns(Arc::clone(&self.context.turns)).apart()))
    }

    /// This drive's engine over `store`: a CSE that runs Substrait plans there, as a whole.
    ///
    /// A drive that emulates a device has a disk for each store; it does not know that they are one.
    ///
    /// # Errors
    /// As [`Drive::new`].
    pub fn over(self: &Arc<Self>, store: Arc<dyn SliceStore>) -> Result<Arc<dyn Cse>> {
        let own = self.info();
        let store = match &own.profile {
            Some(profile) => Arc::new(SlowDisk::new(store, profile)) as _,
            None => store,
        };
        let reader = Reader::sharing(Arc::clone(&store), CACHE_SHARES).paced(self.context.processor.clone());
        let engine = Engine::new(own.name.clone(), Arc::new(reader), Arc::clone(&self.context.memory), self.threads, 1)?;
        let engine = Arc::new(engine.with_turns(Arc::clone(&self.context.turns)));
        let values = StorageOnly::new(store, own.id, own.name.clone());
        let capabilities = Capabilities { programs: vec![ProgramKind::Substrait], heartbeats: true, ..Capabilities::storage_only() };
        let info = CseInfo { capabilities, ..own.clone() };
        Ok(Arc::new(OtherStore { drive: Arc::clone(self), values, info, engine }))
    }
}

impl Layer for OtherStore {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(&self.values)
    }

    fn capabilities(&self) -> Capabilities {
        self.info.capabilities.clone()
    }

    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let engine = Arc::clone(&self.engine);
            let planning = async move {
                plan.program.substrait()?;
                engine.start(plan).await
            };
            Ok(self.drive.whole(self.drive.planned(planning).await?))
        })
    }
}
