//! Skyhook's experiments on the simulated clock: how slow the processors of storage servers may be, and what half of
//! the network costs.
//!
//! The set-up is that of "Quantifying CPU and Network savings in Computational Storage Systems", section 3. There are a
//! client and a number of storage servers, each with eight cores of 2 GHz, an NVMe drive and a 10 Gb/s interface. Files
//! of 32 MB have 1.4 million rows of 17 columns, and 1% of the rows is selected. Eight servers have 460 files (section
//! 3.2), and other numbers of servers have as many each (the paper scales weakly). A file is 32 slices here.
//!
//! The paper does not say what a row costs. We take the measured cost of our filter of 1% (`calibration.csv`) per byte
//! of rows in memory. Servers of 2 GHz have speed 1 here, as the measured machine, and slower ones in proportion. The
//! disk's rate is the lower one of those that the paper names for NVMe, 2 GB/s.

use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::Policy;
use skytether_scheduler::work::{Kind, Operator, Output, PRIORS, Work};

use crate::calibration;
use crate::fleet::{Fleet, run};
use crate::grid::{Load, Point, Scenario, fleet};
use crate::parallel::parallel;
use crate::workload::{Truth, Workload};

/// Numbers of storage servers, as in the paper.
pub const SERVERS: [u32; 3] = [1, 8, 16];

/// Clock rates of storage servers, MHz: the paper's, and below 800 those that its kernel did not allow.
pub const MHZ: [f64; 13] = [2000.0, 1800.0, 1600.0, 1400.0, 1200.0, 1000.0, 800.0, 600.0, 400.0, 250.0, 200.0, 125.0, 100.0];

/// The clock rate of the client, MHz.
pub const CLIENT_MHZ: f64 = 2000.0;

/// Gb/s of every interface: the paper's two, and less.
pub const GBIT: [f64; 5] = [10.0, 5.0, 2.5, 1.0, 0.5];

/// Servers in the experiment with the network.
pub const LINK_SERVERS: u32 = 8;

/// Slices of each server: 460 files of 32 MB on eight servers, in slices of 1 MB.
pub const SLICES: u32 = 460 * 32 / 8;

/// Rows of a file, and bytes of a row in memory: 17 columns of eight.
const ROWS: u32 = 1_400_000;
const ROW_BYTES: f64 = 17.0 * 8.0;

/// Seconds of a core to scan, filter and project a byte of rows, where 1% of the rows is selected.
#[must_use]
pub fn decode() -> f64 {
    calibration::known("filter 1%").map_or(PRIORS.decode_s_per_byte, |known| known.lower / known.row_bytes)
}

/// The query: 1% of the rows with all their columns.
#[must_use]
pub fn query() -> Workload {
    // The number of bytes that takes this time on a core at its prior.
    let scan = Operator { kind: Kind::Decode, units_per_row: ROW_BYTES * decode() / PRIORS.decode_s_per_byte };
    // A planner's belief of an unknown filter.
    let believed = Output::Rows { per_row: 0.2, bytes_per_row: ROW_BYTES };
    Workload {
        name: "NYC taxi, 1% selected",
        believed: Work { lower: vec![scan], upper: vec![], filtered: believed, result: believed },
        truth: Truth {
            lower: scan.seconds_per_row(&PRIORS),
            upper: 0.0,
            selected: 0.01,
            row_bytes: ROW_BYTES,
            states: None,
            result_bytes: 0.01 * ROW_BYTES,
            merge: PRIORS.merge_s_per_state,
            read: calibration::read(),
            session: PRIORS.session_s,
        },
        rows: ROWS / 32,
        bytes: 1_000_000,
    }
}

/// The client and `servers` storage servers of `mhz`, all behind interfaces of `gbit`.
#[must_use]
pub fn cluster(servers: u32, mhz: f64, gbit: f64, ground: &Scenario) -> Fleet {
    let point = Point { work: query(), slower: CLIENT_MHZ / mhz, gbit, drives: servers, load: Load::Idle };
    let mut fleet = fleet(&point, &Scenario { host_cores: 8, host_gbit: gbit, ..*ground }, ground.seed, 0.0);
    for drive in &mut fleet.drives {
        for profile in [&mut drive.is, &mut drive.believed] {
            *profile = Profile { cores: 8, memory_bytes: 64 << 30, disk_bytes_per_s: 2e9, disk_seek_s: 0.0001, ..*profile };
        }
    }
    fleet
}

/// Seconds of the query on a cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// All work on the client, of 2 GHz, over slices that servers send raw (`cut="raw"`).
    pub client: f64,
    /// All work at the servers (`cut="full"`).
    pub servers: f64,
    /// Where it is done soonest.
    pub adaptive: f64,
}

fn times(fleet: &Fleet, ground: &Scenario) -> Times {
    let work = query();
    // Without the right answer it never ended.
    let time = |policy| {
        let outcome = run(fleet, &work, policy, ground.seed);
        if outcome.answer.as_ref() == Some(&outcome.expected) { outcome.end } else { f64::INFINITY }
    };
    Times { client: time(Policy::Static(PushdownLevel::Raw)), servers: time(Policy::Static(PushdownLevel::Full)), adaptive: time(Policy::Adaptive) }
}

/// Storage servers of some number and clock rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clocked {
    /// Servers.
    pub servers: u32,
    /// Their clock rate, MHz.
    pub mhz: f64,
    /// The client alone, with servers of its own clock rate: what the others are compared with.
    pub client: f64,
    /// All work at the servers.
    pub full: f64,
    /// Where it is done soonest.
    pub adaptive: f64,
}

/// Section 3.1: servers of each number of `servers` at each clock rate of `mhz`, with interfaces of 10 Gb/s. `ground`
/// has the slices of each server ([`SLICES`] is the paper's) and the seed.
#[must_use]
pub fn clocks(servers: &[u32], mhz: &[f64], ground: &Scenario) -> Vec<Clocked> {
    let points: Vec<(u32, f64)> =
        servers.iter().flat_map(|&servers| std::iter::once(CLIENT_MHZ).chain(mhz.iter().copied()).map(move |mhz| (servers, mhz))).collect();
    let ran = parallel(points.len(), |at| {
        let (servers, mhz) = points[at];
        times(&cluster(servers, mhz, GBIT[0], ground), ground)
    });
    let each = mhz.len() + 1;
    let row = |(at, (servers, mhz)): (usize, &(u32, f64))| {
        let (first, own) = (ran[at - at % each], ran[at]);
        (at % each > 0).then_some(Clocked { servers: *servers, mhz: *mhz, client: first.client, full: own.servers, adaptive: own.adaptive })
    };
    points.iter().enumerate().filter_map(row).collect()
}

/// Among the rows of [`clocks`] with this number of servers, the lowest sufficient clock rate. From it on, the servers
/// take no more than `slack` (a share) longer than the client.
#[must_use]
pub fn enough(rows: &[Clocked], servers: u32, slack: f64) -> Option<f64> {
    let mut of: Vec<&Clocked> = rows.iter().filter(|row| row.servers == servers).collect();
    of.sort_by(|a, b| b.mhz.total_cmp(&a.mhz));
    of.into_iter().take_while(|row| row.full <= row.client * (1.0 + slack)).last().map(|row| row.mhz)
}

/// Section 3.2: [`LINK_SERVERS`] servers of the client's clock rate behind interfaces of each rate of `gbit`, Gb/s.
#[must_use]
pub fn links(gbit: &[f64], ground: &Scenario) -> Vec<(f64, Times)> {
    parallel(gbit.len(), |at| (gbit[at], times(&cluster(LINK_SERVERS, CLIENT_MHZ, gbit[at], ground), ground)))
}
