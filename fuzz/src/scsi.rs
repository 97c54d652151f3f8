//! Targets for SCSI: command blocks with their parameter lists, over two units in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_offload::codes::{mode, opcode, tag};
use skytether_offload::wire::seal;
use skytether_offload::{Descriptor, Extent, Object, Offload, descriptor as format, operations};
use skytether_scsi::{Command, InitiatorPort, Management, Options, Reply, Target, TaskAttribute, Transfer, Unit};
use skytether_volume::Exec;
use skytether_volume::memory::MemoryDevice;

use crate::waiting::wait;

const EXEC_OUT: u8 = 0xc0;

/// What EXEC computes in targets.
pub(crate) fn exec() -> Arc<dyn Exec> {
    match operations::registry(None).and_then(|registry| Offload::new(registry, skytether_offload::Options::default())) {
        Ok(exec) => Arc::new(exec),
        Err(error) => panic!("no operations: {error}"),
    }
}

/// A small search.
pub(crate) fn descriptor() -> Vec<u8> {
    let object = Object::new(1500, vec![Extent::new(0, 1024), Extent::hole(512)]);
    let ask = Descriptor::new(opcode::SEARCH).bytes(tag::STRING, &b"\x05"[..]).number(tag::MODE, mode::COUNT_MATCHES).input(object);
    ask.encode().map(|bytes| bytes.to_vec()).unwrap_or_default()
}

pub(crate) fn cdb10(code: u8, second: u8, lba: u32, count: u16) -> [u8; 10] {
    let mut cdb = [0; 10];
    (cdb[0], cdb[1]) = (code, second);
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&count.to_be_bytes());
    cdb
}

fn cdb16(code: u8, second: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, second);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// A step as bytes: which nexus (bit 0), unit (bits 1 and 2), management function instead of the command (bit 7); then
/// the command block; then the data with its length.
fn step(nexus: u8, lun: u8, cdb: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![nexus | lun << 1];
    bytes.extend_from_slice(cdb);
    bytes.resize(17, 0);
    bytes.extend_from_slice(&(data.len() as u16).to_le_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// The parameter list of PERSISTENT RESERVE OUT.
fn keys(own: u64, other: u64) -> Vec<u8> {
    [&own.to_be_bytes()[..], &other.to_be_bytes(), &[0; 8]].concat()
}

/// The parameter list of EXTENDED COPY (LID1): one unit, one segment within it.
fn copy() -> Vec<u8> {
    let mut list = vec![0; 16];
    (list[0], list[3], list[11]) = (5, 32, 28);
    let mut unit = vec![0; 32];
    // An NAA designator, which the harness puts in place.
    (unit[0], unit[4], unit[5], unit[7], unit[30]) = (0xe4, 1, 3, 8, 2);
    let segment = [0x02, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9];
    [list, unit, segment.to_vec()].concat()
}

pub(crate) fn commands() -> Vec<Vec<u8>> {
    let reserve = |action: u8, kind: u8| [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let read_keys = |action: u8| step(1, 0, &[0x5e, action, 0, 0, 0, 0, 0, 1, 0, 0], &[]);
    let unmap = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &3u64.to_be_bytes(), &5u32.to_be_bytes(), &[0; 4]].concat();
    let caching = [0, 0, 0, 0, 0x08, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let overwrite = [1, 0, 0, 4, 0xde, 0xad, 0xbe, 0xef];
    let copied = |code: u8, action: u8, len: u32| {
        let mut cdb = cdb16(code, action, 0, len);
        cdb[2] = 5;
        cdb
    };
    let exec = descriptor();
    let ask = |code: u8, flags: u8, len: u32| {
        let mut cdb = cdb16(code, flags, 0, len);
        cdb[5] = 9;
        cdb
    };
    let both = [[7; 512], [8; 512]].concat();
    let rows: Vec<Vec<Vec<u8>>> = vec![
        vec![
            step(0, 0, &[0; 6], &[]),
            step(0, 0, &cdb10(0x2a, 8, 4, 2), &both),
            step(0, 0, &cdb10(0x28, 0, 4, 2), &[]),
            step(0, 0, &cdb10(0x2f, 2, 4, 1), &both[..512]),
        ],
        vec![
            step(0, 1, &cdb16(0x8a, 0, 8, 2), &both),
            step(0, 1, &cdb16(0x88, 0, 8, 2), &[]),
            step(0, 1, &cdb16(0x89, 0, 8, 1), &[[7; 512], [9; 512]].concat()),
        ],
        vec![step(0, 0, &cdb16(0x93, 8, 16, 8), &[0; 512]), step(0, 0, &cdb10(0x42, 0, 0, 24), &unmap), step(0, 0, &cdb16(0x9e, 0x12, 0, 64), &[])],
        vec![step(0, 0, &cdb16(0x8b, 0, 0, 1), &both[..512]), step(0, 0, &cdb16(0x9c, 0, 8, 2), &both), step(0, 0, &cdb16(0x91, 0, 0, 8), &[])],
        vec![
            step(0, 0, &reserve(0, 0), &keys(0, 1)),
            step(1, 0, &reserve(0, 0), &keys(0, 2)),
            step(0, 0, &reserve(1, 5), &keys(1, 0)),
            read_keys(0),
            read_keys(1),
            step(1, 0, &reserve(4, 5), &keys(2, 1)),
            step(1, 0, &reserve(3, 0), &keys(2, 0)),
        ],
        vec![
            step(0, 0, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 28, 0], &caching),
            step(0, 0, &[0x15, 0x10, 0, 0, 24, 0], &caching),
            step(0, 0, &[0x5a, 0, 0x3f, 0xff, 0, 0, 0, 1, 0, 0], &[]),
        ],
        vec![
            step(0, 0, &[0x12, 1, 0x83, 1, 0, 0], &[]),
            step(0, 0, &[0x12, 1, 0xb0, 0, 255, 0], &[]),
            step(0, 3, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]),
        ],
        vec![
            step(0, 0, &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0], &[]),
            step(0, 0, &[0xa3, 0x0c, 1, 0x2a, 0, 0, 0, 0, 1, 0, 0, 0], &[]),
            step(0, 0, &[0x03, 1, 0, 0, 252, 0], &[]),
        ],
        vec![
            step(0, 0, &[0x48, 0x81, 0, 0, 0, 0, 0, 0, 8, 0], &overwrite),
            step(0, 0, &[0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
            step(0, 0, &[0x4d, 0, 0x40, 0, 0, 0, 0, 1, 0, 0], &[]),
        ],
        vec![step(0, 0, &copied(0x83, 0, copy().len() as u32), &copy()), step(0, 0, &copied(0x84, 0, 64), &[]), step(0, 0, &copied(0x84, 3, 128), &[])],
        vec![
            step(0, 0, &ask(EXEC_OUT, 0, exec.len() as u32), &exec),
            step(0, 0, &ask(0xc1, 0, 200), &[]),
            step(0, 0, &ask(EXEC_OUT, 1, exec.len() as u32), &exec),
            step(0, 0, &ask(0xc1, 1, 8), &[]),
        ],
        vec![
            step(0, 0, &[0x16, 0, 0, 0, 0, 0], &[]),
            step(1, 0, &cdb10(0x28, 0, 0, 1), &[]),
            vec![0x80, 4],
            step(0, 0, &[0x17, 0, 0, 0, 0, 0], &[]),
            vec![0x81, 1],
        ],
    ];
    rows.iter().map(|steps| steps.concat()).collect()
}

/// Steps of two nexuses. Whether a command of each third ended with GOOD.
pub(crate) fn commands_run(data: &[u8]) -> bool {
    let made = exec();
    let unit = |lun: u8| Unit { lun, device: Arc::new(MemoryDevice::new("v", (256 << 10) + u64::from(lun) * 4096)), exec: Some(Arc::clone(&made)) };
    let options = Options {
        name: "iqn.2026-11.com.example:t".into(),
        ports: 2,
        transfer: 1 << 20,
        sanitize_time: Duration::ZERO,
        sanitize_rate: u64::MAX,
        ..Options::default()
    };
    let target = Target::new(vec![unit(0), unit(1)], options);
    let nexuses = ["a", "b"].map(|name| target.connect(InitiatorPort { name: name.into(), target_port: 1 }));
    let (mut good, mut all, mut rest) = (0, 0, data);
    wait(Duration::from_secs(60), async {
        // The first command of each is told that the unit was switched on.
        for (nexus, lun) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let _ = nexuses[nexus].execute(command(lun, [0; 16], Bytes::new())).await;
        }
        let named = nexuses[0].execute(command(0, padded(&[0x12, 1, 0x83, 1, 0, 0]), Bytes::new())).await.data;
        while let Some((first, after)) = rest.split_first() {
            let nexus = &nexuses[usize::from(first & 1)];
            let lun = u64::from(first >> 1 & 3) << 48;
            if first & 0x80 != 0 {
                let Some((function, after)) = after.split_first() else { break };
                rest = after;
                let all = [
                    Management::AbortTask { lun, tag: 1 },
                    Management::AbortTaskSet { lun },
                    Management::ClearTaskSet { lun },
                    Management::LunReset { lun },
                    Management::TargetWarmReset,
                ];
                nexus.manage(all[usize::from(*function) % all.len()]).await;
                continue;
            }
            let Some((cdb, after)) = after.split_first_chunk::<16>() else { break };
            let Some((length, after)) = after.split_first_chunk::<2>() else { break };
            let (data, after) = after.split_at(usize::from(u16::from_le_bytes(*length)).min(after.len()));
            rest = after;
            let mut data = data.to_vec();
            match cdb[0] {
                // Otherwise hardly any change would get past the checksum.
                EXEC_OUT => seal(&mut data, format::CHECKSUM),
                0x83 if data.len() >= 48 && named.len() >= 16 => data[20..32].copy_from_slice(&named[4..16]),
                _ => {}
            }
            let asked = nexus.transfer(lun, cdb);
            let reply = nexus.execute(Command { lun, ..command(0, *cdb, data.into()) }).await;
            check(cdb, asked, &reply);
            all += 1;
            good += usize::from(reply.status == Reply::GOOD);
        }
    });
    good * 3 > all
}

fn padded(cdb: &[u8]) -> [u8; 16] {
    let mut whole = [0; 16];
    whole[..cdb.len()].copy_from_slice(cdb);
    whole
}

fn command(lun: u8, cdb: [u8; 16], data: Bytes) -> Command {
    Command { lun: u64::from(lun) << 48, tag: 1, cdb, attribute: TaskAttribute::Simple, data }
}

fn check(cdb: &[u8; 16], asked: Transfer, reply: &Reply) {
    assert!(matches!(reply.status, Reply::GOOD | Reply::CHECK_CONDITION | Reply::RESERVATION_CONFLICT), "{cdb:02x?}: {reply:?}");
    assert_eq!(reply.status == Reply::CHECK_CONDITION, !reply.sense.is_empty(), "{cdb:02x?}");
    assert!(reply.sense.len() <= 96);
    let most = if let Transfer::In(most) = asked { most } else { 0 };
    assert!(reply.data.len() as u64 <= most, "{cdb:02x?}: {} bytes, {asked:?}", reply.data.len());
}
