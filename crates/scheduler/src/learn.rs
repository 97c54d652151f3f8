//! Robust estimators for few and noisy measurements.

use std::collections::VecDeque;

use crate::message::Seconds;

/// The first slices of a process on a drive take several times as long as later ones (Skytether paper,
/// Figure 6: the first five).
pub const WARM_UP: u32 = 5;

/// How many measurements the average is taken of.
const WINDOW: usize = 25;

/// How many of them make an average that one outlier does not move far.
pub const KNOWN: usize = 4;

/// A factor (measured by predicted) that is steady: the average of the middle half of the last measurements. The
/// warm-up ones are believed for as long as there are no others, and by half: they can only be too large.
#[derive(Debug, Clone, Default)]
pub struct Robust {
    seen: u32,
    warm: VecDeque<f64>,
    window: VecDeque<f64>,
    /// The average of the window.
    middle: Option<f64>,
    /// What something that still runs shows.
    floor: f64,
}

impl Robust {
    /// Adds a measurement; ignores one that is not a positive number.
    pub fn add(&mut self, factor: f64) {
        if !(factor.is_finite() && factor > 0.0) {
            return;
        }
        self.seen = self.seen.saturating_add(1);
        self.floor = 0.0;
        if self.seen <= WARM_UP {
            self.warm.push_back(factor);
            return;
        }
        self.window.push_back(factor);
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        self.middle = middle(&self.window);
    }

    /// Predictions are `factor` times as large from now on, so earlier measurements count as smaller by that factor.
    pub fn predicted(&mut self, factor: f64) {
        if factor.is_finite() && factor > 0.0 {
            self.warm.iter_mut().chain(&mut self.window).for_each(|value| *value /= factor);
            self.floor /= factor;
            self.middle = middle(&self.window);
        }
    }

    /// Something that still runs shows the factor to be at least this, until the next measurement.
    pub fn at_least(&mut self, factor: f64) {
        if factor.is_finite() {
            self.floor = self.floor.max(if self.seen < WARM_UP { half(factor) } else { factor });
        }
    }

    /// What ran is over, however it ended.
    pub fn ended(&mut self) {
        self.floor = 0.0;
    }

    /// Whether the warm-up is over and there are enough measurements after it.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.window.len() >= KNOWN
    }

    /// How many measurements of the warm-up are still to come.
    #[must_use]
    pub fn cold(&self) -> u32 {
        WARM_UP.saturating_sub(self.seen)
    }

    /// The factor; `None` before any measurement.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        let known = self.measured();
        if self.floor > 0.0 { Some(known.unwrap_or(1.0).max(self.floor)) } else { known }
    }

    fn measured(&self) -> Option<f64> {
        if let Some(middle) = self.middle {
            return Some(middle);
        }
        // Warm-up: the least slow one, half way (as factors go) to what was predicted where it is slower than that.
        let least = self.warm.iter().copied().reduce(f64::min)?;
        Some(half(least))
    }
}

/// A factor of the warm-up counts half of its excess over 1, on a logarithmic scale.
fn half(factor: f64) -> f64 {
    if factor > 1.0 { factor.sqrt() } else { factor }
}

/// The average without the least and the greatest quarter: a median that makes use of more than one value.
fn middle(values: &VecDeque<f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let cut = sorted.len().div_ceil(4).min(sorted.len().saturating_sub(1) / 2);
    let kept = sorted.get(cut..sorted.len() - cut).filter(|kept| !kept.is_empty())?;
    Some(kept.iter().sum::<f64>() / kept.len() as f64)
}

/// How many times its processor time something takes: 1 on an idle device. It changes while a query runs, so that the
/// last measurements count most.
#[derive(Debug, Clone)]
pub struct Load {
    value: f64,
    measured_at: Seconds,
}

impl Default for Load {
    fn default() -> Self {
        Self { value: 1.0, measured_at: 0.0 }
    }
}

/// Share of a new measurement.
const FRESH: f64 = 0.5;

/// Seconds without measurement after which a load above 1 is believed by half.
const HALF_LIFE: Seconds = 4.0;

impl Load {
    /// One more measurement.
    pub fn add(&mut self, now: Seconds, load: f64) {
        if load.is_finite() && load > 0.0 {
            self.value += FRESH * (load.max(1.0) - self.value);
            self.measured_at = now;
        }
    }

    /// What was only guessed is measured now.
    pub fn set(&mut self, now: Seconds, load: f64) {
        if load.is_finite() && load > 0.0 {
            *self = Self { value: load.max(1.0), measured_at: now };
        }
    }

    /// Lets what was measured long ago fade.
    pub fn forget(&mut self, now: Seconds) {
        let idle = now - self.measured_at;
        if idle > HALF_LIFE {
            self.value = 1.0 + (self.value - 1.0) * 0.5;
            self.measured_at = now;
        }
    }

    /// The load.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.value
    }
}

/// How much comes per second, of late.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rate {
    sum: f64,
    at: Seconds,
}

/// Seconds over which it is averaged.
const LATE: Seconds = 0.1;

impl Rate {
    /// Adds an amount that has arrived.
    pub fn add(&mut self, now: Seconds, amount: f64) {
        self.sum = self.sum * fade(now - self.at) + amount;
        self.at = now;
    }

    /// How much comes per second.
    #[must_use]
    pub fn rate(&self, now: Seconds) -> f64 {
        self.sum * fade(now - self.at) / LATE
    }
}

fn fade(passed: Seconds) -> f64 {
    (-passed.max(0.0) / LATE).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_first_slices_are_set_aside() {
        let mut factor = Robust::default();
        assert_eq!(factor.value(), None);
        for _ in 0..WARM_UP {
            factor.add(9.0);
            assert_eq!(factor.value(), Some(3.0), "half believed");
        }
        factor.add(1.1);
        assert_eq!(factor.value(), Some(1.1), "and forgotten");
        for later in [1.0, 1.2, 40.0, 1.15] {
            factor.add(later);
        }
        assert!((factor.value().unwrap() - 1.15).abs() < 1e-9, "one outlier changes nothing: {factor:?}");
        factor.predicted(2.0);
        assert!((factor.value().unwrap() - 0.575).abs() < 1e-9, "{factor:?}");
    }

    #[test]
    fn many_measurements_say_more_than_few() {
        let mut factor = Robust::default();
        // The factor alternates between one and a half and a half, with values in between. Its average is one.
        for at in 0..60 {
            factor.add([1.5, 0.5, 1.0, 1.2, 0.8][at % 5]);
        }
        assert!((factor.value().unwrap() - 1.0).abs() < 0.05, "{factor:?}");
    }

    #[test]
    fn running_slices_count_until_they_are_done() {
        let mut factor = Robust::default();
        factor.at_least(4.0);
        assert_eq!(factor.value(), Some(2.0), "by half, during the warm-up");
        for _ in 0..=WARM_UP {
            factor.add(1.0);
        }
        assert_eq!(factor.value(), Some(1.0));
        factor.at_least(0.5);
        assert_eq!(factor.value(), Some(1.0), "it is no news that a slice has had half of its time");
        factor.at_least(4.0);
        assert_eq!(factor.value(), Some(4.0));
    }

    #[test]
    fn nonsense_is_not_learnt() {
        let mut factor = Robust::default();
        for nonsense in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            factor.add(nonsense);
        }
        assert_eq!(factor.value(), None);
        factor.at_least(f64::INFINITY);
        assert_eq!(factor.value(), None);
        let mut load = Load::default();
        load.add(1.0, f64::NAN);
        load.add(1.0, f64::INFINITY);
        assert_eq!(load.value(), 1.0);
    }

    #[test]
    fn rate_follows_measurements() {
        let mut rate = Rate::default();
        for at in 0..100 {
            rate.add(f64::from(at) * 0.01, 5.0);
        }
        assert!((rate.rate(0.99) / 500.0 - 1.0).abs() < 0.06, "{}", rate.rate(0.99));
        assert!(rate.rate(1.5) < 5.0);
    }

    #[test]
    fn a_load_is_believed_soon_and_forgotten_slowly() {
        let mut load = Load::default();
        for at in 0..8 {
            load.add(1.0 + f64::from(at) / 10.0, 9.0);
        }
        let busy = load.value();
        assert!(busy > 8.5);
        load.forget(2.0);
        assert_eq!(load.value(), busy);
        load.forget(6.0);
        assert_eq!(load.value(), (busy + 1.0) / 2.0);
        for at in 0..10 {
            load.add(7.0 + f64::from(at), 1.0);
        }
        assert!(load.value() < 1.1);
    }
}
