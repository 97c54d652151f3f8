use super::*;
use crate::learn::WARM_UP;
use crate::message::SliceId;
use crate::work::PRIORS;

const SLICE: (f64, f64) = (50_000.0, 1e6);

fn slice() -> Slice {
    Slice { id: SliceId(0), rows: 50_000, bytes: 1_000_000, readers: vec![] }
}

/// Two drives fifteen times slower than the host, a filter and a hash aggregate.
fn model() -> CostModel {
    let host = Profile::shipped("server").unwrap();
    let envoy = Profile::shipped("envoy").unwrap();
    let work = Work {
        lower: vec![Operator { kind: Kind::Decode, units_per_row: 40.0 }],
        upper: vec![Operator { kind: Kind::HashAggregate { groups: 100.0 }, units_per_row: 1.0 }],
        filtered: Output::Rows { per_row: 0.2, bytes_per_row: 16.0 },
        result: Output::Groups { groups: 100.0, bytes_per_group: 32.0 },
    };
    CostModel::new(work, host, &[envoy, envoy], PRIORS)
}

#[test]
fn priors_go_by_the_speed_of_the_device() {
    let model = model();
    let filter = model.slice(0, PushdownLevel::Filter, SLICE);
    // 50,000 rows of 40 bytes at 0.5 ns, and 160 kB to be sent at 0.25 ns.
    assert!((filter.cpu - 15.0 * (1e-3 + 40e-6)).abs() < 1e-9, "{filter:?}");
    assert!((filter.bytes - 160e3).abs() < 1.0);
    // A fifth of the rows is aggregated, here or there.
    let full = model.slice(0, PushdownLevel::Full, SLICE);
    assert!((full.cpu - 15.0 * (1e-3 + 10_000.0 * 12e-9)).abs() < 1e-9, "{full:?}");
    assert!((filter.above - 10_000.0 * 12e-9 - 40e-6).abs() < 1e-9, "{filter:?}");
    assert_eq!((full.bytes, full.above), (0.0, 0.0));
    assert!(model.slice(0, PushdownLevel::Raw, SLICE).above > filter.above);
}

/// Measured processor time changes the model of that drive only. Rows and bytes that pass a filter are a property of
/// the query.
#[test]
fn costs_are_learnt_per_drive_and_selectivity_for_all_drives() {
    let mut model = model();
    let before = model.slice(1, PushdownLevel::Filter, SLICE);
    let cost = SliceCost { slice: SliceId(0), cpu: 2.0 * 15.0 * 1e-3, rows_out: 500, bytes_out: 8000 };
    for _ in 0..WARM_UP + 5 {
        model.measured(0, PushdownLevel::Filter, &slice(), &cost);
    }
    let after = model.slice(0, PushdownLevel::Filter, SLICE);
    assert!((after.cpu / cost.cpu - 1.0).abs() < 0.02, "{after:?}");
    assert!(model.is_known(0, PushdownLevel::Filter) && !model.is_known(1, PushdownLevel::Filter));
    let other = model.slice(1, PushdownLevel::Filter, SLICE);
    assert!((other.bytes - 8000.0).abs() < 100.0 && (other.cpu - before.cpu).abs() < 0.05 * before.cpu, "{other:?}");
    // A load makes slices take longer, and costs no more processor time.
    for at in 0..20 {
        model.loaded(f64::from(at), 0, 8.0);
    }
    let loaded = model.slice(0, PushdownLevel::Filter, SLICE);
    assert!((loaded.cpu - after.cpu).abs() < 1e-9 && loaded.wall > 7.9 * loaded.cpu, "{loaded:?}");
}

#[test]
fn known_costs_are_restored_without_the_load_of_that_time() {
    let mut model = model();
    let cost = SliceCost { slice: SliceId(0), cpu: 2.0 * 15.0 * 1e-3, rows_out: 500, bytes_out: 8000 };
    for _ in 0..WARM_UP + 5 {
        model.measured(0, PushdownLevel::Filter, &slice(), &cost);
    }
    let known = model.slice(0, PushdownLevel::Filter, SLICE);
    for _ in 0..20 {
        model.loaded(60.0, 0, 8.0);
    }
    assert!(model.load(0) > 7.0 && model.told_at(0) == 60.0);
    let again = model.clone().again();
    assert_eq!((again.load(0), again.told_at(0), again.is_guessed(0)), (1.0, f64::NEG_INFINITY, false));
    assert_eq!(again.slice(0, PushdownLevel::Filter, SLICE), known, "as on an idle drive before");
    assert_eq!(again.filtered(), model.filtered());
}

#[test]
fn more_groups_make_rows_and_epochs_dearer() {
    let mut model = model();
    assert!(!model.groups_are_known());
    let (row, close) = (model.slice(0, PushdownLevel::Full, SLICE).cpu, model.close(0, PushdownLevel::Full, 1e7));
    model.states(5e6, distinct(1e6, 1e6), 1.0);
    assert!((model.groups() / 1e6 - 1.0).abs() < 0.01, "a fifth of five million rows: {}", model.groups());
    assert!(model.slice(0, PushdownLevel::Full, SLICE).cpu > 1.5 * row && model.close(0, PushdownLevel::Full, 1e7).bytes > 1000.0 * close.bytes);
    model.states(100.0, 20.0, 1.0);
    assert!((model.groups() / 1e6 - 1.0).abs() < 0.01, "few rows say nothing against many");
    model.states(1e7, 2.0 * distinct(5e5, 1e6), 2.0);
    assert!((model.groups() / 5e5 - 1.0).abs() < 0.01, "two lanes that have a million rows each: {}", model.groups());
    // Each of the drive's two lanes will hold nearly all groups.
    assert!(model.close(0, PushdownLevel::Full, 1e8).bytes > 1.9 * 5e5 * 32.0);
    // Zero states is an answer as well: the model does not wait for another.
    let mut none = self::model();
    none.states(1e6, 0.0, 2.0);
    assert!(none.groups_are_known());
}

#[test]
fn groups_are_found_from_states() {
    for groups in [1.0, 10.0, 1e4, 1e6] {
        for rows in [1e3, 1e5, 1e7] {
            let found = groups_of(rows, distinct(groups, rows));
            assert!((found / groups - 1.0).abs() < 1e-3 || groups > 500.0 * rows, "{groups} in {rows}: {found}");
        }
    }
    assert_eq!((distinct(0.0, 5.0), distinct(1e9, 0.0)), (0.0, 0.0));
    assert_eq!(groups_of(10.0, 10.0), 10_000.0, "all rows differ: nobody knows how many more there are");
}

/// Two low measurements in a row, of bytes that were ready to be sent, lower the rate. A single one does not.
#[test]
fn link_counts_as_slow_only_where_nothing_else_explains_it() {
    let mut model = model();
    let link = model.link(0);
    model.flowed(0, 0.55 * link, link);
    model.flowed(0, 0.3 * link, 0.31 * link);
    assert_eq!(model.link(0), link);
    model.flowed(0, 0.1 * link, link);
    assert_eq!(model.link(0), link, "once is not enough");
    model.flowed(0, 0.9 * link, link);
    model.flowed(0, 0.05 * link, link);
    assert_eq!(model.link(0), link, "nor is it in between");
    model.flowed(0, 0.1 * link, link);
    assert_eq!(model.link(0), 0.1 * link);
    model.flowed(0, link, 0.1 * link);
    assert_eq!(model.link(0), link, "what was faster proves it");
    for nonsense in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
        model.flowed(0, nonsense, link);
    }
    assert_eq!(model.link(0), link);
}
