//! Hosts that send what is no NVMe, too much of it, or nothing.

use std::time::Duration;

use bytes::Bytes;
use skytether_nvme_tcp::Options;
use skytether_nvme_tcp::command::io;
use skytether_nvme_tcp::pdu::{Digests, Head, fatal, flag, kind};

use crate::support::{Server, Sqe};

const MIB: u64 = 1 << 20;

/// The reason for which the server ends the connection, the place of the wrong field, and the header it repeats.
fn terminated(host: &mut crate::support::Host) -> (u16, u32, Vec<u8>) {
    let unit = host.unit();
    assert_eq!(unit.head.kind, kind::C2H_TERMINATE);
    let number = |at: usize| u16::from_le_bytes([unit.header[at], unit.header[at + 1]]);
    assert!(host.is_closed());
    (number(0), u32::from(number(2)) | u32::from(number(4)) << 16, unit.data)
}

#[test]
fn bytes_that_are_no_opening_end_the_connection() {
    let server = Server::of(&[MIB]);
    let mut dice = fastrand::Rng::with_seed(3);
    for round in 0..100 {
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let mut bytes: Vec<u8> = (0..128).map(|_| dice.u8(..)).collect();
        if round % 2 == 0 {
            bytes[..8].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0]);
            bytes[8] = 1;
        } else if bytes[0] == 0x16 {
            bytes[0] = 0;
        }
        use std::io::{Read, Write};
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(&bytes).unwrap();
        let mut said = Vec::new();
        let read = stream.read_to_end(&mut said);
        assert!(read.is_ok() || said.is_empty());
        assert!(said.is_empty() || said[0] == kind::C2H_TERMINATE);
    }
    server.associate(Digests::default());
}

#[test]
fn random_units_end_the_connection_or_are_answered() {
    let server = Server::of(&[MIB]);
    let mut dice = fastrand::Rng::with_seed(4);
    for round in 0..150 {
        let (_admin, mut io) = server.associate(Digests::default());
        let mut bytes: Vec<u8> = (0..200).map(|_| dice.u8(..)).collect();
        if round % 3 > 0 {
            let head =
                Head { kind: [kind::COMMAND, kind::H2C_DATA][round % 2], flags: 0, header: [72, 24][round % 2], data_offset: 0, len: [72, 24][round % 2] };
            bytes[..8].copy_from_slice(&head.encode());
        }
        io.send(&bytes);
        drop(io);
    }
    let (_admin, mut io) = server.associate(Digests::default());
    io.command(Sqe::blocks(io::READ, 0, 8).transfer(4096), &[]).unwrap();
}

#[test]
fn wrong_headers_are_told_and_repeated() {
    let server = Server::of(&[MIB]);
    let command = Sqe::new(io::FLUSH).namespace(1);
    let (_admin, mut io) = server.associate(Digests { header: true, data: false });
    let mut unit = io.framing.unit(kind::COMMAND, 0, &command.0, Bytes::new()).concat();
    unit[20] ^= 1;
    io.send(&unit);
    assert_eq!(terminated(&mut io), (fatal::HEADER_DIGEST, 0, unit[..72].to_vec()));
    for (at, value, expected) in [
        (0, 0x05, (fatal::HEADER_FIELD, 0)),
        (0, 0x00, (fatal::SEQUENCE, 0)),
        (2, 64, (fatal::HEADER_FIELD, 2)),
        (1, 1, (fatal::HEADER_FIELD, 1)),
        (4, 1, (fatal::HEADER_FIELD, 4)),
    ] {
        let (_admin, mut io) = server.associate(Digests::default());
        let mut unit = io.framing.unit(kind::COMMAND, 0, &command.0, Bytes::new()).concat();
        unit[at] = value;
        io.send(&unit);
        let (status, field, _) = terminated(&mut io);
        assert_eq!((status, field), expected);
    }
    // A capsule that claims more than any may have.
    let (_admin, mut io) = server.associate(Digests::default());
    let head = Head { kind: kind::COMMAND, flags: 0, header: 72, data_offset: 72, len: 1 << 30 };
    io.send(&head.encode());
    assert_eq!(terminated(&mut io).0, fatal::LIMIT);
}

#[test]
fn data_that_was_not_asked_for_ends_the_connection() {
    let server = Server::of(&[MIB]);
    let header = |id: u16, offset: u32, len: u32| [&id.to_le_bytes()[..], &id.to_le_bytes(), &offset.to_le_bytes(), &len.to_le_bytes(), &[0; 4]].concat();
    for (id, offset, len, last, expected) in
        [(9, 0, 512, true, fatal::HEADER_FIELD), (0, 512, 512, false, fatal::RANGE), (0, 0, 20_000, true, fatal::RANGE), (0, 0, 512, true, fatal::HEADER_FIELD)]
    {
        let (_admin, mut io) = server.associate(Digests::default());
        let wanted = io.submit(Sqe::blocks(io::WRITE, 0, 32).transfer(16384), &[]);
        assert_eq!(io.unit().head.kind, kind::READY);
        let flags = if last { flag::LAST } else { 0 };
        let unit = io.framing.unit(kind::H2C_DATA, flags, &header(wanted + id, offset, len), vec![1; len as usize].into()).concat();
        io.send(&unit);
        assert_eq!(terminated(&mut io).0, expected, "{id} {offset} {len}");
    }
}

#[test]
fn more_commands_than_entries_end_the_connection() {
    let server = Server::of(&[MIB]);
    let (_admin, mut io) = server.associate(Digests::default());
    // Writes whose data does not come hold their entries.
    for _ in 0..65 {
        io.submit(Sqe::blocks(io::WRITE, 0, 2048).transfer(MIB as usize), &[]);
    }
    loop {
        let unit = io.unit();
        if unit.head.kind == kind::C2H_TERMINATE {
            break;
        }
        assert_eq!(unit.head.kind, kind::READY);
    }
}

#[test]
fn identifier_that_is_under_way_is_refused() {
    let server = Server::of(&[MIB]);
    let (_admin, mut io) = server.associate(Digests::default());
    let id = io.submit(Sqe::blocks(io::WRITE, 0, 1).transfer(512), &[]);
    assert_eq!(io.unit().head.kind, kind::READY);
    let again = io.framing.unit(kind::COMMAND, 0, &Sqe::new(io::FLUSH).namespace(1).id(id).0, Bytes::new()).concat();
    io.send(&again);
    let answer = io.answer(&[], 1);
    assert_eq!((answer.id, answer.status), (id, 3 << 1));
}

#[test]
fn host_that_does_not_send_data_gives_its_room_back() {
    let options = Options { bytes: 1, patience: Duration::from_millis(300), ..Options::default() };
    let server = Server::start(&[MIB], options);
    let (_admin, mut slow) = server.associate(Digests::default());
    // All room of the door.
    for _ in 0..4 {
        slow.submit(Sqe::blocks(io::WRITE, 0, 2048).transfer(MIB as usize), &[]);
    }
    let (_other, mut other) = server.associate_as(8, Digests::default(), 0);
    other.command(Sqe::blocks(io::READ, 0, 8).transfer(4096), &[]).unwrap();
    assert!(slow.is_closed());
}

#[test]
fn host_that_does_not_read_is_ended() {
    let options = Options { bytes: 1, patience: Duration::from_millis(300), ..Options::default() };
    let server = Server::start(&[16 * MIB], options);
    let (_admin, mut deaf) = server.associate(Digests::default());
    for _ in 0..32 {
        deaf.submit(Sqe::blocks(io::READ, 0, 2048).transfer(MIB as usize), &[]);
    }
    let (_other, mut other) = server.associate_as(8, Digests::default(), 0);
    other.command(Sqe::blocks(io::READ, 0, 8).transfer(4096), &[]).unwrap();
    // Of its connection, the admin queue alone is left; to look at it would be to read.
    assert!((0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        server.context.metrics.counts().open == 3
    }));
    assert!(deaf.is_closed());
}
