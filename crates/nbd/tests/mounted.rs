//! A file system on an export: a file by FUSE, a block device by loop, and the kernel's ext4 or xfs on it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::support::{Server, absent, has, run};

/// An export as a block device. All of it goes away when this is dropped.
struct Attached {
    fuse: Child,
    directory: PathBuf,
    device: String,
}

impl Attached {
    fn new(uri: &str, scratch: &Path) -> Self {
        let directory = scratch.join("fuse");
        fs::create_dir(&directory).unwrap();
        let fuse = Command::new("nbdfuse").arg(&directory).arg(uri).stdin(Stdio::null()).spawn().unwrap();
        let (file, latest) = (directory.join("nbd"), Instant::now() + Duration::from_secs(20));
        while !file.exists() {
            assert!(Instant::now() < latest, "nbdfuse did not mount");
            thread::sleep(Duration::from_millis(20));
        }
        let device = run("losetup", &["-f", "--show", "--direct-io=on", file.to_str().unwrap()]).trim().to_owned();
        Self { fuse, directory, device }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let tear_down = |program: &str, arguments: &[&str]| drop(Command::new(program).args(arguments).status());
        tear_down("losetup", &["-d", &self.device]);
        tear_down("umount", &[self.directory.to_str().unwrap()]);
        let latest = Instant::now() + Duration::from_secs(10);
        while self.fuse.try_wait().unwrap().is_none() {
            if Instant::now() > latest {
                self.fuse.kill().unwrap();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Mounts, and unmounts when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &str, at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        run("mount", &[device, at.to_str().unwrap()]);
        Self(at.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Makes a file system, fills it, and compares after it was mounted again.
fn survives(make: &[&str], check: &[&str]) {
    if !has(&["nbdfuse", "losetup", make[0], check[0]]) {
        return;
    }
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() || run("id", &["-u"]).trim() != "0" {
        return absent("this needs root, FUSE and loop devices");
    }
    let (server, scratch) = (Server::of(&[("first", 400 << 20)]), tempfile::tempdir().unwrap());
    let attached = Attached::new(&server.uri("first"), scratch.path());
    let with_device = |words: &[&str]| run(words[0], &[&words[1..], &[attached.device.as_str()]].concat());
    with_device(make);
    let (at, mut dice) = (scratch.path().join("mount"), fastrand::Rng::with_seed(6));
    let files: Vec<(String, Vec<u8>)> = (0..120).map(|n| (format!("d{}/f{n}", n % 7), (0..dice.usize(1..400_000)).map(|_| dice.u8(..)).collect())).collect();
    {
        let mounted = Mounted::new(&attached.device, &at);
        for (name, content) in &files {
            fs::create_dir_all(mounted.0.join(name).parent().unwrap()).unwrap();
            fs::write(mounted.0.join(name), content).unwrap();
        }
        fs::write(mounted.0.join("gone"), vec![1; 20 << 20]).unwrap();
        fs::remove_file(mounted.0.join("gone")).unwrap();
        run("fstrim", &[mounted.0.to_str().unwrap()]);
    }
    with_device(check);
    let mounted = Mounted::new(&attached.device, &at);
    for (name, content) in &files {
        assert!(fs::read(mounted.0.join(name)).unwrap() == *content, "{name} differs");
    }
}

#[test]
fn ext4_on_an_export_is_filled_and_checked() {
    survives(&["mkfs.ext4", "-q"], &["fsck.ext4", "-fn"]);
}

#[test]
fn xfs_on_an_export_is_filled_and_checked() {
    survives(&["mkfs.xfs", "-q"], &["xfs_repair", "-n"]);
}
