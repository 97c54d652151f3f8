//! [`KeyRange`]: which keys a range has.

use std::ops::Bound;

use bytes::Bytes;

use crate::command::Range;
use crate::log::Limits;
use crate::status::Refusal;

/// A range of keys, in the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// Where it begins.
    pub start: Bound<Bytes>,
    /// Where it ends.
    pub end: Bound<Bytes>,
    /// How many keys the response may have.
    pub max_returned: u32,
    /// Whether keys come from the end, in falling order.
    pub reverse: bool,
}

impl KeyRange {
    /// The range of a command. An absent start is the empty key, an absent or empty end is beyond all keys, and an
    /// absent flag is false.
    ///
    /// # Errors
    /// Those of [`Limits::check_key`] for both ends, and of [`Limits::check_range_count`].
    pub fn of(range: &Range, limits: &Limits) -> Result<KeyRange, Refusal> {
        limits.check_key(range.start_key())?;
        limits.check_key(range.end_key())?;
        limits.check_range_count(range.max_returned())?;
        Ok(KeyRange { max_returned: range.max_returned(), ..KeyRange::unlimited(range) })
    }

    /// The range of a command that may leave out how many keys it wants, as media scans may: absent or 0 is no limit.
    /// Nothing is checked.
    #[must_use]
    pub fn unlimited(range: &Range) -> KeyRange {
        let bound = |key: Option<&Bytes>, inclusive: bool| {
            let key = key.cloned().unwrap_or_default();
            if inclusive { Bound::Included(key) } else { Bound::Excluded(key) }
        };
        let start = bound(range.start_key.as_ref(), range.start_key_inclusive());
        let end = if range.end_key().is_empty() { Bound::Unbounded } else { bound(range.end_key.as_ref(), range.end_key_inclusive()) };
        let max_returned = if range.max_returned() == 0 { u32::MAX } else { range.max_returned() };
        KeyRange { start, end, max_returned, reverse: range.reverse() }
    }

    /// Whether a key is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        let after_start = match &self.start {
            Bound::Included(start) => key >= &start[..],
            Bound::Excluded(start) => key > &start[..],
            Bound::Unbounded => true,
        };
        let before_end = match &self.end {
            Bound::Included(end) => key <= &end[..],
            Bound::Excluded(end) => key < &end[..],
            Bound::Unbounded => true,
        };
        after_start && before_end
    }

    /// Both ends for a map's `range`, which panics at a start after the end: none if no key can be between them.
    #[must_use]
    pub fn bounds(&self) -> Option<(Bound<&[u8]>, Bound<&[u8]>)> {
        let (start, end) = (self.start.as_ref().map(AsRef::as_ref), self.end.as_ref().map(AsRef::as_ref));
        let possible = match (start, end) {
            (Bound::Included(start), Bound::Included(end)) => start <= end,
            (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start < end,
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        };
        possible.then_some((start, end))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::StatusCode;

    fn range(start: &'static [u8], start_in: bool, end: &'static [u8], end_in: bool) -> Range {
        Range {
            start_key: Some(Bytes::from_static(start)),
            end_key: Some(Bytes::from_static(end)),
            start_key_inclusive: Some(start_in),
            end_key_inclusive: Some(end_in),
            max_returned: Some(10),
            ..Range::default()
        }
    }

    #[test]
    fn ends_belong_to_a_range_if_inclusive() {
        let keys = |start_in, end_in| {
            let range = KeyRange::of(&range(b"b", start_in, b"d", end_in), &Limits::DRIVE).unwrap();
            [&b"a"[..], b"b", b"ba", b"c", b"d", b"d\0", b"e"].into_iter().filter(|key| range.contains(key)).collect::<Vec<_>>().concat()
        };
        assert_eq!(keys(true, true), b"bbacd");
        assert_eq!(keys(false, false), b"bac");
        assert_eq!((keys(true, false), keys(false, true)), (b"bbac".to_vec(), b"bacd".to_vec()));
    }

    #[test]
    fn empty_or_absent_end_is_beyond_all_keys() {
        for range in [range(b"b", true, b"", true), range(b"b", true, b"", false), Range { end_key: None, ..range(b"b", true, b"", false) }] {
            let range = KeyRange::of(&range, &Limits::DRIVE).unwrap();
            assert!(range.contains(b"b") && range.contains(&[0xff; 2000]) && !range.contains(b"a") && range.bounds().is_some());
        }
        let all = KeyRange::unlimited(&Range { start_key_inclusive: Some(true), ..Range::default() });
        assert!(all.contains(b"") && all.contains(b"x"));
        assert_eq!(all.max_returned, u32::MAX);
    }

    #[test]
    fn bounds_never_make_a_map_panic() {
        let keys: BTreeSet<Vec<u8>> = [&b"a"[..], b"b", b"c"].iter().map(|key| key.to_vec()).collect();
        let ends: [&'static [u8]; 4] = [b"", b"a", b"b", b"c"];
        for (start, end, flags) in ends.iter().flat_map(|start| ends.iter().flat_map(move |end| (0..4).map(move |flags| (start, end, flags)))) {
            let range = KeyRange::of(&range(start, flags & 1 == 1, end, flags & 2 == 2), &Limits::DRIVE).unwrap();
            let expected: Vec<_> = keys.iter().filter(|key| range.contains(key)).collect();
            match range.bounds() {
                Some(bounds) => assert_eq!(keys.range::<[u8], _>(bounds).collect::<Vec<_>>(), expected, "{range:?}"),
                None => assert!(expected.is_empty(), "{range:?}"),
            }
        }
    }

    #[test]
    fn range_keeps_the_limits() {
        let code = |range: &Range| KeyRange::of(range, &Limits::DRIVE).unwrap_err().code;
        let ok = range(b"a", true, b"b", true);
        assert_eq!(code(&Range { max_returned: Some(801), ..ok.clone() }), StatusCode::InvalidRequest);
        assert_eq!(code(&Range { max_returned: None, ..ok.clone() }), StatusCode::InternalError);
        assert_eq!(code(&Range { start_key: Some(vec![0; 1025].into()), ..ok.clone() }), StatusCode::InvalidRequest);
        assert_eq!(code(&Range { end_key: Some(vec![0; 1025].into()), ..ok.clone() }), StatusCode::InvalidRequest);
        let reverse = KeyRange::of(&Range { reverse: Some(true), ..ok }, &Limits::DRIVE).unwrap();
        assert!(reverse.reverse && reverse.max_returned == 10);
    }
}
