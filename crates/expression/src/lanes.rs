//! Exponentials, logarithms and erfc without a branch. A loop over them becomes vector instructions, as one over
//! [`crate::log1p`] does. The bits are the same on every machine: nothing here depends on the C library, and nothing is
//! fused.
//!
//! Errors are a few units in the last place within the stated ranges. Beyond them the results mean nothing, so the
//! caller must check its arguments first.

use std::f64::consts::LOG2_E;

/// ln 2 in two parts; the first has 32 bits, so that its products with exponents are exact.
const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Adding this and taking it away again rounds to the nearest integer.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

#[inline(always)]
fn rounded(x: f64) -> f64 {
    (x + ROUNDER) - ROUNDER
}

/// `2^n` of a whole number from -1022 to 1023.
#[inline(always)]
fn power_of_two(n: f64) -> f64 {
    // The sum's last bits are the number itself, and the shift leaves only them.
    f64::from_bits((n + (ROUNDER + 1023.0)).to_bits() << 52)
}

/// `n` and `e^r - 1` with `x = n ln 2 + r` and `|r| <= ln 2 / 2`.
#[inline(always)]
fn reduced(x: f64) -> (f64, f64) {
    let n = rounded(x * LOG2_E);
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    // Taylor's series: the term after the last is below 5e-18.
    const C: [f64; 12] = {
        let mut c = [0.5; 12];
        let mut k = 1;
        while k < 12 {
            c[k] = c[k - 1] / (k + 2) as f64;
            k += 1;
        }
        c
    };
    let q = C.iter().rev().skip(1).fold(C[11], |sum, c| sum * r + c);
    (n, r + r * r * q)
}

/// `e^x` for -750 <= x <= 709; 0 where that underflows.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    let (n, p) = reduced(x);
    // In two steps, as 2^n itself may underflow where the product does not.
    let half = rounded(n * 0.5);
    (1.0 + p) * power_of_two(half) * power_of_two(n - half)
}

/// `e^x - 1` for |x| <= 700.
#[inline(always)]
pub(crate) fn exp_m1(x: f64) -> f64 {
    let (n, p) = reduced(x);
    let scale = power_of_two(n);
    scale * p + (scale - 1.0)
}

/// `k` and `f` with `u = 2^k (1 + f)` and `sqrt(1/2) <= 1 + f < sqrt(2)`, for normal positive `u`.
#[inline(always)]
pub(crate) fn split(u: f64) -> (f64, f64) {
    const HALF_ROOT: u64 = 0x3fe6_a09e_667f_3bcd;
    const TWO_52: f64 = 4_503_599_627_370_496.0;
    let bits = u.to_bits();
    let above = bits.wrapping_add(0x3ff0_0000_0000_0000 - HALF_ROOT);
    let f = f64::from_bits((above & 0x000f_ffff_ffff_ffff) + HALF_ROOT) - 1.0;
    // There is no vector conversion from 64-bit integers before AVX-512: plant k in the mantissa of 2^52.
    (f64::from_bits((above >> 52) | TWO_52.to_bits()) - (TWO_52 + 1023.0), f)
}

/// `s` and `R` with `ln(1 + f) = s (2 + R)`, for `f` as [`split`] gives it (the series is that of fdlibm's `log`).
#[inline(always)]
pub(crate) fn log_series(f: f64) -> (f64, f64) {
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = w * (0.399_999_999_994_094_2 + w * (0.222_221_984_321_497_84 + w * 0.153_138_376_992_093_73));
    let odd = z * (0.666_666_666_666_673_5 + w * (0.285_714_287_436_623_9 + w * (0.181_835_721_616_180_5 + w * 0.147_981_986_051_165_86)));
    (s, even + odd)
}

/// `ln(1 + f)` for `f` as [`split`] gives it, with less rounding than `s (2 + R)`.
#[inline(always)]
fn log_of(f: f64) -> f64 {
    let (s, r) = log_series(f);
    let half = 0.5 * f * f;
    s * (half + r) - half + f
}

/// The logarithm to base 2 of a normal positive number; exact for powers of two.
#[inline(always)]
pub(crate) fn log2(x: f64) -> f64 {
    let (k, f) = split(x);
    k + log_of(f) * LOG2_E
}

/// `ln(1 + x)` for `x >= 0`.
#[inline(always)]
pub(crate) fn ln_1p(x: f64) -> f64 {
    let u = 1.0 + x;
    // What u has lost of x.
    let lost = if x < 1.0 { x - (u - 1.0) } else { 1.0 - (u - x) } / u;
    let (k, f) = split(u);
    k * LN_2_HIGH + (log_of(f) + (k * LN_2_LOW + lost))
}

/// `e^(x^2) erfc(x)` for 0 <= x <= 28: `(1 + 2x)` times it is a polynomial in `(x - 4) / (x + 4)` (as in
/// Shepherd & Laframboise, Math. Comp. 36:249, 1981; the coefficients are a Chebyshev fit of degree 23 with 60
/// digits, whose error is 2e-18).
#[inline(always)]
pub(crate) fn erfcx(x: f64) -> f64 {
    const C: [f64; 24] = [
        1.263_782_858_042_137e-9,
        1.868_487_385_473_519e-9,
        -1.409_198_282_255_575_5e-8,
        -1.799_947_545_903_142e-8,
        1.100_599_619_864_005_7e-7,
        7.471_952_780_500_971e-8,
        -8.254_699_744_871_162e-7,
        2.937_785_494_344_378_6e-7,
        5.709_784_760_966_506e-6,
        -1.122_204_631_666_900_5e-5,
        -2.439_924_428_312_988e-5,
        0.000_150_621_697_046_783_55,
        -0.000_199_256_684_323_891_53,
        -0.000_757_773_297_366_914_6,
        0.005_031_969_975_753_176,
        -0.016_197_734_055_994_49,
        0.037_167_515_537_770_26,
        -0.066_330_365_812_409_5,
        0.093_732_834_998_330_23,
        -0.101_039_066_036_294_59,
        0.068_097_054_254_693_23,
        0.015_379_652_102_619_558,
        -0.139_621_116_840_562_53,
        1.232_995_118_625_552_6,
    ];
    let q = (x - 4.0) / (x + 4.0);
    C.iter().skip(1).fold(C[0], |sum, c| sum * q + c) / (1.0 + 2.0 * x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest relative error over numbers from `from` to `to`, close together.
    fn worst(from: f64, to: f64, ours: impl Fn(f64) -> f64, theirs: impl Fn(f64) -> f64) -> f64 {
        let steps = 200_003;
        let of = |i: i32| {
            let x = from + (to - from) * (f64::from(i) / f64::from(steps));
            let (a, b) = (ours(x), theirs(x));
            if a == b { 0.0 } else { ((a - b) / b).abs() }
        };
        (0..=steps).map(of).fold(0.0, f64::max)
    }

    #[test]
    fn as_the_c_library_has_them() {
        for (name, error) in [
            ("exp", worst(-700.0, 700.0, exp, f64::exp)),
            ("exp near 0", worst(-1.0, 1.0, exp, f64::exp)),
            ("exp_m1", worst(-40.0, 700.0, exp_m1, f64::exp_m1)),
            ("exp_m1 near 0", worst(-1e-3, 1e-3, exp_m1, f64::exp_m1)),
            ("log2", worst(1e-3, 1e6, log2, f64::log2)),
            ("log2 near 1", worst(0.9, 1.1, log2, f64::log2)),
            ("ln_1p", worst(0.0, 10.0, ln_1p, f64::ln_1p)),
            ("ln_1p near 0", worst(0.0, 1e-9, ln_1p, f64::ln_1p)),
            ("erfcx", worst(0.0, 5.0, erfcx, |x| libm::erfc(x) * (x * x).exp())),
        ] {
            let bound = if name == "erfcx" { 1e-14 } else { 1e-15 };
            println!("{name}: {error:e}");
            assert!(error < bound, "{name}: {error:e}");
        }
    }

    #[test]
    fn far_out() {
        for x in [-745.0, -744.0, -740.3, -708.5] {
            // The last bits of subnormal numbers are fewer.
            assert!((exp(x) - x.exp()).abs() <= 5e-324 + x.exp() * 1e-15, "{x}: {:e} {:e}", exp(x), x.exp());
        }
        assert_eq!(exp(-750.0), 0.0);
        for k in -300..300 {
            assert_eq!(log2(2f64.powi(k)), f64::from(k));
        }
        for x in [1e-300, 1e-17, 1e10, 1e300] {
            assert!((ln_1p(x) / x.ln_1p() - 1.0).abs() < 1e-15, "{x}");
        }
        // Its continued fraction, which converges quickly there.
        for x in [6.0, 10.0, 20.0, 28.0f64] {
            let fraction = (1..200).rev().fold(x, |f, k| x + f64::from(k) * 0.5 / f);
            let expected = 1.0 / (fraction * std::f64::consts::PI.sqrt());
            assert!((erfcx(x) / expected - 1.0).abs() < 1e-15, "{x}");
        }
    }
}
