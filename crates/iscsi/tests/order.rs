//! The order of commands: their window, commands at the same time, functions that end them.

use std::sync::Arc;

use skytether_iscsi::Options;
use skytether_iscsi::pdu::{Header, NO_TAG, flag, opcode};
use skytether_transport::Limits;
use skytether_volume::BlockDevice;

use crate::initiator::{Initiator, read10, write10};
use crate::serving::{Gated, Serving, serve, serve_volumes};

async fn gated() -> (Arc<Gated>, Serving) {
    let gated = Gated::new();
    let volumes = vec![("gated".to_owned(), Arc::clone(&gated) as Arc<dyn BlockDevice>)];
    (gated, serve_volumes(volumes, Options::default(), Limits::default()).await)
}

async fn ping(initiator: &mut Initiator) {
    let mut ping = Header::new(opcode::NOP_OUT | 0x40);
    ping.set_u32(20, NO_TAG);
    let ping = initiator.number(ping);
    initiator.send(ping, &[]).await;
    let pong = initiator.receive().await.unwrap();
    assert_eq!((pong.header.opcode(), pong.header.tag()), (opcode::NOP_IN, ping.tag()));
}

#[tokio::test]
async fn commands_outside_the_window_are_ignored() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    for number in [initiator.last_sn + 1, initiator.cmd_sn - 1, initiator.cmd_sn + (1 << 31)] {
        let mut header = initiator.command(1, &[0; 6], flag::FINAL, 0);
        initiator.cmd_sn -= 1;
        header.set_u32(24, number);
        initiator.send(header, &[]).await;
    }
    // No answer to those comes before this one.
    ping(&mut initiator).await;
    assert_eq!(initiator.read(1, 0, 1).await.0, [0; 512]);
}

#[tokio::test]
async fn commands_wait_for_those_before_them() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[("InitialR2T", "No")]).await;
    initiator.attend(1).await;
    let first = initiator.command(1, &write10(0, 1), flag::WRITE, 512);
    let second = initiator.command(1, &read10(0, 1), flag::FINAL | flag::READ, 512);
    let mut third = Header::new(opcode::NOP_OUT);
    third.set_u32(20, NO_TAG);
    let third = initiator.number(third);
    initiator.send(third, &[]).await;
    initiator.send(second, &[]).await;
    ping(&mut initiator).await;
    initiator.send(first, &[]).await;
    let mut tags = Vec::new();
    for _ in 0..2 {
        tags.push(initiator.receive().await.unwrap().header.tag());
    }
    assert_eq!(tags, [second.tag(), third.tag()]);
    let data = initiator.data_out(first.tag(), NO_TAG, 0, 0, true);
    initiator.send(data, &[1; 512]).await;
    let reply = initiator.receive().await.unwrap();
    assert_eq!((reply.header.tag(), reply.header.0[3]), (first.tag(), 0));
}

#[tokio::test]
async fn sixty_four_commands_run_at_the_same_time() {
    let (gated, serving) = gated().await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    assert!(initiator.last_sn - initiator.cmd_sn >= 63, "the window has {}", initiator.last_sn - initiator.cmd_sn + 1);
    let mut tags = Vec::new();
    for i in 0..64 {
        let header = initiator.command(1, &read10(i, 1), flag::FINAL | flag::READ, 512);
        initiator.send(header, &[]).await;
        tags.push(header.tag());
    }
    gated.begun.acquire_many(64).await.unwrap().forget();
    ping(&mut initiator).await;
    gated.gate.add_permits(64);
    let mut came = Vec::new();
    for _ in 0..64 {
        came.push(initiator.receive().await.unwrap().header.tag());
    }
    came.sort_unstable();
    assert_eq!(came, tags);
}

#[tokio::test]
async fn an_aborted_command_has_no_response() {
    let (gated, serving) = gated().await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    let header = initiator.command(1, &read10(0, 1), flag::FINAL | flag::READ, 512);
    initiator.send(header, &[]).await;
    gated.begun.acquire().await.unwrap().forget();
    for expected in [0, 1] {
        let tag = initiator.manage(1, 1, header.tag()).await;
        let reply = initiator.receive().await.unwrap();
        assert_eq!((reply.header.opcode(), reply.header.tag(), reply.header.0[2]), (opcode::TASK_MANAGEMENT_RESPONSE, tag, expected));
    }
    // A command whose data has not come is ended as well, and its data is dropped.
    let header = initiator.command(1, &write10(0, 1), flag::FINAL | flag::WRITE, 512);
    initiator.send(header, &[]).await;
    let ready = initiator.receive().await.unwrap();
    initiator.manage(1, 1, header.tag()).await;
    assert_eq!(initiator.receive().await.unwrap().header.0[2], 0);
    let data = initiator.data_out(header.tag(), ready.header.word5(), 0, 0, true);
    initiator.send(data, &[1; 512]).await;
    gated.gate.add_permits(1);
    assert_eq!(initiator.read(1, 0, 1).await.0, [0; 512]);
}

#[tokio::test]
async fn a_reset_ends_the_commands_of_all_sessions() {
    let (gated, serving) = gated().await;
    let mut first = Initiator::log_in(serving.address, &[]).await;
    let mut second = Initiator::log_in_as(serving.address, [0x80, 0, 0, 2, 0, 0], &[]).await.0;
    for initiator in [&mut first, &mut second] {
        initiator.attend(1).await;
        let header = initiator.command(1, &read10(0, 1), flag::FINAL | flag::READ, 512);
        initiator.send(header, &[]).await;
        gated.begun.acquire().await.unwrap().forget();
    }
    let tag = first.manage(5, 1, NO_TAG).await;
    let reply = first.receive().await.unwrap();
    assert_eq!((reply.header.tag(), reply.header.0[2]), (tag, 0));
    // Both learn of it by a unit attention.
    for initiator in [&mut first, &mut second] {
        ping(initiator).await;
        let ready = initiator.command(1, &[0; 6], flag::FINAL, 0);
        initiator.send(ready, &[]).await;
        let reply = initiator.receive().await.unwrap();
        assert_eq!((reply.header.tag(), reply.header.0[3], reply.sense().1), (ready.tag(), 2, 0x29));
    }
    for (function, lun, expected) in [(2, 1, 0), (5, 9, 2), (3, 1, 5), (8, 1, 4)] {
        first.manage(function, lun, NO_TAG).await;
        assert_eq!(first.receive().await.unwrap().header.0[2], expected, "function {function}");
    }
}

#[tokio::test]
async fn a_command_that_never_came_can_be_ended() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    let lost = initiator.command(1, &[0; 6], flag::FINAL, 0);
    let later = initiator.command(1, &[0; 6], flag::FINAL, 0);
    initiator.send(later, &[]).await;
    let mut abort = Header::new(opcode::TASK_MANAGEMENT | 0x40);
    (abort.0[1], abort.0[9]) = (0x81, 1);
    abort.set_u32(20, lost.tag());
    abort.set_u32(32, lost.cmd_sn());
    let abort = initiator.number(abort);
    initiator.send(abort, &[]).await;
    let reply = initiator.receive().await.unwrap();
    assert_eq!((reply.header.tag(), reply.header.0[2]), (abort.tag(), 0));
    assert_eq!(initiator.receive().await.unwrap().header.tag(), later.tag());
}

#[tokio::test]
async fn units_that_have_no_place_are_rejected() {
    let (gated, serving) = gated().await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    initiator.attend(1).await;
    let running = initiator.command(1, &read10(0, 1), flag::FINAL | flag::READ, 512);
    initiator.send(running, &[]).await;
    gated.begun.acquire().await.unwrap().forget();
    let mut twice = initiator.command(1, &read10(0, 1), flag::FINAL | flag::READ, 512);
    twice.set_u32(16, running.tag());
    for (header, reason) in [(twice, 7), (Header::new(opcode::SNACK), 3), (Header::new(0x3e), 5)] {
        initiator.send(header, &[]).await;
        let reject = initiator.receive().await.unwrap();
        assert_eq!((reject.header.opcode(), reject.header.0[2], &reject.data[..]), (opcode::REJECT, reason, &header.0[..]));
    }
    // More immediate commands than are taken: those beyond are rejected, and the session goes on.
    let mut rejected = 0;
    for _ in 0..40 {
        let mut header = initiator.command(1, &read10(0, 1), flag::FINAL | flag::READ, 512);
        header.0[0] |= 0x40;
        initiator.cmd_sn -= 1;
        header.set_u32(24, initiator.cmd_sn);
        initiator.send(header, &[]).await;
    }
    while rejected < 8 {
        let reject = initiator.receive().await.unwrap();
        assert_eq!((reject.header.opcode(), reject.header.0[2]), (opcode::REJECT, 6));
        rejected += 1;
    }
    ping(&mut initiator).await;
}

#[tokio::test]
async fn a_logout_is_answered_and_ends_the_session() {
    let serving = serve(Options::default()).await;
    // Reason, connection, response.
    for (reason, cid, response) in [(0, 5, 0), (1, 0, 0), (1, 5, 1), (2, 0, 2)] {
        let mut initiator = Initiator::log_in(serving.address, &[]).await;
        let mut logout = Header::new(opcode::LOGOUT | 0x40);
        logout.0[1] |= reason;
        logout.set_u16(20, cid);
        let logout = initiator.number(logout);
        initiator.send(logout, &[]).await;
        let reply = initiator.receive().await.unwrap();
        assert_eq!((reply.header.opcode(), reply.header.0[2]), (opcode::LOGOUT_RESPONSE, response));
        if response == 0 {
            assert!(initiator.receive().await.is_none());
        } else {
            ping(&mut initiator).await;
        }
    }
}

#[tokio::test]
async fn a_cold_reset_ends_all_sessions() {
    let serving = serve(Options::default()).await;
    let mut first = Initiator::log_in(serving.address, &[]).await;
    let mut second = Initiator::log_in_as(serving.address, [0x80, 0, 0, 2, 0, 0], &[]).await.0;
    let tag = first.manage(7, 0, NO_TAG).await;
    let reply = first.receive().await.unwrap();
    assert_eq!((reply.header.tag(), reply.header.0[2]), (tag, 0));
    assert!(first.receive().await.is_none() && second.receive().await.is_none());
    let mut again = Initiator::log_in(serving.address, &[]).await;
    again.attend(1).await;
}
