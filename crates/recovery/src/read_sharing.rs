//! Read sharing: slices that a query reads raw from living drives, and that decoding a lost drive's slices needs too,
//! are read once for both.
//!
//! Where drives send slices raw and one drive is lost, a query would read most slices twice: for itself, and for the
//! groups of the lost slices. A slow disk or link would take twice the time. So the first reader of such a slice keeps
//! it for the other one, for a [while](KEPT) and within a bound.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Key, PartitionName, Result};
use tokio::sync::{Notify, OnceCell};

use skytether_catalog::records::code_map::Part;

/// A query counts as active for this long after its last read.
const RECENT: Duration = Duration::from_millis(if cfg!(test) { 2000 } else { 250 });

/// The longest that a decoder waits for a query to read a slice.
const LONGEST: Duration = Duration::from_secs(if cfg!(test) { 8 } else { 1 });

/// How many slices ahead of a query a decoder waits for: groups are formed of slices that lie some dozens apart.
const AHEAD: u32 = 64;

/// How long a slice is kept for a second reader, which may not come.
const KEPT: Duration = Duration::from_secs(5);

/// The most partitions whose reading position by queries is known.
const FOLLOWED: usize = 4096;

/// The reader of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A query, which needs the content.
    Query,
    /// A decoder of another slice of its group.
    Decoder,
}

/// Slices that one of two readers has read, or is reading.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Bytes that may be kept.
    room: usize,
    state: Mutex<State>,
    /// A query began to read a slice.
    moved: Notify,
}

#[derive(Debug, Default)]
struct State {
    slices: HashMap<(usize, Key), Slice>,
    /// The order in which slices came, oldest first; some of them may be gone.
    turns: VecDeque<(u64, Instant, (usize, Key))>,
    /// Of the next one.
    turn: u64,
    bytes: usize,
    /// How far queries are with partitions at drives, and since when.
    queries: HashMap<(usize, PartitionName), (u32, Instant)>,
    /// Per table: since when queries read its slices raw, and when they last did. A table goes by its first partition.
    reading: HashMap<PartitionName, (Instant, Instant)>,
    /// Whether a task runs that drops slices kept for too long.
    tidied: bool,
}

#[derive(Debug)]
struct Slice {
    cell: Arc<OnceCell<Bytes>>,
    first: Reader,
    turn: u64,
    /// Bytes that are counted for it, once they are there.
    bytes: usize,
}

impl State {
    fn remove(&mut self, slice: &(usize, Key)) {
        if let Some(removed) = self.slices.remove(slice) {
            self.bytes -= removed.bytes;
        }
    }

    /// Drops slices beyond `room`, and slices kept longer than `kept`.
    fn tidy(&mut self, room: usize, kept: Duration) {
        while let Some((turn, since, slice)) = self.turns.front() {
            let is_there = self.slices.get(slice).is_some_and(|one| one.turn == *turn);
            if is_there && self.bytes <= room && since.elapsed() < kept {
                return;
            }
            if let Some((_, _, slice)) = self.turns.pop_front()
                && is_there
            {
                self.remove(&slice);
            }
        }
    }
}

impl Shared {
    /// Keeps at most `room` bytes.
    pub(crate) fn new(room: usize) -> Arc<Self> {
        Arc::new(Self { room, state: Mutex::default(), moved: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The slice under `key` at drive `at`: from the other reader, if that has it or reads it just now. Otherwise
    /// `read` gives it, and it is kept for the other reader, and for further ones where it is needed `again`.
    ///
    /// # Errors
    /// As `read`.
    pub(crate) async fn once(self: &Arc<Self>, at: usize, key: &Key, reader: Reader, again: bool, read: impl AsyncFnOnce() -> Result<Bytes>) -> Result<Bytes> {
        let slice = (at, key.clone());
        let (cell, own_turn) = {
            let mut state = self.state();
            let known = state.slices.get(&slice).map(|known| (Arc::clone(&known.cell), known.first, known.turn));
            match known {
                Some((cell, first, turn)) if first == reader => (cell, turn),
                // Both have it then.
                Some((cell, _, turn)) => {
                    if !again {
                        state.remove(&slice);
                    }
                    (cell, turn)
                }
                None => {
                    let (cell, turn) = (Arc::default(), state.turn);
                    state.turn += 1;
                    state.turns.push_back((turn, Instant::now(), slice.clone()));
                    state.slices.insert(slice.clone(), Slice { cell: Arc::clone(&cell), first: reader, turn, bytes: 0 });
                    self.tidied(&mut state);
                    (cell, turn)
                }
            }
        };
        let mut own = false;
        let read = cell.get_or_try_init(async || {
            own = true;
            read().await
        });
        let read = read.await.cloned();
        if own {
            let mut state = self.state();
            if let Some(kept) = state.slices.get_mut(&slice).filter(|kept| kept.turn == own_turn) {
                match &read {
                    Ok(bytes) => {
                        kept.bytes = bytes.len();
                        state.bytes += bytes.len();
                    }
                    Err(_) => state.remove(&slice),
                }
            }
            state.tidy(self.room, KEPT);
        }
        read
    }

    /// A query is at slice `number` of a partition.
    pub(crate) fn goes_on(&self, at: usize, partition: &PartitionName, number: u32) {
        let mut state = self.state();
        if state.queries.len() >= FOLLOWED {
            state.queries.clear();
        }
        let (furthest, since) = state.queries.entry((at, partition.clone())).or_insert((0, Instant::now()));
        // A query that begins again, or another one.
        let is_other = since.elapsed() >= RECENT || number.saturating_add(AHEAD) < *furthest;
        // A query that reads the same slices again and again makes no progress.
        if is_other || number > *furthest {
            (*furthest, *since) = (number, Instant::now());
        }
        drop(state);
        self.moved.notify_waiters();
    }

    /// A query reads slices of a partition as they are stored, be its drive here or not.
    pub(crate) fn reads(&self, partition: &PartitionName) {
        let mut state = self.state();
        if state.reading.len() >= FOLLOWED {
            state.reading.clear();
        }
        let now = Instant::now();
        let (began, last) = state.reading.entry(table_of(partition)).or_insert((now, now));
        if last.elapsed() >= RECENT {
            *began = now;
        }
        *last = now;
    }

    /// Whether queries do that just now, with any partition of its table.
    pub(crate) fn is_read(&self, partition: &PartitionName) -> bool {
        self.state().reading.get(&table_of(partition)).is_some_and(|(_, last)| last.elapsed() < RECENT)
    }

    /// Waits for a query that will probably read this slice soon. Without this, a disk would seek between both readers.
    pub(crate) async fn expect(&self, at: usize, key: &Key) {
        let Some((partition, Some(number))) = PartitionName::parse(key) else { return };
        if Part::parse(&partition).0 != Part::Slice {
            return;
        }
        let table = table_of(&partition);
        let (slice, query, until) = ((at, key.clone()), (at, partition), Instant::now() + LONGEST);
        while Instant::now() < until {
            let moved = self.moved.notified();
            let comes = {
                let state = self.state();
                let (furthest, since) = match state.queries.get(&query) {
                    Some((furthest, since)) if since.elapsed() < RECENT => (*furthest, Some(*since)),
                    // It may be about to begin there.
                    _ => (0, state.reading.get(&table).map(|(began, _)| *began)),
                };
                let is_near = furthest < number && number - furthest <= AHEAD && since.is_some_and(|since| since.elapsed() < RECENT);
                is_near && !state.slices.contains_key(&slice)
            };
            if !comes {
                return;
            }
            let _ = tokio::time::timeout(RECENT / 4, moved).await;
        }
    }

    /// Starts a task that drops slices that no second reader took, unless one runs.
    fn tidied(self: &Arc<Self>, state: &mut State) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if state.tidied {
            return;
        }
        state.tidied = true;
        let shared = Arc::downgrade(self);
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(KEPT).await;
                let Some(shared) = shared.upgrade() else { return };
                let mut state = shared.state();
                state.tidy(shared.room, KEPT);
                if state.turns.is_empty() {
                    state.tidied = false;
                    return;
                }
            }
        });
    }
}

/// The table of a partition, as its first one.
fn table_of(partition: &PartitionName) -> PartitionName {
    PartitionName { slot: 0, ..partition.clone() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use skytether_common::{Error, Generation};

    use super::*;

    fn key(n: usize) -> Key {
        Key::new(format!("d/s.{n}")).unwrap()
    }

    impl Shared {
        /// Bytes, slices, and turns.
        fn kept(&self) -> (usize, usize, usize) {
            let state = self.state();
            (state.bytes, state.slices.len(), state.turns.len())
        }
    }

    struct Drive(AtomicUsize);

    impl Drive {
        async fn read(&self) -> Result<Bytes> {
            self.0.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok(vec![7; 100].into())
        }

        fn reads(&self) -> usize {
            self.0.swap(0, Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn query_and_decoder_share_one_read_and_nothing_is_kept() {
        let (shared, drive) = (Shared::new(1000), Drive(AtomicUsize::new(0)));
        let get = |n: usize, reader| {
            let (shared, drive) = (&shared, &drive);
            async move { shared.once(0, &key(n), reader, false, || drive.read()).await.unwrap().len() }
        };
        // One after the other, and at the same time.
        assert_eq!((get(0, Reader::Query).await, get(0, Reader::Decoder).await), (100, 100));
        assert_eq!(tokio::join!(get(1, Reader::Decoder), get(1, Reader::Query)), (100, 100));
        assert_eq!(drive.reads(), 2);
        assert_eq!((shared.kept().0, shared.kept().1), (0, 0));
        // Three times is no second reader.
        assert_eq!(tokio::join!(get(2, Reader::Query), get(2, Reader::Query), get(2, Reader::Decoder)), (100, 100, 100));
        assert_eq!(drive.reads(), 1);
        // Of another drive it is another one.
        shared.once(1, &key(0), Reader::Query, false, || drive.read()).await.unwrap();
        get(0, Reader::Decoder).await;
        assert_eq!(drive.reads(), 2);
    }

    #[tokio::test]
    async fn unclaimed_slices_are_bounded_and_released() {
        let (shared, drive) = (Shared::new(1000), Drive(AtomicUsize::new(0)));
        for n in 0..30 {
            shared.once(0, &key(n), Reader::Query, false, || drive.read()).await.unwrap();
        }
        assert_eq!(shared.kept(), (1000, 10, 10));
        drive.reads();
        shared.once(0, &key(29), Reader::Decoder, false, || drive.read()).await.unwrap();
        shared.once(0, &key(0), Reader::Decoder, false, || drive.read()).await.unwrap();
        assert_eq!(drive.reads(), 1);
        shared.state().tidy(1000, Duration::ZERO);
        assert_eq!(shared.kept(), (0, 0, 0));
    }

    #[tokio::test]
    async fn error_or_end_of_one_reader_does_not_affect_the_other() {
        let (shared, drive) = (Shared::new(1000), Drive(AtomicUsize::new(0)));
        let fails = || async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Err(Error::corrupt("damaged"))
        };
        let at = key(0);
        let (failed, read) = tokio::join!(shared.once(0, &at, Reader::Query, false, fails), shared.once(0, &at, Reader::Decoder, false, || drive.read()));
        assert!(failed.is_err() && read.is_ok());
        let goes = shared.once(0, &at, Reader::Query, false, std::future::pending::<Result<Bytes>>);
        assert!(tokio::time::timeout(Duration::from_millis(5), goes).await.is_err());
        shared.once(0, &at, Reader::Decoder, false, || drive.read()).await.unwrap();
        assert_eq!((drive.reads(), shared.kept().0), (2, 0));
    }

    #[tokio::test]
    async fn several_decoders_share_one_read() {
        let (shared, drive) = (Shared::new(1000), Drive(AtomicUsize::new(0)));
        for reader in [Reader::Query, Reader::Decoder, Reader::Decoder, Reader::Query] {
            shared.once(0, &key(0), reader, true, || drive.read()).await.unwrap();
        }
        assert_eq!((drive.reads(), shared.kept().0), (1, 100));
    }

    fn partition(slot: u32) -> PartitionName {
        PartitionName { dataset: "lab.t".parse().unwrap(), generation: Generation(1), table: "data".into(), slot }
    }

    /// It waits for a query that will soon read the same slice, and not for one that is past it or far away.
    #[tokio::test]
    async fn decoder_waits_only_for_a_query_that_reads_ahead_of_it() {
        let shared = Shared::new(1000);
        let slice = |n: u32| partition(1).slice_key(n).unwrap();
        let waits = async |n: u32| tokio::time::timeout(RECENT / 5, shared.expect(0, &slice(n))).await.is_err();
        assert!(!waits(3).await, "nobody reads");
        // It may be about to begin, of this table.
        shared.reads(&partition(4));
        assert!(shared.is_read(&partition(1)) && waits(3).await && !waits(AHEAD + 1).await);
        shared.goes_on(0, &partition(1), 5);
        assert!(waits(6).await && !waits(3).await && !waits(5 + AHEAD + 1).await);
        let comes = async {
            for n in 6..12 {
                tokio::time::sleep(RECENT / 10).await;
                shared.goes_on(0, &partition(1), n);
            }
        };
        let at = slice(11);
        let waited = tokio::time::timeout(4 * LONGEST, async { tokio::join!(shared.expect(0, &at), comes) });
        assert!(waited.await.is_ok());
        // Another drive, or another table, is not meant.
        assert!(!shared.is_read(&PartitionName { table: "other".into(), ..partition(1) }));
    }

    #[tokio::test]
    async fn decoder_waits_for_no_silent_or_stalled_query() {
        let shared = Shared::new(1000);
        let slice = partition(1).slice_key(9).unwrap();
        shared.goes_on(0, &partition(1), 5);
        let silent = tokio::time::timeout(20 * LONGEST, shared.expect(0, &slice));
        assert!(silent.await.is_ok());
        let again = async {
            loop {
                shared.reads(&partition(1));
                shared.goes_on(0, &partition(1), 5);
                tokio::time::sleep(RECENT / 10).await;
            }
        };
        tokio::select! {
            () = again => {}
            waited = tokio::time::timeout(20 * LONGEST, shared.expect(0, &slice)) => assert!(waited.is_ok()),
        }
    }
}
