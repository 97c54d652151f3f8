//! What commands say of drives that an embedded fleet lacks, and of those that it no longer needs.

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
