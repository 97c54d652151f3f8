//! Drives under device profiles, and their calibration.

use serde_json::Value;

use crate::util::{Served, file, parquet, rows, run, text};

const TARDY: &str = "speed_per_core = 0.5\ncores = 2\nmemory_bytes = 67108864\ndisk_bytes_per_s = 1e9\nlink_bits_per_s = 8e9\nlink_latency_s = 0.0002\n";

#[test]
fn served_drives_of_several_profiles_answer_as_plain_ones() {
    let dir = tempfile::tempdir().unwrap();
    let own = file(dir.path(), "tardy.toml", TARDY);
    let drives: Vec<_> = ["envoy", &own, "unlimited"]
        .iter()
        .enumerate()
        .map(|(n, profile)| {
            let data = dir.path().join(format!("drive-{n}"));
            Served::start(&["drive", "serve", "--data", text(&data), "--profile", profile, "--listen", "127.0.0.1:0"])
        })
        .collect();
    let addresses = drives.iter().map(Served::address).collect::<Vec<_>>().join(",");
    let host = Served::start(&["host", "serve", "--drives", &addresses, "--slice-rows", "1000", "--listen", "127.0.0.1:0"]);
    let table = parquet(dir.path(), "part.parquet", &rows(0, 9000));
    run(&["ingest", &table, "--to", "d.t", "--fleet", &host.url]).code(0);
    let done = run(&["sql", "SELECT count(*) AS n, min(v) AS lo, max(v) AS hi FROM d.t WHERE v % 3 = 1", "--fleet", &host.url, "--format", "csv", "--receipt"])
        .code(0);
    assert_eq!(done.out, "n,lo,hi\n3000,1,8998\n");
    assert!(done.err.contains("drive-0 (envoy): ") && done.err.contains("drive-1 (tardy): ") && done.err.contains("drive-2: "), "{}", done.err);
    let status: Value = serde_json::from_str(&run(&["status", "--fleet", &host.url, "--format", "json"]).code(0).out).unwrap();
    let infos: Vec<&Value> = status.as_array().unwrap().iter().map(|d| &d["info"]).collect();
    assert_eq!((&infos[0]["profile"]["cores"], &infos[1]["profile"]["speed_per_core"], &infos[2]["profile"]), (&2.into(), &0.5.into(), &Value::Null));
    // A device's own memory, unless less is wanted.
    assert_eq!(infos.iter().map(|info| info["memory_limit"].as_u64().unwrap() >> 20).collect::<Vec<_>>(), [1024, 64, 512]);
}

#[test]
fn an_embedded_fleet_is_served_under_profiles() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    run(&["init", text(&at), "--drives", "2"]).code(0);
    let own = file(dir.path(), "tardy.toml", TARDY);
    let host = Served::start(&["host", "serve", "--fleet", text(&at), "--profile", &format!("server,{own}"), "--listen", "127.0.0.1:0"]);
    let status: Value = serde_json::from_str(&run(&["status", "--fleet", &host.url, "--format", "json"]).code(0).out).unwrap();
    assert_eq!(status[0]["info"]["profile"]["cores"], 4);
    let table = run(&["status", "--fleet", &host.url]).code(0).out;
    let cells: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    assert_eq!(cells, [["drive", "state", "profile"], ["drive-0", "up", "server"], ["drive-1", "up", "tardy"]]);
    assert_eq!(status[1]["info"]["profile"]["memory_bytes"], 67_108_864);
    assert_eq!(status[1]["info"]["device"], "tardy");
}

/// Both `drive serve` and `host serve` refuse a profile with more than the speed of this machine's cores.
#[test]
fn profile_faster_than_this_machine_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let own = file(dir.path(), "swift.toml", &TARDY.replace("0.5", "2"));
    let data = dir.path().join("drive-0");
    let fleet = dir.path().join("fleet");
    run(&["init", text(&fleet), "--drives", "1"]).code(0);
    for args in [
        &["drive", "serve", "--data", text(&data), "--profile", &own, "--listen", "127.0.0.1:0"][..],
        &["host", "serve", "--fleet", text(&fleet), "--profile", &own, "--listen", "127.0.0.1:0"],
    ] {
        let said = run(args).fails(2);
        assert!(said.contains("device profile swift: speed_per_core is 2, but") && said.contains("say 1 at most"), "{said}");
    }
    assert!(!data.exists());
}

#[test]
fn calibration_that_is_off_prints_its_table_and_fails() {
    let dir = tempfile::tempdir().unwrap();
    // More of a core than there is: off on any machine.
    let own = file(dir.path(), "swift.toml", &TARDY.replace("0.5", "50.0"));
    let scratch = dir.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let done = run(&["calibrate", "--profile", &own, "--dir", text(&scratch)]).code(1);
    let lines: Vec<&str> = done.out.lines().collect();
    assert_eq!(lines[0], "profile swift, link: in process");
    assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["figure", "asked", "got", "ratio"]);
    assert!(lines[2].starts_with("speed_per_core") && lines[2].contains("50.0") && lines[2].ends_with("off"), "{}", done.out);
    assert!(lines[4].starts_with("memory_bytes") && lines[4].contains("64.0 MiB") && lines[4].ends_with("1.000"), "{}", done.out);
    assert!(lines.last().unwrap().starts_with("link_latency_s"), "{}", done.out);
    assert!(done.err.starts_with("skytether: more than 20% off: speed_per_core") && done.err.lines().count() == 1, "{}", done.err);
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "it clears up");
    let done = run(&["calibrate", "--profile", "unlimited", "--dir", text(&scratch), "--served", "--json"]).code(0);
    let found: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&found["profile"], &found["served"], &found["within"]), (&"unlimited".into(), &true.into(), &true.into()));
    assert!(found["measured"].as_array().unwrap().iter().all(|m| m["asked"].is_null() && m["ratio"].is_null()), "{found}");
    let gone = dir.path().join("gone");
    assert!(run(&["calibrate", "--profile", "unlimited", "--dir", text(&gone)]).fails(1).contains("gone"));
}
