//! Fleets whose drives emulate devices.

use std::collections::BTreeMap;
use std::path::Path;

use skytether::{Fleet, HostOptions, OpenOptions, Profiles, Pushdown, QueryOptions};
use skytether_common::{Kind, Result};
use skytether_scheduler::message::PushdownLevel;
use skytether_slice::SliceOptions;

use crate::receipts::{assert_each_once, receipt, slices};
use crate::util::{CUTS, batches, ingest, query};

/// Slower than the machine in everything, but not so much that tests would wait for it.
const TARDY: &str =
    "speed_per_core = 0.4\ncores = 1\nmemory_bytes = 67108864\ndisk_bytes_per_s = 1e9\ndisk_seek_s = 0.0003\nlink_bits_per_s = 8e9\nlink_latency_s = 0.0002\n";

async fn open(path: &Path, drives: Option<usize>, profile: Profiles) -> Result<Fleet> {
    let host = HostOptions { slices: SliceOptions { target_bytes: 8 << 10, ..SliceOptions::default() }, ..HostOptions::default() };
    Fleet::open_with(path, &OpenOptions { drives, profile, ..OpenOptions::default() }, host).await
}

fn each(given: &[&str]) -> Profiles {
    Profiles::Each(given.iter().map(|given| (*given).to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_profiles_change_no_answer_and_receipts_name_them() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("tardy.toml");
    std::fs::write(&own, TARDY).unwrap();
    let path = dir.path().join("fleet");
    let profiles = each(&["envoy", own.to_str().unwrap(), "unlimited"]);
    let queries = [
        "SELECT grp, count(*) AS n, avg(x) AS x FROM lab.t WHERE id % 3 = 1 GROUP BY grp ORDER BY grp",
        "SELECT id, name FROM lab.t WHERE x > 500 ORDER BY id LIMIT 50",
    ];
    let fleet = open(&path, None, Profiles::default()).await.unwrap();
    assert_eq!(fleet.status().await.unwrap().len(), 4, "as always");
    drop(fleet);
    std::fs::remove_dir_all(&path).unwrap();
    // As many drives as there are profiles.
    let fleet = open(&path, None, profiles).await.unwrap();
    ingest(&fleet, "lab.t", &batches(6, 500), false).await.unwrap();
    let status = fleet.status().await.unwrap();
    assert_eq!(status.iter().map(|d| d.info.profile.map(|p| p.cores)).collect::<Vec<_>>(), [Some(2), Some(1), None]);
    assert_eq!(status.iter().map(|d| d.info.memory_limit).collect::<Vec<_>>(), [1 << 30, 64 << 20, 512 << 20]);
    let mut slow = Vec::new();
    for sql in queries {
        for cut in CUTS {
            slow.push(query(&fleet, sql, cut).await.unwrap());
        }
    }
    let told = receipt(&fleet, queries[0], Pushdown::Full).await;
    assert_eq!(told.drives.iter().map(|d| d.profile.as_deref()).collect::<Vec<_>>(), [Some("envoy"), Some("tardy"), None]);
    let text = told.to_string();
    assert!(text.contains("drive-0 (envoy): ") && text.contains("drive-1 (tardy): ") && text.contains("drive-2: "), "{text}");
    drop(fleet);
    let fleet = open(&path, None, Profiles::default()).await.unwrap();
    for (sql, slow) in queries.iter().zip(slow.chunks(CUTS.len())) {
        for (cut, slow) in CUTS.iter().zip(slow) {
            assert_eq!(query(&fleet, sql, *cut).await.unwrap(), *slow, "{sql} {cut:?}");
        }
    }
    let told = receipt(&fleet, queries[0], Pushdown::Full).await;
    assert!(told.drives.iter().all(|d| d.profile.is_none()) && !told.to_string().contains("(envoy)"));
    drop(fleet);
    let fleet = open(&path, None, Profiles::Some(BTreeMap::from([(2, TARDY.to_owned())]))).await.unwrap();
    let told = receipt(&fleet, queries[0], Pushdown::Full).await;
    assert_eq!(told.drives.iter().map(|d| d.profile.as_deref()).collect::<Vec<_>>(), [None, None, Some("own profile")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_expected_and_actual_work_of_each_drive() {
    let dir = tempfile::tempdir().unwrap();
    // One with a slow link, and one that is two hundred times slower than it.
    let (far, slow) = (TARDY.replace("8e9", "2e6"), TARDY.replace("0.4", "0.002"));
    let fleet = open(&dir.path().join("fleet"), None, each(&[&far, &slow])).await.unwrap();
    ingest(&fleet, "lab.t", &batches(60, 500), false).await.unwrap();
    let sql = "SELECT count(*) AS n, avg(x) AS x FROM lab.t WHERE id % 2 = 0";
    let text = fleet.explain(sql, false, &QueryOptions::default()).await.unwrap();
    let (_, said) = text.split_once("by the drives' profiles").unwrap_or_else(|| panic!("{text}"));
    let said: Vec<&str> = said.lines().skip(1).take(3).map(str::trim).collect();
    let of = |begins: &str| said.iter().find(|line| line.starts_with(begins)).copied().unwrap_or_else(|| panic!("{begins}\n{text}"));
    assert!(!of("expected: ").contains("took"), "{text}");
    assert!(of("drive-0: ").contains(" at full, ") && of("drive-0: ").ends_with(" each"), "{text}");
    // The host had better do it.
    assert!(of("drive-1: ").contains(" handed out, ") && !of("drive-1: ").contains(" at full"), "{text}");
    assert!(!text.contains("happened"), "{text}");

    let text = fleet.explain(sql, true, &QueryOptions::default()).await.unwrap();
    assert!(text.contains("; took ") && text.contains("; happened: "), "{text}");
    let told = receipt(&fleet, sql, Pushdown::Adaptive).await;
    let estimate = told.scans[0].estimate.as_ref().unwrap_or_else(|| panic!("{told}"));
    let actual = estimate.actual.as_ref().unwrap();
    let parts = |shares: &[skytether_host::DriveShare]| shares.iter().map(|share| share.slices + share.handed_out).collect::<Vec<_>>();
    assert_eq!(parts(&estimate.expected.drives), parts(&actual.drives), "the slices do not depend on the drive that processed them");
    assert!(actual.seconds > 0.0 && estimate.expected.seconds > 0.0);
    let all = slices(&fleet, "lab.t").await;
    assert_each_once(&told, all, "adaptive");
    assert!(told.drives[1].above.slices > 0 && told.host_work.seconds > 0.0, "{told}");
    assert!(told.to_string().contains("that drives handed out ("), "{told}");
    let raw = receipt(&fleet, "SELECT count(*) AS n, avg(x) AS x, max(name) FROM lab.t", Pushdown::Raw).await;
    assert_each_once(&raw, all, "raw");
    assert_eq!((raw.host_work.slices, raw.host_work.rows_read), (all, 30_000), "{raw}");
    assert!(raw.drives.iter().all(|drive| drive.bytes_read > 0 && drive.slices == 0), "{raw}");
}

/// Two drives differ in speed by ten. A query teaches the costs of each, and the next one expects them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_show_learnt_costs_of_drives_next_to_expected_ones() {
    let dir = tempfile::tempdir().unwrap();
    let open = async |profile| {
        let host = HostOptions { slices: SliceOptions { target_bytes: 16 << 10, ..SliceOptions::default() }, ..HostOptions::default() };
        Fleet::open_with(dir.path().join("fleet"), &OpenOptions { drives: Some(2), profile, ..OpenOptions::default() }, host).await.unwrap()
    };
    let fleet = open(Profiles::default()).await;
    ingest(&fleet, "lab.t", &batches(60, 1000), false).await.unwrap();
    drop(fleet);
    // One ten times as fast as the other, behind links through which no slice had better go.
    let far = TARDY.replace("8e9", "4e4");
    let fleet = open(each(&[&far.replace("0.4", "0.5"), &far.replace("0.4", "0.05")])).await;
    // The same operators over the same columns, so the prior costs are equal. Their real costs differ.
    let digest = |text: &str| (0..6).fold(text.to_owned(), |text, _| format!("md5({text})"));
    let light = "SELECT count(*) FROM lab.t WHERE name <> 'a' AND name <> 'b'".to_owned();
    let heavy = format!("SELECT count(*) FROM lab.t WHERE {} <> 'a' AND {} <> 'b'", digest("name"), digest("name || 'b'"));
    let mut learnt = Vec::new();
    for sql in [light, heavy] {
        let told = receipt(&fleet, &sql, Pushdown::Adaptive).await;
        let estimate = told.scans[0].estimate.as_ref().unwrap_or_else(|| panic!("{told}"));
        let actual = estimate.actual.as_ref().unwrap_or_else(|| panic!("{told}"));
        let [expected, actual] = [&estimate.expected, actual].map(|division| {
            assert!(division.drives.len() == 2 && division.drives.iter().all(|drive| drive.rung == Some(PushdownLevel::Full) && drive.slices > 8), "{told}");
            // By name: partitions lie on the drives in an order of their own.
            ["drive-0", "drive-1"].map(|name| division.drives.iter().find(|drive| drive.name == name).unwrap_or_else(|| panic!("{told}")).seconds_per_slice)
        });
        let text = told.tree();
        assert!(text.contains("expected: ") && text.contains("; took ") && text.contains("; happened: "), "{text}");
        learnt.push((expected, actual));
    }
    let [(expected, light), (too, heavy)] = learnt[..] else { panic!("two queries") };
    let off = |one: f64, other: f64| (one / other).ln().abs();
    for at in 0..2 {
        // What kinds of operators take there the first query has shown: the second, of the same kinds, is expected to
        // be nearer to that than it was itself.
        assert!(off(too[at], light[at]) < off(expected[at], light[at]).max(0.4), "drive {at}: {expected:?} s and {too:?} s were expected, {light:?} s it took");
        assert!(heavy[at] > 4.0 * light[at] && heavy[at] > 4.0 * too[at], "drive {at}: {heavy:?} s for what is heavy, {light:?} s for what is light");
    }
    // Other things on this machine may hold one up more than the other.
    assert!(expected[1] > 5.0 * expected[0] && heavy[1] > 2.0 * heavy[0], "{expected:?} s were expected, {heavy:?} s it took");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfit_profiles_are_refused_and_create_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fleet");
    let wrong = |drives, profiles: Profiles, says: &'static [&'static str]| {
        let path = path.clone();
        async move {
            let error = open(&path, drives, profiles).await.unwrap_err();
            let text = error.report();
            assert_eq!(error.kind(), Kind::Invalid, "{text}");
            assert!(says.iter().all(|says| text.contains(says)), "{text}");
        }
    };
    wrong(Some(2), "envy".into(), &["\"envy\"", "envoy, newport, server, unlimited"]).await;
    assert!(!path.exists());
    wrong(Some(2), each(&["envoy", "speed_per_core = 1"]), &["drive 1", "own profile", "cores"]).await;
    assert!(!path.exists());
    let swift = TARDY.replace("speed_per_core = 0.4", "speed_per_core = 2.0");
    wrong(Some(2), each(&["envoy", &swift]), &["drive 1", "speed_per_core is 2, but"]).await;
    assert!(!path.exists());
    wrong(Some(2), each(&["envoy", "envoy", "server"]), &["3 profiles for 2 drives"]).await;
    assert!(!path.join("drives").join("0").exists());
    wrong(Some(2), Profiles::Some(BTreeMap::from([(2, "envoy".into())])), &["for drive 2", "drives 0 to 1"]).await;
    drop(open(&path, Some(2), "envoy".into()).await.unwrap());
    wrong(None, each(&["envoy"]), &["1 profiles for 2 drives"]).await;
    wrong(None, each(&[]), &["0 profiles for 2 drives"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calibration_reports_asked_and_measured_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    for served in [false, true] {
        let mut steps = Vec::new();
        // More of a core than there is: this figure is off on any machine.
        let asked = "speed_per_core = 50.0\ncores = 1\nmemory_bytes = 67108864\ndisk_bytes_per_s = 1e8\ndisk_seek_s = 0.003\nlink_bits_per_s = 4e8\nlink_latency_s = 0.004\n";
        let found = skytether::calibrate(asked, Some(dir.path()), served, |step| steps.push(step)).await.unwrap();
        assert_eq!(steps.len() as u64, skytether::calibrate::STEPS);
        assert_eq!((found.profile.as_str(), found.served, found.within), ("own profile", served, false));
        let keys: Vec<&str> = found.measured.iter().map(|m| m.key).collect();
        assert_eq!(keys, ["speed_per_core", "cores", "memory_bytes", "disk_bytes_per_s", "disk_seek_s", "link_bits_per_s", "link_latency_s"]);
        assert_eq!(found.measured.iter().map(|m| m.asked.unwrap()).collect::<Vec<_>>(), [50.0, 1.0, 67_108_864.0, 1e8, 0.003, 4e8, 0.004]);
        assert!(found.measured.iter().all(|m| m.got > 0.0 && (m.ratio.unwrap() * m.asked.unwrap() - m.got).abs() <= 1e-6 * m.got), "{found:?}");
        let (speed, memory) = (&found.measured[0], &found.measured[2]);
        assert!(!speed.within && memory.within && memory.got == 67_108_864.0, "{found:?}");
        // No measurement is faster than the device, however busy the machine is. Through sockets a figure is the
        // difference of two measurements, and the machine may delay either one.
        let told = if served { 2 } else { 4 };
        for (at, faster) in [(3, true), (4, false), (5, true), (6, false)].into_iter().take(told) {
            let ratio = found.measured[at].ratio.unwrap();
            assert!(if faster { ratio < 1.1 } else { ratio > 0.9 }, "{found:?}");
        }
    }
    let error = skytether::calibrate("envy", Some(dir.path()), false, |_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("envoy, newport"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_device_is_never_faster_than_its_profile() {
    let dir = tempfile::tempdir().unwrap();
    let asked = "speed_per_core = 0.05\ncores = 1\nmemory_bytes = 67108864\ndisk_bytes_per_s = 4e7\ndisk_seek_s = 0.003\nlink_bits_per_s = 8e5\nlink_latency_s = 0.004\n";
    let found = skytether::calibrate(asked, Some(dir.path()), true, |_| ()).await.unwrap();
    let ratio = |key: &str| {
        found.measured.iter().find(|measured| measured.key == key).and_then(|measured| measured.ratio).unwrap_or_else(|| panic!("{key}: {found:?}"))
    };
    // A busy machine delays reads and messages. A delay of the first message is small compared with the two seconds of
    // all.
    for key in ["disk_bytes_per_s", "link_bits_per_s"] {
        assert!(ratio(key) < 1.1, "{key}: {found:?}");
    }
    assert!(ratio("disk_seek_s") > 0.9, "{found:?}");
    // How quick this machine is by itself is found by the clock, and where others are at work that is too slow, several
    // times perhaps: then the device seems as much quicker. One that was not held up would be twenty times too quick.
    assert!(ratio("speed_per_core") < 10.0, "{found:?}");
    // Both measured on the device; this machine has two cores at least.
    assert!(ratio("cores") < 1.5, "{found:?}");
}
