//! Bounds: slow, silent and hostile initiators, memory, shutdown.

use std::sync::Arc;
use std::time::Duration;

use skytether_iscsi::Options;
use skytether_iscsi::pdu::{Header, NO_TAG, flag, opcode};
use skytether_transport::Limits;
use skytether_volume::BlockDevice;
use skytether_volume::memory::MemoryDevice;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::initiator::{Initiator, read10, write10};
use crate::serving::{NAME, SIZE, serve, serve_volumes};

const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_login_that_is_not_finished_ends() {
    let serving = serve(Options { login_time: SHORT, ..Options::default() }).await;
    let mut slow = Initiator::connect(serving.address).await;
    assert_eq!(slow.login(0, 1, false, &[("InitiatorName", "iqn.2024-01.test:i"), ("SessionType", "Discovery")]).await.login_status(), 0);
    assert!(slow.receive().await.is_none());
    let mut half = TcpStream::connect(serving.address).await.unwrap();
    half.write_all(&[0x43; 20]).await.unwrap();
    assert!(half.read_u8().await.is_err());
}

#[tokio::test]
async fn a_thousand_connections_leave_room_for_sessions() {
    let limits = Limits { connections: 64, greeting_time: SHORT, ..Limits::default() };
    let volume = Arc::new(MemoryDevice::new("a", SIZE)) as Arc<dyn BlockDevice>;
    let serving = serve_volumes(vec![("a".to_owned(), volume)], Options { login_time: SHORT, ..Options::default() }, limits).await;
    let mut session = Initiator::log_in(serving.address, &[]).await;
    session.attend(1).await;
    // Half of them are silent, half of them begin a header.
    let mut ended = 0;
    for i in 0..1000 {
        let mut stream = TcpStream::connect(serving.address).await.unwrap();
        if i % 2 == 0 {
            // It may have been closed: there are too many.
            let _ = stream.write_all(&[0x43; 20]).await;
        }
        if i % 100 == 0 {
            assert_eq!(session.read(1, 0, 1).await.0, [0; 512]);
            // Each ends by itself.
            let end = stream.read_u8().await;
            assert!(end.is_err());
            ended += 1;
        }
        tokio::spawn(async move {
            let _ = stream.read_u8().await;
        });
    }
    assert_eq!(ended, 10);
    // A place becomes free as soon as one of them has taken too long.
    let keys = [("InitiatorName", "iqn.2024-01.test:other"), ("TargetName", NAME)];
    loop {
        let mut other = Initiator::connect(serving.address).await;
        other.send_login(1, 3, true, 0, &keys).await;
        if let Some(reply) = other.receive().await {
            other.begin(&reply);
            other.attend(1).await;
            break;
        }
    }
}

#[tokio::test]
async fn silent_initiators_are_probed_and_then_dropped() {
    let serving = serve(Options { probe_after: SHORT, probe_time: SHORT, ..Options::default() }).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    for _ in 0..2 {
        let probe = initiator.receive().await.unwrap();
        assert_eq!((probe.header.opcode(), probe.header.tag()), (opcode::NOP_IN, NO_TAG));
        assert_ne!(probe.header.word5(), NO_TAG);
        let mut answer = Header::new(opcode::NOP_OUT | 0x40);
        answer.set_u32(16, NO_TAG);
        answer.set_u32(20, probe.header.word5());
        answer.set_u32(24, initiator.cmd_sn);
        initiator.send(answer, &[]).await;
    }
    assert_eq!(initiator.receive().await.unwrap().header.opcode(), opcode::NOP_IN);
    assert!(initiator.receive().await.is_none());
}

#[tokio::test]
async fn initiators_that_read_nothing_are_dropped() {
    let options = Options { write_time: SHORT, session_memory: 32 << 20, transfer: 1 << 20, ..Options::default() };
    let serving = serve(options).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    // More than the buffers of the system take.
    while initiator.cmd_sn <= initiator.last_sn {
        let header = initiator.command(1, &read10(0, 2048), flag::FINAL | flag::READ, 1 << 20);
        initiator.send(header, &[]).await;
    }
    // It ends although nothing is read.
    let mut other = Initiator::log_in_as(serving.address, [0x80, 0, 0, 2, 0, 0], &[]).await.0;
    other.attend(1).await;
    loop {
        let mut ping = Header::new(opcode::NOP_OUT | 0x40);
        ping.set_u32(20, NO_TAG);
        let bytes = initiator.bytes(ping, &[]);
        if initiator.stream.write_all(&bytes).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(other.read(1, 0, 1).await.0, [0; 512]);
}

#[tokio::test]
async fn memory_of_a_write_that_stops_is_given_back() {
    let options = Options { transfer_time: SHORT, transfer: 1 << 20, session_memory: 1 << 20, memory: 1 << 20, ..Options::default() };
    let serving = serve(options).await;
    let mut stopped = Initiator::log_in(serving.address, &[]).await;
    let mut other = Initiator::log_in_as(serving.address, [0x80, 0, 0, 2, 0, 0], &[]).await.0;
    stopped.attend(1).await;
    other.attend(1).await;
    let header = stopped.command(1, &write10(0, 2048), flag::FINAL | flag::WRITE, 1 << 20);
    stopped.send(header, &[]).await;
    assert_eq!(stopped.receive().await.unwrap().header.opcode(), opcode::READY_TO_TRANSFER);
    let data = vec![5; 1 << 20];
    assert_eq!(other.write(1, 0, &data, 0, 0).await.header.0[3], 0);
    assert!(stopped.receive().await.is_none());
    assert!(other.read(1, 0, 2048).await.0 == data);
}

#[tokio::test]
async fn more_reads_than_memory_are_all_answered() {
    let options = Options { transfer: 1 << 20, session_memory: 2 << 20, memory: 3 << 20, ..Options::default() };
    let serving = serve(options).await;
    let mut sessions = Vec::new();
    for i in 0..4 {
        let mut initiator = Initiator::log_in_as(serving.address, [0x80, 0, 0, i, 0, 0], &[]).await.0;
        initiator.attend(1).await;
        sessions.push(tokio::spawn(async move {
            let mut tags = Vec::new();
            for _ in 0..32 {
                let header = initiator.command(1, &read10(0, 2048), flag::FINAL | flag::READ, 1 << 20);
                initiator.send(header, &[]).await;
                tags.push(header.tag());
            }
            let mut read = 0;
            for tag in tags {
                read += initiator.collect(tag).await.0.len();
            }
            assert_eq!(read, 32 << 20);
        }));
    }
    for session in sessions {
        session.await.unwrap();
    }
}

#[tokio::test]
async fn commands_above_the_longest_are_refused_without_their_data() {
    let serving = serve(Options { transfer: 1 << 20, ..Options::default() }).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    for (cdb, way) in [(write10(0, 4096), flag::WRITE), (read10(0, 4096), flag::READ)] {
        let header = initiator.command(1, &cdb, flag::FINAL | way, 2 << 20);
        initiator.send(header, &[]).await;
        let reply = initiator.receive().await.unwrap();
        assert_eq!((reply.header.opcode(), reply.header.0[3], reply.sense().0), (opcode::RESPONSE, 2, 5));
    }
}

#[tokio::test]
async fn a_shutdown_asks_initiators_to_log_out() {
    let mut serving = serve(Options::default()).await;
    let mut polite = Initiator::log_in(serving.address, &[]).await;
    let mut deaf = Initiator::log_in_as(serving.address, [0x80, 0, 0, 2, 0, 0], &[]).await.0;
    polite.attend(1).await;
    serving.shutdown.cancel();
    for initiator in [&mut polite, &mut deaf] {
        let event = initiator.receive().await.unwrap();
        assert_eq!((event.header.opcode(), event.header.0[36]), (opcode::ASYNCHRONOUS, 1));
    }
    let logout = polite.number(Header::new(opcode::LOGOUT | 0x40));
    polite.send(logout, &[]).await;
    assert_eq!(polite.receive().await.unwrap().header.opcode(), opcode::LOGOUT_RESPONSE);
    assert!(polite.receive().await.is_none());
    let event = deaf.receive().await.unwrap();
    assert_eq!((event.header.opcode(), event.header.0[36]), (opcode::ASYNCHRONOUS, 3));
    assert!(deaf.receive().await.is_none());
    (&mut serving.ended).await.unwrap().unwrap();
}

/// Units with random headers and data end their own sessions at most.
#[tokio::test]
async fn random_units_do_not_harm_other_sessions() {
    let serving = serve(Options::default()).await;
    let mut good = Initiator::log_in_as(serving.address, [0x80, 0, 0, 2, 0, 0], &[]).await.0;
    good.attend(2).await;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..200 {
        let mut initiator = Initiator::log_in(serving.address, &[("InitialR2T", "No")]).await;
        let (mut reading, mut writing) = initiator.stream.into_split();
        let draining = tokio::spawn(async move {
            let mut bytes = vec![0; 65_536];
            while matches!(reading.read(&mut bytes).await, Ok(n) if n > 0) {}
        });
        for _ in 0..100 {
            let opcodes = [0x00, 0x01, 0x02, 0x04, 0x05, 0x10, 0x40, 0x41, 0x42, 0x44, 0x1c];
            let mut header = Header::new(opcodes[(random() % opcodes.len() as u64) as usize]);
            header.0[1] = random() as u8;
            if header.opcode() == opcode::TASK_MANAGEMENT && header.flags() & 0x7f == 7 {
                // A cold reset, which does end other sessions.
                header.0[1] = 0x86;
            }
            header.0[4] = if random() % 8 == 0 { random() as u8 % 4 } else { 0 };
            header.0[9] = (random() % 3) as u8;
            header.set_u32(16, (random() % 8) as u32);
            header.set_u32(20, if random() % 2 == 0 { NO_TAG } else { (random() % 5000) as u32 });
            header.set_u32(24, initiator.cmd_sn.wrapping_add((random() % 4) as u32));
            initiator.cmd_sn = initiator.cmd_sn.wrapping_add((random() % 2) as u32);
            for at in 32..48 {
                header.0[at] = if random() % 2 == 0 { 0 } else { random() as u8 };
            }
            header.0[32] = [0x28, 0x2a, 0x12, 0x25, 0x41, 0x89, 0x8f, random() as u8][(random() % 8) as usize];
            let length = [0, 0, 0, 1, 512, 4096][(random() % 6) as usize];
            header.set_data_length(length);
            let mut bytes = header.0.to_vec();
            bytes.resize(48 + usize::from(header.0[4]) * 4 + length + skytether_iscsi::pdu::padding(length), random() as u8);
            if writing.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let _ = writing.shutdown().await;
        draining.await.unwrap();
    }
    good.attend(2).await;
}
