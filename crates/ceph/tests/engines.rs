//! Engines next to the OSDs of a test's cluster, and requests to them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use datafusion::catalog::{CatalogProvider, MemTable, MemoryCatalogProvider, MemorySchemaProvider, SchemaProvider};
use datafusion::prelude::SessionContext;
use skytether_ceph::serve::{EngineOptions, serve};
use skytether_ceph::socket_name;
use skytether_ceph_protocol::{CLASS, FileFormat, Limits, Object, RUN, Request, Response};
use skytether_rados::{Called, Objects};

use crate::cluster::Cluster;

/// Set in the process of an engine: the number of its OSD, and its socket.
const ENGINE: &str = "SKYTETHER_TEST_ENGINE";

/// The object that requests are about: CSV of this many rows.
pub(crate) const ROWS: u64 = 100_000;

/// Not a test: the process of an engine, which [`Engines`] starts.
#[test]
fn engine_process() {
    let Ok(told) = std::env::var(ENGINE) else { return };
    let (osd, socket) = told.split_once(' ').unwrap();
    let options = EngineOptions { osd: osd.parse().unwrap(), socket: socket.into(), memory: 128 << 20, concurrent: 2 };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(16).build().unwrap();
    runtime.block_on(serve(options, std::future::pending())).unwrap();
}

/// A cluster whose OSDs have the class, with an engine next to each.
pub(crate) struct Engines {
    pub(crate) objects: Objects,
    sockets: PathBuf,
    processes: BTreeMap<u32, Child>,
}

impl Engines {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let place = cluster.conf.parent().unwrap().to_path_buf();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
        // Without what the loader was told for Ceph's libraries.
        let built = Command::new(cargo).args(["build", "--quiet", "--offline", "-p", "skytether-ceph-class"]).env_remove("LD_LIBRARY_PATH").status().unwrap();
        assert!(built.success());
        let name = format!("libcls_{CLASS}.so");
        let target = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join(&name);
        for osd in 0..3 {
            std::fs::copy(&target, place.join(format!("osd{osd}/classes")).join(&name)).unwrap();
        }
        let objects = Objects::open(&cluster.address("index", "")).unwrap();
        let mut engines = Self { objects, sockets: place.join("sockets"), processes: BTreeMap::new() };
        for osd in 0..3 {
            engines.restart(osd);
        }
        let csv: String = std::iter::once("x,y\n".to_owned()).chain((0..ROWS).map(|n| format!("{n},{}\n", n % 10))).collect();
        for number in 0..8 {
            engines.objects.write(&object(number), csv.clone().into_bytes()).unwrap();
        }
        engines
    }

    /// Starts the engine next to an OSD, after one that has ended.
    pub(crate) fn restart(&mut self, osd: u32) {
        if let Some(mut before) = self.processes.remove(&osd) {
            let _ = before.kill();
            before.wait().unwrap();
        }
        let socket = self.sockets.join(socket_name(osd));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["engines::engine_process", "--exact", "--nocapture"]).env(ENGINE, format!("{osd} {}", socket.display()));
        self.processes.insert(osd, command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(60);
        while skytether_ceph::install::engine(&self.sockets, osd).is_err() {
            assert!(Instant::now() < until, "the engine of osd.{osd} does not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to all engines.
    pub(crate) fn signal(&self, signal: i32) {
        for process in self.processes.values() {
            // SAFETY: no pointers; the process is a child that was not waited for.
            assert_eq!(unsafe { libc::kill(process.id() as i32, signal) }, 0);
        }
    }

    /// Waits until all engines have ended.
    pub(crate) fn await_end(&mut self) {
        for process in self.processes.values_mut() {
            process.wait().unwrap();
        }
    }

    pub(crate) fn call(&self, number: usize, request: &[u8]) -> (Called, Response, Duration) {
        let begun = Instant::now();
        let called = self.objects.call(&object(number), CLASS, RUN, request).unwrap();
        let response = Response::decode(&called.output).unwrap_or_else(|e| panic!("{called:?}: {e}"));
        (called, response, begun.elapsed())
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

pub(crate) fn object(number: usize) -> String {
    format!("rows.{number}.csv")
}

/// The tables of requests, as plans name them.
const TABLE: [&str; 3] = ["osd", "object", "t"];

/// A request for a query over the object, whose table is `t`.
pub(crate) fn request(text: &str) -> Request {
    let csv_size = "x,y\n".len() as u64 + (0..ROWS).map(|n| format!("{n},{}\n", n % 10).len() as u64).sum::<u64>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let plan = runtime.block_on(plan(text));
    Request {
        limits: Limits { memory: 64 << 20, ..Limits::default() },
        object: Object::File { format: FileFormat::Csv, size: csv_size, at: 0, len: csv_size, groups: None, pieces: Vec::new() },
        table: TABLE.map(str::to_owned),
        schema: Vec::new(),
        plan: plan.to_vec(),
        filters: BTreeMap::new(),
        tables: BTreeMap::new(),
    }
}

/// A query as a sub-plan over the table.
async fn plan(text: &str) -> Bytes {
    let number = arrow::datatypes::DataType::Int64;
    let columns = Arc::new(arrow::datatypes::Schema::new(["x", "y"].map(|name| arrow::datatypes::Field::new(name, number.clone(), true)).to_vec()));
    let tables = MemorySchemaProvider::new();
    tables.register_table(TABLE[2].into(), Arc::new(MemTable::try_new(columns, vec![vec![]]).unwrap())).unwrap();
    let catalog = MemoryCatalogProvider::new();
    catalog.register_schema(TABLE[1], Arc::new(tables)).unwrap();
    let context = SessionContext::new();
    context.register_catalog(TABLE[0], Arc::new(catalog));
    let named = text.replace("FROM t", "FROM osd.object.t").replace("JOIN t", "JOIN osd.object.t");
    let logical = context.sql(&named).await.unwrap().into_optimized_plan().unwrap();
    skytether_plan::codec::encode(&logical, &context.state()).unwrap()
}
