//! The two-sided p-value of Student's t, `I_x(df / 2, 1 / 2)` with `x = df / (df + t^2)`.
//!
//! For many degrees of freedom: the expansion BGRAT of DiDonato & Morris (ACM TOMS 18:360, 1992, section 5). With b =
//! 1/2 it needs only an erfc and an exponential. Elsewhere: the power series, the continued fraction (Lentz), or one
//! minus the power series of the complement. The relative error is below 1e-12 down to 1e-300; most of it comes from
//! the conditioning of the exponential itself.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::lanes;

/// BGRAT is used from this `df / 2` on.
const LARGE: f64 = 15.0;

/// BGRAT is used up to this `-ln x`; its terms fall as powers of `(ln x / 2 pi)^2`.
const NEAR: f64 = 2.0;

/// `e^NEAR - 1`, a little less.
const NEAR_SQUARE: f64 = 6.389;

/// Terms of BGRAT at most: enough for `NEAR`.
const TERMS: usize = 16;

/// p-values that are computed together, so that their data stays in the first-level cache.
const BLOCK: usize = 64;

/// `exp(-u)` is 0 from 745.2 on; BGRAT's u is at most 0.5 below `-a ln x`.
const UNDERFLOW: f64 = 750.0;

/// BGRAT's coefficients for b = 1/2: `p_n = (b - 1) / (2n + 1)! + 1/n sum_{m=1}^{n-1} (m b - n) / (2m + 1)! p_{n-m}`.
const P: [f64; TERMS] = {
    let mut odd_factorial = [1.0; TERMS];
    let mut n = 1;
    while n < TERMS {
        odd_factorial[n] = odd_factorial[n - 1] * ((2 * n) as f64) * ((2 * n + 1) as f64);
        n += 1;
    }
    let mut p = [1.0; TERMS];
    n = 1;
    while n < TERMS {
        let mut sum = 0.0;
        let mut m = 1;
        while m < n {
            sum += (m as f64 * 0.5 - n as f64) / odd_factorial[m] * p[n - m];
            m += 1;
        }
        p[n] = -0.5 / odd_factorial[n] + sum / n as f64;
        n += 1;
    }
    p
};

/// The probability that a t-distributed number with `df` degrees of freedom is further from 0 than `t`.
///
/// NaN where `t` is NaN or `df` is not positive; `df` may be infinite (the normal distribution) and need not be whole.
#[must_use]
pub fn two_sided(t: f64, df: f64) -> f64 {
    let t = t.abs();
    if t.is_nan() || df.is_nan() || df <= 0.0 {
        return f64::NAN;
    }
    if t == 0.0 {
        return 1.0;
    }
    if t.is_infinite() {
        return 0.0;
    }
    if df > 1e18 {
        return libm::erfc(t * FRAC_1_SQRT_2);
    }
    let a = 0.5 * df;
    // With r = t / sqrt(df): x = 1 / (1 + r^2) and y = 1 - x = r^2 / (1 + r^2).
    let (log_x, x, y) = if t < 1e100 && df > 1e-100 {
        let square = t * t / df;
        let y = square / (1.0 + square);
        // All of the formulas below have the factor exp(a ln x) or less, which is 0 here: -ln x >= y.
        if a * y > UNDERFLOW {
            return 0.0;
        }
        (-lanes::ln_1p(square), 1.0 / (1.0 + square), y)
    } else {
        let log = 2.0 * (t.ln() - 0.5 * df.ln());
        (if log > 0.0 { -log - (-log).exp().ln_1p() } else { -log.exp().ln_1p() }, 1.0 / (1.0 + log.exp()), 1.0 / (1.0 + (-log).exp()))
    };
    if a * -log_x > UNDERFLOW {
        return 0.0;
    }
    let p = if a >= LARGE && -log_x <= NEAR {
        bgrat(&[a], &[log_x])[0]
    } else if x < 0.3 {
        tail(a, log_x, y) / a * series(a + 0.5, a + 1.0, x)
    } else if x > (a + 1.0) / (a + 2.5) {
        1.0 - tail(a, log_x, y) * 2.0 * series(a + 0.5, 1.5, y)
    } else {
        tail(a, log_x, y) / a * fraction(a, x)
    };
    p.clamp(0.0, 1.0)
}

/// [`two_sided`] of every `t` and `df`, the same to the last bit, several at a time where BGRAT serves. The
/// slices are of one length.
#[inline(always)]
pub(crate) fn two_sided_each(t: &[f64], df: &[f64], p: &mut [f64]) {
    for ((t, df), p) in t.chunks(BLOCK).zip(df.chunks(BLOCK)).zip(p.chunks_mut(BLOCK)) {
        let (mut a, mut log_x, mut near) = ([LARGE; BLOCK], [0.0; BLOCK], [false; BLOCK]);
        // A single length for all slices, so that no index below needs a bounds check.
        let len = t.len().min(BLOCK);
        let (t, df, p) = (&t[..len], &df[..len], &mut p[..len]);
        for i in 0..len {
            let square = t[i] * t[i] / df[i];
            a[i] = 0.5 * df[i];
            log_x[i] = -lanes::ln_1p(square);
            // False for NaN.
            near[i] = (a[i] >= LARGE) & (df[i] <= 1e18) & (square > 0.0) & (square <= NEAR_SQUARE) & (a[i] * -log_x[i] <= UNDERFLOW);
        }
        let together = bgrat(&a, &log_x);
        for i in 0..len {
            p[i] = if near[i] { together[i].clamp(0.0, 1.0) } else { two_sided(t[i], df[i]) };
        }
    }
}

/// `x^a y^(1/2) / B(a, 1/2)`.
fn tail(a: f64, log_x: f64, y: f64) -> f64 {
    (a * log_x).exp() * y.sqrt() * gamma_ratio(a) / PI.sqrt()
}

/// `sum_n (p)_n / (q)_n z^n` for 0 <= z < 1: all terms are positive.
fn series(p: f64, q: f64, z: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0, 1.0, 0.0);
    // Terms may grow at first where p > q, so the end is where they are small and fall.
    while n < 10_000.0 {
        let ratio = (p + n) / (q + n) * z;
        term *= ratio;
        sum += term;
        if ratio < 1.0 && term < sum * (1.0 - ratio.max(z)) * 1e-17 {
            break;
        }
        n += 1.0;
    }
    sum
}

/// The continued fraction of `I_x(a, 1/2)`, by the modified method of Lentz.
fn fraction(a: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    const B: f64 = 0.5;
    let away = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / away(1.0 - (a + B) * x / (a + 1.0));
    let mut h = d;
    let mut m = 1.0;
    while m < 1000.0 {
        let two = 2.0 * m;
        let even = m * (B - m) * x / ((a + two - 1.0) * (a + two));
        d = 1.0 / away(1.0 + even * d);
        c = away(1.0 + even / c);
        h *= d * c;
        let odd = -(a + m) * (a + B + m) * x / ((a + two) * (a + two + 1.0));
        d = 1.0 / away(1.0 + odd * d);
        c = away(1.0 + odd / c);
        let step = d * c;
        h *= step;
        if (step - 1.0).abs() < 2e-16 {
            break;
        }
        m += 1.0;
    }
    h
}

/// `I_x(a, 1/2)` for large `a`. In place of the paper's `J_n` this sums `H J_n / e^-u`, so that nothing can overflow
/// and only the last step may underflow.
#[inline(always)]
fn bgrat<const N: usize>(a: &[f64; N], log_x: &[f64; N]) -> [f64; N] {
    const B: f64 = 0.5;
    let (mut u, mut term, mut power, mut scale, mut half) = ([0.0; N], [0.0; N], [0.0; N], [0.0; N], [0.0; N]);
    for i in 0..N {
        let t = a[i] - 0.25;
        u[i] = -t * log_x[i];
        let root = u[i].sqrt();
        term[i] = lanes::erfcx(root);
        power[i] = root / PI.sqrt();
        scale[i] = 1.0 / (4.0 * t * t);
        half[i] = 0.25 * log_x[i] * log_x[i];
    }
    let mut sum = term;
    for (n, p) in P.iter().enumerate().skip(1) {
        let even = 2.0 * (n - 1) as f64 + B;
        let mut more = false;
        for i in 0..N {
            term[i] = (even * (even + 1.0) * term[i] + (u[i] + even + 1.0) * power[i]) * scale[i];
            power[i] *= half[i];
            let add = p * term[i];
            sum[i] += add;
            more |= add.abs() > sum[i].abs() * 1e-17;
        }
        if !more {
            break;
        }
    }
    for i in 0..N {
        sum[i] = lanes::exp(-u[i]) * (sum[i] * gamma_ratio_over_root(a[i] - 0.25));
    }
    sum
}

/// `Gamma(a + 1/2) / Gamma(a)`.
fn gamma_ratio(a: f64) -> f64 {
    // Up to where the expansion holds, by Gamma(z + 1) = z Gamma(z).
    let (mut a, mut factor) = (a, 1.0);
    while a < 20.0 {
        factor *= a / (a + 0.5);
        a += 1.0;
    }
    let t = a - 0.25;
    factor * gamma_ratio_over_root(t) * t.sqrt()
}

/// `Gamma(a + 1/2) / (Gamma(a) sqrt(t))` with `t = a - 1/4`, from `a` = 15 on: an expansion in even powers
/// of `1 / t` (Fields 1966).
#[inline(always)]
fn gamma_ratio_over_root(t: f64) -> f64 {
    let w = 1.0 / (t * t);
    1.0 + w
        * (1.0 / 64.0
            + w * (-19.0 / 8192.0
                + w * (631.0 / 524_288.0
                    + w * (-174_317.0 / 134_217_728.0 + w * (20_491_783.0 / 8_589_934_592.0 - w * (7_334_801_895.0 / 1_099_511_627_776.0))))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_computed_with_many_digits() {
        let (mut worst, mut count) = (0f64, 0);
        for line in include_str!("../tests/data/students.csv").lines().skip(1) {
            let numbers: Vec<f64> = line.split(',').map(|n| n.parse().unwrap()).collect();
            let [t, df, p] = numbers[..] else { panic!("{line}") };
            let error = (two_sided(t, df) / p - 1.0).abs();
            assert!(error < 5e-13, "t {t} df {df}: {:e} for {p:e}", two_sided(t, df));
            worst = worst.max(error);
            count += 1;
        }
        println!("{count} values, largest relative error {worst:e}");
        assert!(count > 190);
    }

    #[test]
    fn several_at_a_time_are_the_same() {
        // All regions, boundaries and nonsense side by side, in lengths that are no multiple of a block.
        let dfs = [0.5, 3.0, 29.9, 30.0, 31.5, 57.3, 1e3, 49_998.0, 1e9, 1e17, 1e18, 2e18, f64::INFINITY, 0.0, -3.0, f64::NAN];
        let (mut t, mut df) = (vec![], vec![]);
        for i in 0..20_011u32 {
            let r = f64::from(i.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
            t.push(match i % 23 {
                0 => 0.0,
                1 => f64::NAN,
                2 => f64::INFINITY,
                3 => 1e200,
                4 => 1e-200,
                _ => (r - 0.5) * 10f64.powi((i % 5) as i32),
            });
            df.push(dfs[i as usize % dfs.len()]);
        }
        let mut p = vec![0.0; t.len()];
        two_sided_each(&t, &df, &mut p);
        for ((&t, &df), &p) in t.iter().zip(&df).zip(&p) {
            let one = two_sided(t, df);
            assert!(p.to_bits() == one.to_bits() || (p.is_nan() && one.is_nan()), "{t} {df}: {p:e} {one:e}");
        }
    }

    #[test]
    fn closed_forms() {
        for t in [1e-9f64, 0.3, 1.0, 2.5, 40.0, 1e6, 1e150, 1e300] {
            let cauchy = 2.0 / PI * (1.0 / t).atan();
            assert!((two_sided(t, 1.0) / cauchy - 1.0).abs() < 1e-13, "{t}: {} {cauchy}", two_sided(t, 1.0));
        }
        for t in [1e-9f64, 0.3, 1.0, 2.5, 20.0] {
            let exact = 1.0 - t / (2.0 + t * t).sqrt();
            assert!((two_sided(t, 2.0) - exact).abs() < 3e-16 + 1e-13 * exact, "{t}");
        }
    }

    #[test]
    fn ends_and_nonsense() {
        assert_eq!(two_sided(0.0, 5.0), 1.0);
        assert_eq!(two_sided(f64::INFINITY, 5.0), 0.0);
        assert_eq!(two_sided(-2.0, 7.5), two_sided(2.0, 7.5));
        assert!(two_sided(f64::NAN, 5.0).is_nan() && two_sided(1.0, 0.0).is_nan() && two_sided(1.0, f64::NAN).is_nan());
        assert!((two_sided(1.959_963_984_540_054, f64::INFINITY) - 0.05).abs() < 1e-15);
        assert_eq!(two_sided(60.0, 1e7), 0.0);
        for (t, df) in [(1e308, 1e-3), (1e-308, 1e308), (5e-324, 5e-324), (1e308, 1e308)] {
            assert!((0.0..=1.0).contains(&two_sided(t, df)), "{t} {df}");
        }
    }

    #[test]
    fn regions_meet() {
        // Either side of every boundary the value must fall smoothly with t.
        for df in [0.5, 1.0, 3.0, 29.0, 29.999, 30.0, 30.001, 39.9, 40.1, 1e4] {
            let mut last = 1.0;
            for i in 1..4000 {
                let p = two_sided(f64::from(i) * 0.01, df);
                assert!(p < last, "df {df} t {} {p} {last}", f64::from(i) * 0.01);
                assert!(p > 0.0 || df > 1000.0);
                last = p.max(1e-300);
                if p < 1e-290 {
                    break;
                }
            }
        }
    }
}
