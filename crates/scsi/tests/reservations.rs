//! RESERVE, RELEASE, PERSISTENT RESERVE IN and OUT.

use std::sync::Arc;

use futures::FutureExt;
use skytether_common::Kind;
use skytether_scsi::{InitiatorPort, Management, ManagementReply, Nexus, Reply, Target, Transfer, Unit};
use skytether_store::fault::{Fault, Operation, Rule, When};
use skytether_volume::BlockDevice;
use skytether_volume::memory::{MemoryDevice, RecordingDevice};

use crate::bench::{BLOCKS, cdb10, cdb16, command, connect, good, options, run, sense, target, unit as bench_unit};
use crate::kept::{Kept, NOTE};

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const IGNORE: u8 = 6;

/// PERSISTENT RESERVE OUT of unit 0.
async fn out(nexus: &Nexus, action: u8, kind: u8, key: u64, other: u64) -> Reply {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&other.to_be_bytes());
    run(nexus, 0, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], &list).await
}

async fn done(nexus: &Nexus, action: u8, kind: u8, key: u64, other: u64) {
    let reply = out(nexus, action, kind, key, other).await;
    assert_eq!(reply.status, Reply::GOOD, "{reply:02x?}");
}

/// PERSISTENT RESERVE IN of unit 0.
async fn read(nexus: &Nexus, action: u8) -> Vec<u8> {
    good(nexus, &[0x5E, action, 0, 0, 0, 0, 0, 1, 0, 0], b"").await.to_vec()
}

async fn keys(nexus: &Nexus) -> Vec<u64> {
    read(nexus, 0).await[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
}

/// The key and type of the reservation.
async fn reservation(nexus: &Nexus) -> Option<(u64, u8)> {
    let data = read(nexus, 1).await;
    (data.len() > 8).then(|| (u64::from_be_bytes(data[8..16].try_into().unwrap()), data[21]))
}

/// Whether a command of `nexus` gets RESERVATION CONFLICT.
async fn conflicts(nexus: &Nexus, cdb: &[u8], data: &[u8]) -> bool {
    run(nexus, 0, cdb, data).await.status == Reply::RESERVATION_CONFLICT
}

/// The unit attention that waits for `nexus`.
async fn attention(nexus: &Nexus) -> Option<u16> {
    let reply = run(nexus, 0, &[0; 6], b"").await;
    (reply.status == Reply::CHECK_CONDITION).then(|| sense(&reply).1)
}

async fn three() -> (Arc<Target>, [Arc<Nexus>; 3]) {
    let target = target();
    let nexuses = [connect(&target, "a").await, connect(&target, "b").await, connect(&target, "c").await];
    (target, nexuses)
}

/// What each type allows: SPC-4, table 66 for reads and writes.
#[tokio::test]
async fn each_type_excludes_what_the_standard_says() {
    // Type; registered nexus reads, writes; another one reads, writes.
    let table = [
        (1, [true, false, true, false]),
        (3, [false, false, false, false]),
        (5, [true, true, true, false]),
        (6, [true, true, false, false]),
        (7, [true, true, true, false]),
        (8, [true, true, false, false]),
    ];
    for (kind, allowed) in table {
        let (_, [holder, registered, other]) = three().await;
        done(&holder, IGNORE, 0, 0, 1).await;
        done(&registered, REGISTER, 0, 0, 2).await;
        done(&holder, RESERVE, kind, 1, 0).await;
        let shared = kind >= 7;
        assert_eq!(reservation(&other).await, Some((if shared { 0 } else { 1 }, kind)));
        let reads: [&[u8]; 6] = [
            &cdb10(0x28, 0, 0, 1),
            &cdb10(0x2F, 0, 0, 1),
            &[0x1A, 8, 0x3F, 0, 255, 0],
            &cdb10(0x34, 0, 0, 1),
            &cdb16(0x9E, 0x12, 0, 24),
            &[0xA3, 0x0C, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        ];
        let writes: [(&[u8], usize); 8] = [
            (&cdb10(0x2A, 0, 0, 1), 512),
            (&cdb16(0x8A, 0, 0, 1), 512),
            (&cdb10(0x35, 0, 0, 0), 0),
            (&cdb10(0x42, 0, 0, 0), 0),
            (&cdb16(0x93, 0x09, 0, 1), 0),
            (&cdb16(0x89, 0, 0, 1), 1024),
            (&[0x15, 0x10, 0, 0, 0, 0], 0),
            (&[0x1B, 0, 0, 0, 0, 0], 0),
        ];
        for (nexus, [reads_allowed, writes_allowed]) in [(&holder, [true, true]), (&registered, [allowed[0], allowed[1]]), (&other, [allowed[2], allowed[3]])] {
            for cdb in reads {
                assert_eq!(conflicts(nexus, cdb, b"").await, !reads_allowed, "type {kind}: {cdb:02x?}");
            }
            for (cdb, len) in writes {
                assert_eq!(conflicts(nexus, cdb, &vec![0; len]).await, !writes_allowed, "type {kind}: {cdb:02x?}");
            }
            // A holder that stopped the unit starts it again, as each may.
            for free in [&[0x1B, 0, 0, 0, 1, 0][..], &[0; 6], &[0x12, 0, 0, 0, 36, 0], &cdb10(0x25, 0, 0, 0), &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0]] {
                assert!(!conflicts(nexus, free, b"").await, "type {kind}: {free:02x?}");
            }
        }
    }
}

/// Who holds the reservation after a registration ended, and who is told.
#[tokio::test]
async fn a_reservation_ends_with_its_last_holder() {
    for (kind, remains, told) in [(1, false, false), (3, false, false), (5, false, true), (6, false, true), (7, true, false), (8, true, false)] {
        let (_, [holder, registered, _]) = three().await;
        done(&holder, IGNORE, 0, 0, 1).await;
        done(&registered, IGNORE, 0, 0, 2).await;
        done(&holder, RESERVE, kind, 1, 0).await;
        done(&holder, REGISTER, 0, 1, 0).await;
        assert_eq!(reservation(&holder).await.is_some(), remains, "type {kind}");
        // RESERVATIONS RELEASED.
        assert_eq!(attention(&registered).await, told.then_some(0x2A04), "type {kind}");
        done(&registered, REGISTER, 0, 2, 0).await;
        assert_eq!((reservation(&holder).await, keys(&holder).await), (None, vec![]));
    }
}

#[tokio::test]
async fn keys_decide_about_registrations() {
    let (_, [a, b, _]) = three().await;
    assert_eq!(out(&a, REGISTER, 0, 5, 6).await.status, Reply::RESERVATION_CONFLICT);
    done(&a, REGISTER, 0, 0, 0).await;
    done(&a, REGISTER, 0, 0, 5).await;
    assert_eq!(out(&a, REGISTER, 0, 0, 6).await.status, Reply::RESERVATION_CONFLICT);
    done(&a, REGISTER, 0, 5, 6).await;
    done(&b, IGNORE, 0, 99, 7).await;
    assert_eq!((keys(&b).await, read(&b, 0).await[..8].to_vec()), (vec![6, 7], vec![0, 0, 0, 3, 0, 0, 0, 16]));
    // Others than registered nexuses can do nothing.
    for action in [RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT_AND_ABORT] {
        assert_eq!(out(&a, action, 1, 7, 7).await.status, Reply::RESERVATION_CONFLICT, "{action}");
    }
    done(&a, RESERVE, 1, 6, 0).await;
    done(&a, RESERVE, 1, 6, 0).await;
    for (nexus, kind, key) in [(&a, 3, 6), (&b, 1, 7)] {
        assert_eq!(out(nexus, RESERVE, kind, key, 0).await.status, Reply::RESERVATION_CONFLICT);
    }
    assert_eq!(sense(&out(&a, RELEASE, 3, 6, 0).await), (5, 0x2604));
    done(&b, RELEASE, 1, 7, 0).await;
    assert_eq!(reservation(&b).await, Some((6, 1)));
    done(&a, RELEASE, 1, 6, 0).await;
    assert_eq!((reservation(&b).await, attention(&b).await), (None, None));
    // RESERVE and RELEASE don't count as generations.
    assert_eq!(read(&b, 1).await, [0, 0, 0, 3, 0, 0, 0, 0]);
    done(&a, CLEAR, 0, 6, 0).await;
    assert_eq!((attention(&b).await, keys(&b).await), (Some(0x2A03), vec![]));
}

#[tokio::test]
async fn a_release_tells_registrants_of_their_types() {
    for (kind, told) in [(1, None), (3, None), (5, Some(0x2A04)), (6, Some(0x2A04)), (7, Some(0x2A04)), (8, Some(0x2A04))] {
        let (_, [holder, registered, other]) = three().await;
        done(&holder, IGNORE, 0, 0, 1).await;
        done(&registered, IGNORE, 0, 0, 2).await;
        done(&holder, RESERVE, kind, 1, 0).await;
        done(&holder, RELEASE, kind, 1, 0).await;
        assert_eq!((attention(&holder).await, attention(&registered).await, attention(&other).await), (None, told, None), "type {kind}");
    }
}

#[tokio::test]
async fn a_preempt_takes_registrations_and_the_reservation() {
    let (_, [a, b, c]) = three().await;
    for (nexus, key) in [(&a, 1), (&b, 2), (&c, 3)] {
        done(nexus, IGNORE, 0, 0, key).await;
    }
    // Without a reservation, registrations alone.
    done(&b, PREEMPT, 1, 2, 3).await;
    assert_eq!((keys(&b).await, reservation(&b).await, attention(&c).await), (vec![1, 2], None, Some(0x2A05)));
    assert_eq!(out(&b, PREEMPT, 1, 2, 3).await.status, Reply::RESERVATION_CONFLICT);
    assert_eq!(sense(&out(&b, PREEMPT, 1, 2, 0).await), (5, 0x2600));
    done(&c, IGNORE, 0, 0, 3).await;
    done(&a, RESERVE, 5, 1, 0).await;
    // The holder's key: its reservation becomes one of another type, which c is told.
    done(&b, PREEMPT, 3, 2, 1).await;
    assert_eq!((keys(&b).await, reservation(&b).await), (vec![2, 3], Some((2, 3))));
    assert_eq!((attention(&a).await, attention(&b).await, attention(&c).await), (Some(0x2A05), None, Some(0x2A04)));
    assert_eq!(read(&b, 0).await[..4], [0, 0, 0, 6]);
    // Of all registrants: a key of zero takes all.
    done(&b, RELEASE, 3, 2, 0).await;
    done(&b, RESERVE, 8, 2, 0).await;
    done(&c, PREEMPT, 1, 3, 0).await;
    assert_eq!((attention(&b).await, keys(&b).await, reservation(&b).await), (Some(0x2A05), vec![3], Some((3, 1))));
}

#[tokio::test]
async fn what_is_not_supported_is_refused() {
    // A device that keeps nothing for doors.
    let device = Arc::new(RecordingDevice::new("v", BLOCKS * 512));
    let a = connect(&Target::new(vec![Unit { lun: 0, device, exec: None }], options()), "a").await;
    let caps = read(&a, 2).await;
    assert_eq!(caps, [0, 8, 0x10, 0x90, 0xEA, 0x01, 0, 0]);
    for flag in [0x01, 0x04, 0x08] {
        let mut list = [0; 24];
        (list[15], list[20]) = (1, flag);
        let reply = run(&a, 0, &[0x5F, REGISTER, 0, 0, 0, 0, 0, 0, 24, 0], &list).await;
        assert_eq!((sense(&reply), &reply.sense[15..18]), ((5, 0x2600), &[0x80, 0, 20][..]));
    }
    assert_eq!(sense(&run(&a, 0, &[0x5F, REGISTER, 0, 0, 0, 0, 0, 0, 23, 0], &[0; 23]).await), (5, 0x1A00));
    done(&a, REGISTER, 0, 0, 1).await;
    // A type and a scope that do not exist.
    for kind in [0x00, 0x02, 0x04, 0x11] {
        assert_eq!(sense(&out(&a, RESERVE, kind, 1, 0).await), (5, 0x2400));
    }
    assert_eq!(a.transfer(0, &command(0, &[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], b"").cdb), Transfer::Out(24));
}

/// A target after a loss of power, over the device that the one before had.
async fn after_power_loss(device: &Arc<MemoryDevice>) -> Arc<Target> {
    let target = Target::new(vec![Unit { lun: 0, device: device.clone(), exec: None }], options());
    target.restore().await;
    target
}

/// REGISTER AND IGNORE EXISTING KEY, with APTPL or without.
async fn register(nexus: &Nexus, key: u64, keeps: bool) {
    let mut list = [0; 24];
    list[8..16].copy_from_slice(&key.to_be_bytes());
    list[20] = u8::from(keeps);
    good(nexus, &[0x5F, IGNORE, 0, 0, 0, 0, 0, 0, 24, 0], &list).await;
}

/// What APTPL asked for is there after each change; without it nothing is.
#[tokio::test]
async fn reservations_outlive_a_loss_of_power_if_asked() {
    let device = Arc::new(MemoryDevice::new("v", BLOCKS * 512));
    let target = after_power_loss(&device).await;
    let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
    assert_eq!(read(&a, 2).await, [0, 8, 0x11, 0x90, 0xEA, 0x01, 0, 0]);
    register(&a, 1, true).await;
    assert_eq!(read(&a, 2).await[2..4], [0x11, 0x91]);
    register(&b, 2, true).await;
    done(&a, RESERVE, 3, 1, 0).await;
    let generation = read(&a, 0).await[..4].to_vec();

    let target = after_power_loss(&device).await;
    let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
    assert_eq!((keys(&a).await, reservation(&a).await, read(&a, 0).await[..4].to_vec()), (vec![1, 2], Some((1, 3)), generation));
    assert!(conflicts(&b, &cdb10(0x28, 0, 0, 1), b"").await && !conflicts(&a, &cdb10(0x28, 0, 0, 1), b"").await);
    done(&b, PREEMPT, 5, 2, 1).await;

    let target = after_power_loss(&device).await;
    let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
    assert_eq!((keys(&b).await, reservation(&b).await), (vec![2], Some((2, 5))));
    assert!(conflicts(&a, &cdb10(0x2A, 0, 0, 1), &[0; 512]).await);
    // It moves to a port, and is kept as the command says.
    let id = b"iqn.2026-11.com.example:c,i,0x800000000001\0\0";
    let mut list = vec![0; 24];
    (list[7], list[15], list[17], list[19]) = (2, 9, 0x01, 1);
    list[20..24].copy_from_slice(&(4 + id.len() as u32).to_be_bytes());
    list.extend([0x45, 0, 0, id.len() as u8]);
    list.extend(id);
    good(&b, &[0x5F, 7, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list).await;

    let target = after_power_loss(&device).await;
    let c = connect(&target, "c").await;
    assert_eq!((keys(&c).await, reservation(&c).await), (vec![2, 9], Some((9, 5))));
    // One that registers without APTPL ends it.
    register(&c, 9, false).await;
    assert_eq!(read(&c, 2).await[2..4], [0x11, 0x90]);
    let target = after_power_loss(&device).await;
    let c = connect(&target, "c").await;
    assert_eq!((keys(&c).await, reservation(&c).await), (vec![], None));
    assert!(device.note("reservations").await.unwrap().is_none());
}

/// The reply to INQUIRY, and those to commands that need the unit.
async fn refusals(nexus: &Nexus) -> (u8, Vec<(u8, u16)>) {
    let mut refused = Vec::new();
    let register = {
        let mut list = [0; 24];
        (list[15], list[20]) = (5, 1);
        list
    };
    let commands: [(&[u8], &[u8]); 5] = [
        (&[0; 6], b""),
        (&cdb10(0x28, 0, 0, 1), b""),
        (&cdb10(0x2A, 0, 0, 1), &[0; 512]),
        (&[0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0], b""),
        (&[0x5F, IGNORE, 0, 0, 0, 0, 0, 0, 24, 0], &register),
    ];
    for (cdb, data) in commands {
        refused.push(sense(&run(nexus, 0, cdb, data).await));
    }
    (run(nexus, 0, &[0x12, 0, 0, 0, 36, 0], b"").await.status, refused)
}

/// Reservations may be there that can't be read: an initiator that they fence off must not get in.
#[tokio::test]
async fn a_unit_with_an_unreadable_note_is_not_served() {
    let device = Arc::new(MemoryDevice::new("v", BLOCKS * 512));
    device.keep_note("reservations", Some(b"\x01\0\0".to_vec().into())).await.unwrap();
    let target = Target::new(vec![Unit { lun: 0, device: device.clone(), exec: None }, bench_unit(1)], options());
    let errors = target.restore().await;
    assert_eq!((errors.len(), errors[0].kind()), (1, Kind::Corrupt));
    for part in ["volume v", "note reservations", "skytether volume forget-reservations v", "in no form"] {
        assert!(errors[0].report().contains(part), "{}", errors[0].report());
    }
    let a = target.connect(InitiatorPort { name: "a".into(), target_port: 1 });
    assert_eq!(refusals(&a).await, (Reply::GOOD, vec![(2, 0x0403); 5]));
    // The other unit is served.
    assert_eq!(sense(&run(&a, 1, &[0; 6], b"").await), (6, 0x2900));
    assert_eq!(run(&a, 1, &cdb10(0x28, 0, 0, 1), b"").await.status, Reply::GOOD);
    // The note stays as it is.
    assert_eq!(device.note("reservations").await.unwrap().unwrap(), &b"\x01\0\0"[..]);
    // An operator gives it up.
    device.keep_note("reservations", None).await.unwrap();
    assert_eq!(attention(&a).await, Some(0x2900));
    assert!(keys(&a).await.is_empty() && !conflicts(&a, &cdb10(0x2A, 0, 0, 1), &[0; 512]).await);
}

/// A drive that does not answer for a while: initiators try again, and find what was reserved.
#[tokio::test]
async fn a_note_that_is_away_for_a_while_is_read_later() {
    let drive = Kept::new().await;
    let target = drive.target().await;
    let a = connect(&target, "a").await;
    register(&a, 1, true).await;
    done(&a, RESERVE, 3, 1, 0).await;
    drive.store.add(Rule::new(Operation::Get, When::From(1), Fault::Fail(Kind::Unavailable)).under(NOTE));
    let target = drive.target().await;
    assert_eq!(target.restore().await[0].kind(), Kind::Unavailable);
    let b = target.connect(InitiatorPort { name: "b".into(), target_port: 1 });
    assert_eq!(refusals(&b).await, (Reply::GOOD, vec![(0xB, 0x4400); 5]));
    drive.store.heal();
    assert_eq!(attention(&b).await, Some(0x2900));
    assert!(conflicts(&b, &cdb10(0x28, 0, 0, 1), b"").await);
    // Damage of its bytes is no loss of an answer.
    drive.store.add(Rule::new(Operation::Get, When::From(1), Fault::Corrupt).under(NOTE));
    let b = drive.target().await.connect(InitiatorPort { name: "b".into(), target_port: 1 });
    assert_eq!(refusals(&b).await, (Reply::GOOD, vec![(2, 0x0403); 5]));
}

/// What a nexus sees: the keys, and the reservation.
type Seen = (Vec<u64>, Option<(u64, u8)>);

async fn seen(nexus: &Nexus) -> Seen {
    (keys(nexus).await, reservation(nexus).await)
}

/// REGISTER AND IGNORE EXISTING KEY with APTPL, as a CDB and its data.
fn registering(key: u8) -> ([u8; 10], [u8; 24]) {
    let mut list = [0; 24];
    (list[15], list[20]) = (key, 1);
    ([0x5F, IGNORE, 0, 0, 0, 0, 0, 0, 24, 0], list)
}

/// A registration that is not written, or is and its answer lost, is there neither before a restart nor after it.
#[tokio::test]
async fn a_change_that_failed_is_not_there_after_a_restart() {
    for fault in [Fault::Fail(Kind::Unavailable), Fault::FailAfter(Kind::Unavailable), Fault::FailAfter(Kind::Internal), Fault::Fail(Kind::Exhausted)] {
        for keeps in [true, false] {
            let drive = Kept::new().await;
            let target = drive.target().await;
            let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
            register(&a, 1, keeps).await;
            done(&a, RESERVE, 3, 1, 0).await;
            drive.store.add(Rule::new(Operation::Apply, When::Nth(1), fault).under(NOTE));
            let (cdb, list) = registering(2);
            let failed = run(&b, 0, &cdb, &list).await;
            assert_eq!((failed.status, drive.store.injected()), (Reply::CHECK_CONDITION, 1), "{fault:?}");
            let before: Seen = (vec![1], Some((1, 3)));
            assert_eq!(seen(&a).await, before, "{fault:?}");
            assert!(conflicts(&b, &cdb10(0x28, 0, 0, 1), b"").await);
            let target = drive.target().await;
            let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
            assert_eq!(seen(&a).await, if keeps { before } else { (vec![], None) }, "{fault:?}");
            // It is done when it is asked for again.
            register(&b, 2, true).await;
            let target = drive.target().await;
            assert!(keys(&*connect(&target, "b").await).await.ends_with(&[2]));
        }
    }
}

/// Where the note can't be written back either, the unit waits for that.
#[tokio::test]
async fn a_unit_with_an_unknown_note_is_not_served() {
    let drive = Kept::new().await;
    let target = drive.target().await;
    let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
    register(&a, 1, true).await;
    done(&a, RESERVE, 3, 1, 0).await;
    drive.store.add(Rule::new(Operation::Apply, When::Nth(1), Fault::FailAfter(Kind::Unavailable)).under(NOTE));
    drive.store.add(Rule::new(Operation::Apply, When::From(2), Fault::Fail(Kind::Unavailable)).under(NOTE));
    assert_eq!(sense(&out(&a, RELEASE, 3, 1, 0).await), (0xB, 0x4400));
    for nexus in [&a, &b] {
        assert_eq!(refusals(nexus).await, (Reply::GOOD, vec![(0xB, 0x4400); 5]));
    }
    drive.store.heal();
    assert_eq!(seen(&b).await, (vec![1], Some((1, 3))));
    assert!(conflicts(&b, &cdb10(0x28, 0, 0, 1), b"").await);
    let target = drive.target().await;
    assert_eq!(seen(&*connect(&target, "a").await).await, (vec![1], Some((1, 3))));
}

/// The process ends at each write of a note, before or after it is made, or after the one before was written back: what
/// was acknowledged is there at the next start, and the change under way is whole or not there.
#[tokio::test]
async fn a_crash_at_any_write_keeps_what_was_acknowledged() {
    /// Steps of two nexuses, and what is seen after each.
    const STEPS: [(usize, [u8; 4], Option<(u64, u8)>); 6] = [
        (0, [IGNORE, 0, 0, 1], None),
        (1, [IGNORE, 0, 0, 2], None),
        (0, [RESERVE, 3, 1, 0], Some((1, 3))),
        (1, [PREEMPT, 5, 2, 1], Some((2, 5))),
        (0, [IGNORE, 0, 0, 3], Some((2, 5))),
        (1, [RELEASE, 5, 2, 0], None),
    ];
    let keys_after: [&[u64]; 7] = [&[], &[1], &[1, 2], &[1, 2], &[2], &[3, 2], &[3, 2]];
    let after = |done: usize| (keys_after[done].to_vec(), done.checked_sub(1).and_then(|last| STEPS[last].2));
    for crash in 1..=STEPS.len() {
        for (first, then) in [(false, false), (true, false), (true, true)] {
            let fault = |made: bool| if made { Fault::FailAfter(Kind::Unavailable) } else { Fault::Fail(Kind::Unavailable) };
            let drive = Kept::new().await;
            drive.store.add(Rule::new(Operation::Apply, When::Nth(crash as u64), fault(first)).under(NOTE));
            drive.store.add(Rule::new(Operation::Apply, When::From(crash as u64 + 1), fault(then)).under(NOTE));
            let target = drive.target().await;
            let nexuses = [connect(&target, "a").await, connect(&target, "b").await];
            let mut acknowledged = 0;
            for (who, [action, kind, key, other], _) in STEPS {
                let mut list = [0; 24];
                (list[7], list[15], list[20]) = (key, other, 1);
                let reply = run(&nexuses[who], 0, &[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], &list).await;
                if reply.status != Reply::GOOD {
                    break;
                }
                acknowledged += 1;
                for nexus in &nexuses {
                    attention(nexus).await;
                }
            }
            assert_eq!(acknowledged, crash - 1);
            drive.store.heal();
            let target = drive.target().await;
            let found = seen(&*connect(&target, "c").await).await;
            // The one before is written back where that can be done.
            let expected = if first && !then { crash } else { crash - 1 };
            assert_eq!(found, after(expected), "crash {crash}, {first} {then}");
        }
    }
}

/// A command whose session is lost, or that is aborted, is carried out whole: memory and note stay the same.
#[tokio::test]
async fn a_reservation_that_is_cut_off_is_made_whole() {
    let drive = Kept::new().await;
    let target = drive.target().await;
    let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
    let (cdb, list) = registering(1);
    assert!(a.execute(command(0, &cdb, &list)).now_or_never().is_none());
    a.lost();
    drop(a);
    register(&b, 2, true).await;
    assert_eq!(seen(&b).await.0, [1, 2]);
    let (cdb, list) = registering(3);
    let abort = Management::AbortTask { lun: 0, tag: 1 };
    let (reply, ended) = tokio::join!(b.execute(command(0, &cdb, &list)), b.manage(abort));
    assert!(reply.is_aborted() && ended == ManagementReply::Complete);
    assert_eq!(seen(&b).await.0, [1, 3]);
    let target = drive.target().await;
    assert_eq!(seen(&*connect(&target, "b").await).await.0, [1, 3]);
}

#[tokio::test]
async fn registrations_outlive_nexuses_and_resets() {
    let (target, [a, b, _]) = three().await;
    done(&a, IGNORE, 0, 0, 1).await;
    done(&a, RESERVE, 3, 1, 0).await;
    drop(a);
    assert!(conflicts(&b, &cdb10(0x28, 0, 0, 1), b"").await);
    b.manage(Management::LunReset { lun: 0 }).await;
    assert_eq!(attention(&b).await, Some(0x2903));
    assert_eq!(reservation(&b).await, Some((1, 3)));
    // The same port again, in other letters.
    let again = target.connect(InitiatorPort { name: "IQN.2026-11.com.example:a,i,0x800000000001".into(), target_port: 1 });
    assert_eq!(attention(&again).await, Some(0x2900));
    assert!(!conflicts(&again, &cdb10(0x28, 0, 0, 1), b"").await);
    // The same initiator at another port is another nexus.
    let other_port = target.connect(InitiatorPort { name: "iqn.2026-11.com.example:a,i,0x800000000001".into(), target_port: 2 });
    assert_eq!(attention(&other_port).await, Some(0x2900));
    assert!(conflicts(&other_port, &cdb10(0x28, 0, 0, 1), b"").await);
}

#[tokio::test]
async fn full_status_names_ports_and_holders() {
    let (_, [a, b, _]) = three().await;
    done(&a, IGNORE, 0, 0, 1).await;
    done(&b, IGNORE, 0, 0, 2).await;
    done(&b, RESERVE, 1, 2, 0).await;
    let data = read(&a, 3).await;
    let name = b"iqn.2026-11.com.example:a,i,0x800000000001";
    let id = [&[0x45, 0, 0, 44][..], name, &[0, 0]].concat();
    let first = [&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 48][..], &id].concat();
    assert_eq!(data[..8], [0, 0, 0, 2, 0, 0, 0, 144]);
    assert_eq!(data[8..80], first);
    assert_eq!((data[80 + 7], data[80 + 12], data[80 + 13]), (2, 1, 1));
}

#[tokio::test]
async fn a_reservation_moves_to_a_named_port() {
    let (target, [a, b, _]) = three().await;
    done(&a, IGNORE, 0, 0, 1).await;
    let name = b"iqn.2026-11.com.example:b,i,0x800000000001";
    let mut list = vec![0; 24];
    (list[7], list[15], list[17], list[19], list[23]) = (1, 9, 2, 1, 48);
    list.extend_from_slice(&[0x45, 0, 0, 44]);
    list.extend_from_slice(name);
    list.extend_from_slice(&[0, 0]);
    let cdb = [0x5F, 7, 0, 0, 0, 0, 0, 0, 72, 0];
    // Only a holder can move it.
    assert_eq!(run(&a, 0, &cdb, &list).await.status, Reply::RESERVATION_CONFLICT);
    done(&a, RESERVE, 3, 1, 0).await;
    good(&a, &cdb, &list).await;
    // UNREG: the key of a is gone.
    assert_eq!((keys(&a).await, reservation(&a).await), (vec![9], Some((9, 3))));
    assert!(conflicts(&a, &cdb10(0x28, 0, 0, 1), b"").await && !conflicts(&b, &cdb10(0x28, 0, 0, 1), b"").await);
    drop(target);
}

#[tokio::test]
async fn reserve_excludes_others_until_released() {
    let (target, [a, b, c]) = three().await;
    let (reserve, release) = ([0x16, 0, 0, 0, 0, 0], [0x17, 0, 0, 0, 0, 0]);
    good(&a, &reserve, b"").await;
    good(&a, &reserve, b"").await;
    let excluded: [&[u8]; 6] =
        [&reserve, &[0; 6], &cdb10(0x28, 0, 0, 1), &[0x1A, 8, 0x3F, 0, 255, 0], &[0x5E, 0, 0, 0, 0, 0, 0, 1, 0, 0], &cdb10(0x25, 0, 0, 0)];
    for cdb in excluded {
        assert!(conflicts(&b, cdb, b"").await, "{cdb:02x?}");
    }
    for cdb in [&[0x12, 0, 0, 0, 36, 0][..], &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[0x03, 0, 0, 0, 18, 0], &release] {
        assert!(!conflicts(&b, cdb, b"").await, "{cdb:02x?}");
    }
    assert!(conflicts(&b, &reserve, b"").await);
    assert_eq!(sense(&run(&a, 0, &[0x16, 0x10, 0, 0, 0, 0], b"").await), (5, 0x2400));
    good(&a, &release, b"").await;
    good(&b, &reserve, b"").await;
    // It goes with the nexus, and with a reset.
    b.lost();
    good(&a, &reserve, b"").await;
    c.manage(Management::TargetWarmReset).await;
    assert_eq!(attention(&c).await, Some(0x2902));
    good(&c, &reserve, b"").await;
    drop(target);
}

/// SPC-3, 5.6.3.
#[tokio::test]
async fn reserve_yields_to_persistent_reservations() {
    let (_, [a, b, _]) = three().await;
    done(&a, IGNORE, 0, 0, 1).await;
    let reserve = [0x16, 0, 0, 0, 0, 0];
    assert!(conflicts(&a, &reserve, b"").await && conflicts(&b, &reserve, b"").await);
    done(&a, RESERVE, 3, 1, 0).await;
    good(&a, &reserve, b"").await;
    good(&a, &[0x17, 0, 0, 0, 0, 0], b"").await;
    assert!(conflicts(&b, &reserve, b"").await);
}
