//! A store that fails on purpose, to test its callers.
//!
//! [`Rule`]s say which operations fail, by count or by a seeded draw, so that a run can be repeated exactly. Crashes in
//! the middle of a batch belong to the disk store: see `disk::crash`.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Error, Key, Kind, Result};

use crate::{Entry, Op, SliceStore, Usage, Version};

/// An operation of a [`SliceStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`SliceStore::apply`].
    Apply,
    /// [`SliceStore::get`] and [`SliceStore::get_ranges_unverified`].
    Get,
    /// [`SliceStore::stat`].
    Stat,
    /// [`SliceStore::list`].
    List,
    /// [`SliceStore::usage`].
    Usage,
    /// Any of these.
    Any,
}

impl Operation {
    const ALL: [Operation; 6] = [Operation::Apply, Operation::Get, Operation::Stat, Operation::List, Operation::Usage, Operation::Any];
}

/// Which of the operations that a [`Rule`] is about fail; they are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// This one alone.
    Nth(u64),
    /// This one and all that follow.
    From(u64),
    /// Each whose count divides by this.
    Every(u64),
    /// This many of a thousand, drawn from the seed and the count.
    Chance {
        /// The probability, in thousandths.
        per_mille: u64,
        /// Another seed, other failures; the same seed, the same.
        seed: u64,
    },
}

/// What happens to an operation that a rule hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is not carried out and fails with this kind: `Unavailable` as a drive with an I/O error,
    /// `Exhausted` as a full one.
    Fail(Kind),
    /// It is carried out, and then fails with this kind: the answer got lost.
    FailAfter(Kind),
    /// A `get` fails as it does for damaged bytes, naming the key. Other operations are not touched.
    Corrupt,
    /// A `get` returns the value with one bit flipped, against the contract: for layers that claim to verify by
    /// themselves. So do the parts of a value, as any store's may. Empty values and other operations are not touched.
    FlipBit,
}

/// What fails when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The operation that is counted.
    pub operation: Operation,
    /// Counts only where this is a prefix of a key concerned (for `list`: where one of the two prefixes begins with
    /// the other); empty for all.
    pub prefix: String,
    /// Which of those counted fail.
    pub when: When,
    /// How.
    pub fault: Fault,
}

impl Rule {
    /// A rule about all keys.
    #[must_use]
    pub fn new(operation: Operation, when: When, fault: Fault) -> Self {
        Self { operation, prefix: String::new(), when, fault }
    }

    /// The same rule about keys that begin with `prefix`.
    #[must_use]
    pub fn under(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }
}

#[derive(Debug)]
struct Armed {
    rule: Rule,
    seen: u64,
}

/// `inner`, with failures.
#[derive(Debug)]
pub struct FaultStore<S> {
    inner: S,
    rules: Mutex<Vec<Armed>>,
    counts: [AtomicU64; Operation::ALL.len()],
    injected: AtomicU64,
}

impl<S: SliceStore> FaultStore<S> {
    /// Wraps `inner`; without rules it behaves just like it.
    pub fn new(inner: S) -> Self {
        Self { inner, rules: Mutex::default(), counts: std::array::from_fn(|_| AtomicU64::new(0)), injected: AtomicU64::new(0) }
    }

    /// Adds a rule; it counts from now on. Where several hit the same operation, the first added wins.
    pub fn add(&self, rule: Rule) {
        self.rules().push(Armed { rule, seen: 0 });
    }

    /// Adds a rule.
    #[must_use]
    pub fn with(self, rule: Rule) -> Self {
        self.add(rule);
        self
    }

    /// Takes all rules away.
    pub fn heal(&self) {
        self.rules().clear();
    }

    /// How often `operation` was called.
    #[must_use]
    pub fn count(&self, operation: Operation) -> u64 {
        self.counts[operation as usize].load(Ordering::Relaxed)
    }

    /// How many faults were injected.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// The store behind.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Armed>> {
        self.rules.lock()
    }

    /// Counts the operation, and returns its fault, if any, and a random number.
    fn draw(&self, operation: Operation, concerns: impl Fn(&str) -> bool) -> Option<(Fault, u64)> {
        for counted in [operation, Operation::Any] {
            self.counts[counted as usize].fetch_add(1, Ordering::Relaxed);
        }
        let mut hit = None;
        let is_about = |rule: &Rule| (rule.operation == operation || rule.operation == Operation::Any) && concerns(&rule.prefix);
        for armed in self.rules().iter_mut().filter(|armed| is_about(&armed.rule)) {
            armed.seen += 1;
            let n = armed.seen;
            let hits = match armed.rule.when {
                When::Nth(nth) => n == nth,
                When::From(first) => n >= first,
                When::Every(step) => step > 0 && n.is_multiple_of(step),
                When::Chance { per_mille, seed } => mix(seed ^ mix(n)) % 1000 < per_mille,
            };
            let touches = operation == Operation::Get || !matches!(armed.rule.fault, Fault::Corrupt | Fault::FlipBit);
            if hits && touches && hit.is_none() {
                hit = Some((armed.rule.fault, mix(n)));
            }
        }
        if hit.is_some() {
            self.injected.fetch_add(1, Ordering::Relaxed);
        }
        hit
    }

    fn run<T>(&self, operation: Operation, what: &str, concerns: impl Fn(&str) -> bool, f: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.draw(operation, concerns) {
            Some((Fault::Fail(kind), _)) => Err(injected(kind, what)),
            Some((Fault::FailAfter(kind), _)) => f().and(Err(injected(kind, what))),
            _ => f(),
        }
    }

    /// Reads a value or parts of it with `f`.
    fn read(&self, key: &Key, f: impl FnOnce() -> Result<Vec<Bytes>>) -> Result<Vec<Bytes>> {
        match self.draw(Operation::Get, |prefix| key.as_str().starts_with(prefix)) {
            None => f(),
            Some((Fault::Fail(kind), _)) => Err(injected(kind, &format!("reading key {key}"))),
            Some((Fault::FailAfter(kind), _)) => f().and(Err(injected(kind, &format!("reading key {key}")))),
            Some((Fault::Corrupt, _)) => {
                f()?;
                Err(Error::corrupt(format!("the value of key {key} does not match its checksum (injected fault): drop its data set and ingest it again")))
            }
            Some((Fault::FlipBit, draw)) => Ok(flipped(f()?, draw)),
        }
    }
}

/// `parts` with one bit of all of theirs flipped.
fn flipped(mut parts: Vec<Bytes>, draw: u64) -> Vec<Bytes> {
    let bits = parts.iter().map(|part| part.len() as u64 * 8).sum::<u64>();
    let mut bit = draw.checked_rem(bits).unwrap_or(0);
    for part in &mut parts {
        let here = part.len() as u64 * 8;
        if bit < here {
            let mut bytes = BytesMut::from(part.as_ref());
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            *part = bytes.freeze();
            break;
        }
        bit -= here;
    }
    parts
}

fn injected(kind: Kind, what: &str) -> Error {
    Error::new(kind, format!("{what} failed: injected fault ({})", kind.as_str()))
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): not a sequence but a hash, so that a fault follows from seed and
/// operation, in whichever order threads come.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl<S: SliceStore> SliceStore for FaultStore<S> {
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        let keys: Vec<Key> = batch.iter().map(|op| op.key().clone()).collect();
        let what = format!("applying a batch of {}", keys.len());
        self.run(Operation::Apply, &what, |prefix| prefix.is_empty() || keys.iter().any(|key| key.as_str().starts_with(prefix)), || self.inner.apply(batch))
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        self.read(key, || self.inner.get(key).map(|value| vec![value]))?.pop().ok_or_else(|| Error::internal("a value got lost"))
    }

    fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.read(key, || self.inner.get_ranges_unverified(key, ranges))
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        self.run(Operation::Stat, &format!("looking at key {key}"), |prefix| key.as_str().starts_with(prefix), || self.inner.stat(key))
    }

    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        let concerns = |rule: &str| prefix.starts_with(rule) || rule.starts_with(prefix);
        self.run(Operation::List, &format!("listing {prefix:?}"), concerns, || self.inner.list(prefix, after, limit))
    }

    fn usage(&self) -> Result<Usage> {
        self.run(Operation::Usage, "asking for the usage", str::is_empty, || self.inner.usage())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Expect;
    use crate::memory::MemoryStore;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn put(text: &str, value: &'static [u8]) -> Op {
        Op::Put { key: key(text), value: Bytes::from_static(value), expect: Expect::Any }
    }

    #[test]
    fn the_nth_operation_fails_and_changes_nothing() {
        let store = FaultStore::new(MemoryStore::new()).with(Rule::new(Operation::Apply, When::Nth(2), Fault::Fail(Kind::Exhausted)));
        store.apply(vec![put("a", b"1")]).unwrap();
        assert_eq!(store.apply(vec![put("a", b"2"), put("b", b"2")]).unwrap_err().kind(), Kind::Exhausted);
        assert_eq!(store.get(&key("a")).unwrap().as_ref(), b"1");
        assert_eq!(store.stat(&key("b")).unwrap(), None);
        store.apply(vec![put("a", b"3")]).unwrap();
        assert_eq!((store.count(Operation::Apply), store.count(Operation::Get), store.injected()), (3, 1, 1));
    }

    #[test]
    fn a_rule_about_any_operation_counts_them_together() {
        let store = FaultStore::new(MemoryStore::new()).with(Rule::new(Operation::Any, When::From(3), Fault::Fail(Kind::Unavailable)));
        store.apply(vec![put("a", b"1")]).unwrap();
        store.get(&key("a")).unwrap();
        store.stat(&key("a")).unwrap_err();
        store.list("", None, 1).unwrap_err();
        store.usage().unwrap_err();
        assert_eq!(store.apply(vec![put("b", b"1")]).unwrap_err().kind(), Kind::Unavailable);
        store.heal();
        assert_eq!(store.stat(&key("b")).unwrap(), None);
        assert_eq!((store.count(Operation::Any), store.count(Operation::Apply), store.injected()), (7, 2, 4));
    }

    #[test]
    fn a_lost_answer_leaves_the_change_in_place() {
        let store = FaultStore::new(MemoryStore::new()).with(Rule::new(Operation::Apply, When::Nth(1), Fault::FailAfter(Kind::Unavailable)));
        assert_eq!(store.apply(vec![put("a", b"1")]).unwrap_err().kind(), Kind::Unavailable);
        assert_eq!(store.get(&key("a")).unwrap().as_ref(), b"1");
    }

    #[test]
    fn damage_is_either_reported_or_delivered() {
        let store = FaultStore::new(MemoryStore::new()).with(Rule::new(Operation::Get, When::Nth(1), Fault::Corrupt)).with(Rule::new(
            Operation::Get,
            When::Nth(2),
            Fault::FlipBit,
        ));
        store.apply(vec![put("a", b"abcdef")]).unwrap();
        let error = store.get(&key("a")).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains("key a "), "{error}");
        let flipped = store.get(&key("a")).unwrap();
        let bits: u32 = flipped.iter().zip(b"abcdef").map(|(x, y)| (x ^ y).count_ones()).sum();
        assert_eq!((flipped.len(), bits), (6, 1));
        assert_eq!(store.get(&key("a")).unwrap().as_ref(), b"abcdef");
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "one range is a list of ranges here")]
    fn parts_of_values_fail_as_values_do() {
        let store = FaultStore::new(MemoryStore::new());
        for (nth, fault) in [(1, Fault::FlipBit), (2, Fault::Corrupt), (3, Fault::Fail(Kind::Unavailable)), (5, Fault::FlipBit)] {
            store.add(Rule::new(Operation::Get, When::Nth(nth), fault));
        }
        store.apply(vec![put("a", b"abcdef")]).unwrap();
        let read = |ranges: &[Range<u64>]| store.get_ranges_unverified(&key("a"), ranges).map(|parts| parts.concat());
        let flipped = read(&[4..6, 1..1, 0..3]).unwrap();
        assert_eq!(flipped.iter().zip(b"efabc").map(|(x, y)| (x ^ y).count_ones()).sum::<u32>(), 1);
        assert_eq!(read(&[0..1]).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(read(&[0..1]).unwrap_err().kind(), Kind::Unavailable);
        assert_eq!(read(&[0..1]).unwrap(), b"a");
        assert_eq!(read(&[3..3]).unwrap(), b"");
        assert_eq!((store.count(Operation::Get), store.injected()), (5, 4));
    }

    #[test]
    fn rules_keep_to_their_prefix_and_go_when_healed() {
        let store = FaultStore::new(MemoryStore::new()).with(Rule::new(Operation::Get, When::From(1), Fault::Fail(Kind::Unavailable)).under("b/"));
        store.apply(vec![put("a/1", b"1"), put("b/1", b"1")]).unwrap();
        store.get(&key("a/1")).unwrap();
        store.get(&key("b/1")).unwrap_err();
        store.get(&key("b/1")).unwrap_err();
        store.heal();
        store.get(&key("b/1")).unwrap();
    }

    #[test]
    fn draws_repeat_with_their_seed() {
        let run = |seed| {
            let store =
                FaultStore::new(MemoryStore::new()).with(Rule::new(Operation::Stat, When::Chance { per_mille: 300, seed }, Fault::Fail(Kind::Unavailable)));
            (0..1000).map(|_| store.stat(&key("a")).is_err()).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let failed = run(7).iter().filter(|failed| **failed).count();
        assert!((250..350).contains(&failed), "{failed}");
    }
}
