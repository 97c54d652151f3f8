//! True costs of queries, from runs that `benches/moving.py` measured. They are in `calibration.csv` next to this file.
//!
//! `regret calibrate bench-out/moving.csv bench-out/moments.csv > crates/sim/calibration.csv` writes them again. A
//! query's costs are the medians over the points at which it was calibrated. `regret real` compares none of these runs.
//! Beliefs of planners are not here. They are priors and what a planner can know, as on hosts, so the decisions must
//! find out how far the truth is from them.

use std::fmt::Write as _;
use std::sync::LazyLock;

/// What a query costs on a core of the machine that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// The query, by its name in [`crate::workload::grid`].
    pub name: String,
    /// Rows of a slice.
    pub rows: u32,
    /// Bytes of a slice as stored, as far as they are read.
    pub bytes: u64,
    /// Seconds for scan, filter and projection, per row of a slice.
    pub lower: f64,
    /// The same for the operators above.
    pub upper: f64,
    /// Bytes of a row that the filter lets through.
    pub row_bytes: f64,
    /// Bytes of a state, and seconds to merge one; 0 where there are none.
    pub state: (f64, f64),
    /// Seconds to read a byte of a slice from a drive's disk, and to verify it; 0 where it was
    /// not measured of this query.
    pub read: f64,
    /// Seconds that a drive plans; 0 where it was not measured of this query.
    pub session: f64,
}

const HEADER: &str = "query,slice_rows,slice_bytes,lower_s_per_slice,upper_s_per_slice,row_bytes,state_bytes,merge_s_per_state,read_s_per_byte,session_s";

/// The file that is kept.
const KEPT: &str = include_str!("../calibration.csv");

static KNOWN: LazyLock<Vec<Costs>> = LazyLock::new(|| KEPT.lines().filter_map(costs).collect());

/// A row of the file; nothing for its header.
fn costs(line: &str) -> Option<Costs> {
    let mut values = line.split(',');
    let name = values.next()?.to_owned();
    let values: Vec<f64> = values.map(|value| value.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)).collect::<Option<_>>()?;
    let [rows, bytes, lower, upper, row_bytes, state_bytes, merge, read, session] = values.try_into().ok()?;
    let costs =
        Costs { name, rows: rows as u32, bytes: bytes as u64, lower: lower / rows, upper: upper / rows, row_bytes, state: (state_bytes, merge), read, session };
    (rows >= 1.0 && bytes >= 1.0).then_some(costs)
}

/// The costs of the query of this name, if it was measured.
#[must_use]
pub fn known(name: &str) -> Option<&'static Costs> {
    KNOWN.iter().find(|costs| costs.name == name)
}

/// What reading a byte costs a drive, in the median of all queries that were measured.
#[must_use]
pub fn read() -> f64 {
    median(KNOWN.iter().map(|costs| costs.read).filter(|read| *read > 0.0).collect()).unwrap_or(0.0)
}

/// The same of what a drive plans.
#[must_use]
pub fn session() -> Option<f64> {
    median(KNOWN.iter().map(|costs| costs.session).filter(|session| *session > 0.0).collect())
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(0.5 * (low + high))
}

/// The share of the most rows of a slice from which on they are believed, as all are of one table: of what statistics
/// and filters leave out, runs counted what was read until a while ago.
const SLICE: f64 = 0.5;

/// The costs in `text`, which `benches/moving.py` wrote, as this file is kept.
///
/// # Errors
/// A column or a value that is missing or makes no sense, with its line.
pub fn calibrate(text: &str) -> Result<String, String> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or("the file is empty; its first line must name the columns")?;
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let mut rows: Vec<(String, [f64; 9])> = Vec::new();
    for (at, line) in lines {
        let values: Vec<&str> = line.split(',').map(str::trim).collect();
        let text = |name: &str| {
            let place = names.iter().position(|other| *other == name).ok_or_else(|| format!("there is no column {name}; there are {}", names.join(", ")))?;
            values.get(place).copied().ok_or_else(|| format!("line {}: {name} is missing", at + 1))
        };
        let number = |name: &str| {
            let value = text(name)?;
            if value.is_empty() { Ok(0.0) } else { value.parse::<f64>().map_err(|_| format!("line {}: {name} is {value}, which is not a number", at + 1)) }
        };
        // Each choice's row repeats the calibrated costs.
        if text("policy")? != "full" {
            continue;
        }
        let slice_rows = number("slice_rows")?;
        let per_slice = |seconds: f64| seconds * slice_rows;
        rows.push((
            text("kind")?.to_owned(),
            [
                slice_rows,
                number("slice_bytes")?,
                per_slice(number("lower_s_per_row")?),
                per_slice(number("upper_s_per_row")?),
                number("row_bytes")?,
                number("state_bytes")?,
                number("merge_s_per_state")?,
                number("read_s_per_byte")?,
                number("session_s")?,
            ],
        ));
    }
    let most = rows.iter().map(|(_, row)| row[0]).fold(0.0, f64::max);
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in &rows {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut text = HEADER.to_owned();
    for name in names {
        let _ = write!(text, "\n{name}");
        for column in 0..9 {
            let of = rows.iter().filter(|(other, _)| other == name).map(|(_, row)| if column == 0 && row[0] < SLICE * most { most } else { row[column] });
            let value = median(of.collect()).unwrap_or(0.0);
            let _ = if column < 2 { write!(text, ",{value:.0}") } else { write!(text, ",{value:e}") };
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_calibration_has_all_measurements() {
        assert_eq!(KEPT.lines().next(), Some(HEADER));
        assert_eq!(KEPT.lines().filter(|line| !line.is_empty()).count(), KNOWN.len() + 1, "a row that makes no sense");
        for name in ["filter 0.001%", "filter 1%", "filter 10%", "filter 100%", "10 groups", "1e6 groups"] {
            let costs = known(name).unwrap_or_else(|| panic!("{name} was not measured"));
            assert!(costs.lower > 1e-9 && costs.lower < 1e-7 && costs.read > 1e-11 && costs.read < 1e-8, "{costs:?}");
        }
        // Of 3,500 and more nonzeros in a row that is a gene; what reading and planning cost is that of the others.
        let moments = known("moments").unwrap();
        assert!(moments.lower > 1e-6 && moments.lower < 1e-5 && moments.upper > 1e-6 && moments.upper < 1e-4 && moments.read == 0.0, "{moments:?}");
        // Conditions first: what few rows pass costs less.
        assert!(known("filter 0.001%").unwrap().lower < 0.6 * known("filter 100%").unwrap().lower);
    }

    #[test]
    fn costs_are_medians_by_query_and_few_rows_are_none_of_a_slice() {
        let header = "kind,policy,slice_rows,slice_bytes,lower_s_per_row,upper_s_per_row,row_bytes,state_bytes,merge_s_per_state,read_s_per_byte,session_s";
        let row = |kind: &str, policy: &str, rows: f64, lower: f64| format!("{kind},{policy},{rows},1000000,{lower},0,20,,,3e-10,0.001\n");
        let text =
            [row("a", "full", 5e4, 1e-8), row("a", "full", 5e4, 2e-8), row("a", "full", 5e4, 6e-8), row("a", "raw", 5e4, 1.0), row("b", "full", 2.0, 5e-5)];
        let kept = calibrate(&format!("{header}\n{}", text.concat())).unwrap();
        let kept: Vec<Costs> = kept.lines().filter_map(costs).collect();
        assert_eq!(kept.len(), 2, "{kept:?}");
        assert!((kept[0].lower - 2e-8).abs() < 1e-12 && kept[0].rows == 50_000, "{kept:?}");
        // Two rows were read of a slice that has as many as others; what that took was the slice's.
        assert!((kept[1].lower - 2.0 * 5e-5 / 5e4).abs() < 1e-15 && kept[1].rows == 50_000, "{kept:?}");
        assert!(calibrate("kind,policy\na,full").unwrap_err().contains("there is no column slice_rows"));
        assert!(calibrate(&format!("{header}\na,full,x")).unwrap_err().contains("line 2: slice_rows is x"));
    }
}
