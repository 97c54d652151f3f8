//! Object classes in erasure-coded pools, where Ceph 16 to 20 let them read nothing. No later release was at hand. So a
//! stub (`stub_osd.c`) takes the place of its OSDs; class and engine are the real ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use skytether_ceph_protocol::proxy::Probe;
use skytether_ceph_protocol::{Outcome, PROBE, RUN, Refusal, Response};
use tempfile::TempDir;

use crate::engines::{ROWS, csv, object_class, request, start_engine};
use crate::poison::{numbers, refusal};

const OSD: u32 = 7;

struct Stub {
    dir: TempDir,
    program: PathBuf,
    class: PathBuf,
}

impl Stub {
    fn build() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stub_osd.c"), dir.path().join("stub_osd"));
        let built = Command::new("cc").args(["-O1", "-rdynamic", "-o"]).args([&program, &source]).arg("-ldl").status().unwrap();
        assert!(built.success());
        std::fs::write(dir.path().join("object"), csv()).unwrap();
        Self { dir, program, class: object_class() }
    }

    /// Calls a method; what it returns, and its output.
    fn call(&self, method: &str, request: &[u8], refuses: bool) -> (i32, Vec<u8>) {
        let (object, input) = (self.dir.path().join("object"), self.dir.path().join("request"));
        std::fs::write(&input, request).unwrap();
        let mut command = Command::new(&self.program);
        command.args(["-i", &OSD.to_string()]).arg(&self.class).arg(object).arg(method).arg(input);
        command.args(refuses.then_some("REFUSE")).env("SKYTETHER_CEPH_SOCKETS", self.dir.path());
        let done = command.output().unwrap();
        assert!(done.status.success(), "{done:?}");
        (String::from_utf8(done.stderr).unwrap().parse().unwrap(), done.stdout)
    }
}

#[test]
fn osds_that_read_coded_objects_run_sub_plans() {
    let stub = Stub::build();
    let mut engine = start_engine(stub.dir.path(), OSD);
    let sum = request("SELECT count(*), sum(x), sum(y) FROM t WHERE y >= 0").encode();
    for refuses in [false, true] {
        let (code, output) = stub.call(PROBE, &[], refuses);
        let probe = Probe::decode(&output).unwrap();
        assert_eq!((code, probe.osd, probe.read), (0, Some(OSD), if refuses { -libc::EOPNOTSUPP } else { 0 }));
        assert!(probe.engine.is_ok());
        let (code, output) = stub.call(RUN, &sum, refuses);
        let response = Response::decode(&output).unwrap();
        assert_eq!((code, response.receipt.osd), (0, Some(OSD)));
        if refuses {
            let (why, reason) = refusal(&response);
            assert!(why == Refusal::Unsupported && reason.contains("erasure-coded"), "{response:?}");
        } else {
            assert!(matches!(response.outcome, Outcome::Rows(_)), "{response:?}");
            assert_eq!(numbers(&response), [ROWS as i64, (ROWS * (ROWS - 1) / 2) as i64, (ROWS / 10 * 45) as i64]);
        }
    }
    engine.kill().unwrap();
    engine.wait().unwrap();
}
