//! What the server says, byte for byte, and what requests do.

use std::sync::Arc;

use skytether_nbd::Options;
use skytether_nbd::wire::{self, command, errno, flag, option, reply, transmission};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, Durability};

use crate::support::{Chunk, Server, info, meta};

const MIB: u64 = 1 << 20;

#[test]
fn list_names_all_exports() {
    let server = Server::of(&[("first", MIB), ("second", MIB)]);
    let mut client = server.connect();
    client.option(option::LIST, &[]);
    assert_eq!(client.option_reply(option::LIST), (reply::SERVER, b"\0\0\0\x05first".to_vec()));
    assert_eq!(client.option_reply(option::LIST), (reply::SERVER, b"\0\0\0\x06second".to_vec()));
    assert_eq!(client.option_reply(option::LIST), (reply::ACK, vec![]));
}

#[test]
fn old_export_name_gives_size_flags_and_zeros() {
    let server = Server::of(&[("first", MIB)]);
    let mut client = server.connect();
    client.option(option::EXPORT_NAME, b"first");
    assert_eq!(u64::from_be_bytes(client.take()), MIB);
    let flags = u16::from_be_bytes(client.take());
    assert_eq!(flags & transmission::SEND_DF, 0);
    client.write(0, &[7; 512]);
    assert_eq!(client.read(0, 512), [7; 512]);

    let mut client = server.connect();
    client.option(option::EXPORT_NAME, b"absent");
    assert!(client.is_closed());
}

#[test]
fn empty_name_means_the_only_export() {
    let server = Server::of(&[("first", MIB)]);
    assert_eq!(server.go("", false).1 & transmission::READ_ONLY, 0);
    let server = Server::of(&[("first", MIB), ("second", MIB)]);
    let mut client = server.connect();
    client.option(option::GO, &info("", &[]));
    assert_eq!(client.option_reply(option::GO).0, reply::ERR_UNKNOWN);
}

#[test]
fn info_describes_without_beginning_transmission() {
    let server = Server::of(&[("first", MIB)]);
    let mut client = server.connect();
    client.option(option::INFO, &info("first", &[wire::info::NAME, wire::info::BLOCK_SIZE]));
    let mut kinds = Vec::new();
    loop {
        match client.option_reply(option::INFO) {
            (reply::INFO, payload) => kinds.push((payload[1], payload[2..].to_vec())),
            (kind, _) => {
                assert_eq!(kind, reply::ACK);
                break;
            }
        }
    }
    kinds.sort();
    assert_eq!(kinds.iter().map(|(kind, _)| *kind).collect::<Vec<u8>>(), [0, 1, 3]);
    assert_eq!((&kinds[0].1[..8], &kinds[1].1[..]), (&MIB.to_be_bytes()[..], &b"first"[..]));
    assert_eq!(kinds[2].1, [512_u32, 4096, 32 << 20].map(u32::to_be_bytes).concat());
    client.option(option::ABORT, &[]);
    assert_eq!(client.option_reply(option::ABORT).0, reply::ACK);
    assert!(client.is_closed());
}

#[test]
fn options_that_are_wrong_are_refused_and_forgotten() {
    let server = Server::of(&[("first", MIB)]);
    let mut client = server.connect();
    for (number, payload, expected) in [
        (option::STARTTLS, vec![], reply::ERR_POLICY),
        (option::SET_META_CONTEXT, meta("first", &["base:allocation"]), reply::ERR_INVALID),
        (option::LIST, b"x".to_vec(), reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, b"x".to_vec(), reply::ERR_INVALID),
        (option::GO, b"\0\0\0\xff".to_vec(), reply::ERR_INVALID),
        (option::GO, info("absent", &[]), reply::ERR_UNKNOWN),
        (11, vec![], reply::ERR_UNSUP),
        (u32::MAX, vec![0; 60_000], reply::ERR_UNSUP),
    ] {
        client.option(number, &payload);
        assert_eq!(client.option_reply(number).0, expected, "{number}");
    }
    client.option(option::STRUCTURED_REPLY, &[]);
    assert_eq!(client.option_reply(option::STRUCTURED_REPLY).0, reply::ACK);
    for (number, queries, contexts) in [
        (option::LIST_META_CONTEXT, &["base:"][..], 1),
        (option::LIST_META_CONTEXT, &[][..], 1),
        (option::LIST_META_CONTEXT, &["other:x"][..], 0),
        (option::SET_META_CONTEXT, &["base:"][..], 0),
        (option::SET_META_CONTEXT, &[][..], 0),
        (option::SET_META_CONTEXT, &["other:x", "base:allocation"][..], 1),
    ] {
        client.option(number, &meta("first", queries));
        for _ in 0..contexts {
            assert_eq!(client.option_reply(number).0, reply::META_CONTEXT, "{queries:?}");
        }
        assert_eq!(client.option_reply(number).0, reply::ACK, "{queries:?}");
    }
}

#[test]
fn bytes_at_any_place_are_written_and_read() {
    let server = Server::of(&[("first", MIB)]);
    let (mut client, _) = server.go("first", false);
    let mut model = vec![0; MIB as usize];
    let mut dice = fastrand::Rng::with_seed(5);
    for round in 0..400_u32 {
        let at = dice.usize(..MIB as usize - 1);
        let len = (1 + dice.usize(..3000)).min(MIB as usize - at);
        match dice.u8(..4) {
            0 | 1 => {
                let data: Vec<u8> = (0..len).map(|_| dice.u8(..)).collect();
                model[at..at + len].copy_from_slice(&data);
                assert_eq!(client.simple(command::WRITE, flag::FUA * dice.u16(..2), at as u64, len as u32, &data), 0);
            }
            2 => {
                model[at..at + len].fill(0);
                assert_eq!(client.simple(command::WRITE_ZEROES, flag::NO_HOLE * dice.u16(..2), at as u64, len as u32, &[]), 0);
            }
            _ => {}
        }
        let at = dice.usize(..MIB as usize - 5000);
        assert_eq!(client.read(at as u64, 5000), model[at..at + 5000], "{round}");
    }
}

#[test]
fn writes_to_parts_of_one_block_keep_each_other() {
    let server = Server::of(&[("first", MIB)]);
    let writers: Vec<_> = (0..4_u64).map(|writer| (writer, server.go("first", false).0)).collect();
    std::thread::scope(|scope| {
        for (writer, mut client) in writers {
            scope.spawn(move || (1..=50).for_each(|value| client.write(100 * writer, &[value; 100])));
        }
    });
    assert_eq!(server.go("first", false).0.read(0, 400), [50; 400]);
}

#[test]
fn trim_keeps_parts_of_blocks() {
    let server = Server::of(&[("first", MIB)]);
    let (mut client, _) = server.go("first", false);
    client.write(0, &[1; 8192]);
    for (at, len) in [(100, 100), (100, 500), (512, 0)] {
        assert_eq!(client.simple(command::TRIM, 0, at, len, &[]), 0);
        assert_eq!(client.read(0, 8192), [1; 8192]);
    }
    assert_eq!(client.simple(command::TRIM, flag::FUA, 100, 2000, &[]), 0);
    let mut expected = vec![1; 8192];
    expected[512..2048].fill(0);
    assert_eq!(client.read(0, 8192), expected);
}

#[test]
fn holes_are_read_as_chunks_without_bytes() {
    let server = Server::of(&[("first", MIB)]);
    let (mut client, flags) = server.go("first", true);
    assert_ne!(flags & transmission::SEND_DF, 0);
    let cookie = client.request(command::WRITE, 0, 65536, 4096, &[9; 4096]);
    assert_eq!(client.chunk(), Chunk { flags: 1, kind: wire::chunk::NONE, cookie, payload: vec![] });
    let cookie = client.request(command::READ, 0, 0, 1 << 17, &[]);
    let chunks = client.chunks(cookie);
    let hole = |at: u64, len: u32| [&at.to_be_bytes()[..], &len.to_be_bytes()[..]].concat();
    let data = [&65536_u64.to_be_bytes()[..], &[9; 4096][..]].concat();
    let kinds: Vec<(u16, &[u8])> = chunks.iter().map(|chunk| (chunk.kind, &chunk.payload[..])).collect();
    let (before, after) = (hole(0, 65536), hole(69632, 61440));
    assert_eq!(kinds, [(wire::chunk::OFFSET_HOLE, &before[..]), (wire::chunk::OFFSET_DATA, &data[..]), (wire::chunk::OFFSET_HOLE, &after[..])]);

    // One chunk where the client can't take more.
    let cookie = client.request(command::READ, flag::DF, 0, 1 << 17, &[]);
    let chunks = client.chunks(cookie);
    assert_eq!((chunks.len(), chunks[0].kind, chunks[0].payload.len()), (1, wire::chunk::OFFSET_DATA, 8 + (1 << 17)));
}

#[test]
fn block_status_covers_exactly_the_range() {
    let server = Server::of(&[("first", MIB)]);
    let (mut client, _) = server.go("first", true);
    let cookie = client.request(command::WRITE, 0, 8192, 4096, &[9; 4096]);
    client.chunks(cookie);
    let extents = |payload: &[u8]| payload[4..].chunks(4).map(|four| u32::from_be_bytes(four.try_into().unwrap())).collect::<Vec<u32>>();
    for (flags, at, len, expected) in
        [(0, 0, MIB as u32, vec![8192, 3, 4096, 0, MIB as u32 - 12288, 3]), (flag::REQ_ONE, 0, MIB as u32, vec![8192, 3]), (0, 8193, 4096, vec![4095, 0, 1, 3])]
    {
        let cookie = client.request(command::BLOCK_STATUS, flags, at, len, &[]);
        let chunks = client.chunks(cookie);
        assert_eq!((chunks.len(), chunks[0].kind, &chunks[0].payload[..4]), (1, wire::chunk::BLOCK_STATUS, &[0, 0, 0, 1][..]));
        assert_eq!(extents(&chunks[0].payload), expected);
    }
}

#[test]
fn requests_beyond_bounds_are_refused_and_the_next_works() {
    let server = Server::of(&[("first", 64 * MIB)]);
    let (mut client, _) = server.go("first", false);
    let end = 64 * MIB;
    for (command, flags, at, len, expected) in [
        (command::READ, 0, end, 1, errno::EINVAL),
        (command::READ, 0, 0, (32 << 20) + 1, errno::EINVAL),
        (command::READ, 0, u64::MAX, 512, errno::EINVAL),
        (command::READ, flag::NO_HOLE, 0, 512, errno::EINVAL),
        (command::TRIM, 0, end - 512, 1024, errno::ENOSPC),
        (command::WRITE_ZEROES, 0, end, u32::MAX, errno::ENOSPC),
        (command::WRITE_ZEROES, flag::FAST_ZERO | flag::NO_HOLE, 0, 4096, errno::ENOTSUP),
        (command::WRITE_ZEROES, flag::FAST_ZERO, 0, 64 << 20, 0),
        (command::BLOCK_STATUS, 0, 0, 512, errno::EINVAL),
        (command::READ, 0, 5, 0, 0),
        (command::FLUSH, 0, 0, 0, 0),
        (command::CACHE, 0, 0, 64 << 20, 0),
        (77, 0, 0, 0, errno::EINVAL),
    ] {
        assert_eq!(client.simple(command, flags, at, len, &[]), expected, "{command} {flags} {at} {len}");
    }
    assert_eq!(client.simple(command::WRITE, 0, end - 512, 1024, &[1; 1024]), errno::ENOSPC);
    assert_eq!(client.read(end - 512, 512), [0; 512]);
}

#[test]
fn errors_of_structured_replies_have_a_text() {
    let server = Server::of(&[("first", MIB)]);
    let (mut client, _) = server.go("first", true);
    let cookie = client.request(command::READ, 0, MIB, 512, &[]);
    let chunks = client.chunks(cookie);
    assert_eq!((chunks.len(), chunks[0].kind, &chunks[0].payload[..4]), (1, wire::chunk::ERROR, &errno::EINVAL.to_be_bytes()[..]));
    let text = String::from_utf8(chunks[0].payload[6..].to_vec()).unwrap();
    assert!(text.contains("beyond its end"), "{text}");
}

#[test]
fn requests_under_way_are_answered_before_the_end() {
    let server = Server::of(&[("first", MIB)]);
    let (mut client, _) = server.go("first", false);
    let cookies: Vec<u64> = (0..300_u64).map(|n| client.request(command::WRITE, 0, n * 512, 512, &[n as u8; 512])).collect();
    client.request(command::DISC, 0, 0, 0, &[]);
    let mut answered: Vec<u64> = cookies
        .iter()
        .map(|_| {
            assert_eq!((u32::from_be_bytes(client.take()), u32::from_be_bytes(client.take())), (wire::SIMPLE_REPLY_MAGIC, 0));
            u64::from_be_bytes(client.take())
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, cookies);
    assert!(client.is_closed());
    let (mut client, _) = server.go("first", false);
    assert!((0..300_u64).all(|n| client.read(n * 512, 512) == [n as u8; 512]));
}

#[test]
fn device_is_shared_with_other_doors() {
    let device = Arc::new(MemoryDevice::new("first", MIB));
    let server = Server::start(vec![("first".into(), Arc::clone(&device) as Arc<dyn BlockDevice>)], Options::default());
    futures::executor::block_on(device.write(4096, vec![3; 512].into(), Durability::Cached)).unwrap();
    assert_eq!(server.go("first", false).0.read(4096, 512), [3; 512]);
}
