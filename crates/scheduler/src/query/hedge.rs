//! Hedging: the epochs of a straggler are repeated elsewhere, or given up.

use super::decide::PLAN_EVERY;
use super::{Action, Policy, Query, Stage};
use crate::cost::SliceLoad;
use crate::message::{CloseAfter, EpochId, PushdownLevel, Seconds};
use crate::plan::{ParentNode, Part, divide};

/// An epoch is repeated elsewhere if that should end this many times sooner.
const HEDGE: f64 = 1.5;

/// A drive whose processor needs this share of all the time that is left, for sending raw alone, delays the query.
const HANDS_FULL: f64 = 0.9;

/// Share of the time that is left for which a drive that had its hands full begins with nothing of its own.
const BARRED: f64 = 0.25;

/// How many times the load that a drive had when they were begun its states may be better done without.
const LOADED: f64 = 1.5;

/// An epoch is abandoned only if the query then ends this much sooner, as a share of the time that is left.
const ABANDON_GAIN: f64 = 0.05;

impl<B> Query<B> {
    /// Gives up epochs with states whose drives have got a load since, where all would end sooner than by `end` if
    /// others did again what is in them.
    pub(super) fn abandon_overloaded(&mut self, above: &ParentNode, parts: &[Part], present: &[Option<usize>], end: Seconds, out: &mut Vec<Action<B>>) -> bool {
        if self.policy != Policy::Adaptive {
            return false;
        }
        let lost: Vec<(EpochId, usize)> = self
            .epochs
            .iter()
            .filter(|(_, open)| {
                self.cost.holds_state(open.rung)
                    // An epoch that began under the present load gains nothing by beginning again.
                    && self.cost.load(open.cse) > LOADED * open.load
                    // What is done is on its way.
                    && open.slices.values().any(|stage| *stage != Stage::Done)
                    && !self.is_probe(open.rung)
            })
            .map(|(id, open)| (*id, open.cse))
            .collect();
        if lost.is_empty() {
            return false;
        }
        let mut again = parts.to_vec();
        for (id, cse) in &lost {
            let Some(open) = self.epochs.get(id) else { continue };
            let part = &mut again[*cse];
            let begun = open.slices.values().filter(|stage| **stage != Stage::Queued).count();
            let close = self.cost.close(*cse, open.rung, self.cses[*cse].rows * begun as f64);
            if self.cses[*cse].lane == Some(*id) {
                part.held = (0.0, 0.0, 0.0);
            } else {
                part.backlog = (part.backlog - close.bytes).max(0.0);
            }
            part.busy = 0.0;
            part.slices += begun as u32;
            part.lanes.iter_mut().filter_map(|lane| lane.states.as_mut()).for_each(|states| states.begun = 0.0);
        }
        let without = divide(above, &again, Some((present, end)), false);
        if without.end > end * (1.0 - ABANDON_GAIN) {
            return false;
        }
        for (id, _) in lost {
            self.abandon(id, out);
        }
        true
    }

    /// Has epochs done again whose drive will keep everybody waiting.
    pub(super) fn hedge(&mut self, parts: &[Part], above: &ParentNode, out: &mut Vec<Action<B>>) {
        let others = self.plan.end;
        let (mut again, mut give_up, mut forgone) = (Vec::new(), Vec::new(), Vec::new());
        for (id, open) in &self.epochs {
            let stuck = open.rung != PushdownLevel::Raw
                && !open.hedge
                && !open.running.is_empty()
                && open.slices.values().all(|stage| matches!(stage, Stage::Begun | Stage::Done));
            if !stuck {
                continue;
            }
            let own = &self.cses[open.cse];
            let n = open.slices.len() as f64;
            let close = self.cost.close(open.cse, open.rung, own.rows * n);
            let longest = self.remaining(open).fold(0.0, f64::max);
            let ends = longest + close.wall + close.bytes / parts[open.cse].link + close.above;
            let raw: SliceLoad = parts[open.cse].raw;
            let each = parts[open.cse].disk.max(raw.bytes / parts[open.cse].link).max(raw.wall / f64::from(parts[open.cse].cores));
            let elsewhere = n * each.max(raw.above / above.cores) + raw.above + above.busy / above.cores + 4.0 * self.cost.profile(open.cse).link_latency_s;
            // Where its processor is saturated by sending raw slices, its own epochs delay all others: they must stop
            // at once.
            let part = &parts[open.cse];
            let cores = f64::from(part.cores);
            let handing = f64::from(self.cses[open.cse].raw_left) * raw.wall / cores;
            let full = self.shares[open.cse].below == 0 && handing > 0.5 * others && part.busy + handing > HANDS_FULL * others;
            let saves = self.remaining(open).sum::<f64>() > HEDGE * n * raw.wall;
            // The probe's question has been answered elsewhere, and no such epoch is planned: its states would be more
            // bytes than its slices are.
            let pointless = open.probes && !self.is_probe(open.rung) && self.cses[open.cse].rung != Some(open.rung) && close.bytes > n * raw.bytes;
            if pointless && saves {
                forgone.push(*id);
            } else if full && saves {
                give_up.push((*id, open.cse));
            } else if !self.fed && ends > others + HEDGE * elsewhere + 0.002 {
                // As long as more input comes, an epoch delays nothing.
                again.push((*id, open.cse, open.slices.keys().copied().collect::<Vec<_>>()));
            }
        }
        for id in forgone {
            self.abandon(id, out);
        }
        for (id, cse) in give_up {
            self.abandon(id, out);
            // Not to begin again with the next plan.
            self.cses[cse].barred_until = self.now + (BARRED * others).max(PLAN_EVERY.1);
        }
        for (id, cse, slices) in again {
            // The least busy reader of the first of its slices.
            let readers = slices.first().and_then(|slice| self.book(*slice)).map(|book| book.slice.readers.clone()).unwrap_or_default();
            let reader = readers
                .iter()
                .map(|reader| reader.0 as usize)
                .filter(|at| *at < self.cses.len() && self.usable(*at))
                .min_by(|a, b| self.cost.load(*a).total_cmp(&self.cost.load(*b)))
                .unwrap_or(cse);
            if !slices.iter().all(|slice| self.book(*slice).is_some_and(|book| book.slice.readers.iter().any(|at| at.0 as usize == reader)))
                || !self.usable(reader)
            {
                continue;
            }
            if let Some(open) = self.epochs.get_mut(&id) {
                open.hedge = true;
            }
            self.open(reader, PushdownLevel::Raw, slices, CloseAfter::DRAINED, true, out);
        }
    }
}
