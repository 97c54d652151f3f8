//! Seconds per slice of a query, by the places of its code and its data: Figure 6 of the Skytether paper. It uses the
//! engine of drives and hosts.
//!
//! `slice_times FLEET PROFILE PLACE QUERY` runs the sub-plan of QUERY in one lane over the slices of the fleet's only
//! drive, in storage order. It prints CSV. Columns are the slice's number, its rows, the seconds of processor time at
//! that place, and the seconds until the next slice was done, with reading. `PLACE` is one of
//!
//! | place | code | data |
//! |---|---|---|
//! | `host` | in this process, at this machine's speed | on a disk of this machine |
//! | `served` | the same | at a drive that is served over loopback |
//! | `handed` | the same | at a drive like PROFILE, with its disk, its link, and its time to send slices raw |
//! | `drive` | on that drive's processor | on its disk |

use std::collections::VecDeque;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Error, Result};
use skytether_device::{Cse, CseInfo, DeliveryStream, Layer, OpenReply, Storage, SubPlan};
use skytether_drive::{Device, Drive, DriveOptions, linked, serve};
use skytether_emulation::Processor;
use skytether_engine::feed::{FetchedSlice, SliceFeed, SliceFetcher};
use skytether_engine::meter::{CpuSample, Meter};
use skytether_engine::remote::RemoteStore;
use skytether_engine::split_execution::{SplitExecution, Taken};
use skytether_engine::{Engine, Reader};
use skytether_flight_drive::{ConnectOptions, FlightCse};
use skytether_host::{Host, HostOptions, QueryOptions};
use skytether_plan::Pushdown;
use skytether_runtime::threads::{Threads, spawn_blocking_thread};
use skytether_scheduler::message::PushdownLevel;

const USAGE: &str = "usage: slice_times FLEET PROFILE host|served|handed|drive QUERY";

/// Bytes of memory for the sub-plan, and how long a drive may take to give a slice.
const MEMORY: usize = 1 << 30;
const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [fleet, profile, place, query] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let ran = tokio::runtime::Runtime::new()
        .map_err(|e| Error::exhausted("the system has no threads for this").with_source(e))
        .and_then(|runtime| runtime.block_on(run(Path::new(fleet), profile, place, query)));
    match ran {
        Ok(slices) => {
            println!("slice,rows,cpu_s,wall_s");
            slices.iter().for_each(|slice| println!("{},{},{:.9},{:.9}", slice.stripe, slice.rows, slice.cpu, slice.wall));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(fleet: &Path, profile: &str, place: &str, query: &str) -> Result<Vec<Took>> {
    let device = match place {
        "host" | "served" => None,
        "handed" | "drive" => Device::given(profile)?,
        other => return Err(Error::invalid(format!("there is no place {other}: {USAGE}"))),
    };
    let profile = device.as_ref().map(|device| device.profile);
    let drive = Drive::open(&fleet.join("drives").join("0"), None, DriveOptions::like(device, None))?;
    let plan = sub_plan(&drive, query).await?;
    let there = |storage: Arc<dyn Storage>| Reader::new(Arc::new(RemoteStore::new(storage, DEADLINE))).waiting_on(Arc::new(Threads::new(4)));
    let reader = match place {
        "host" => Reader::new(Arc::clone(drive.store())),
        "drive" => Reader::new(Arc::clone(drive.store())).paced(profile.map(|profile| Arc::new(Processor::new(&profile)))),
        "handed" => there(linked(Arc::clone(&drive) as _) as _),
        _ => {
            let listener =
                tokio::net::TcpListener::bind("127.0.0.1:0").await.map_err(|e| Error::unavailable("there is no port to serve a drive on").with_source(e))?;
            let address = listener.local_addr().map_err(|e| Error::unavailable("the port that a drive is served on has no address").with_source(e))?;
            tokio::spawn(serve(Arc::clone(&drive), listener, std::future::pending()));
            there(FlightCse::connect(&address.to_string(), ConnectOptions::default()).await?)
        }
    };
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(MEMORY));
    let engine = Arc::new(Engine::new(drive.info().name.clone(), Arc::new(reader), pool, 1, 1)?);
    let divided = match spawn_blocking_thread(move || futures::executor::block_on(engine.take(plan))).await? {
        Taken::Split(divided) => divided,
        Taken::Whole(_) => return Err(Error::invalid("the query has nothing that is done slice by slice: ask for more of a table of several slices")),
    };
    // A core takes as many times longer as it is slower.
    let speed = if place == "drive" { profile.map_or(1.0, |profile| profile.speed_per_core) } else { 1.0 };
    let timed = Arc::new(Timed::new(&divided, speed)?);
    let mut lane = divided.lane(PushdownLevel::Full, Arc::new(Clock(Arc::clone(&timed))), Arc::clone(&timed.meter))?;
    while lane.next().await?.is_some() {}
    let taken = std::mem::take(&mut timed.state().took);
    if taken.len() == divided.slice_manifest().len() { Ok(taken) } else { Err(Error::internal("not all slices were worked off")) }
}

/// What the host would send to `drive` for `query`.
async fn sub_plan(drive: &Arc<Drive>, query: &str) -> Result<SubPlan> {
    let spy = Arc::new(Spy { drive: Arc::clone(drive), plan: Mutex::default() });
    let host = Host::new(vec![Arc::clone(&spy) as _], HostOptions::default())?;
    let asked = host.sql(query, &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await?;
    let ended = asked.collect().await;
    let plan = spy.plan.lock().take();
    plan.ok_or_else(|| ended.err().unwrap_or_else(|| Error::invalid("the query sends nothing to drives")))
}

/// Keeps the sub-plan that it is sent, and runs nothing.
#[derive(Debug)]
struct Spy {
    drive: Arc<Drive>,
    plan: Mutex<Option<SubPlan>>,
}

impl Layer for Spy {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            *self.plan.lock() = Some(plan);
            Err(Error::unavailable("this sub-plan is run elsewhere"))
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move { Ok(OpenReply::Whole(Layer::execute(self, plan).await?)) })
    }
}

/// What a slice took.
#[derive(Debug, Clone, Copy)]
struct Took {
    stripe: u32,
    rows: u64,
    cpu: f64,
    wall: f64,
}

/// Gives all slices one after the other, and looks at the clocks when each is done.
struct Timed {
    fetcher: SliceFetcher,
    meter: Arc<Meter>,
    speed: f64,
    state: Mutex<State>,
}

struct State {
    waiting: VecDeque<(u32, u64)>,
    rows: u64,
    last: (CpuSample, Instant),
    took: Vec<Took>,
}

impl Timed {
    fn new(divided: &SplitExecution, speed: f64) -> Result<Self> {
        let waiting = divided.slice_manifest().iter().map(|stripe| (stripe.stripe, stripe.rows)).collect();
        let state = State { waiting, rows: 0, last: (CpuSample::default(), Instant::now()), took: Vec::new() };
        Ok(Self { fetcher: divided.fetcher(PushdownLevel::Full)?.clone(), meter: Arc::default(), speed, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

struct Clock(Arc<Timed>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

impl SliceFeed for Clock {
    fn next(&self) -> BoxFuture<'static, Option<Result<FetchedSlice>>> {
        let timed = Arc::clone(&self.0);
        let next = async move {
            let stripe = {
                let mut state = timed.state();
                let (stripe, rows) = state.waiting.pop_front()?;
                state.rows = rows;
                stripe
            };
            Some(timed.fetcher.fetch(stripe).await)
        };
        next.boxed()
    }

    fn done(&self, stripe: u32) {
        let now = (self.0.meter.read(true), Instant::now());
        let mut state = self.0.state();
        let before = std::mem::replace(&mut state.last, now);
        let (cpu, wall) = (now.0.since(before.0).cpu.as_secs_f64() / self.0.speed, now.1.duration_since(before.1).as_secs_f64());
        let rows = state.rows;
        state.took.push(Took { stripe, rows, cpu, wall });
    }
}
