//! Rows of the index that were read lately: what those know of the index who must not wait for a disk.

use std::collections::HashMap;

use parking_lot::Mutex;
use skytether_common::Key;

use crate::row::Row;

/// Rows that are kept: some 3 MB. When there are more, all go.
const MOST: usize = 16_384;

/// Rows of the index, as they are there now.
#[derive(Debug, Default)]
pub(super) struct Rows(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Grows with each change of the index.
    changes: u64,
    rows: HashMap<Key, Row>,
}

impl Rows {
    /// How often the index has changed. A reader of a row asks before, and gives the number to [`Self::keep`].
    pub(super) fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// Keeps a row that was read, unless the index has changed since [`Self::changes`] gave this number.
    pub(super) fn keep(&self, key: &Key, row: Row, changes: u64) {
        let mut state = self.0.lock();
        if state.changes != changes {
            return;
        }
        if state.rows.len() >= MOST {
            state.rows.clear();
        }
        state.rows.insert(key.clone(), row);
    }

    /// The row of `key`, if it is known.
    pub(super) fn get(&self, key: &Key) -> Option<Row> {
        self.0.lock().rows.get(key).copied()
    }

    /// The index has changed these keys, or may have.
    pub(super) fn changed<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let mut state = self.0.lock();
        state.changes += 1;
        for key in keys {
            state.rows.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_that_was_read_before_a_change_is_not_kept() {
        let (rows, key) = (Rows::default(), Key::new("a").unwrap());
        let row = |number| Row { version: 1, number, len: 3, crc32c: 4 };
        let before = rows.changes();
        rows.keep(&key, row(1), before);
        assert_eq!(rows.get(&key), Some(row(1)));
        rows.changed([&key].into_iter());
        assert_eq!(rows.get(&key), None);
        rows.keep(&key, row(1), before);
        assert_eq!(rows.get(&key), None);
        rows.keep(&key, row(2), rows.changes());
        assert_eq!(rows.get(&key), Some(row(2)));
        // A change of another key leaves it.
        rows.changed([&Key::new("b").unwrap()].into_iter());
        assert_eq!(rows.get(&key), Some(row(2)));
    }

    #[test]
    fn rows_are_bounded() {
        let rows = Rows::default();
        for number in 0..2 * MOST + 5 {
            rows.keep(&Key::new(format!("k{number}")).unwrap(), Row { version: 1, number: 1, len: 1, crc32c: 1 }, 0);
        }
        assert!(rows.0.lock().rows.len() <= MOST);
    }
}
