//! A target of devices in memory, and short forms of commands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_scsi::{Command, InitiatorPort, Nexus, Options, Reply, Target, TaskAttribute, Unit};
use skytether_volume::memory::MemoryDevice;

/// Logical blocks of unit 0 here; unit 1 has 8 more, and with them another id.
pub(crate) const BLOCKS: u64 = 65536;

pub(crate) fn options() -> Options {
    let sanitize_time = Duration::ZERO;
    Options { name: "iqn.2026-11.com.example:t".into(), ports: 2, sanitize_time, sanitize_rate: u64::MAX, ..Options::default() }
}

pub(crate) fn unit(lun: u8) -> Unit {
    Unit { lun, device: Arc::new(MemoryDevice::new("v", BLOCKS * 512 + u64::from(lun) * 4096)), exec: None }
}

/// Units 0 and 1.
pub(crate) fn target() -> Arc<Target> {
    Target::new(vec![unit(1), unit(0)], options())
}

/// A nexus, whose units have reported that they are new.
pub(crate) async fn connect(target: &Arc<Target>, name: &str) -> Arc<Nexus> {
    let nexus = target.connect(InitiatorPort { name: format!("iqn.2026-11.com.example:{name},i,0x800000000001"), target_port: 1 });
    for lun in target.luns() {
        let reply = run(&nexus, lun, &[0; 6], b"").await;
        assert_eq!(sense(&reply), (6, 0x2900));
    }
    nexus
}

/// One nexus with a target of its own.
pub(crate) async fn alone() -> Arc<Nexus> {
    connect(&target(), "a").await
}

pub(crate) fn command(lun: u8, cdb: &[u8], data: &[u8]) -> Command {
    let mut whole = [0; 16];
    whole[..cdb.len()].copy_from_slice(cdb);
    Command { lun: u64::from(lun) << 48, tag: 1, cdb: whole, attribute: TaskAttribute::Simple, data: Bytes::copy_from_slice(data) }
}

pub(crate) async fn run(nexus: &Nexus, lun: u8, cdb: &[u8], data: &[u8]) -> Reply {
    nexus.execute(command(lun, cdb, data)).await
}

/// Runs what has to end with GOOD.
pub(crate) async fn good(nexus: &Nexus, cdb: &[u8], data: &[u8]) -> Bytes {
    let reply = run(nexus, 0, cdb, data).await;
    assert_eq!((reply.status, reply.sense.len()), (0, 0), "{cdb:02x?}: {reply:02x?}");
    reply.data
}

/// Key and code of a CHECK CONDITION in the fixed format.
pub(crate) fn sense(reply: &Reply) -> (u8, u16) {
    assert_eq!(reply.status, 2, "{reply:02x?}");
    assert_eq!(reply.sense[0] & 0x7F, 0x70);
    (reply.sense[2], u16::from_be_bytes([reply.sense[12], reply.sense[13]]))
}

/// Runs what has to end with a CHECK CONDITION, and returns its key and code.
pub(crate) async fn bad(nexus: &Nexus, cdb: &[u8], data: &[u8]) -> (u8, u16) {
    sense(&run(nexus, 0, cdb, data).await)
}

/// A CDB of 10 bytes with an address and a number of blocks.
pub(crate) fn cdb10(code: u8, flags: u8, lba: u32, count: u16) -> [u8; 10] {
    let mut cdb = [code, flags, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// A CDB of 16 bytes with an address and a number of blocks.
pub(crate) fn cdb16(code: u8, flags: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}
