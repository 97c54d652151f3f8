//! Wilcoxon's rank sum test from rank sums, gene by gene.

use std::f64::consts::FRAC_1_SQRT_2;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::Float64Type;
use skytether_common::{Error, Result};

use crate::midranks::RankSum;
use crate::spec::shorten;
use crate::ttest::Method;

/// Which test genes are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// A t-test, of moments alone.
    T(Method),
    /// Wilcoxon's rank sum test, of the columns `moments` and `ranks` (the result of `rank_sums()` with the same
    /// groups, against the same reference).
    RankSum {
        /// Whether the variance is corrected for ties. scanpy's default is not to.
        tie_correct: bool,
    },
}

impl Test {
    /// The test of that name. `tie_correct` belongs to `wilcoxon` and is false for others.
    ///
    /// # Errors
    /// Invalid, listing the tests; invalid for ties of a t-test.
    pub fn parse(name: &str, tie_correct: bool) -> Result<Self> {
        match name {
            "wilcoxon" => Ok(Test::RankSum { tie_correct }),
            _ if tie_correct => Err(Error::invalid(format!("{:?} has no ranks to correct for ties: use 'wilcoxon'", shorten(name)))),
            _ => Method::parse(name).map(Test::T),
        }
    }

    /// The t-test, if it is one.
    pub(super) fn t(self) -> Option<Method> {
        match self {
            Test::T(method) => Some(method),
            Test::RankSum { .. } => None,
        }
    }
}

/// The rank sums of a batch's genes.
pub(super) struct RankSums<'a> {
    offsets: &'a [i32],
    sums: &'a [f64],
    ties: &'a [f64],
}

impl<'a> RankSums<'a> {
    /// Of a column of `rank_sums()`.
    ///
    /// # Errors
    /// Invalid where it is none.
    pub(super) fn open(column: &'a ArrayRef) -> Result<Self> {
        let wrong = || Error::invalid("ranks must be the result of rank_sums(idx, val, block, spec), without NULLs");
        let lists = column.as_list_opt::<i32>().filter(|lists| lists.null_count() == 0).ok_or_else(wrong)?;
        let entries = lists.values().as_struct_opt().filter(|entries| entries.null_count() == 0).ok_or_else(wrong)?;
        let part = |name: &str| {
            let numbers = entries.column_by_name(name).and_then(|c| c.as_primitive_opt::<Float64Type>());
            numbers.filter(|c| c.null_count() == 0).map(|c| c.values().as_ref()).ok_or_else(wrong)
        };
        Ok(Self { offsets: lists.value_offsets(), sums: part("sum")?, ties: part("ties")? })
    }

    /// How many groups row `row` has.
    pub(super) fn width(&self, row: usize) -> usize {
        (self.offsets[row + 1] - self.offsets[row]) as usize
    }

    /// Group `group` of row `row`, which has it.
    pub(super) fn get(&self, row: usize, group: usize) -> RankSum {
        let at = self.offsets[row] as usize + group;
        RankSum { sum: self.sums[at], ties: self.ties[at] }
    }
}

/// The statistic of `n1` cells whose ranks among `n1 + n2` have the given sum, and its two-sided p-value by the normal
/// distribution; 0 and 1 where all cells are equal.
///
/// Without ties the statistic has the mean `n1 (N + 1) / 2` and the variance `n1 n2 (N + 1) / 12`; ties of t cells
/// multiply the latter by `1 - sum(t^3 - t) / (N^3 - N)` (Kruskal & Wallis, JASA 47:583, 1952). There is no correction
/// for continuity, as in scanpy, and as in `scipy.stats.mannwhitneyu(method="asymptotic", use_continuity=False)`, which
/// corrects for ties.
pub(super) fn rank_sum(of: RankSum, n1: u64, n2: u64, tie_correct: bool) -> (f64, f64) {
    let (n1, n2) = (n1 as f64, n2 as f64);
    let n = n1 + n2;
    let untied = if tie_correct { 1.0 - of.ties / (n * (n * n - 1.0)) } else { 1.0 };
    let z = (of.sum - n1 * ((n + 1.0) / 2.0)) / (untied * n1 * n2 * (n + 1.0) / 12.0).sqrt();
    // A variance that rounding makes negative is none.
    if z.is_nan() || z.is_infinite() { (0.0, 1.0) } else { (z, libm::erfc(z.abs() * FRAC_1_SQRT_2)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// scipy 1.17: `mannwhitneyu(a, b, use_continuity=False, method="asymptotic")`, and `2 * norm.sf(z)`.
    #[test]
    fn statistics_are_those_of_scipy() {
        // a = [1, 2, 2, 5], b = [2, 3, 4, 4, 0]: ranks of a are 2, 4, 4, 9.
        let of = RankSum { sum: 19.0, ties: 24.0 + 6.0 };
        let (z, p) = rank_sum(of, 4, 5, true);
        assert!((z + 0.250_217_296_868_489_7).abs() < 1e-14 && (p - 0.802_419_309_657_957).abs() < 1e-14, "{z} {p}");
        let (z, p) = rank_sum(of, 4, 5, false);
        assert!((z + 0.244_948_974_278_317_8).abs() < 1e-14 && (p - 0.806_495_940_507_340_1).abs() < 1e-14, "{z} {p}");
    }

    #[test]
    fn far_tails_keep_their_digits() {
        // erfc(z / sqrt(2)) by mpmath, with 40 digits.
        for (z, wanted) in [(5.0, 5.733_031_437_583_878e-7), (20.0, 5.507_248_237_212_467e-89), (37.0, 1.145_114_244_504_915e-299)] {
            let p = libm::erfc(z * FRAC_1_SQRT_2);
            assert!((p / wanted - 1.0f64).abs() < 1e-12, "{z}: {p:e}");
        }
    }

    #[test]
    fn equal_cells_have_no_statistic() {
        // Five zeros: midranks 3, one tie of five.
        let of = RankSum { sum: 6.0, ties: 120.0 };
        assert_eq!(rank_sum(of, 2, 3, true), (0.0, 1.0));
        assert_eq!(rank_sum(of, 2, 3, false), (0.0, 1.0));
    }

    #[test]
    fn tests_are_known_by_name() {
        assert_eq!(Test::parse("wilcoxon", true).unwrap(), Test::RankSum { tie_correct: true });
        assert_eq!(Test::parse("t-test", false).unwrap(), Test::T(Method::Welch));
        assert!(Test::parse("t-test", true).unwrap_err().to_string().contains("wilcoxon"));
        assert!(Test::parse("anova", false).is_err());
    }
}
