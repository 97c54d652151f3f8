//! Places of files on real file systems: the bytes there are those of the file.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use oas::{Access, OpenFile, Places};
use skytether_common::Kind;

use crate::mounted::{Mounted, noise};

/// The bytes of the image at the places of a file.
fn at_places(image: &Path, places: &Places) -> Vec<u8> {
    let image = File::open(image).unwrap();
    let mut out = Vec::new();
    for extent in &places.object.extents {
        let mut bytes = vec![0; extent.length as usize];
        if !extent.is_hole() {
            image.read_exact_at(&mut bytes, extent.place).unwrap();
        }
        out.extend_from_slice(&bytes);
    }
    out.truncate(places.object.length as usize);
    out
}

fn check(mounted: &Mounted, name: &str) -> Places {
    let path = mounted.file(name);
    let places = OpenFile::open(&path, Access::Read).unwrap().places().unwrap();
    assert!(fs::read(&path).unwrap() == at_places(&mounted.image(), &places), "{name}: {places:?}");
    places
}

fn fill(mounted: &Mounted) {
    fs::write(mounted.file("empty"), b"").unwrap();
    fs::write(mounted.file("short"), b"ten bytes.").unwrap();
    fs::write(mounted.file("long"), noise(1, 3 << 20)).unwrap();
    // Two files that grow by turns lie in many pieces.
    let mut files: Vec<File> = ["one", "two"].iter().map(|name| File::create(mounted.file(name)).unwrap()).collect();
    for turn in 0..40 {
        for file in &mut files {
            file.write_all(&noise(turn, 8192)).unwrap();
            file.sync_all().unwrap();
        }
    }
    let mut holes = File::create(mounted.file("holes")).unwrap();
    for at in [20_000, 200_000, 1 << 20] {
        holes.seek(SeekFrom::Start(at)).unwrap();
        holes.write_all(&noise(at, 10_000)).unwrap();
    }
    holes.set_len(3 << 20).unwrap();
    let reserved = File::create(mounted.file("reserved")).unwrap();
    rustix::fs::fallocate(&reserved, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
    reserved.write_all_at(&noise(9, 5000), 300_000).unwrap();
}

fn check_all(mounted: &Mounted) {
    for name in ["empty", "short", "long"] {
        assert!(check(mounted, name).as_output().is_ok(), "{name}");
    }
    let pieces = check(mounted, "one").object.extents.len().max(check(mounted, "two").object.extents.len());
    assert!(pieces > 1, "the files are not fragmented");
    for name in ["holes", "reserved"] {
        let places = check(mounted, name);
        assert!(places.object.extents.iter().any(|extent| extent.is_hole()) && places.as_output().is_err(), "{name}");
    }
    assert!(check(mounted, "reserved").unwritten);
}

#[test]
fn ext4_files_lie_where_it_says() {
    let Some(mounted) = Mounted::new("ext4", 64, 0) else { return };
    fill(&mounted);
    check_all(&mounted);
}

#[test]
fn xfs_files_lie_where_it_says() {
    let Some(mounted) = Mounted::new("xfs", 320, 0) else { return };
    fill(&mounted);
    check_all(&mounted);
}

#[test]
fn the_offset_of_a_loop_device_counts() {
    let Some(mounted) = Mounted::new("ext4", 16, 1 << 20) else { return };
    fs::write(mounted.file("a"), noise(3, 100_000)).unwrap();
    let places = check(&mounted, "a");
    assert_eq!(places.carrier.base, 1 << 20);
    assert!(matches!(places.carrier.disk, oas::carrier::Disk::Loop { file } if file.file_name() == mounted.image().file_name()));
}

#[test]
fn reflinked_files_are_read_and_never_written() {
    let Some(mounted) = Mounted::new("xfs", 320, 0) else { return };
    fs::write(mounted.file("a"), noise(4, 1 << 20)).unwrap();
    let source = File::open(mounted.file("a")).unwrap();
    let copy = File::create(mounted.file("b")).unwrap();
    if let Err(error) = rustix::fs::ioctl_ficlone(&copy, &source) {
        eprintln!("skipped: this xfs has no reflinks: {error}");
        return;
    }
    let places = check(&mounted, "b");
    assert!(places.shared);
    let error = places.as_output().unwrap_err();
    assert!(error.kind() == Kind::Unsupported && error.mentions("SHARED"), "{error}");
}

#[test]
fn a_change_of_the_file_is_seen() {
    let Some(mounted) = Mounted::new("ext4", 16, 0) else { return };
    let path = mounted.file("a");
    fs::write(&path, noise(5, 100_000)).unwrap();
    let file = OpenFile::open(&path, Access::Read).unwrap();
    let places = file.places().unwrap();
    assert!(file.is_unchanged(&places).unwrap());
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    assert!(!file.is_unchanged(&places).unwrap());
    let places = file.places().unwrap();
    // The same length and the same places, at another time.
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"other", 10).unwrap();
    assert!(!file.is_unchanged(&places).unwrap());
}

#[test]
fn file_systems_without_places_are_refused() {
    let shm = Path::new("/dev/shm");
    if fs::metadata(shm).is_err() {
        eprintln!("skipped: there is no tmpfs here");
        return;
    }
    let file = tempfile::NamedTempFile::new_in(shm).unwrap();
    let error = OpenFile::open(file.path(), Access::Read).unwrap().places().unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.mentions("not on a block device") || error.mentions("FIEMAP"), "{error}");
    assert_eq!(OpenFile::open(shm, Access::Read).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn output_is_opened_for_writing_and_input_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, b"x").unwrap();
    let input = OpenFile::open(&path, Access::Read).unwrap();
    assert!(input.file().write_all_at(b"y", 0).is_err());
    let output = OpenFile::open(&path, Access::Write).unwrap();
    output.file().write_all_at(b"y", 0).unwrap();
    assert_eq!(OpenFile::open(dir.path().join("b"), Access::Write).unwrap_err().kind(), Kind::NotFound);
}
