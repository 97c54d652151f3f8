//! The state machine of a CSE: which epochs it accepts, which slice it begins next, when an epoch ends, and when it
//! returns work by itself.
//!
//! There is one [`Drive`] per query. The caller (a drive's executor, or the simulator) carries out each [`Effect`] and
//! reports what it has done. It asks for slices with [`Drive::next`] whenever a scan of the sub-plan wants one.
//! [`admit`] decides over all queries of the CSE.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::message::{CloseAfter, Completed, Down, EpochId, Order, PushdownLevel, Seconds, SliceCost, SliceId, Up, Why};

/// The limits of a CSE, and their use by all queries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// Epochs that run or wait at levels above `raw`.
    pub epochs: u32,
    /// The most of them.
    pub max_epochs: u32,
    /// Bytes of memory in use.
    pub memory_used: u64,
    /// Bytes that there are.
    pub memory_limit: u64,
    /// How many times their processor time slices take now (1 on an idle CSE).
    pub load: f64,
    /// The load from which on sub-plans are refused.
    pub max_load: f64,
    /// Seconds until it is expected to be better.
    pub relief: Seconds,
}

impl Pressure {
    /// Nothing in use and no bounds.
    pub const NONE: Self = Self { epochs: 0, max_epochs: u32::MAX, memory_used: 0, memory_limit: u64::MAX, load: 1.0, max_load: f64::INFINITY, relief: 0.1 };
}

/// The answer to an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Answer {
    /// It is taken on.
    Accept,
    /// It is not.
    Refuse {
        /// The highest pushdown level that it accepts now.
        accepts: Option<PushdownLevel>,
        /// Seconds after which to ask again.
        again: Seconds,
        /// Why.
        why: Why,
    },
}

/// Memory that is kept free for sending raw slices, as a share.
const RESERVE: f64 = 0.1;

/// Divisor of the memory that an epoch needs if it only filters and projects: it holds no state, only a few batches.
const STATELESS: u64 = 8;

/// Whether to take an epoch on at `rung`; to begin with, one at `full` needs `memory` bytes at most.
#[must_use]
pub fn admit(rung: PushdownLevel, memory: u64, pressure: &Pressure) -> Answer {
    let again = pressure.relief.clamp(0.001, 60.0);
    let free = pressure.memory_limit.saturating_sub(pressure.memory_used);
    if rung == PushdownLevel::Raw {
        // Sending raw takes the memory of a slice or two. Only a CSE without any free memory refuses it.
        return if free == 0 { Answer::Refuse { accepts: None, again, why: Why::Memory } } else { Answer::Accept };
    }
    let usable = (pressure.memory_limit as f64 * (1.0 - RESERVE)) as u64;
    let fits = |bytes: u64| pressure.memory_used.saturating_add(bytes) <= usable;
    let stateless = memory / STATELESS;
    if !fits(if rung == PushdownLevel::Filter { stateless } else { memory }) {
        let accepts = if rung == PushdownLevel::Full && fits(stateless) { PushdownLevel::Filter } else { PushdownLevel::Raw };
        return Answer::Refuse { accepts: Some(accepts), again, why: Why::Memory };
    }
    if pressure.epochs >= pressure.max_epochs {
        return Answer::Refuse { accepts: Some(PushdownLevel::Raw), again, why: Why::Queue };
    }
    if pressure.load >= pressure.max_load {
        return Answer::Refuse { accepts: Some(PushdownLevel::Raw), again, why: Why::Speed };
    }
    Answer::Accept
}

/// An action that the executor must carry out.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Set up the sub-plan of an epoch at a rung; its scan asks [`Drive::next`].
    Begin {
        /// The epoch.
        epoch: EpochId,
        /// The rung.
        rung: PushdownLevel,
    },
    /// Slices came into a queue or left it, or an epoch is closing: ask [`Drive::next`] again where it returned
    /// [`Next::Wait`].
    Look,
    /// Tear down an epoch; none of its results may be sent any more.
    Forget {
        /// The epoch.
        epoch: EpochId,
    },
    /// Send a message up.
    Say(Up),
}

/// The answer to a scan that asks for its next slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This one; it is begun now.
    Slice(SliceId),
    /// None at present.
    Wait,
    /// The end of the input.
    End,
}

/// What an executor measures.
pub trait Meters {
    /// Core seconds that its own threads wanted, divided by those that they got, since the last call: see
    /// [`Up::Progress`].
    fn load(&self) -> f64;
    /// Processor seconds that a slice that runs has had.
    fn cpu(&self, epoch: EpochId, slice: SliceId) -> Seconds;
    /// Seconds for which it may show no progress, in addition to the time of its slices: see [`Up::Progress`].
    fn slack(&self) -> Seconds {
        0.0
    }
}

/// What an epoch gave, as its executor counted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Totals {
    /// Batches sent.
    pub batches: u32,
    /// Rows of them.
    pub rows: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes read from the disk.
    pub bytes_read: u64,
}

#[derive(Debug, Clone)]
struct Epoch {
    rung: PushdownLevel,
    close: CloseAfter,
    next_order: u32,
    queue: VecDeque<SliceId>,
    known: BTreeSet<SliceId>,
    running: BTreeSet<SliceId>,
    done: Vec<SliceId>,
    unreported: Vec<SliceCost>,
    begun: u32,
    opened: Seconds,
    first: Option<Seconds>,
    heard: Seconds,
    draining: bool,
    stopping: bool,
    cpu: Seconds,
    pending: (u64, u64),
}

/// The most orders that are kept because they came before their turn.
const MAX_EARLY: usize = 4096;

/// The machine of one query on one CSE.
#[derive(Debug, Clone, Default)]
pub struct Drive {
    epochs: BTreeMap<EpochId, Epoch>,
    ended: BTreeSet<EpochId>,
    early: BTreeMap<(EpochId, u32), Order>,
}

impl Drive {
    /// A CSE that has nothing of the query yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a message in; `memory` is what an epoch at `full` needs to begin with.
    pub fn order(&mut self, now: Seconds, down: Down, memory: u64, pressure: &Pressure) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.ended.contains(&down.epoch) {
            return effects;
        }
        if down.order == Order::Cancel {
            // A cancel ends the epoch even if earlier orders are missing. A restart of this CSE may have lost one, and
            // the epoch's results are no longer wanted.
            self.ended.insert(down.epoch);
            self.early.retain(|(epoch, _), _| *epoch != down.epoch);
            if self.epochs.remove(&down.epoch).is_some() {
                effects.push(Effect::Forget { epoch: down.epoch });
            }
            return effects;
        }
        let turn = self.epochs.get(&down.epoch).map_or(0, |epoch| epoch.next_order);
        if down.number > turn && self.early.len() < MAX_EARLY {
            self.early.insert((down.epoch, down.number), down.order);
        } else if down.number == turn {
            let id = down.epoch;
            let mut order = Some(down.order);
            while let Some(now_due) = order.take() {
                self.apply(now, id, now_due, memory, pressure, &mut effects);
                let next = self.epochs.get(&id).map(|epoch| epoch.next_order);
                order = next.and_then(|next| self.early.remove(&(id, next)));
            }
            if self.ended.contains(&id) {
                self.early.retain(|(epoch, _), _| *epoch != id);
            }
        }
        effects
    }

    fn apply(&mut self, now: Seconds, id: EpochId, order: Order, memory: u64, pressure: &Pressure, effects: &mut Vec<Effect>) {
        if let Order::Open { rung, slices, close } = order {
            if let Answer::Refuse { accepts, again, why } = admit(rung, memory, pressure) {
                self.ended.insert(id);
                effects.push(Effect::Say(Up::Refused { epoch: id, accepts, again, why }));
                return;
            }
            let mut epoch = Epoch {
                rung,
                close,
                next_order: 1,
                queue: VecDeque::new(),
                known: BTreeSet::new(),
                running: BTreeSet::new(),
                done: Vec::new(),
                unreported: Vec::new(),
                begun: 0,
                opened: now,
                first: None,
                heard: now,
                draining: close.drained,
                stopping: false,
                cpu: 0.0,
                pending: (0, 0),
            };
            epoch.add(slices);
            self.epochs.insert(id, epoch);
            effects.push(Effect::Say(Up::Accepted { epoch: id }));
            effects.push(Effect::Begin { epoch: id, rung });
            return;
        }
        let Some(epoch) = self.epochs.get_mut(&id) else { return };
        let number = epoch.next_order;
        epoch.next_order += 1;
        match order {
            // Both are handled above.
            Order::Open { .. } | Order::Cancel => {}
            Order::Feed { slices } => {
                epoch.add(slices);
                effects.push(Effect::Look);
            }
            Order::Take { slices } => {
                let wanted: BTreeSet<SliceId> = slices.into_iter().collect();
                let (given, kept): (Vec<SliceId>, Vec<SliceId>) = epoch.queue.iter().partition(|slice| wanted.contains(slice));
                epoch.queue = kept.into();
                for slice in &given {
                    epoch.known.remove(slice);
                }
                effects.push(Effect::Say(Up::Taken { epoch: id, number, slices: given }));
                effects.push(Effect::Look);
            }
            Order::Close { drain } => {
                if drain {
                    epoch.draining = true;
                } else {
                    epoch.stopping = true;
                    epoch.queue.clear();
                }
                effects.push(Effect::Look);
            }
        }
    }

    /// The open epochs at levels above `raw` (with `raw`: at `raw`), in the order in which they are served.
    pub fn open(&self, raw: bool) -> impl Iterator<Item = EpochId> + '_ {
        self.epochs.iter().filter(move |(_, epoch)| (epoch.rung == PushdownLevel::Raw) == raw).map(|(id, _)| *id)
    }

    /// The pushdown level of an open epoch.
    #[must_use]
    pub fn rung(&self, epoch: EpochId) -> Option<PushdownLevel> {
        self.epochs.get(&epoch).map(|epoch| epoch.rung)
    }

    /// The slices that begin next at levels above `raw`, in order: for prefetching.
    pub fn ahead(&self) -> impl Iterator<Item = (EpochId, SliceId)> + '_ {
        self.epochs
            .iter()
            .filter(|(_, epoch)| epoch.rung != PushdownLevel::Raw && !epoch.stopping)
            .flat_map(|(id, epoch)| epoch.queue.iter().map(|slice| (*id, *slice)))
    }

    /// Slices that wait or are being processed, of all epochs.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.epochs.values().map(|epoch| epoch.queue.len() + epoch.running.len()).sum()
    }

    /// The scan of `epoch` asks for its next slice.
    pub fn next(&mut self, now: Seconds, epoch: EpochId) -> Next {
        let Some(epoch) = self.epochs.get_mut(&epoch) else { return Next::End };
        let due =
            epoch.close.slices.is_some_and(|most| epoch.begun >= most) || epoch.close.seconds.zip(epoch.first).is_some_and(|(most, first)| now - first >= most);
        if due {
            epoch.stopping = true;
        }
        if epoch.stopping {
            return Next::End;
        }
        match epoch.queue.pop_front() {
            Some(slice) => {
                epoch.begun += 1;
                epoch.first.get_or_insert(now);
                epoch.running.insert(slice);
                Next::Slice(slice)
            }
            None if epoch.draining => Next::End,
            None => Next::Wait,
        }
    }

    /// Whether everything that `epoch` will ever begin is done, so that its executor is to deliver
    /// and say [`Self::finished`].
    #[must_use]
    pub fn is_over(&self, now: Seconds, epoch: EpochId) -> bool {
        self.epochs.get(&epoch).is_some_and(|epoch| {
            let due = epoch.close.slices.is_some_and(|most| epoch.begun >= most)
                || epoch.close.seconds.zip(epoch.first).is_some_and(|(most, first)| now - first >= most);
            epoch.running.is_empty() && (epoch.stopping || due || (epoch.draining && epoch.queue.is_empty()))
        })
    }

    /// A slice is done; `pending` is what would come out if the epoch ended now (rows, bytes). The caller sends the
    /// answer to the parent.
    pub fn slice_done(&mut self, now: Seconds, id: EpochId, cost: SliceCost, pending: (u64, u64), meters: &(impl Meters + ?Sized)) -> Option<Up> {
        let epoch = self.epochs.get_mut(&id)?;
        if !epoch.running.remove(&cost.slice) {
            return None;
        }
        epoch.done.push(cost.slice);
        epoch.cpu += cost.cpu;
        epoch.pending = pending;
        epoch.unreported.push(cost);
        Some(epoch.report(now, id, meters))
    }

    /// Heartbeats of epochs that sent nothing for `heartbeat` seconds.
    pub fn beat(&mut self, now: Seconds, heartbeat: Seconds, meters: &(impl Meters + ?Sized)) -> Vec<Up> {
        self.epochs.iter_mut().filter(|(_, epoch)| now - epoch.heard >= heartbeat).map(|(id, epoch)| epoch.report(now, *id, meters)).collect()
    }

    /// The sub-plan of an epoch has delivered everything.
    pub fn finished(&mut self, now: Seconds, id: EpochId, totals: Totals) -> Option<Up> {
        let epoch = self.epochs.remove(&id)?;
        self.ended.insert(id);
        self.early.retain(|(early, _), _| *early != id);
        Some(Up::EpochDone(Completed {
            epoch: id,
            rung: epoch.rung,
            slices: epoch.done,
            batches: totals.batches,
            rows: totals.rows,
            bytes: totals.bytes,
            cpu: epoch.cpu,
            wall: now - epoch.opened,
            bytes_read: totals.bytes_read,
        }))
    }

    /// An epoch can't go on.
    pub fn failed(&mut self, id: EpochId, again: bool) -> Option<Up> {
        self.epochs.remove(&id)?;
        self.ended.insert(id);
        Some(Up::Failed { epoch: Some(id), again })
    }

    /// Between slices: whether running epochs may continue. Epochs above the level that `pressure` allows stop, deliver
    /// what was begun, and return the rest.
    pub fn reconsider(&mut self, pressure: &Pressure) -> Vec<Up> {
        let mut said = Vec::new();
        for (id, epoch) in &mut self.epochs {
            if epoch.rung == PushdownLevel::Raw || epoch.stopping {
                continue;
            }
            // Memory that it holds itself is in `memory_used` already; its place among the epochs as well.
            let others = Pressure { epochs: pressure.epochs.saturating_sub(1), ..*pressure };
            if let Answer::Refuse { accepts, again, why } = admit(epoch.rung, 0, &others) {
                epoch.stopping = true;
                let remaining = std::mem::take(&mut epoch.queue).into();
                said.push(Up::Stopped { epoch: *id, remaining, accepts, again, why });
            }
        }
        said
    }
}

impl Epoch {
    fn add(&mut self, slices: Vec<SliceId>) {
        if !self.stopping {
            for slice in slices {
                if self.known.insert(slice) {
                    self.queue.push_back(slice);
                }
            }
        }
    }

    fn report(&mut self, now: Seconds, epoch: EpochId, meters: &(impl Meters + ?Sized)) -> Up {
        self.heard = now;
        Up::Progress {
            epoch,
            done: std::mem::take(&mut self.unreported),
            running: self.running.iter().map(|slice| (*slice, meters.cpu(epoch, *slice))).collect(),
            load: meters.load(),
            waits: self.running.is_empty() && self.queue.is_empty() && !self.stopping && !self.draining,
            pending_rows: self.pending.0,
            pending_bytes: self.pending.1,
            slack: meters.slack(),
        }
    }
}
