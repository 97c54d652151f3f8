//! Two-pass moments, for rows where computing M2 from the sum of squares would cancel catastrophically.
//!
//! Values like 1e8, 1e8 + 1, 1e8 + 2 have a sum of squares of 3e16, and an M2 of 2, which is below its rounding error.
//! The caller processes such rows, which are rare, a second time around the groups' means. The corrected two-pass
//! algorithm (Chan, Golub & LeVeque 1983) is exact to rounding for any values. All other rows keep the sums of the
//! first pass.

use super::block::Block;
use super::value::Value;
use crate::ttest::GroupMoments;

/// M2 has lost too many digits if it is below the sum of squares divided by this: three of sixteen digits.
const LOST: f64 = 1024.0;

/// Whether `moments`, computed from the sum of squares `q`, need [`two_pass_moments`] instead.
#[inline]
#[must_use]
pub fn cancels(moments: &GroupMoments, q: f64) -> bool {
    // The M2 of a single cell is 0.
    moments.m2 * LOST < q && moments.n > 1
}

/// The moments of each group over one row that [`super::Kernel::row`] accepted. `n` is the number of the block's cells
/// per group, including cells that are not in `idx`.
///
/// Squares are computed in double precision. Indices and groups that do not exist are ignored.
#[must_use]
pub fn two_pass_moments<T: Value>(block: &Block<'_>, idx: &[u32], val: &[T], n: &[u32]) -> Vec<GroupMoments> {
    let values = || {
        idx.iter().zip(val).filter_map(|(&cell, &value)| {
            let at = cell.checked_sub(block.first)? as usize;
            let group = usize::from(*block.codes.get(at)?);
            let y = match &block.table {
                None => value.as_f64(),
                Some(table) => f64::from(table.value(value.as_f32(), at)),
            };
            (group < n.len()).then_some((group, y))
        })
    };
    let mut all: Vec<GroupMoments> = n.iter().map(|&n| GroupMoments { n: u64::from(n), ..GroupMoments::default() }).collect();
    let mut zeros: Vec<f64> = n.iter().map(|&n| f64::from(n)).collect();
    for (group, y) in values() {
        let of = &mut all[group];
        of.mean += y;
        of.nnz += u64::from(y != 0.0);
        zeros[group] -= 1.0;
    }
    for of in all.iter_mut().filter(|of| of.n > 0) {
        of.mean /= of.n as f64;
    }
    // The sum of the differences, which is not 0 because the mean was rounded.
    let mut rest = vec![0.0; n.len()];
    for (group, y) in values() {
        let difference = y - all[group].mean;
        rest[group] += difference;
        all[group].m2 += difference * difference;
    }
    for ((of, rest), zeros) in all.iter_mut().zip(rest).zip(zeros).filter(|((of, _), _)| of.n > 0) {
        let count = of.n as f64;
        let rest = rest - zeros * of.mean;
        of.m2 = (of.m2 + zeros * of.mean * of.mean - rest / count * rest).max(0.0);
        of.mean += rest / count;
    }
    all
}
