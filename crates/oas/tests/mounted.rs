//! File systems in images, mounted by loop devices. They go away with their value, also when a test fails.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted image.
pub(crate) struct Mounted {
    dir: tempfile::TempDir,
    device: String,
    mounted: bool,
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

impl Mounted {
    /// A file system of `kind` in an image of `mib` MiB, `offset` bytes behind its begin. `None`, with the reason
    /// printed, where this process may not mount.
    pub(crate) fn new(kind: &str, mib: u64, offset: u64) -> Option<Self> {
        if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) != 0 {
            eprintln!("skipped: only root may mount a file system");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len((mib << 20) + offset).unwrap();
        let offset = offset.to_string();
        let device = match run("losetup", &["--find", "--show", "--offset", &offset, image.to_str().unwrap()]) {
            Ok(device) => device,
            Err(error) => {
                eprintln!("skipped: there are no loop devices here: {error}");
                return None;
            }
        };
        let mut made = Self { dir, device, mounted: false };
        let force = if kind == "xfs" { "-f" } else { "-F" };
        run(&format!("mkfs.{kind}"), &["-q", force, &made.device]).unwrap();
        std::fs::create_dir(made.path()).unwrap();
        if let Err(error) = run("mount", &["-t", kind, &made.device, made.path().to_str().unwrap()]) {
            eprintln!("skipped: {kind} can't be mounted here: {error}");
            return None;
        }
        made.mounted = true;
        Some(made)
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    /// A file of it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The loop device.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// The image.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// A place outside of the file system.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            let path = self.path();
            // A lazy one succeeds also where a failed test left files open.
            let done = run("umount", &[path.to_str().unwrap()]).or_else(|_| run("umount", &["-l", path.to_str().unwrap()]));
            if let Err(error) = done {
                eprintln!("{error}");
            }
        }
        if let Err(error) = run("losetup", &["--detach", &self.device]) {
            eprintln!("{error}");
        }
    }
}

/// Bytes that differ from place to place.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// Lines of words, some of them with umlauts.
pub(crate) fn text(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let words = ["needle", "hay", "Z\u{fc}rich", "stack", "a", "", "lorem", "ipsum"];
    let mut out = Vec::with_capacity(length + 16);
    while out.len() < length {
        out.extend_from_slice(words[random.usize(..words.len())].as_bytes());
        out.push(if random.u8(..) < 50 { b'\n' } else { b' ' });
    }
    out.truncate(length);
    out
}

/// Runs a program of the system in a directory, in UTF-8.
pub(crate) fn system(directory: &Path, program: &str, arguments: &[&str], locale: &str) -> Vec<u8> {
    Command::new(program).args(arguments).current_dir(directory).env("LC_ALL", locale).output().unwrap().stdout
}
