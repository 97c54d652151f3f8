//! Figures for people: how long a query is expected to take before it begins, and what is known while it runs.

use super::{Event, Query, Setup};
use crate::message::{CseId, PushdownLevel, Seconds, Slice};

/// How many slices each node should process, and when that ends.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Forecast {
    /// Seconds from the query's beginning to its end.
    pub end: Seconds,
    /// One per CSE.
    pub cses: Vec<Expectation>,
}

/// The part of a CSE.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Expectation {
    /// The level at which it processes slices; `None` where it should send all of them raw.
    pub rung: Option<PushdownLevel>,
    /// Slices that it processes.
    pub below: u32,
    /// Slices that it sends raw.
    pub handed_out: u32,
    /// Seconds that one of its cores takes for a slice at that level (to send one raw, where there is none), with its
    /// present load.
    pub slice: Seconds,
}

/// The expected time of a query before it begins, from the slices of each CSE.
#[must_use]
pub fn forecast(setup: Setup, slices: Vec<Vec<Slice>>) -> Forecast {
    let mut query: Query<()> = Query::new(Setup { fed: false, ..setup });
    for (cse, slices) in (0..).zip(slices) {
        query.surveyed(CseId(cse), slices, &mut Vec::new());
    }
    // Nothing is known, and nothing begins, before all have listed their slices.
    query.handle(0.0, Event::Tick);
    let shares = query.shares.iter().zip(&query.cses).enumerate().map(|(at, (share, book))| Expectation {
        rung: book.rung.filter(|_| share.below > 0),
        below: share.below,
        handed_out: share.raw,
        slice: query.slice(at, book.rung.filter(|_| share.below > 0)),
    });
    Forecast { end: query.plan.end, cses: shares.collect() }
}

impl<B> Query<B> {
    /// Seconds that a core of `cse` takes for an average slice of its own at `rung` (to send one raw for `None`), by
    /// what is known now.
    #[must_use]
    pub fn slice(&self, cse: usize, rung: Option<PushdownLevel>) -> Seconds {
        let Some(own) = self.cses.get(cse) else { return 0.0 };
        self.cost.slice(cse, rung.unwrap_or(PushdownLevel::Raw), (own.rows, own.bytes)).wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::SliceId;
    use crate::profile::Profile;
    use crate::query::{Limits, Policy};
    use crate::work::{Kind, Operator, Output, PRIORS, Work};

    fn of(speed: f64, policy: Policy) -> Forecast {
        let profile = |speed, cores| Profile {
            speed_per_core: speed,
            cores,
            memory_bytes: 1 << 30,
            disk_bytes_per_s: 2e9,
            disk_seek_s: 0.0,
            link_bits_per_s: 1e11,
            link_latency_s: 0.0,
        };
        let work = Work {
            lower: vec![Operator { kind: Kind::Decode, units_per_row: 16.0 }],
            upper: vec![Operator { kind: Kind::HashAggregate { groups: 10.0 }, units_per_row: 1.0 }],
            filtered: Output::Rows { per_row: 1.0, bytes_per_row: 16.0 },
            result: Output::Groups { groups: 10.0, bytes_per_group: 24.0 },
        };
        let setup = Setup {
            work,
            host: profile(1.0, 2),
            cses: vec![profile(1.0, 1), profile(speed, 1)],
            policy,
            limits: Limits::default(),
            priors: PRIORS,
            kinds: Vec::new(),
            fed: false,
        };
        let slices = |cse: u32| (0..100).map(|n| Slice { id: SliceId(cse * 100 + n), rows: 65_536, bytes: 1 << 20, readers: vec![CseId(cse)] }).collect();
        forecast(setup, vec![slices(0), slices(1)])
    }

    #[test]
    fn slow_drives_are_expected_to_do_less_and_take_longer() {
        let equal = of(1.0, Policy::Adaptive);
        let uneven = of(0.05, Policy::Adaptive);
        for forecast in [&equal, &uneven] {
            assert!(forecast.cses.iter().all(|share| share.below + share.handed_out == 100), "{forecast:?}");
        }
        assert!(uneven.end > equal.end && uneven.cses[1].below < equal.cses[1].below.max(1), "{equal:?} {uneven:?}");
        assert!(uneven.cses[1].slice > 0.0 && uneven.end.is_finite());
        let full = of(0.05, Policy::Static(PushdownLevel::Full));
        assert_eq!(full.cses.iter().map(|share| (share.rung, share.below)).collect::<Vec<_>>(), [(Some(PushdownLevel::Full), 100); 2]);
        // A drive that is twenty times slower takes twenty times as long, alone.
        assert!((full.cses[1].slice / full.cses[0].slice - 20.0).abs() < 0.1, "{full:?}");
        assert!(full.end > 90.0 * full.cses[1].slice && full.end > uneven.end, "{full:?}");
    }

    /// One drive is too slow for any slice. The other one is still forecast to run all of its slices at full pushdown.
    #[test]
    fn late_drive_leaves_the_choice_of_other_drives_unchanged() {
        let tardy = Profile {
            speed_per_core: 0.4,
            cores: 1,
            memory_bytes: 64 << 20,
            disk_bytes_per_s: 1e9,
            disk_seek_s: 0.0003,
            link_bits_per_s: 8e9,
            link_latency_s: 0.0002,
        };
        // Behind a slow link, where states are few bytes and what is filtered is many; and one for which any way
        // of its own takes too long.
        let (far, slow) = (Profile { link_bits_per_s: 2e6, ..tardy }, Profile { speed_per_core: 0.002, ..tardy });
        let host = Profile { speed_per_core: 1.0, cores: 2, link_bits_per_s: 1e12, ..tardy };
        let work = Work {
            lower: vec![Operator { kind: Kind::Decode, units_per_row: 16.0 }],
            upper: vec![Operator { kind: Kind::HashAggregate { groups: 1.0 }, units_per_row: 1.1 }],
            filtered: Output::Rows { per_row: 0.1, bytes_per_row: 8.0 },
            result: Output::Groups { groups: 1.0, bytes_per_group: 40.0 },
        };
        for (far_at, slow_at) in [(0, 1), (1, 0)] {
            for slices in 20..34 {
                let mut cses = vec![far, slow];
                cses.rotate_left(far_at);
                let setup = Setup {
                    work: work.clone(),
                    host,
                    cses,
                    policy: Policy::Adaptive,
                    limits: Limits::default(),
                    priors: PRIORS,
                    kinds: Vec::new(),
                    fed: false,
                };
                let of = |cse: usize, count: u32| {
                    (0..count).map(|n| Slice { id: SliceId(cse as u32 * 100 + n), rows: 560, bytes: 1950, readers: vec![CseId(cse as u32)] }).collect()
                };
                let mut all = vec![Vec::new(), Vec::new()];
                (all[far_at], all[slow_at]) = (of(far_at, slices), of(slow_at, 53 - slices));
                let forecast = forecast(setup, all);
                let (far, slow) = (forecast.cses[far_at], forecast.cses[slow_at]);
                assert_eq!((far.rung, far.below, slow.rung, slow.handed_out), (Some(PushdownLevel::Full), slices, None, 53 - slices), "{forecast:?}");
            }
        }
    }
}
