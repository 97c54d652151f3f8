//! Each slice counts exactly once: every interleaving of a small instance, and many random ones of larger instances.
//!
//! The result of a slice is the number 1 at the slice's place. The counted sums therefore show how often each slice
//! counted.

use std::collections::HashSet;

use skytether_scheduler::ledger::{Dropped, Ledger, Verdict};
use skytether_scheduler::message::{CseId, EpochId, PushdownLevel, SliceId};

/// How often each slice is in a batch.
type Batch = Vec<u32>;

#[derive(Debug, Clone, Copy)]
enum Message {
    Batch(u32, u32),
    End(u32),
    /// The host gives the epoch up: its drive was silent, or died.
    Revoke(u32),
}

struct Epoch {
    cse: u32,
    slices: Vec<u32>,
    batches: u32,
}

fn ids(slices: &[u32]) -> Vec<SliceId> {
    slices.iter().map(|slice| SliceId(*slice)).collect()
}

#[derive(Clone)]
struct State {
    ledger: Ledger<Batch>,
    counted: Batch,
}

impl State {
    fn new(slices: u32, epochs: &[Epoch]) -> Self {
        let mut ledger = Ledger::new();
        (0..slices).for_each(|slice| ledger.want(SliceId(slice)));
        for (at, epoch) in epochs.iter().enumerate() {
            ledger.open(EpochId(at as u32), CseId(epoch.cse), PushdownLevel::Full);
            ledger.give(EpochId(at as u32), &ids(&epoch.slices));
        }
        Self { ledger, counted: vec![0; slices as usize] }
    }

    /// The first batch has all results, the others none.
    fn deliver(&mut self, epochs: &[Epoch], message: Message) -> Option<Dropped> {
        let verdict = match message {
            Message::Batch(epoch, number) => {
                let it = &epochs[epoch as usize];
                let mut batch = vec![0; self.counted.len()];
                if number == 0 {
                    it.slices.iter().for_each(|slice| batch[*slice as usize] += 1);
                }
                self.ledger.batch(CseId(it.cse), EpochId(epoch), number, batch)
            }
            Message::End(epoch) => {
                let it = &epochs[epoch as usize];
                self.ledger.end(CseId(it.cse), EpochId(epoch), PushdownLevel::Full, &ids(&it.slices), it.batches)
            }
            Message::Revoke(epoch) => {
                self.ledger.revoke(EpochId(epoch));
                return None;
            }
        };
        match verdict {
            Verdict::Counted { batches, .. } => {
                batches.iter().for_each(|batch| batch.iter().zip(&mut self.counted).for_each(|(more, sum)| *sum += more));
                None
            }
            Verdict::Dropped(why) => Some(why),
            Verdict::Held => None,
        }
    }

    /// What holds at any time: a slice counts once if it is covered, and not otherwise.
    fn check(&self) {
        let covered: Vec<u32> = (0..self.counted.len() as u32).map(|slice| u32::from(self.ledger.covering(SliceId(slice)).is_some())).collect();
        assert_eq!(self.counted, covered);
        assert_eq!(self.ledger.complete(), covered.iter().all(|covered| *covered == 1));
        assert_eq!(self.ledger.uncovered(), covered.iter().filter(|covered| **covered == 0).count());
    }
}

/// From here the drives are dead, and what is uncovered is done again by an epoch of its own; then all that was still
/// under way comes after all.
fn repair_and_check(mut state: State, epochs: &[Epoch], late: &[Message]) {
    for epoch in 0..epochs.len() as u32 {
        state.ledger.revoke(EpochId(epoch));
    }
    let missing: Vec<u32> = (0..state.counted.len() as u32).filter(|slice| state.ledger.covering(SliceId(*slice)).is_none()).collect();
    let again = EpochId(1000);
    state.ledger.open(again, CseId(9), PushdownLevel::Raw);
    state.ledger.give(again, &ids(&missing));
    assert_eq!(state.ledger.batch(CseId(9), again, 0, vec![]), Verdict::Held);
    let verdict = state.ledger.end(CseId(9), again, PushdownLevel::Raw, &ids(&missing), 1);
    assert!(matches!(verdict, Verdict::Counted { .. }), "{verdict:?}");
    missing.iter().for_each(|slice| state.counted[*slice as usize] += 1);
    for message in late {
        state.deliver(epochs, *message);
    }
    state.check();
    assert!(state.ledger.complete() && state.counted.iter().all(|count| *count == 1));
}

/// Visits every order of `messages`, each at most once. States with equal content are visited once, so orders that lead
/// to the same state are not repeated. In each state both drives may die.
fn explore(epochs: &[Epoch], slices: u32, messages: &[Message]) -> usize {
    let mut seen = HashSet::new();
    let mut open = vec![(0_u32, State::new(slices, epochs))];
    while let Some((delivered, state)) = open.pop() {
        if !seen.insert((delivered, format!("{:?} {:?}", state.ledger, state.counted))) {
            continue;
        }
        state.check();
        let rest: Vec<Message> = (0..messages.len()).filter(|at| delivered & (1 << at) == 0).map(|at| messages[at]).collect();
        repair_and_check(state.clone(), epochs, &rest);
        for (at, message) in messages.iter().enumerate().filter(|(at, _)| delivered & (1 << at) == 0) {
            let mut next = state.clone();
            next.deliver(epochs, *message);
            open.push((delivered | 1 << at, next));
        }
    }
    seen.len()
}

#[test]
fn every_interleaving_of_two_drives_and_three_slices() {
    // Drive 0 has an epoch of two slices and one of the third; drive 1 does the first epoch's second slice and the
    // third again, for it was taken to hang.
    let epochs =
        [Epoch { cse: 0, slices: vec![0, 1], batches: 2 }, Epoch { cse: 0, slices: vec![2], batches: 1 }, Epoch { cse: 1, slices: vec![1, 2], batches: 1 }];
    let messages = [
        Message::Batch(0, 0),
        Message::Batch(0, 1),
        Message::End(0),
        Message::Batch(1, 0),
        Message::End(1),
        Message::Batch(2, 0),
        Message::End(2),
        // Duplicates, and giving up.
        Message::Batch(0, 0),
        Message::End(0),
        Message::End(2),
        Message::Revoke(0),
        Message::Revoke(2),
    ];
    let states = explore(&epochs, 3, &messages);
    assert!(states > 5_000, "{states} states: too few to have gone through all orders");
}

#[test]
fn same_slices_twice_count_once_in_either_order() {
    let epochs = [Epoch { cse: 0, slices: vec![0, 1, 2], batches: 1 }, Epoch { cse: 1, slices: vec![0, 1, 2], batches: 2 }];
    let messages = [
        Message::Batch(0, 0),
        Message::End(0),
        Message::Batch(1, 0),
        Message::Batch(1, 1),
        Message::End(1),
        Message::Batch(1, 0),
        Message::Batch(0, 0),
        Message::End(0),
        Message::End(1),
        Message::Revoke(1),
    ];
    explore(&epochs, 3, &messages);
}

#[test]
fn random_interleavings_of_larger_instances() {
    for seed in 0..20_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let slices = rng.u32(1..12);
        let epochs: Vec<Epoch> = (0..rng.u32(1..8))
            .map(|_| {
                let mut own: Vec<u32> = (0..slices).filter(|_| rng.f64() < 0.4).collect();
                rng.shuffle(&mut own);
                Epoch { cse: rng.u32(0..4), slices: own, batches: rng.u32(1..4) }
            })
            .collect();
        let mut messages = Vec::new();
        for (at, epoch) in epochs.iter().enumerate() {
            let at = at as u32;
            for _ in 0..rng.u32(1..3) {
                messages.extend((0..epoch.batches).map(|number| Message::Batch(at, number)));
                messages.push(Message::End(at));
            }
            if rng.f64() < 0.2 {
                messages.push(Message::Revoke(at));
            }
        }
        rng.shuffle(&mut messages);
        let delivered = rng.usize(0..=messages.len());
        let mut state = State::new(slices, &epochs);
        for message in &messages[..delivered] {
            state.deliver(&epochs, *message);
            state.check();
        }
        repair_and_check(state, &epochs, &messages[delivered..]);
    }
}

#[test]
fn epoch_that_differs_from_its_order_is_dropped_whole() {
    let epochs = || [Epoch { cse: 0, slices: vec![0, 1], batches: 1 }];
    let fresh = || State::new(3, &epochs());
    let end = |cse: u32, epoch: u32, rung, slices: &[u32], batches| fresh().ledger.end(CseId(cse), EpochId(epoch), rung, &ids(slices), batches);
    assert_eq!(end(0, 7, PushdownLevel::Full, &[0], 1), Verdict::Dropped(Dropped::Unknown));
    assert_eq!(end(1, 0, PushdownLevel::Full, &[0], 1), Verdict::Dropped(Dropped::Unknown), "somebody else's epoch");
    assert_eq!(end(0, 0, PushdownLevel::Full, &[0, 2], 1), Verdict::Dropped(Dropped::Garbage), "a slice that it was not given");
    assert_eq!(end(0, 0, PushdownLevel::Full, &[0, 0], 1), Verdict::Dropped(Dropped::Garbage), "a slice twice");
    assert_eq!(end(0, 0, PushdownLevel::Raw, &[0], 1), Verdict::Dropped(Dropped::Garbage), "another rung");

    let mut state = fresh();
    assert_eq!(state.ledger.batch(CseId(0), EpochId(0), 5, vec![]), Verdict::Held);
    assert_eq!(state.ledger.end(CseId(0), EpochId(0), PushdownLevel::Full, &ids(&[0, 1]), 2), Verdict::Dropped(Dropped::Garbage), "more batches than it names");
    assert_eq!(state.deliver(&epochs(), Message::Batch(0, 0)), Some(Dropped::Late), "and nothing of it counts any more");

    // An epoch may give back slices: those that it does not name are not covered.
    let mut state = fresh();
    state.ledger.batch(CseId(0), EpochId(0), 0, vec![1, 0, 0]);
    let verdict = state.ledger.end(CseId(0), EpochId(0), PushdownLevel::Full, &ids(&[0]), 1);
    assert_eq!(verdict, Verdict::Counted { slices: ids(&[0]), batches: vec![vec![1, 0, 0]] });
    assert_eq!((state.ledger.covering(SliceId(0)), state.ledger.covering(SliceId(1))), (Some(EpochId(0)), None));
}
