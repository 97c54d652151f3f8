//! Rows of an index object, as bytes, and what a batch does to them. Pure.
//!
//! | row | value |
//! |---|---|
//! | `s` | the [`State`] |
//! | `v/KEY` | a [`Row`]: the key's version, and where its value is |
//! | `g/NUMBER` | empty: the object of this number is garbage that was not removed yet |

use std::ffi::CString;

use skytether_common::checksum::crc32c;
use skytether_common::{Key, Result};
use skytether_store::row::{Change, Row, To, u32_at, u64_at};
use skytether_store::{Version, batch};
use uuid::Uuid;

use crate::cluster::c_text;

/// The format of indexes that this version writes, and the newest that it reads.
pub(crate) const FORMAT: u32 = 1;

pub(crate) const STATE: &std::ffi::CStr = c"s";
pub(crate) const VALUES: &str = "v/";
pub(crate) const GARBAGE: &str = "g/";

/// The row's key of a value.
pub(crate) fn value_key(key: &Key) -> Result<CString> {
    c_text(&format!("{VALUES}{key}"))
}

/// The row's key of garbage.
pub(crate) fn garbage_key(number: u64) -> Result<CString> {
    c_text(&format!("{GARBAGE}{number:016x}"))
}

/// What an index object says of itself. Every change of the object compares it with what the writer knows, and
/// replaces it: so a change of another owner, or one that came late, is never overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    /// Who may change the index: drawn by each process that opens the fleet.
    pub(crate) owner: Uuid,
    /// Grows with each change of ownership or of a key; the next version that a key gets.
    pub(crate) next_version: u64,
    /// Objects of numbers from here on were never written.
    pub(crate) reserved: u64,
    /// Objects of numbers below are named by a row, are garbage by a row, or are gone.
    pub(crate) floor: u64,
    pub(crate) keys: u64,
    pub(crate) value_bytes: u64,
    pub(crate) key_bytes: u64,
    /// Wrapping sum of the rows' checksums: finds rows that are lost or come from another time.
    pub(crate) sum: u64,
}

impl State {
    const BYTES: usize = 4 + 16 + 7 * 8 + 4;

    /// The state of a new index.
    pub(crate) fn new(owner: Uuid) -> Self {
        Self { owner, next_version: 1, reserved: 0, floor: 0, keys: 0, value_bytes: 0, key_bytes: 0, sum: 0 }
    }

    fn numbers(&self) -> [u64; 7] {
        [self.next_version, self.reserved, self.floor, self.keys, self.value_bytes, self.key_bytes, self.sum]
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(self.owner.as_bytes());
        for number in self.numbers() {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// The state in `bytes`; an error has the format of a newer version, or none where the bytes are damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Option<u32>> {
        let format = bytes.get(..4).map(|bytes| u32_at(bytes, 0)).ok_or(None)?;
        if format > FORMAT {
            return Err(Some(format));
        }
        if bytes.len() != Self::BYTES {
            return Err(None);
        }
        let at = |n: usize| u64_at(bytes, 20 + 8 * n);
        let owner = Uuid::from_slice(&bytes[4..20]).map_err(|_| None)?;
        let state = Self { owner, next_version: at(0), reserved: at(1), floor: at(2), keys: at(3), value_bytes: at(4), key_bytes: at(5), sum: at(6) };
        if state.encode() == bytes { Ok(state) } else { Err(None) }
    }
}

/// What a batch does to an index.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) state: State,
    /// For each change, in order.
    pub(crate) rows: Vec<To>,
    pub(crate) versions: Vec<Version>,
    /// Numbers of the objects that no row names any more.
    pub(crate) replaced: Vec<u64>,
}

/// What `changes` do to an index in `state` whose rows of these keys are `found`.
///
/// # Errors
/// `Conflict`, with the key, where an expectation does not hold.
pub(crate) fn plan(mut state: State, changes: &[Change<'_>], found: &[Option<Row>]) -> Result<Plan> {
    let mut plan = Plan { state, rows: Vec::with_capacity(changes.len()), versions: Vec::with_capacity(changes.len()), replaced: Vec::new() };
    for (change, found) in changes.iter().zip(found) {
        let key = change.key.as_str();
        batch::check_expectation(change.key, change.expect, found.map(|row| row.version))?;
        let to = match change.to {
            To::Be(row) => To::Be(Row { version: state.next_version, ..row }),
            other => other,
        };
        plan.rows.push(to);
        plan.versions.push(if let To::Be(row) = to { row.version } else { 0 });
        if to == To::Stay {
            continue;
        }
        // Removing takes a version too, so that every batch leaves a new state.
        state.next_version += 1;
        if let Some(old) = found {
            state.keys = state.keys.wrapping_sub(1);
            state.value_bytes = state.value_bytes.wrapping_sub(u64::from(old.len));
            state.key_bytes = state.key_bytes.wrapping_sub(key.len() as u64);
            state.sum = state.sum.wrapping_sub(old.share(key));
            plan.replaced.push(old.number);
        }
        if let To::Be(row) = to {
            state.keys = state.keys.wrapping_add(1);
            state.value_bytes = state.value_bytes.wrapping_add(u64::from(row.len));
            state.key_bytes = state.key_bytes.wrapping_add(key.len() as u64);
            state.sum = state.sum.wrapping_add(row.share(key));
        }
    }
    plan.state = state;
    Ok(plan)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use skytether_store::Expect;

    use super::*;

    #[test]
    fn every_changed_byte_of_a_row_or_state_is_found() {
        let row = Row { version: 7, number: 9, len: 1000, crc32c: 0x1234_5678 };
        let state = State { next_version: 8, reserved: 1024, floor: 3, keys: 1, value_bytes: 1000, key_bytes: 5, sum: 77, owner: Uuid::from_u128(5) };
        let (in_row, in_state) = (row.encode("a/b"), state.encode());
        assert_eq!((Row::decode("a/b", &in_row), State::decode(&in_state)), (Some(row), Ok(state)));
        assert_eq!(Row::decode("a/c", &in_row), None);
        for at in 0..in_row.len() {
            let mut changed = in_row;
            changed[at] ^= 1;
            assert_eq!(Row::decode("a/b", &changed), None, "byte {at}");
        }
        for at in 0..in_state.len() {
            let mut changed = in_state.clone();
            changed[at] ^= 0x40;
            assert!(State::decode(&changed).is_err(), "byte {at}");
        }
        assert!(State::decode(&in_state[..40]).is_err() && State::decode(&[]).is_err());
        let newer = [2u32.to_le_bytes().to_vec(), vec![0; 9]].concat();
        assert_eq!(State::decode(&newer), Err(Some(2)));
    }

    #[test]
    fn a_plan_counts_what_comes_and_what_goes() {
        let (a, b, c) = (Key::new("a").unwrap(), Key::new("bb").unwrap(), Key::new("c").unwrap());
        let be = |number, len| To::Be(Row { version: 0, number, len, crc32c: 1 });
        let first = [Change { key: &a, expect: Expect::Absent, to: be(1, 10) }, Change { key: &b, expect: Expect::Any, to: be(2, 20) }];
        let one = plan(State::new(Uuid::nil()), &first, &[None, None]).unwrap();
        assert_eq!((one.versions.as_slice(), one.state.keys, one.state.value_bytes, one.state.key_bytes), (&[1, 2][..], 2, 30, 3));
        let To::Be(old) = one.rows[0] else { unreachable!("it was put") };
        let then = [
            Change { key: &a, expect: Expect::Version(1), to: To::Go },
            Change { key: &c, expect: Expect::Absent, to: To::Go },
            Change { key: &b, expect: Expect::Version(2), to: To::Stay },
        ];
        let To::Be(kept) = one.rows[1] else { unreachable!("it was put") };
        let two = plan(one.state, &then, &[Some(old), None, Some(kept)]).unwrap();
        assert_eq!((two.versions.as_slice(), two.replaced.as_slice(), two.state.keys, two.state.value_bytes), (&[0, 0, 0][..], &[1][..], 1, 20));
        assert!(two.state.next_version > one.state.next_version);
        assert_eq!(two.state.sum, kept.share("bb"));
        assert!(plan(one.state, &then, &[None, None, Some(kept)]).is_err());
    }
}
