//! Points that were measured in real time, compared with their simulation.
//!
//! They come as CSV: a header with these names in any order (others are ignored), and a row per run.
//!
//! | column | what |
//! |---|---|
//! | `kind` | a query of [`crate::workload::grid`] by its name, for what it selects and gives |
//! | `drives` | number of drives |
//! | `slower` | how many times slower a core of a drive is than one of the host |
//! | `link_bits_per_s` | link of each drive |
//! | `load` | `idle`, `one` or `changes:SECONDS`, see below |
//! | `policy` | `adaptive`, `full`, `filter` or `raw` |
//! | `slice_rows`, `slice_bytes` | a slice; bytes as stored |
//! | `slices` | slices per drive |
//! | `lower_s_per_row` | scan, filter and projection on a core of the host, seconds per row of a slice |
//! | `upper_s_per_row` | the operators above them on a core of the host, seconds per row of a slice |
//! | `measured_s` | seconds from the beginning of the query to its end |
//!
//! With load `one`, the first drive's processor has an eighth left. With `changes:SECONDS`, the same happens to half of
//! the drives at that time.
//!
//! Optional columns are better known than the grid's values:
//!
//! | column | what | without it |
//! |---|---|---|
//! | `selected`, `row_bytes` | rows that the filter lets through, per row; bytes of each on its way | the grid's |
//! | `groups`, `state_bytes` | groups in all, and bytes of a state on its way | the grid's |
//! | `merge_s_per_state` | merging a state on a core of the host, seconds | [`PRIORS`] |
//! | `before_s` | seconds of a query that reads no slice: planning, and giving the result | 0 |
//! | `session_s` | a drive's planning until it lists its slices, seconds of a core of the host | [`PRIORS`] |
//! | `read_s_per_byte` | reading a byte of a slice from the disk, without operators, seconds of a host core | 0 |
//! | `disk_seek_s` | seconds to move to another place on a drive's disk | the grid's |
//!
//! Costs must come from other runs than the compared ones: `benches/moving.py` measures them over drives behind a fast
//! link. Drives have two cores and the disk rate of the grid, and the host's beliefs of them are right. All slices have
//! the calibrated cost, the first ones too, because the calibration is an average.

use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::query::Policy;
use skytether_scheduler::work::PRIORS;

use crate::fleet::run;
use crate::grid::{Load, Point, Scenario, fleet};
use crate::workload::grid;

/// A run that was measured, and what is simulated of it.
#[derive(Debug, Clone)]
pub struct Real {
    /// Its row of the file.
    pub line: String,
    /// Its policy, as the row names it.
    pub policy: String,
    /// Seconds that it took.
    pub measured: f64,
    /// Seconds that it takes on the simulated clock.
    pub simulated: f64,
}

impl Real {
    /// How much longer the simulated run takes, as a share of the measured one.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.simulated / self.measured - 1.0
    }
}

/// Simulates the runs of `text` on a host that is `ground`'s. The header comes back as well.
///
/// # Errors
/// A column that is missing, a value that makes no sense, a query that there is not: with the line.
pub fn compare(text: &str, ground: &Scenario) -> Result<(String, Vec<Real>), String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or("the file is empty; its first line must name the columns")?;
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let rows = lines.map(|(at, line)| {
        let values: Vec<&str> = line.split(',').map(str::trim).collect();
        let row = Columns { names: &names, values: &values };
        simulate(&row, ground)
            .map(|(measured, simulated)| Real { line: line.to_owned(), policy: row.text("policy").unwrap_or_default().to_owned(), measured, simulated })
            .map_err(|what| format!("line {}: {what}", at + 1))
    });
    Ok((header.to_owned(), rows.collect::<Result<_, _>>()?))
}

struct Columns<'a> {
    names: &'a [&'a str],
    values: &'a [&'a str],
}

impl Columns<'_> {
    fn text(&self, name: &str) -> Result<&str, String> {
        let at = self.names.iter().position(|other| *other == name).ok_or_else(|| format!("there is no column {name}; there are {}", self.names.join(", ")))?;
        self.values.get(at).copied().ok_or_else(|| format!("{name} is missing"))
    }

    /// A number that need not be there: neither its column nor a value in it.
    fn known(&self, name: &str, least: f64) -> Result<Option<f64>, String> {
        match self.text(name) {
            Ok("") | Err(_) => Ok(None),
            Ok(_) => self.number(name, least).map(Some),
        }
    }

    fn number(&self, name: &str, least: f64) -> Result<f64, String> {
        let text = self.text(name)?;
        let value: f64 = text.parse().map_err(|_| format!("{name} is {text}, which is not a number"))?;
        if value.is_finite() && value >= least { Ok(value) } else { Err(format!("{name} is {text}, but must be at least {least}")) }
    }
}

fn simulate(row: &Columns<'_>, ground: &Scenario) -> Result<(f64, f64), String> {
    let kind = row.text("kind")?;
    let known = grid();
    let mut work = known
        .iter()
        .find(|work| work.name == kind)
        .cloned()
        .ok_or_else(|| format!("there is no query {kind}; there are {}", known.iter().map(|work| work.name).collect::<Vec<_>>().join(", ")))?;
    work.truth.lower = row.number("lower_s_per_row", 0.0)?;
    work.truth.upper = row.number("upper_s_per_row", 0.0)?;
    work.rows = row.number("slice_rows", 1.0)? as u32;
    work.bytes = row.number("slice_bytes", 1.0)? as u64;
    let streams = work.truth.result_bytes == work.truth.selected * work.truth.row_bytes;
    work.truth.selected = row.known("selected", 0.0)?.unwrap_or(work.truth.selected);
    work.truth.row_bytes = row.known("row_bytes", 0.0)?.unwrap_or(work.truth.row_bytes);
    if streams {
        work.truth.result_bytes = work.truth.selected * work.truth.row_bytes;
    }
    if let Some((groups, bytes)) = work.truth.states {
        work.truth.states = Some((row.known("groups", 1.0)?.unwrap_or(groups), row.known("state_bytes", 0.0)?.unwrap_or(bytes)));
    }
    work.truth.merge = row.known("merge_s_per_state", 0.0)?.unwrap_or(PRIORS.merge_s_per_state);
    work.truth.read = row.known("read_s_per_byte", 0.0)?.unwrap_or(0.0);
    let before = row.known("before_s", 0.0)?.unwrap_or(0.0);
    let policy = match row.text("policy")? {
        "adaptive" => Policy::Adaptive,
        "full" => Policy::Static(PushdownLevel::Full),
        "filter" => Policy::Static(PushdownLevel::Filter),
        "raw" => Policy::Static(PushdownLevel::Raw),
        other => return Err(format!("policy is {other}, but must be adaptive, full, filter or raw")),
    };
    let (load, change) = match row.text("load")? {
        "idle" => (Load::Idle, 0.0),
        "one" => (Load::OneOverloaded, 0.0),
        other => match other.strip_prefix("changes:").and_then(|at| at.parse::<f64>().ok()).filter(|at| *at >= 0.0 && at.is_finite()) {
            Some(at) => (Load::Changes, at),
            None => return Err(format!("load is {other}, but must be idle, one or changes:SECONDS")),
        },
    };
    let measured = row.number("measured_s", 1e-6)?;
    let point =
        Point { work, slower: row.number("slower", 1e-3)?, gbit: row.number("link_bits_per_s", 1.0)? / 1e9, drives: row.number("drives", 1.0)? as u32, load };
    let ground = Scenario { slices: row.number("slices", 1.0)? as u32, ..*ground };
    let mut fleet = fleet(&point, &ground, ground.seed, change);
    (fleet.noise, fleet.warm_up, fleet.off) = (0.0, (0, 1.0), (1.0, 1.0));
    fleet.session = row.known("session_s", 0.0)?.unwrap_or(PRIORS.session_s);
    for drive in &mut fleet.drives {
        drive.is.disk_seek_s = row.known("disk_seek_s", 0.0)?.unwrap_or(drive.is.disk_seek_s);
        drive.believed = drive.is;
    }
    let outcome = run(&fleet, &point.work, policy, ground.seed);
    if outcome.answer.as_ref() != Some(&outcome.expected) {
        return Err("the simulated run does not end with the right answer".to_owned());
    }
    Ok((measured, before + outcome.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "kind,drives,slower,link_bits_per_s,load,policy,slice_rows,slice_bytes,slices,lower_s_per_row,upper_s_per_row,measured_s,machine";

    #[test]
    fn measured_times_are_listed_next_to_simulated_ones() {
        // A millisecond a slice on the drive's two cores, fifteen times slower; then all four of the host's.
        let text = format!(
            "{HEADER}\n10 groups,1,15,1e10,idle,full,50000,100000,100,1e-8,1e-8,0.7,x\n\n10 groups,1,15,1e10,idle,adaptive,50000,100000,100,1e-8,1e-8,0.1,x\n"
        );
        let (header, rows) = compare(&text, &Scenario::default()).unwrap();
        assert_eq!((header.as_str(), rows.len()), (HEADER, 2));
        assert!((rows[0].simulated / 0.75 - 1.0).abs() < 0.1, "100 slices of 15 ms on two cores: {rows:?}");
        assert!((rows[0].deviation() - (rows[0].simulated / 0.7 - 1.0)).abs() < 1e-12);
        assert!(rows[1].simulated < 0.1, "{rows:?}");
    }

    #[test]
    fn measured_selectivity_and_width_override_the_grid() {
        let text = |columns: &str, values: &str| format!("{HEADER}{columns}\n10 groups,1,15,1e8,idle,filter,50000,100000,100,1e-8,1e-8,0.7,x{values}\n");
        let times = |columns: &str, values: &str| compare(&text(columns, values), &Scenario::default()).unwrap().1[0].simulated;
        let plain = times("", "");
        // 80 MB through 12.5 MB/s; half of the rows, of half of the bytes each, take a quarter of that.
        assert!((plain / 6.4 - 1.0).abs() < 0.1, "{plain}");
        assert_eq!(times(",selected,row_bytes", ",,"), plain);
        let quarter = times(",selected,row_bytes", ",0.5,8");
        assert!((quarter / 1.6 - 1.0).abs() < 0.15, "{quarter}");
        assert!((times(",before_s", ",0.25") - plain - 0.25).abs() < 1e-9);
        // A second for each of two cores, fifteen times slower, is less than the link takes; ten are more.
        let slices = 100.0 * 100_000.0;
        let reads = |seconds: f64| times(",read_s_per_byte", &format!(",{}", seconds * 2.0 / 15.0 / slices));
        assert!(reads(1.0) < plain * 1.1 && reads(10.0) > 10.0, "{} {}", reads(1.0), reads(10.0));
    }

    #[test]
    fn invalid_rows_are_reported_with_their_line() {
        let good = "10 groups,1,15,1e10,idle,full,50000,100000,100,1e-8,1e-8,0.7,x";
        for (from, to, says) in [
            ("10 groups", "11 groups", "line 2: there is no query 11 groups; there are filter 0.001%"),
            ("idle", "busy", "load is busy, but must be idle, one or changes:SECONDS"),
            ("full", "most", "policy is most"),
            (",0.7", ",nan", "measured_s is nan, but must be at least"),
            (",15,", ",fast,", "slower is fast, which is not a number"),
            (",1e-8,0.7,x", "", "upper_s_per_row is missing"),
        ] {
            let error = compare(&format!("{HEADER}\n{}", good.replace(from, to)), &Scenario::default()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(compare("kind\n10 groups", &Scenario::default()).unwrap_err().contains("there is no column lower_s_per_row; there are kind"));
        assert!(compare("", &Scenario::default()).unwrap_err().contains("empty"));
    }
}
