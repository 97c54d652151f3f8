//! Each command over an embedded fleet.

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use serde_json::{Value, json};

use crate::util::{arrow_file, file, fleet, parquet, rows, run, run_and_interrupt, run_and_interrupt_once, run_and_leave, run_with, run_with_files, text};

const CSV: &str = "k,v\na,1\n\"b, c\",2\nü,\n";

/// The rows of [`CSV`] as one table in a fleet; its path.
fn small(dir: &std::path::Path) -> String {
    let at = fleet(dir, "2");
    let done = run(&["ingest", &file(dir, "t.csv", CSV), "--to", "d.t", "--fleet", &at]).code(0);
    assert!(done.out.starts_with("d.t: 3 rows in 1 slice, "), "{done:?}");
    at
}

#[test]
fn help_explains_every_command() {
    for command in [
        &[][..],
        &["init"],
        &["drive"],
        &["drive", "serve"],
        &["host"],
        &["host", "serve"],
        &["ingest"],
        &["export"],
        &["generate"],
        &["generate", "particles"],
        &["sql"],
        &["describe"],
        &["locate"],
        &["explain"],
        &["ls"],
        &["status"],
        &["index"],
        &["index", "create"],
        &["index", "list"],
        &["index", "drop"],
        &["drop"],
        &["fleet"],
        &["fleet", "add"],
        &["fleet", "retire"],
        &["fleet", "balance"],
        &["scrub"],
        &["repair"],
        &["calibrate"],
    ] {
        let done = run(&[command, &["--help"]].concat()).code(0);
        assert!(done.out.contains("Usage: skytether") && done.err.is_empty(), "{command:?}: {done:?}");
        for word in command {
            assert!(done.out.contains(word), "{command:?}: {}", done.out);
        }
        assert_eq!(run(&[command, &["--version"]].concat()).code(0).out.trim().rsplit(' ').next(), Some(env!("CARGO_PKG_VERSION")));
    }
    // Without a command there is nothing to do: help, but on stderr.
    let done = run(&[]);
    assert!(done.code == Some(2) && done.out.is_empty() && done.err.contains("Usage: skytether"), "{done:?}");
}

#[test]
fn wrong_calls_exit_with_2_and_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let at = small(dir.path());
    let csv = file(dir.path(), "other.csv", CSV);
    let new = dir.path().join("new");
    let new = text(&new);
    for (args, says) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["drive", "frobnicate"], "frobnicate"),
        (&["sql"], "--fleet"),
        (&["sql", "SELECT 1"], "--fleet"),
        (&["ls", "--fleet", &at, "--format", "xml"], "xml"),
        (&["sql", "SELECT 1", "--fleet", &at, "--format", "parquet"], "parquet"),
        (&["sql", "SELECT 1", "--fleet", &at, "--pushdown", "half"], "[possible values: adaptive, full, filter, raw]"),
        (&["ingest", "--to", "d.u", "--fleet", &at], "<FILE>"),
        (&["ingest", &csv, "--to", "nodot", "--fleet", &at], "nodot"),
        (&["ingest", &csv, "--to", "../x.y", "--fleet", &at], "is no data set name"),
        (&["ingest", &csv, "--to", "d.u u", "--fleet", &at], "u u"),
        (&["drop", "nodot", "--fleet", &at], "nodot"),
        (&["export", "nodot", "--out", "t.parquet", "--fleet", &at], "nodot"),
        (&["export", "d.t", "--fleet", &at], "--out"),
        (&["export", "d.t", "--out", "-", "--fleet", &at], "can't go to standard output"),
        (&["export", "d.t", "--out", "t.csv", "--fleet", &at], "an export is a Parquet file"),
        (&["token", "create", "laptop", "--grant", "foo", "--fleet", &at], "write read:DOMAIN, write:DOMAIN or admin"),
        (&["token", "create", "laptop", "--expires", "30days", "--fleet", &at], "is no lifetime"),
        (&["ingest", &csv, "--to", "d.u", "--fleet", &at, "--input-format", "xml"], "[possible values: parquet, arrow, csv, tsv, jsonl, vpic]"),
        (&["generate", "particles", "--out", "p.parquet"], "--rows"),
        (&["generate", "particles", "--rows", "some", "--out", "p.parquet"], "50M"),
        (&["generate", "particles", "--rows", "10", "--out", "p.csv"], ".vpic"),
        (&["generate", "particles", "--rows", "10", "--gathered", "2", "--out", "p.vpic"], "from 0 to 1"),
        (&["init", new, "--drives", "300"], "300"),
        (&["init", new, "--drives", "257"], "256"),
        (&["init", new, "--drives", "0"], "0"),
        (&["init", new, "--drives", "many"], "many"),
        (&["init", new, "--redundancy", "replicas:1"], "2 to 16 replicas"),
        (&["init", new, "--redundancy", "nonsense"], "nonsense"),
        (
            &["drive", "serve", "--data", new, "--profile", "hdd"],
            "no device profile \"hdd\", and no file of that name: the shipped ones are envoy, newport, server, unlimited",
        ),
        (&["host", "serve", "--fleet", &at, "--profile", "envoy,hdd"], "\"hdd\""),
        (&["host", "serve", "--drives", "127.0.0.1:1", "--profile", "envoy"], "cannot be used with"),
        (&["calibrate"], "--profile"),
        (&["calibrate", "--profile", "hdd"], "envoy, newport, server, unlimited"),
        (&["drive", "serve", "--data", new, "--memory", "1"], "16"),
        (&["drive", "serve", "--data", new, "--listen", "foo"], "HOST:PORT"),
        (&["host", "serve", "--drives", "127.0.0.1:1", "--listen", "foo:99999"], "HOST:PORT"),
        (&["drive", "serve"], "--data"),
        (&["fleet", "retire", "--fleet", &at], "DRIVE"),
        (&["fleet", "add", "127.0.0.1:1", "--count", "2", "--fleet", &at], "cannot be used with"),
        (&["fleet", "add", "--count", "0", "--fleet", &at], "1..=256"),
        (&["fleet", "balance", "--rate", "0", "--fleet", &at], "above 0"),
        (&["host", "serve"], "--fleet"),
        (&["host", "serve", "--fleet", &at, "--drives", "127.0.0.1:1"], "cannot be used with"),
    ] {
        let said = run(args).fails(2);
        assert!(said.contains(says), "{args:?}: {said}");
    }
    assert!(!std::path::Path::new(new).exists(), "a wrong call makes nothing");
    assert_eq!(run(&["sql", "SELECT count(*) AS n FROM d.t", "--fleet", &at, "--format", "csv"]).code(0).out, "n\n3\n");
}

#[test]
fn work_that_fails_is_1_and_names_its_object() {
    let dir = tempfile::tempdir().unwrap();
    let at = small(dir.path());
    let csv = file(dir.path(), "other.csv", CSV);
    let none = dir.path().join("none");
    let none = text(&none);
    let bad = file(dir.path(), "bad.csv", "k,v\na,1\nb\n");
    let not_parquet = file(dir.path(), "not.parquet", "hello");
    let odd = file(dir.path(), "odd.xls", "hello");
    let pattern = format!("{none}-*.csv");
    for (args, says) in [
        (&["sql", "SELECT * FROM d.nope", "--fleet", &at][..], "d.nope"),
        (&["ls", "--fleet", "127.0.0.1"], "write 127.0.0.1:PORT if you mean a host"),
        (&["sql", "SELECT nope FROM d.t", "--fleet", &at], "nope"),
        (&["sql", "SELEC 1", "--fleet", &at], "SELEC"),
        (&["sql", "DROP TABLE d.t", "--fleet", &at], "drop"),
        (&["sql", "SELECT abs('a', 'b', 'c') FROM d.t", "--fleet", &at], "abs"),
        (&["sql", "SELECT array_agg(k) AS ks FROM d.t", "--fleet", &at, "--format", "csv"], "column \"ks\""),
        (&["init", &at], "already"),
        (&["explain", "SELECT * FROM d.nope", "--fleet", &at], "d.nope"),
        (&["ls", "--fleet", none], "skytether init"),
        (&["sql", "SELECT 1", "--fleet", none], none),
        (&["status", "--fleet", none], none),
        (&["ls", "--fleet", "grpc://127.0.0.1:1"], "127.0.0.1:1"),
        (&["ls", "--fleet", "http:// :1"], "http"),
        (&["host", "serve", "--drives", "127.0.0.1:1"], "127.0.0.1:1"),
        (&["host", "serve", "--fleet", none], none),
        (&["drive", "serve", "--data", none, "--listen", "192.0.2.1:1", "--insecure"], "192.0.2.1:1"),
        (&["ls", "--fleet", "127.0.0.1:1"], "127.0.0.1:1"),
        (&["ingest", &pattern, "--to", "d.u", "--fleet", &at], "no file is called or matches"),
        (&["drop", "d.nope", "--fleet", &at], "d.nope"),
        (&["ingest", &csv, "--to", "d.t", "--fleet", &at], "d.t"),
        (&["ingest", none, "--to", "d.u", "--fleet", &at], none),
        (&["ingest", &bad, "--to", "d.u", "--fleet", &at], "bad.csv"),
        (&["ingest", &not_parquet, "--to", "d.u", "--fleet", &at], "not.parquet"),
        (&["ingest", &odd, "--to", "d.u", "--fleet", &at], "odd.xls"),
    ] {
        let said = run(args).fails(1);
        assert!(said.to_lowercase().contains(&says.to_lowercase()), "{args:?}: {said}");
        assert!(said.starts_with("skytether: ") && said.lines().count() == 1, "{args:?}: {said}");
        // Nothing is said twice.
        assert!(said.matches("there is no fleet").count() <= 1, "{args:?}: {said}");
    }
    assert!(run(&["sql", "SELECT array_agg(k) AS ks FROM d.t", "--fleet", &at, "--format", "csv"]).fails(1).contains("--format json"));
    assert!(!std::path::Path::new(none).exists());
    // What failed left nothing, and what was there is whole.
    let listed: Value = serde_json::from_str(&run(&["ls", "--fleet", &at, "--format", "json"]).code(0).out).unwrap();
    assert_eq!(listed.as_array().unwrap().iter().map(|d| (d["name"].as_str().unwrap(), d["rows"].as_u64().unwrap())).collect::<Vec<_>>(), [("d.t", 3)]);
}

#[test]
fn a_result_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let at = small(dir.path());
    let sql = |format| run(&["sql", "SELECT k, v FROM d.t ORDER BY k", "--fleet", &at, "--format", format]).code(0);
    assert_eq!(sql("csv").out, "k,v\na,1\n\"b, c\",2\nü,\n");
    let lines: Vec<Value> = sql("json").out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, [json!({"k": "a", "v": 1}), json!({"k": "b, c", "v": 2}), json!({"k": "ü", "v": null})], "a null keeps its key");
    assert!(sql("table").out.contains("| ü    | NULL |"), "{}", sql("table").out);
    let batches: Vec<RecordBatch> = arrow::ipc::reader::StreamReader::try_new(sql("arrow").bytes.as_slice(), None).unwrap().map(|b| b.unwrap()).collect();
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 3);
    assert_eq!(batches[0].schema().field(1).name(), "v");
    // No row still has its columns.
    assert_eq!(run(&["sql", "SELECT k, v FROM d.t WHERE v > 5", "--fleet", &at, "--format", "csv"]).code(0).out, "k,v\n");
    assert_eq!(run(&["sql", "SELECT k, v FROM d.t WHERE v > 5", "--fleet", &at, "--format", "json"]).code(0).out, "");
    // The fleet may be said in the environment.
    assert_eq!(run_with(&["sql", "SELECT 1 AS one", "--format", "csv"], &[("SKYTETHER_FLEET", &at)]).code(0).out, "one\n1\n");
}

#[test]
fn every_kind_of_file_is_the_same_table() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    let columns: Vec<(&str, ArrayRef)> =
        vec![("k", std::sync::Arc::new(StringArray::from(vec!["a", "b, c", "ü"]))), ("v", std::sync::Arc::new(Int64Array::from(vec![Some(1), Some(2), None])))];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let jsonl = "{\"k\":\"a\",\"v\":1}\n{\"k\":\"b, c\",\"v\":2}\n{\"k\":\"ü\",\"v\":null}\n";
    for (name, path) in [
        ("csv", file(dir.path(), "t.csv", CSV)),
        ("tsv", file(dir.path(), "t.tsv", "k\tv\na\t1\nb, c\t2\nü\t\n")),
        ("jsonl", file(dir.path(), "t.jsonl", jsonl)),
        ("ndjson", file(dir.path(), "t.ndjson", jsonl)),
        ("parquet", parquet(dir.path(), "t.parquet", &batch)),
        ("arrow", arrow_file(dir.path(), "t.arrow", &batch)),
        ("feather", arrow_file(dir.path(), "t.feather", &batch)),
    ] {
        run(&["ingest", &path, "--to", &format!("d.{name}"), "--fleet", &at]).code(0);
        let found = run(&["sql", &format!("SELECT k, v FROM d.{name} ORDER BY k"), "--fleet", &at, "--format", "csv"]).code(0).out;
        assert_eq!(found, CSV, "{name}");
        // Several files are one table, and one that is there is replaced when that is asked for.
        run(&["ingest", &path, &path, "--to", &format!("d.{name}"), "--fleet", &at, "--replace"]).code(0);
        assert_eq!(
            run(&["sql", &format!("SELECT count(*) AS n, count(v) AS v FROM d.{name}"), "--fleet", &at, "--format", "csv"]).code(0).out,
            "n,v\n6,4\n",
            "{name}"
        );
    }
    let listed: Value = serde_json::from_str(&run(&["ls", "--fleet", &at, "--format", "json"]).code(0).out).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 7);
}

#[test]
fn catalog_and_drives_for_people_and_programs() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "3");
    assert_eq!(run(&["ls", "--fleet", &at]).code(0).out, "no data sets\n");
    assert_eq!(serde_json::from_str::<Value>(&run(&["ls", "--fleet", &at, "--format", "json"]).code(0).out).unwrap(), json!([]));
    run(&["ingest", &file(dir.path(), "t.csv", CSV), "--to", "d.t", "--fleet", &at]).code(0);
    let people = run(&["ls", "--fleet", &at]).code(0);
    assert!(people.out.contains("d.t") && people.out.contains("3 rows") && people.err.is_empty(), "{people:?}");
    let programs: Value = serde_json::from_str(&run(&["ls", "--fleet", &at, "--format", "json"]).code(0).out).unwrap();
    assert_eq!((&programs[0]["name"], &programs[0]["kind"], &programs[0]["rows"]), (&json!("d.t"), &json!("table"), &json!(3)));

    let people = run(&["status", "--fleet", &at]).code(0).out;
    assert_eq!(people.lines().filter(|line| line.contains("drive-") && line.contains(" up ")).count(), 3, "{people}");
    let drives: Value = serde_json::from_str(&run(&["status", "--fleet", &at, "--format", "json"]).code(0).out).unwrap();
    let names: Vec<_> = drives.as_array().unwrap().iter().map(|d| d["info"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["drive-0", "drive-1", "drive-2"]);
    assert!(
        drives.as_array().unwrap().iter().all(|d| d["error"].is_null()) && drives.as_array().unwrap().iter().any(|d| d["usage"]["keys"].as_u64().unwrap() > 0),
        "{drives}"
    );

    assert_eq!(run(&["drop", "d.t", "--fleet", &at]).code(0).out, "dropped d.t\n");
    assert_eq!(run(&["ls", "--fleet", &at]).code(0).out, "no data sets\n");
    run(&["ingest", &file(dir.path(), "t.csv", CSV), "--to", "d.t", "--fleet", &at]).code(0);
    let dropped = run(&["drop", "d.t", "--fleet", &at, "--format", "json"]).code(0).out;
    assert_eq!(serde_json::from_str::<Value>(&dropped).unwrap(), json!({"dropped": "d.t"}));
}

#[test]
fn a_query_is_explained_and_its_receipt_is_on_stderr_only() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    run(&["ingest", &parquet(dir.path(), "t.parquet", &rows(0, 5000)), "--to", "d.t", "--fleet", &at]).code(0);
    let sql = "SELECT k, count(*) AS n FROM d.t WHERE v >= 1000 GROUP BY k ORDER BY k";
    let plan = run(&["explain", sql, "--fleet", &at]).code(0);
    assert!(plan.out.contains("sub-plan") && plan.out.contains("d.t") && !plan.out.contains("bytes moved") && plan.err.is_empty(), "{}", plan.out);
    let ran = run(&["explain", sql, "--fleet", &at, "--analyze"]).code(0);
    assert!(ran.out.contains("receipt") && ran.out.contains("drive-"), "{}", ran.out);

    let quiet = run(&["sql", sql, "--fleet", &at, "--format", "csv"]).code(0);
    assert_eq!(quiet.err, "");
    for cut in ["adaptive", "full", "filter", "raw"] {
        let told = run(&["sql", sql, "--fleet", &at, "--format", "csv", "--receipt", "--pushdown", cut]).code(0);
        assert_eq!(told.out, quiet.out, "{cut}");
        let rung = match cut {
            "filter" => "filtered here",
            "raw" => "only read here",
            _ => "everything ran here",
        };
        assert!(told.err.contains("drive-") && told.err.contains(rung), "{cut}: {}", told.err);
    }
    assert_eq!(quiet.out.lines().count(), 7, "five groups, those without and the header: {}", quiet.out);
}

#[test]
fn a_reader_that_leaves_is_success() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    run(&["ingest", &parquet(dir.path(), "t.parquet", &rows(0, 50_000)), "--to", "d.t", "--fleet", &at]).code(0);
    for format in ["csv", "json", "table"] {
        // Far more than a pipe holds.
        let done = run_and_leave(&["sql", "SELECT v, k, noise FROM d.t", "--fleet", &at, "--format", format], 1);
        assert!(done.code == Some(0) && done.err.is_empty() && done.out.lines().count() == 1, "{format}: {done:?}");
    }
    let done = run_and_leave(&["sql", "SELECT v, k, noise FROM d.t", "--fleet", &at, "--format", "arrow"], 0);
    assert!(done.code == Some(0) && done.err.is_empty(), "{done:?}");
}

#[test]
fn ctrl_c_ends_a_query_with_a_line_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    run(&["ingest", &parquet(dir.path(), "t.parquet", &rows(0, 50_000)), "--to", "d.t", "--fleet", &at]).code(0);
    let done = run_and_interrupt(&["sql", "SELECT v, k, noise FROM d.t", "--fleet", &at, "--format", "csv"]).code(130);
    assert!(done.out == "v,k,noise\n" && done.err == "stopped\n", "{done:?}");
}

#[test]
fn ctrl_c_leaves_nothing_of_a_file_that_was_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>();
    let to = dir.path().join("p.parquet");
    let done = run_and_interrupt_once(&["generate", "particles", "--rows", "500M", "--out", text(&to)], || files().iter().any(|file| file.ends_with(".part")));
    assert!(done.code == Some(130) && done.err.ends_with("stopped\n"), "{done:?}");
    assert_eq!(files(), Vec::<String>::new());
}

#[test]
fn more_files_than_a_process_may_open_are_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    for ending in ["csv", "jsonl", "parquet", "arrow"] {
        let files: Vec<_> = (0..120)
            .map(|n| {
                let name = format!("part-{n}.{ending}");
                match ending {
                    "csv" => file(dir.path(), &name, &format!("v\n{n}\n")),
                    "jsonl" => file(dir.path(), &name, &format!("{{\"v\":{n}}}\n")),
                    "parquet" => parquet(dir.path(), &name, &rows(n, 1)),
                    _ => arrow_file(dir.path(), &name, &rows(n, 1)),
                }
            })
            .collect();
        let to = format!("d.{ending}");
        let mut args = vec!["ingest", "--to", &to, "--fleet", &at];
        args.extend(files.iter().map(String::as_str));
        run_with_files(100, &args).code(0);
        let sum = format!("SELECT count(*) AS n, sum(v) AS s FROM {to}");
        assert_eq!(run(&["sql", &sum, "--fleet", &at, "--format", "csv"]).code(0).out, "n,s\n120,7140\n", "{ending}");
    }
}

#[test]
fn a_disk_that_was_mounted_just_now_becomes_a_fleet() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir_all(disk.join("lost+found")).unwrap();
    run(&["init", text(&disk), "--drives", "1"]).code(0);
    assert_eq!(run(&["ls", "--fleet", text(&disk)]).code(0).out, "no data sets\n");
    std::fs::create_dir_all(dir.path().join("other/lost+found")).unwrap();
    let other = file(&dir.path().join("other"), "letter.txt", "dear");
    let said = run(&["init", text(std::path::Path::new(&other).parent().unwrap())]).fails(1);
    assert!(said.contains("letter.txt"), "{said}");
}

#[test]
fn a_damaged_data_set_is_shown_as_damaged() {
    use skytether_store::{Expect, Op};

    let dir = tempfile::tempdir().unwrap();
    let at = small(dir.path());
    let damage = async {
        let options = skytether::OpenOptions { create: false, ..Default::default() };
        let fleet = skytether::Fleet::open(&at, &options).await.unwrap();
        let catalog = fleet.host().unwrap().catalog();
        let name: skytether_common::DatasetName = "d.t".parse().unwrap();
        let put = Op::Put { key: name.root_key(), value: "{".into(), expect: Expect::Any };
        catalog.drives()[catalog.home(&name)].apply(vec![put]).await.unwrap();
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(damage);
    let listed = run(&["ls", "--fleet", &at]).code(0).out;
    assert!(listed.lines().any(|line| line.contains("d.t") && line.contains("root record")), "{listed}");
    let listed: Value = serde_json::from_str(&run(&["ls", "--fleet", &at, "--format", "json"]).code(0).out).unwrap();
    assert!(listed[0]["name"] == "d.t" && listed[0]["kind"].is_null() && listed[0]["error"].is_string(), "{listed}");
    let status = run(&["status", "--fleet", &at]).code(1);
    assert!(status.out.contains("d.t at drive-") && status.err.contains("d.t"), "{status:?}");
    let status: Value = serde_json::from_str(&run(&["status", "--fleet", &at, "--format", "json"]).code(1).out).unwrap();
    assert_eq!(status.as_array().unwrap().iter().map(|d| d["unreadable"].as_array().unwrap().len()).sum::<usize>(), 1, "{status}");
}

#[test]
fn a_column_without_a_value_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    for (name, text) in [("t.csv", "k,nothing\n1,\n2,\n"), ("t.jsonl", "{\"k\":1,\"nothing\":null}\n{\"k\":2}\n")] {
        run(&["ingest", &file(dir.path(), name, text), "--to", "d.t", "--replace", "--fleet", &at]).code(0);
        let found = run(&["sql", "SELECT count(*) AS n, count(nothing) AS v, max(nothing) AS m FROM d.t", "--fleet", &at, "--format", "csv"]).code(0).out;
        assert_eq!(found, "n,v,m\n2,0,\n", "{name}");
    }
}

#[test]
fn patterns_name_files_and_a_wrong_separator_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    for (name, value) in [("part-1.csv", 1), ("part-2.csv", 2), ("other.csv", 4)] {
        file(dir.path(), name, &format!("v\n{value}\n"));
    }
    let pattern = text(&dir.path().join("part-*.csv")).to_owned();
    let done = run(&["ingest", &pattern, "--to", "d.t", "--fleet", &at]).code(0);
    assert!(done.out.starts_with("d.t: 2 rows in 1 slice, ") && done.err.is_empty(), "{done:?}");
    assert_eq!(run(&["sql", "SELECT sum(v) AS s FROM d.t", "--fleet", &at, "--format", "csv"]).code(0).out, "s\n3\n");
    // Hidden files are skipped in a pattern and in a directory.
    let parts = dir.path().join("parts");
    std::fs::create_dir(&parts).unwrap();
    for (name, value) in [("a.csv", 1), ("b.csv", 2), (".c.csv", 4), ("_d.csv", 8)] {
        file(&parts, name, &format!("v\n{value}\n"));
    }
    for (source, sum) in [(parts.clone(), 3), (parts.join("*.csv"), 11), (parts.join(".c.csv"), 4)] {
        run(&["ingest", text(&source), "--to", "d.parts", "--replace", "--fleet", &at]).code(0);
        assert_eq!(run(&["sql", "SELECT sum(v) AS s FROM d.parts", "--fleet", &at, "--format", "csv"]).code(0).out, format!("s\n{sum}\n"));
    }
    // A file of just that name is that file.
    let odd = file(dir.path(), "part-[1].csv", "v\n8\n");
    run(&["ingest", &odd, "--to", "d.odd", "--fleet", &at]).code(0);
    assert_eq!(run(&["sql", "SELECT sum(v) AS s FROM d.odd", "--fleet", &at, "--format", "csv"]).code(0).out, "s\n8\n");

    for (name, content, says) in
        [("semi.csv", "a;b\n1;2\n", "';'"), ("tabs.csv", "a\tb\n1\t2\n", ".tsv"), ("bars.csv", "a|b\n1|2\n", "'|'"), ("commas.tsv", "a,b\n1,2\n", ".csv")]
    {
        let done = run(&["ingest", &file(dir.path(), name, content), "--to", "d.one", "--replace", "--fleet", &at]).code(0);
        assert!(done.err.contains(name) && done.err.contains("one column") && done.err.contains(says) && done.err.lines().count() == 1, "{done:?}");
    }
    let done = run(&["ingest", &file(dir.path(), "one.csv", "v\n1\n"), "--to", "d.one", "--replace", "--fleet", &at]).code(0);
    assert!(done.err.is_empty(), "{done:?}");
}

#[test]
fn errors_of_queries_speak_of_the_query() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    run(&["ingest", &file(dir.path(), "t.csv", "City,v\na,1\n"), "--to", "d.t", "--fleet", &at]).code(0);
    for (sql, says) in [
        ("SELEC 1", "this is no SQL: expected: an SQL statement, found: SELEC at line 1, column 1"),
        ("SELECT * FROM trips", "there is no table \"trips\" in the query: a data set is named domain.dataset"),
        ("SELECT * FROM d.t WHERE v > 'abc'", "cannot cast string 'abc' to value of Int64 type"),
        ("SELECT City FROM d.t", "double quotes"),
        ("SELECT 1 / 0", "division by zero"),
        ("SELECT v / 0 FROM d.t", "division by zero"),
        ("DESCRIBE d.t", "`skytether describe d.t`"),
        ("SHOW TABLES", "`skytether ls`"),
        ("EXPLAIN SELECT 1", "`explain`"),
        ("SELECT 1; SELECT 2", "one query at a time: the text has several, with ';' between them"),
    ] {
        let said = run(&["sql", sql, "--fleet", &at]).fails(1);
        assert!(said.contains(says), "{sql}: {said}");
        for word in ["datafusion", "optimizer", "arrow error", "parserError", "@.", "ident_normalization"] {
            assert!(!said.to_lowercase().contains(&word.to_lowercase()), "{sql}: {said}");
        }
    }
}

#[test]
fn a_fleet_with_redundancy_answers_without_a_drive() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    let said = run(&["init", text(&at), "--drives", "2", "--redundancy", "ec:2+1"]).fails(1);
    assert!(said.contains("ec:2+1 needs 3 drives"), "{said}");
    run(&["init", text(&at), "--drives", "3", "--redundancy", "ec:2+1"]).code(0);
    let rows: String = std::iter::once("k,v\n".to_owned()).chain((0..5000).map(|n| format!("{},{n}\n", n % 7))).collect();
    let rows = file(dir.path(), "rows.csv", &rows);
    run(&["ingest", &rows, "--to", "d.kept", "--fleet", text(&at)]).code(0);
    run(&["ingest", &rows, "--to", "d.copied", "--fleet", text(&at), "--redundancy", "replicas:2"]).code(0);
    let said = run(&["ingest", &rows, "--to", "d.wide", "--fleet", text(&at), "--redundancy", "ec:4+1"]).fails(1);
    assert!(said.contains("d.wide") || said.contains("ec:4+1 needs 5 drives"), "{said}");
    let sum =
        |name: &str| run(&["sql", &format!("SELECT k, sum(v) AS s FROM {name} GROUP BY k ORDER BY k"), "--fleet", text(&at), "--format", "csv"]).code(0).out;
    let whole = [sum("d.kept"), sum("d.copied")];
    assert!(whole[0] == whole[1] && whole[0].lines().count() == 8, "{whole:?}");
    for n in 0..3 {
        let (drive, away) = (at.join("drives").join(n.to_string()), dir.path().join("away"));
        std::fs::rename(&drive, &away).unwrap();
        assert_eq!([sum("d.kept"), sum("d.copied")], whole, "without {n}");
        let status = run(&["status", "--fleet", text(&at)]).code(1);
        assert!(status.err.contains(&format!("drive-{n} is lost: it is missing: ")) && status.err.contains(&format!("--replace drive-{n}`")), "{status:?}");
        let list = run(&["ls", "--fleet", text(&at)]).code(0);
        assert!(
            list.out.contains("d.kept") && list.out.contains("d.copied") && list.err.contains(&format!("drive-{n} is lost; the list is whole")),
            "{list:?}"
        );
        std::fs::rename(&away, &drive).unwrap();
        run(&["status", "--fleet", text(&at)]).code(0);
    }
}

#[test]
fn status_shows_the_drives_of_a_fleet_that_can_not_be_opened() {
    for redundancy in ["none", "replicas:2"] {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("fleet");
        run(&["init", text(&at), "--drives", "5", "--redundancy", redundancy]).code(0);
        for n in [2, 4] {
            std::fs::rename(at.join("drives").join(n.to_string()), dir.path().join(n.to_string())).unwrap();
        }
        let said = run(&["ls", "--fleet", text(&at)]).fails(1);
        let status = run(&["status", "--fleet", text(&at)]).code(1);
        for told in [&said, &status.err] {
            assert!(told.contains("2 drives are lost") && told.contains("drive-2 (") && told.contains("drive-4 (") && told.contains("bring"), "{told}");
        }
        for n in 0..5 {
            let line = status.out.lines().find(|line| line.starts_with(&format!("drive-{n} "))).unwrap_or_else(|| panic!("{status:?}"));
            assert!(line.contains(if n == 2 || n == 4 { " lost " } else { " up " }), "{line}");
        }
        let told = run(&["status", "--fleet", text(&at), "--format", "json"]).code(1).out;
        assert_eq!(serde_json::from_str::<Value>(&told).unwrap().as_array().unwrap().len(), 5, "{told}");
    }
}

#[test]
fn repairable_damage_suggests_a_scrub_and_no_drop() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("fleet");
    run(&["init", text(&at), "--drives", "3", "--redundancy", "ec:2+1"]).code(0);
    run(&["ingest", &parquet(dir.path(), "t.parquet", &rows(0, 5000)), "--to", "d.t", "--fleet", text(&at)]).code(0);
    let mut values = Vec::new();
    for n in 0..3 {
        for below in std::fs::read_dir(at.join("drives").join(n.to_string()).join("slices")).unwrap() {
            values.extend(std::fs::read_dir(below.unwrap().path()).unwrap().map(|file| file.unwrap().path()));
        }
    }
    // A slice or its parity.
    let longest = values.iter().max_by_key(|file| std::fs::metadata(file).unwrap().len()).unwrap();
    let len = std::fs::metadata(longest).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(longest).unwrap().set_len(len - 1).unwrap();
    let asked = run(&["sql", "SELECT sum(v) AS s FROM d.t", "--fleet", text(&at), "--format", "csv", "--receipt"]).code(0);
    assert!(asked.out == "s\n12497500\n" && !asked.err.contains("drop"), "{asked:?}");
    // The log says so, and so does the receipt, where a drive could not run its sub-plan.
    let receipt = asked.err.lines().filter(|line| line.contains(" could not (")).collect::<Vec<_>>();
    assert!(receipt.iter().all(|line| line.contains("; `skytether scrub` mends it)")), "{asked:?}");
    let mended = run(&["scrub", "--fleet", text(&at)]).code(0);
    assert!(mended.out.contains("1 damaged, all mended") && !mended.err.contains("drop"), "{mended:?}");
    assert!(run(&["scrub", "--fleet", text(&at)]).code(0).out.ends_with("nothing is damaged\n"));
    // What could not be looked at is nothing that a timetable may take for well.
    std::fs::rename(at.join("drives/1"), dir.path().join("away")).unwrap();
    let less = run(&["scrub", "--fleet", text(&at)]).code(1);
    assert!(less.out.ends_with("nothing is damaged on the drives that were looked at\n") && less.err.contains("drive-1 was left out"), "{less:?}");
}
