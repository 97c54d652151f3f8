//! Controllers: associations with hosts, their queues and settings.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skytether_common::{Error, Kind};
use skytether_volume::{BlockDevice, Durability, Exec};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::command::{Connect, ConnectData, Status};
use crate::identify::{ERRORS, VERSION};
use crate::logs::{Counters, Failure};
use crate::options::{DISCOVERY_NQN, Options};
use crate::results::Results;

/// Properties of a controller, by their place.
pub(crate) mod property {
    pub(crate) const CAPABILITIES: u32 = 0x00;
    pub(crate) const VERSION: u32 = 0x08;
    pub(crate) const CONFIGURATION: u32 = 0x14;
    pub(crate) const STATUS: u32 = 0x1C;
}

/// Bits of the configuration: enabled; the kind of a shutdown; page size, command set and sizes of entries.
const ENABLED: u32 = 1;
const SHUTDOWN: u32 = 0b11 << 14;
const PAGE_AND_SET: u32 = 0x7F0;
const ENTRY_SIZES: u32 = 0xFF << 16;
const USUAL_ENTRY_SIZES: u32 = 0x46 << 16;

/// Hosts whose setting of the write cache is kept; names come from outside, and must not fill the memory.
const UNCACHED: usize = 1024;

/// How long an association lives on next to a new one of its host, where the host did not promise to be heard of.
const UNPROMISED: Duration = Duration::from_secs(5);

/// How often it is looked whether a former association was heard of.
const LOOK: Duration = Duration::from_millis(50);

/// A volume with the number by which hosts know it.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) number: u32,
    pub(crate) device: Arc<dyn BlockDevice>,
}

/// What all connections of a door share.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    pub(crate) serial: Uuid,
    /// Where it listens: a host's name or number, and a port.
    pub(crate) address: (String, String),
    /// By their numbers, ascending.
    pub(crate) volumes: Arc<[Namespace]>,
    pub(crate) exec: Option<Arc<dyn Exec>>,
    pub(crate) options: Options,
    /// Bytes of data that commands may hold.
    pub(crate) bytes: Arc<Semaphore>,
    pub(crate) counters: Counters,
    pub(crate) controllers: Mutex<HashMap<u16, Arc<Controller>>>,
    /// Hosts that have switched the write cache off, by their names and identities.
    pub(crate) uncached: Mutex<HashSet<(String, [u8; 16])>>,
}

/// An association with one host.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: u16,
    pub(crate) is_discovery: bool,
    host: String,
    host_id: [u8; 16],
    /// Cancelled to end all connections of the controller.
    pub(crate) ended: CancellationToken,
    /// Cancelled when all of them have ended.
    over: CancellationToken,
    /// Whether writes are acknowledged before they are durable.
    pub(crate) caches: AtomicBool,
    pub(crate) state: Mutex<State>,
    pub(crate) results: Mutex<Results>,
    errors: AtomicU64,
}

/// What commands of the admin queue change.
#[derive(Debug)]
pub(crate) struct State {
    configuration: u32,
    is_ready: bool,
    is_fatal: bool,
    is_shut_down: bool,
    /// `None` where the host does not promise to be heard of.
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) heard: Instant,
    /// Settings that are only kept.
    pub(crate) features: HashMap<u8, u32>,
    /// I/O queues that the host may have.
    pub(crate) granted: u16,
    pub(crate) queues: HashMap<u16, Arc<Queue>>,
    pub(crate) failures: VecDeque<Failure>,
    pub(crate) events: usize,
}

/// Commands of one queue that are under way.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Cancelled to end the connection.
    pub(crate) ended: CancellationToken,
    /// Those that an abort can end have a token.
    pub(crate) commands: Mutex<HashMap<u16, Option<CancellationToken>>>,
}

impl Subsystem {
    /// Makes a connection a queue: an admin queue of a new controller, or an I/O queue of one that is there.
    pub(crate) fn connect(&self, connect: &Connect, data: &ConnectData) -> Result<(Arc<Controller>, Arc<Queue>), Status> {
        let is_discovery = data.subsystem == DISCOVERY_NQN;
        if connect.format != 0 {
            return Err(Status::CONNECT_FORMAT);
        }
        if !is_discovery && data.subsystem != self.nqn || connect.size == 0 || connect.size >= self.options.entries {
            return Err(Status::CONNECT_PARAMETERS);
        }
        let mut controllers = self.controllers.lock();
        if connect.queue == 0 {
            if data.controller != 0xffff {
                return Err(Status::CONNECT_PARAMETERS);
            }
            if controllers.len() >= self.options.controllers {
                return Err(Status::CONNECT_BUSY);
            }
            // There are fewer controllers than numbers.
            let id = (1..0xfff0).find(|id| !controllers.contains_key(id)).ok_or(Status::CONNECT_BUSY)?;
            let controller = Arc::new(Controller::new(id, is_discovery, connect, data, &self.options));
            controller.caches.store(!self.uncached.lock().contains(&controller.host()), Ordering::Relaxed);
            controllers.insert(id, Arc::clone(&controller));
            let queue = controller.add_queue(0)?;
            return Ok((controller, queue));
        }
        let controller = controllers.get(&data.controller).ok_or(Status::CONNECT_PARAMETERS)?;
        if controller.host != data.host || controller.host_id != data.host_id {
            return Err(Status::CONNECT_HOST);
        }
        if controller.is_discovery != is_discovery || is_discovery {
            return Err(Status::CONNECT_PARAMETERS);
        }
        let queue = controller.add_queue(connect.queue)?;
        Ok((Arc::clone(controller), queue))
    }

    /// Waits until former associations of the host of an admin queue have ended, or have shown that they are alive:
    /// several paths of one host are none of each other's business. One that says nothing in the time that the host
    /// promised is ended: its host has given it up, and what it left waiting must not be carried out after what the
    /// host does now.
    pub(crate) async fn await_former(&self, connect: &Connect, data: &ConnectData) {
        if connect.queue > 0 || data.subsystem == DISCOVERY_NQN {
            return;
        }
        let former: Vec<Arc<Controller>> = {
            let controllers = self.controllers.lock();
            let is_full = controllers.len() >= self.options.controllers;
            let is_former = |other: &&Arc<Controller>| !other.is_discovery && other.host == data.host && other.host_id == data.host_id;
            // Where there is no place for another, only one that ends makes it.
            controllers.values().filter(is_former).filter(|other| !is_full || other.ended.is_cancelled()).cloned().collect()
        };
        let since = Instant::now();
        for controller in former {
            controller.end_or_hear(since).await;
        }
    }

    /// Ends a queue, with the admin queue all of its controller, and with the last queue the association.
    pub(crate) fn disconnect(&self, controller: &Controller, number: u16, queue: &Arc<Queue>) {
        let is_last = {
            let mut state = controller.state.lock();
            // Another connection may have become the queue of this number since.
            if state.queues.get(&number).is_none_or(|there| !Arc::ptr_eq(there, queue)) {
                return;
            }
            state.queues.remove(&number);
            if number == 0 {
                controller.ended.cancel();
            }
            state.queues.is_empty() && controller.ended.is_cancelled()
        };
        if is_last {
            self.controllers.lock().remove(&controller.id);
            controller.over.cancel();
        }
    }

    /// The device of a namespace.
    pub(crate) fn device(&self, number: u32) -> Result<&Arc<dyn BlockDevice>, Status> {
        match self.volumes.binary_search_by_key(&number, |namespace| namespace.number) {
            Ok(place) => Ok(&self.volumes[place].device),
            // A gap between volumes: the number is valid, but inactive.
            Err(place) if number > 0 && place < self.volumes.len() => Err(Status::INVALID_FIELD),
            Err(_) => Err(Status::INVALID_NAMESPACE),
        }
    }

    /// The highest number of a namespace.
    pub(crate) fn highest(&self) -> u32 {
        self.volumes.last().map_or(0, |namespace| namespace.number)
    }

    /// Makes all namespaces durable.
    pub(crate) async fn flush(&self) -> Result<(), Status> {
        for namespace in self.volumes.iter() {
            namespace.device.flush().await.map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    /// Notes an error of a device.
    pub(crate) fn failed(&self, error: &Error) -> Status {
        if error.kind() == Kind::Corrupt {
            self.counters.media_errors.fetch_add(1, Ordering::Relaxed);
        }
        tracing::debug!(%error, "a command failed");
        Status::of_error(error)
    }

    /// Switches the write cache of a controller, and of later ones of its host: one that has switched it off does not
    /// flush, and would not hear that a new association caches again.
    pub(crate) async fn set_cache(&self, controller: &Controller, on: bool) -> Result<(), Status> {
        let host = controller.host();
        {
            let mut uncached = self.uncached.lock();
            if on {
                uncached.remove(&host);
            } else if uncached.len() < UNCACHED || uncached.contains(&host) {
                uncached.insert(host.clone());
            } else {
                tracing::warn!("too many hosts have switched the write cache off; one more is refused");
                return Err(Status::INTERNAL);
            }
        }
        let was = controller.caches.swap(on, Ordering::Relaxed);
        // What was cached must be durable before the answer.
        if was
            && !on
            && let Err(status) = self.flush().await
        {
            controller.caches.store(true, Ordering::Relaxed);
            self.uncached.lock().remove(&host);
            return Err(status);
        }
        Ok(())
    }

    /// The property CAP: entries of a queue, contiguous, 7.5 s to become ready, the NVM command set.
    pub(crate) fn capabilities(&self) -> u64 {
        u64::from(self.options.entries - 1) | 1 << 16 | 15 << 24 | 1 << 37
    }
}

impl State {
    /// Whether the controller was disabled and has I/O queues still.
    fn is_resetting(&self) -> bool {
        self.configuration & ENABLED == 0 && self.queues.keys().any(|number| *number > 0)
    }
}

impl Controller {
    fn new(id: u16, is_discovery: bool, connect: &Connect, data: &ConnectData, options: &Options) -> Self {
        let state = State {
            configuration: 0,
            is_ready: false,
            is_fatal: false,
            is_shut_down: false,
            keep_alive: None,
            heard: Instant::now(),
            features: HashMap::new(),
            granted: 0,
            queues: HashMap::new(),
            failures: VecDeque::new(),
            events: 0,
        };
        let controller = Self {
            id,
            is_discovery,
            host: data.host.clone(),
            host_id: data.host_id,
            ended: CancellationToken::new(),
            over: CancellationToken::new(),
            caches: AtomicBool::new(true),
            state: Mutex::new(state),
            results: Mutex::new(Results::new(options.results)),
            errors: AtomicU64::new(0),
        };
        controller.set_keep_alive(connect.keep_alive);
        controller
    }

    fn add_queue(&self, number: u16) -> Result<Arc<Queue>, Status> {
        let mut state = self.state.lock();
        if number > 0 && !state.is_ready || self.ended.is_cancelled() {
            return Err(Status::SEQUENCE);
        }
        if number > state.granted {
            return Err(Status::CONNECT_PARAMETERS);
        }
        if state.queues.contains_key(&number) {
            return Err(Status::CONNECT_BUSY);
        }
        let queue = Arc::new(Queue { ended: self.ended.child_token(), ..Queue::default() });
        state.queues.insert(number, Arc::clone(&queue));
        Ok(queue)
    }

    /// The host, by its name and identity.
    fn host(&self) -> (String, [u8; 16]) {
        (self.host.clone(), self.host_id)
    }

    /// The host's identity.
    pub(crate) fn host_id(&self) -> [u8; 16] {
        self.host_id
    }

    /// Rounds up to whole seconds, the unit of the timer.
    pub(crate) fn set_keep_alive(&self, milliseconds: u32) {
        let time = Duration::from_secs(u64::from(milliseconds).div_ceil(1000));
        self.state.lock().keep_alive = (milliseconds > 0).then_some(time);
    }

    /// When the host counts as gone: it was silent for twice the time that it promised, so that a slow network ends no
    /// association.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let state = self.state.lock();
        state.keep_alive.map(|time| state.heard + 2 * time)
    }

    /// Waits until the association is over or is heard of after `since`; ends it where it breaks the host's promise.
    async fn end_or_hear(&self, since: Instant) {
        while !self.over.is_cancelled() {
            let (heard, promise) = {
                let state = self.state.lock();
                (state.heard, state.keep_alive)
            };
            if !self.ended.is_cancelled() {
                if heard > since {
                    return;
                }
                if promise.map_or(since + UNPROMISED, |time| heard + time) <= Instant::now() {
                    tracing::warn!(controller = self.id, "ended an association: its host has made a new one, and is silent on this");
                    self.ended.cancel();
                }
            }
            let _ = tokio::time::timeout(LOOK, self.over.cancelled()).await;
        }
    }

    pub(crate) fn hear(&self) {
        self.state.lock().heard = Instant::now();
    }

    pub(crate) fn property(&self, subsystem: &Subsystem, at: u32) -> Option<u64> {
        let state = self.state.lock();
        Some(match at {
            property::CAPABILITIES => subsystem.capabilities(),
            property::VERSION => VERSION.into(),
            property::CONFIGURATION => state.configuration.into(),
            property::STATUS => {
                u64::from(state.is_ready || state.is_resetting()) | u64::from(state.is_fatal) << 1 | if state.is_shut_down { 2 << 2 } else { 0 }
            }
            _ => return None,
        })
    }

    /// Changes the configuration. Whether the host now wants to shut down.
    ///
    /// # Errors
    /// `SEQUENCE` where the host enables the controller before a reset is complete.
    pub(crate) fn configure(&self, configuration: u32) -> Result<bool, Status> {
        let mut state = self.state.lock();
        let (was, is) = (state.configuration & ENABLED != 0, configuration & ENABLED != 0);
        if is && state.is_resetting() {
            return Err(Status::SEQUENCE);
        }
        let begins_shutdown = configuration & SHUTDOWN != 0 && state.configuration & SHUTDOWN == 0;
        state.configuration = configuration;
        if is && !was {
            let fits = configuration & PAGE_AND_SET == 0 && (self.is_discovery || configuration & ENTRY_SIZES == USUAL_ENTRY_SIZES);
            (state.is_ready, state.is_fatal, state.is_shut_down) = (fits, !fits, false);
        }
        if was && !is {
            (state.is_ready, state.is_fatal) = (false, false);
            // A reset ends all I/O queues; it is complete, and the status says so, when their commands are over.
            state.queues.iter().filter(|(number, _)| **number > 0).for_each(|(_, queue)| queue.ended.cancel());
        }
        Ok(begins_shutdown)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.state.lock().is_ready
    }

    pub(crate) fn shut_down(&self) {
        self.state.lock().is_shut_down = true;
    }

    /// How writes are acknowledged.
    pub(crate) fn durability(&self, demanded: bool) -> Durability {
        if demanded || !self.caches.load(Ordering::Relaxed) { Durability::Durable } else { Durability::Cached }
    }

    pub(crate) fn note_failure(&self, failure: Failure) {
        let number = self.errors.fetch_add(1, Ordering::Relaxed) + 1;
        let mut state = self.state.lock();
        state.failures.push_front(Failure { number, ..failure });
        state.failures.truncate(ERRORS);
    }
}
