//! Which drives root records lie on, in fleets that drives came to or left.
//!
//! A root record's homes follow from its name and a list of *seats*: those of the drives with which the fleet was founded. A drive that comes gets none, so that no root record has to move, and whoever writes one with an older list of drives writes
//! it where everybody looks for it. A drive that leaves hands its seats on, and the root records with them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::catalog::rendezvous_order;
use crate::membership::Membership;

/// A place for root records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// What its share of the names follows from: the id of the drive that had it first.
    pub id: Uuid,
    /// The drive that has it.
    pub drive: Uuid,
}

/// The seats of a fleet, and its drives without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seats {
    seats: Vec<Seat>,
    rest: Vec<Uuid>,
}

impl Seats {
    /// Those of a membership record, where there are any.
    pub(crate) fn of(membership: &Membership) -> Option<Self> {
        if membership.seats.is_empty() {
            return None;
        }
        let has_none = |id: &Uuid| membership.seats.iter().all(|seat| seat.drive != *id);
        let rest = membership.drives.iter().map(|member| member.id).filter(has_none).collect();
        Some(Self { seats: membership.seats.clone(), rest })
    }

    /// The drives in the order in which they are homes of what lies under `key`: each once, those without a seat last.
    pub(crate) fn order(&self, key: &str) -> Vec<Uuid> {
        let mut order: Vec<Uuid> = Vec::with_capacity(self.seats.len() + self.rest.len());
        let seated = rendezvous_order(key, self.seats.iter().map(|seat| &seat.id)).into_iter().map(|at| self.seats[at].drive);
        for drive in seated.chain(self.rest.iter().copied()) {
            if !order.contains(&drive) {
                order.push(drive);
            }
        }
        order
    }
}

impl Membership {
    /// The same with seats, if it had none yet: one for each drive.
    pub(crate) fn seated(&mut self) {
        if self.seats.is_empty() {
            self.seats = self.drives.iter().map(|member| Seat { id: member.id, drive: member.id }).collect();
        }
    }

    /// Hands the seats of drive `id`, which is no member any more, to others: to those with the fewest, and of these to the first.
    pub(crate) fn unseat(&mut self, id: &Uuid) {
        for at in 0..self.seats.len() {
            if self.seats[at].drive == *id {
                let has = |drive: &Uuid| self.seats.iter().filter(|seat| seat.drive == *drive).count();
                let next = self.drives.iter().map(|member| member.id).filter(|other| other != id).min_by_key(|other| has(other));
                if let Some(next) = next {
                    self.seats[at].drive = next;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    #[test]
    fn who_comes_takes_no_record_away_and_who_leaves_hands_on_only_its_own() {
        let seats = |of: &[(u128, u128)], rest: &[u128]| Seats {
            seats: of.iter().map(|(seat, drive)| Seat { id: id(*seat), drive: id(*drive) }).collect(),
            rest: rest.iter().map(|n| id(*n)).collect(),
        };
        let before = seats(&[(1, 1), (2, 2), (3, 3)], &[]);
        let more = seats(&[(1, 1), (2, 2), (3, 3)], &[9]);
        let fewer = seats(&[(1, 1), (2, 9), (3, 3)], &[]);
        let least = seats(&[(1, 1), (2, 1), (3, 3)], &[]);
        let founded: Vec<Uuid> = [1, 2, 3].map(id).into();
        for n in 0..200 {
            let key = format!("lab/d{n}");
            let order = before.order(&key);
            // As fleets without seats have it.
            assert_eq!(order, rendezvous_order(&key, founded.iter()).into_iter().map(|at| founded[at]).collect::<Vec<_>>());
            assert_eq!(more.order(&key), [order.clone(), vec![id(9)]].concat());
            assert_eq!(fewer.order(&key), order.iter().map(|d| if *d == id(2) { id(9) } else { *d }).collect::<Vec<_>>());
            assert_eq!(least.order(&key).len(), 2);
        }
    }
}
