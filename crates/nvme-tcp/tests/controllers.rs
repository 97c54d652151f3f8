//! Discovery, associations, and what controllers say of themselves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skytether_common::Kind;
use skytether_nvme_tcp::command::{Status, admin, io};
use skytether_nvme_tcp::pdu::Digests;
use skytether_nvme_tcp::{DISCOVERY_NQN, NvmeTcp, Options, nqn_of};
use skytether_volume::BlockDevice;
use skytether_volume::memory::MemoryDevice;

use crate::support::{DRIVE, Server, Sqe};

const MIB: u64 = 1 << 20;

fn log(page: u32, len: u32) -> Sqe {
    Sqe::new(admin::GET_LOG_PAGE).word(10, page | (len / 4 - 1) << 16).transfer(len as usize)
}

fn identify(what: u32, namespace: u32) -> Sqe {
    Sqe::new(admin::IDENTIFY).namespace(namespace).word(10, what).transfer(4096)
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap().trim_end_matches(['\0', ' '])
}

#[test]
fn discovery_tells_subsystem_and_address() {
    let server = Server::of(&[MIB]);
    let mut host = server.open(Digests::default());
    host.connect(0, 0xffff, DISCOVERY_NQN, 31, 0).unwrap();
    host.fails(identify(1, 0), &[], Status::SEQUENCE);
    host.enable();
    let page = host.command(log(0x70, 2048), &[]).unwrap().data;
    assert_eq!((page[8], &page[1024..1027], text(&page[1024 + 256..1024 + 512])), (1, &[3, 1, 2][..], nqn_of(DRIVE).as_str()));
    let address = format!("{}:{}", text(&page[1024 + 512..1024 + 768]), text(&page[1024 + 32..1024 + 64]));
    assert_eq!(address, server.address);
    let controller = host.command(identify(1, 0), &[]).unwrap().data;
    assert_eq!((controller[111], text(&controller[768..1024])), (2, DISCOVERY_NQN));
    host.fails(identify(0, 1), &[], Status::INVALID_FIELD);
    host.fails(log(2, 512), &[], Status::INVALID_LOG_PAGE);
}

#[test]
fn controller_and_namespaces_describe_themselves() {
    let server = Server::of(&[64 * MIB, 8 * MIB]);
    let (mut host, number) = server.admin(Digests::default());
    assert_eq!(host.property(0, true), Ok(127 | 1 << 16 | 15 << 24 | 1 << 37));
    assert_eq!(host.property(8, false), Ok(0x0001_0400));
    let controller = host.command(identify(1, 0), &[]).unwrap().data;
    assert_eq!(u16::from_le_bytes([controller[78], controller[79]]), number);
    assert_eq!((controller[77], controller[111], &controller[516..520], controller[525]), (8, 1, &[2, 0, 0, 0][..], 7));
    assert_eq!(host.command(identify(2, 0), &[]).unwrap().data[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    let namespace = host.command(identify(0, 2), &[]).unwrap().data;
    assert_eq!((&namespace[..8], namespace[130]), (&(8 * MIB / 512).to_le_bytes()[..], 9));
    let names = host.command(identify(3, 2), &[]).unwrap().data;
    assert_eq!((names[20], &names[24..40]), (3, MemoryDevice::new("", 8 * MIB).info().id.as_bytes().as_slice()));
    for (what, namespace, status) in
        [(0, 3, Status::INVALID_NAMESPACE), (3, 0, Status::INVALID_NAMESPACE), (2, u32::MAX, Status::INVALID_NAMESPACE), (9, 1, Status::INVALID_FIELD)]
    {
        host.fails(identify(what, namespace), &[], status);
    }
    host.fails(Sqe::new(admin::IDENTIFY).word(10, 1).transfer(512), &[], Status::DATA_LENGTH);
    host.fails(Sqe::new(0x55), &[], Status::INVALID_OPCODE);
}

#[test]
fn logs_count_what_happened() {
    let server = Server::of(&[MIB]);
    let (mut host, mut io) = server.associate(Digests::default());
    io.command(Sqe::blocks(io::WRITE, 0, 8).in_capsule(4096), &[1; 4096]).unwrap();
    io.command(Sqe::blocks(io::READ, 0, 8).transfer(4096), &[]).unwrap();
    io.fails(Sqe::blocks(io::READ, 5000, 8).transfer(4096), &[], Status::OUT_OF_RANGE);
    let health = host.command(log(2, 512), &[]).unwrap().data;
    assert_eq!((health[32], health[48], health[64], health[80], health[176]), (1, 1, 1, 1, 1));
    let errors = host.command(log(1, 128), &[]).unwrap().data;
    assert_eq!((errors[0], errors[8], &errors[12..14], &errors[16..18]), (1, 1, &Status::OUT_OF_RANGE.field().to_le_bytes()[..], &5000_u16.to_le_bytes()[..]));
    let effects = host.command(log(5, 4096), &[]).unwrap().data;
    assert_eq!((effects[1024 + 4], effects[1024 + 8], effects[1024 + 4 * 0xc1], effects[1024 + 4 * 4]), (3, 1, 3, 0));
    assert_eq!(text(&host.command(log(3, 512), &[]).unwrap().data[8..16]), env!("CARGO_PKG_VERSION"));
    assert_eq!(host.command(log(0xc0, 64), &[]).unwrap().data[..14], *b"sums of places");
    host.fails(log(0x42, 64), &[], Status::INVALID_LOG_PAGE);
    host.fails(log(2, 512).word(12, 516), &[], Status::INVALID_FIELD);
    assert_eq!(host.command(log(2, 8).word(12, 508), &[]).unwrap().data, [0; 8]);
}

#[test]
fn features_are_set_and_given() {
    let server = Server::of(&[MIB]);
    let (mut host, _) = server.admin(Digests::default());
    let set = |number: u32, value: u32| Sqe::new(admin::SET_FEATURES).word(10, number).word(11, value);
    let get = |number: u32| Sqe::new(admin::GET_FEATURES).word(10, number);
    for (number, value) in [(0x0b_u32, 0x100_u32), (0x0f, 7000), (0x06, 0), (0x01, 7)] {
        host.command(set(number, value), &[]).unwrap();
        assert_eq!(host.command(get(number), &[]).unwrap().result, u64::from(value), "{number}");
    }
    assert_eq!(host.command(set(7, 500 | 500 << 16), &[]).unwrap().result, 15 | 15 << 16);
    host.fails(set(7, 0xffff), &[], Status::INVALID_FIELD);
    host.fails(set(0x42, 0), &[], Status::INVALID_FIELD);
    host.fails(get(6 | 1 << 8), &[], Status::INVALID_FIELD);
    host.fails(set(2, 1), &[], Status::INVALID_FIELD);
}

#[test]
fn connect_with_wrong_parameters_is_refused() {
    let server = Server::start(&[MIB], Options { controllers: 1, ..Options::default() });
    let (nqn, refused) = (nqn_of(DRIVE), Status::CONNECT_PARAMETERS.field());
    let fresh = || server.open(Digests::default());
    assert_eq!(fresh().connect(0, 0xffff, "nqn.2026-01.other:x", 31, 0), Err(refused));
    assert_eq!(fresh().connect(0, 0xffff, &nqn, 128, 0), Err(refused));
    assert_eq!(fresh().connect(0, 0xffff, &nqn, 0, 0), Err(refused));
    assert_eq!(fresh().connect(0, 5, &nqn, 31, 0), Err(refused));
    assert_eq!(fresh().connect(1, 5, &nqn, 31, 0), Err(refused));
    let (admin, number) = server.admin(Digests::default());
    assert_eq!(fresh().connect(0, 0xffff, &nqn, 31, 0), Err(Status::CONNECT_BUSY.field()));
    assert_eq!(fresh().connect(9, number, &nqn, 31, 0), Err(refused));
    let mut io = fresh();
    io.connect(1, number, &nqn, 31, 0).unwrap();
    assert_eq!(fresh().connect(1, number, &nqn, 31, 0), Err(Status::CONNECT_BUSY.field()));
    // The place of a controller is free again when its admin queue ends, and its other queues end with it.
    drop(admin);
    assert!(io.is_closed());
    assert!((0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        fresh().connect(0, 0xffff, &nqn, 31, 0).is_ok()
    }));
}

#[test]
fn configuration_that_does_not_fit_is_fatal() {
    let server = Server::of(&[MIB]);
    let mut host = server.open(Digests::default());
    let number = host.connect(0, 0xffff, &nqn_of(DRIVE), 31, 0).unwrap() as u16;
    host.set_property(0x14, 0x46_0081).unwrap();
    assert_eq!(host.property(0x1c, false), Ok(2));
    let refused = server.open(Digests::default()).connect(1, number, &nqn_of(DRIVE), 31, 0);
    assert_eq!(refused, Err(Status::SEQUENCE.field()));
    host.set_property(0x14, 0).unwrap();
    host.enable();
    // A shutdown is complete once everything is durable.
    host.set_property(0x14, 0x46_4001).unwrap();
    assert_eq!(host.property(0x1c, false), Ok(0b1001));
    assert_eq!(host.property(0x1c, true), Err(Status::INVALID_FIELD.field()));
    assert_eq!(host.property(0x20, false), Err(Status::INVALID_FIELD.field()));
}

#[test]
fn reset_ends_queues() {
    let server = Server::of(&[MIB]);
    let (mut admin, mut io) = server.associate(Digests::default());
    io.command(Sqe::blocks(io::READ, 0, 1).transfer(512), &[]).unwrap();
    admin.set_property(0x14, 0).unwrap();
    assert!(io.is_closed());
}

#[test]
fn silent_host_loses_its_association() {
    let server = Server::of(&[MIB]);
    let mut host = server.open(Digests::default());
    host.connect(0, 0xffff, &nqn_of(DRIVE), 31, 1000).unwrap();
    host.enable();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(2500) {
        host.command(Sqe::new(admin::KEEP_ALIVE), &[]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    let silent = Instant::now();
    assert!(host.is_closed());
    assert!(silent.elapsed() >= Duration::from_millis(1000));
}

#[test]
fn event_requests_wait_within_their_number() {
    let server = Server::of(&[MIB]);
    let (mut host, _) = server.admin(Digests::default());
    for _ in 0..5 {
        host.submit(Sqe::new(admin::ASYNC_EVENT), &[]);
    }
    // One of them is too many; the others are answered when something happens.
    assert_eq!(host.answer(&[], 1).status, Status::EVENT_LIMIT.field());
    host.command(Sqe::new(admin::KEEP_ALIVE), &[]).unwrap();
}

#[test]
fn volumes_of_one_identity_are_refused() {
    let volume = |name: &str| (name.to_owned(), Arc::new(MemoryDevice::new(name, MIB)) as Arc<dyn BlockDevice>);
    let error = NvmeTcp::new(vec![volume("a"), volume("b")], None, Options::default()).unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.message().contains("one identity"), "{error}");
    let error = NvmeTcp::new(vec![volume("a")], None, Options { nqn: Some("iqn.x".into()), ..Options::default() }).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
}

#[test]
fn namespaces_keep_their_numbers_over_gaps() {
    let volume = |number: u32, size: u64| (number, size.to_string(), Arc::new(MemoryDevice::new("", size)) as Arc<dyn BlockDevice>);
    let door = NvmeTcp::numbered(vec![volume(7, 2 * MIB), volume(2, MIB)], None, Options::default()).unwrap();
    let server = Server::serve("127.0.0.1:0", door);
    let (mut host, mut io) = server.associate(Digests::default());
    assert_eq!(host.command(identify(1, 0), &[]).unwrap().data[516..520], [7, 0, 0, 0]);
    assert_eq!(host.command(identify(2, 0), &[]).unwrap().data[..12], [2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    for (namespace, blocks) in [(2, MIB / 512), (5, 0), (7, 2 * MIB / 512)] {
        assert_eq!(host.command(identify(0, namespace), &[]).unwrap().data[..8], blocks.to_le_bytes(), "{namespace}");
    }
    host.fails(identify(0, 8), &[], Status::INVALID_NAMESPACE);
    host.fails(identify(3, 5), &[], Status::INVALID_FIELD);
    let read = |namespace: u32| Sqe::blocks(io::READ, MIB / 512, 1).namespace(namespace).transfer(512);
    io.command(read(7), &[]).unwrap();
    io.fails(read(2), &[], Status::OUT_OF_RANGE);
    io.fails(read(1), &[], Status::INVALID_FIELD);
    io.fails(read(8), &[], Status::INVALID_NAMESPACE);
    for wrong in [vec![volume(0, MIB)], vec![volume(1 << 16, MIB)], vec![volume(3, MIB), volume(3, 2 * MIB)]] {
        assert_eq!(NvmeTcp::numbered(wrong, None, Options::default()).unwrap_err().kind(), Kind::Invalid);
    }
}
