//! Pure: in which objects the bytes of a CephFS file lie.
//!
//! The algorithm is Ceph's file striping (`doc/dev/file-striping.rst`): units of `unit` bytes go round robin over
//! `count` objects, until each has `object` bytes. Then come the next `count` objects.

use std::ops::Range;

use skytether_common::{Error, Result};

/// How a file is cut into objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) unit: u64,
    pub(super) count: u64,
    pub(super) object: u64,
    pub(super) pool: String,
    pub(super) namespace: String,
}

/// Bytes of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// The object's number.
    pub(super) number: u64,
    /// Its bytes.
    pub(super) range: Range<u64>,
}

impl Layout {
    /// From the text of the attribute `ceph.file.layout`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::unsupported(format!("the layout {text:?} of a file is none that this version knows"));
        let mut layout = Self { unit: 0, count: 0, object: 0, pool: String::new(), namespace: String::new() };
        for word in text.split(' ') {
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            let number = || value.parse().map_err(|_| wrong());
            match name {
                "stripe_unit" => layout.unit = number()?,
                "stripe_count" => layout.count = number()?,
                "object_size" => layout.object = number()?,
                "pool" => value.clone_into(&mut layout.pool),
                "pool_namespace" => value.clone_into(&mut layout.namespace),
                _ => {}
            }
        }
        let sound = layout.unit > 0 && layout.count > 0 && layout.object >= layout.unit && layout.object.is_multiple_of(layout.unit) && !layout.pool.is_empty();
        if sound { Ok(layout) } else { Err(wrong()) }
    }

    /// The parts of the file's bytes `range`, in their order; neighbours in one object are one part.
    pub(super) fn parts(&self, range: Range<u64>) -> Vec<Part> {
        let per_object = self.object / self.unit;
        let mut parts: Vec<Part> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let (block, within) = (at / self.unit, at % self.unit);
            let (stripe, position) = (block / self.count, block % self.count);
            let number = stripe / per_object * self.count + position;
            let start = stripe % per_object * self.unit + within;
            let len = (self.unit - within).min(range.end - at);
            match parts.last_mut() {
                Some(last) if last.number == number && last.range.end == start => last.range.end += len,
                _ => parts.push(Part { number, range: start..start + len }),
            }
            at += len;
        }
        parts
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn layout(unit: u64, count: u64, object: u64) -> Layout {
        Layout { unit, count, object, pool: "data".into(), namespace: String::new() }
    }

    #[test]
    fn plain_layout_cuts_at_object_size() {
        let parts = layout(4, 1, 4).parts(2..10);
        assert_eq!(parts, [Part { number: 0, range: 2..4 }, Part { number: 1, range: 0..4 }, Part { number: 2, range: 0..2 }]);
        assert!(layout(4, 1, 4).parts(3..3).is_empty());
    }

    #[test]
    fn neighbouring_units_of_an_object_are_one_part() {
        assert_eq!(layout(4, 1, 16).parts(1..18), [Part { number: 0, range: 1..16 }, Part { number: 1, range: 0..2 }]);
    }

    /// Units 0, 2, 4, 6 are in objects 0 (two of them) and 2; units 1, 3, 5, 7 in objects 1 and 3.
    #[test]
    fn stripes_go_round_robin_over_objects() {
        let numbers: Vec<(u64, Range<u64>)> = layout(2, 2, 4).parts(0..16).into_iter().map(|part| (part.number, part.range)).collect();
        assert_eq!(numbers, [(0, 0..2), (1, 0..2), (0, 2..4), (1, 2..4), (2, 0..2), (3, 0..2), (2, 2..4), (3, 2..4)]);
    }

    #[test]
    fn layouts_are_read_from_the_attribute() {
        let read = Layout::parse("stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=data pool_namespace=n").unwrap();
        assert_eq!(read, Layout { namespace: "n".into(), ..layout(4 << 20, 1, 4 << 20) });
        for wrong in ["", "stripe_unit=4", "stripe_unit=0 stripe_count=1 object_size=4 pool=a", "stripe_unit=3 stripe_count=1 object_size=4 pool=a"] {
            assert!(Layout::parse(wrong).is_err(), "{wrong}");
        }
    }
}
