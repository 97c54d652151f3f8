//! Factors per kind of operator on a CSE, learnt from annotations and kept from one query to the next.
//!
//! While a query runs, measurements cover whole slices, which pass through all operators of a level in one pipeline. At
//! its end the annotation reports the share of each operator. Together they give the factor between each kind's time
//! and its prior. The next query then knows a device with slow hash tables or fast decoding, whatever it asks.
//! `Compute` keeps its prior: one expression says nothing about another.

use crate::work::{Kind, Operator, Priors};

/// How many kinds there are.
const KINDS: usize = 6;

/// The largest factor of a kind, and the inverse of the smallest one. A larger one means that the report is wrong.
const FARTHEST: f64 = 4.0;

/// Weight of a query against what is known from those before, as factors go.
const FRESH: f64 = 0.5;

/// The factor between each operator kind's time on a CSE and its prior; 1 if unknown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kinds([f64; KINDS]);

impl Default for Kinds {
    fn default() -> Self {
        Self([1.0; KINDS])
    }
}

/// An operator's part of a query, from an annotation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Had {
    /// The operator, as its cost is reckoned.
    pub operator: Operator,
    /// Rows that it read.
    pub rows: f64,
    /// What it took, in whatever unit is the same for all of them: only shares count, as operators' own clocks run on
    /// while others have the processor.
    pub share: f64,
}

fn place(kind: Kind) -> usize {
    match kind {
        Kind::Decode => 0,
        Kind::DecodeSparse => 1,
        Kind::Compute => 2,
        Kind::HashAggregate { .. } => 3,
        Kind::Moments => 4,
        Kind::TopK => 5,
    }
}

impl Kinds {
    /// How many times its prior an operator of that kind takes.
    #[must_use]
    pub fn of(&self, kind: Kind) -> f64 {
        self.0[place(kind)]
    }

    /// Seconds of a core of this machine per row that `operator` reads, if it is as on this CSE.
    #[must_use]
    pub fn seconds_per_row(&self, operator: &Operator, priors: &Priors) -> f64 {
        operator.seconds_per_row(priors) * self.of(operator.kind)
    }

    /// The factors after a query whose slices took `factor` times the predicted time. `had` holds each operator's share
    /// of it. Shares and factors that are not finite and positive are ignored.
    #[must_use]
    pub fn learnt(self, priors: &Priors, factor: f64, had: &[Had]) -> Self {
        let foretold = |had: &Had| had.rows * self.seconds_per_row(&had.operator, priors);
        // Per kind: predicted time, and measured share.
        let mut kinds = [(0.0, 0.0); KINDS];
        for had in had {
            let foretold = foretold(had);
            if had.share.is_finite() && had.share > 0.0 && foretold.is_finite() && foretold > 0.0 {
                let kind = &mut kinds[place(had.operator.kind)];
                *kind = (kind.0 + foretold, kind.1 + had.share);
            }
        }
        let (all, shares) = kinds.iter().fold((0.0, 0.0), |(all, shares), (foretold, share)| (all + foretold, shares + share));
        if !(factor.is_finite() && factor > 0.0 && shares > 0.0) {
            return self;
        }
        let mut known = self.0;
        // The time of one expression says nothing about another.
        kinds[place(Kind::Compute)] = (0.0, 0.0);
        for (known, (foretold, share)) in known.iter_mut().zip(kinds).filter(|(_, (foretold, _))| *foretold > 0.0) {
            let found = *known * factor * (share / shares) / (foretold / all);
            *known = (known.powf(1.0 - FRESH) * found.powf(FRESH)).clamp(1.0 / FARTHEST, FARTHEST);
        }
        Self(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::PRIORS;

    const DECODE: Operator = Operator { kind: Kind::Decode, units_per_row: 24.0 };
    const AGGREGATE: Operator = Operator { kind: Kind::HashAggregate { groups: 10.0 }, units_per_row: 1.0 };

    /// What a device reports of a query over `rows` rows, if its operators take `truth` times their priors and its
    /// clock runs three times too fast.
    fn query(known: Kinds, truth: [f64; 2], rows: f64) -> Kinds {
        let operators = [DECODE, AGGREGATE];
        let took = |at: usize| rows * operators[at].seconds_per_row(&PRIORS) * truth[at];
        let foretold: f64 = operators.iter().map(|operator| rows * known.seconds_per_row(operator, &PRIORS)).sum();
        let had = [0, 1].map(|at| Had { operator: operators[at], rows, share: 3.0 * took(at) });
        known.learnt(&PRIORS, (took(0) + took(1)) / foretold, &had)
    }

    #[test]
    fn kinds_are_distinguished_although_their_sum_is_as_expected() {
        // Their sum is exactly as predicted.
        let lower = DECODE.seconds_per_row(&PRIORS);
        let upper = AGGREGATE.seconds_per_row(&PRIORS);
        let truth = [0.5, 1.0 + 0.5 * lower / upper];
        let mut known = Kinds::default();
        for _ in 0..8 {
            known = query(known, truth, 1e6);
        }
        assert!((known.of(Kind::Decode) / truth[0] - 1.0).abs() < 0.02, "{known:?}");
        assert!((known.of(Kind::HashAggregate { groups: 1e6 }) / truth[1] - 1.0).abs() < 0.02, "whatever the groups, it is the same kind: {known:?}");
        assert_eq!([Kind::DecodeSparse, Kind::Compute, Kind::Moments, Kind::TopK].map(|kind| known.of(kind)), [1.0; 4], "of which nothing was told");
    }

    #[test]
    fn one_query_counts_by_half_and_changes_are_followed() {
        let once = query(Kinds::default(), [4.0, 4.0], 1e6);
        assert!((once.of(Kind::Decode) - 2.0).abs() < 1e-9 && (once.of(AGGREGATE.kind) - 2.0).abs() < 1e-9, "{once:?}");
        let mut known = once;
        for _ in 0..8 {
            known = query(known, [1.0, 1.0], 1e6);
        }
        assert!((known.of(Kind::Decode) - 1.0).abs() < 0.01, "{known:?}");
    }

    #[test]
    fn two_operators_of_one_kind_are_taken_together() {
        let had = |units_per_row, share| Had { operator: Operator { kind: Kind::TopK, units_per_row }, rows: 100.0, share };
        let known = Kinds::default().learnt(&PRIORS, 4.0, &[had(1.0, 1.0), had(3.0, 3.0)]);
        assert!((known.of(Kind::TopK) - 2.0).abs() < 1e-9, "{known:?}");
    }

    #[test]
    fn a_heavy_expression_is_no_slow_drive() {
        let compute = Operator { kind: Kind::Compute, units_per_row: 1.0 };
        let foretold = |operator: Operator| 100.0 * operator.seconds_per_row(&PRIORS);
        let (decode, heavy) = (foretold(DECODE), 300.0 * foretold(compute));
        let had = [Had { operator: DECODE, rows: 100.0, share: decode }, Had { operator: compute, rows: 100.0, share: heavy }];
        let known = Kinds::default().learnt(&PRIORS, (decode + heavy) / (decode + foretold(compute)), &had);
        assert!((known.of(Kind::Decode) - 1.0).abs() < 1e-9 && known.of(Kind::Compute) == 1.0, "{known:?}");
    }

    #[test]
    fn nonsense_is_not_learnt_and_factors_are_bounded() {
        let had = |rows, share| Had { operator: DECODE, rows, share };
        for (factor, told) in [
            (f64::NAN, had(1.0, 1.0)),
            (f64::INFINITY, had(1.0, 1.0)),
            (0.0, had(1.0, 1.0)),
            (-1.0, had(1.0, 1.0)),
            (2.0, had(f64::NAN, 1.0)),
            (2.0, had(0.0, 1.0)),
            (2.0, had(1.0, f64::INFINITY)),
            (2.0, had(1.0, 0.0)),
        ] {
            assert_eq!(Kinds::default().learnt(&PRIORS, factor, &[told]), Kinds::default(), "{factor} {told:?}");
        }
        assert_eq!(Kinds::default().learnt(&PRIORS, 2.0, &[]), Kinds::default());
        assert_eq!(Kinds::default().learnt(&PRIORS, 1e12, &[had(1.0, 1.0)]).of(Kind::Decode), FARTHEST);
        assert_eq!(Kinds::default().learnt(&PRIORS, 1e-12, &[had(1.0, 1.0)]).of(Kind::Decode), 1.0 / FARTHEST);
    }
}
