//! Home slots: which drives root records lie on, in fleets that drives came to or left.
//!
//! The homes of a root record follow from its name and a list of *seats*: those of the drives that founded the fleet. A
//! drive that joins gets none, so no root record has to move. A host with an older list of drives still writes a record
//! where all others look for it. A drive that leaves passes its seats to others, and the root records with them.

use crate::records::membership::HomeSlot;
use uuid::Uuid;

use crate::records::membership::Membership;
use crate::rendezvous::rendezvous_order;

/// The seats of a fleet, and its drives without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeSlots {
    seats: Vec<HomeSlot>,
    rest: Vec<Uuid>,
}

impl HomeSlots {
    /// The home slots of a membership record, if it has any.
    pub fn of(membership: &Membership) -> Option<Self> {
        if membership.seats.is_empty() {
            return None;
        }
        let has_none = |id: &Uuid| membership.seats.iter().all(|seat| seat.drive != *id);
        let rest = membership.drives.iter().map(|member| member.id).filter(has_none).collect();
        Some(Self { seats: membership.seats.clone(), rest })
    }

    /// The drives in the order in which they are homes of `key`, each once, drives without a seat last. Also returns
    /// how many have a seat.
    pub(crate) fn order(&self, key: &str) -> (Vec<Uuid>, usize) {
        let mut order: Vec<Uuid> = Vec::with_capacity(self.seats.len() + self.rest.len());
        for at in rendezvous_order(key, self.seats.iter().map(|seat| &seat.id)) {
            if !order.contains(&self.seats[at].drive) {
                order.push(self.seats[at].drive);
            }
        }
        let seated = order.len();
        order.extend(&self.rest);
        (order, seated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::membership::Member;

    fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    /// A drive that joins takes over no record. Records of a drive that leaves go to the drive that has its slot.
    #[test]
    fn home_slots_move_only_records_of_the_leaving_drive() {
        let seats = |of: &[(u128, u128)], rest: &[u128]| HomeSlots {
            seats: of.iter().map(|(seat, drive)| HomeSlot { id: id(*seat), drive: id(*drive) }).collect(),
            rest: rest.iter().map(|n| id(*n)).collect(),
        };
        let before = seats(&[(1, 1), (2, 2), (3, 3)], &[]);
        let more = seats(&[(1, 1), (2, 2), (3, 3)], &[9]);
        let fewer = seats(&[(1, 1), (2, 9), (3, 3)], &[]);
        let least = seats(&[(1, 1), (2, 1), (3, 3)], &[]);
        let founded: Vec<Uuid> = [1, 2, 3].map(id).into();
        for n in 0..200 {
            let key = format!("lab/d{n}");
            let (order, seated) = before.order(&key);
            assert_eq!(seated, 3);
            // As fleets without seats have it.
            assert_eq!(order, rendezvous_order(&key, founded.iter()).into_iter().map(|at| founded[at]).collect::<Vec<_>>());
            assert_eq!(more.order(&key), ([order.clone(), vec![id(9)]].concat(), 3));
            assert_eq!(fewer.order(&key).0, order.iter().map(|d| if *d == id(2) { id(9) } else { *d }).collect::<Vec<_>>());
            assert_eq!((least.order(&key).0.len(), least.order(&key).1), (2, 2));
        }
    }

    #[test]
    fn home_slots_stay_on_their_node_or_go_to_the_emptiest() {
        let member = |n: u128, node: &str| Member { id: id(n), name: format!("drive-{n}"), incarnation: 0, node: node.into() };
        let nodes = |of: &[(&str, &[u128])]| of.iter().flat_map(|(node, drives)| drives.iter().map(|n| member(*n, node))).collect::<Vec<_>>();
        let mut fleet: Membership =
            serde_json::from_value(serde_json::json!({"format": 6, "fleet": id(77), "drives": nodes(&[("a", &[1, 2]), ("b", &[3, 4]), ("c", &[5, 6])])}))
                .unwrap();
        fleet.ensure_slots();
        // One for each node that was there, and two of a new one.
        fleet.drives.extend(nodes(&[("a", &[11]), ("b", &[12]), ("c", &[13]), ("d", &[21, 22])]));
        let leave = |fleet: &mut Membership, gone: &[(u128, &str)]| {
            fleet.drives.retain(|member| gone.iter().all(|(n, _)| member.id != id(*n)));
            gone.iter().for_each(|(n, node)| fleet.reassign_slots(&id(*n), node));
            let mut of: Vec<Uuid> = fleet.seats.iter().map(|seat| seat.drive).collect();
            of.sort_unstable();
            of
        };
        let of = |drives: &[u128]| drives.iter().map(|n| id(*n)).collect::<Vec<_>>();
        assert_eq!(leave(&mut fleet, &[(5, "c")]), of(&[1, 2, 3, 4, 6, 13]));
        assert_eq!(leave(&mut fleet, &[(3, "b"), (4, "b"), (12, "b")]), of(&[1, 2, 6, 13, 21, 22]));
        fleet.add_slots();
        assert_eq!(fleet.seats.len(), 7);
    }
}
