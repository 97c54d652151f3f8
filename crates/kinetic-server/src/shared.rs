//! What all connections of one drive share.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use skytether_common::{Context, Kind, Result};
use skytether_device::Cse;
use skytether_kinetic_protocol::log::Interface;
use skytether_kinetic_protocol::{Limits, Refusal, StatusCode};
use skytether_kv::{Change, Durability, Failed, KeyValues, Why};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::chain::Chain;
use crate::counters::Counters;
use crate::options::Options;
use crate::program_list::Programs;
use crate::settings::Settings;
use crate::turns::Turns;
use crate::usage::{self, Usage};
use crate::watches::{self, Watches};

/// The KiB that open batches may take: two of the announced size, and what their members take without values.
const BATCHED_KIB: usize = 160 << 10;

/// How long a wrong PIN keeps all others waiting.
const WRONG_PIN: Duration = Duration::from_secs(1);

/// Scans and other long work at the same time; more of it waits.
const LONG_WORK: usize = 2;

/// Lines that the drive's log keeps.
const LOG_LINES: usize = 200;

/// One drive behind its Kinetic ports.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) keys: Arc<KeyValues>,
    /// Slices, and the engine.
    pub(crate) drive: Arc<dyn Cse>,
    pub(crate) options: Options,
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) usage: Usage,
    pub(crate) programs: Arc<Programs>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) opened: Instant,
    settings: RwLock<Arc<Settings>>,
    /// Held while settings change, so that no change is lost.
    pub(crate) changing: tokio::sync::Mutex<()>,
    locked: AtomicBool,
    asleep: AtomicBool,
    /// Whether the server demands authentication: the key that all new drives have is then no proof.
    demanding: AtomicBool,
    /// Grows with each erasure: batches of before are void.
    erased: AtomicU64,
    /// A program's request holds it until its write has its place. So no write follows the erasure that ends a program.
    pub(crate) erasing: tokio::sync::RwLock<()>,
    batched: Arc<Semaphore>,
    pub(crate) long_work: Arc<Turns>,
    pub(crate) open_batches: AtomicU64,
    next_connection: AtomicI64,
    pub(crate) port: AtomicU16,
    pub(crate) tls_port: AtomicU16,
    interfaces: RwLock<Vec<Interface>>,
    log: Mutex<VecDeque<String>>,
}

impl Shared {
    /// The drive over its store; it is locked where a lock PIN is set.
    pub(crate) fn open(keys: Arc<KeyValues>, drive: Arc<dyn Cse>, options: Options) -> Result<Self> {
        options.check()?;
        let settings = Settings::read(keys.settings()?).context(|| drive.info().name.clone())?;
        let locked = settings.lock_pin().is_set();
        // Connections of one start differ from those of another, so that a client notices a restart.
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let start = i64::try_from(start).unwrap_or_default();
        let shared = Self {
            limits: options.profile.limits(),
            usage: Usage::new(options.directory.clone()),
            keys,
            drive,
            options,
            counters: Counters::default(),
            programs: Arc::default(),
            watches: Arc::default(),
            opened: Instant::now(),
            settings: RwLock::new(Arc::new(settings)),
            changing: tokio::sync::Mutex::new(()),
            locked: AtomicBool::new(locked),
            asleep: AtomicBool::new(false),
            demanding: AtomicBool::new(false),
            erased: AtomicU64::new(0),
            erasing: tokio::sync::RwLock::new(()),
            batched: Arc::new(Semaphore::new(BATCHED_KIB)),
            long_work: Turns::new(LONG_WORK),
            open_batches: AtomicU64::new(0),
            next_connection: AtomicI64::new(start),
            port: AtomicU16::new(0),
            tls_port: AtomicU16::new(0),
            interfaces: RwLock::default(),
            log: Mutex::new(VecDeque::new()),
        };
        if shared.options.native_programs {
            shared.note("runs native programs");
        }
        shared.note(if locked { "opened; locked by its PIN" } else { "opened" });
        Ok(shared)
    }

    /// Where the drive listens.
    pub(crate) fn interfaces(&self) -> Vec<Interface> {
        self.interfaces.read().clone()
    }

    /// Notes a port: the drive tells clients of it.
    pub(crate) fn listens(&self, address: SocketAddr, tls: bool) {
        let port = if tls { &self.tls_port } else { &self.port };
        port.store(address.port(), Ordering::Relaxed);
        if address.ip().is_unspecified() {
            // It listens on all, and does not know which.
            return;
        }
        let interface = usage::interface(address.ip());
        let mut interfaces = self.interfaces.write();
        if !interfaces.contains(&interface) {
            interfaces.push(interface);
        }
    }

    /// A number that no other connection has.
    pub(crate) fn next_connection(&self) -> i64 {
        self.next_connection.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }

    /// Makes `settings` durable, and then valid. The caller holds [`Self::changing`].
    pub(crate) async fn change_settings(&self, settings: Settings) -> Result<(), Refusal> {
        self.keys.set_settings(settings.to_bytes()).await.map_err(|e| refusal(&e))?;
        let settings = Arc::new(settings);
        *self.settings.write() = Arc::clone(&settings);
        // Afterwards: a watch that is set meanwhile is of an identity of before.
        if self.watches.keep(|watch| watch.owner.is_in(&settings)) > 0 {
            self.programs.abort_watched();
        }
        Ok(())
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Acquire)
    }

    pub(crate) fn set_locked(&self, locked: bool) {
        self.locked.store(locked, Ordering::Release);
        if locked {
            self.programs.abort_watched();
        }
        self.note(if locked { "locked" } else { "unlocked" });
    }

    pub(crate) fn is_demanding(&self) -> bool {
        self.demanding.load(Ordering::Relaxed)
    }

    pub(crate) fn set_demanding(&self, demanding: bool) {
        self.demanding.fetch_or(demanding, Ordering::Relaxed);
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }

    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Release);
        self.note(if asleep { "hibernates" } else { "works" });
    }

    /// How many erasures there were.
    pub(crate) fn erasures(&self) -> u64 {
        self.erased.load(Ordering::Acquire)
    }

    /// Removes all keys and settings, and ends all programs and watches. The caller holds [`Self::changing`].
    pub(crate) async fn erase(&self, secure: bool) -> Result<(), Refusal> {
        {
            let _erasing = self.erasing.write().await;
            self.erased.fetch_add(1, Ordering::AcqRel);
        }
        self.watches.keep(|_| false);
        self.programs.abort_all();
        let erased = self.keys.erase(secure).await;
        // After an error, too: all may be removed, and only old files remain.
        let settings = self.keys.settings().and_then(Settings::read).map_err(|e| refusal(&e))?;
        if !settings.lock_pin().is_set() {
            self.locked.store(false, Ordering::Release);
        }
        *self.settings.write() = Arc::new(settings);
        // Once more: one may have been set meanwhile.
        self.watches.keep(|_| false);
        self.note(match (&erased, secure) {
            (Ok(()), false) => "erased",
            (Ok(()), true) => "erased securely",
            (Err(_), _) => "an erasure failed",
        });
        erased.map_err(|e| refusal(&e))
    }

    /// Writes what a program makes, unless the drive was erased since `erasures` were counted: nothing of a program
    /// follows an erasure.
    /// `chain` are the watches whose runs led to it.
    pub(crate) async fn write_of_program(&self, chain: &Chain, change: Change, erasures: u64) -> Result<(), Refusal> {
        let failed = |failed: Failed| write_refusal(&failed.why);
        let (seen, writing) = {
            let _begun = self.erasing.read().await;
            if self.erasures() != erasures {
                return Err(Refusal::new(StatusCode::InvalidExecute, "the drive was erased while the program ran"));
            }
            let changes = vec![change];
            (self.watches.seen(chain, &changes), self.keys.begin(changes, Durability::Back).await.map_err(failed)?)
        };
        watches::told(seen, writing).await.map_err(failed)
    }

    /// Notes a wrong PIN, and waits. The caller holds [`Self::changing`], so that all connections together have one
    /// guess in that time.
    pub(crate) async fn punish(&self) {
        self.note("a wrong PIN");
        tokio::time::sleep(WRONG_PIN).await;
    }

    /// Room for an operation of a batch; `None` where batches hold too much already.
    pub(crate) fn batch_room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.batched).try_acquire_many_owned(kib(bytes)).ok()
    }

    /// Adds a line to the drive's log.
    pub(crate) fn note(&self, what: &str) {
        tracing::info!(drive = self.drive.info().name, "kinetic: {what}");
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut log = self.log.lock();
        if log.len() >= LOG_LINES {
            log.pop_front();
        }
        log.push_back(format!("{at} {what}"));
    }

    /// The drive's log: a line for each event, with seconds since 1970.
    pub(crate) fn log_text(&self) -> String {
        let mut text = String::new();
        for line in self.log.lock().iter() {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// Permits for a number of bytes: at least one, so that empty values are bounded, too, and never more than there are.
fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024).clamp(1, BATCHED_KIB)).unwrap_or(u32::MAX)
}

/// What a client learns of an error of the store.
pub(crate) fn refusal(error: &skytether_common::Error) -> Refusal {
    let code = match error.kind() {
        Kind::NotFound => StatusCode::NotFound,
        Kind::Corrupt => StatusCode::PermDataError,
        Kind::Exhausted => StatusCode::NoSpace,
        Kind::Conflict => StatusCode::VersionMismatch,
        Kind::Invalid | Kind::Unsupported => StatusCode::InvalidRequest,
        Kind::Unavailable | Kind::Internal => StatusCode::InternalError,
    };
    Refusal::new(code, error.to_string())
}

/// What a client learns of a write that failed.
pub(crate) fn write_refusal(why: &Why) -> Refusal {
    match why {
        Why::VersionMismatch => Refusal::new(StatusCode::VersionMismatch, "the stored version is another one; read it again and decide"),
        Why::NotFound => Refusal::new(StatusCode::NotFound, "there is no such key"),
        Why::Error(error) => refusal(error),
    }
}

/// The deadline of a request that names a timeout in milliseconds; 0 is no limit.
pub(crate) fn deadline(received: Instant, timeout_ms: u64) -> Option<Instant> {
    (timeout_ms > 0).then(|| received.checked_add(Duration::from_millis(timeout_ms))).flatten()
}
