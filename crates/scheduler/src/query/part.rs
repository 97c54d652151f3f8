//! A drive as the planner sees it: slices that are left, work that has begun, and the lanes that it may use.

use super::{Epoch, Policy, Query, Stage};
use crate::message::{PushdownLevel, Seconds};
use crate::plan::{LevelCost, Part, States};
use crate::work::Output;

/// What closing epochs may cost, as a share of the work in them.
const CLOSING: f64 = 0.015;

/// Seconds of work in an epoch where closing it costs next to nothing.
const EPOCH: Seconds = 0.05;

/// The last epochs of filtered rows have this fraction (its inverse) of the slices that are left.
const LAST: f64 = 8.0;

/// How many times as long the first slices take, about.
pub(super) const FIRST: f64 = 2.0;

impl<B> Query<B> {
    pub(super) fn part(&self, cse: usize) -> Part {
        let book = &self.cses[cse];
        let profile = self.cost.profile(cse);
        let slice = (book.rows, book.bytes);
        let usable = self.usable(cse);
        let slices = if usable { book.pool.len() as u32 + self.queued(cse) } else { 0 };
        let (running, under_way) = book
            .epochs
            .iter()
            .filter_map(|id| self.epochs.get(id))
            .filter(|open| open.rung != PushdownLevel::Raw)
            .flat_map(|open| self.remaining(open))
            .fold((0.0, 0.0), |(seconds, count), left| (seconds + left, count + 1.0));
        let lanes: Vec<LevelCost> = if usable {
            self.lanes(cse)
                .into_iter()
                .map(|rung| {
                    let mut load = self.cost.slice(cse, rung, slice);
                    let size = f64::from(self.epoch_size(cse, rung)).min(book.slices.max(1.0));
                    let empty = self.cost.close(cse, rung, 0.0);
                    load.wall += empty.wall / size;
                    let states = self.cost.holds_state(rung).then(|| self.states(cse, rung));
                    let margin = if self.cost.is_known(cse, rung) { 0.5 } else { 3.0 };
                    // What has begun is in `busy`.
                    let cold: f64 = f64::from(self.cost.cold(cse)).min(book.slices) - under_way;
                    let begin = cold.max(0.0) * (FIRST - 1.0) * load.wall;
                    // What found out how many groups there are is no more than a beginning.
                    let begun = states.is_some_and(|states| states.begun <= f64::from(profile.cores));
                    let commits = begun && !self.is_probe(rung) && self.epoch_size(cse, rung) == u32::MAX;
                    LevelCost { rung, load, margin, begin, states, commits }
                })
                .collect()
        } else {
            Vec::new()
        };
        let raw = self.cost.slice(cse, PushdownLevel::Raw, slice);
        let (mut held, mut closing) = ((0.0, 0.0, 0.0), (0.0, 0.0));
        for (id, open) in book.epochs.iter().filter_map(|id| self.epochs.get(id).map(|open| (id, open))).filter(|(_, open)| self.cost.holds_state(open.rung)) {
            let begun = open.slices.values().filter(|stage| **stage != Stage::Queued).count();
            let close = self.cost.close(cse, open.rung, book.rows * begun as f64);
            if book.lane == Some(*id) {
                held = (close.bytes, close.above, close.wall);
            } else {
                // When it began to give out what it has is not known; while it still works, it did not.
                let gives = if open.slices.values().all(|stage| *stage == Stage::Done) { 0.0 } else { close.wall };
                closing = (closing.0 + close.bytes, closing.1 + gives);
            }
        }
        Part {
            slices,
            cores: profile.cores,
            busy: running / f64::from(profile.cores) + closing.1,
            backlog: self.backlog(cse) + closing.0,
            held,
            disk: self.cost.disk(cse, book.bytes),
            link: self.cost.link(cse),
            raw,
            begin_above: if book.above_begun { 0.0 } else { self.cost.begin_above() },
            // A static policy other than raw sends nothing raw by plan, unless the drive has no lane.
            may_raw: self.policy == Policy::Adaptive || self.policy == Policy::Static(PushdownLevel::Raw) || (lanes.is_empty() && slices > 0),
            lanes,
        }
    }

    fn states(&self, cse: usize, rung: PushdownLevel) -> States {
        let book = &self.cses[cse];
        let open = book.lane.and_then(|id| self.epochs.get(&id)).filter(|open| open.rung == rung);
        let begun = open.map_or(0, |open| open.slices.values().filter(|stage| **stage != Stage::Queued).count());
        let Output::Groups { bytes_per_group, .. } = self.cost.work().result else {
            return States { groups: 0.0, rows: 0.0, begun: 0.0, lanes: 1.0, bytes: 0.0, emit: 0.0, merge: 0.0 };
        };
        // Seconds per state follow from a close of many rows.
        let rows = book.rows * book.slices.max(1.0);
        let (some, none) = (self.cost.close(cse, rung, rows), self.cost.close(cse, rung, 0.0));
        let count = (some.bytes / bytes_per_group.max(1.0)).max(1e-9);
        States {
            groups: self.cost.groups(),
            rows: self.cost.rows_into_groups(book.rows),
            begun: begun as f64,
            lanes: f64::from(self.cost.profile(cse).cores),
            bytes: bytes_per_group,
            emit: (some.wall - none.wall) / count,
            merge: some.above / count,
        }
    }

    fn lanes(&self, cse: usize) -> Vec<PushdownLevel> {
        let book = &self.cses[cse];
        let reach = if book.reach_until > self.now { book.reach } else { Some(PushdownLevel::Full) };
        let has_upper = self.cost.has_upper();
        let offered = match self.policy {
            Policy::Static(PushdownLevel::Raw) => vec![],
            // A drive that only accepts filtering gets an order for that before it sends raw.
            Policy::Static(PushdownLevel::Full) if reach == Some(PushdownLevel::Filter) => vec![PushdownLevel::Filter],
            Policy::Static(rung) => vec![rung],
            Policy::Adaptive if has_upper => vec![PushdownLevel::Full, PushdownLevel::Filter],
            Policy::Adaptive => vec![PushdownLevel::Full],
        };
        // Without an upper part the two are the same work.
        let mut lanes: Vec<PushdownLevel> =
            offered.into_iter().map(|rung| if !has_upper && reach == Some(PushdownLevel::Filter) { PushdownLevel::Filter } else { rung }).collect();
        lanes.retain(|rung| reach.is_some_and(|reach| *rung <= reach));
        lanes
    }

    /// Slices of its epochs that could still be taken back.
    pub(super) fn queued(&self, cse: usize) -> u32 {
        let epochs = self.cses[cse].epochs.iter().filter_map(|id| self.epochs.get(id)).filter(|open| open.rung != PushdownLevel::Raw);
        epochs.map(|open| open.slices.values().filter(|stage| **stage == Stage::Queued).count() as u32).sum()
    }

    /// Seconds until the slices that run in `open` are done, one by one.
    pub(super) fn remaining<'a>(&'a self, open: &'a Epoch) -> impl Iterator<Item = Seconds> + 'a {
        let own = &self.cses[open.cse];
        let load = self.cost.slice(open.cse, open.rung, (own.rows, own.bytes));
        let since = self.now - open.heard;
        // The first slices take longer, and what is learnt of them believes them by half only.
        let cpu = load.cpu * if self.cost.is_warm(open.cse, open.rung) { 1.0 } else { FIRST };
        // What has had more than it should will go on for a while.
        open.running.iter().map(move |(_, had)| ((cpu - had) * self.cost.load(open.cse) - since).max(0.15 * load.wall))
    }

    /// Seconds until the last slice that `cse` has begun is done, without raw ones; zero if there is none.
    pub(super) fn busy_for(&self, cse: usize) -> Seconds {
        let own = &self.cses[cse];
        let lanes = own.epochs.iter().filter_map(|id| self.epochs.get(id)).filter(|open| open.rung != PushdownLevel::Raw);
        let each = lanes.map(|open| {
            let load = self.cost.slice(cse, open.rung, (own.rows, own.bytes));
            // A new epoch has sent no report yet. If it is late, it may take that time again.
            let unheard = if open.running.is_empty() && open.rows_done == 0.0 { (FIRST * load.wall - (self.now - open.heard)).abs() } else { 0.0 };
            self.remaining(open).fold(unheard, f64::max)
        });
        each.fold(0.0, f64::max)
    }

    /// Whether an epoch of `rung` is a probe for the number of groups. A drive reports groups when the epoch ends. So a
    /// probe has one slice per core, and no epoch follows before its result is known. Sending raw is cheaper than
    /// returning states of many groups.
    pub(super) fn is_probe(&self, rung: PushdownLevel) -> bool {
        self.policy == Policy::Adaptive && self.cost.holds_state(rung) && !self.cost.groups_are_known()
    }

    /// Slices per epoch of `rung`, so that closing is a small share of the work; `u32::MAX` for one epoch to the end.
    pub(super) fn epoch_size(&self, cse: usize, rung: PushdownLevel) -> u32 {
        let own = &self.cses[cse];
        let (profile, slice) = (self.cost.profile(cse), (own.rows, own.bytes));
        let load = self.cost.slice(cse, rung, slice);
        let cores = f64::from(profile.cores);
        if self.is_probe(rung) {
            return profile.cores.max(1);
        }
        let mut size = (EPOCH * cores / load.wall.max(1e-9)).clamp(1.0, 256.0).ceil();
        loop {
            let close = self.cost.close(cse, rung, own.rows * size);
            let cost = close.wall + close.above + close.bytes / self.cost.link(cse);
            if cost <= CLOSING * size * load.wall {
                break;
            }
            size = (size * 1.3).ceil();
            if size > own.slices.max(1.0) {
                if self.cost.holds_state(rung) {
                    return u32::MAX;
                }
                break;
            }
        }
        // The parent processes filtered rows once their epoch is complete. The last epochs are small, so that little of
        // them is left when the link is done.
        if rung == PushdownLevel::Filter && self.cost.has_upper() {
            let least = self.cost.close(cse, rung, 0.0).wall / (CLOSING * load.wall);
            size = size.min(((f64::from(self.queued(cse)) + own.pool.len() as f64) / LAST).max(least.max(cores)).ceil());
        }
        // Results are held above until their epoch is complete.
        let room = self.limits.memory as f64 / (4.0 * self.cses.len() as f64) / load.bytes.max(1.0);
        size.min(room.max(1.0)).max(1.0) as u32
    }
}
