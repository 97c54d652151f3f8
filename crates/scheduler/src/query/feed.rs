//! Carries out a plan: feeds slices, takes them back, has them sent raw, and closes epochs.

use super::{Action, CseBook, Policy, Query, Stage};
use crate::message::{CloseAfter, EpochId, Order, PushdownLevel, Seconds, SliceId};

/// Seconds of work that a drive has in its queue beyond what its cores are busy with, so that it never waits for us.
const AHEAD: Seconds = 0.015;

/// The parent has enough work if it lasts this many times as long as a slice travels.
const ENOUGH: f64 = 2.0;

/// A drive is behind if it has this many times the average left to send raw.
const BEHIND: f64 = 1.05;

/// The share of the parent's memory that may be full while drives still get slices to filter.
const FILTERED: f64 = 0.5;

/// From this share of the time that is left on, sending raw is urgent.
const URGENT: f64 = 0.8;

impl<B> Query<B> {
    /// Feeds the drive's own lane, and closes its epochs.
    pub(super) fn feed(&mut self, cse: usize, out: &mut Vec<Action<B>>) {
        if let Some(lane) = self.cses[cse].lane {
            self.close_if_enough(cse, lane, out);
        }
        let Some(rung) = self.cses[cse].rung else { return };
        if self.cses[cse].feed_left == 0 || self.cses[cse].pool.is_empty() || !self.usable(cse) {
            return;
        }
        // Filtered rows wait at the parent as well. Drives that could filter faster than the parent processes must
        // leave room for drives that send raw.
        if rung == PushdownLevel::Filter && self.policy == Policy::Adaptive && self.cost.has_upper() && self.held() > FILTERED * self.limits.memory as f64 {
            return;
        }
        if self.is_probe(rung) && self.cses[cse].epochs.iter().filter_map(|id| self.epochs.get(id)).any(|open| open.rung != PushdownLevel::Raw) {
            return;
        }
        let window = if self.is_probe(rung) { self.cost.profile(cse).cores as usize } else { self.window(cse, rung) };
        let mut there = self.under_way(cse);
        while there < window && self.cses[cse].feed_left > 0 && !self.cses[cse].pool.is_empty() {
            let size = self.epoch_size(cse, rung);
            let lane = self.cses[cse].lane;
            let room = lane.and_then(|id| self.epochs.get(&id)).filter(|open| open.rung == rung && !open.closing).map(|open| size.saturating_sub(open.given));
            let count = (window - there).min(self.cses[cse].feed_left as usize).min(room.filter(|room| *room > 0).unwrap_or(size) as usize);
            let mut slices = Vec::with_capacity(count.min(self.cses[cse].pool.len()));
            while slices.len() < count
                && let Some(slice) = self.cses[cse].pool.pop_first()
            {
                slices.push(slice);
            }
            there += slices.len();
            self.cses[cse].feed_left -= slices.len() as u32;
            match (lane, room) {
                (Some(id), Some(room)) if room > 0 => {
                    self.give(id, &slices);
                    self.order(id, Order::Feed { slices }, out);
                }
                _ => {
                    if let Some(old) = lane {
                        self.close(cse, old, out);
                    }
                    let id = self.open(cse, rung, slices, CloseAfter::TOLD, false, out);
                    self.cses[cse].lane = Some(id);
                }
            }
        }
        if let Some(lane) = self.cses[cse].lane {
            self.close_if_enough(cse, lane, out);
        }
    }

    /// Slices that a drive has before it, so that it never waits for us.
    pub(super) fn window(&self, cse: usize, rung: PushdownLevel) -> usize {
        let own = &self.cses[cse];
        let profile = self.cost.profile(cse);
        let load = self.cost.slice(cse, rung, (own.rows, own.bytes));
        let cores = f64::from(profile.cores);
        if own.slices == 0.0 {
            // What a slice takes is not known yet.
            return profile.cores.min(4096) as usize + 1;
        }
        let ahead = (cores * (AHEAD + 4.0 * profile.link_latency_s) / load.wall.max(1e-9)).ceil().clamp(1.0, 64.0);
        (cores + ahead).min(4096.0) as usize
    }

    /// Slices that a drive has been given to process, and that are not done.
    pub(super) fn under_way(&self, cse: usize) -> usize {
        let open = self.cses[cse].epochs.iter().filter_map(|id| self.epochs.get(id)).filter(|open| open.rung != PushdownLevel::Raw);
        open.map(|open| open.slices.values().filter(|stage| !matches!(stage, Stage::Done | Stage::Leaving)).count()).sum()
    }

    fn close(&mut self, cse: usize, epoch: EpochId, out: &mut Vec<Action<B>>) {
        if let Some(open) = self.epochs.get_mut(&epoch)
            && !open.closing
        {
            open.closing = true;
            self.order(epoch, Order::Close { drain: true }, out);
        }
        if self.cses[cse].lane == Some(epoch) {
            self.cses[cse].lane = None;
        }
    }

    fn close_if_enough(&mut self, cse: usize, epoch: EpochId, out: &mut Vec<Action<B>>) {
        let Some(open) = self.epochs.get(&epoch) else { return };
        let own = &self.cses[cse];
        let waits = open.slices.values().any(|stage| *stage == Stage::Queued);
        let last = if own.pool.is_empty() { !self.fed } else { own.unwanted >= 2 && !waits };
        let changed = own.rung.is_some_and(|rung| rung != open.rung);
        if last || changed || open.given >= self.epoch_size(cse, open.rung) {
            self.close(cse, epoch, out);
        }
    }

    /// Takes `count` slices back that `cse` has not begun, the last ones first.
    pub(super) fn take(&mut self, cse: usize, count: u32, out: &mut Vec<Action<B>>) {
        let mut left = count as usize;
        let epochs: Vec<EpochId> = self.cses[cse].epochs.iter().rev().copied().collect();
        for id in epochs {
            let Some(open) = self.epochs.get_mut(&id).filter(|open| open.rung != PushdownLevel::Raw) else { continue };
            let slices: Vec<SliceId> = open.slices.iter().rev().filter(|(_, stage)| **stage == Stage::Queued).map(|(id, _)| *id).take(left).collect();
            if slices.is_empty() {
                continue;
            }
            left -= slices.len();
            for slice in &slices {
                open.slices.insert(*slice, Stage::Leaving);
            }
            let number = self.order(id, Order::Take { slices: slices.clone() }, out);
            if let Some(open) = self.epochs.get_mut(&id) {
                open.takes.insert(number, slices);
            }
            if left == 0 {
                break;
            }
        }
    }

    /// Bytes that wait above, or are on their way as they are stored.
    fn held(&self) -> f64 {
        self.waiting.values().map(|waiting| waiting.bytes).sum::<f64>() + self.cses.iter().map(|cse| cse.raw_bytes).sum::<f64>()
    }

    /// Has drives send slices raw for the parent to process. First come those whose share takes longest for what they
    /// have under way.
    pub(super) fn hand_over(&mut self, out: &mut Vec<Action<B>>) {
        let cores = f64::from(self.cost.host().cores);
        // Where the parent has enough work, a drive sends raw only if it must do so until the end, or is behind.
        let waits = self.waiting.values().map(|waiting| waiting.above).sum::<f64>() / cores;
        let urgent = URGENT * (self.planned_at + self.plan.end - self.now);
        let (count, left) = self
            .cses
            .iter()
            .filter(|book| book.raw_left > 0)
            .fold((0.0, 0.0), |(count, left), book| (count + 1.0, left + f64::from(book.raw_left) * book.bytes));
        let behind = BEHIND * left / f64::max(count, 1.0);
        let mut held = self.held();
        loop {
            let ready = self.cses.iter().enumerate().filter(|(_, book)| {
                book.raw_left > 0
                    && (waits < ENOUGH * book.raw_way || f64::from(book.raw_left) * book.bytes > behind || f64::from(book.raw_left) * book.raw_each >= urgent)
                    && !book.learning
                    && book.raw_open < book.raw_pipe
                    && !book.pool.is_empty()
                    && !book.dead
                    && book.paused_until <= self.now
            });
            // The order is the drive's remaining time per slice under way. A drive without any comes first, so that
            // none starves where memory is the limit.
            let need = |book: &CseBook| f64::from(book.raw_left) * book.raw_each / f64::from(book.raw_open + 1);
            let next = ready.max_by(|(_, a), (_, b)| need(a).total_cmp(&need(b)));
            let Some((cse, _)) = next else { break };
            if held > 0.0 && held + self.cses[cse].bytes > self.limits.memory as f64 {
                break;
            }
            let Some(slice) = self.cses[cse].pool.pop_first() else { break };
            held += self.cses[cse].bytes;
            self.cses[cse].raw_left -= 1;
            self.open(cse, PushdownLevel::Raw, vec![slice], CloseAfter::DRAINED, false, out);
        }
    }
}
