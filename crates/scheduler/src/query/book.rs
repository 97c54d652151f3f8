//! The books of a query: where each slice is, which slices each epoch has, and how each epoch ended.

use super::{Action, CseBook, Epoch, Flow, Query, SliceBook, Stage, Waiting};
use crate::learn::Rate;
use crate::message::{CloseAfter, Completed, CseId, Down, EpochId, Order, PushdownLevel, Seconds, Slice, SliceId, Up};

impl Default for CseBook {
    fn default() -> Self {
        Self {
            surveyed: false,
            dead: false,
            strikes: 0,
            heard: 0.0,
            paused_until: 0.0,
            refusing_since: None,
            reach: Some(PushdownLevel::Full),
            reach_until: 0.0,
            pool: Default::default(),
            lane: None,
            epochs: Default::default(),
            raw_open: 0,
            raw_bytes: 0.0,
            flow: None,
            handed: Rate::default(),
            produced: 0.0,
            delivered: 0.0,
            rows: 0.0,
            bytes: 0.0,
            slices: 0.0,
            rung: None,
            feed_left: 0,
            raw_left: 0,
            learning: false,
            above_begun: false,
            raw_each: 0.0,
            raw_way: 0.0,
            raw_pipe: 2,
            barred_until: 0.0,
            wanted: Default::default(),
            unwanted: 0,
        }
    }
}

/// Seconds of bytes without a break that say how fast a link is.
const FLOW: Seconds = 0.1;

/// The fewest batches in them.
const BATCHES: u32 = 4;

/// From this share of the parent's link on, the link may be what holds bytes up.
const BUSY: f64 = 0.5;

/// Slices that a query may have. Larger numbers are refused, because the books reserve memory by the highest number.
const MAX_SLICES: u32 = 1 << 24;

impl<B> Query<B> {
    pub(super) fn surveyed(&mut self, cse: CseId, slices: Vec<Slice>, out: &mut Vec<Action<B>>) {
        let Some(book) = self.cses.get_mut(cse.0 as usize) else { return };
        if book.surveyed {
            return;
        }
        book.surveyed = true;
        book.heard = self.now;
        self.take_in(cse.0 as usize, slices, out);
        self.dirty = true;
    }

    /// More slices of CSEs that were surveyed.
    pub(super) fn wanted(&mut self, slices: Vec<Slice>, out: &mut Vec<Action<B>>) {
        for slice in slices {
            if let Some(reader) = slice.readers.first().map(|reader| reader.0 as usize).filter(|at| *at < self.cses.len()) {
                self.take_in(reader, vec![slice], out);
                self.touched.insert(reader);
            }
        }
        self.dirty = true;
    }

    /// Puts slices into the books; without a reader the query fails by `blame`.
    fn take_in(&mut self, blame: usize, slices: Vec<Slice>, out: &mut Vec<Action<B>>) {
        let cses = self.cses.len();
        for slice in slices {
            let id = slice.id;
            if id.0 >= MAX_SLICES {
                return self.fail(blame, Some(id), out);
            }
            if self.book(id).is_some() {
                continue;
            }
            let at = id.0 as usize;
            if self.slices.len() <= at {
                self.slices.resize(at + 1, None);
            }
            self.ledger.want(id);
            for reader in slice.readers.iter().filter(|reader| (reader.0 as usize) < cses) {
                let book = &mut self.cses[reader.0 as usize];
                let n = book.slices + 1.0;
                book.rows += (f64::from(slice.rows) - book.rows) / n;
                book.bytes += (slice.bytes as f64 - book.bytes) / n;
                book.slices = n;
            }
            self.slices[at] = Some(SliceBook { slice, epochs: Vec::new(), covered: false });
            self.place(id, blame, out);
        }
    }

    pub(super) fn book(&self, id: SliceId) -> Option<&SliceBook> {
        self.slices.get(id.0 as usize).and_then(Option::as_ref)
    }

    fn book_mut(&mut self, id: SliceId) -> Option<&mut SliceBook> {
        self.slices.get_mut(id.0 as usize).and_then(Option::as_mut)
    }

    /// Puts a slice that is in no epoch into the pool of the best CSE that can read it. Without any, the query fails
    /// and names `blame`.
    fn place(&mut self, id: SliceId, blame: usize, out: &mut Vec<Action<B>>) {
        let Some(book) = self.book(id) else { return };
        if book.covered || !book.epochs.is_empty() {
            return;
        }
        let alive = book.slice.readers.iter().map(|reader| reader.0 as usize).filter(|at| self.cses.get(*at).is_some_and(|cse| !cse.dead));
        match alive.min_by_key(|at| self.cses[*at].strikes) {
            Some(at) => {
                self.cses[at].pool.insert(id);
                self.dirty = true;
            }
            None => self.fail(blame, Some(id), out),
        }
    }

    pub(super) fn fail(&mut self, cse: usize, slice: Option<SliceId>, out: &mut Vec<Action<B>>) {
        if !self.ended {
            self.end(out);
            out.push(Action::Fail { cse: CseId(cse as u32), slice });
        }
    }

    /// Cancels whatever is open.
    fn end(&mut self, out: &mut Vec<Action<B>>) {
        self.ended = true;
        self.wake = None;
        let open: Vec<EpochId> = self.epochs.keys().copied().collect();
        for epoch in open {
            self.ledger.revoke(epoch);
            self.order(epoch, Order::Cancel, out);
        }
        self.epochs.clear();
    }

    pub(super) fn finish_if_covered(&mut self, out: &mut Vec<Action<B>>) {
        if !self.ended && !self.fed && self.ledger.complete() && self.cses.iter().all(|cse| cse.surveyed) {
            self.end(out);
            out.push(Action::Finish);
        }
    }

    /// Sends the next order of an epoch.
    pub(super) fn order(&mut self, epoch: EpochId, order: Order, out: &mut Vec<Action<B>>) -> u32 {
        let Some(open) = self.epochs.get_mut(&epoch) else { return 0 };
        let number = open.number;
        open.number += 1;
        out.push(Action::Send { cse: CseId(open.cse as u32), down: Down { epoch, number, order } });
        number
    }

    /// Opens an epoch over `slices`, which leave the pool (or, for a hedge, are in another epoch as well).
    pub(super) fn open(&mut self, cse: usize, rung: PushdownLevel, slices: Vec<SliceId>, close: CloseAfter, hedge: bool, out: &mut Vec<Action<B>>) -> EpochId {
        let id = EpochId(self.next_epoch);
        self.next_epoch += 1;
        self.ledger.open(id, CseId(cse as u32), rung);
        let probes = self.is_probe(rung);
        self.epochs.insert(
            id,
            Epoch {
                cse,
                rung,
                number: 0,
                slices: Default::default(),
                given: 0,
                closing: close.drained,
                hedge,
                probes,
                load: self.cost.load(cse),
                takes: Default::default(),
                running: Vec::new(),
                heard: self.now,
                had: Default::default(),
                sound: self.now,
                excused: 0.0,
                waits: false,
                slack: 0.0,
                rows_done: 0.0,
            },
        );
        let book = &mut self.cses[cse];
        // A CSE that had nothing to do had nothing to say.
        if book.epochs.is_empty() {
            book.heard = self.now;
        }
        book.epochs.insert(id);
        if rung == PushdownLevel::Raw {
            book.raw_open += 1;
        }
        self.give(id, &slices);
        self.order(id, Order::Open { rung, slices, close }, out);
        id
    }

    pub(super) fn give(&mut self, epoch: EpochId, slices: &[SliceId]) {
        self.ledger.give(epoch, slices);
        for id in slices {
            let bytes = self.book(*id).map_or(0.0, |book| book.slice.bytes as f64);
            if let Some(book) = self.book_mut(*id) {
                book.epochs.push(epoch);
            }
            let Some(open) = self.epochs.get_mut(&epoch) else { continue };
            open.slices.insert(*id, Stage::Queued);
            open.given += 1;
            if open.rung == PushdownLevel::Raw {
                self.cses[open.cse].raw_bytes += bytes;
            }
        }
    }

    /// Forgets an epoch: nothing of it will count, its slices go back.
    pub(super) fn abandon(&mut self, epoch: EpochId, out: &mut Vec<Action<B>>) {
        if !self.epochs.contains_key(&epoch) {
            return;
        }
        self.ledger.revoke(epoch);
        self.order(epoch, Order::Cancel, out);
        self.close_book(epoch, out);
    }

    /// Removes an epoch from the books; those of its slices that are not covered and nowhere else go back to a pool.
    fn close_book(&mut self, epoch: EpochId, out: &mut Vec<Action<B>>) {
        let Some(open) = self.epochs.remove(&epoch) else { return };
        let bytes: f64 = open.slices.keys().filter_map(|id| self.book(*id)).map(|book| book.slice.bytes as f64).sum();
        let cse = &mut self.cses[open.cse];
        cse.epochs.remove(&epoch);
        if cse.lane == Some(epoch) {
            cse.lane = None;
        }
        if open.rung == PushdownLevel::Raw {
            cse.raw_open -= 1;
            cse.raw_bytes = (cse.raw_bytes - bytes).max(0.0);
        }
        if cse.epochs.iter().all(|other| self.epochs.get(other).is_some_and(|other| other.rung == PushdownLevel::Raw)) {
            (cse.produced, cse.delivered) = (0.0, 0.0);
        }
        for id in open.slices.into_keys() {
            if let Some(book) = self.book_mut(id) {
                book.epochs.retain(|other| *other != epoch);
                self.place(id, open.cse, out);
            }
        }
    }

    pub(super) fn counted(&mut self, cse: CseId, epoch: EpochId, slices: Vec<SliceId>, batches: Vec<B>, out: &mut Vec<Action<B>>) {
        let Some(open) = self.epochs.get(&epoch) else { return };
        let (at, rung, states) = (open.cse, open.rung, self.cost.holds_state(open.rung));
        let mut rivals = Vec::new();
        let (mut rows, mut bytes) = (0.0, 0.0);
        for id in &slices {
            if let Some(book) = self.book_mut(*id) {
                book.covered = true;
                rows += f64::from(book.slice.rows);
                bytes += book.slice.bytes as f64;
                rivals.extend(book.epochs.iter().copied().filter(|other| *other != epoch));
            }
            for cse in &mut self.cses {
                cse.pool.remove(id);
            }
        }
        let mut above = if slices.is_empty() { 0.0 } else { self.cost.slice(at, rung, (rows, bytes)).above };
        if states {
            above += self.cost.close(at, rung, rows).above;
        }
        let held = if rung == PushdownLevel::Raw { bytes } else { self.cost.slice(at, rung, (rows, bytes)).bytes };
        self.waiting.insert(epoch, Waiting { cse: at, above, bytes: held, rows, rung });
        if !slices.is_empty() {
            // What happened before was got over.
            (self.cses[at].strikes, self.cses[at].refusing_since) = (0, None);
        }
        out.push(Action::Count { epoch, cse, rung, slices, batches });
        self.close_book(epoch, out);
        for rival in rivals {
            self.abandon(rival, out);
        }
        self.finish_if_covered(out);
    }

    /// Whether `cse` processes slices itself, and reports its load.
    pub(super) fn works(&self, cse: usize) -> bool {
        self.cses[cse].epochs.iter().filter_map(|id| self.epochs.get(id)).any(|open| open.rung != PushdownLevel::Raw)
    }

    /// Bytes on their way from `cse`.
    pub(super) fn backlog(&self, cse: usize) -> f64 {
        let book = &self.cses[cse];
        (book.produced - book.delivered).max(0.0) + book.raw_bytes
    }

    /// Bytes have come; measures the link where they came without a break.
    pub(super) fn flows(&mut self, cse: usize, bytes: f64) {
        // A raw batch that has just arrived is still in the books.
        let more = self.backlog(cse) > 1.5 * self.cses[cse].bytes;
        let deaf = self.now - self.deaf_at < FLOW;
        let Some(Flow { since, bytes: sum, batches, before }) = self.cses[cse].flow.filter(|_| !deaf) else {
            // Bytes that waited for the parent come at once, and say nothing about the link.
            let more = more && !deaf;
            self.cses[cse].flow = more.then_some(Flow { since: self.now, bytes: 0.0, batches: 0, before: self.received });
            return;
        };
        let (sum, batches, passed) = (sum + bytes, batches + 1, self.now - since);
        let profile = self.cost.profile(cse);
        // Cores that begin together deliver together, so the rate of a few batches means nothing.
        let enough = passed >= FLOW && batches >= BATCHES.max(2 * profile.cores);
        if enough {
            let (rows, size) = (self.cses[cse].rows, self.cses[cse].bytes);
            let raw = self.cost.slice(cse, PushdownLevel::Raw, (rows, size));
            // Slices that it processes itself take turns with those that it sends raw.
            let share = if self.works(cse) { 0.5 } else { 1.0 };
            let sends = share * f64::from(profile.cores) * size / raw.wall.max(1e-12);
            let others = self.cost.link(cse).min(profile.disk_bytes_per_s);
            let rate = sum / passed;
            // While the shared link is busy, the measurement cannot tell which drive holds bytes up.
            let shared = (self.received - before) / passed > BUSY * self.cost.host().link_bytes_per_s();
            let told = self.works(cse) || self.cost.told_at(cse) >= since;
            if told {
                self.cost.flowed(cse, rate, if shared { 0.0 } else { others.min(sends) });
            } else {
                self.cost.handed(self.now, cse, rate, sends, if shared { 0.0 } else { others });
            }
        }
        self.cses[cse].flow = match (more, enough) {
            (false, _) => None,
            (true, true) => Some(Flow { since: self.now, bytes: 0.0, batches: 0, before: self.received }),
            (true, false) => Some(Flow { since, bytes: sum, batches, before }),
        };
    }

    pub(super) fn up(&mut self, cse: CseId, up: Up, out: &mut Vec<Action<B>>) {
        let at = cse.0 as usize;
        match up {
            // It has gone on since it was opened, and not once more for saying so.
            Up::Accepted { .. } => {}
            Up::Refused { epoch, accepts, again, .. } => {
                if let Some(rung) = self.of(epoch, at).map(|open| open.rung) {
                    self.reaches(at, (epoch, rung), accepts, again, out);
                    if !self.ended {
                        self.ledger.revoke(epoch);
                        self.close_book(epoch, out);
                    }
                }
            }
            Up::Progress { epoch, done, running, load, waits, pending_rows, slack, .. } => {
                let load = self.others(at, load);
                self.cost.loaded(self.now, at, load);
                self.progress(at, epoch, &done, running, pending_rows);
                self.waits(at, epoch, waits, slack);
            }
            Up::Taken { epoch, number, slices } => self.taken(at, epoch, number, &slices, out),
            Up::EpochDone(end) => self.done(cse, end, out),
            Up::Stopped { epoch, remaining, accepts, again, .. } => {
                if let Some(rung) = self.of(epoch, at).map(|open| open.rung) {
                    self.reaches(at, (epoch, rung), accepts, again, out);
                    if let Some(open) = self.epochs.get_mut(&epoch) {
                        open.closing = true;
                        // Takes that are under way find an empty queue.
                        for id in remaining {
                            self.leave(epoch, id, out);
                        }
                    }
                    if self.cses[at].lane == Some(epoch) {
                        self.cses[at].lane = None;
                    }
                }
            }
            Up::Failed { epoch: Some(epoch), again } => {
                if self.of(epoch, at).is_some() {
                    if again {
                        self.struck(at, out);
                    } else {
                        self.cses[at].strikes = self.limits.retries;
                        self.struck(at, out);
                    }
                    if !self.ended {
                        self.abandon(epoch, out);
                    }
                }
            }
            Up::Failed { epoch: None, again } => self.lost(at, again, out),
        }
    }

    /// The load of `cse` by other queries. Its lanes' reports include the sending of raw slices for this query, which
    /// plans account for.
    fn others(&self, cse: usize, load: f64) -> f64 {
        let own = &self.cses[cse];
        let cores = f64::from(self.cost.profile(cse).cores);
        let sends = own.handed.rate(self.now) * self.cost.slice(cse, PushdownLevel::Raw, (own.rows, own.bytes)).cpu / own.bytes.max(1.0);
        // They got `cores / load` and sending `sends`, where all wanted `cores`.
        cores / (cores / load.max(1.0) + sends)
    }

    fn of(&self, epoch: EpochId, cse: usize) -> Option<&Epoch> {
        self.epochs.get(&epoch).filter(|open| open.cse == cse)
    }

    /// A slice that was in the queue of `epoch` leaves it.
    fn leave(&mut self, epoch: EpochId, id: SliceId, out: &mut Vec<Action<B>>) {
        let Some(open) = self.epochs.get_mut(&epoch) else { return };
        if !matches!(open.slices.get(&id), Some(Stage::Queued | Stage::Leaving)) {
            return;
        }
        open.slices.remove(&id);
        let (cse, rung) = (open.cse, open.rung);
        let bytes = self.book(id).map_or(0.0, |book| book.slice.bytes as f64);
        if rung == PushdownLevel::Raw {
            self.cses[cse].raw_bytes = (self.cses[cse].raw_bytes - bytes).max(0.0);
        }
        if let Some(book) = self.book_mut(id) {
            book.epochs.retain(|other| *other != epoch);
            self.place(id, cse, out);
        }
    }

    fn taken(&mut self, cse: usize, epoch: EpochId, number: u32, slices: &[SliceId], out: &mut Vec<Action<B>>) {
        if self.of(epoch, cse).is_none() {
            return;
        }
        let Some(asked) = self.epochs.get_mut(&epoch).and_then(|open| open.takes.remove(&number)) else { return };
        for id in asked {
            if slices.contains(&id) {
                self.leave(epoch, id, out);
            } else if let Some(stage @ Stage::Leaving) = self.epochs.get_mut(&epoch).and_then(|open| open.slices.get_mut(&id)) {
                *stage = Stage::Begun;
            }
        }
        self.dirty = true;
    }

    fn progress(&mut self, cse: usize, epoch: EpochId, done: &[crate::message::SliceCost], running: Vec<(SliceId, Seconds)>, pending_rows: u64) {
        let now = self.now;
        let Some(open) = self.epochs.get_mut(&epoch).filter(|open| open.cse == cse) else { return };
        let rung = open.rung;
        let mut goes_on = false;
        for cost in done {
            let Some(stage) = open.slices.get_mut(&cost.slice) else { continue };
            if *stage == Stage::Done {
                continue;
            }
            *stage = Stage::Done;
            open.had.remove(&cost.slice);
            goes_on = true;
            let Some(book) = self.slices.get(cost.slice.0 as usize).and_then(Option::as_ref) else { continue };
            open.rows_done += f64::from(book.slice.rows);
            self.cost.measured(cse, rung, &book.slice, cost);
            if rung != PushdownLevel::Raw {
                self.cses[cse].produced += cost.bytes_out as f64;
            }
        }
        for (id, elapsed) in &running {
            if let Some(stage) = open.slices.get_mut(id)
                && *stage != Stage::Done
            {
                *stage = Stage::Begun;
                let had = open.had.entry(*id).or_insert(-1.0);
                if elapsed.is_finite() && *elapsed > *had {
                    *had = *elapsed;
                    goes_on = true;
                }
            }
        }
        if goes_on {
            (open.sound, open.excused) = (now, 0.0);
        }
        open.running =
            running.into_iter().filter(|(id, elapsed)| elapsed.is_finite() && open.slices.get(id).is_some_and(|stage| *stage != Stage::Done)).collect();
        open.heard = now;
        let rows_done = open.rows_done;
        if rung == PushdownLevel::Full && pending_rows > 0 {
            let lanes = self.lanes_of(epoch);
            self.cost.states(rows_done, pending_rows as f64, lanes);
        }
        if rung != PushdownLevel::Raw {
            let own = &self.cses[cse];
            let cpu = self.cost.slice(cse, rung, (own.rows, own.bytes)).cpu;
            if let Some(longest) = self.epochs.get(&epoch).and_then(|open| open.running.iter().map(|(_, elapsed)| *elapsed).reduce(f64::max))
                && longest > 1.2 * cpu
            {
                self.cost.running(cse, rung, longest, cpu);
            }
        }
    }

    /// How many lanes have states in `epoch`.
    fn lanes_of(&self, epoch: EpochId) -> f64 {
        self.epochs.get(&epoch).map_or(1.0, |open| {
            let done = open.slices.values().filter(|stage| **stage == Stage::Done).count();
            f64::from(self.cost.profile(open.cse).cores).min(done as f64)
        })
    }

    /// An epoch that has nothing to do may wait for orders for ever; one that waits although slices were given to it,
    /// or although it was closed, has missed an order.
    fn waits(&mut self, cse: usize, epoch: EpochId, waits: bool, slack: Seconds) {
        let now = self.now;
        let Some(open) = self.epochs.get_mut(&epoch).filter(|open| open.cse == cse) else { return };
        (open.waits, open.slack) = (waits, if slack.is_finite() { slack.max(0.0) } else { 0.0 });
        if waits && !open.closing && open.slices.values().all(|stage| *stage == Stage::Done) {
            open.sound = now;
        }
    }

    fn done(&mut self, cse: CseId, end: Completed, out: &mut Vec<Action<B>>) {
        let at = cse.0 as usize;
        if self.of(end.epoch, at).is_some() && self.cost.holds_state(end.rung) && end.rung == PushdownLevel::Full {
            let rows: f64 = end.slices.iter().filter_map(|id| self.book(*id)).map(|book| f64::from(book.slice.rows)).sum();
            let lanes = f64::from(self.cost.profile(at).cores).min(end.slices.len() as f64);
            self.cost.states(rows, end.rows as f64, lanes);
        }
        let verdict = self.ledger.end(cse, end.epoch, end.rung, &end.slices, end.batches);
        self.settled(cse, end.epoch, verdict, out);
    }

    /// `cse`, which was ordered an epoch at a level, reports what it accepts from now on. It may repeat that for as
    /// long as it completes slices, and otherwise until patience ends. A refusal of the level that it accepts counts as
    /// garbage.
    fn reaches(&mut self, cse: usize, (epoch, asked): (EpochId, PushdownLevel), accepts: Option<PushdownLevel>, again: Seconds, out: &mut Vec<Action<B>>) {
        let until = self.now + if again.is_finite() { again.clamp(0.001, self.limits.patience) } else { self.limits.patience };
        let (now, patience) = (self.now, self.limits.patience);
        let book = &mut self.cses[cse];
        book.reach = accepts;
        book.reach_until = until;
        self.dirty = true;
        let since = *book.refusing_since.get_or_insert(now);
        if accepts.is_none() {
            book.paused_until = book.paused_until.max(until);
        }
        // An epoch that only counts at its end runs for long; its progress is checked separately.
        let works = self.cses[cse].epochs.iter().any(|other| *other != epoch && self.epochs.get(other).is_some_and(|other| other.rows_done > 0.0));
        if now - since > patience && !works {
            self.lost(cse, false, out);
        } else if accepts.is_some_and(|rung| rung >= asked) {
            self.struck(cse, out);
        }
    }

    /// One more failure of `cse`.
    pub(super) fn struck(&mut self, cse: usize, out: &mut Vec<Action<B>>) {
        self.cses[cse].strikes += 1;
        self.cses[cse].paused_until = self.now + self.limits.pause;
        if self.cses[cse].strikes > self.limits.retries {
            self.lost(cse, false, out);
        }
    }

    /// All that is open at `cse` is lost; `again` says whether it gets work again after a pause.
    pub(super) fn lost(&mut self, cse: usize, again: bool, out: &mut Vec<Action<B>>) {
        if self.ended || self.cses[cse].dead {
            return;
        }
        let book = &mut self.cses[cse];
        book.strikes += 1;
        book.paused_until = self.now + self.limits.pause;
        book.heard = book.paused_until;
        book.dead = !again || book.strikes > self.limits.retries;
        book.lane = None;
        self.dirty = true;
        if book.dead && !book.surveyed {
            self.fail(cse, None, out);
            return;
        }
        let epochs: Vec<EpochId> = book.epochs.iter().copied().collect();
        let pool = std::mem::take(&mut book.pool);
        for epoch in epochs {
            self.abandon(epoch, out);
        }
        for id in pool {
            self.place(id, cse, out);
        }
        // Slices of epochs went back to this pool before; they may be better off elsewhere.
        if !self.ended {
            let pool = std::mem::take(&mut self.cses[cse].pool);
            for id in pool {
                self.place(id, cse, out);
            }
        }
    }
}
