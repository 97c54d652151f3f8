//! Groups of columns: a stripe of rows of a wide table is several slices, each with some of the columns.
//!
//! A drive reads a slice at once, and small drives must be able to hold it. With all of thousands of columns, it would
//! have few rows, be mostly footer, and be read as a whole for one column. So the columns of a table with more than
//! [`WIDTH`] are divided into groups of [`WIDTH`], in the order of its schema.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};

/// Columns per group; tables with no more have a single group.
pub const WIDTH: usize = 128;

/// How the columns of a table are divided among slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    columns: usize,
    width: usize,
}

impl Groups {
    /// The groups that writers use for a table of `columns` columns.
    #[must_use]
    pub fn of(columns: usize) -> Self {
        Self { columns, width: if columns > WIDTH { WIDTH } else { columns.max(1) } }
    }

    /// Groups of `width` columns of a table with `columns`, the last of what is left.
    #[must_use]
    pub fn new(columns: usize, width: usize) -> Self {
        Self { columns, width: width.max(1) }
    }

    /// How many there are: at least one, as rows without columns are rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.columns.div_ceil(self.width).max(1)
    }

    /// Never: there is one at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Columns of each but the last.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// The columns of group `group`.
    #[must_use]
    pub fn columns(&self, group: usize) -> Range<usize> {
        let at = |group: usize| group.saturating_mul(self.width).min(self.columns);
        at(group)..at(group.saturating_add(1))
    }

    /// Where column `column` is: its group, and its place there.
    #[must_use]
    pub fn place(&self, column: usize) -> (usize, usize) {
        (column / self.width, column % self.width)
    }

    /// The schema of the slices of a group. A single group has the table's; metadata of the table is not
    /// repeated in each of many.
    #[must_use]
    pub fn schema(&self, schema: &SchemaRef, group: usize) -> SchemaRef {
        if self.len() == 1 {
            return Arc::clone(schema);
        }
        Arc::new(Schema::new(schema.fields().get(self.columns(group)).unwrap_or_default().to_vec()))
    }

    /// Divides the ascending `columns` by group: each group that has any, and their places in it.
    #[must_use]
    pub fn split(&self, columns: &[usize]) -> Vec<(usize, Vec<usize>)> {
        let mut split: Vec<(usize, Vec<usize>)> = Vec::new();
        for &column in columns {
            let (group, place) = self.place(column);
            match split.last_mut() {
                Some((last, places)) if *last == group => places.push(place),
                _ => split.push((group, vec![place])),
            }
        }
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_is_in_one_place() {
        for (columns, groups) in [(0, 1), (1, 1), (WIDTH, 1), (WIDTH + 1, 2), (3 * WIDTH, 3), (20_000, 157)] {
            let of = Groups::of(columns);
            assert_eq!(of.len(), groups, "{columns}");
            let all: Vec<usize> = (0..of.len()).flat_map(|g| of.columns(g)).collect();
            assert_eq!(all, (0..columns).collect::<Vec<_>>());
            for column in 0..columns {
                let (group, place) = of.place(column);
                assert_eq!(of.columns(group).nth(place), Some(column));
            }
        }
    }

    #[test]
    fn wanted_columns_are_found_group_by_group() {
        let groups = Groups::new(10, 4);
        assert_eq!(groups.split(&[0, 3, 9]), [(0, vec![0, 3]), (2, vec![1])]);
        assert_eq!(groups.split(&[]), []);
        assert_eq!(groups.columns(2), 8..10);
        assert_eq!(groups.columns(7), 10..10);
    }
}
