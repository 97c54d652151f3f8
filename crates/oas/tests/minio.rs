//! Drives of MinIO: what a real server wrote, and larger objects in the same form.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use oas::minio::{Checked, State, Summary, scrub};
use oas::{MINIO_KEY, Session, Settings};
use skytether_offload::operations::digests::Algorithm;

use crate::mounted::{Mounted, noise};
use crate::target::{Target, operations};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/minio")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { fs::write(&to, fs::read(&from).unwrap()).unwrap() }
    }
}

fn checked(session: &Session, root: &Path) -> (Vec<Checked>, Summary) {
    let mut all = Vec::new();
    let summary = scrub(session, root, &mut |checked| {
        all.push(checked);
        Ok(())
    });
    (all, summary.unwrap())
}

fn here() -> Session {
    Session::local(Settings::default()).unwrap()
}

fn name(checked: &Checked) -> String {
    format!("{}/{} {}", checked.bucket, checked.object, checked.part.map_or_else(String::new, |part| part.to_string()))
}

fn highway(data: &[u8]) -> Vec<u8> {
    let mut hasher = Algorithm::Highway256.start(MINIO_KEY);
    hasher.update(data);
    hasher.finish()
}

/// The first wrong frame of a part file, by reading all of it.
fn first_wrong(file: &[u8], frame: usize) -> Option<u64> {
    file.chunks(32 + frame).position(|chunk| highway(&chunk[32..]) != chunk[..32]).map(|at| at as u64)
}

/// MessagePack of what `xl.meta` has.
mod pack {
    pub(super) fn text(text: &str) -> Vec<u8> {
        [&[0xD9, text.len() as u8], text.as_bytes()].concat()
    }

    pub(super) fn bytes(bytes: &[u8]) -> Vec<u8> {
        [&[0xC6][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    pub(super) fn number(number: u64) -> Vec<u8> {
        [&[0xCF][..], &number.to_be_bytes()].concat()
    }

    pub(super) fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
        entries.iter().fold(vec![0x80 | entries.len() as u8], |all, (key, value)| [all, text(key), value.clone()].concat())
    }
}

/// `xl.meta` of an object with one version of `sizes.len()` parts, on a set with `data` shards.
fn xl_meta(data_dir: [u8; 16], data: u64, sizes: &[u64]) -> Vec<u8> {
    use std::hash::Hasher;
    let list = |numbers: Vec<u64>| numbers.into_iter().fold(vec![0x90 | sizes.len() as u8], |all, n| [all, pack::number(n)].concat());
    let object = pack::map(&[
        ("ID", pack::bytes(&[0; 16])),
        ("DDir", pack::bytes(&data_dir)),
        ("EcAlgo", pack::number(1)),
        ("EcM", pack::number(data)),
        ("EcBSize", pack::number(1 << 20)),
        ("CSumAlgo", pack::number(1)),
        ("PartNums", list((1..=sizes.len() as u64).collect())),
        ("PartSizes", list(sizes.to_vec())),
    ]);
    let version = pack::map(&[("Type", pack::number(1)), ("V2Obj", object)]);
    let metadata = [vec![3, 3, 1], pack::bytes(&[0x90]), pack::bytes(&version)].concat();
    let mut hasher = twox_hash::XxHash64::with_seed(0);
    hasher.write(&metadata);
    [b"XL2 \x01\0\x03\0".to_vec(), pack::bytes(&metadata), pack::number(hasher.finish() & 0xFFFF_FFFF)].concat()
}

/// Writes an object with parts of some sizes, and gives their files.
fn write_object(root: &Path, bucket: &str, object: &str, data: u64, sizes: &[u64]) -> Vec<PathBuf> {
    let id = *uuid::Uuid::from_u128(u128::from(sizes[0]) << 64 | 1).as_bytes();
    let place = root.join(bucket).join(object);
    let parts = place.join(uuid::Uuid::from_bytes(id).to_string());
    fs::create_dir_all(&parts).unwrap();
    fs::write(place.join("xl.meta"), xl_meta(id, data, sizes)).unwrap();
    let frame = (1u64 << 20).div_ceil(data);
    let each = sizes.iter().enumerate().map(|(n, size)| {
        // The shard of each block of 1 MiB is of its own length.
        let shard = size / (1 << 20) * frame + (size % (1 << 20)).div_ceil(data);
        let file = noise(size + n as u64, shard as usize).chunks(frame as usize).flat_map(|data| [highway(data), data.to_vec()].concat()).collect::<Vec<u8>>();
        let path = parts.join(format!("part.{}", n + 1));
        fs::write(&path, file).unwrap();
        path
    });
    each.collect()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_minio_wrote_is_right() {
    let (all, summary) = checked(&here(), &fixture());
    let names: Vec<String> = all.iter().map(name).collect();
    let expected = [
        ".minio.sys/buckets/plain/.metadata.bin 1",
        ".minio.sys/buckets/versions/.metadata.bin 1",
        ".minio.sys/pool.bin 1",
        "plain/folder/ 1",
        "plain/large/parts 1",
        "plain/large/parts 2",
        "plain/large/three frames 1",
        "plain/small/empty 1",
        "plain/small/inline.txt 1",
        "versions/gone 1",
        "versions/two 1",
        "versions/two 1",
    ];
    assert_eq!(names, expected);
    assert!(all.iter().all(|checked| checked.state == State::Ok && checked.why.is_none()), "{all:?}");
    // Newest first: the version in a file of its own, then the one in `xl.meta`.
    let two: Vec<(bool, bool)> = all[10..].iter().map(|of| (of.file.ends_with("xl.meta"), of.version.as_ref().unwrap().len() == 36)).collect();
    assert_eq!(two, [(false, true), (true, true)]);
    assert_eq!((summary.ok, summary.bad, summary.failed, summary.here, summary.there), (12, 0, 0, 4, 0));
}

/// Every byte counts: of digests, of data, of the last frame, of `xl.meta` and of the data inside.
#[test]
fn every_flipped_byte_of_what_minio_wrote_is_found() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture(), dir.path());
    let (before, _) = checked(&here(), dir.path());
    let mut random = fastrand::Rng::with_seed(7);
    for of in &before {
        let original = fs::read(&of.file).unwrap();
        for _ in 0..20 {
            let at = random.usize(..original.len());
            flip(&of.file, at);
            let (after, summary) = checked(&here(), dir.path());
            let bad: Vec<&Checked> = after.iter().filter(|checked| checked.state != State::Ok).collect();
            // A key of `xl.meta` that changed has data that is looked for in a file.
            let near = of.file.parent().unwrap();
            assert!(!bad.is_empty() && bad.iter().all(|checked| checked.file.starts_with(near)), "{} at {at}: {bad:?}", of.file.display());
            if !of.file.ends_with("xl.meta") {
                // Frames of 1 MiB in 15 shards.
                let changed = fs::read(&of.file).unwrap();
                assert_eq!((bad[0].frame, summary.bad, summary.failed), (first_wrong(&changed, 69_906), 1, 0));
            }
            fs::write(&of.file, &original).unwrap();
        }
    }
}

#[test]
fn parts_that_are_cut_or_absent_are_told() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture(), dir.path());
    let (before, _) = checked(&here(), dir.path());
    let file = |name_of: &str| before.iter().find(|checked| name(checked) == name_of).unwrap().file.clone();
    let (cut, gone) = (file("plain/large/parts 2"), file("plain/large/three frames 1"));
    fs::write(&cut, &fs::read(&cut).unwrap()[..69_938]).unwrap();
    fs::remove_file(gone).unwrap();
    fs::remove_dir_all(dir.path().join("versions/two")).unwrap();
    let (after, summary) = checked(&here(), dir.path());
    let bad: BTreeMap<String, &str> = after.iter().filter(|of| of.state == State::Bad).map(|of| (name(of), of.why.as_deref().unwrap())).collect();
    let expected = [("plain/large/parts 2", "it has 69938 bytes, and 73399 were written"), ("plain/large/three frames 1", "the file is not there")];
    assert_eq!(bad.into_iter().collect::<Vec<_>>(), expected.map(|(name, why)| (name.to_owned(), why)));
    assert_eq!((summary.ok, summary.bad, summary.failed), (8, 2, 0));
}

#[test]
fn formats_of_other_servers_fail_by_name() {
    let dir = tempfile::tempdir().unwrap();
    copy(&fixture(), dir.path());
    fs::write(dir.path().join("plain/small/empty/xl.meta"), b"XL2 1   \x80").unwrap();
    fs::write(dir.path().join("plain/small/inline.txt/xl.meta"), b"XL2 \x02\0\0\0\x80").unwrap();
    let (after, summary) = checked(&here(), dir.path());
    let failed: Vec<&str> = after.iter().filter(|of| of.state == State::Failed).map(|of| of.why.as_deref().unwrap()).collect();
    assert!(failed.len() == 2 && failed[0].contains("of format 1,") && failed[1].contains("of format 2.0,"), "{failed:?}");
    assert_eq!((summary.bad, summary.failed), (0, 2));
}

/// Files that a target verifies, over a real file system: the same findings as by reading all bytes here.
#[test]
fn the_target_finds_what_reading_all_bytes_finds() {
    let Some(mounted) = Mounted::new("ext4", 256, 0) else { return };
    let root = mounted.file("drive");
    copy(&fixture(), &root);
    let mut files = Vec::new();
    for (n, data) in [1u64, 2, 3, 4, 12].into_iter().enumerate() {
        files.extend(write_object(&root, "generated", &format!("of {data}"), data, &[(6 << 20) + n as u64, 1 << 20, 1, (3 << 20) - 1]));
    }
    let target = Target::new(&mounted.image(), Some(operations()), None);
    let there = target.session();
    let (all, summary) = checked(&there, &root);
    assert!(all.iter().all(|of| of.state == State::Ok), "{all:?}");
    // Four parts of MinIO's own are in files, and all generated ones.
    assert_eq!((summary.there, summary.here), (24, 0));
    let mut random = fastrand::Rng::with_seed(9);
    for round in 0..6 {
        let wrong = &files[random.usize(..files.len())];
        flip(wrong, random.usize(..fs::metadata(wrong).unwrap().len() as usize));
        let findings = |session: &Session| {
            let (all, _) = checked(session, &root);
            all.into_iter().map(|of| Checked { there: false, ..of }).filter(|of| of.state != State::Ok).collect::<Vec<Checked>>()
        };
        let (found, expected) = (findings(&there), findings(&here()));
        assert!(found == expected && !found.is_empty() && found.len() <= round + 1, "{found:?} {expected:?}");
        let by_hand = files.iter().filter(|file| {
            let data: u64 = file.parent().unwrap().parent().unwrap().file_name().unwrap().to_str().unwrap()[3..].parse().unwrap();
            first_wrong(&fs::read(file).unwrap(), (1usize << 20).div_ceil(data as usize)).is_some()
        });
        assert_eq!(by_hand.collect::<Vec<_>>().len(), found.len());
    }
}
