//! One row of the state of moments as bytes. Only the groups in which the gene occurs take room.
//!
//! 1. A bit per group, the lowest of the first byte first, rounded up to whole bytes: whether the group has nonzeros.
//!    If not, its mean and M2 are 0.
//! 2. Per group with nonzeros: their number as LEB128, then mean and M2 as float64 little-endian. The number 0 means
//!    one nonzero; its value follows as float32 little-endian instead of mean and M2. That form is only used where mean
//!    and M2 follow from the value to the last bit.
//!
//! The column `groups` of the state has the number of groups, and of their cells.

use crate::ttest::GroupMoments;

/// Marks a group with a single nonzero, whose value follows.
const SINGLE: u8 = 0;

/// The bytes of the bits for `width` groups.
fn mask_len(width: usize) -> usize {
    width.div_ceil(8)
}

/// An upper bound of what [`put`] appends for a row with `present` of `width` groups.
pub(crate) fn bound(width: usize, present: usize) -> usize {
    // Numbers of nonzeros beyond 2^28 are rare; the vector grows for them.
    mask_len(width) + present * (4 + 16)
}

/// The moments of `n` cells, one with the value `y` and the others zero. Squared as for `Squares::Float32`, which large
/// queries use.
fn single(n: u64, y: f32) -> GroupMoments {
    GroupMoments::of_sums(n, 1, f64::from(y), f64::from(y * y))
}

/// Appends a row's moments: `n`, `nnz`, `mean` and `m2` per group.
pub(crate) fn put(out: &mut Vec<u8>, n: &[u64], nnz: &[u64], mean: &[f64], m2: &[f64]) {
    let start = out.len();
    out.resize(start + mask_len(n.len()), 0);
    for (k, ((&n, &nnz), (&mean, &m2))) in n.iter().zip(nnz).zip(mean.iter().zip(m2)).enumerate() {
        if nnz == 0 {
            continue;
        }
        out[start + k / 8] |= 1 << (k % 8);
        if nnz == 1 {
            let y = (mean * n as f64) as f32;
            let same = single(n, y);
            if same.mean.to_bits() == mean.to_bits() && same.m2.to_bits() == m2.to_bits() {
                out.push(SINGLE);
                out.extend_from_slice(&y.to_le_bytes());
                continue;
            }
        }
        let mut left = nnz;
        while left > 0x7f {
            out.push(left as u8 | 0x80);
            left >>= 7;
        }
        out.push(left as u8);
        out.extend_from_slice(&mean.to_le_bytes());
        out.extend_from_slice(&m2.to_le_bytes());
    }
}

/// Reads the moments of a row of groups of `n` cells, and calls `each` with every group's number and moments.
///
/// # Errors
/// What is wrong with the bytes.
pub(crate) fn read(bytes: &[u8], n: &[u64], mut each: impl FnMut(usize, &GroupMoments)) -> Result<(), &'static str> {
    let (mask, mut rest) = bytes.split_at_checked(mask_len(n.len())).ok_or("is cut short")?;
    if !n.len().is_multiple_of(8) && mask.last().is_some_and(|last| last >> (n.len() % 8) != 0) {
        return Err("has moments of more groups than it names");
    }
    for (k, &n) in n.iter().enumerate() {
        if mask[k / 8] >> (k % 8) & 1 == 0 {
            each(k, &GroupMoments { n, ..GroupMoments::default() });
            continue;
        }
        let nnz = number(&mut rest)?;
        let moments = if nnz == u64::from(SINGLE) {
            single(n, f32::from_le_bytes(take(&mut rest)?))
        } else {
            GroupMoments { n, nnz, mean: f64::from_le_bytes(take(&mut rest)?), m2: f64::from_le_bytes(take(&mut rest)?) }
        };
        if nnz.max(1) > n {
            return Err("has more nonzeros than cells");
        }
        each(k, &moments);
    }
    if rest.is_empty() { Ok(()) } else { Err("has bytes left over") }
}

fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (taken, rest) = from.split_first_chunk::<N>().ok_or("is cut short")?;
    *from = rest;
    Ok(*taken)
}

/// A LEB128 number of at most 64 bits.
fn number(from: &mut &[u8]) -> Result<u64, &'static str> {
    let mut value = 0u64;
    for place in 0..10 {
        let [byte] = take::<1>(from)?;
        let part = u64::from(byte & 0x7f);
        if place == 9 && part > 1 {
            break;
        }
        value |= part << (7 * place);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("has a number of nonzeros beyond 64 bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(row: &[GroupMoments]) -> Vec<u8> {
        let of = |f: fn(&GroupMoments) -> u64| row.iter().map(f).collect::<Vec<_>>();
        let float = |f: fn(&GroupMoments) -> f64| row.iter().map(f).collect::<Vec<_>>();
        let mut out = vec![7; 3];
        put(&mut out, &of(|m| m.n), &of(|m| m.nnz), &float(|m| m.mean), &float(|m| m.m2));
        out.split_off(3)
    }

    fn unpacked(bytes: &[u8], n: &[u64]) -> Result<Vec<GroupMoments>, &'static str> {
        let mut row = Vec::new();
        read(bytes, n, |k, m| {
            assert_eq!(k, row.len());
            row.push(*m);
        })?;
        Ok(row)
    }

    fn group() -> impl Strategy<Value = GroupMoments> {
        let count = prop_oneof![0u64..3, 0u64..300, Just(u64::MAX)];
        prop_oneof![
            (1u64..1000, any::<f32>().prop_filter("finite", |y| y.is_finite())).prop_map(|(n, y)| single(n, y)),
            (1u64..1000, 1e-3f64..1e3).prop_map(|(n, y)| GroupMoments::of_sums(n, 1, y, y * y)),
            (count, 1e-9f64..1e9, 0f64..1e9, 0u64..2000).prop_map(|(nnz, mean, m2, more)| match nnz {
                0 => GroupMoments { n: more, ..GroupMoments::default() },
                _ => GroupMoments { n: nnz.saturating_add(more), nnz, mean, m2 },
            }),
        ]
    }

    proptest! {
        #[test]
        fn rows_survive_to_the_last_bit(row in prop::collection::vec(group(), 0..40)) {
            let n: Vec<u64> = row.iter().map(|m| m.n).collect();
            let bytes = packed(&row);
            let back = unpacked(&bytes, &n).unwrap();
            let bits = |row: &[GroupMoments]| row.iter().map(|m| (m.n, m.nnz, m.mean.to_bits(), m.m2.to_bits())).collect::<Vec<_>>();
            prop_assert_eq!(bits(&back), bits(&row));
            for cut in 0..bytes.len() {
                prop_assert!(unpacked(&bytes[..cut], &n).is_err());
            }
            prop_assert!(unpacked(&[&bytes[..], &[0]].concat(), &n).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), n in prop::collection::vec(0u64..300, 0..30)) {
            if let Ok(row) = unpacked(&bytes, &n) {
                prop_assert!(row.len() == n.len() && row.iter().all(|m| m.nnz <= m.n));
            }
        }
    }

    #[test]
    fn sizes() {
        let absent = GroupMoments { n: 50, ..GroupMoments::default() };
        assert_eq!(packed(&[absent; 12]), [0, 0]);
        let mut row = [absent; 12];
        row[9] = single(50, 0.7);
        assert_eq!(packed(&row).len(), 2 + 5);
        row[2] = GroupMoments { n: 5000, nnz: 300, mean: 1.0, m2: 2.0 };
        assert_eq!(packed(&row).len(), 2 + 5 + 18);
    }

    #[test]
    fn impossible_states_are_refused() {
        let value = 1f32.to_le_bytes();
        let of = |head: &[u8], n: &[u64]| unpacked(&[head, &value].concat(), n);
        assert!(of(&[1, SINGLE], &[5]).is_ok());
        assert_eq!(of(&[1, SINGLE], &[0]).unwrap_err(), "has more nonzeros than cells");
        assert_eq!(of(&[2, SINGLE], &[5]).unwrap_err(), "has moments of more groups than it names");
        let nine = [1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(unpacked(&nine, &[6]).is_ok());
        assert_eq!(unpacked(&nine, &[5]).unwrap_err(), "has more nonzeros than cells");
        assert_eq!(unpacked(&[&[1][..], &[0xff; 9], &[2], &[0; 16]].concat(), &[u64::MAX]).unwrap_err(), "has a number of nonzeros beyond 64 bits");
        assert_eq!(unpacked(&[], &[1]).unwrap_err(), "is cut short");
        assert!(unpacked(&[], &[]).unwrap().is_empty());
    }
}
