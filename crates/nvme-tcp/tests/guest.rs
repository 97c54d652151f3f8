//! Linux' own initiator, in a guest: `python/tests/block/guest.py`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use skytether_nvme_tcp::Options;
use skytether_volume::BlockDevice;
use skytether_volume::memory::MemoryDevice;

use crate::support::Server;

/// Says why the test does not run, or fails where it must run.
fn absent(why: &str) {
    assert!(std::env::var("SKYTETHER_BLOCK").as_deref() != Ok("required"), "{why}");
    eprintln!("skipped: {why}");
}

/// What the guest of `check` said, if there can be one.
fn said(check: &str, address: &str, writes: u32) -> Option<String> {
    let port = address.rsplit_once(':').unwrap().1;
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests");
    let mut call = Command::new("timeout");
    call.args(["1000", "python3", "-m", "block.guest", check, port, &writes.to_string()]);
    let Ok(output) = call.current_dir(tests).stdin(Stdio::null()).output() else {
        absent("there is no python3, or no timeout");
        return None;
    };
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if output.status.code() == Some(3) {
        absent(&said);
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(said)
}

/// A minute or more each: QEMU translates every instruction.
fn is_soak() -> bool {
    let soak = std::env::var_os("SKYTETHER_SOAK").is_some();
    if !soak {
        eprintln!("skipped: a guest runs only where SKYTETHER_SOAK is set");
    }
    soak
}

/// A kernel discovers the subsystem and connects, with and without digests. It makes a file system, fills it and reads
/// it by another association; it writes at random and compares; it runs EXEC by pass-through.
#[test]
fn linux_mounts_a_namespace_and_runs_exec() {
    if !is_soak() {
        return;
    }
    let server = Server::of(&[300 << 20, 64 << 20]);
    let Some(said) = said("nvme-tcp", &server.address, 300) else { return };
    for (line, count) in [("OK exec 200", 2 * 2), ("OK io", 2), ("OK zeroes", 2), ("OK verify", 2), ("OK files", 2)] {
        assert_eq!(said.lines().filter(|said| said.starts_with(line)).count(), count, "{line}: {said}");
    }
}

/// The server goes away and comes back at the same address, over the same volumes, as long as the guest writes.
#[test]
fn linux_goes_on_when_the_server_comes_back() {
    if !is_soak() {
        return;
    }
    let devices = [("first", 300_u64 << 20), ("second", 64 << 20)];
    let volumes = devices.map(|(name, size)| (name.to_owned(), Arc::new(MemoryDevice::new(name, size)) as Arc<dyn BlockDevice>));
    let start = |address: &str| Server::at(address, volumes.to_vec(), Options::default());
    let server = start("127.0.0.1:0");
    let address = server.address.clone();
    let (over, is_over) = channel::<()>();
    let (said, restarts) = thread::scope(|scope| {
        let (start, address) = (&start, &address);
        let restarting = scope.spawn(move || {
            let (mut server, mut restarts) = (Some(server), 0);
            while is_over.recv_timeout(Duration::from_secs(8)) == Err(RecvTimeoutError::Timeout) {
                drop(server.take());
                server = Some(start(address));
                restarts += 1;
            }
            restarts
        });
        let said = said("nvme-tcp-restarts", address, 1000);
        drop(over);
        (said, restarting.join().unwrap())
    });
    let Some(said) = said else { return };
    let lost = said.lines().find_map(|line| line.strip_prefix("LOST ")?.parse::<u32>().ok()).unwrap();
    assert!(lost > 0 && restarts > 0, "{said}");
    for line in ["OK verify", "OK files"] {
        assert!(said.lines().any(|said| said.starts_with(line)), "{line}: {said}");
    }
}
