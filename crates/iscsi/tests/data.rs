//! Data of commands: its ways in and out, digests, wrong numbers, residuals.

use skytether_iscsi::Options;
use skytether_iscsi::pdu::{NO_TAG, flag, opcode};

use crate::initiator::{Initiator, read10, write10};
use crate::serving::serve;

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i / 512) as u8 ^ (i as u8).wrapping_mul(31) ^ seed).collect()
}

#[tokio::test]
async fn writes_arrive_whole_by_all_ways_of_data() {
    let serving = serve(Options::default()).await;
    let digests = [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")];
    let plain = [("HeaderDigest", "None"), ("DataDigest", "None")];
    for (seed, digests) in [plain, digests].into_iter().enumerate() {
        for (i, (initial, burst)) in [("No", "262144"), ("No", "1024"), ("Yes", "65536"), ("No", "16776192")].into_iter().enumerate() {
            let keys = [("InitialR2T", initial), ("MaxBurstLength", burst), ("FirstBurstLength", "65536"), ("MaxOutstandingR2T", "8"), digests[0], digests[1]];
            let mut initiator = Initiator::log_in(serving.address, &keys).await;
            initiator.attend(1).await;
            let first = burst.parse::<usize>().unwrap().min(65_536);
            for length in [512, 4096, 65_536, 1 << 20, 3 << 20] {
                let data = pattern(length, (seed * 16 + i) as u8);
                let ways = match initial {
                    "Yes" => vec![(0, 0), (length.min(first), 0)],
                    _ => vec![(0, 0), (length.min(first), 0), (0, length.min(first)), (length.min(first) / 2, length.min(first) / 2)],
                };
                for (immediate, unasked) in ways {
                    let reply = initiator.write(1, 64, &data, immediate, unasked).await;
                    assert_eq!((reply.header.opcode(), reply.header.0[3], reply.header.flags()), (opcode::RESPONSE, 0, flag::FINAL));
                    let (read, last) = initiator.read(1, 64, (length / 512) as u16).await;
                    assert!(read == data, "{length} bytes, {immediate} with the command, {unasked} unasked");
                    assert!(last.header.has(flag::STATUS), "status comes with the data");
                }
            }
        }
    }
}

#[tokio::test]
async fn reads_keep_to_segments_and_bursts() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[("MaxRecvDataSegmentLength", "1024"), ("MaxBurstLength", "2560")]).await;
    initiator.attend(1).await;
    let data = pattern(8192, 3);
    initiator.write(1, 0, &data, 0, 0).await;
    let header = initiator.command(1, &read10(0, 16), flag::FINAL | flag::READ, 8192);
    initiator.send(header, &[]).await;
    let (mut at, mut number, mut lengths) = (0, 0, Vec::new());
    loop {
        let unit = initiator.receive().await.unwrap();
        assert_eq!((unit.header.u32(36), unit.header.u32(40) as usize), (number, at));
        at += unit.data.len();
        number += 1;
        let last = at == data.len();
        lengths.push(unit.data.len());
        assert_eq!((unit.header.has(flag::FINAL), unit.header.has(flag::STATUS)), (at % 2560 == 0 || last, last));
        if last {
            break;
        }
    }
    assert_eq!(lengths, [1024, 1024, 512, 1024, 1024, 512, 1024, 1024, 512, 512]);
}

#[tokio::test]
async fn damaged_data_fails_its_command_alone() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[("DataDigest", "CRC32C"), ("InitialR2T", "No")]).await;
    initiator.attend(1).await;
    let header = initiator.command(1, &write10(0, 4), flag::WRITE, 2048);
    initiator.send(header, &[]).await;
    let mut wrong = initiator.bytes(initiator.data_out(header.tag(), NO_TAG, 0, 0, false), &[1; 1024]);
    wrong[100] ^= 1;
    tokio::io::AsyncWriteExt::write_all(&mut initiator.stream, &wrong).await.unwrap();
    let rest = initiator.data_out(header.tag(), NO_TAG, 1, 1024, true);
    initiator.send(rest, &[1; 1024]).await;
    let reject = initiator.receive().await.unwrap();
    assert_eq!((reject.header.opcode(), reject.header.0[2], reject.data.len()), (opcode::REJECT, 2, 48));
    let reply = initiator.receive().await.unwrap();
    assert_eq!((reply.header.0[3], reply.sense()), (2, (0x0b, 0x47, 0x05)));
    assert_eq!(initiator.read(1, 0, 4).await.0, [0; 2048]);
}

#[tokio::test]
async fn damaged_headers_and_requests_end_the_session() {
    let serving = serve(Options::default()).await;
    // The byte that is wrong, and whether a rejection tells of it: a header may be of anything.
    for (at, told) in [(40, false), (60, true)] {
        let mut initiator = Initiator::log_in(serving.address, &[("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")]).await;
        initiator.attend(1).await;
        let header = initiator.command(1, &write10(0, 1), flag::FINAL | flag::WRITE, 512);
        let mut wrong = initiator.bytes(header, &[1; 512]);
        wrong[at] ^= 1;
        tokio::io::AsyncWriteExt::write_all(&mut initiator.stream, &wrong).await.unwrap();
        if told {
            assert_eq!(initiator.receive().await.unwrap().header.0[2], 2);
        }
        assert!(initiator.receive().await.is_none());
    }
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    assert_eq!(initiator.read(1, 0, 1).await.0, [0; 512]);
}

#[tokio::test]
async fn data_that_was_not_agreed_on_ends_the_session() {
    let serving = serve(Options::default()).await;
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("FirstBurstLength", "1024")];
    // With the command; announced; more than the first burst; for a command that announced none.
    for case in 0..4 {
        let keys = if case < 2 { &keys[..] } else { &[("InitialR2T", "No"), ("FirstBurstLength", "1024")] };
        let mut initiator = Initiator::log_in(serving.address, keys).await;
        initiator.attend(1).await;
        let last = if case == 1 { 0 } else { flag::FINAL };
        let header = initiator.command(1, &write10(0, 8), last | flag::WRITE, 4096);
        match case {
            0 => initiator.send(header, &[1; 512]).await,
            1 => initiator.send(header, &[]).await,
            2 => initiator.send(header, &[1; 2048]).await,
            _ => {
                initiator.send(header, &[]).await;
                assert_eq!(initiator.receive().await.unwrap().header.opcode(), opcode::READY_TO_TRANSFER);
                let data = initiator.data_out(header.tag(), NO_TAG, 0, 0, true);
                initiator.send(data, &[1; 512]).await;
            }
        }
        let reject = initiator.receive().await.unwrap();
        assert_eq!((reject.header.opcode(), reject.header.0[2]), (opcode::REJECT, 4), "case {case}");
        assert!(initiator.receive().await.is_none());
    }
}

#[tokio::test]
async fn long_segments_end_the_session_before_they_come() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    let mut header = initiator.command(1, &write10(0, 8), flag::FINAL | flag::WRITE, 4096);
    header.set_data_length((256 << 10) + 1);
    tokio::io::AsyncWriteExt::write_all(&mut initiator.stream, &header.0).await.unwrap();
    assert!(initiator.receive().await.is_none());
    let mut initiator = Initiator::connect(serving.address).await;
    let mut header = skytether_iscsi::pdu::Header::new(opcode::LOGIN | 0x40);
    header.set_data_length(8193);
    tokio::io::AsyncWriteExt::write_all(&mut initiator.stream, &header.0).await.unwrap();
    assert!(initiator.receive().await.is_none());
}

#[tokio::test]
async fn wrong_numbers_of_data_fail_the_command() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    // Number, offset, length: one of them is wrong.
    for (number, offset, length, code) in [(1, 0, 1024, (0x4b, 0x00)), (0, 512, 512, (0x4b, 0x05)), (0, 0, 512, (0x4b, 0x05)), (0, 0, 2048, (0x4b, 0x02))] {
        let header = initiator.command(1, &write10(0, 2), flag::FINAL | flag::WRITE, 1024);
        initiator.send(header, &[]).await;
        let ready = initiator.receive().await.unwrap();
        let data = initiator.data_out(header.tag(), ready.header.word5(), number, offset, true);
        initiator.send(data, &vec![1; length]).await;
        let reply = initiator.receive().await.unwrap();
        assert_eq!((reply.header.0[3], reply.sense()), (2, (0x0b, code.0, code.1)), "{number} {offset} {length}");
    }
    assert_eq!(initiator.read(1, 0, 2).await.0, [0; 1024]);
}

#[tokio::test]
async fn residuals_tell_what_was_expected_wrongly() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    let over = flag::OVERFLOW;
    let cases = [
        (flag::READ, 1024, 1536, flag::UNDERFLOW, 512),
        (flag::READ, 1024, 200, over, 824),
        (flag::READ, 1024, 0, over, 1024),
        (flag::WRITE, 1024, 200, over, 824),
        (flag::WRITE, 1024, 0, over, 1024),
        (flag::WRITE, 1024, 4096, flag::UNDERFLOW, 3072),
    ];
    for (way, length, expected, residual, count) in cases {
        let blocks = (length / 512) as u16;
        let cdb = if way == flag::READ { read10(0, blocks) } else { write10(0, blocks) };
        let header = initiator.command(1, &cdb, flag::FINAL | way, expected);
        let data = if way == flag::WRITE { vec![0; expected as usize] } else { Vec::new() };
        initiator.send(header, &data).await;
        let (data, last) = initiator.collect(header.tag()).await;
        let flags = last.header.flags() & (flag::OVERFLOW | flag::UNDERFLOW);
        assert_eq!((flags, last.header.u32(44), last.header.0[3]), (residual, count, 0), "{way:#x} {expected}");
        assert_eq!(data.len() as u32, if way == flag::READ { expected.min(length) } else { 0 });
    }
}

#[tokio::test]
async fn pings_come_back_with_their_data() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    for immediate in [0, 0x40] {
        let mut ping = skytether_iscsi::pdu::Header::new(opcode::NOP_OUT | immediate);
        ping.set_u32(20, NO_TAG);
        let ping = initiator.number(ping);
        initiator.send(ping, b"ping").await;
        let pong = initiator.receive().await.unwrap();
        assert_eq!((pong.header.opcode(), pong.header.tag(), pong.data.as_slice()), (opcode::NOP_IN, ping.tag(), &b"ping"[..]));
        assert_eq!(pong.header.u32(28), initiator.cmd_sn);
    }
}
