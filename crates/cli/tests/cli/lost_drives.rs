//! What commands say of drives that an embedded fleet lacks, and of those that it no longer needs.

use std::collections::{BTreeMap, BTreeSet};

use crate::util::{file, run, run_with, text};

/// The log has a short line for each, `status` one with the advice; none has a time and a module.
#[test]
fn each_lost_drive_gets_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    run(&["init", text(&at), "--drives", "5", "--redundancy", "ec:3+2"]).code(0);
    run(&["ingest", &file(dir.path(), "t.csv", "v\n1\n2\n"), "--to", "d.t", "--fleet", text(&at)]).code(0);
    for n in [1, 3] {
        std::fs::remove_dir_all(at.join("drives").join(n.to_string())).unwrap();
    }
    let sql = ["sql", "SELECT sum(v) AS s FROM d.t", "--format", "csv", "--fleet", text(&at)];
    let asked = run(&sql).code(0);
    let lines: Vec<&str> = asked.err.lines().collect();
    assert!(asked.out == "s\n3\n" && lines.len() == 2, "{asked:?}");
    for (line, n) in lines.iter().zip([1, 3]) {
        assert!(
            line.starts_with(&format!("skytether: drive-{n} is lost: it is missing: ")) && line.ends_with("; `skytether status` says what to do"),
            "{line}"
        );
    }
    let logged = run_with(&sql, &[("SKYTETHER_LOG", "warn")]).code(0);
    assert!(logged.err.lines().count() == 2 && logged.err.lines().all(|line| line.contains(" WARN ") && line.contains("is lost: ")), "{logged:?}");

    let status = run(&["status", "--fleet", text(&at)]).code(1);
    let lines: Vec<&str> = status.err.lines().collect();
    assert_eq!(lines.len(), 2, "{status:?}");
    for (line, n) in lines.iter().zip([1, 3]) {
        assert!(line.starts_with(&format!("skytether: drive-{n} is lost: ")) && line.contains(&format!("--replace drive-{n}`")), "{line}");
    }
    let list = run(&["ls", "--fleet", text(&at)]).code(0);
    assert!(list.err.lines().count() == 1 && list.err.contains("drive-1, drive-3 are lost; the list is whole"), "{list:?}");
}

/// Keys of a data set on each drive, by its name.
fn located(at: &str) -> (BTreeMap<String, u64>, serde_json::Value) {
    let found: serde_json::Value = serde_json::from_str(&run(&["locate", "d.t", "--fleet", at, "--format", "json"]).code(0).out).unwrap();
    let mut keys = BTreeMap::new();
    for value in found["values"].as_array().unwrap() {
        *keys.entry(value["drive"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    (keys, found)
}

#[test]
fn located_values_are_all_that_the_drives_hold() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    run(&["init", text(&at), "--drives", "3", "--redundancy", "ec:2+1"]).code(0);
    let lines: String = (0..50_000).map(|n| format!("{n},{}\n", n * 7919 % 1000)).collect();
    run(&["ingest", &file(dir.path(), "t.csv", &format!("a,b\n{lines}")), "--to", "d.t", "--fleet", text(&at)]).code(0);
    let (keys, found) = located(text(&at));
    let status: serde_json::Value = serde_json::from_str(&run(&["status", "--fleet", text(&at), "--format", "json"]).code(0).out).unwrap();
    for drive in status.as_array().unwrap() {
        // One more is the membership record.
        assert_eq!(keys.get(drive["info"]["name"].as_str().unwrap()).copied().unwrap_or(0) + 1, drive["usage"]["keys"].as_u64().unwrap(), "{keys:?} {status}");
    }
    let roles: BTreeSet<&str> = found["values"].as_array().unwrap().iter().map(|value| value["role"].as_str().unwrap()).collect();
    assert_eq!(roles, BTreeSet::from(["metadata", "parity", "root record", "slice"]));
    let each = run(&["locate", "d.t", "--values", "--fleet", text(&at)]).code(0);
    let value = &found["values"][0];
    assert!(each.out.lines().any(|line| ["key", "crc32c", "drive"].iter().all(|of| line.contains(value[of].as_str().unwrap()))), "{value} {each:?}");
    let summed = run(&["locate", "d.t", "--fleet", text(&at)]).code(0);
    assert!(summed.out.lines().count() < each.out.lines().count() && summed.out.contains("parity"), "{summed:?}");

    std::fs::remove_dir_all(at.join("drives/1")).unwrap();
    let lost = run(&["locate", "d.t", "--fleet", text(&at)]).code(0);
    assert!(!lost.out.contains("drive-1") && lost.err.contains("drive-1 was not asked"), "{lost:?}");
    let none = run(&["locate", "d.other", "--fleet", text(&at)]).code(1);
    assert!(none.err.contains("d.other"), "{none:?}");
}

#[test]
fn retirement_names_the_directory_that_it_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    run(&["init", text(&at), "--drives", "3"]).code(0);
    run(&["ingest", &file(dir.path(), "t.csv", "v\n1\n2\n"), "--to", "d.t", "--fleet", text(&at)]).code(0);
    let left = at.join("drives/0");
    let retired = run(&["fleet", "retire", "drive-0", "--fleet", text(&at)]).code(0);
    assert!(retired.out.contains(&format!("{} holds nothing that the fleet needs any more: it may be deleted\n", left.display())), "{retired:?}");
    std::fs::remove_dir_all(&left).unwrap();
    run(&["status", "--fleet", text(&at)]).code(0);
    assert_eq!(run(&["sql", "SELECT sum(v) AS s FROM d.t", "--format", "csv", "--fleet", text(&at)]).code(0).out, "s\n3\n");
    let balanced = run(&["fleet", "balance", "--fleet", text(&at)]).code(0);
    assert!(!balanced.out.contains("deleted"), "{balanced:?}");
}
