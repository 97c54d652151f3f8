//! Native programs, compiled from C by these tests, run contained.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod contained;
mod ends;
mod limits;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_native::{Call, Limits, Outcome, Trap, run};

/// Whether this kernel contains programs. Where it does not (a container without CAP_SYS_ADMIN, a `chroot`), tests of
/// native programs say why and end; with SKYTETHER_NATIVE=required they fail.
pub(crate) fn contains() -> bool {
    static PROBED: OnceLock<Result<(), String>> = OnceLock::new();
    match PROBED.get_or_init(|| skytether_native::probe().map_err(|e| e.to_string())) {
        Ok(()) => true,
        Err(why) => {
            assert!(std::env::var("SKYTETHER_NATIVE").as_deref() != Ok("required"), "{why}");
            eprintln!("skipped: {why}");
            false
        }
    }
}

/// The program of these tests, linked in that way.
pub(crate) fn compiled(linked: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("many");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/many.c");
    let compiling = Command::new("cc").args(["-O1", "-w", linked, "-o"]).arg(&file).arg(source).output().expect("cc is needed to build the workspace, too");
    assert!(compiling.status.success(), "{}", String::from_utf8_lossy(&compiling.stderr));
    std::fs::read(file).unwrap()
}

/// The program of these tests, static.
pub(crate) fn program() -> &'static [u8] {
    static PROGRAM: OnceLock<Vec<u8>> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("-static"))
}

/// Limits that end a test where the program does not end.
pub(crate) fn limits() -> Limits {
    Limits { deadline: Some(Instant::now() + Duration::from_secs(60)), ..Limits::default() }
}

/// The arguments of a call.
pub(crate) fn arguments(texts: &[&str]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
}

/// A call without a socket and an environment.
pub(crate) fn call<'a>(program: &'a [u8], arguments: &'a [Bytes]) -> Call<'a> {
    Call { program, name: "many", arguments, environment: &[], socket: None }
}

/// Runs the program of these tests without a socket.
pub(crate) fn go(texts: &[&str], limits: &Limits) -> Result<Outcome, Trap> {
    run(call(program(), &arguments(texts)), limits, &AtomicBool::new(false))
}

/// What it printed.
pub(crate) fn printed(texts: &[&str]) -> String {
    let outcome = go(texts, &limits()).unwrap();
    assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    String::from_utf8(outcome.stdout.to_vec()).unwrap()
}

/// Runs the program of these tests on a thread. While it runs, `meanwhile` has the other end of its socket; then it is
/// aborted.
pub(crate) fn aborted(texts: &[&str], meanwhile: impl FnOnce(&UnixStream)) -> Trap {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let aborted = AtomicBool::new(false);
    let (arguments, program) = (arguments(texts), program());
    std::thread::scope(|scope| {
        let flag = &aborted;
        let running = scope.spawn(move || run(Call { socket: Some(theirs.into()), ..call(program, &arguments) }, &limits(), flag));
        meanwhile(&ours);
        aborted.store(true, Ordering::Relaxed);
        let trap = running.join().unwrap().unwrap_err();
        // Its end of the socket is closed, or this would wait.
        (&ours).read_to_end(&mut Vec::new()).unwrap();
        trap
    })
}
