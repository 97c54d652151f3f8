//! EXEC as a pair of vendor commands.

use std::time::Duration;

use skytether_nvme_tcp::command::{Status, admin, io};
use skytether_nvme_tcp::pdu::Digests;
use skytether_nvme_tcp::results::ResultLimits;
use skytether_nvme_tcp::{Options, nqn_of};

use crate::support::{DRIVE, Host, Server, Sqe};

const MIB: u64 = 1 << 20;

fn descriptor(places: &[(u64, u64)]) -> Vec<u8> {
    places.iter().flat_map(|(at, len)| [at.to_le_bytes(), len.to_le_bytes()].concat()).collect()
}

fn out(list: u32, descriptor: &[u8]) -> Sqe {
    let command = Sqe::new(io::EXEC_OUT).namespace(1).word(10, list).word(11, descriptor.len() as u32);
    if descriptor.len() <= 8192 { command.in_capsule(descriptor.len()) } else { command.transfer(descriptor.len()) }
}

fn give(list: u32, offset: u32, len: u32, forget: bool) -> Sqe {
    Sqe::new(io::EXEC_IN).namespace(1).word(10, list).word(11, len).word(12, offset).word(13, forget.into()).transfer(len as usize)
}

fn with_content(server: &Server) -> (Host, Host, Vec<u8>) {
    let (admin, mut io) = server.associate(Digests { header: true, data: true });
    let mut dice = fastrand::Rng::with_seed(2);
    let content: Vec<u8> = (0..MIB).map(|_| dice.u8(..)).collect();
    io.command(Sqe::blocks(io::WRITE, 0, 2048).transfer(MIB as usize), &content).unwrap();
    (admin, io, content)
}

#[test]
fn sums_of_places_come_in_parts() {
    let server = Server::of(&[MIB]);
    let (_admin, mut io, content) = with_content(&server);
    let mut dice = fastrand::Rng::with_seed(3);
    let places: Vec<(u64, u64)> = (0..1000).map(|_| (512 * dice.u64(..1000), 512 * dice.u64(1..1000))).collect();
    let expected: Vec<u8> = places.iter().flat_map(|&(at, len)| crc32c::crc32c(&content[at as usize..(at + len) as usize]).to_le_bytes()).collect();
    let descriptor = descriptor(&places);
    assert_eq!(io.command(out(9, &descriptor), &descriptor).unwrap().result, 4000);
    let whole = io.command(give(9, 0, 8192, false), &[]).unwrap();
    assert_eq!((whole.result, whole.data), (4000, expected.clone()));
    let parts: Vec<u8> = (0..4000).step_by(700).flat_map(|at| io.command(give(9, at, 700, at > 3000), &[]).unwrap().data).collect();
    assert_eq!(parts, expected);
    io.fails(give(9, 0, 4, false), &[], Status::NO_RESULT);
}

#[test]
fn result_belongs_to_its_association_and_namespace() {
    let server = Server::of(&[MIB, 2 * MIB]);
    let (_admin, mut io, _) = with_content(&server);
    let one = descriptor(&[(0, 512)]);
    io.command(out(1, &one), &one).unwrap();
    io.fails(give(1, 0, 4, false).namespace(2), &[], Status::NO_RESULT);
    io.fails(give(1, 5, 4, false), &[], Status::INVALID_FIELD);
    assert!(io.command(give(1, 4, 4, false), &[]).unwrap().data.is_empty());
    let (_other, mut other) = server.associate_as(8, Digests::default(), 0);
    other.fails(give(1, 0, 4, false), &[], Status::NO_RESULT);
    // A failed computation leaves no result of an earlier one.
    io.fails(out(1, b"x"), b"x", Status::INVALID_FIELD);
    io.fails(give(1, 0, 4, false), &[], Status::NO_RESULT);
}

#[test]
fn results_are_bounded() {
    let results = ResultLimits { count: 2, bytes: 100, age: Duration::from_secs(3600) };
    let server = Server::start(&[MIB], Options { results, ..Options::default() });
    let (_admin, mut io, _) = with_content(&server);
    let one = descriptor(&[(0, 512)]);
    (1..=3).for_each(|list| drop(io.command(out(list, &one), &one).unwrap()));
    io.fails(give(1, 0, 4, false), &[], Status::NO_RESULT);
    io.command(give(2, 0, 4, false), &[]).unwrap();
    // The longest result that there can be takes all room.
    let many = descriptor(&[(0, 512); 4096]);
    assert_eq!(io.command(out(4, &many), &many).unwrap().result, 16384);
    io.fails(give(3, 0, 4, false), &[], Status::NO_RESULT);
    io.command(give(4, 16380, 4, false), &[]).unwrap();
    let long = descriptor(&[(0, 512); 5000]);
    io.fails(out(5, &long), &long, Status::EXEC_EXHAUSTED);
}

#[test]
fn errors_of_descriptors_become_statuses() {
    let server = Server::of(&[MIB]);
    let (_admin, mut io, _) = with_content(&server);
    let beyond = descriptor(&[(MIB, 512)]);
    io.fails(out(1, &beyond), &beyond, Status::INVALID_FIELD);
    let one = descriptor(&[(0, 512)]);
    io.fails(out(1, &one).word(13, 1), &one, Status::INVALID_FIELD);
    io.fails(out(1, &one).word(11, 32), &one, Status::DATA_LENGTH);
    io.fails(give(1, 0, 4, false).word(13, 2), &[], Status::INVALID_FIELD);
    io.fails(out(1, &one).word(11, 2 << 20).transfer(2 << 20), &[], Status::INVALID_FIELD);
}

#[test]
fn computation_ends_by_abort_and_delays_no_read() {
    let server = Server::of(&[MIB]);
    let (mut admin, mut io, content) = with_content(&server);
    let endless = descriptor(&[(0, 0)]);
    let id = io.submit(out(1, &endless), &endless);
    assert_eq!(io.command(Sqe::blocks(io::READ, 0, 8).transfer(4096), &[]).unwrap().data, content[..4096]);
    let abort = |id: u16| Sqe::new(admin::ABORT).word(10, 1 | u32::from(id) << 16);
    assert_eq!(admin.command(abort(id + 50), &[]).unwrap().result, 1);
    assert_eq!(admin.command(abort(id), &[]).unwrap().result, 0);
    let ended = io.answer(&[], 1);
    assert_eq!((ended.id, ended.status), (id, Status::ABORTED.field()));
}

#[test]
fn computation_ends_with_its_connection() {
    let server = Server::start(&[MIB], Options { controllers: 1, ..Options::default() });
    let (admin, mut io, _) = with_content(&server);
    let endless = descriptor(&[(0, 0)]);
    io.submit(out(1, &endless), &endless);
    drop(admin);
    assert!(io.is_closed());
    // The association is over only when its computations are.
    assert!((0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        server.open(Digests::default()).connect(0, 0xffff, &nqn_of(DRIVE), 31, 0).is_ok()
    }));
}
