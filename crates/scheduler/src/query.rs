//! The state machine of a parent: which CSE processes which slices of a query, at which pushdown level, and when to
//! plan again.
//!
//! Events and times go in ([`Query::handle`]), actions come out. The caller carries messages, holds counted batches,
//! processes raw and filtered slices, and calls again at [`Query::wake`].
//!
//! - `query/book.rs` records where slices and epochs are;
//! - `query/part.rs` describes a drive to the planner;
//! - `query/decide.rs` makes the decisions, and `query/feed.rs` carries them out;
//! - `query/hedge.rs` handles stragglers;
//! - `query/forecast.rs` reports expected times to people.
//!
//! See also `docs/internals/adaptive-execution.md`.

mod book;
mod decide;
mod feed;
mod forecast;
mod hedge;
mod part;

pub use forecast::{Expectation, Forecast, forecast};

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::cost::CostModel;
use crate::kinds::Kinds;
use crate::learn::Rate;
use crate::ledger::{Dropped, Ledger, Verdict};
use crate::message::{CseId, Down, EpochId, PushdownLevel, Seconds, Slice, SliceId, Up};
use crate::plan::{Plan, Share};
use crate::profile::Profile;
use crate::work::{Priors, Work};

/// How the pushdown level of slices is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The cost model.
    Adaptive,
    /// Everything at this pushdown level, whatever it costs: for experiments.
    Static(PushdownLevel),
}

/// Bounds and patience.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Seconds between heartbeats of a CSE that has work.
    pub heartbeat: Seconds,
    /// Seconds without a message after which the query gives up a CSE that has work.
    pub silence: Seconds,
    /// How often a CSE may fail before the query gives it up.
    pub retries: u32,
    /// Seconds before a CSE that failed gets work again.
    pub pause: Seconds,
    /// Seconds after which the query gives up a CSE that refuses everything.
    pub patience: Seconds,
    /// Bytes of slices that the parent holds at once, on their way or waiting.
    pub memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { heartbeat: 0.05, silence: 5.0, retries: 2, pause: 0.25, patience: 30.0, memory: 256 << 20 }
    }
}

/// What a query starts from.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The sub-plan, as far as its cost goes.
    pub work: Work,
    /// The parent. Its link is what it takes in from all CSEs together.
    pub host: Profile,
    /// The CSEs; [`CseId`] is an index.
    pub cses: Vec<Profile>,
    /// How the pushdown level of slices is chosen.
    pub policy: Policy,
    /// Bounds and patience.
    pub limits: Limits,
    /// Priors of the cost model.
    pub priors: Priors,
    /// Factors of operator kinds at each CSE, from earlier queries; empty where none are known.
    pub kinds: Vec<Kinds>,
    /// Whether slices come by [`Event::More`] until [`Event::NoMore`], as from a parent of this node that feeds an
    /// epoch.
    pub fed: bool,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<B> {
    /// These are the slices that `cse` has of the query, after pruning, in storage order. Once per CSE; until then it
    /// gets no orders.
    Surveyed {
        /// The CSE.
        cse: CseId,
        /// Its slices. Numbers are dense over the query: they index a table.
        slices: Vec<Slice>,
    },
    /// More slices of surveyed CSEs are part of the query. Only with [`Setup::fed`].
    More {
        /// The slices, whose numbers were not given before.
        slices: Vec<Slice>,
    },
    /// No more will be wanted.
    NoMore,
    /// A batch of an epoch: rows, states, or the stored bytes of slices.
    Batch {
        /// Whence it comes.
        cse: CseId,
        /// The epoch.
        epoch: EpochId,
        /// Its number in the epoch, from 0.
        number: u32,
        /// Bytes that moved.
        bytes: u64,
        /// The batch.
        batch: B,
    },
    /// Any other message.
    Up {
        /// Whence it comes.
        cse: CseId,
        /// The message.
        up: Up,
    },
    /// The parent has processed an epoch that was counted: decoded and aggregated slices, aggregated rows, or merged
    /// states.
    Worked {
        /// The epoch.
        epoch: EpochId,
        /// Processor seconds that it took.
        cpu: Seconds,
        /// Rows and bytes that filter and projection gave, where they ran above.
        filtered: Option<(u64, u64)>,
        /// Rows of slices that the aggregation above has seen so far, and the groups that it found in them.
        held: Option<(u64, u64)>,
    },
    /// Bytes of an epoch come from a CSE, although no message is complete. Without an epoch: the parent does not read
    /// the CSE's messages, so their absence means nothing. The caller repeats it at least every 40 ms for as long as
    /// that lasts. Meanwhile there are no orders.
    Alive {
        /// The CSE.
        cse: CseId,
        /// The epoch that the bytes are of.
        epoch: Option<EpochId>,
    },
    /// The connection to a CSE is broken.
    Lost {
        /// The CSE.
        cse: CseId,
        /// Whether it may come back.
        again: bool,
    },
    /// Time has passed.
    Tick,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action<B> {
    /// Send `down` to `cse`.
    Send {
        /// The CSE.
        cse: CseId,
        /// The message.
        down: Down,
    },
    /// These results count: merge them (`Full`), or run the residual over them and say [`Event::Worked`].
    Count {
        /// The epoch.
        epoch: EpochId,
        /// Whence it came.
        cse: CseId,
        /// The rung.
        rung: PushdownLevel,
        /// What it covers.
        slices: Vec<SliceId>,
        /// The batches, in order.
        batches: Vec<B>,
    },
    /// `cse` makes no progress although it sends heartbeats. The query gives up its open epochs. The caller must open
    /// another session to it, or to its failover target.
    Stuck {
        /// The CSE.
        cse: CseId,
        /// Seconds for which it has done nothing.
        seconds: Seconds,
    },
    /// Something did not count. If it is [garbage](Dropped::Garbage), the query gives up the open epochs of its CSE, as
    /// for [`Self::Stuck`]; otherwise the caller does nothing.
    Dropped {
        /// The epoch.
        epoch: EpochId,
        /// Why.
        why: Dropped,
    },
    /// Every slice is covered; no more orders follow, and nothing more counts.
    Finish,
    /// The query fails: `cse` has slices that no other CSE can read. No more orders follow, and nothing more counts.
    Fail {
        /// The CSE that is to blame.
        cse: CseId,
        /// A slice that is missing, if it is known which there are.
        slice: Option<SliceId>,
    },
}

/// Bytes of rows that may come from a CSE before those of an epoch that waits for its turn: several
/// times what CSEs let wait.
const QUEUED: f64 = (64 << 20) as f64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    Leaving,
    Begun,
    Done,
}

#[derive(Debug, Clone)]
struct SliceBook {
    slice: Slice,
    epochs: Vec<EpochId>,
    covered: bool,
}

#[derive(Debug, Clone)]
struct Epoch {
    cse: usize,
    rung: PushdownLevel,
    /// The number of the next order.
    number: u32,
    slices: BTreeMap<SliceId, Stage>,
    /// Slices that were put into it, ever.
    given: u32,
    closing: bool,
    hedge: bool,
    /// Whether it was opened to find out how many groups there are.
    probes: bool,
    /// How busy its CSE was when it was opened.
    load: f64,
    takes: BTreeMap<u32, Vec<SliceId>>,
    /// Slices that run, and the processor time that they had had at `heard`.
    running: Vec<(SliceId, Seconds)>,
    heard: Seconds,
    /// The most processor time that was reported of each slice that is not done.
    had: BTreeMap<SliceId, Seconds>,
    /// When it last showed progress: a slice began, had processor time or was done, rows came, or it reported that it
    /// waits for work. A heartbeat of its CSE is no progress.
    sound: Seconds,
    /// Bytes of rows of other epochs for which it was excused since it went on by itself.
    excused: f64,
    /// Whether its last message was that it waits for orders.
    waits: bool,
    /// Seconds for which it may show no progress, by its own report.
    slack: Seconds,
    rows_done: f64,
}

/// Bytes that have been on their way from a CSE all the time.
#[derive(Debug, Clone, Copy)]
struct Flow {
    since: Seconds,
    /// Bytes and batches that have come since.
    bytes: f64,
    batches: u32,
    /// Bytes that had come from all CSEs before.
    before: f64,
}

#[derive(Debug, Clone)]
struct CseBook {
    surveyed: bool,
    dead: bool,
    strikes: u32,
    heard: Seconds,
    paused_until: Seconds,
    refusing_since: Option<Seconds>,
    reach: Option<PushdownLevel>,
    reach_until: Seconds,
    pool: BTreeSet<SliceId>,
    /// The epoch that is fed.
    lane: Option<EpochId>,
    epochs: BTreeSet<EpochId>,
    raw_open: u32,
    raw_bytes: f64,
    flow: Option<Flow>,
    /// Bytes of slices that it sends raw.
    handed: Rate,
    /// Bytes that its progress reported, and bytes that have come.
    produced: f64,
    delivered: f64,
    /// Average slice: rows and bytes.
    rows: f64,
    bytes: f64,
    slices: f64,
    /// The plan's level for it, and what is still to be fed and to be taken.
    rung: Option<PushdownLevel>,
    feed_left: u32,
    raw_left: u32,
    /// Whether its slices stay with it for now, because it is being measured.
    learning: bool,
    /// Whether the parent has begun to process its raw or filtered slices.
    above_begun: bool,
    /// Seconds per slice that is sent raw, and the number to have under way.
    raw_each: Seconds,
    raw_pipe: u32,
    /// Seconds that one of them is on its way.
    raw_way: Seconds,
    /// Until when it is not to begin with work of its own.
    barred_until: Seconds,
    /// The number of slices that the last plans had it process.
    wanted: VecDeque<u32>,
    /// The number of plans in a row that had it process nothing.
    unwanted: u32,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    cse: usize,
    above: Seconds,
    bytes: f64,
    rows: f64,
    rung: PushdownLevel,
}

/// The machine. `B` is a batch.
#[derive(Debug, Clone)]
pub struct Query<B> {
    policy: Policy,
    limits: Limits,
    cost: CostModel,
    ledger: Ledger<B>,
    slices: Vec<Option<SliceBook>>,
    cses: Vec<CseBook>,
    epochs: BTreeMap<EpochId, Epoch>,
    next_epoch: u32,
    /// Bytes that have come from all CSEs.
    received: f64,
    /// Counted epochs that the parent is processing.
    waiting: BTreeMap<EpochId, Waiting>,
    plan: Plan,
    shares: Vec<Share>,
    planned_at: Seconds,
    plans: u32,
    planned_load: Vec<f64>,
    /// How many groups the plan reckoned with.
    planned_groups: f64,
    dirty: bool,
    /// Whether a plan knew of all drives what they have.
    whole: bool,
    /// Plans since something happened.
    idle: u32,
    /// The CSEs that have changed since their lane was last examined.
    touched: BTreeSet<usize>,
    ended: bool,
    /// Whether more slices may come.
    fed: bool,
    /// When the parent last reported that it does not read messages.
    deaf_at: Seconds,
    wake: Option<Seconds>,
    now: Seconds,
}

impl<B> Query<B> {
    /// A query that begins at time 0.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let cses = setup.cses.iter().map(|_| CseBook::default()).collect();
        let loads = vec![1.0; setup.cses.len()];
        Self {
            policy: setup.policy,
            limits: setup.limits,
            cost: CostModel::new(setup.work, setup.host, &setup.cses, setup.priors).with_kinds(&setup.kinds),
            ledger: Ledger::new(),
            slices: Vec::new(),
            cses,
            epochs: BTreeMap::new(),
            next_epoch: 0,
            received: 0.0,
            waiting: BTreeMap::new(),
            plan: Plan::default(),
            shares: Vec::new(),
            planned_at: f64::NEG_INFINITY,
            plans: 0,
            planned_load: loads,
            planned_groups: 0.0,
            dirty: true,
            whole: false,
            idle: 0,
            touched: BTreeSet::new(),
            ended: false,
            fed: setup.fed,
            deaf_at: f64::NEG_INFINITY,
            wake: Some(0.0),
            now: 0.0,
        }
    }

    /// Takes in `event` at time `now` (seconds since the query began, never decreasing) and returns what to do.
    pub fn handle(&mut self, now: Seconds, event: Event<B>) -> Vec<Action<B>> {
        let mut out = Vec::new();
        if self.ended {
            if let Event::Worked { epoch, .. } = event {
                self.waiting.remove(&epoch);
            }
            return out;
        }
        self.now = now.max(self.now);
        if !matches!(event, Event::Tick) {
            self.idle = 0;
        }
        match event {
            Event::Surveyed { cse, slices } => self.surveyed(cse, slices, &mut out),
            Event::More { slices } => self.wanted(slices, &mut out),
            Event::NoMore => {
                self.fed = false;
                self.dirty = true;
                self.touched.extend(0..self.cses.len());
            }
            Event::Batch { cse, epoch, number, bytes, batch } => {
                if let Some(book) = self.cses.get_mut(cse.0 as usize) {
                    book.heard = book.heard.max(now);
                    self.received += bytes as f64;
                    if let Some(open) = self.epochs.get_mut(&epoch).filter(|open| open.cse == cse.0 as usize) {
                        open.sound = now;
                        if open.rung == PushdownLevel::Raw {
                            book.handed.add(now, bytes as f64);
                        } else {
                            book.delivered += bytes as f64;
                        }
                        open.excused = 0.0;
                        let (at, rung) = (open.cse, open.rung);
                        // A drive sends raw slices one after the other and reports nothing in between, so an epoch that
                        // waits its turn is sound. A lane whose rows wait behind other rows is sound as well, up to
                        // `QUEUED` bytes.
                        for id in &self.cses[at].epochs {
                            let Some(other) =
                                self.epochs.get_mut(id).filter(|other| *id != epoch && (other.rung == PushdownLevel::Raw) == (rung == PushdownLevel::Raw))
                            else {
                                continue;
                            };
                            other.excused += bytes as f64;
                            if rung == PushdownLevel::Raw || other.excused <= QUEUED {
                                other.sound = now;
                            }
                        }
                        self.flows(at, bytes as f64);
                    }
                    let verdict = self.ledger.batch(cse, epoch, number, batch);
                    self.settled(cse, epoch, verdict, &mut out);
                }
            }
            Event::Up { cse, up } => {
                if let Some(book) = self.cses.get_mut(cse.0 as usize) {
                    book.heard = book.heard.max(now);
                    self.touched.insert(cse.0 as usize);
                    self.up(cse, up, &mut out);
                }
            }
            Event::Worked { epoch, cpu, filtered, held } => {
                if let Some((rows, states)) = held {
                    self.cost.states(rows as f64, states as f64, 1.0);
                }
                if let Some(done) = self.waiting.remove(&epoch) {
                    if done.rung != PushdownLevel::Full {
                        self.cses[done.cse].above_begun = true;
                    }
                    self.cost.worked(done.rung, done.rows, done.bytes, cpu, filtered);
                }
            }
            Event::Lost { cse, again } => {
                if (cse.0 as usize) < self.cses.len() {
                    self.lost(cse.0 as usize, again, &mut out);
                }
            }
            Event::Alive { cse, epoch } => {
                if let Some(book) = self.cses.get_mut(cse.0 as usize) {
                    book.heard = book.heard.max(now);
                }
                if epoch.is_none() {
                    self.deaf_at = now;
                }
                for open in self.epochs.iter_mut().filter(|(id, open)| open.cse == cse.0 as usize && epoch.is_none_or(|epoch| **id == epoch)) {
                    open.1.sound = now;
                }
            }
            Event::Tick => {}
        }
        if !self.ended {
            self.decide(&mut out);
        }
        out
    }

    /// When to call [`Self::handle`] with a [`Event::Tick`] if nothing else happens before.
    #[must_use]
    pub fn wake(&self) -> Option<Seconds> {
        self.wake
    }

    /// How many more slices [`Event::More`] should bring next, so that no CSE waits.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.ended || !self.fed {
            return 0;
        }
        // Without any live CSE, the query must see the end of its input, or fail by the next slice.
        if self.cses.iter().all(|cse| cse.dead) {
            return 1;
        }
        let wanted: usize = (0..self.cses.len()).filter(|at| self.usable(*at)).map(|at| self.window(at, PushdownLevel::Full) + 1).sum();
        let there: usize = (0..self.cses.len()).map(|at| self.cses[at].pool.len() + self.under_way(at)).sum();
        wanted.saturating_sub(there)
    }

    /// The same query, with costs that another query measured: the value of [`Self::cost`] after the same work over the
    /// same drives.
    #[must_use]
    pub fn with_cost(self, cost: CostModel) -> Self {
        if cost.drives() == self.cses.len() { Self { cost: cost.again(), ..self } } else { self }
    }

    /// Whether [`Action::Finish`] or [`Action::Fail`] was given.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The cost model as it is now, for `explain` and for the next query.
    #[must_use]
    pub fn cost(&self) -> &CostModel {
        &self.cost
    }

    /// The last plan: when it expects the end (seconds after [`Self::planned_at`]), and each CSE's share.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// When the last plan was made.
    #[must_use]
    pub fn planned_at(&self) -> Seconds {
        self.planned_at
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger<B> {
        &self.ledger
    }

    fn settled(&mut self, cse: CseId, epoch: EpochId, verdict: Verdict<B>, out: &mut Vec<Action<B>>) {
        match verdict {
            Verdict::Held => {}
            Verdict::Counted { slices, batches } => self.counted(cse, epoch, slices, batches, out),
            Verdict::Dropped(why) => {
                out.push(Action::Dropped { epoch, why });
                match why {
                    // No message of this CSE can be trusted any more. The caller must open another session to it, or to
                    // its failover target.
                    Dropped::Garbage => self.lost(cse.0 as usize, true, out),
                    Dropped::Overlap => self.abandon(epoch, out),
                    Dropped::Unknown | Dropped::Late | Dropped::Revoked => {}
                }
            }
        }
    }
}
