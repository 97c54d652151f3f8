//! Queries: what the planner believes of them when they begin, and what is true.

use skytether_adapt::work::{Kind, Operator, Output, PRIORS, Work};

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
    /// Seconds of a drive's core, were it one of this machine, to read a byte of a slice from its disk; what operators cost comes beside it. The host, who is handed bytes, has none of it.
    pub read: f64,
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

/// What planners take a filter to select of which they know nothing.
const TEXTBOOK: f64 = 0.2;

/// What planners take for the number of groups of which they know nothing.
const SOME_GROUPS: f64 = 1000.0;

fn operator(kind: Kind, units_per_row: f64) -> Operator {
    Operator { kind, units_per_row }
}

/// A filter that selects `selected` of all rows and a projection; slices of 50,000 rows of 52 bytes in Arrow, of which 30 are wanted.
#[must_use]
pub fn filter(name: &'static str, selected: f64) -> Workload {
    let scan = operator(Kind::Decode, 52.0);
    Workload {
        name,
        believed: Work {
            lower: vec![scan],
            upper: vec![],
            filtered: Output::Rows { per_row: TEXTBOOK, bytes_per_row: 30.0 },
            result: Output::Rows { per_row: TEXTBOOK, bytes_per_row: 30.0 },
        },
        truth: Truth {
            lower: scan.seconds_per_row(&PRIORS),
            upper: 0.0,
            selected,
            row_bytes: 30.0,
            states: None,
            result_bytes: selected * 30.0,
            merge: PRIORS.merge_s_per_state,
            read: 0.0,
        },
        rows: 50_000,
        bytes: 1 << 20,
    }
}

/// A sum and a count by one key of so many groups; slices of 65,536 rows, key and value of 16 bytes, states of 32.
#[must_use]
pub fn aggregate(name: &'static str, groups: f64) -> Workload {
    let scan = operator(Kind::Decode, 24.0);
    let hash = |groups| operator(Kind::HashAggregate { groups }, 1.0);
    Workload {
        name,
        believed: Work {
            lower: vec![scan],
            upper: vec![hash(SOME_GROUPS)],
            filtered: Output::Rows { per_row: 1.0, bytes_per_row: 16.0 },
            result: Output::Groups { groups: SOME_GROUPS, bytes_per_group: 32.0 },
        },
        truth: Truth {
            lower: scan.seconds_per_row(&PRIORS),
            upper: hash(groups).seconds_per_row(&PRIORS),
            selected: 1.0,
            row_bytes: 16.0,
            states: Some((groups, 32.0)),
            result_bytes: 0.0,
            merge: PRIORS.merge_s_per_state,
            read: 0.0,
        },
        rows: 65_536,
        bytes: 1 << 20,
    }
}

/// Moments of twelve groups of cells, gene by gene: slices of 257 genes with 3,500 nonzeros each, six bytes a nonzero in Arrow, states of 18 bytes a group.
#[must_use]
pub fn moments(name: &'static str) -> Workload {
    let (nonzeros, groups) = (3500.0, 12.0);
    let scan = operator(Kind::DecodeSparse, nonzeros);
    let kernel = operator(Kind::Moments, nonzeros);
    Workload {
        name,
        believed: Work {
            lower: vec![scan],
            upper: vec![kernel],
            filtered: Output::Rows { per_row: 1.0, bytes_per_row: 6.0 * nonzeros },
            result: Output::Rows { per_row: 1.0, bytes_per_row: 18.0 * groups + 8.0 },
        },
        truth: Truth {
            lower: scan.seconds_per_row(&PRIORS),
            upper: kernel.seconds_per_row(&PRIORS),
            selected: 1.0,
            row_bytes: 6.0 * nonzeros,
            states: None,
            result_bytes: 18.0 * groups + 8.0,
            merge: PRIORS.merge_s_per_state,
            read: 0.0,
        },
        rows: 257,
        bytes: 1 << 20,
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
