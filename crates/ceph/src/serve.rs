//! The engine process next to an OSD.
//!
//! It listens on a Unix socket that only its own user and root may use. Each connection is one call: the class sends a
//! request, gives the object's bytes, and gets a response. A plan that never gives way cannot be ended from outside, so
//! the process ends itself, and its supervisor starts it again; the OSD does not notice.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use parking_lot::Mutex;
use skytether_ceph_protocol::proxy::{Frame, MAX_READ};
use skytether_ceph_protocol::{Refusal, Request, Response};
use skytether_common::{Error, Result};
use skytether_engine::{Engine, Reader};
use skytether_store::memory::MemoryStore;
use tokio::net::UnixListener;
use tokio::runtime::Handle;

use crate::evaluate::{Pooled, evaluate};
use crate::object::ObjectBytes;
use crate::stripes::Stripes;

/// How long one step of a conversation may take: more than a class waits.
const STEP: Duration = Duration::from_millis(2500);

/// How long a plan may go on after its deadline, until the process ends itself.
const STUCK: Duration = Duration::from_secs(5);

/// Calls that wait for a turn, for each one that runs.
const WAITING: usize = 4;

/// Engines by the memory that requests ask for: a client mostly asks for the same.
const ENGINES: usize = 8;

/// What an engine process may use.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The OSD's number.
    pub osd: u32,
    /// The socket.
    pub socket: PathBuf,
    /// Bytes of memory of all plans together.
    pub memory: u64,
    /// Plans that run at the same time.
    pub concurrent: usize,
}

struct Server {
    options: EngineOptions,
    engines: Mutex<BTreeMap<u64, Pooled>>,
    stripes: Arc<Stripes>,
    calls: AtomicUsize,
    /// When each running plan must have ended.
    running: Mutex<BTreeMap<u64, Instant>>,
    next: AtomicU64,
}

/// Listens at `path`, in place of an engine that has ended.
fn listen(path: &Path) -> Result<UnixListener> {
    let failed =
        |e: io::Error| Error::unavailable(format!("cannot listen at {}: make its folder, owned by the user of the OSDs", path.display())).with_source(e);
    match UnixStream::connect(path) {
        Ok(_) => return Err(Error::conflict(format!("another engine listens at {}: end it first", path.display()))),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed)?,
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Bounds what the process can allocate: a plan that escapes the accounts of its memory ends the process, and not the
/// machine with the OSD.
fn bound_memory(budget: u64) {
    let most = budget.saturating_mul(2).saturating_add(2 << 30);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the limit lives during the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) } != 0 {
        tracing::warn!(error = %io::Error::last_os_error(), "the memory of this process is not bounded");
    }
}

/// Serves calls until `shutdown` is ready.
///
/// # Errors
/// `Unavailable` where it can't listen, `Conflict` where another engine does.
pub async fn serve(options: EngineOptions, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
    bound_memory(options.memory);
    let listener = listen(&options.socket)?;
    // SAFETY: no arguments, and it never fails.
    let own = unsafe { libc::geteuid() };
    let server = Arc::new(Server {
        options: options.clone(),
        engines: Mutex::default(),
        stripes: Arc::new(Stripes::new(options.osd, options.concurrent, options.memory / 4)),
        calls: AtomicUsize::new(0),
        running: Mutex::default(),
        next: AtomicU64::new(0),
    });
    // The first call would wait for it.
    server.engine(options.memory)?;
    let watched = Arc::clone(&server);
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || watched.watch()).map_err(skytether_runtime::threads::no_more)?;
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a call could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == own || peer.uid() == 0 => {}
            _ => {
                tracing::warn!("a call of another user was refused");
                continue;
            }
        }
        let Ok(stream) = stream.into_std() else { continue };
        let (server, runtime) = (Arc::clone(&server), Handle::current());
        let begun = std::thread::Builder::new().name("call".to_owned()).spawn(move || server.call(stream, &runtime));
        if let Err(error) = begun {
            tracing::warn!(%error, "there is no thread for a call");
        }
    }
    // The class finds no socket then, rather than a dead one.
    if let Err(error) = std::fs::remove_file(&options.socket) {
        tracing::warn!(%error, socket = %options.socket.display(), "the socket was not removed");
    }
    Ok(())
}

impl Server {
    /// The engine for requests that ask for `memory` bytes.
    fn engine(&self, memory: u64) -> Result<Pooled> {
        let memory = memory.min(self.options.memory);
        let mut engines = self.engines.lock();
        if let Some(engine) = engines.get(&memory) {
            return Ok(engine.clone());
        }
        if engines.len() >= ENGINES {
            engines.pop_first();
        }
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(usize::try_from(memory).unwrap_or(usize::MAX)));
        let reader = Arc::new(Reader::sharing(Arc::new(MemoryStore::new()), 64));
        let engine = Engine::new(format!("osd.{}", self.options.osd), reader, Arc::clone(&pool), 1, self.options.concurrent)?;
        // All share the turns of the first one.
        let engine = match engines.values().next() {
            Some(first) => engine.with_turns(Arc::clone(first.engine.turns())),
            None => engine,
        };
        let engine = Pooled { engine: Arc::new(engine), pool };
        engines.insert(memory, engine.clone());
        Ok(engine)
    }

    /// Ends the process when a plan does not end.
    fn watch(&self) {
        loop {
            std::thread::sleep(Duration::from_millis(250));
            let now = Instant::now();
            if self.running.lock().values().any(|until| *until + STUCK < now) {
                tracing::error!("a plan does not end: this engine ends, to be started again");
                // SAFETY: nothing of this process is durable. An orderly end would wait for the plan.
                unsafe { libc::_exit(70) };
            }
        }
    }

    fn call(self: Arc<Self>, stream: UnixStream, runtime: &Handle) {
        let talk = || -> io::Result<()> {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(STEP))?;
            stream.set_write_timeout(Some(STEP))?;
            let class = Arc::new(FromClass { replies: Mutex::new(stream.try_clone()?), requests: Mutex::new(stream) });
            let first = Frame::read(&mut *class.replies.lock())?;
            let answer = match first {
                Frame::Hello => env!("CARGO_PKG_VERSION").as_bytes().to_vec(),
                Frame::Run(request) => self.run(&request, &class, runtime).encode(),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            Frame::Done(answer).write(&mut *class.requests.lock())
        };
        if let Err(error) = talk() {
            tracing::debug!(%error, "a class hung up");
        }
    }

    fn run(&self, request: &[u8], class: &Arc<FromClass>, runtime: &Handle) -> Response {
        let osd = Some(self.options.osd);
        let request = match Request::decode(request) {
            Ok(request) => request,
            Err(wrong) => return Response::refused(osd, Refusal::Invalid, wrong.to_string()),
        };
        let _turn = match Counted::one(&self.calls, self.options.concurrent * (1 + WAITING)) {
            Some(turn) => turn,
            None => return Response::refused(osd, Refusal::Busy, format!("{} calls are under way", self.calls.load(Ordering::Relaxed))),
        };
        let engine = match self.engine(request.limits.memory) {
            Ok(engine) => engine,
            Err(error) => return Response::refused(osd, Refusal::Internal, error.report()),
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running.lock().insert(number, Instant::now() + request.limits.deadline);
        let (bytes, stripes): (Arc<dyn ObjectBytes>, _) = (Arc::clone(class) as _, Arc::clone(&self.stripes));
        let work = runtime.spawn(async move { evaluate(&engine, &stripes, osd, request, bytes).await });
        let done = runtime.block_on(work);
        self.running.lock().remove(&number);
        done.unwrap_or_else(|error| Response::refused(osd, Refusal::Internal, format!("a defect while the plan ran: {error}")))
    }
}

/// One of a bounded number.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn one(of: &'a AtomicUsize, most: usize) -> Option<Self> {
        let own = Self(of);
        (of.fetch_add(1, Ordering::AcqRel) < most).then_some(own)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The object, as the class reads it. Requests and replies have locks of their own: the last answer may be sent while a
/// thread still waits for bytes.
struct FromClass {
    requests: Mutex<UnixStream>,
    replies: Mutex<UnixStream>,
}

impl FromClass {
    fn chunk(&self, at: u64, len: u32) -> Result<Bytes> {
        let gone = |e: io::Error| Error::unavailable("the class hung up").with_source(e);
        let mut replies = self.replies.lock();
        Frame::Read { at, len }.write(&mut *self.requests.lock()).map_err(gone)?;
        match Frame::read(&mut *replies).map_err(gone)? {
            Frame::Data(Ok(bytes)) => Ok(bytes.into()),
            Frame::Data(Err(code)) if code == -libc::EOPNOTSUPP => {
                Err(Error::unsupported("an object class of this release can't read objects of an erasure-coded pool"))
            }
            Frame::Data(Err(code)) if code == -libc::ENOENT => Err(Error::not_found("the object is not there")),
            Frame::Data(Err(code)) => Err(Error::unavailable("the OSD can't read the object").with_source(io::Error::from_raw_os_error(-code))),
            _ => Err(Error::corrupt("the class sent a frame that is not its to send")),
        }
    }
}

impl ObjectBytes for FromClass {
    fn read(&self, at: u64, len: u64) -> Result<Bytes> {
        if len <= u64::from(MAX_READ) {
            return self.chunk(at, len as u32);
        }
        let mut whole = BytesMut::new();
        while (whole.len() as u64) < len {
            let next = self.chunk(at + whole.len() as u64, (len - whole.len() as u64).min(MAX_READ.into()) as u32)?;
            if next.is_empty() {
                break;
            }
            whole.extend_from_slice(&next);
        }
        Ok(whole.freeze())
    }
}
