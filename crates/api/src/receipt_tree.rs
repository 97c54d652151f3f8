//! What ran where as one tree: the host's operators, below them the drives, and below these what each of them ran.

use std::fmt;

use skytether_common::operator_stats::shortened;
use skytether_common::plan_words::is_plumbing;
use skytether_common::units::{human_bytes, human_seconds};
use skytether_device::{Annotation, OperatorNote, ParentWork};

use crate::receipt::{HostOperator, Receipt, ScanReceipt, ShippedReceipt, natural, telling};

/// Characters of the tree's part of a line; figures stand to the right of it.
const WIDTH: usize = 76;

/// The smallest and largest figure of several drives are shown with the sum where the ratio of both is above this.
const UNEVEN: f64 = 2.0;

/// A receipt as a tree of all operators. Columns: rows, seconds of work (for a drive: from the sub-plan's arrival to
/// the last row), and further figures.
pub(crate) struct Tree<'a>(pub(crate) &'a Receipt);

/// An operator or a drive with what lies below it.
#[derive(Debug, Default)]
struct Branch {
    title: String,
    rows: String,
    seconds: String,
    more: Vec<String>,
    remarks: Vec<String>,
    below: Vec<Branch>,
}

impl fmt::Display for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Receipt { host, scans, notes, .. } = self.0;
        line(f, "", "rows", "time", "")?;
        let mut at = 0;
        for root in host_branches(host, scans, &mut at, 0) {
            root.write(f, "", "")?;
        }
        let hidden: Vec<_> = host.iter().filter(|o| o.plumbing).collect();
        if !hidden.is_empty() {
            let seconds = hidden.iter().map(|o| o.note.seconds).sum();
            let what = if hidden.len() == 1 { "1 step that only hands".to_owned() } else { format!("{} steps that only hand", hidden.len()) };
            writeln!(f, "not shown: {what} rows on, {}", human_seconds(seconds))?;
        }
        if self.0.host_peak_memory > 0 {
            writeln!(f, "the host's operators together held at most {} of memory", human_bytes(self.0.host_peak_memory))?;
        }
        let shown = |reason: &str| host.iter().any(|o| !o.plumbing && o.reason.as_deref() == Some(reason));
        for note in telling(notes).filter(|note| !note.split_once(": ").is_some_and(|(_, reason)| shown(reason))) {
            writeln!(f, "on the host: {note}")?;
        }
        Ok(())
    }
}

impl Branch {
    fn write(&self, f: &mut fmt::Formatter<'_>, first: &str, rest: &str) -> fmt::Result {
        line(f, &format!("{first}{}", self.title), &self.rows, &self.seconds, &self.more.join(", "))?;
        let bar = if self.below.is_empty() { " " } else { "│" };
        for remark in &self.remarks {
            writeln!(f, "{rest}{bar}    {remark}")?;
        }
        for (i, branch) in self.below.iter().enumerate() {
            let (fork, bar) = if i + 1 == self.below.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            branch.write(f, &format!("{rest}{fork}"), &format!("{rest}{bar}"))?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, tree: &str, rows: &str, seconds: &str, more: &str) -> fmt::Result {
    let text = format!("{:<WIDTH$} {rows:>12} {seconds:>9}  {more}", shortened(tree, WIDTH));
    writeln!(f, "{}", text.trim_end())
}

/// The operators from number `at` on that lie at `depth` or deeper. Operators that only pass rows on are left out, and
/// what is below them moves up.
fn host_branches(operators: &[HostOperator], scans: &[ScanReceipt], at: &mut usize, depth: u32) -> Vec<Branch> {
    let mut branches = Vec::new();
    while let Some(operator) = operators.get(*at).filter(|o| o.note.depth >= depth) {
        *at += 1;
        let below = host_branches(operators, scans, at, operator.note.depth + 1);
        if operator.plumbing {
            branches.extend(below);
            continue;
        }
        let mut branch = Branch { below, ..of_operator(&operator.note) };
        branch.remarks.extend(operator.reason.clone());
        if let Some((number, scan)) = operator.scan.and_then(|n| Some((n, scans.iter().find(|s| s.sub_plan_number == Some(n))?))) {
            branch.title = format!("Drives: {}, sub-plan {number} ({})", scan.table, scan.rung.as_str());
            branch.seconds.clear();
            branch.more = vec![format!("a plan of {}", human_bytes(scan.plan_bytes))];
            if scan.join_filters > 0 {
                branch
                    .more
                    .push(format!("with the keys of {}", if scan.join_filters == 1 { "a join".to_owned() } else { format!("{} joins", scan.join_filters) }));
            }
            if let Some(estimate) = &scan.estimate {
                branch.remarks.extend(estimate.to_string().lines().map(ToOwned::to_owned));
            }
            let beside = std::mem::take(&mut branch.below);
            branch.below = scan.beside.iter().zip(beside).map(|(table, made)| of_shipped(table, made)).collect();
            branch.below.extend(drive_branches(scan));
        }
        branches.push(branch);
    }
    branches
}

/// A broadcast table, above the operators that made it.
fn of_shipped(table: &ShippedReceipt, made: Branch) -> Branch {
    Branch {
        title: format!("Broadcast: {}", table.name),
        rows: table.rows.to_string(),
        more: vec![format!("{} to each drive", human_bytes(table.bytes))],
        below: vec![made],
        ..Branch::default()
    }
}

fn of_operator(note: &OperatorNote) -> Branch {
    let mut branch = Branch {
        title: title(&note.name, &note.detail),
        rows: note.rows_out.map(|rows| rows.to_string()).unwrap_or_default(),
        seconds: if note.rows_out.is_some() { human_seconds(note.seconds) } else { String::new() },
        ..Branch::default()
    };
    if note.peak_memory > 0 {
        branch.more.push(format!("{} of memory", human_bytes(note.peak_memory)));
    }
    if note.bytes_spilled > 0 {
        branch.more.push(format!("{} put aside on disk", human_bytes(note.bytes_spilled)));
    }
    branch
}

/// An operator as people call it: `Hash join: on=(a = b)`.
fn title(name: &str, detail: &str) -> String {
    let parts: Vec<&str> = detail.split(", ").collect();
    let name = if name == "AggregateExec" && parts.contains(&"mode=Partial") { "AggregateInPartsExec" } else { name };
    if name == "DataSourceExec" && parts.contains(&"format=memory") {
        return "Rows that came with the plan".to_owned();
    }
    let mut words = String::new();
    for c in name.strip_suffix("Exec").unwrap_or(name).chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push(' ');
            words.extend(c.to_lowercase());
        } else {
            words.push(c);
        }
    }
    let words = match words.as_str() {
        "Slice scan" => "Scan",
        "Sort exec( top k)" => "First rows",
        "Sort preserving merge" => "Merge of sorted rows",
        "Global limit" | "Coalesce partitions" => "Limit",
        "Local limit" => "Limit in parts",
        "Window agg" | "Bounded window agg" => "Window",
        "Interleave" => "Union",
        "Scalar subquery" => "With the value of a subquery",
        other => other,
    };
    let said: Vec<_> = parts.into_iter().filter(|part| !part.is_empty() && !part.starts_with("mode=")).map(plain).collect();
    if said.is_empty() { words.to_owned() } else { format!("{words}: {}", said.join(", ")) }
}

/// A property without what is obvious: its name where there is only one, a column's position (`a@2`), an alias equal to
/// the name.
fn plain(part: &str) -> String {
    let part = ["predicate=", "columns=", "select_list="].iter().find_map(|name| part.strip_prefix(name)).unwrap_or(part);
    let mut pieces = part.split('@');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|c: char| c.is_ascii_digit());
        if rest.len() == piece.len() {
            text.push('@');
        }
        text.push_str(rest);
    }
    match text.split_once('=') {
        Some((name, value)) if name == value => value.to_owned(),
        _ => text,
    }
}

fn drive_branches(scan: &ScanReceipt) -> Vec<Branch> {
    if scan.annotations.is_empty() {
        return vec![Branch { title: "no drive was asked".to_owned(), ..Branch::default() }];
    }
    let mut annotations: Vec<_> = scan.annotations.iter().collect();
    annotations.sort_by_key(|a| natural(&a.cse));
    let mut branches: Vec<_> = annotations.iter().map(|a| of_drive(a)).collect();
    branches.extend(of_host(scan));
    // Drives that ran the same operators are shown together; others have optimised the sub-plan differently.
    let mut groups: Vec<Vec<&Annotation>> = Vec::new();
    for annotation in annotations.into_iter().filter(|a| !a.operators.is_empty()) {
        match groups.iter_mut().find(|group| same_shape(group[0], annotation)) {
            Some(group) => group.push(annotation),
            None => groups.push(vec![annotation]),
        }
    }
    for group in groups {
        let title = match group.as_slice() {
            [one] => format!("{} ran", one.cse),
            all if all.len() == scan.annotations.len() => "each drive ran".to_owned(),
            some => format!("{} ran", some.iter().map(|a| a.cse.as_str()).collect::<Vec<_>>().join(", ")),
        };
        let below = operator_branches(&group, &mut 0, 0);
        branches.push(Branch { title, below, ..Branch::default() });
    }
    branches
}

/// What the host processed of what drives sent it.
fn of_host(scan: &ScanReceipt) -> Option<Branch> {
    let mut work = ParentWork::default();
    scan.annotations.iter().for_each(|a| work.add(a.above));
    if work.is_none() {
        return None;
    }
    let mut more = Vec::new();
    if work.slices > 0 {
        more.push(format!("{} rows read", work.rows_read));
        more.push(format!("{} slices that drives handed out", work.slices));
        more.push(format!("{} of them", human_bytes(work.bytes_read)));
    }
    Some(Branch { title: "the host in the place of drives".to_owned(), seconds: human_seconds(work.seconds), more, ..Branch::default() })
}

fn of_drive(a: &Annotation) -> Branch {
    let mut more = Vec::new();
    if let Some(rows) = a.rows_read {
        more.push(format!("{rows} rows read"));
    }
    let told = if a.cached {
        ", all others in a kept result".to_owned()
    } else if a.slices_told > 0 {
        format!(", {} told by metadata", a.slices_told)
    } else {
        String::new()
    };
    more.push(match a.slices_total {
        Some(total) => format!("{} of {total} slices read, {} pruned{told}", a.slices, a.slices_pruned),
        None => format!("{} slices read, {} pruned{told}", a.slices, a.slices_pruned),
    });
    more.push(format!("{} read", human_bytes(a.bytes_read)));
    more.push(format!("{} sent", human_bytes(a.bytes_sent)));
    if a.peak_memory > 0 {
        more.push(format!("{} of memory", human_bytes(a.peak_memory)));
    }
    Branch {
        title: a.cse.clone(),
        rows: a.rows_out.to_string(),
        seconds: human_seconds(a.seconds),
        more,
        remarks: a.reason.clone().into_iter().collect(),
        below: a.below.iter().map(of_drive).collect(),
    }
}

fn same_shape(a: &Annotation, b: &Annotation) -> bool {
    a.operators.len() == b.operators.len() && a.operators.iter().zip(&b.operators).all(|(a, b)| a.name == b.name && a.depth == b.depth)
}

/// Whether a drive had an operator's rows of the metadata of its tables: one row, with no scan below it.
fn out_of_metadata(operators: &[OperatorNote], at: usize) -> bool {
    let [row, below] = [operators.get(at), operators.get(at + 1)];
    row.is_some_and(|o| o.name == "ProjectionExec") && below.is_some_and(|o| o.name == "PlaceholderRowExec")
}

/// The operators of drives that ran the same ones, added up.
fn operator_branches(group: &[&Annotation], at: &mut usize, depth: u32) -> Vec<Branch> {
    let mut branches = Vec::new();
    while let Some(first) = group[0].operators.get(*at).filter(|o| o.depth >= depth) {
        let notes: Vec<&OperatorNote> = group.iter().filter_map(|a| a.operators.get(*at)).collect();
        if out_of_metadata(&group[0].operators, *at) {
            *at += 2;
            branches.push(Branch { title: "Counts and bounds, out of metadata".to_owned(), ..summed(&notes) });
            continue;
        }
        *at += 1;
        let below = operator_branches(group, at, first.depth + 1);
        if is_plumbing(&first.name, first.detail.contains("fetch") || first.detail.contains("limit=")) {
            branches.extend(below);
        } else {
            branches.push(Branch { below, ..summed(&notes) });
        }
    }
    branches
}

fn summed(notes: &[&OperatorNote]) -> Branch {
    let sum = OperatorNote {
        name: notes[0].name.clone(),
        // A detail that differs between drives can't be shown for all.
        detail: if notes.iter().all(|n| n.detail == notes[0].detail) { notes[0].detail.clone() } else { String::new() },
        rows_out: notes.iter().try_fold(0u64, |sum, n| Some(sum.saturating_add(n.rows_out?))),
        seconds: notes.iter().map(|n| n.seconds).sum(),
        peak_memory: notes.iter().map(|n| n.peak_memory).max().unwrap_or(0),
        bytes_spilled: notes.iter().map(|n| n.bytes_spilled).fold(0, u64::saturating_add),
        depth: 0,
    };
    let mut branch = of_operator(&sum);
    let rows = notes.iter().filter_map(|n| n.rows_out);
    if let (Some(least), Some(most)) = (rows.clone().min(), rows.max())
        && most as f64 > UNEVEN * least as f64
        && notes.len() > 1
    {
        branch.more.insert(0, format!("{least} to {most} rows per drive"));
    }
    let (least, most) = notes.iter().fold((f64::INFINITY, 0f64), |(least, most), n| (least.min(n.seconds), most.max(n.seconds)));
    if most > UNEVEN * least && most > 1e-3 && notes.len() > 1 {
        branch.more.push(format!("{} to {} per drive", human_seconds(least), human_seconds(most)));
    }
    branch
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_device::PushdownLevel;

    fn note(name: &str, depth: u32, rows: u64, seconds: f64) -> OperatorNote {
        OperatorNote { name: name.into(), depth, rows_out: Some(rows), seconds, ..OperatorNote::default() }
    }

    fn drive(cse: &str, rows: u64, operators: Vec<OperatorNote>) -> Annotation {
        Annotation { cse: cse.into(), rung: Some(PushdownLevel::Full), rows_out: rows, operators, slices: 1, slices_pruned: 2, ..Annotation::default() }
    }

    fn tree(receipt: &Receipt) -> Vec<String> {
        Tree(receipt).to_string().lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// Drives with equal operators are one branch of the tree, with sums. A drive with another plan has a branch of its
    /// own.
    #[test]
    fn tree_sums_drives_with_equal_operators_and_lists_the_rest() {
        let plain = |rows, seconds| vec![note("AggregateExec", 0, 2, 0.001), note("SliceScanExec", 1, rows, seconds)];
        let other = vec![note("AggregateExec", 0, 2, 0.001), note("CoalescePartitionsExec", 1, 7, 0.0), note("SliceScanExec", 2, 7, 0.001)];
        let scan = ScanReceipt {
            table: "a.b".into(),
            rung: PushdownLevel::Full,
            sub_plan: String::new(),
            sub_plan_number: Some(0),
            plan_bytes: 2048,
            beside: vec![ShippedReceipt { name: "__shipped_0".into(), rows: 3, bytes: 512 }],
            estimate: None,
            join_filters: 1,
            annotations: vec![
                drive("drive-0", 2, plain(10, 0.002)),
                drive("drive-1", 2, plain(90, 0.009)),
                drive("drive-2", 2, other),
                drive("drive-3", 0, vec![]),
            ],
        };
        let host = |note, plumbing, scan| HostOperator { note, plumbing, scan, reason: None };
        let mut aggregate = host(OperatorNote { peak_memory: 1024, bytes_spilled: 2048, ..note("AggregateExec", 0, 2, 0.5) }, false, None);
        aggregate.reason = Some("it merges".into());
        let receipt = Receipt {
            host: vec![
                aggregate,
                host(note("YieldingJoinExec", 1, 0, 0.25), true, None),
                host(note("DriveScanExec", 2, 6, 0.0), false, Some(0)),
                host(note("CoalescePartitionsExec", 3, 3, 0.0), true, None),
                host(note("FilterExec", 4, 3, 0.001), false, None),
            ],
            scans: vec![scan],
            notes: vec!["Aggregate: it merges".into(), "Sort: too long".into()],
            ..Receipt::default()
        };
        assert_eq!(
            tree(&receipt),
            [
                "rows time",
                "Aggregate 2 500.0 ms 1.00 KiB of memory, 2.00 KiB put aside on disk",
                "│ it merges",
                "└─ Drives: a.b, sub-plan 0 (full) 6 a plan of 2.00 KiB, with the keys of a join",
                "├─ Broadcast: __shipped_0 3 512 B to each drive",
                "│ └─ Filter 3 1.0 ms",
                "├─ drive-0 2 0 µs 1 slices read, 2 pruned, 0 B read, 0 B sent",
                "├─ drive-1 2 0 µs 1 slices read, 2 pruned, 0 B read, 0 B sent",
                "├─ drive-2 2 0 µs 1 slices read, 2 pruned, 0 B read, 0 B sent",
                "├─ drive-3 0 0 µs 1 slices read, 2 pruned, 0 B read, 0 B sent",
                "├─ drive-0, drive-1 ran",
                "│ └─ Aggregate 4 2.0 ms",
                "│ └─ Scan 100 11.0 ms 10 to 90 rows per drive, 2.0 ms to 9.0 ms per drive",
                "└─ drive-2 ran",
                "└─ Aggregate 2 1.0 ms",
                "└─ Scan 7 1.0 ms",
                "not shown: 2 steps that only hand rows on, 250.0 ms",
                "on the host: Sort: too long",
            ]
        );
    }

    #[test]
    fn operators_have_readable_names() {
        for (name, text) in [("HashJoinExec", "Hash join"), ("BoundedWindowAggExec", "Window"), ("SliceScanExec", "Scan"), ("Strange", "Strange")] {
            assert_eq!(title(name, ""), text);
        }
        assert_eq!(title("DataSourceExec", "format=memory, rows=1, bytes=800"), "Rows that came with the plan");
        assert_eq!(title("FilterExec", "predicate=a@0 > 3"), "Filter: a > 3");
        assert_eq!(title("AggregateExec", "mode=Partial, group_by=k"), "Aggregate in parts: group_by=k");
        assert_eq!(title("ProjectionExec", "k=k, n=max(t.@home)"), "Projection: k, n=max(t.@home)");
    }
}
