//! Queries: for each, the planner's beliefs when it begins, and the truth.

use skytether_scheduler::work::{Kind, Operator, Output, PRIORS, Work};

use crate::calibration;

/// What is true of a query's operators, whatever the planner believes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Truth {
    /// Seconds of a core of this machine for scan, filter and projection, per row of a slice.
    pub lower: f64,
    /// The same for the operators above, per row of a slice.
    pub upper: f64,
    /// Rows that the filter lets through, per row.
    pub selected: f64,
    /// Bytes of each.
    pub row_bytes: f64,
    /// Groups in all, and bytes of a state: where the results are states at the end.
    pub states: Option<(f64, f64)>,
    /// Bytes of results per row of a slice, where they are not.
    pub result_bytes: f64,
    /// Seconds of a core of this machine to merge a state.
    pub merge: f64,
    /// Seconds of a core of this machine for a drive to read a byte of a slice from its disk, in addition to operators.
    /// The host receives bytes and has no such cost.
    pub read: f64,
    /// Seconds of a core of this machine for a drive's planning, before it lists its slices.
    pub session: f64,
}

/// A query.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Its name in tables.
    pub name: &'static str,
    /// What the planner believes.
    pub believed: Work,
    /// What is true.
    pub truth: Truth,
    /// Rows of a slice.
    pub rows: u32,
    /// Bytes of a slice as stored.
    pub bytes: u64,
}

/// A planner's belief of what an unknown filter selects.
const TEXTBOOK: f64 = 0.2;

/// A planner's belief of an unknown number of groups.
const SOME_GROUPS: f64 = 1000.0;

fn operator(kind: Kind, units_per_row: f64) -> Operator {
    Operator { kind, units_per_row }
}

/// A filter that selects `selected` of all rows, over a number, and a projection of three columns (20 bytes in Arrow).
/// What it costs was measured (`calibration.csv`); without that, what priors say of 50,000 rows a slice.
#[must_use]
pub fn filter(name: &'static str, selected: f64) -> Workload {
    // The host's planner counts bytes of the scanned columns, and an expression.
    let (scan, condition) = (operator(Kind::Decode, 20.0), operator(Kind::Compute, 1.0));
    let known = calibration::known(name);
    let row_bytes = known.map_or(20.0, |known| known.row_bytes);
    Workload {
        name,
        believed: Work {
            lower: vec![scan, condition],
            upper: vec![],
            filtered: Output::Rows { per_row: TEXTBOOK, bytes_per_row: 20.0 },
            result: Output::Rows { per_row: TEXTBOOK, bytes_per_row: 20.0 },
        },
        truth: Truth {
            lower: known.map_or_else(|| scan.seconds_per_row(&PRIORS) + condition.seconds_per_row(&PRIORS), |known| known.lower),
            upper: 0.0,
            selected,
            row_bytes,
            states: None,
            result_bytes: selected * row_bytes,
            merge: PRIORS.merge_s_per_state,
            read: known.map_or_else(calibration::read, |known| known.read),
            session: known.map_or(PRIORS.session_s, |known| known.session),
        },
        rows: known.map_or(50_000, |known| known.rows),
        bytes: known.map_or(1 << 20, |known| known.bytes),
    }
}

/// Sums and a count by one key with `groups` groups. Its cost was measured. Without a measurement, it follows from the
/// priors: 50,000 rows a slice, key and values of 16 bytes, states of 32.
#[must_use]
pub fn aggregate(name: &'static str, groups: f64) -> Workload {
    let scan = operator(Kind::Decode, 16.0);
    let hash = |groups| operator(Kind::HashAggregate { groups }, 1.0);
    let known = calibration::known(name);
    Workload {
        name,
        believed: Work {
            lower: vec![scan],
            upper: vec![hash(SOME_GROUPS)],
            filtered: Output::Rows { per_row: 1.0, bytes_per_row: 16.0 },
            result: Output::Groups { groups: SOME_GROUPS, bytes_per_group: 32.0 },
        },
        truth: Truth {
            lower: known.map_or_else(|| scan.seconds_per_row(&PRIORS), |known| known.lower),
            upper: known.map_or_else(|| hash(groups).seconds_per_row(&PRIORS), |known| known.upper),
            selected: 1.0,
            row_bytes: known.map_or(16.0, |known| known.row_bytes),
            states: Some((groups, known.map_or(32.0, |known| known.state.0))),
            result_bytes: 0.0,
            merge: known.map_or(PRIORS.merge_s_per_state, |known| known.state.1),
            read: known.map_or_else(calibration::read, |known| known.read),
            session: known.map_or(PRIORS.session_s, |known| known.session),
        },
        rows: known.map_or(50_000, |known| known.rows),
        bytes: known.map_or(1 << 20, |known| known.bytes),
    }
}

/// Moments of two groups of cells, gene by gene, as `benches/moving.py --moments` has them: what its operators cost was
/// measured; reading and planning cost what they do in the median of the others. Without that, what priors say of
/// slices of 257 genes with 3,500 nonzeros each, six bytes a nonzero in Arrow, states of 18 bytes a group.
#[must_use]
pub fn moments(name: &'static str) -> Workload {
    let known = calibration::known(name);
    let (row_bytes, result_bytes) = known.map_or((6.0 * 3500.0, 18.0 * 12.0 + 8.0), |known| (known.row_bytes, known.state.0));
    let nonzeros = row_bytes / 6.0;
    let scan = operator(Kind::DecodeSparse, nonzeros);
    let kernel = operator(Kind::Moments, nonzeros);
    Workload {
        name,
        believed: Work {
            lower: vec![scan],
            upper: vec![kernel],
            filtered: Output::Rows { per_row: 1.0, bytes_per_row: row_bytes },
            result: Output::Rows { per_row: 1.0, bytes_per_row: result_bytes },
        },
        truth: Truth {
            lower: known.map_or_else(|| scan.seconds_per_row(&PRIORS), |known| known.lower),
            upper: known.map_or_else(|| kernel.seconds_per_row(&PRIORS), |known| known.upper),
            selected: 1.0,
            row_bytes,
            states: None,
            result_bytes,
            merge: known.map_or(PRIORS.merge_s_per_state, |known| known.state.1),
            read: calibration::read(),
            session: calibration::session().unwrap_or(PRIORS.session_s),
        },
        rows: known.map_or(257, |known| known.rows),
        bytes: known.map_or(1 << 20, |known| known.bytes),
    }
}

/// The queries of the grid.
#[must_use]
pub fn grid() -> Vec<Workload> {
    vec![
        filter("filter 0.001%", 1e-5),
        filter("filter 1%", 0.01),
        filter("filter 10%", 0.1),
        filter("filter 100%", 1.0),
        aggregate("10 groups", 10.0),
        aggregate("1e6 groups", 1e6),
        moments("moments"),
    ]
}
