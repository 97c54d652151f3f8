//! Losses of power and failing steps: what was acknowledged as durable is there, and each batch is whole or absent.

use std::collections::BTreeMap;
use std::sync::Arc;

use skytether_common::{Error, Kind};
use skytether_kv::backend::{Backend, Space};
use skytether_kv::fault::{Faulty, Plan};
use skytether_kv::memory::Memory;
use skytether_kv::{Change, Durability, KeyValues, Options};

use crate::util::{bytes, copy_trimmed, is_soak, put, value, wait, write, written};

/// The content that a prefix of the writes leaves.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn content(store: &KeyValues) -> Model {
    let keys = store.keys(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded, false, usize::MAX).unwrap();
    keys.iter().map(|key| (key.to_vec(), value(store, key).unwrap())).collect()
}

/// Random batches until a step fails; then a loss of power. What remains must be what some number of the first batches
/// left: at least those up to the last durable acknowledgement, at most those that were tried.
#[test]
fn power_lost_after_a_failed_step_leaves_whole_batches() {
    let (mut failures, mut losses) = (0, 0);
    for seed in 0..if is_soak() { 20_000 } else { 400 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let memory = Memory::with_power();
        let plan = Plan::of(seed, 40);
        let faulty = Arc::new(Faulty::new(Arc::new(memory.clone()), plan));
        let store = KeyValues::over(faulty.clone(), "a test".into(), &Options::default()).unwrap();
        let mut states = vec![Model::new()];
        let (mut durable, mut acknowledged) = (0, 0);
        for at in 0..60u64 {
            let mut model = states[acknowledged].clone();
            let batch: Vec<Change> = (0..random.u64(1..5))
                .map(|_| {
                    let key = vec![random.u8(0..8)];
                    if random.u8(0..4) == 0 {
                        model.remove(&key);
                        return Change::delete(key);
                    }
                    let content = bytes(at, if random.bool() { 10 } else { 20_000 });
                    model.insert(key.clone(), content.clone());
                    Change::put(key, content)
                })
                .collect();
            let durability = [Durability::Back, Durability::Back, Durability::Through, Durability::Flush][random.usize(0..4)];
            states.truncate(acknowledged + 1);
            states.push(model);
            match wait(store.write(batch, durability)) {
                Ok(()) => {
                    acknowledged += 1;
                    if durability != Durability::Back {
                        durable = acknowledged;
                    }
                }
                Err(failed) => {
                    assert_eq!(Error::from(failed).kind(), Kind::Unavailable, "the outcome is unknown");
                    failures += 1;
                    break;
                }
            }
        }
        // A store that failed goes on failing.
        if faulty.has_failed() {
            assert_eq!(Error::from(write(&store, vec![Change::put("x", "y")]).unwrap_err()).kind(), Kind::Unavailable);
            assert_eq!(wait(store.flush()).unwrap_err().kind(), Kind::Unavailable);
        }
        let kept = random.usize(0..=memory.volatile());
        losses += usize::from(kept < memory.volatile());
        memory.lose_power(kept);
        drop(store);
        let again = KeyValues::over(Arc::new(memory.clone()), "a test".into(), &Options::default()).unwrap();
        let found = content(&again);
        let at = states.iter().rposition(|state| *state == found);
        assert!(at.is_some_and(|at| at >= durable) || states[durable..].contains(&found), "seed {seed}: not a state after {durable} of {acknowledged}");
        let usage = again.usage().unwrap();
        assert_eq!((usage.keys, usage.value_bytes), (found.len() as u64, found.values().map(|value| value.len() as u64).sum()), "seed {seed}");
        // No value is there that no record names.
        let large = found.values().filter(|value| value.len() > 16 << 10).count();
        assert_eq!(memory.entries(Space::Values), large, "seed {seed}");
        // And it goes on.
        put(&again, b"after", b"1");
        assert_eq!(value(&again, b"after"), Some(b"1".to_vec()));
    }
    assert!(failures > 100 && losses > 100, "{failures} failures, {losses} losses");
}

#[test]
fn erasure_that_fails_changes_nothing() {
    let memory = Memory::with_power();
    let plan = Plan { at: 2, carried_out: false, kind: Kind::Exhausted };
    let store = KeyValues::over(Arc::new(Faulty::new(Arc::new(memory), plan)), "a test".into(), &Options::default()).unwrap();
    put(&store, b"a", b"1");
    assert_eq!(wait(store.erase(false)).unwrap_err().kind(), Kind::Exhausted);
    assert_eq!((value(&store, b"a"), store.usage().unwrap().keys), (Some(b"1".to_vec()), 1));
}

/// Whether it was erased is unknown: the store takes no more writes, and a later opening knows.
#[test]
fn erasure_with_unknown_outcome_stops_the_store() {
    let memory = Memory::with_power();
    let plan = Plan { at: 2, carried_out: true, kind: Kind::Exhausted };
    let store = KeyValues::over(Arc::new(Faulty::new(Arc::new(memory.clone()), plan)), "a test".into(), &Options::default()).unwrap();
    put(&store, b"a", b"1");
    assert_eq!(wait(store.erase(false)).unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(Error::from(write(&store, vec![Change::put("x", "y")]).unwrap_err()).kind(), Kind::Unavailable);
    drop(store);
    let again = KeyValues::over(Arc::new(memory), "a test".into(), &Options::default()).unwrap();
    assert_eq!((value(&again, b"a"), again.usage().unwrap().keys), (None, 0));
}

/// A record whose value is lost, as no crash leaves it, is `Corrupt` and not absent.
#[test]
fn lost_large_value_is_corrupt() {
    let memory = Memory::default();
    let store = KeyValues::over(Arc::new(memory.clone()), "a test".into(), &Options::default()).unwrap();
    put(&store, b"a", &bytes(1, 20_000));
    let number = bytes::Bytes::copy_from_slice(&1u64.to_be_bytes());
    memory.commit(vec![skytether_kv::backend::Step::Remove(Space::Values, number)], 9, false).unwrap();
    let error = store.get(b"a").unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.mentions("\"a\""), "{error}");
    assert_eq!(store.meta(b"a").unwrap().unwrap().len, 20_000);
    put(&store, b"a", b"repaired");
    assert_eq!(value(&store, b"a"), Some(b"repaired".to_vec()));
}

/// The disk has all of the journal up to the last flush, and of what follows any blocks: the rest are holes. The store
/// opens, has what was durable, and each later batch as a whole or not at all, in their order.
#[test]
fn holes_in_the_end_of_a_journal_lose_whole_batches() {
    let home = tempfile::tempdir().unwrap();
    let store = KeyValues::open(home.path(), &Options::default()).unwrap();
    let journal = home.path().join("1/db/0.jnl");
    wait(store.write(vec![Change::put("durable", bytes(1, 30_000))], Durability::Through)).unwrap();
    let start = written(&std::fs::read(&journal).unwrap());
    let batch = |at: u8| vec![Change::put(vec![at, 0], bytes(u64::from(at), 20_000)), Change::put(vec![at, 1], bytes(u64::from(at), 500))];
    for at in 0..20 {
        write(&store, batch(at)).unwrap();
    }
    let image = tempfile::tempdir().unwrap();
    copy_trimmed(home.path(), image.path());
    let mut random = fastrand::Rng::with_seed(7);
    let mut found = std::collections::BTreeSet::new();
    for case in 0..if is_soak() { 2000 } else { 40 } {
        let copied = tempfile::tempdir().unwrap();
        copy_trimmed(image.path(), copied.path());
        let journal = copied.path().join("1/db/0.jnl");
        let mut bytes_of = std::fs::read(&journal).unwrap();
        let end = written(&bytes_of);
        for block in start / 4096..=end / 4096 {
            if random.u8(0..40) < if case % 2 == 0 { 1 } else { 10 } {
                bytes_of[(block * 4096).max(start)..((block + 1) * 4096).min(end)].fill(0);
            }
        }
        if case % 3 == 0 {
            bytes_of.truncate(random.usize(start..=end));
        }
        std::fs::write(&journal, &bytes_of).unwrap();
        let again = KeyValues::open(copied.path(), &Options::default()).unwrap();
        assert_eq!(value(&again, b"durable"), Some(bytes(1, 30_000)), "case {case}");
        let there = (0..20).take_while(|at| value(&again, &[*at, 0]).is_some()).count();
        for at in 0..20u8 {
            let whole = usize::from(at) < there;
            assert_eq!(value(&again, &[at, 0]), whole.then(|| bytes(u64::from(at), 20_000)), "case {case}, batch {at}");
            assert_eq!(value(&again, &[at, 1]), whole.then(|| bytes(u64::from(at), 500)), "case {case}, batch {at}");
        }
        assert_eq!(again.usage().unwrap().keys, 1 + 2 * there as u64, "case {case}");
        found.insert(there);
        // It goes on, and can be opened again.
        wait(again.write(vec![Change::put("after", "1")], Durability::Through)).unwrap();
        drop(again);
        let again = KeyValues::open(copied.path(), &Options::default()).unwrap();
        assert_eq!(value(&again, b"after"), Some(b"1".to_vec()), "case {case}");
    }
    assert!(found.len() > 5, "{found:?}");
}

/// Damage before the last flush is never taken for such an end.
#[test]
fn damage_in_the_durable_part_of_a_journal_is_corrupt() {
    let home = tempfile::tempdir().unwrap();
    let store = KeyValues::open(home.path(), &Options::default()).unwrap();
    for at in 0..10u8 {
        wait(store.write(vec![Change::put(vec![at], bytes(u64::from(at), 2000))], Durability::Through)).unwrap();
    }
    let image = tempfile::tempdir().unwrap();
    copy_trimmed(home.path(), image.path());
    let journal = std::fs::read(image.path().join("1/db/0.jnl")).unwrap();
    let end = written(&journal);
    let mut random = fastrand::Rng::with_seed(3);
    for case in 0..if is_soak() { 2000 } else { 40 } {
        let copied = tempfile::tempdir().unwrap();
        copy_trimmed(image.path(), copied.path());
        let path = copied.path().join("1/db/0.jnl");
        let mut bytes_of = journal.clone();
        // Also cut off: durable writes that are missing are no clean end.
        let at = random.usize(0..end - 1);
        if case % 4 == 0 {
            bytes_of.truncate(at);
        } else {
            bytes_of[at] ^= 1 << random.u8(0..8);
        }
        std::fs::write(&path, &bytes_of).unwrap();
        for _ in 0..2 {
            let error = KeyValues::open(copied.path(), &Options::default()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "case {case}, byte {at} of {end}: {error}");
        }
    }
}
