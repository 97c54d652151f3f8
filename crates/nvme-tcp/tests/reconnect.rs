//! What a host left waiting, once it has a new association or has reset its controller.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skytether_nvme_tcp::command::{admin, io};
use skytether_nvme_tcp::pdu::Digests;
use skytether_nvme_tcp::{Options, SCHEME};
use skytether_volume::memory::{Recorded, RecordingDevice};
use skytether_volume::{BlockDevice, Durability};

use crate::support::{Host, Server, Sqe};

const MIB: u64 = 1 << 20;

fn serve() -> (Arc<RecordingDevice>, Server) {
    let device = Arc::new(RecordingDevice::new(SCHEME, MIB));
    let server = Server::over(vec![("a".into(), Arc::clone(&device) as Arc<dyn BlockDevice>)], Options::default());
    (device, server)
}

/// Sends a write that the device holds back.
fn begin_write(device: &RecordingDevice, io: &mut Host, value: u8) {
    device.hold(true);
    io.submit(Sqe::blocks(io::WRITE, 0, 1).in_capsule(512), &[value; 512]);
    let begun = Instant::now();
    while device.waiting() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Nothing waits, and of what is written now nothing older comes back.
fn is_newest(device: &RecordingDevice, io: &mut Host) {
    assert_eq!(device.waiting(), 0);
    device.hold(false);
    io.command(Sqe::blocks(io::WRITE, 0, 1).in_capsule(512), &[2; 512]).unwrap();
    assert_eq!(io.command(Sqe::blocks(io::READ, 0, 1).transfer(512), &[]).unwrap().data, [2; 512]);
    assert_eq!(device.take(), [Recorded::Write(Durability::Cached)]);
}

#[test]
fn write_of_ended_connection_is_over_before_the_next() {
    let (device, server) = serve();
    let (admin, mut io) = server.associate(Digests::default());
    begin_write(&device, &mut io, 1);
    drop((admin, io));
    let (_admin, mut io) = server.associate(Digests::default());
    is_newest(&device, &mut io);
}

#[test]
fn silent_association_ends_for_a_new_one_of_its_host() {
    let (device, server) = serve();
    let (mut old_admin, mut old_io) = server.associate_as(9, Digests::default(), 1000);
    begin_write(&device, &mut old_io, 1);
    let (_admin, mut io) = server.associate(Digests::default());
    is_newest(&device, &mut io);
    assert!(old_admin.is_closed() && old_io.is_closed());
}

#[test]
fn second_path_of_a_host_leaves_the_first_alone() {
    let (_device, server) = serve();
    let (mut first_admin, mut first) = server.associate_as(9, Digests::default(), 2000);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| server.associate_as(9, Digests::default(), 2000));
        while !second.is_finished() {
            first_admin.command(Sqe::new(admin::KEEP_ALIVE), &[]).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        let (_admin, mut second) = second.join().unwrap();
        for io in [&mut first, &mut second] {
            io.command(Sqe::new(io::FLUSH).namespace(1), &[]).unwrap();
        }
    });
}

#[test]
fn reset_is_complete_when_no_command_is_under_way() {
    let (device, server) = serve();
    let (mut admin, mut io) = server.associate(Digests::default());
    begin_write(&device, &mut io, 1);
    admin.set_property(0x14, 0).unwrap();
    let begun = Instant::now();
    while admin.property(0x1c, false) != Ok(0) {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    assert_eq!(device.waiting(), 0);
    assert!(io.is_closed());
    admin.enable();
}
