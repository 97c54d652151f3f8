//! What an annotation shows of the cost of each kind of operator at a drive. The next queries use it.

use skytether_device::{Annotation, OperatorNote};
use skytether_scheduler::cost::CostModel;
use skytether_scheduler::kinds::{Had, Kinds};
use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::work::{Kind, Operator};

/// The operator that makes states of rows.
const AGGREGATE: &str = "AggregateExec";

/// Costs at drive `at` after a query: `cost` is the query's model, `told` the drive's own annotation. `None` where the
/// annotation says nothing new.
pub(crate) fn learnt(cost: &CostModel, at: usize, told: &Annotation) -> Option<Kinds> {
    // A fallback executor is another device, and an aggregator's figures are those of its drives.
    if told.served_by_fallback.is_some() || !told.below.is_empty() {
        return None;
    }
    let (rung, had) = shares(cost, told)?;
    Some(cost.kinds(at, rung, &had))
}

/// The share of each operator in the work at the pushdown level that the drive reports.
fn shares(cost: &CostModel, told: &Annotation) -> Option<(PushdownLevel, Vec<Had>)> {
    let read = told.rows_read.filter(|rows| *rows > 0)? as f64;
    let lowest = told.operators.iter().rposition(|note| note.name == AGGREGATE);
    let (above, below) = told.operators.split_at(lowest.map_or(0, |lowest| lowest + 1));
    let seconds = |notes: &[OperatorNote], which: &dyn Fn(&OperatorNote) -> bool| notes.iter().filter(|note| which(note)).map(|note| note.seconds).sum::<f64>();
    let is_scan = |note: &OperatorNote| note.name.contains("Scan");
    // Without a compute operator, all time is decoding.
    let computes = |operator: &Operator| operator.kind == Kind::Compute;
    let apart = cost.work().lower.iter().any(computes);
    let lower = cost.work().lower.iter().map(|operator| {
        let share = if computes(operator) { seconds(below, &|note| !is_scan(note)) } else { seconds(below, &|note| !apart || is_scan(note)) };
        Had { operator: *operator, rows: read, share }
    });
    let mut had: Vec<Had> = lower.collect();
    let upper: Vec<Operator> = cost.upper().collect();
    if lowest.is_none() {
        // Where there is nothing above, all that there is was done at `full`.
        return Some((if cost.has_upper() { PushdownLevel::Filter } else { PushdownLevel::Full }, had));
    }
    let [operator] = upper[..] else { return None };
    let rows = below.first()?.rows_out? as f64;
    had.push(Had { operator, rows, share: seconds(above, &|_| true) });
    Some((PushdownLevel::Full, had))
}

#[cfg(test)]
mod tests {
    use skytether_scheduler::message::{Slice, SliceCost, SliceId};
    use skytether_scheduler::profile::Profile;
    use skytether_scheduler::work::{Output, PRIORS, Work};

    use super::*;

    const DECODE: Operator = Operator { kind: Kind::Decode, units_per_row: 40.0 };
    const COMPUTE: Operator = Operator { kind: Kind::Compute, units_per_row: 1.0 };
    const AGGREGATE: Operator = Operator { kind: Kind::HashAggregate { groups: 10.0 }, units_per_row: 1.0 };

    /// A query over one drive, which has worked slices of 1,000 rows off in `cpu` seconds each.
    fn query(upper: &[Operator], cpu: f64) -> CostModel {
        let filtered = Output::Rows { per_row: 0.5, bytes_per_row: 16.0 };
        let result = if upper.is_empty() { filtered } else { Output::Groups { groups: 10.0, bytes_per_group: 32.0 } };
        let profile = Profile { speed_per_core: 1.0, ..Profile::shipped("envoy").unwrap() };
        let mut cost = CostModel::new(Work { lower: vec![DECODE, COMPUTE], upper: upper.to_vec(), filtered, result }, profile, &[profile], PRIORS);
        let slice = Slice { id: SliceId(0), rows: 1000, bytes: 40_000, readers: vec![] };
        (0..20).for_each(|_| cost.measured(0, PushdownLevel::Full, &slice, &SliceCost { slice: SliceId(0), cpu, rows_out: 500, bytes_out: 8000 }));
        cost
    }

    /// An annotation of these operators: name, rows out, seconds.
    fn told(operators: &[(&str, u64, f64)]) -> Annotation {
        let notes = operators.iter().zip(0..).map(|((name, rows, seconds), depth)| OperatorNote {
            name: (*name).to_owned(),
            depth,
            rows_out: Some(*rows),
            seconds: *seconds,
            ..OperatorNote::default()
        });
        Annotation { rows_read: Some(20_000), operators: notes.collect(), ..Annotation::default() }
    }

    #[test]
    fn each_operator_has_the_share_of_its_kind() {
        // About what priors say of a slice.
        let cost = query(&[AGGREGATE], 3e-5);
        let told = told(&[("ProjectionExec", 10, 1.0), ("AggregateExec", 10, 5.0), ("FilterExec", 10_000, 2.0), ("SliceScanExec", 20_000, 3.0)]);
        let (rung, had) = shares(&cost, &told).unwrap();
        assert_eq!(rung, PushdownLevel::Full);
        assert_eq!(had.iter().map(|had| had.share).collect::<Vec<_>>(), [3.0, 2.0, 6.0]);
        assert_eq!(had.iter().map(|had| had.rows).collect::<Vec<_>>(), [20_000.0, 20_000.0, 10_000.0]);
        let kinds = learnt(&cost, 0, &told).unwrap();
        assert!(kinds.of(AGGREGATE.kind) > 2.0 * kinds.of(Kind::Decode), "most of its time, of half of the rows: {kinds:?}");
    }

    /// A drive that ran at filter level teaches the costs of its filter and scan. A query without an operator above
    /// counts as full.
    #[test]
    fn feedback_uses_filter_level_runs_and_plain_scans() {
        let lower = [("FilterExec", 10_000, 2.0), ("SliceScanExec", 20_000, 3.0)];
        let (rung, had) = shares(&query(&[AGGREGATE], 1e-3), &told(&lower)).unwrap();
        assert_eq!((rung, had.len()), (PushdownLevel::Filter, 2));
        let cost = query(&[], 1e-3);
        let (rung, _) = shares(&cost, &told(&lower)).unwrap();
        assert_eq!(rung, PushdownLevel::Full);
        assert_ne!(learnt(&cost, 0, &told(&lower)), Some(Kinds::default()));
    }

    #[test]
    fn feedback_ignores_fallbacks_and_aggregators() {
        let (cost, told) = (query(&[AGGREGATE], 1e-3), told(&[("AggregateExec", 10, 5.0), ("SliceScanExec", 20_000, 3.0)]));
        assert!(learnt(&cost, 0, &told).is_some());
        assert_eq!(learnt(&cost, 0, &Annotation { served_by_fallback: Some("lost".into()), ..told.clone() }), None);
        assert_eq!(learnt(&cost, 0, &Annotation { below: vec![Annotation::default()], ..told.clone() }), None);
        assert_eq!(learnt(&cost, 0, &Annotation { rows_read: None, ..told.clone() }), None);
        assert_eq!(learnt(&cost, 0, &Annotation { operators: Vec::new(), rows_read: Some(0), ..told }), None);
    }
}
