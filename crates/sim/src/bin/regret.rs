//! Runs the grid of static and adaptive choices, the comparisons next to it, and the calibration.

use std::fmt::Write as _;
use std::process::ExitCode;

use skytether_sim::calibration::calibrate;
use skytether_sim::chaos;
use skytether_sim::equal::curve;
use skytether_sim::grid::{Load, OVERLOAD_BESIDE, Point, Row, Scenario, beside, changes, measure, measure_all, points, summary};
use skytether_sim::real::compare;
use skytether_sim::skyhook::{self, GBIT, MHZ, SERVERS, clocks, links};
use skytether_sim::workload::grid;

const USAGE: &str = "usage:
  regret grid [EVERY [SEED [HOST_GBIT [HOST_CORES]]]]   every EVERYth point of the grid (1): worst points, summary
  regret csv [EVERY [SEED [HOST_GBIT [HOST_CORES]]]]    the same, all rows as CSV
  regret beside [SEED]                                  points between and beyond those of the grid: 8 and 30 times slower, 0.5 and 5 Gb/s, 2 and 8 drives, loads of 3
  regret beside_csv [SEED]                              the same, all rows as CSV
  regret point QUERY/SLOWER/GBIT/DRIVES/LOAD [SEED [LINKS]]   one point, with every message and plan on the standard error; links are taken to be LINKS times as quick as they are (1)
  regret equal [QUERY [PROFILE]]                        how many slow drives equal one host, as CSV (moments, envoy)
  regret clocks [SLICES [SEED]]                         Skyhook's storage servers at clock rates, as CSV; slices of each server (1840)
  regret links [SLICES [SEED]]                          Skyhook's interfaces from 10 Gb/s down, as CSV
  regret calibrate FILE.csv [FILE.csv]                  what queries cost, as benches/moving.py measured it (also with --moments), as crates/sim/calibration.csv is kept
  regret real FILE.csv [HOST_GBIT [HOST_CORES]]         runs that were measured beside the same simulated, as CSV; columns: src/real.rs
  regret chaos SEED                                     one seed of the runs with faults, with every message";

/// How far simulated runs may be from measured ones, as a share of those.
const NEAR: f64 = 0.15;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn number<T: std::str::FromStr>(arguments: &[String], at: usize, otherwise: T) -> Result<T, String> {
    arguments.get(at).map_or(Ok(otherwise), |text| text.parse().map_err(|_| format!("{text} is not a number\n{USAGE}")))
}

fn run(arguments: &[String]) -> Result<String, String> {
    let word = arguments.first().map_or("", String::as_str);
    match word {
        "grid" | "csv" => {
            let every = number(arguments, 1, 1_usize)?.max(1);
            let known = Scenario::default();
            let ground = Scenario {
                seed: number(arguments, 2, known.seed)?,
                host_gbit: number(arguments, 3, known.host_gbit)?,
                host_cores: number(arguments, 4, known.host_cores)?,
                ..known
            };
            let points: Vec<Point> = points().into_iter().step_by(every).collect();
            let rows = measure_all(&points, &ground);
            Ok(if word == "csv" { csv(&rows) } else { table(rows) })
        }
        "beside" | "beside_csv" => {
            let ground = Scenario { seed: number(arguments, 1, 1)?, overload: OVERLOAD_BESIDE, ..Scenario::default() };
            let rows = measure_all(&beside(), &ground);
            Ok(if word == "beside_csv" { csv(&rows) } else { table(rows) })
        }
        "calibrate" => {
            let mut lines: Vec<String> = Vec::new();
            for path in arguments.get(1..).filter(|paths| !paths.is_empty()).ok_or(USAGE)? {
                let text = std::fs::read_to_string(path).map_err(|error| format!("{path} can't be read: {error}"))?;
                let found = calibrate(&text).map_err(|error| format!("{path}: {error}"))?;
                // Each file has the header.
                lines.extend(found.lines().skip(usize::from(!lines.is_empty())).map(str::to_owned));
            }
            Ok(lines.join("\n"))
        }
        "point" => {
            let ground = Scenario { seed: number(arguments, 2, 1)?, links: number(arguments, 3, 1.0)?, ..Scenario::default() };
            let wanted = arguments.get(1).ok_or(USAGE)?;
            let point = points().into_iter().find(|point| name(point) == *wanted).ok_or_else(|| format!("there is no point {wanted}\n{USAGE}"))?;
            Ok(line(&measure(&point, &ground, true)))
        }
        "equal" => {
            let wanted = arguments.get(1).map_or("moments", String::as_str);
            let work = grid().into_iter().find(|work| work.name == wanted).ok_or_else(|| format!("there is no query {wanted}\n{USAGE}"))?;
            let profile = arguments.get(2).map_or("envoy", String::as_str);
            let mut text = "drives,one_core_s,host_s,full_s,raw_s,adaptive_s".to_owned();
            for at in curve(&work, profile, &Scenario::default()).map_err(|error| error.to_string())? {
                let _ = write!(text, "\n{},{:.4},{:.4},{:.4},{:.4},{:.4}", at.drives, at.one_core, at.host, at.full, at.raw, at.adaptive);
            }
            Ok(text)
        }
        "clocks" => {
            let mut text = "servers,mhz,client_s,full_s,adaptive_s".to_owned();
            for row in clocks(&SERVERS, &MHZ, &skyhooks(arguments)?) {
                let _ = write!(text, "\n{},{},{:.4},{:.4},{:.4}", row.servers, row.mhz, row.client, row.full, row.adaptive);
            }
            Ok(text)
        }
        "links" => {
            let mut text = "gbit,client_s,full_s,adaptive_s".to_owned();
            for (gbit, times) in links(&GBIT, &skyhooks(arguments)?) {
                let _ = write!(text, "\n{gbit},{:.4},{:.4},{:.4}", times.client, times.servers, times.adaptive);
            }
            Ok(text)
        }
        "real" => {
            let path = arguments.get(1).ok_or(USAGE)?;
            let text = std::fs::read_to_string(path).map_err(|error| format!("{path} can't be read: {error}"))?;
            let known = Scenario::default();
            let ground = Scenario { host_gbit: number(arguments, 2, known.host_gbit)?, host_cores: number(arguments, 3, known.host_cores)?, ..known };
            let (header, rows) = compare(&text, &ground).map_err(|error| format!("{path}: {error}"))?;
            let mut text = format!("{header},simulated_s,deviation");
            for row in &rows {
                let _ = write!(text, "\n{},{:.5},{:.4}", row.line, row.simulated, row.deviation());
            }
            let policies: std::collections::BTreeSet<&str> = rows.iter().map(|row| row.policy.as_str()).collect();
            for policy in policies {
                let mut of: Vec<f64> = rows.iter().filter(|row| row.policy == policy).map(|row| row.simulated / row.measured).collect();
                of.sort_by(f64::total_cmp);
                let near = of.iter().filter(|ratio| (*ratio - 1.0).abs() <= NEAR).count();
                let (least, middle, most) = (of[0], of[of.len() / 2], of[of.len() - 1]);
                eprintln!(
                    "{policy}: simulated {middle:.2} times as long as measured in the median, {least:.2} to {most:.2}; {near} of {} within 15%",
                    of.len()
                );
            }
            let near = rows.iter().filter(|row| row.deviation().abs() <= NEAR).count();
            eprintln!("{near} of {} runs within 15% of what was measured", rows.len());
            Ok(text)
        }
        "chaos" => chaos::check(number(arguments, 1, 0)?, true).map(|outcome| format!("{outcome:?}")),
        _ => Err(USAGE.to_owned()),
    }
}

fn skyhooks(arguments: &[String]) -> Result<Scenario, String> {
    let known = Scenario::default();
    Ok(Scenario { slices: number(arguments, 1, skyhook::SLICES)?.max(1), seed: number(arguments, 2, known.seed)?, ..known })
}

fn name(point: &Point) -> String {
    format!("{}/{}/{}/{}/{:?}", point.work.name, point.slower, point.gbit, point.drives, point.load)
}

fn csv(rows: &[Row]) -> String {
    let mut text = "query,slower,gbit,drives,load,full_s,filter_s,raw_s,adaptive_s,regret,over_raw,moved_bytes,bound_s,bound_by,blind_s".to_owned();
    for row in rows {
        let (point, [full, filter, raw]) = (&row.point, row.fixed);
        let _ = write!(
            text,
            "\n{},{},{},{},{:?},{full:.5},{filter:.5},{raw:.5},{:.5},{:.5},{:.5},{:.0},{:.5},{},{:.5}",
            point.work.name,
            point.slower,
            point.gbit,
            point.drives,
            point.load,
            row.adaptive,
            row.regret(),
            row.over_raw(),
            row.outcome.moved,
            row.bound.seconds,
            row.bound.by.as_str(),
            row.blind
        );
    }
    text
}

fn line(row: &Row) -> String {
    let [full, filter, raw] = row.fixed;
    let moved = row.outcome.slices.iter().map(|(rung, slices)| format!("{slices} {}", rung.as_str())).collect::<Vec<_>>().join(", ");
    format!(
        "{:36} full {full:9.3} filter {filter:9.3} raw {raw:9.3} adaptive {:9.3} regret {:6.1}%, {moved} in {} epochs, {} dropped",
        name(&row.point),
        row.adaptive,
        row.regret() * 100.0,
        row.outcome.epochs.0,
        row.outcome.epochs.1
    )
}

fn table(mut rows: Vec<Row>) -> String {
    let all = summary(&rows);
    rows.sort_by(|a, b| b.regret().total_cmp(&a.regret()));
    let mut text = String::new();
    for row in rows.iter().take(30) {
        let _ = writeln!(text, "{}", line(row));
    }
    for load in [Load::Idle, Load::OneOverloaded, Load::Changes] {
        let of: Vec<Row> = rows.iter().filter(|row| row.point.load == load).cloned().collect();
        let [median, p95, worst] = summary(&of).regret.map(|share| share * 100.0);
        let _ = writeln!(text, "{load:?}: {} points, regret median {median:.2}%, 95th percentile {p95:.2}%, worst {worst:.2}%", of.len());
    }
    let [median, p95, worst] = all.regret.map(|share| share * 100.0);
    let _ = writeln!(
        text,
        "all: {} points, regret median {median:.2}%, 95th percentile {p95:.2}%, worst {worst:.2}%; at most {:.2}% slower than all on the host",
        rows.len(),
        all.over_raw * 100.0
    );
    let mut above: Vec<f64> = rows.iter().map(|row| row.adaptive / row.bound.seconds).collect();
    above.sort_by(f64::total_cmp);
    let _ = writeln!(text, "against what nothing can beat: {:.2} times as long in the median", above.get(above.len() / 2).copied().unwrap_or(0.0));
    let _ = writeln!(text, "\nwhere the load changes, the misses by what holds up whoever is quickest (all columns but the second are misses):");
    let _ = writeln!(text, "{:26} {:>7} {:>7} {:>12} {:>12} {:>10} {:>7}", "", "points", "better", "room <= 1%", "room <= 2%", "foresight", "missed");
    let mut lines: Vec<(String, Vec<&Row>)> = Vec::new();
    let mut add = |name: String, row| match lines.iter_mut().find(|(other, _)| *other == name) {
        Some((_, rows)) => rows.push(row),
        None => lines.push((name, vec![row])),
    };
    rows.sort_by_key(|row| row.bound.by);
    for row in rows.iter().filter(|row| row.point.load == Load::Changes) {
        add(row.bound.by.as_str().to_owned(), row);
    }
    for row in rows.iter().filter(|row| row.point.load == Load::Changes) {
        add(row.point.work.name.to_owned(), row);
        add(format!("{} times slower", row.point.slower), row);
        add(format!("{} Gb/s", row.point.gbit), row);
        add(format!("{} drives", row.point.drives), row);
        add("all".to_owned(), row);
    }
    lines.sort_by_key(|(name, _)| name == "all");
    for (name, rows) in lines {
        let of = changes(rows);
        let _ = writeln!(text, "{name:26} {:7} {:7} {:12} {:12} {:10} {:7}", of.all, of.better, of.shut, of.nearly_shut, of.foreseen, of.missed);
    }
    let _ = write!(text, "within 1% of the best static choice, of all that are not better: {}", all.changes.level);
    text
}
