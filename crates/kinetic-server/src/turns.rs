//! Turns for work that few may do at a time: by priority, and in order of arrival within one priority.
//!
//! A request has its place when it asks, not when its future is polled first. Time is counted in turns that were
//! given. One step of priority is worth [`STEP`] of them: so a request of the lowest priority lets those of the
//! highest pass that ask within the next 8 steps, and goes before all later ones. None waits for ever.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use skytether_kinetic_protocol::kinds::Priority;
use tokio::sync::oneshot;

/// How many turns a request may be passed by, for each step of priority that it is lower.
const STEP: u64 = 16;

/// The turns of one kind of work.
#[derive(Debug)]
pub(crate) struct Turns {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// Turns that were given.
    given: u64,
    /// Requests that asked.
    asked: u64,
    waiting: BTreeMap<Place, oneshot::Sender<Turn>>,
}

/// The lowest is next: first the time that the priority defers, then the order of arrival.
type Place = (u64, u64);

/// The right to work. Dropping it gives the turn to the next.
#[derive(Debug)]
pub(crate) struct Turn(Arc<Turns>);

/// A place among those who wait. Dropping it gives the place up.
#[derive(Debug)]
pub(crate) struct Waiting {
    turns: Arc<Turns>,
    place: Option<Place>,
    turn: oneshot::Receiver<Turn>,
}

impl Turns {
    pub(crate) fn new(turns: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { free: turns, given: 0, asked: 0, waiting: BTreeMap::new() }) })
    }

    /// Takes a place for a turn.
    pub(crate) fn ask(self: &Arc<Self>, priority: Priority) -> Waiting {
        let (give, turn) = oneshot::channel();
        let place = {
            let mut state = self.state.lock();
            state.asked += 1;
            let steps = u64::from(Priority::HIGHEST.number() - priority.number());
            let place = (state.given + steps * STEP, state.asked);
            state.waiting.insert(place, give);
            place
        };
        self.give();
        Waiting { turns: Arc::clone(self), place: Some(place), turn }
    }

    /// Gives free turns to those who wait.
    fn give(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state.lock();
                if state.free == 0 {
                    return;
                }
                let Some((_, next)) = state.waiting.pop_first() else { return };
                state.free -= 1;
                state.given += 1;
                next
            };
            // One who has just left gives it back by dropping it.
            drop(next.send(Turn(Arc::clone(self))));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.state.lock().free += 1;
        self.0.give();
    }
}

impl Future for Waiting {
    type Output = Option<Turn>;

    /// The turn; `None` never comes, as those who wait keep the turns.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Turn>> {
        Pin::new(&mut self.turn).poll(context).map(Result::ok)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let left = self.turns.state.lock().waiting.remove(&place);
            drop(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn priority(number: i32) -> Priority {
        Priority::new(number).unwrap()
    }

    fn now(waiting: &mut Waiting) -> Option<Turn> {
        waiting.now_or_never().flatten()
    }

    /// The order in which those who wait get the turn that `held` gives up.
    fn order(held: Turn, mut waiting: Vec<(usize, Waiting)>) -> Vec<usize> {
        let mut order = Vec::new();
        let mut held = Some(held);
        while !waiting.is_empty() {
            drop(held.take());
            let (at, turn) = waiting.iter_mut().enumerate().find_map(|(at, (_, waiting))| now(waiting).map(|turn| (at, turn))).unwrap();
            order.push(waiting.remove(at).0);
            assert!(waiting.iter_mut().all(|(_, waiting)| now(waiting).is_none()), "two have the one turn");
            held = Some(turn);
        }
        order
    }

    #[test]
    fn turns_go_by_priority_then_by_order_of_arrival() {
        let turns = Turns::new(1);
        let held = now(&mut turns.ask(priority(1))).unwrap();
        let waiting = [5, 1, 9, 5, 9, 6].iter().enumerate().map(|(at, number)| (at, turns.ask(priority(*number)))).collect();
        assert_eq!(order(held, waiting), [2, 4, 5, 0, 3, 1]);
        // The turn is free again.
        assert!(now(&mut turns.ask(priority(1))).is_some());
    }

    #[test]
    fn as_many_have_a_turn_as_there_are() {
        let turns = Turns::new(2);
        let [first, second] = [(); 2].map(|()| now(&mut turns.ask(Priority::NORMAL)).unwrap());
        let mut third = turns.ask(Priority::HIGHEST);
        assert!(now(&mut third).is_none());
        drop(second);
        let third = now(&mut third).unwrap();
        assert!(now(&mut turns.ask(Priority::HIGHEST)).is_none());
        drop((first, third));
        let both = [(); 2].map(|()| now(&mut turns.ask(Priority::LOWEST)).unwrap());
        assert_eq!(both.len(), 2);
    }

    /// Those of the highest priority never stop to come; the lowest has its turn all the same.
    #[test]
    fn lowest_priority_is_not_passed_for_ever() {
        let turns = Turns::new(1);
        let mut held = now(&mut turns.ask(priority(9)));
        let mut lowest = turns.ask(priority(1));
        let mut passed = 0;
        let mut next = turns.ask(priority(9));
        loop {
            let later = turns.ask(priority(9));
            drop(held.take());
            if now(&mut lowest).is_some() {
                break;
            }
            held = now(&mut next);
            assert!(held.is_some());
            next = later;
            passed += 1;
            assert!(passed <= 8 * STEP + 1);
        }
        assert!(passed >= 8 * STEP - 1, "{passed}");
    }

    #[test]
    fn one_who_leaves_gives_place_and_turn_up() {
        let turns = Turns::new(1);
        let held = now(&mut turns.ask(Priority::NORMAL)).unwrap();
        let (leaves, mut stays) = (turns.ask(Priority::HIGHEST), turns.ask(Priority::LOWEST));
        drop(leaves);
        assert_eq!(turns.state.lock().waiting.len(), 1);
        drop(held);
        // It has the turn, and has not taken it yet.
        let unpolled = turns.ask(Priority::NORMAL);
        let turn = now(&mut stays).unwrap();
        drop(turn);
        drop(unpolled);
        assert!(now(&mut turns.ask(Priority::LOWEST)).is_some());
        assert_eq!(turns.state.lock().waiting.len(), 0);
    }
}
