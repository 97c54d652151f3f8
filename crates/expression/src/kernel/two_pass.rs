//! Moments whose sums lost them: where nearly all of the sum of squares is the mean's, their difference has few digits left.
//!
//! Values like 1e8, 1e8 + 1, 1e8 + 2 have a sum of squares of 3e16, of which M2 is 2: less than what was rounded off. Such rows, which are rare, are worked
//! off a second time around the groups' means (the corrected two-pass algorithm: Chan, Golub & LeVeque 1983), which is exact to rounding whatever
//! the values. All others keep the sums of the first pass, so that this costs them nothing.

use super::block::Block;
use super::value::Value;
use crate::log1p::log1p_cp10k;
use crate::ttest::GroupMoments;

/// Sums of squares are taken to have lost too much where M2 is less than one part in so many: three of their sixteen digits.
const LOST: f64 = 1024.0;

/// Whether `moments`, made of a sum of squares `q`, should better be made by [`two_pass_moments`].
#[inline]
#[must_use]
pub fn cancels(moments: &GroupMoments, q: f64) -> bool {
    // A single cell has no M2 that could be lost.
    moments.m2 * LOST < q && moments.n > 1
}

/// The moments of each group over one row that [`super::Kernel::row`] has taken: `n` are the block's cells per group, those that are not in `idx` included.
///
/// Squares are taken in doubles. An index or group that does not exist is passed over.
#[must_use]
pub fn two_pass_moments<T: Value>(block: &Block<'_>, idx: &[u32], val: &[T], n: &[u32]) -> Vec<GroupMoments> {
    let values = || {
        idx.iter().zip(val).filter_map(|(&cell, &value)| {
            let at = cell.checked_sub(block.first)? as usize;
            let group = usize::from(*block.codes.get(at)?);
            let y = match &block.table {
                None => value.as_f64(),
                Some(table) => f64::from(log1p_cp10k(value.as_f32(), *table.totals().get(at)?)),
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
    // What the rounded mean left over.
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
