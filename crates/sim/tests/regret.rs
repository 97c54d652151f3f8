//! A sample of the grid; `make soak` runs all of it, and `cargo run -p skytether-sim --bin regret grid` prints its
//! figures.

use skytether_scheduler::message::PushdownLevel;
use skytether_sim::equal::curve;
use skytether_sim::grid::{Load, Scenario, measure, measure_all, points, summary};
use skytether_sim::parallel::soak;
use skytether_sim::workload::grid;

#[test]
fn regret_is_small_on_a_sample_of_the_grid() {
    // 29 has no factor in common with the grid's sides, so that the sample has all of them.
    let every = if soak() { 1 } else { 29 };
    let sample: Vec<_> = points().into_iter().step_by(every).collect();
    assert!([Load::Idle, Load::OneOverloaded, Load::Changes].iter().all(|load| sample.iter().any(|point| point.load == *load)));
    // The goal: no point is more than 10% slower than `raw`. In the whole grid 3 points of seed 1 and 14 of seed 2 miss
    // it, as docs/benchmarks.md says; one or two of them are in the sample.
    for (seed, misses) in [(1, 3), (2, 14)] {
        let rows = measure_all(&sample, &Scenario { seed, ..Scenario::default() });
        let all = summary(&rows);
        let worst = rows.iter().max_by(|a, b| a.regret().total_cmp(&b.regret())).unwrap();
        let [median, p95, most] = all.regret;
        assert!(median <= 0.03 && p95 <= 0.10 && most <= 0.25, "{all:?}, worst {:?} {:?} {}", worst.point, worst.fixed, worst.adaptive);
        assert!(all.over_raw <= 0.25, "{all:?}");
        let over = rows.iter().filter(|row| row.over_raw() > 0.10).count();
        assert!(over <= if soak() { misses } else { 2 }, "{over}: {all:?}");
        let changes = all.changes;
        // Of the 336 changes of the whole grid 65 and 67 are missed, as docs/benchmarks.md says.
        let least = if soak() { changes.all * 2 / 3 } else { changes.all * 3 / 4 };
        assert!(changes.better + changes.level >= least && (!soak() || changes.missed <= 67), "{all:?}");
        assert_eq!(changes.better + changes.shut + changes.nearly_shut + changes.foreseen + changes.missed, changes.all, "{all:?}");
        // What nothing can beat is not beaten.
        for row in &rows {
            let least = row.best().min(row.adaptive);
            assert!(row.bound.seconds <= least && row.bound.seconds > 0.3 * least, "{:?}: {:?} {} {:?}", row.point, row.fixed, row.adaptive, row.bound);
        }
    }
}

#[test]
fn changed_load_changes_the_pushdown_level() {
    let point = points()
        .into_iter()
        .find(|point| point.work.name == "moments" && point.slower == 4.0 && point.gbit == 1.0 && point.drives == 16 && point.load == Load::Changes);
    let row = measure(&point.unwrap(), &Scenario::default(), false);
    assert!(row.regret() < -0.2, "{:?} {}", row.fixed, row.adaptive);
    assert!(row.outcome.slices[&PushdownLevel::Raw] > 100 && row.outcome.slices[&PushdownLevel::Full] > 100, "{:?}", row.outcome.slices);
}

#[test]
fn more_drives_are_never_slower_and_adaptive_is_fastest() {
    let moments = grid().into_iter().find(|work| work.name == "moments").unwrap();
    let points = curve(&moments, "envoy", &Scenario::default()).unwrap();
    for pair in points.windows(2) {
        assert!(pair[1].full < pair[0].full, "{pair:?}");
        assert!(pair[1].adaptive < pair[0].adaptive * 1.03, "{pair:?}");
    }
    for at in &points {
        assert!(at.adaptive <= 1.1 * at.full.min(at.raw), "{at:?}");
    }
    // 15 times slower, two cores: between seven and a half and ten drives for a core.
    let equal = points.iter().find(|at| at.full <= at.one_core).unwrap();
    assert!((8..=12).contains(&equal.drives), "{equal:?}");
}

#[test]
fn links_that_differ_from_their_profile_are_detected() {
    let ground = Scenario::default();
    for (name, slower, gbit) in [("moments", 4.0, 0.1), ("10 groups", 4.0, 1.0), ("filter 1%", 15.0, 1.0)] {
        let point = points()
            .into_iter()
            .find(|point| point.work.name == name && point.slower == slower && point.gbit == gbit && point.drives == 4 && point.load == Load::Idle);
        let point = point.unwrap();
        let honest = measure(&point, &ground, false);
        for wrong in [0.1, 10.0] {
            let run = measure(&point, &Scenario { links: wrong, ..ground }, false);
            assert!(run.adaptive < honest.adaptive * 1.15, "{name}: {} instead of {} with {wrong} times the link", run.adaptive, honest.adaptive);
        }
    }
}

/// Drives take more processor time to send raw slices than the prior says. The cost model attributes it to neither.
#[test]
fn costly_raw_reads_do_not_count_as_slow_link_or_load() {
    // Drives so slow that their processors limit sending, and only sending raw pays.
    for reads in [0.5e-9, 0.6e-9] {
        for (name, gbit) in [("filter 1%", 2.5), ("filter 1%", 10.0), ("10 groups", 2.5)] {
            let point = points()
                .into_iter()
                .find(|point| point.work.name == name && point.slower == 60.0 && point.gbit == gbit && point.drives == 1 && point.load == Load::Idle);
            let mut point = point.unwrap();
            point.work.truth.read = reads;
            let row = measure(&point, &Scenario::default(), false);
            assert!(row.regret() < 0.05, "{name}, {gbit} Gb/s, {reads} s a byte: {} instead of {:?}", row.adaptive, row.fixed);
        }
    }
}

#[test]
fn states_begun_under_load_are_not_abandoned_repeatedly() {
    // For some seconds that went on each 20 ms, until the load was forgotten: twelve times as long as all at the drive.
    let point = points()
        .into_iter()
        .find(|point| point.work.name == "10 groups" && point.slower == 1.0 && point.gbit == 0.1 && point.drives == 1 && point.load == Load::Changes);
    let row = measure(&point.unwrap(), &Scenario::default(), false);
    assert!(row.regret() < 0.1, "{:?} {}", row.fixed, row.adaptive);
}
