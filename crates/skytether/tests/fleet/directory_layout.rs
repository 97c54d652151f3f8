//! Damaged, truncated or lost `index.redb`, `drive.json` and `fleet.json`: the drive counts as lost and is rebuilt, or
//! the error says what to do. No answer is wrong.

use std::fs;
use std::path::Path;

use skytether::{Fleet, Pushdown, RepairOptions};
use skytether_common::Kind;
use uuid::Uuid;

use crate::drive_replacement::{parts, repair, replacing};
use crate::growth::{clean, no_leaks, reopen};
use crate::killed_processes::{closed, copy_all};
use crate::redundancy::{dir_of, lose, open};
use crate::util::{Random, batches, ingest, query};

const QUERIES: [&str; 3] = [
    "SELECT grp, count(*), sum(n), min(x), max(name) FROM lab.t GROUP BY grp ORDER BY grp",
    "SELECT id, name FROM lab.t WHERE n % 97 = 3 ORDER BY id",
    "SELECT count(*), sum(id) FROM lab.small",
];

async fn answers(fleet: &Fleet, what: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in QUERIES {
        all.push(query(fleet, sql, Pushdown::Adaptive).await.unwrap_or_else(|e| panic!("{what}: {sql}: {}", e.report())));
    }
    all
}

/// A closed fleet of four drives, and its answers.
async fn filled(redundancy: &str) -> (tempfile::TempDir, Vec<Vec<String>>) {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, redundancy).await.unwrap();
    ingest(&fleet, "lab.t", &batches(4, 1000), false).await.unwrap();
    ingest(&fleet, "lab.small", &batches(1, 300), false).await.unwrap();
    let whole = answers(&fleet, "at first").await;
    drop(fleet);
    closed(dir.path());
    (dir, whole)
}

/// Which drives are lost, each with why.
async fn lost(fleet: &Fleet) -> Vec<(usize, String)> {
    fleet.status().await.unwrap().into_iter().enumerate().filter_map(|(n, drive)| Some((n, drive.error?))).collect()
}

/// Bit `bit` of byte `at`.
fn flipped(bytes: &[u8], at: usize, bit: usize) -> Vec<u8> {
    let mut other = bytes.to_vec();
    other[at] ^= 1 << bit;
    other
}

/// What befalls the file of that name of drive 1.
fn befall(dir: &Path, file: &str, how: &str) {
    let path = dir_of(dir, 1).join(file);
    let bytes = fs::read(&path).unwrap();
    match how {
        "is gone" => fs::remove_file(&path).unwrap(),
        "is empty" => fs::write(&path, "").unwrap(),
        "is cut off" => fs::write(&path, &bytes[..bytes.len() / 2]).unwrap(),
        "is noise" => fs::write(&path, (0..bytes.len()).map(|at| ((at * 7919) >> 3) as u8).collect::<Vec<u8>>()).unwrap(),
        "has a flipped bit" => fs::write(&path, flipped(&bytes, 3, 4)).unwrap(),
        _ => panic!("{how}"),
    }
}

/// `index.redb` or `drive.json` is gone, empty, cut off, noise, or has a flipped bit. A repair restores the same bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_with_damaged_own_files_is_lost_and_rebuilt() {
    let (first, whole) = filled("ec:2+1").await;
    let before = parts(first.path(), 1);
    for (file, how, says) in [
        ("index.redb", "is gone", "index.redb"),
        ("index.redb", "is empty", "index.redb"),
        ("index.redb", "is cut off", "index.redb"),
        ("index.redb", "is noise", "index.redb"),
        ("index.redb", "has a flipped bit", "index.redb"),
        ("drive.json", "is gone", "there is no drive in "),
        ("drive.json", "is empty", "drive.json"),
        ("drive.json", "is cut off", "drive.json"),
        ("drive.json", "has a flipped bit", "drive.json"),
    ] {
        let what = format!("{file} {how}");
        let dir = tempfile::tempdir().unwrap();
        copy_all(first.path(), dir.path());
        befall(dir.path(), file, how);
        let fleet = reopen(dir.path()).await;
        let told = lost(&fleet).await;
        assert!(told.len() == 1 && told[0].0 == 1 && told[0].1.contains(says), "{what}: {told:?}");
        assert_eq!(answers(&fleet, &what).await, whole, "{what}");
        // The rest of its content is not overwritten, and it does not count as blank.
        let report = repair(&fleet, RepairOptions::default()).await;
        assert!(report.drives.is_empty() && report.lost.keys().eq(["drive-1"]), "{what}: {report}");
        let error = fleet.repair(&replacing(&[1]), &|_| ()).await.unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.to_string().contains("move what is there away"), "{what}: {}", error.report());
        lose(dir.path(), &[1]);
        let report = repair(&fleet, replacing(&[1])).await;
        assert!(report.left.is_empty() && report.lost.is_empty() && report.drives == ["drive-1"], "{what}: {report}");
        assert_eq!(answers(&fleet, &what).await, whole, "{what}");
        clean(&fleet, &what).await;
        drop(fleet);
        assert!(parts(dir.path(), 1) == before, "{what}: drive 1 is not what it was");
        no_leaks(dir.path(), 2, &what);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flipped_bit_in_files_of_a_drive_is_found_or_harmless() {
    let (first, whole) = filled("ec:2+1").await;
    let random = &mut Random(7);
    for file in ["index.redb", "drive.json"] {
        let good = fs::read(dir_of(first.path(), 1).join(file)).unwrap();
        let mut places: Vec<usize> = (0..good.len()).step_by(3).collect();
        if file == "index.redb" {
            // Its magic number, other parts of the header, and of the rest what is not zero.
            let used: Vec<usize> = (320..good.len()).filter(|at| good[*at] != 0).collect();
            places = vec![3];
            places.extend((0..8).map(|_| random.below(320)));
            places.extend((0..16).map(|_| used[random.below(used.len())]));
        }
        let mut flips: Vec<(usize, usize)> = places.into_iter().map(|at| (at, random.below(8))).collect();
        // Of the number of the format a bit that makes it another number.
        flips.extend(good.windows(10).position(|bytes| bytes == b"\"format\":1").map(|at| (at + 9, 1)));
        let (mut found, mut newer) = (0, 0);
        for (at, bit) in flips {
            let what = format!("bit {bit} of byte {at} of {file}");
            let dir = tempfile::tempdir().unwrap();
            copy_all(first.path(), dir.path());
            let bad = flipped(&good, at, bit);
            fs::write(dir_of(dir.path(), 1).join(file), &bad).unwrap();
            let fleet = open(dir.path(), 4, "none").await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            let told = lost(&fleet).await;
            // Where it says that it is of another format, a newer version may have written it: it is lost
            // as well, and not touched.
            let is_newer = told.iter().any(|(_, why)| why.contains("drives/1 has format"));
            let says = |why: &str| why.contains(file) || (file == "drive.json" && (is_newer || why.contains("holds a drive that is not of this fleet")));
            assert!(told.is_empty() || (told.len() == 1 && told[0].0 == 1 && says(&told[0].1)), "{what}: {told:?}");
            assert!(!told.is_empty() || file == "index.redb", "{what} is not found");
            (found, newer) = (found + told.len(), newer + usize::from(is_newer));
            assert_eq!(answers(&fleet, &what).await, whole, "{what}");
            drop(fleet);
            assert!(file == "index.redb" || fs::read(dir_of(dir.path(), 1).join(file)).unwrap() == bad, "{what}: it was written to");
        }
        assert!(found > 0 && (newer > 0) == (file == "drive.json"), "{file}: {found} were found, {newer} of another format");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_without_redundancy_names_the_damaged_file() {
    let (dir, whole) = filled("none").await;
    for file in ["index.redb", "drive.json"] {
        let path = dir_of(dir.path(), 1).join(file);
        let good = fs::read(&path).unwrap();
        fs::write(&path, &good[..good.len() / 2]).unwrap();
        let error = open(dir.path(), 4, "none").await.unwrap_err();
        let text = error.report();
        assert!(error.kind() == Kind::Corrupt && text.contains("1 drive is lost") && text.contains("drive-1 (") && text.contains(file), "{text}");
        fs::write(&path, &good).unwrap();
    }
    let path = dir_of(dir.path(), 1).join("drive.json");
    let good = fs::read(&path).unwrap();
    fs::write(&path, String::from_utf8(good.clone()).unwrap().replace("\"format\":1", "\"format\":3")).unwrap();
    let error = open(dir.path(), 4, "none").await.unwrap_err();
    let text = error.report();
    assert!(error.kind() == Kind::Unsupported && text.contains("drive-1 (") && text.contains("has format 3"), "{text}");
    fs::write(&path, &good).unwrap();
    assert_eq!(answers(&reopen(dir.path()).await, "restored").await, whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_fleet_file_error_says_what_to_write_instead() {
    let (dir, whole) = filled("ec:2+1").await;
    let file = dir.path().join("fleet.json");
    let good = fs::read(&file).unwrap();
    let noise = vec![0xaa; good.len()];
    for (what, bytes) in [("empty", &[][..]), ("cut off", &good[..good.len() / 2]), ("noise", &noise[..])] {
        fs::write(&file, bytes).unwrap();
        let error = open(dir.path(), 4, "none").await.unwrap_err();
        let text = error.message();
        assert!(error.kind() == Kind::Corrupt && text.contains("fleet.json is damaged"), "{what}: {text}");
        assert!(fs::read(&file).unwrap() == bytes, "{what}: it was written to");
        fs::write(&file, &text[text.find('{').unwrap()..=text.rfind('}').unwrap()]).unwrap();
        let fleet = reopen(dir.path()).await;
        assert!(lost(&fleet).await.is_empty(), "{what}");
        assert_eq!(answers(&fleet, what).await, whole, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flipped_bit_in_the_fleet_file_is_reported_or_corrected() {
    let (dir, whole) = filled("ec:2+1").await;
    let file = dir.path().join("fleet.json");
    let good = fs::read(&file).unwrap();
    let random = &mut Random(8);
    let named = |bytes: &[u8]| -> Vec<Uuid> {
        let list: serde_json::Value = serde_json::from_slice(bytes).unwrap();
        list["drives"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect()
    };
    let ids = named(&good);
    let (mut told, mut right) = (0, 0);
    // Some of its bits, and a digit of each id, which is another digit then.
    let mut flips: Vec<(usize, usize)> = (0..good.len()).step_by(7).map(|at| (at, random.below(8))).collect();
    let text = String::from_utf8(good.clone()).unwrap();
    for id in &ids {
        let at = text.find(&id.to_string()).unwrap();
        flips.push((at + text[at..].find(|digit: char| digit.is_ascii_digit()).unwrap(), 0));
    }
    for (at, bit) in flips {
        let what = format!("bit {bit} of byte {at}");
        let bad = flipped(&good, at, bit);
        fs::write(&file, &bad).unwrap();
        match open(dir.path(), 4, "none").await {
            Ok(fleet) => {
                // One drive is not named: it is from the next time on.
                let missing = lost(&fleet).await;
                assert!(missing.len() <= 1 && missing.iter().all(|(_, why)| why.contains("open the fleet once more")), "{what}: {missing:?}");
                assert_eq!(answers(&fleet, &what).await, whole, "{what}");
                drop(fleet);
                assert_eq!(named(&fs::read(&file).unwrap()), ids, "{what}");
                right += missing.len();
            }
            Err(e) => {
                let text = e.report();
                assert!(matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) && text.contains("fleet.json"), "{what}: {text}");
                assert!(fs::read(&file).unwrap() == bad, "{what}: it was written to");
                fs::write(&file, &good).unwrap();
                told += 1;
            }
        }
        let fleet = reopen(dir.path()).await;
        assert!(lost(&fleet).await.is_empty(), "{what}");
        assert_eq!(fleet.status().await.unwrap().len(), 4, "{what}");
    }
    assert!(told > 10 && right >= 4, "{told} were told, {right} put right");
    let fleet = reopen(dir.path()).await;
    assert_eq!(answers(&fleet, "at last").await, whole);
    clean(&fleet, "at last").await;
    drop(fleet);
    // The list lacks one drive, whose directory is gone as well.
    fs::write(&file, serde_json::json!({"format": 2, "drives": [ids[0], ids[1], ids[3]], "places": [0, 1, 3]}).to_string()).unwrap();
    lose(dir.path(), &[2]);
    let fleet = reopen(dir.path()).await;
    assert_eq!(lost(&fleet).await.len(), 1);
    let report = repair(&fleet, replacing(&[2])).await;
    assert!(report.left.is_empty() && report.drives == ["drive-2"], "{report}");
    drop(fleet);
    let fleet = reopen(dir.path()).await;
    assert!(lost(&fleet).await.is_empty());
    assert_eq!(answers(&fleet, "made anew").await, whole);
    clean(&fleet, "made anew").await;
}
