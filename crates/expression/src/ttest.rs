//! t-tests from grouped moments. The formulas are those of scanpy 1.11's `rank_genes_groups` and of
//! scipy's `ttest_ind_from_stats`.

use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

use crate::lanes;
use crate::students::two_sided;

/// The moments of one gene in one group of cells.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GroupMoments {
    /// Cells.
    pub n: u64,
    /// Cells in which the gene is not zero.
    pub nnz: u64,
    /// Mean over all cells of the group.
    pub mean: f64,
    /// Sum of squared differences from the mean.
    pub m2: f64,
}

impl GroupMoments {
    /// From `n` values, `nnz` of them nonzero, with sum `s` and sum of squares `q`. Where `q` is not finite, M2 is not
    /// either.
    ///
    /// M2 is the difference of `q` and another number. The two are close where the mean is far larger than the values'
    /// differences. A caller that needs the last digits of M2 then takes [`crate::kernel::two_pass_moments`].
    #[inline]
    #[must_use]
    pub fn of_sums(n: u64, nnz: u64, s: f64, q: f64) -> Self {
        if n == 0 {
            return Self::default();
        }
        let count = n as f64;
        // The square of a sum may be beyond all numbers where the sum of the squares is not.
        let of_mean = if s.abs() < 1e154 { s * s / count } else { s / count * s };
        let m2 = q - of_mean;
        // Not `max`, which takes NaN for 0.
        Self { n, nnz, mean: s / count, m2: if m2 < 0.0 { 0.0 } else { m2 } }
    }

    /// The moments of both together, which must not share a cell (Chan, Golub & LeVeque 1979).
    #[inline]
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        self.merged_by(other, Share::of(self.n, other.n))
    }

    /// As [`GroupMoments::merged`]; `share` is that of both counts, so that many merges of the same counts compute it
    /// once.
    #[inline]
    #[must_use]
    pub(crate) fn merged_by(&self, other: &Self, share: Share) -> Self {
        if self.n == 0 {
            return *other;
        }
        if other.n == 0 {
            return *self;
        }
        let delta = other.mean - self.mean;
        Self {
            n: share.n,
            nnz: self.nnz.saturating_add(other.nnz),
            mean: self.mean + delta * share.second,
            m2: self.m2 + other.m2 + delta * delta * share.weight,
        }
    }

    /// The unbiased variance; NaN for fewer than two cells.
    #[must_use]
    pub fn variance(&self) -> f64 {
        if self.n < 2 { f64::NAN } else { self.m2 / (self.n - 1) as f64 }
    }

    /// The share of cells in which the gene is not zero, 0 to 1; NaN without cells.
    #[must_use]
    pub fn pct_nz(&self) -> f64 {
        self.nnz as f64 / self.n as f64
    }
}

/// What merging moments needs to know of the counts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Share {
    pub(crate) n: u64,
    /// The second's share of all.
    pub(crate) second: f64,
    /// The first's count times that share.
    pub(crate) weight: f64,
}

impl Share {
    #[inline]
    pub(crate) fn of(a: u64, b: u64) -> Self {
        // Counts come from stored or received state: never trust their sum to fit.
        let n = a.saturating_add(b);
        let second = b as f64 / n as f64;
        Self { n, second, weight: a as f64 * second }
    }
}

/// Which t-test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Method {
    /// Student's, with pooled variance (`scipy.stats.ttest_ind(equal_var=True)`).
    #[serde(rename = "student")]
    Student,
    /// Welch's, with variances of their own (scanpy's `t-test`).
    #[serde(rename = "t-test")]
    Welch,
    /// Welch's with the reference taken to be as small as the group, which overestimates its variance (scanpy's
    /// `t-test_overestim_var`).
    #[serde(rename = "t-test_overestim_var")]
    Overestim,
}

impl Method {
    /// The name in queries and results.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Student => "student",
            Method::Welch => "t-test",
            Method::Overestim => "t-test_overestim_var",
        }
    }

    /// The method of that name; `welch` is `t-test`.
    ///
    /// # Errors
    /// Invalid, listing the methods.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "student" => Ok(Method::Student),
            "t-test" | "welch" => Ok(Method::Welch),
            "t-test_overestim_var" => Ok(Method::Overestim),
            _ => Err(Error::invalid(format!("there is no method {:?}: use 'student', 't-test' (Welch) or 't-test_overestim_var'", crate::spec::shorten(name)))),
        }
    }
}

/// The result of a t-test of one gene.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TTest {
    /// The statistic: positive where the group's mean is the larger; 0 where undefined.
    pub t: f64,
    /// Degrees of freedom; NaN where both variances are zero and the method derives them from the variances.
    pub df: f64,
    /// The two-sided p-value; 1 where undefined.
    pub p: f64,
}

/// Tests whether `group` and `reference` have the same mean.
///
/// Equal means without any variance give t = 0 and p = 1; different ones give t = ±inf and p = 0.
///
/// # Errors
/// Invalid where one of them, named `group_name` and `reference_name`, has fewer than two cells.
pub fn t_test(method: Method, group: &GroupMoments, reference: &GroupMoments, group_name: &str, reference_name: &str) -> Result<TTest> {
    check_size(group_name, group.n)?;
    check_size(reference_name, reference.n)?;
    Ok(test_unchecked(method, group, reference))
}

/// Refuses groups without a variance.
pub(crate) fn check_size(name: &str, n: u64) -> Result<()> {
    if n < 2 {
        return Err(Error::invalid(format!("group {name:?} has {n} cell{}: a test needs at least two", if n == 1 { "" } else { "s" })));
    }
    Ok(())
}

#[inline]
pub(crate) fn test_unchecked(method: Method, group: &GroupMoments, reference: &GroupMoments) -> TTest {
    let (n1, n2) = (group.n as f64, if method == Method::Overestim { group.n as f64 } else { reference.n as f64 });
    let (v1, v2) = (group.variance(), reference.variance());
    let (df, error) = if method == Method::Student {
        let df = n1 + n2 - 2.0;
        (df, ((n1 - 1.0) * v1 + (n2 - 1.0) * v2) / df * (1.0 / n1 + 1.0 / n2))
    } else {
        let (a, b) = (v1 / n1, v2 / n2);
        let error = a + b;
        // Only their proportions matter; where their squares would leave the range of numbers, they
        // are brought into it first.
        let (a, b, sum) = if (error * error).is_normal() || error == 0.0 { (a, b, error) } else { (a / error, b / error, 1.0) };
        (sum * sum / (a * a / (n1 - 1.0) + b * b / (n2 - 1.0)), error)
    };
    let t = (group.mean - reference.mean) / error.sqrt();
    if t.is_nan() {
        return TTest { t: 0.0, df, p: 1.0 };
    }
    if t.is_infinite() {
        return TTest { t, df, p: 0.0 };
    }
    let p = two_sided(t, df);
    TTest { t, df, p: if p.is_nan() { 1.0 } else { p } }
}

/// The log2 fold change as scanpy defines it: `log2((expm1(m1) + 1e-9) / (expm1(m2) + 1e-9))` of the means of the
/// logarithms. `scale` is the natural logarithm of their base: 1 for natural ones (AnnData's `uns['log1p']['base']` has
/// the base).
#[inline]
#[must_use]
pub fn log_fold_change(group_mean: f64, reference_mean: f64, scale: f64) -> f64 {
    let (a, b) = (group_mean * scale, reference_mean * scale);
    if a.abs() <= FOLD_RANGE && b.abs() <= FOLD_RANGE {
        let ratio = (lanes::exp_m1(a) + 1e-9) / (lanes::exp_m1(b) + 1e-9);
        if (f64::MIN_POSITIVE..f64::INFINITY).contains(&ratio) {
            return lanes::log2(ratio);
        }
    }
    ((a.exp_m1() + 1e-9) / (b.exp_m1() + 1e-9)).log2()
}

/// Where means are no further from 0 than this, our own exponential serves.
pub(crate) const FOLD_RANGE: f64 = 700.0;

/// The moments of two sets of cells that may overlap, from those of the cells in the first alone, in the second alone,
/// and in both: the groups that a query can be given, since a cell has one group.
#[must_use]
pub fn overlapping(first_only: &GroupMoments, second_only: &GroupMoments, both: &GroupMoments) -> (GroupMoments, GroupMoments) {
    (first_only.merged(both), second_only.merged(both))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64]) -> GroupMoments {
        let (s, q) = values.iter().fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
        GroupMoments::of_sums(values.len() as u64, values.iter().filter(|v| **v != 0.0).count() as u64, s, q)
    }

    fn close(a: f64, b: f64, tolerance: f64) -> bool {
        a == b || (a - b).abs() <= tolerance * b.abs()
    }

    #[test]
    fn as_scipy() {
        let mut lines = 0;
        for line in include_str!("../tests/data/ttests.csv").lines().skip(1) {
            let v: Vec<f64> = line.split(',').map(|n| n.parse().unwrap()).collect();
            let one = GroupMoments { n: v[0] as u64, nnz: 0, mean: v[1], m2: v[2] };
            let two = GroupMoments { n: v[3] as u64, nnz: 0, mean: v[4], m2: v[5] };
            for (method, expected) in [(Method::Student, &v[6..8]), (Method::Welch, &v[8..10]), (Method::Overestim, &v[10..12])] {
                let r = t_test(method, &one, &two, "one", "two").unwrap();
                assert!(close(r.t, expected[0], 1e-12), "{method:?} {line}: t {}", r.t);
                // scipy's own p is off by up to 1e-12 far out; below 1e-300 little is left to compare.
                assert!(close(r.p, expected[1], 1e-10) || (r.p < 1e-300 && expected[1] < 1e-300), "{method:?} {line}: p {}", r.p);
            }
            lines += 1;
        }
        assert!(lines > 60);
    }

    #[test]
    fn where_nothing_varies() {
        let (zeros, ones) = (of(&[0.0; 4]), of(&[1.0; 4]));
        for method in [Method::Student, Method::Welch, Method::Overestim] {
            let test = |a, b| t_test(method, a, b, "a", "b").unwrap();
            assert_eq!((test(&zeros, &zeros).t, test(&zeros, &zeros).p), (0.0, 1.0));
            assert_eq!((test(&ones, &zeros).t, test(&ones, &zeros).p), (f64::INFINITY, 0.0));
            assert_eq!((test(&zeros, &ones).t, test(&zeros, &ones).p), (f64::NEG_INFINITY, 0.0));
        }
    }

    #[test]
    fn values_near_the_ends_of_the_range() {
        // Nothing is lost where squares of sums overflow, and what overflows itself is not taken for no variance.
        let large = of(&[1e153, 2e153, 3e153, 4e153]);
        assert!(close(large.m2, 5e306, 1e-14), "{large:?}");
        let many = GroupMoments::of_sums(10_000, 10_000, 1e156, 1.5e308);
        assert!(close(many.m2, 5e307, 1e-12), "{many:?}");
        let beyond = of(&[1e200, 2e200]);
        assert!(!beyond.m2.is_finite(), "{beyond:?}");
        // The same question in other units.
        let test = |unit: f64| {
            let (a, b) = (of(&[1.0 * unit, 2.0 * unit, 4.0 * unit]), of(&[2.0 * unit, 5.0 * unit, 7.0 * unit, 8.0 * unit]));
            t_test(Method::Welch, &a, &b, "a", "b").unwrap()
        };
        let one = test(1.0);
        for unit in [1e-100, 1e-90, 1e90, 1e152] {
            let r = test(unit);
            assert!(close(r.t, one.t, 1e-12) && close(r.df, one.df, 1e-12) && close(r.p, one.p, 1e-12), "{unit}: {r:?} {one:?}");
        }
    }

    #[test]
    fn small_groups_are_refused_by_name() {
        for n in [0, 1] {
            let small = GroupMoments { n, ..GroupMoments::default() };
            let error = t_test(Method::Welch, &of(&[1.0, 2.0]), &small, "big", "tiny").unwrap_err();
            assert!(error.to_string().contains("\"tiny\"") && error.to_string().contains(&n.to_string()), "{error}");
        }
    }

    #[test]
    fn merging_is_as_taking_both_together() {
        let values = [0.0, 3.5, 0.0, 1e-3, 7.25, 2.0, 2.0, 0.0, 11.0];
        for cut in 0..=values.len() {
            let merged = of(&values[..cut]).merged(&of(&values[cut..]));
            let whole = of(&values);
            assert_eq!((merged.n, merged.nnz), (whole.n, whole.nnz));
            assert!(close(merged.mean, whole.mean, 1e-14) && close(merged.m2, whole.m2, 1e-13), "{cut}: {merged:?} {whole:?}");
        }
        let huge = GroupMoments { n: u64::MAX, nnz: u64::MAX, mean: 1.0, m2: 1.0 };
        assert_eq!(huge.merged(&huge).n, u64::MAX);
    }

    #[test]
    fn fold_changes() {
        assert_eq!(log_fold_change(0.0, 0.0, 1.0), 0.0);
        assert!(close(log_fold_change(1.0, 0.5, 1.0), (1f64.exp_m1() / 0.5f64.exp_m1()).log2(), 1e-8));
        // Base 2: the mean of log2(1 + x) is 1 where x is 1.
        assert!(close(log_fold_change(2.0, 1.0, 2f64.ln()), 3f64.log2(), 1e-8));
    }

    #[test]
    fn overlapping_sets() {
        let (a, both, b) = ([1.0, 2.0, 0.0], [5.0, 0.0], [0.0, 0.0, 3.0, 1.0]);
        let (one, two) = overlapping(&of(&a), &of(&b), &of(&both));
        let (want_one, want_two) = (of(&[&a[..], &both].concat()), of(&[&b[..], &both].concat()));
        assert!(close(one.m2, want_one.m2, 1e-13) && close(two.m2, want_two.m2, 1e-13) && one.nnz == want_one.nnz && two.n == want_two.n);
    }
}
