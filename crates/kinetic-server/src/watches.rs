//! The watches of a drive: which changes start which programs, and the changes that wait for their runs.
//!
//! A write asks [`Watches::seen`] before it is carried out; where there is no watch, that is a look at one flag. Where
//! a watch has the key in its scope, the change waits here after its commit. The task that runs programs (`watcher`)
//! takes it. What waits is bounded: a further change is counted and dropped.
//!
//! A change knows which watches led to it: its *chain* (`chain`). A watch that is in the chain does not see it, and a
//! change from outside leads to a bounded number of runs. So runs that cause runs come to an end soon.
//!
//! Changes wait in the order in which their writes began, whichever task learns first that one is committed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::Either;
use parking_lot::{Mutex, RwLock};
use skytether_common::Error;
use skytether_kinetic_protocol::MessageType;
use skytether_kinetic_protocol::command::{Command, Header};
use skytether_kinetic_protocol::kinds::Priority;
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kv::{Change, Failed, To, Why};
use tokio::sync::{Notify, mpsc};

use crate::chain::Chain;
use crate::settings::Settings;

/// Watches that a drive has.
pub(crate) const WATCHES: usize = 64;

/// Changes that wait for the runs of one watch.
const WAITING: usize = 1024;

/// Changes that wait for runs, of all watches together. Their keys take 16 MiB at most.
const WAITING_TOGETHER: usize = 4096;

/// Sends messages that a connection has not asked for.
pub(crate) type Teller = mpsc::Sender<(Command, Bytes)>;

/// Who set a watch.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) identity: i64,
    /// An identity of another key is another one.
    pub(crate) key: Bytes,
    pub(crate) tls: bool,
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("identity", &self.identity).field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl Owner {
    /// Whether the drive still has the identity.
    pub(crate) fn is_in(&self, settings: &Settings) -> bool {
        settings.identity(self.identity).is_some_and(|identity| identity.acl.key() == self.key)
    }
}

/// Which changes a watch sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) first: Bytes,
    /// Empty: beyond all keys.
    pub(crate) last: Bytes,
    pub(crate) puts: bool,
    pub(crate) deletes: bool,
}

impl Scope {
    fn has(&self, key: &[u8], kind: MessageType) -> bool {
        let asked_for = if kind == MessageType::Put { self.puts } else { self.deletes };
        asked_for && key >= &self.first[..] && (self.last.is_empty() || key <= &self.last[..])
    }
}

/// A watch.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) owner: Owner,
    pub(crate) scope: Scope,
    /// What runs: language, keys, arguments, time and output key.
    pub(crate) program: ManageApplet,
    pub(crate) priority: Priority,
    /// That of messages about it.
    pub(crate) header: Header,
    /// Tells its connection of the ends of runs, if that was asked for.
    pub(crate) teller: Option<Teller>,
}

/// A change that waits for a run.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) watch: Arc<Watch>,
    pub(crate) key: Bytes,
    pub(crate) kind: MessageType,
    /// The watches that led to it, and this one.
    pub(crate) chain: Chain,
    pub(crate) number: u64,
}

/// What watches have done since the drive was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) watches: usize,
    /// Runs that were started or tried.
    pub(crate) runs: u64,
    /// Changes that started no run, because too many waited or the drive was locked or asleep.
    pub(crate) missed: u64,
    /// Messages about runs that their connection did not take in time.
    pub(crate) untold: u64,
}

#[derive(Debug)]
struct Entry {
    watch: Arc<Watch>,
    /// In order of arrival. A change that came again by the same chain is here once, with its last kind.
    order: VecDeque<(Bytes, Chain)>,
    kinds: HashMap<(Bytes, Chain), MessageType>,
    /// Changes that were dropped since the watch was last told of in the log.
    missed: u64,
    /// Whether the last run was refused.
    refused: bool,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    entries: BTreeMap<u64, Entry>,
    waiting: usize,
    /// Writes that began and that some watch sees: their changes once they are committed, nothing where they failed.
    begun: BTreeMap<u64, Option<Committed>>,
    next_write: u64,
    /// The watch whose change was taken last: they take turns.
    last: u64,
    totals: Totals,
}

/// The watches of one drive.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    any: AtomicBool,
    /// What the watches see, for writes: they wait for no lock that is held long.
    scopes: RwLock<Arc<[(u64, Scope)]>>,
    list: Mutex<List>,
    wake: Notify,
    /// Held by the one task that runs programs for watches.
    pub(crate) working: tokio::sync::Mutex<()>,
}

/// Changes of one write, and what led to them.
type Committed = (Vec<(Bytes, MessageType)>, Chain);

/// Changes that some watch sees, on their way to the store.
#[derive(Debug)]
pub(crate) struct Seen {
    watches: Arc<Watches>,
    write: u64,
    changes: Option<Committed>,
}

impl Seen {
    /// Told when the changes are committed. Dropping it says that they failed.
    fn committed(mut self) {
        let changes = self.changes.take();
        self.ended(changes.unwrap_or_default());
    }

    /// Lets the changes of this write wait for runs, and those of later ones that are committed already.
    fn ended(&self, changes: Committed) {
        let mut list = self.watches.list.lock();
        list.begun.insert(self.write, Some(changes));
        while let Some(first) = list.begun.first_entry().filter(|first| first.get().is_some()) {
            let (changes, chain) = first.remove().unwrap_or_default();
            for (key, kind) in changes {
                list.add(&key, kind, &chain);
            }
        }
        drop(list);
        self.watches.wake.notify_one();
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if self.changes.take().is_some() {
            self.ended(Committed::default());
        }
    }
}

impl Watches {
    /// What some watch will see of these changes, if anything; `chain` led to them.
    pub(crate) fn seen(self: &Arc<Self>, chain: &Chain, changes: &[Change]) -> Option<Seen> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let scopes = Arc::clone(&self.scopes.read());
        let kind = |change: &Change| if matches!(change.to, To::Delete) { MessageType::Delete } else { MessageType::Put };
        let sees = |change: &&Change| scopes.iter().any(|(number, scope)| scope.has(&change.key, kind(change)) && !chain.contains(number));
        let changes: Vec<_> = changes.iter().filter(sees).map(|change| (change.key.clone(), kind(change))).collect();
        if changes.is_empty() {
            return None;
        }
        let mut list = self.list.lock();
        let write = list.next_write;
        list.next_write += 1;
        list.begun.insert(write, None);
        Some(Seen { watches: Arc::clone(self), write, changes: Some((changes, chain.clone())) })
    }

    /// Sets a watch. One of the same identity, program and scope is replaced, and what waits for it stays.
    /// Whether there was a place for it.
    pub(crate) fn set(&self, watch: Watch) -> bool {
        let mut list = self.list.lock();
        let same = |other: &Watch| {
            other.owner.identity == watch.owner.identity && other.scope == watch.scope && other.program.program_key == watch.program.program_key
        };
        if let Some(entry) = list.entries.values_mut().find(|entry| same(&entry.watch)) {
            entry.watch = Arc::new(watch);
            return true;
        }
        if list.entries.len() >= WATCHES {
            return false;
        }
        list.next += 1;
        let number = list.next;
        let entry = Entry { watch: Arc::new(watch), order: VecDeque::new(), kinds: HashMap::new(), missed: 0, refused: false };
        list.entries.insert(number, entry);
        self.publish(&list);
        true
    }

    /// Removes the watches that are not to stay; how many.
    pub(crate) fn keep(&self, stays: impl Fn(&Watch) -> bool) -> usize {
        let mut list = self.list.lock();
        let before = list.entries.len();
        list.entries.retain(|_, entry| stays(&entry.watch));
        list.waiting = list.entries.values().map(|entry| entry.order.len()).sum();
        self.publish(&list);
        before - list.entries.len()
    }

    /// Says to writes what is watched.
    fn publish(&self, list: &List) {
        *self.scopes.write() = list.entries.iter().map(|(number, entry)| (*number, entry.watch.scope.clone())).collect();
        self.any.store(!list.entries.is_empty(), Ordering::Release);
    }

    /// The next change that waits for a run. One task takes them.
    pub(crate) async fn next(&self) -> Due {
        loop {
            if let Some(due) = self.list.lock().take() {
                return due;
            }
            self.wake.notified().await;
        }
    }

    /// Drops a change that was taken, and all that wait: the drive starts no program now.
    pub(crate) fn miss_all(&self) {
        let mut list = self.list.lock();
        list.totals.missed += 1 + list.waiting as u64;
        list.waiting = 0;
        for entry in list.entries.values_mut() {
            entry.missed += entry.order.len() as u64;
            entry.order.clear();
            entry.kinds.clear();
        }
    }

    /// Notes how a run ended; what the drive's log is to say.
    pub(crate) fn ended(&self, number: u64, refused: Option<&str>) -> Vec<String> {
        let mut list = self.list.lock();
        list.totals.runs += 1;
        let Some(entry) = list.entries.get_mut(&number) else { return Vec::new() };
        let name = name(&entry.watch.program);
        let mut said = Vec::new();
        if let Some(why) = refused.filter(|_| !entry.refused) {
            said.push(format!("the watched program {name} does not run: {why}"));
        }
        entry.refused = refused.is_some();
        if entry.missed > 0 && entry.order.is_empty() {
            said.push(format!("a watch with the program {name} missed {} changes", entry.missed));
            entry.missed = 0;
        }
        said
    }

    /// Counts a message that its connection did not take.
    pub(crate) fn untold(&self) {
        self.list.lock().totals.untold += 1;
    }

    pub(crate) fn totals(&self) -> Totals {
        let list = self.list.lock();
        Totals { watches: list.entries.len(), ..list.totals }
    }
}

impl List {
    /// Lets a committed change wait for the watches that see it.
    fn add(&mut self, key: &Bytes, kind: MessageType, chain: &Chain) {
        for (number, entry) in &mut self.entries {
            if !entry.watch.scope.has(key, kind) || chain.contains(number) {
                continue;
            }
            let change = (key.clone(), chain.clone());
            if let Some(known) = entry.kinds.get_mut(&change) {
                *known = kind;
            } else if entry.order.len() >= WAITING || self.waiting >= WAITING_TOGETHER || !chain.may_run() {
                entry.missed += 1;
                self.totals.missed += 1;
            } else {
                entry.kinds.insert(change.clone(), kind);
                entry.order.push_back(change);
                self.waiting += 1;
            }
        }
    }

    /// Takes the oldest change of the watch after the one that was last.
    fn take(&mut self) -> Option<Due> {
        let has = |(_, entry): &(&u64, &Entry)| !entry.order.is_empty();
        let after = (std::ops::Bound::Excluded(self.last), std::ops::Bound::Unbounded);
        let number = self.entries.range(after).find(has).or_else(|| self.entries.iter().find(has)).map(|(number, _)| *number)?;
        let entry = self.entries.get_mut(&number)?;
        let change = entry.order.pop_front()?;
        let kind = entry.kinds.remove(&change)?;
        self.waiting = self.waiting.saturating_sub(1);
        self.last = number;
        let (key, chain) = change;
        Some(Due { watch: Arc::clone(&entry.watch), key, kind, chain: chain.with(number), number })
    }
}

/// The longest name of a program in the drive's log, in characters.
const LONGEST_NAME: usize = 200;

/// The program of a watch, for the drive's log: its keys are any bytes of a client's, and no line may be one of theirs.
pub(crate) fn name(program: &ManageApplet) -> String {
    let keys = program.program_key.iter().flat_map(|key| [" ".into(), String::from_utf8_lossy(key.get(..LONGEST_NAME).unwrap_or(key))]);
    let escaped = keys.skip(1).flat_map(|part| part.chars().flat_map(char::escape_debug).collect::<Vec<_>>());
    escaped.take(LONGEST_NAME).collect()
}

/// A write that has its place: once it is committed, watches see it, whether or not its client still waits.
pub(crate) fn told<W>(seen: Option<Seen>, writing: W) -> impl Future<Output = Result<(), Failed>> + Send + use<W>
where
    W: Future<Output = Result<(), Failed>> + Send + 'static,
{
    let Some(seen) = seen else { return Either::Left(writing) };
    let telling = tokio::spawn(async move {
        let done = writing.await;
        if done.is_ok() {
            seen.committed();
        }
        done
    });
    Either::Right(async move {
        let interrupted = |e| Failed { index: 0, why: Why::Error(Error::internal("the write was interrupted").with_source(e)) };
        telling.await.unwrap_or_else(|e| Err(interrupted(e)))
    })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn b(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn watch(program: &str, first: &str, last: &str) -> Watch {
        Watch {
            owner: Owner { identity: 1, key: b("secret"), tls: false },
            scope: Scope { first: b(first), last: b(last), puts: true, deletes: true },
            program: ManageApplet { program_key: vec![b(program)], ..ManageApplet::default() },
            priority: Priority::NORMAL,
            header: Header::default(),
            teller: None,
        }
    }

    fn with(watches: Vec<Watch>) -> Arc<Watches> {
        let all = Arc::new(Watches::default());
        for watch in watches {
            assert!(all.set(watch));
        }
        all
    }

    fn put(watches: &Arc<Watches>, key: &str, chain: &[u64]) -> bool {
        let seen = watches.seen(&Chain::of(chain), &[Change::put(b(key), Bytes::new())]);
        seen.map(Seen::committed).is_some()
    }

    fn next(watches: &Watches) -> Option<(String, Bytes, Chain)> {
        watches.next().now_or_never().map(|due| (name(&due.watch.program), due.key, due.chain))
    }

    #[test]
    fn change_in_scope_waits_for_each_watch_once() {
        let all = with(vec![watch("one", "a", "c"), watch("two", "b", "")]);
        assert!(put(&all, "b", &[]) && put(&all, "b", &[]) && put(&all, "a", &[]) && put(&all, "z", &[]) && !put(&all, "A", &[]));
        let due: Vec<_> = std::iter::from_fn(|| next(&all)).map(|(name, key, _)| (name, key)).collect();
        // Watches take turns.
        assert_eq!(due, [("one".into(), b("b")), ("two".into(), b("b")), ("one".into(), b("a")), ("two".into(), b("z"))]);
    }

    #[test]
    fn change_that_came_again_has_its_last_kind() {
        let all = with(vec![watch("one", "", "")]);
        put(&all, "k", &[]);
        let change = Change { key: b("k"), expect: None, to: To::Delete };
        all.seen(&Chain::default(), &[change]).unwrap().committed();
        assert_eq!(all.next().now_or_never().map(|due| due.kind), Some(MessageType::Delete));
        assert!(next(&all).is_none());
    }

    #[test]
    fn watch_does_not_see_what_its_own_runs_lead_to() {
        let all = with(vec![watch("one", "a", "a"), watch("two", "", "")]);
        put(&all, "a", &[]);
        let (_, _, by_one) = next(&all).unwrap();
        let (_, _, by_two) = next(&all).unwrap();
        assert_eq!((by_one.watches(), by_two.watches()), (&[1][..], &[2][..]));
        put(&all, "a", by_two.watches());
        put(&all, "b", by_one.watches());
        assert_eq!(next(&all).map(|(name, _, chain)| (name, chain.watches().to_vec())), Some(("one".into(), vec![1, 2])));
        assert_eq!(next(&all).map(|(name, _, chain)| (name, chain.watches().to_vec())), Some(("two".into(), vec![1, 2])));
        assert!(!put(&all, "a", &[1, 2]) && next(&all).is_none());
    }

    #[test]
    fn changes_wait_in_the_order_in_which_writes_began() {
        let all = with(vec![watch("one", "", "")]);
        let seen = |key: &str, to: To| all.seen(&Chain::default(), &[Change { key: b(key), expect: None, to }]).unwrap();
        let put = || To::Put { version: Bytes::new(), tag: Bytes::new(), algorithm: 0, value: Bytes::new() };
        let (first, failed, second, third) = (seen("k", put()), seen("x", put()), seen("a", put()), seen("k", To::Delete));
        // The tasks of later writes learn first.
        third.committed();
        second.committed();
        assert!(next(&all).is_none());
        drop(failed);
        first.committed();
        let due: Vec<_> = std::iter::from_fn(|| all.next().now_or_never()).map(|due| (due.key, due.kind)).collect();
        assert_eq!(due, [(b("k"), MessageType::Delete), (b("a"), MessageType::Put)]);
        assert!(all.list.lock().begun.is_empty());
    }

    #[test]
    fn runs_that_one_change_leads_to_are_bounded() {
        let all = with((0..WATCHES).map(|number| watch(&number.to_string(), "", "")).collect());
        put(&all, "k", &[]);
        let mut runs = 0;
        while let Some(due) = all.next().now_or_never() {
            runs += 1;
            // Each run changes a key of its own, which all other watches see.
            if let Some(a) = all.seen(&due.chain, &[Change::put(format!("{runs}"), Bytes::new())]) {
                Seen::committed(a)
            }
        }
        assert_eq!(runs, WATCHES + WATCHES * crate::chain::RUNS as usize);
    }

    #[test]
    fn name_in_the_log_is_one_short_line() {
        let named =
            |keys: &[&[u8]]| name(&ManageApplet { program_key: keys.iter().map(|key| Bytes::copy_from_slice(key)).collect(), ..ManageApplet::default() });
        assert_eq!(named(&[b"a.0000", b"x\n17 erased", b"\xff"]), "a.0000 x\\n17 erased \u{fffd}");
        assert_eq!(named(&[&[b'x'; 60_000]]).len(), LONGEST_NAME);
    }

    #[test]
    fn changes_beyond_the_bound_are_counted_and_dropped() {
        let all = with(vec![watch("one", "", "")]);
        for number in 0..WAITING + 10 {
            put(&all, &format!("{number:05}"), &[]);
        }
        let waiting = all.list.lock().waiting;
        assert_eq!((waiting, all.totals().missed), (WAITING, 10));
        let mut said = Vec::new();
        while let Some(due) = all.next().now_or_never() {
            assert!(said.is_empty());
            said = all.ended(due.number, None);
        }
        assert_eq!(said, ["a watch with the program one missed 10 changes"]);
        assert_eq!(all.totals(), Totals { watches: 1, runs: WAITING as u64, missed: 10, untold: 0 });
    }

    #[test]
    fn watches_are_bounded_and_one_replaces_its_like() {
        let all = with((0..WATCHES).map(|number| watch(&number.to_string(), "a", "b")).collect());
        assert!(!all.set(watch("one more", "a", "b")));
        put(&all, "a", &[]);
        assert!(all.set(watch("0", "a", "b")));
        assert_eq!((all.totals().watches, all.list.lock().waiting), (WATCHES, WATCHES));
        assert_eq!(all.keep(|watch| name(&watch.program) == "5"), WATCHES - 1);
        assert_eq!(all.list.lock().waiting, 1);
        all.miss_all();
        assert!(next(&all).is_none());
        assert_eq!(all.keep(|_| false), 1);
        assert!(!put(&all, "a", &[]));
    }

    #[test]
    fn owner_shows_no_key() {
        assert!(!format!("{:?}", watch("one", "", "")).contains("secret"));
    }
}
