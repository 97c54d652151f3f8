//! A cluster for one test, and its fleets.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use skytether_common::{Key, Result};
use skytether_rados::{Address, OpenFleet, RadosStore};
use skytether_store::{Expect, Op};
use tempfile::TempDir;

/// Set in the process that a test runs in: the loader reads its folders only when a process starts.
const INNER: &str = "SKYTETHER_CEPH_INNER";

/// A running cluster; it ends with this value.
pub(crate) struct Cluster {
    pub(crate) conf: PathBuf,
    pub(crate) root: PathBuf,
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    _dir: TempDir,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/ceph_cluster.py")
}

/// Runs `body` with a cluster of its own, in a process that finds the unpacked libraries. `test` is the name of the
/// calling test.
pub(crate) fn with_cluster(test: &str, body: impl FnOnce(&mut Cluster)) {
    if std::env::var_os(INNER).is_some() {
        return body(&mut Cluster::start());
    }
    let found = Command::new("python3").arg(script()).arg("where").output().expect("python3");
    if !found.status.success() {
        let why = String::from_utf8_lossy(&found.stderr).trim().to_owned();
        assert_ne!(std::env::var("SKYTETHER_CEPH").as_deref(), Ok("required"), "{why}");
        eprintln!("skipped: {why}");
        return;
    }
    let root = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim());
    let lib = root.join("usr/lib/x86_64-linux-gnu");
    let paths = [lib.clone(), lib.join("ceph"), root.join("lib/x86_64-linux-gnu")].map(|path| path.display().to_string());
    let inner = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--include-ignored"])
        .env(INNER, "1")
        .env("LD_LIBRARY_PATH", paths.join(":"))
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&inner.stdout), String::from_utf8_lossy(&inner.stderr));
    assert!(inner.status.success() && said.contains("1 passed"), "{said}");
    eprintln!("{said}");
}

impl Cluster {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("python3");
        command.arg(script()).arg("run").arg(dir.path().join("cluster")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()));
        let mut cluster = Self { conf: PathBuf::new(), root: PathBuf::new(), process, input, output, _dir: dir };
        let told = cluster.answer();
        cluster.conf = told["conf"].as_str().expect("a cluster").into();
        cluster.root = told["root"].as_str().expect("a folder").into();
        cluster.tell("pool index 3");
        cluster
    }

    fn answer(&mut self) -> serde_json::Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("the cluster says {line:?}: {e}"))
    }

    /// Has the cluster do something: see `tools/ceph_cluster.py`.
    pub(crate) fn tell(&mut self, line: &str) -> serde_json::Value {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        let answer = self.answer();
        assert!(answer.get("error").is_none(), "{line}: {answer}");
        answer["done"].clone()
    }

    /// The address `rados://PLACE` with this cluster's configuration.
    pub(crate) fn address(&self, place: &str, more: &str) -> Address {
        Address::parse(&format!("rados://{place}?conf={}{more}", self.conf.display())).unwrap()
    }

    /// The fleet of one drive at this place, which is made where there is none.
    pub(crate) fn fleet(&self, place: &str) -> OpenFleet {
        skytether_rados::open(&self.address(place, ""), Some(1)).unwrap()
    }

    /// All objects of a pool, by Ceph's own tool.
    pub(crate) fn objects(&self, pool: &str) -> Vec<String> {
        let tool = Command::new(self.root.join("usr/bin/rados")).arg("-c").arg(&self.conf).args(["-p", pool, "ls", "--all"]).output().unwrap();
        assert!(tool.status.success(), "{}", String::from_utf8_lossy(&tool.stderr));
        String::from_utf8(tool.stdout).unwrap().lines().map(|line| line.trim().to_owned()).collect()
    }

    /// The objects of values in a pool.
    pub(crate) fn values(&self, pool: &str) -> usize {
        self.objects(pool).iter().filter(|name| name.contains("skytether-value.")).count()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The end of its input ends the cluster.
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

/// The store of a fleet's first drive.
pub(crate) fn store(fleet: &OpenFleet) -> Arc<RadosStore> {
    Arc::clone(&fleet.drives[0].store)
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(crate) fn put(text: &str, value: impl Into<Bytes>) -> Op {
    Op::Put { key: key(text), value: value.into(), expect: Expect::Any }
}

/// `make` until it succeeds, for as long as a cluster may need to notice a lost OSD.
pub(crate) fn eventually<T>(make: impl Fn() -> Result<T>) -> T {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        match make() {
            Ok(done) => return done,
            Err(e) if std::time::Instant::now() > until => panic!("{e}"),
            Err(_) => std::thread::yield_now(),
        }
    }
}
