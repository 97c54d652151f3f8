//! Drives and hosts as processes of their own, on loopback.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::util::{Served, file, fleet, parquet, rows, run, text};

/// After this the death of a drive counts as unnoticed.
const DEADLINE: Duration = Duration::from_secs(40);

fn drive(dir: &Path, n: usize, listen: &str) -> Served {
    Served::start(&["drive", "serve", "--data", text(&dir.join(format!("drive-{n}"))), "--listen", listen])
}

/// Four processes of drives and one of a host ingest, list, query, explain and drop.
#[test]
fn served_fleet_answers_as_embedded_and_names_a_dead_drive() {
    let dir = tempfile::tempdir().unwrap();
    let mut drives: Vec<_> = (0..4).map(|n| drive(dir.path(), n, "127.0.0.1:0")).collect();
    let addresses = drives.iter().map(Served::address).collect::<Vec<_>>().join(",");
    let host = Served::start(&["host", "serve", "--drives", &addresses, "--listen", "127.0.0.1:0"]);
    let embedded = fleet(dir.path(), "4");

    // More than enough for a slice on each drive.
    let files: Vec<_> = (0..4).map(|n| parquet(dir.path(), &format!("part-{n}.parquet"), &rows(n * 75_000, 75_000))).collect();
    for at in [embedded.as_str(), &host.url] {
        let mut args = vec!["ingest", "--to", "d.t", "--fleet", at];
        args.extend(files.iter().map(String::as_str));
        assert!(run(&args).code(0).out.contains("d.t: 300,000 rows"));
        run(&["ingest", &file(dir.path(), "names.csv", "k,title\ngroup 1,one\ngroup 2,two\ngroup 9,nine\n"), "--to", "d.names", "--fleet", at]).code(0);
    }
    // Each has its root record somewhere: hardly all of them at one drive.
    for small in ["d.a", "d.b", "d.c", "d.e", "d.f", "d.g", "d.h", "d.i"] {
        run(&["ingest", &file(dir.path(), "one.csv", "v\n1\n"), "--to", small, "--fleet", &host.url]).code(0);
    }
    for sql in [
        "SELECT count(*), count(x), sum(v), sum(x), min(noise), max(noise), max(k) FROM d.t",
        "SELECT k, count(*) AS n, avg(x) AS m, min(v) AS first FROM d.t WHERE v >= 1000 GROUP BY k ORDER BY k",
        "SELECT v, k, x, noise FROM d.t WHERE v % 5000 = 7 OR noise BETWEEN 0 AND 100000000000000 ORDER BY v",
        "SELECT v FROM d.t WHERE v BETWEEN 149990 AND 150010 ORDER BY v DESC LIMIT 7 OFFSET 3",
        "SELECT count(DISTINCT k) AS k, count(DISTINCT x) AS x FROM d.t",
        "SELECT n.title, count(t.v) AS n, sum(t.x) AS s FROM d.names n LEFT JOIN d.t t ON n.k = t.k GROUP BY n.title ORDER BY n.title",
        "SELECT k, v, sum(x) OVER (PARTITION BY k ORDER BY v) AS s FROM d.t WHERE v < 50 ORDER BY k, v",
    ] {
        let wanted = run(&["sql", sql, "--fleet", &embedded, "--format", "json"]).code(0).out;
        assert!(!wanted.is_empty(), "{sql}");
        assert_eq!(run(&["sql", sql, "--fleet", &host.url, "--format", "json"]).code(0).out, wanted, "{sql}");
    }
    let all = &["sql", "SELECT count(*) AS n, sum(x) AS s FROM d.t", "--fleet", &host.url, "--format", "csv", "--receipt"];
    let before = run(all).code(0);
    for n in 0..4 {
        assert!(before.err.contains(&format!("drive-{n}")), "every drive has a part: {}", before.err);
    }

    // One drive dies.
    let dead = drives.remove(2);
    let address = dead.address().to_owned();
    dead.kill();
    let began = Instant::now();
    let said = run(all).fails(1);
    assert!(said.contains("drive-2") && said.lines().count() == 1, "{said}");
    assert!(said.contains("`skytether drive serve`") && !said.contains("h2") && !said.contains("http2") && !said.contains("tcp connect"), "{said}");
    for other in ["drive-0", "drive-1", "drive-3"] {
        assert!(!said.contains(other), "{said}");
    }
    assert!(began.elapsed() < DEADLINE, "{:?}", began.elapsed());
    // What the other drives keep is listed all the same.
    let list = run(&["ls", "--fleet", &host.url]).code(1);
    let listed = ["d.t", "d.names", "d.a", "d.b", "d.c", "d.e", "d.f", "d.g", "d.h", "d.i"].iter().filter(|name| list.out.contains(**name)).count();
    assert!(listed > 0 && list.err.contains("this list may lack data sets, since drive-2 is lost: "), "{list:?}");
    let status = run(&["status", "--fleet", &host.url]).code(1);
    assert!(status.out.lines().any(|line| line.contains("drive-2") && line.contains(" lost ")) && status.err.contains("drive-2"), "{status:?}");
    assert_eq!(status.out.lines().filter(|line| line.contains(" up ")).count(), 3, "{}", status.out);
    let told = run(&["status", "--fleet", &host.url, "--format", "json"]).code(1).out;
    let silent: Vec<Value> = serde_json::from_str::<Vec<Value>>(&told).unwrap().into_iter().filter(|d| !d["error"].is_null()).collect();
    assert!(silent.len() == 1 && silent[0]["info"]["name"] == "drive-2" && silent[0]["usage"].is_null(), "{told}");

    // It comes back on its directory, and nothing was lost.
    drives.push(drive(dir.path(), 2, &address));
    assert_eq!(run(all).code(0).out, before.out);
    run(&["status", "--fleet", &host.url]).code(0);

    // Each process ends well on request: the host first, then the drives without a connection.
    for (n, served) in std::iter::once(host).chain(drives).enumerate() {
        let done = served.stop().code(0);
        if n == 0 {
            // The host's log holds a line for the loss and one for the return.
            for says in [format!("drive drive-2 at {address} is lost: "), format!("drive drive-2 at {address} is back")] {
                assert_eq!(done.err.matches(&says).count(), 1, "{}", done.err);
            }
            assert!(!done.err.contains('\u{1b}'), "a log in a file has no colours: {}", done.err);
        }
        assert!(done.out.is_empty() && done.err.trim_end().ends_with("stopped"), "{done:?}");
    }
}

#[test]
fn an_embedded_fleet_belongs_to_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    let host = Served::start(&["host", "serve", "--fleet", &at, "--listen", "127.0.0.1:0"]);
    let csv = file(dir.path(), "t.csv", "v\n1\n2\n");
    for args in [
        &["ls", "--fleet", &at][..],
        &["sql", "SELECT 1", "--fleet", &at],
        &["ingest", &csv, "--to", "d.t", "--fleet", &at],
        &["host", "serve", "--fleet", &at],
    ] {
        let said = run(args).fails(1);
        assert!(said.contains(&host.id().to_string()), "the holder's number {}: {said}", host.id());
    }
    // A single drive of it is held as well.
    let drive = dir.path().join("fleet/drives/0");
    let said = run(&["drive", "serve", "--data", text(&drive)]).fails(1);
    assert!(said.contains("drives/0"), "{said}");
    // Through the host everybody is served.
    run(&["ingest", &csv, "--to", "d.t", "--fleet", &host.url]).code(0);
    assert_eq!(run(&["sql", "SELECT sum(v) AS s FROM d.t", "--fleet", &host.url, "--format", "csv"]).code(0).out, "s\n3\n");
    // A holder that was killed holds nothing.
    host.kill();
    assert_eq!(run(&["sql", "SELECT sum(v) AS s FROM d.t", "--fleet", &at, "--format", "csv"]).code(0).out, "s\n3\n");
}

#[test]
fn taken_port_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = drive(dir.path(), 0, "127.0.0.1:0");
    let second = dir.path().join("drive-1");
    let said = run(&["drive", "serve", "--data", text(&second), "--listen", first.address()]).fails(1);
    assert!(said.contains(first.address()) && said.contains("another port") && said.lines().count() == 1, "{said}");
    assert!(!second.join("drive.json").exists(), "a drive was made all the same");
    first.stop().code(0);
}

/// It ends before it takes the drives over. A host at the address of a drive is refused as well.
#[test]
fn host_with_a_taken_port_does_not_fence_the_running_host() {
    let dir = tempfile::tempdir().unwrap();
    let drives: Vec<_> = (0..2).map(|n| drive(dir.path(), n, "127.0.0.1:0")).collect();
    let addresses = drives.iter().map(Served::address).collect::<Vec<_>>().join(",");
    let host = Served::start(&["host", "serve", "--drives", &addresses, "--listen", "127.0.0.1:0"]);
    let said = run(&["host", "serve", "--drives", &addresses, "--listen", host.address()]).fails(1);
    assert!(said.contains(host.address()) && said.contains("another port") && said.lines().count() == 1, "{said}");
    // Nor is a host one of the drives of another.
    let said = run(&["host", "serve", "--drives", host.address(), "--listen", "127.0.0.1:0"]).fails(1);
    assert!(said.contains(&format!("a host listens at {}, and no drive", host.address())) && said.contains(&format!("--fleet {}", host.address())), "{said}");
    run(&["ingest", &file(dir.path(), "t.csv", "v\n1\n2\n"), "--to", "d.t", "--fleet", &host.url]).code(0);
    assert_eq!(run(&["sql", "SELECT sum(v) AS s FROM d.t", "--fleet", &host.url, "--format", "csv"]).code(0).out, "s\n3\n");
}

#[test]
fn a_frozen_drive_is_named_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let drives: Vec<_> = (0..2).map(|n| drive(dir.path(), n, "127.0.0.1:0")).collect();
    let addresses = drives.iter().map(Served::address).collect::<Vec<_>>().join(",");
    let host = Served::start(&["host", "serve", "--drives", &addresses, "--drive-timeout", "2", "--listen", "127.0.0.1:0"]);
    let files: Vec<_> = (0..2).map(|n| parquet(dir.path(), &format!("part-{n}.parquet"), &rows(n * 75_000, 75_000))).collect();
    run(&["ingest", &files[0], &files[1], "--to", "d.t", "--fleet", &host.url]).code(0);
    let all = &["sql", "SELECT count(*) AS n, sum(x) AS s FROM d.t", "--fleet", &host.url, "--format", "csv", "--receipt"];
    let before = run(all).code(0);
    assert!(before.err.contains("drive-0") && before.err.contains("drive-1"), "both have a part: {}", before.err);

    drives[1].freeze();
    let said = run(all).fails(1);
    assert!(said.contains("drive-1") && !said.contains("drive-0") && said.contains("did not answer for 2.0 s"), "{said}");
    let status = run(&["status", "--fleet", &host.url]).code(1);
    assert!(status.out.lines().any(|line| line.contains("drive-1") && line.contains(" lost ")) && status.err.contains("drive-1"), "{status:?}");

    drives[1].thaw();
    assert_eq!(run(all).code(0).out, before.out);
}

#[test]
fn foreign_drive_at_a_known_address_is_found_by_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let mut drives: Vec<_> = (0..2).map(|n| drive(dir.path(), n, "127.0.0.1:0")).collect();
    let addresses = drives.iter().map(Served::address).collect::<Vec<_>>().join(",");
    let host = Served::start(&["host", "serve", "--drives", &addresses, "--listen", "127.0.0.1:0"]);
    let csv = file(dir.path(), "t.csv", "v\n1\n2\n");
    for to in ["d.a", "d.b", "d.c", "d.e", "d.f", "d.g"] {
        run(&["ingest", &csv, "--to", to, "--fleet", host.address()]).code(0);
    }
    let whole = run(&["ls", "--fleet", host.address()]).code(0).out;
    let right = drives.pop().unwrap();
    let address = right.address().to_owned();
    let log = right.stop().code(0).err;
    assert!(log.contains("made a new drive in ") && log.contains("drive-1"), "{log}");

    // The directory is mistyped.
    let wrong = Served::start(&["drive", "serve", "--data", text(&dir.path().join("drvie-1")), "--name", "drive-1", "--listen", &address]);
    let status = run(&["status", "--fleet", host.address()]).code(1);
    let line = status.out.lines().find(|line| line.starts_with("drive-1")).unwrap();
    let there = line.split_whitespace().last().unwrap();
    assert!(line.contains("wrong drive") && status.err.contains(&format!("at {address} answers drive {there} (drive-1), not drive-1 (")), "{status:?}");
    assert!(status.err.contains("was it started on another directory?"), "{status:?}");
    let list = run(&["ls", "--fleet", host.address()]).code(1);
    assert!(list.err.contains("this list may lack data sets") && list.err.contains(there), "{list:?}");
    for to in ["d.a", "d.b", "d.c", "d.e", "d.f", "d.g"] {
        let said = run(&["ingest", &csv, "--to", to, "--replace", "--fleet", host.address()]);
        // Those of the other drive alone may be replaced; what needs the wrong one is refused.
        assert!(said.code == Some(0) || said.err.contains("was it started on another directory?"), "{said:?}");
    }
    assert!(wrong.stop().code(0).err.contains("made a new drive in "));

    let _right = drive(dir.path(), 1, &address);
    assert_eq!(run(&["ls", "--fleet", host.address()]).code(0).out, whole);
    for to in ["d.a", "d.b", "d.c", "d.e", "d.f", "d.g"] {
        assert_eq!(run(&["sql", &format!("SELECT sum(v) AS s FROM {to}"), "--fleet", host.address(), "--format", "csv"]).code(0).out, "s\n3\n");
    }
    assert_eq!(host.stop().code(0).err.matches("is lost: ").count(), 1);
}

/// `status` itself asks the drive who it is: no query comes between.
#[test]
fn status_shows_a_blank_drive_at_the_old_address() {
    let dir = tempfile::tempdir().unwrap();
    let mut drives: Vec<_> = (0..3).map(|n| drive(dir.path(), n, "127.0.0.1:0")).collect();
    let addresses = drives.iter().map(Served::address).collect::<Vec<_>>().join(",");
    let host = Served::start(&["host", "serve", "--drives", &addresses, "--redundancy", "ec:2+1", "--listen", "127.0.0.1:0"]);
    let csv = file(dir.path(), "t.csv", "v\n1\n2\n");
    run(&["ingest", &csv, "--to", "d.t", "--fleet", &host.url]).code(0);
    let found: Vec<Value> = serde_json::from_str(&run(&["status", "--fleet", &host.url, "--format", "json"]).code(0).out).unwrap();
    let lost = found.iter().find(|drive| drive["info"]["name"] == "drive-1").unwrap();
    let id = lost["info"]["id"].as_str().unwrap();
    let address = drives[1].address().to_owned();
    drives.remove(1).kill();
    run(&["sql", "SELECT sum(v) AS s FROM d.t", "--fleet", &host.url]).code(0);
    let state = || {
        let status = run(&["status", "--fleet", &host.url]).code(1);
        let line = status.out.lines().find(|line| line.starts_with("drive-1 ")).unwrap_or_else(|| panic!("{status:?}"));
        assert!(status.err.lines().count() == 1 && status.err.contains("drive-1 is lost: "), "{status:?}");
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(state(), "lost");
    let new = dir.path().join("new");
    let _blank = Served::start(&["drive", "serve", "--data", text(&new), "--name", "drive-1", "--replace", id, "--listen", &address]);
    assert_eq!(state(), "blank");
    run(&["repair", "--fleet", &host.url]).code(0);
    run(&["status", "--fleet", &host.url]).code(0);
}

/// With `ec:2+1` a query goes on without the dead drive, and a new host starts without it.
#[test]
fn served_fleet_with_parity_survives_a_dead_drive_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut drives: Vec<_> = (0..4).map(|n| drive(dir.path(), n, "127.0.0.1:0")).collect();
    let addresses = drives.iter().map(Served::address).collect::<Vec<_>>().join(",");
    let serve = || Served::start(&["host", "serve", "--drives", &addresses, "--redundancy", "ec:2+1", "--listen", "127.0.0.1:0"]);
    let host = serve();
    let files: Vec<_> = (0..4).map(|n| parquet(dir.path(), &format!("part-{n}.parquet"), &rows(n * 75_000, 75_000))).collect();
    let mut args = vec!["ingest", "--to", "d.t", "--fleet", &host.url];
    args.extend(files.iter().map(String::as_str));
    run(&args).code(0);
    let sql = "SELECT k, count(*) AS n, sum(v) AS s, min(noise) AS m FROM d.t GROUP BY k ORDER BY k";
    let whole = run(&["sql", sql, "--fleet", &host.url, "--format", "csv"]).code(0).out;
    let address = drives[1].address().to_owned();
    drives.remove(1).kill();
    let without = run(&["sql", sql, "--fleet", &host.url, "--format", "csv", "--receipt"]).code(0);
    assert_eq!(without.out, whole);
    assert!(without.err.contains("run on the host in its place"), "{}", without.err);
    // All data sets are listed without it, and told is what to do.
    let list = run(&["ls", "--fleet", &host.url]).code(0);
    assert!(list.out.contains("d.t") && list.err.contains("drive-1 is lost; the list is whole"), "{list:?}");
    let status = run(&["status", "--fleet", &host.url]).code(1);
    assert!(status.err.contains("drive-1 is lost: ") && status.err.contains("--name drive-1 --replace "), "{status:?}");
    // Another redundancy is refused before the host that has the drives loses them.
    let said = run(&["host", "serve", "--drives", &addresses, "--redundancy", "replicas:2", "--listen", "127.0.0.1:0"]).fails(1);
    assert!(said.contains("has redundancy ec:2+1, not replicas:2") && said.contains("without a redundancy"), "{said}");
    run(&["ingest", &files[0], "--to", "d.other", "--fleet", &host.url]).code(0);
    run(&["drop", "d.other", "--fleet", &host.url]).code(0);
    host.kill();
    let host = serve();
    let status = run(&["status", "--fleet", &host.url]).code(1);
    assert!(status.err.contains("it is missing: no drive that answers has its id") && status.err.contains(&address), "{status:?}");
    assert!(status.err.contains("`skytether repair --replace drive-1 --replacement ADDR`") && !status.err.contains("it is blank"), "{status:?}");
    assert_eq!(run(&["sql", sql, "--fleet", &host.url, "--format", "csv"]).code(0).out, whole);
    run(&["ingest", &files[0], "--to", "d.t", "--replace", "--fleet", &host.url]).code(0);
    let less = run(&["sql", sql, "--fleet", &host.url, "--format", "csv"]).code(0).out;
    assert_ne!(less, whole);
    host.kill();
    drives.push(drive(dir.path(), 1, &address));
    let host = serve();
    assert_eq!(run(&["sql", sql, "--fleet", &host.url, "--format", "csv"]).code(0).out, less);
    run(&["status", "--fleet", &host.url]).code(0);
}

/// More drives die than the fleet survives. Each command says so, each thing once; and whichever comes first when the
/// drives are back succeeds.
#[test]
fn first_request_after_too_many_drives_are_back_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let mut drives: Vec<_> = (0..4).map(|n| Some(drive(dir.path(), n, "127.0.0.1:0"))).collect();
    let addresses: Vec<String> = drives.iter().flatten().map(|drive| drive.address().to_owned()).collect();
    let host = Served::start(&["host", "serve", "--drives", &addresses.join(","), "--redundancy", "replicas:2", "--listen", "127.0.0.1:0"]);
    let csv = file(dir.path(), "t.csv", "v\n1\n2\n");
    for to in ["d.t", "d.a", "d.b", "d.c", "d.e", "d.f"] {
        run(&["ingest", &csv, "--to", to, "--fleet", &host.url]).code(0);
    }
    let whole = run(&["ls", "--fleet", &host.url]).code(0).out;
    let sql = ["sql", "SELECT sum(v) AS s FROM d.t", "--format", "csv", "--fleet", &host.url];
    let (list, status, describe) = (["ls", "--fleet", &host.url], ["status", "--fleet", &host.url], ["describe", "d.a", "--fleet", &host.url]);
    let first: [&[&str]; 4] = [&sql, &list, &status, &describe];
    for first in first {
        for n in [1, 2] {
            drives[n].take().unwrap().kill();
        }
        // The host has to find out: whichever of these needs the drives.
        let listed = run(&list).code(1);
        let asked = run(&["sql", "SELECT (SELECT count(*) FROM d.t) + (SELECT count(*) FROM d.a) + (SELECT count(*) FROM d.b)", "--fleet", &host.url]);
        for said in [&listed.err, &run(&list).code(1).err, &run(&sql).err, &asked.err] {
            for once in ["start it again", "drive-1", "drive-2", addresses[1].as_str()] {
                assert!(said.matches(once).count() <= 1, "{once}: {said}");
            }
            assert!(!said.contains("drive-0") && !said.contains("drive-3") && said.lines().count() <= 1, "{said}");
        }
        assert!(
            listed.err.contains("drive-1") && listed.err.contains("drive-2") && listed.err.contains("start it again with `skytether drive serve`"),
            "{listed:?}"
        );
        for n in [1, 2] {
            drives[n] = Some(drive(dir.path(), n, &addresses[n]));
        }
        let done = run(first).code(0);
        assert_eq!(done.err, "", "{first:?}");
        assert_eq!(run(&sql).code(0).out, "s\n3\n");
        assert_eq!(run(&list).code(0).out, whole);
    }
}

/// Without redundancy a drive that is back is simply asked again.
#[test]
fn first_query_after_a_drive_is_back_succeeds_without_copies() {
    let dir = tempfile::tempdir().unwrap();
    let one = drive(dir.path(), 0, "127.0.0.1:0");
    let address = one.address().to_owned();
    let host = Served::start(&["host", "serve", "--drives", &address, "--listen", "127.0.0.1:0"]);
    run(&["ingest", &file(dir.path(), "t.csv", "v\n1\n2\n"), "--to", "d.t", "--fleet", &host.url]).code(0);
    one.kill();
    let sql = ["sql", "SELECT sum(v) AS s FROM d.t", "--format", "csv", "--fleet", &host.url];
    assert!(run(&sql).fails(1).contains("drive-0"));
    let _again = drive(dir.path(), 0, &address);
    assert_eq!(run(&sql).code(0).out, "s\n3\n");
}
