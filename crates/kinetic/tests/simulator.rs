//! Tests against the Java simulator, the makers' reference of a drive.
//!
//! The variable `SKYTETHER_KINETIC_JARS` names a directory with the jars of `com.seagate.kinetic:kinetic-simulator`
//! and what it needs (version 0.8.0.4, from Maven Central). `make test` sets it by `python/tests/kinetic/jars.py`.
//! Without it these tests say so and end; with `SKYTETHER_JAVA=required` they fail. The simulator sends multicast
//! messages, so each test runs again in a network name space that has loopback only.

mod blocking;
mod contract;
mod operations;
mod store;

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_kinetic::{Client, ClientOptions, Connection, Delete, Keys, KineticDrive};
use skytether_kinetic_protocol::StatusCode;
use skytether_transport::Endpoint;

/// The directory of the jars.
const JARS: &str = "SKYTETHER_KINETIC_JARS";

/// Set in the process that runs in the name space.
const INSIDE: &str = "SKYTETHER_KINETIC_NAMESPACE";

/// How long the simulator may take to start.
const START: Duration = Duration::from_secs(90);

/// Opens packages that the simulator of 2015 uses.
const JAVA: [&str; 5] = [
    "-Xmx384m",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
];

/// A simulator that ends with the test.
pub(crate) struct Simulator {
    child: Child,
    dir: tempfile::TempDir,
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Simulator {
    fn start(dir: tempfile::TempDir) -> Simulator {
        let mut jars = PathBuf::from(std::env::var_os(JARS).unwrap()).into_os_string();
        jars.push("/*");
        let home = dir.path().join("home");
        std::fs::create_dir_all(&home).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new("java")
            .args(JAVA)
            .arg("-cp")
            .arg(jars)
            .args(["com.seagate.kinetic.simulator.internal.SimulatorRunner", "-port", "8123", "-tlsport", "8443", "-home"])
            .arg(&home)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Simulator { child, dir }
    }

    /// The same drive, started again.
    pub(crate) fn restart(mut self) -> Simulator {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The directory is moved out, so that it stays.
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        drop(self);
        Simulator::start(dir)
    }

    /// Waits until it greets.
    pub(crate) async fn ready(&self) -> Arc<Connection> {
        let begun = Instant::now();
        loop {
            match Client::connect(&at(), ClientOptions::default()).await {
                Ok(client) => return client.connection().await.unwrap(),
                Err(error) if begun.elapsed() > START => {
                    let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                    panic!("the simulator does not start: {error}\n{log}");
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }
}

pub(crate) fn at() -> Endpoint {
    "kinetic://127.0.0.1:8123".parse().unwrap()
}

pub(crate) async fn drive() -> KineticDrive {
    KineticDrive::connect(&at(), ClientOptions::default()).await.unwrap()
}

/// Deletes all keys but the drive's identity.
pub(crate) async fn empty(on: &Connection) {
    loop {
        let all = Keys { start: (Bytes::from_static(&[0]), true), end: (Bytes::from_static(&[0xff]), true), most: 200, reverse: false };
        let keys: Vec<Bytes> = on.get_key_range(all).await.unwrap().into_iter().filter(|key| key != "~skytether-drive").collect();
        if keys.is_empty() {
            return;
        }
        for deleted in futures::future::join_all(keys.into_iter().map(|key| on.delete(Delete::new(key, None)))).await {
            assert!(deleted.as_ref().is_ok_and(|()| true) || deleted.as_ref().unwrap_err().code() == Some(StatusCode::NotFound), "{deleted:?}");
        }
    }
}

/// Runs `test` with a simulator in a name space of its own. `name` is the test's path.
pub(crate) fn with_simulator<F: Future<Output = ()>>(name: &str, test: impl FnOnce(Simulator) -> F) {
    if std::env::var_os(JARS).is_none_or(|jars| jars.is_empty()) {
        let why = format!("{name}: not run, because {JARS} does not name a directory with the jars of the simulator");
        assert!(std::env::var_os("SKYTETHER_JAVA").is_none_or(|java| java != "required"), "SKYTETHER_JAVA=required: {why}");
        eprintln!("{why}");
        return;
    }
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let simulator = Simulator::start(tempfile::tempdir().unwrap());
        runtime.block_on(test(simulator));
        return;
    }
    let program: OsString = std::env::current_exe().unwrap().into();
    // Others than root may do that in a user name space.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    let user: &[&str] = if is_root { &[] } else { &["--map-root-user"] };
    let inside = Command::new("unshare")
        .args(user)
        .args(["--net", "--kill-child", "--fork", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"])
        .arg(program)
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = [inside.stdout, inside.stderr].concat();
    assert!(inside.status.success(), "{}", String::from_utf8_lossy(&said));
    // A name that is wrong runs no test, and that is no failure of the other process.
    assert!(String::from_utf8_lossy(&said).contains("1 passed"), "{}", String::from_utf8_lossy(&said));
}
