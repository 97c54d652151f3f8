//! A query starts from the factors of operator kinds that an earlier query has learnt.

use skytether_scheduler::cost::CostModel;
use skytether_scheduler::kinds::{Had, Kinds};
use skytether_scheduler::message::{PushdownLevel, Slice, SliceCost, SliceId};
use skytether_scheduler::profile::Profile;
use skytether_scheduler::work::{Kind, Operator, Output, PRIORS, Work};

const ROWS: u32 = 50_000;
const SLICE: (f64, f64) = (ROWS as f64, 1e6);
const DECODE: Operator = Operator { kind: Kind::Decode, units_per_row: 40.0 };
const COMPUTE: Operator = Operator { kind: Kind::Compute, units_per_row: 1.0 };
const AGGREGATE: Operator = Operator { kind: Kind::HashAggregate { groups: 100.0 }, units_per_row: 1.0 };

/// A model of two drives like Envoy, with known factors `kinds`.
fn model(lower: &[Operator], upper: &[Operator], kinds: &[Kinds]) -> CostModel {
    let [host, envoy] = ["server", "envoy"].map(|name| Profile::shipped(name).unwrap());
    let filtered = Output::Rows { per_row: 1.0, bytes_per_row: 16.0 };
    let result = if upper.is_empty() { filtered } else { Output::Groups { groups: 100.0, bytes_per_group: 32.0 } };
    CostModel::new(Work { lower: lower.to_vec(), upper: upper.to_vec(), filtered, result }, host, &[envoy, envoy], PRIORS).with_kinds(kinds)
}

/// Has drive 0 process slices that take `cpu` seconds each.
fn works(model: &mut CostModel, rung: PushdownLevel, cpu: f64) {
    let slice = Slice { id: SliceId(0), rows: ROWS, bytes: SLICE.1 as u64, readers: vec![] };
    let (rows_out, bytes_out) = if rung == PushdownLevel::Filter { (u64::from(ROWS), u64::from(ROWS) * 16) } else { (0, 0) };
    (0..40).for_each(|_| model.measured(0, rung, &slice, &SliceCost { slice: SliceId(0), cpu, rows_out, bytes_out }));
}

fn had(operator: Operator, share: f64) -> Had {
    Had { operator, rows: f64::from(ROWS), share }
}

/// Aggregates of a drive take three times the prior. Another query expects that of its aggregates there, and not of its
/// scans.
#[test]
fn aggregate_cost_of_a_drive_serves_other_queries_not_scans() {
    let mut known = [Kinds::default(); 2];
    // Hash tables are three times as slow there as their prior; all else is as its prior.
    let seconds = |operator: Operator| f64::from(ROWS) * operator.seconds_per_row(&PRIORS);
    let (decode, aggregate) = (seconds(DECODE), 3.0 * seconds(AGGREGATE));
    for _ in 0..8 {
        let mut query = model(&[DECODE], &[AGGREGATE], &known);
        works(&mut query, PushdownLevel::Full, 15.0 * (decode + aggregate));
        known[0] = query.kinds(0, PushdownLevel::Full, &[had(DECODE, decode), had(AGGREGATE, aggregate)]);
    }
    assert!((known[0].of(AGGREGATE.kind) / 3.0 - 1.0).abs() < 0.02 && (known[0].of(Kind::Decode) - 1.0).abs() < 0.02, "{known:?}");

    // A query that computes something and counts other groups, before it has begun.
    let many = Operator { kind: Kind::HashAggregate { groups: 1e6 }, units_per_row: 1.2 };
    let [fresh, next] = [&[][..], &known[..]].map(|known| model(&[DECODE, COMPUTE], &[many], known));
    let cpu = |model: &CostModel, drive, rung| model.slice(drive, rung, SLICE).cpu;
    let wanted = 15.0 * (seconds(DECODE) + seconds(COMPUTE) + 3.0 * seconds(many));
    assert!((cpu(&next, 0, PushdownLevel::Full) / wanted - 1.0).abs() < 0.02, "{} s instead of {wanted}", cpu(&next, 0, PushdownLevel::Full));
    assert!((cpu(&next, 0, PushdownLevel::Filter) / cpu(&fresh, 0, PushdownLevel::Filter) - 1.0).abs() < 0.02, "a scan takes what it took");
    assert_eq!(cpu(&next, 1, PushdownLevel::Full), cpu(&fresh, 1, PushdownLevel::Full), "the other drive is another one");
    assert_eq!(next.slice(0, PushdownLevel::Raw, SLICE), fresh.slice(0, PushdownLevel::Raw, SLICE), "and the host does what it did");
}

#[test]
fn costs_known_beforehand_are_not_counted_twice() {
    let known = [Kinds::default(), Kinds::default().learnt(&PRIORS, 9.0, &[had(DECODE, 1.0)])].map(|kinds| [kinds; 2]);
    let after = known.map(|known| {
        let mut query = model(&[DECODE], &[], &known);
        works(&mut query, PushdownLevel::Filter, 0.05);
        (query.slice(0, PushdownLevel::Filter, SLICE).cpu, query.kinds(0, PushdownLevel::Full, &[had(DECODE, 1.0)]).of(Kind::Decode))
    });
    for (cpu, _) in after {
        assert!((cpu / 0.05 - 1.0).abs() < 0.02, "what is measured counts, whatever was thought: {after:?}");
    }
    let before = known.map(|known| known[0].of(Kind::Decode));
    // Both come nearer to the same truth, each by half of its way there.
    let truth = after.iter().zip(before).map(|((_, found), before)| found * found / before);
    let truth: Vec<f64> = truth.collect();
    assert!((truth[0] / truth[1] - 1.0).abs() < 0.05, "{truth:?}");
}

#[test]
fn too_few_slices_teach_nothing() {
    let mut query = model(&[DECODE], &[AGGREGATE], &[]);
    let slice = Slice { id: SliceId(0), rows: ROWS, bytes: SLICE.1 as u64, readers: vec![] };
    (0..5).for_each(|_| query.measured(0, PushdownLevel::Full, &slice, &SliceCost { slice: SliceId(0), cpu: 1.0, rows_out: 0, bytes_out: 0 }));
    assert_eq!(query.kinds(0, PushdownLevel::Full, &[had(DECODE, 1.0), had(AGGREGATE, 1.0)]), Kinds::default());
    assert_eq!(query.kinds(0, PushdownLevel::Raw, &[had(DECODE, 1.0)]), Kinds::default());
}
