//! Tests many pairs of sets of cells at once: the arithmetic of [`crate::ttest`] column by column, so that the compiler
//! makes vector instructions of it. The results equal those of single tests to the last bit. Special cases (no
//! variance, numbers near the ends of the range) are left to [`crate::ttest`].

use crate::lanes;
use crate::students::two_sided_each;
use crate::ttest::{FOLD_RANGE, GroupMoments, Method, Share, log_fold_change, test_unchecked};

/// Pairs to test, and what came of it. Every column has a number per pair.
pub(crate) struct Pairs {
    /// The t-test; none where the caller sets `t` and `p` itself.
    method: Option<Method>,
    /// The natural logarithm of the base of the values' logarithms.
    scale: f64,
    wide: bool,
    /// Numbers of cells of the first and the second set of each pair.
    n: [Vec<f64>; 2],
    nnz: [Vec<f64>; 2],
    mean: [Vec<f64>; 2],
    m2: [Vec<f64>; 2],
    /// Whether the common formulas hold.
    plain: Vec<bool>,
    error: Vec<f64>,
    df: Vec<f64>,
    /// The statistic ([`crate::ttest::TTest::t`]).
    pub(crate) t: Vec<f64>,
    /// The two-sided p-value.
    pub(crate) p: Vec<f64>,
    /// The log2 fold change.
    pub(crate) fold: Vec<f64>,
    /// The shares of cells that are not zero.
    pub(crate) pct: [Vec<f64>; 2],
}

/// The moments of several genes in sets of as many cells.
#[derive(Debug, Clone)]
pub(crate) struct Moments {
    /// Cells of each.
    pub(crate) n: u64,
    pub(crate) nnz: Vec<u64>,
    pub(crate) mean: Vec<f64>,
    pub(crate) m2: Vec<f64>,
}

impl Moments {
    /// Moments of no cells, with room for `room` genes.
    pub(crate) fn new(room: usize) -> Self {
        Self { n: 0, nnz: vec![0; room], mean: vec![0.0; room], m2: vec![0.0; room] }
    }

    /// Becomes `of`, as far as the first `run` genes go.
    pub(crate) fn copy(&mut self, of: &Self, run: usize) {
        self.n = of.n;
        self.nnz[..run].copy_from_slice(&of.nnz[..run]);
        self.mean[..run].copy_from_slice(&of.mean[..run]);
        self.m2[..run].copy_from_slice(&of.m2[..run]);
    }

    /// Becomes `a` and `b` together, for the first `run` genes: [`GroupMoments::merged_by`] of each, to the last bit.
    pub(crate) fn merge(&mut self, a: &Self, b: &Self, share: Share, run: usize) {
        if a.n == 0 || b.n == 0 {
            return self.copy(if a.n == 0 { b } else { a }, run);
        }
        self.n = share.n;
        for ((nnz, a), b) in self.nnz[..run].iter_mut().zip(&a.nnz).zip(&b.nnz) {
            *nnz = a.saturating_add(*b);
        }
        let (mean, m2) = (&mut self.mean[..run], &mut self.m2[..run]);
        let (a_mean, a_m2, b_mean, b_m2) = (&a.mean[..run], &a.m2[..run], &b.mean[..run], &b.m2[..run]);
        for i in 0..run {
            let delta = b_mean[i] - a_mean[i];
            mean[i] = a_mean[i] + delta * share.second;
            m2[i] = a_m2[i] + b_m2[i] + delta * delta * share.weight;
        }
    }
}

impl Pairs {
    /// Room for `len` pairs, all of nothing with nothing.
    pub(crate) fn new(method: Option<Method>, scale: f64, len: usize) -> Self {
        let column = || vec![0.0; len];
        let two = || [column(), column()];
        Self {
            method,
            scale,
            wide: crate::kernel::has_avx2(),
            n: two(),
            nnz: two(),
            mean: two(),
            m2: two(),
            plain: vec![false; len],
            error: column(),
            df: column(),
            t: column(),
            p: column(),
            fold: column(),
            pct: two(),
        }
    }

    /// Sets `run` pairs from `at` on.
    pub(crate) fn set(&mut self, at: usize, run: usize, group: &Moments, reference: &Moments) {
        for (which, moments) in [group, reference].into_iter().enumerate() {
            self.n[which][at..at + run].fill(moments.n as f64);
            for (to, &nnz) in self.nnz[which][at..at + run].iter_mut().zip(&moments.nnz) {
                *to = nnz as f64;
            }
            self.mean[which][at..at + run].copy_from_slice(&moments.mean[..run]);
            self.m2[which][at..at + run].copy_from_slice(&moments.m2[..run]);
        }
    }

    /// Tests all pairs.
    pub(crate) fn test(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.wide {
            // SAFETY: the processor has AVX2, as `has_avx2` found.
            return unsafe { self.test_avx2() };
        }
        self.test_body();
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn test_avx2(&mut self) {
        self.test_body();
    }

    #[inline(always)]
    fn test_body(&mut self) {
        self.folds();
        let Some(method) = self.method else { return };
        self.statistics(method);
        two_sided_each(&self.t, &self.df, &mut self.p);
        for i in 0..self.t.len() {
            if !self.plain[i] {
                let of = |which: usize| GroupMoments { n: self.n[which][i] as u64, nnz: 0, mean: self.mean[which][i], m2: self.m2[which][i] };
                let one = test_unchecked(method, &of(0), &of(1));
                (self.t[i], self.p[i]) = (one.t, one.p);
            }
        }
    }

    /// As `test_unchecked`.
    #[inline(always)]
    fn statistics(&mut self, method: Method) {
        let len = self.t.len();
        let [n1, n2] = self.n.each_ref().map(|column| &column[..len]);
        let [mean1, mean2] = self.mean.each_ref().map(|column| &column[..len]);
        let [first, second] = self.m2.each_ref().map(|column| &column[..len]);
        let (t, df, error, plain) = (&mut self.t[..len], &mut self.df[..len], &mut self.error[..len], &mut self.plain[..len]);
        match method {
            Method::Student => {
                for i in 0..len {
                    let (v1, v2) = (first[i] / (n1[i] - 1.0), second[i] / (n2[i] - 1.0));
                    df[i] = n1[i] + n2[i] - 2.0;
                    error[i] = ((n1[i] - 1.0) * v1 + (n2[i] - 1.0) * v2) / df[i] * (1.0 / n1[i] + 1.0 / n2[i]);
                }
            }
            Method::Welch => {
                for i in 0..len {
                    let (v1, v2) = (first[i] / (n1[i] - 1.0), second[i] / (n2[i] - 1.0));
                    (df[i], error[i]) = welch(v1, n1[i], v2, n2[i]);
                }
            }
            Method::Overestim => {
                for i in 0..len {
                    let (v1, v2) = (first[i] / (n1[i] - 1.0), second[i] / (n2[i] - 1.0));
                    (df[i], error[i]) = welch(v1, n1[i], v2, n1[i]);
                }
            }
        }
        for i in 0..len {
            t[i] = (mean1[i] - mean2[i]) / error[i].sqrt();
            let square = error[i] * error[i];
            let normal = is_normal(square);
            plain[i] = normal & (t[i].abs() < f64::INFINITY) & (df[i] > 0.0) & (n1[i] >= 2.0) & (n2[i] >= 2.0);
        }
    }

    /// As `log_fold_change` and `pct_nz`.
    #[inline(always)]
    fn folds(&mut self) {
        let len = self.t.len();
        for (which, pct) in self.pct.iter_mut().enumerate() {
            for ((pct, nnz), n) in pct.iter_mut().zip(&self.nnz[which]).zip(&self.n[which]) {
                *pct = nnz / n;
            }
        }
        let [mean1, mean2] = self.mean.each_ref().map(|column| &column[..len]);
        let (fold, scale) = (&mut self.fold[..len], self.scale);
        let mut all = true;
        for i in 0..len {
            let (a, b) = (mean1[i] * scale, mean2[i] * scale);
            let ratio = (lanes::exp_m1(a) + 1e-9) / (lanes::exp_m1(b) + 1e-9);
            fold[i] = lanes::log2(ratio);
            all &= (a.abs() <= FOLD_RANGE) & (b.abs() <= FOLD_RANGE) & is_normal(ratio);
        }
        if !all {
            for i in 0..len {
                fold[i] = log_fold_change(mean1[i], mean2[i], scale);
            }
        }
    }
}

/// Degrees of freedom and squared error of Welch's test.
#[inline(always)]
fn welch(v1: f64, n1: f64, v2: f64, n2: f64) -> (f64, f64) {
    let (a, b) = (v1 / n1, v2 / n2);
    let error = a + b;
    (error * error / (a * a / (n1 - 1.0) + b * b / (n2 - 1.0)), error)
}

/// Whether `x` is positive, finite and not subnormal.
#[inline]
#[allow(clippy::manual_range_contains, reason = "without a branch, so that loops over it stay vectors")]
fn is_normal(x: f64) -> bool {
    (x >= f64::MIN_POSITIVE) & (x < f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of all kinds, the same each time.
    fn some(count: usize) -> Vec<(GroupMoments, GroupMoments)> {
        let mut random = fastrand::Rng::with_seed(7);
        let mut next = || random.f64();
        let mut one = |kind: usize| {
            let n = 2 + (next() * if kind.is_multiple_of(3) { 10.0 } else { 50_000.0 }) as u64;
            let spread = next() * 10f64.powi((next() * 8.0) as i32 - 4);
            match kind % 17 {
                0 => GroupMoments { n, nnz: 0, mean: 0.0, m2: 0.0 },
                1 => GroupMoments { n, nnz: n, mean: 1.0, m2: 0.0 },
                2 => GroupMoments { n, nnz: n, mean: 1e200, m2: 1e300 },
                3 => GroupMoments { n, nnz: n, mean: f64::NAN, m2: f64::NAN },
                4 => GroupMoments { n, nnz: n, mean: 1e-170, m2: 1e-300 },
                5 => GroupMoments { n, nnz: n, mean: -800.0, m2: f64::INFINITY },
                6 => GroupMoments { n, nnz: n / 3, mean: -next() * 900.0, m2: spread },
                _ => GroupMoments { n, nnz: n / 2, mean: next() * 3.0, m2: spread * n as f64 },
            }
        };
        (0..count).map(|i| (one(i), one(i / 17 + i % 5))).collect()
    }

    #[test]
    fn merged_as_one_after_the_other() {
        let of = some(500);
        let column = |n: u64, of: &[GroupMoments]| Moments {
            n,
            nnz: of.iter().map(|m| m.nnz).collect(),
            mean: of.iter().map(|m| m.mean).collect(),
            m2: of.iter().map(|m| m.m2).collect(),
        };
        for (n, other) in [(700, 31), (700, 0), (0, 31), (0, 0), (u64::MAX, 5)] {
            let a: Vec<_> = of.iter().map(|(a, _)| GroupMoments { n, ..*a }).collect();
            let b: Vec<_> = of.iter().map(|(_, b)| GroupMoments { n: other, ..*b }).collect();
            let mut both = Moments::new(a.len());
            both.merge(&column(n, &a), &column(other, &b), Share::of(n, other), 477);
            for i in 0..477 {
                let one = a[i].merged(&b[i]);
                let bits = |mean: f64, m2: f64| (mean.to_bits(), m2.to_bits());
                assert!(
                    (both.n, both.nnz[i]) == (one.n, one.nnz)
                        && (bits(both.mean[i], both.m2[i]) == bits(one.mean, one.m2) || one.mean.is_nan() || one.m2.is_nan()),
                    "{i}: {one:?}"
                );
            }
        }
    }

    #[test]
    fn as_one_after_the_other() {
        let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        // Ordinary pairs alone as well: one that is not sends its neighbours another way.
        let ordinary: Vec<_> = some(9000).into_iter().filter(|(a, b)| [a, b].iter().all(|m| m.mean > 0.0 && m.mean < 3.0 && m.m2 > 1e-5)).collect();
        assert!(ordinary.len() > 3000);
        for of in [some(5003), ordinary] {
            for (method, scale) in [(Method::Student, 1.0), (Method::Welch, 1.0), (Method::Overestim, 2f64.ln())] {
                for wide in [crate::kernel::has_avx2(), false] {
                    let mut pairs = Pairs::new(Some(method), scale, of.len());
                    pairs.wide = wide;
                    for (at, (group, reference)) in of.iter().enumerate() {
                        let one = |m: &GroupMoments| Moments { n: m.n, nnz: vec![m.nnz], mean: vec![m.mean], m2: vec![m.m2] };
                        pairs.set(at, 1, &one(group), &one(reference));
                    }
                    pairs.test();
                    for (at, (group, reference)) in of.iter().enumerate() {
                        let one = test_unchecked(method, group, reference);
                        let fold = log_fold_change(group.mean, reference.mean, scale);
                        let got = (pairs.t[at], pairs.p[at], pairs.fold[at]);
                        assert!(same(got.0, one.t) && same(got.1, one.p) && same(got.2, fold), "{method:?} {group:?} {reference:?}: {got:?} {one:?} {fold}");
                        assert!(same(pairs.pct[0][at], group.pct_nz()) && same(pairs.pct[1][at], reference.pct_nz()));
                    }
                }
            }
        }
    }
}
