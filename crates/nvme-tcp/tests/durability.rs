//! What of durability reaches the devices.

use std::sync::Arc;

use skytether_nvme_tcp::Options;
use skytether_nvme_tcp::command::{admin, io};
use skytether_nvme_tcp::pdu::Digests;
use skytether_volume::memory::{Recorded, RecordingDevice};
use skytether_volume::{BlockDevice, Durability, Zeros};

use crate::support::{Host, Server, Sqe};

const CACHED: Durability = Durability::Cached;
const DURABLE: Durability = Durability::Durable;
const FUA: u32 = 1 << 30;

fn serve() -> (Arc<RecordingDevice>, Arc<RecordingDevice>, Server) {
    let [first, second] = [1 << 20, 2 << 20].map(|size| Arc::new(RecordingDevice::new("v", size)));
    let volumes = [("a", &first), ("b", &second)].map(|(name, device)| (name.to_owned(), Arc::clone(device) as Arc<dyn BlockDevice>));
    let server = Server::over(volumes.to_vec(), Options::default());
    (first, second, server)
}

/// Every command that changes blocks, once.
fn change(io: &mut Host, fua: u32) {
    io.command(Sqe::blocks(io::WRITE, 0, 1).word(12, fua).in_capsule(512), &[0; 512]).unwrap();
    for (opcode, which) in [(io::COMPARE, 1), (io::WRITE, 2)] {
        io.submit(Sqe::blocks(opcode, 0, 1).word(12, fua).fuse(which).in_capsule(512), &[0; 512]);
    }
    assert_eq!([io.answer(&[], 1).status, io.answer(&[], 1).status], [0, 0]);
    io.command(Sqe::blocks(io::WRITE_ZEROES, 0, 1).word(12, fua), &[]).unwrap();
}

fn changes(durability: Durability) -> [Recorded; 3] {
    [Recorded::Write(durability), Recorded::CompareAndWrite(durability), Recorded::Zero(Zeros::Mapped, durability)]
}

fn deallocate(io: &mut Host) {
    let range = [&[0; 4][..], &8_u32.to_le_bytes(), &8_u64.to_le_bytes()].concat();
    io.command(Sqe::new(io::DATASET_MANAGEMENT).namespace(1).word(11, 4).in_capsule(16), &range).unwrap();
}

fn set_cache(admin: &mut Host, on: u32) {
    admin.command(Sqe::new(admin::SET_FEATURES).word(10, 6).word(11, on), &[]).unwrap();
}

#[test]
fn force_unit_access_and_flush_reach_the_device() {
    let (first, second, server) = serve();
    let (_admin, mut io) = server.associate(Digests::default());
    change(&mut io, 0);
    assert_eq!(first.take(), changes(CACHED));
    change(&mut io, FUA);
    assert_eq!(first.take(), changes(DURABLE));
    deallocate(&mut io);
    assert_eq!(first.take(), [Recorded::Zero(Zeros::Unmapped, CACHED)]);
    // What is read with FUA is on the medium.
    io.command(Sqe::blocks(io::READ, 0, 1).word(12, FUA).transfer(512), &[]).unwrap();
    io.command(Sqe::new(io::FLUSH).namespace(1), &[]).unwrap();
    assert_eq!((first.take(), second.take()), (vec![Recorded::Flush; 2], vec![]));
    io.command(Sqe::new(io::FLUSH).namespace(u32::MAX), &[]).unwrap();
    assert_eq!((first.take(), second.take()), (vec![Recorded::Flush], vec![Recorded::Flush]));
}

#[test]
fn write_cache_is_flushed_as_it_is_switched_off() {
    let (first, second, server) = serve();
    let (mut admin, mut io) = server.associate(Digests::default());
    set_cache(&mut admin, 0);
    assert_eq!((first.take(), second.take()), (vec![Recorded::Flush], vec![Recorded::Flush]));
    change(&mut io, 0);
    deallocate(&mut io);
    assert_eq!(first.take(), [&changes(DURABLE)[..], &[Recorded::Zero(Zeros::Unmapped, DURABLE)]].concat());
    set_cache(&mut admin, 1);
    change(&mut io, 0);
    assert_eq!((first.take(), second.take()), (changes(CACHED).to_vec(), vec![]));
}

#[test]
fn write_cache_stays_off_over_resets_and_associations() {
    let (first, _second, server) = serve();
    let (mut admin, io) = server.associate(Digests::default());
    set_cache(&mut admin, 0);
    admin.set_property(0x14, 0).unwrap();
    while admin.property(0x1c, false) != Ok(0) {}
    admin.enable();
    assert_eq!(admin.command(Sqe::new(admin::GET_FEATURES).word(10, 6), &[]).unwrap().result, 0);
    drop((admin, io));
    let (_admin, mut io) = server.associate(Digests::default());
    first.take();
    change(&mut io, 0);
    assert_eq!(first.take(), changes(DURABLE));
    // Other hosts have their own setting.
    let (_other, mut other) = server.associate_as(8, Digests::default(), 0);
    change(&mut other, 0);
    assert_eq!(first.take(), changes(CACHED));
}

#[test]
fn shutdown_flushes_all_namespaces() {
    let (first, second, server) = serve();
    let (mut admin, _io) = server.associate(Digests::default());
    admin.set_property(0x14, 0x46_4001).unwrap();
    assert_eq!((first.take(), second.take()), (vec![Recorded::Flush], vec![Recorded::Flush]));
}
