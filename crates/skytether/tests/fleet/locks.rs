//! Who may open what.

use std::fs;

use skytether::{Fleet, OpenOptions};
use skytether_common::Kind;

use crate::util::{batches, ingest, name, open, value};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_is_open_is_not_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    let error = open(dir.path(), 2).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    assert!(error.to_string().contains("this process"), "{error}");
    fs::write(dir.path().join("LOCK"), "4711").unwrap();
    let error = open(dir.path(), 2).await.unwrap_err();
    assert!(error.to_string().contains("process 4711"), "{error}");
    drop(fleet);
    open(dir.path(), 2).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfit_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), 2).await.unwrap());
    let error = open(dir.path(), 3).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("has 2 drives"), "{error}");
    let absent = dir.path().join("absent");
    let options = OpenOptions { create: false, ..OpenOptions::default() };
    assert_eq!(Fleet::open(&absent, &options).await.unwrap_err().kind(), Kind::NotFound);
    assert!(!absent.exists(), "a failed open made a directory");
    let options = OpenOptions { redundancy: "ec:4+2".into(), ..OpenOptions::default() };
    let error = Fleet::open(dir.path(), &options).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("has redundancy none, not ec:4+2"), "{error}");
    let options = OpenOptions { redundancy: "ec:4+2/2+1".into(), ..OpenOptions::default() };
    let error = Fleet::open(&absent, &options).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("say on how many nodes the drives are") && !absent.exists(), "{error}");
    let options = OpenOptions { redundancy: "ec:4+2".into(), drives: Some(5), ..OpenOptions::default() };
    let error = Fleet::open(&absent, &options).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("needs 6 drives"), "{error}");
    let full = tempfile::tempdir().unwrap();
    fs::write(full.path().join("thesis.tex"), "x").unwrap();
    let error = open(full.path(), 1).await.unwrap_err();
    assert!(error.to_string().contains("thesis.tex"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_or_foreign_drive_and_newer_format_are_named() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(open(one.path(), 2).await.unwrap());
    drop(open(two.path(), 2).await.unwrap());
    let drive = |dir: &tempfile::TempDir, n: &str| dir.path().join("drives").join(n);
    let away = one.path().join("away");
    fs::rename(drive(&one, "1"), &away).unwrap();
    let error = open(one.path(), 2).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.to_string().contains("1 drive is lost") && error.to_string().contains("drive-1 ("), "{error}");
    fs::rename(drive(&two, "1"), drive(&one, "1")).unwrap();
    let error = open(one.path(), 2).await.unwrap_err();
    assert!(error.to_string().contains("not of this fleet"), "{error}");
    fs::remove_dir_all(drive(&one, "1")).unwrap();
    fs::rename(&away, drive(&one, "1")).unwrap();
    drop(open(one.path(), 2).await.unwrap());

    let file = one.path().join("fleet.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"format\": 1", "\"format\": 99")).unwrap();
    assert_eq!(open(one.path(), 2).await.unwrap_err().kind(), Kind::Unsupported);
    fs::write(&file, &text[..text.len() / 2]).unwrap();
    assert_eq!(open(one.path(), 2).await.unwrap_err().kind(), Kind::Corrupt);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_data_sets_exist_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    ingest(&open(dir.path(), 3).await.unwrap(), "lab.t", &batches(4, 300), false).await.unwrap();
    let fleet = Fleet::open(dir.path(), &OpenOptions::default()).await.unwrap();
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "1200");
    assert_eq!(fleet.status().await.unwrap().len(), 3);
    assert_eq!(fleet.describe(&name("lab.t")).await.unwrap().rows(), 1200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_fleet_file_is_named_and_nothing_adopted_or_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.t", &batches(4, 300), false).await.unwrap();
    drop(fleet);
    let file = dir.path().join("fleet.json");
    fs::rename(&file, dir.path().join("away")).unwrap();
    fs::rename(dir.path().join("away"), dir.path().join("fleet.json.new")).unwrap();
    // With as many drives, fewer and more, made or only opened.
    for options in [Some(3), Some(2), Some(5), None]
        .map(|drives| OpenOptions { drives, ..OpenOptions::default() })
        .into_iter()
        .chain([OpenOptions { create: false, ..OpenOptions::default() }])
    {
        let error = Fleet::open(dir.path(), &options).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{options:?}: {error}");
        assert!(error.to_string().contains("fleet.json is missing"), "{error}");
        assert!(!file.exists(), "{options:?}");
        // Opening with more makes new drives aside of the old ones before it notices.
        for n in 3..5 {
            let _ = fs::remove_dir_all(dir.path().join("drives").join(n.to_string()));
        }
    }
    let error = Fleet::open(dir.path(), &OpenOptions { create: false, ..OpenOptions::default() }).await.unwrap_err().to_string();
    let text = &error[error.find('{').unwrap()..=error.rfind('}').unwrap()];
    fs::write(&file, text).unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "1200");
}
