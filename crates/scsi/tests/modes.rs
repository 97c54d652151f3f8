//! MODE SENSE and MODE SELECT.

use skytether_scsi::{Target, Transfer};

use crate::bench::{alone, bad, cdb10, cdb16, command, connect, good, run, sense, target};

const INVALID_CDB: (u8, u16) = (5, 0x2400);

fn sense6(control: u8, page: u8) -> [u8; 6] {
    [0x1A, 0x08, control << 6 | page, 0, 255, 0]
}

/// MODE SELECT(6) of one page.
fn select6(page: &[u8]) -> ([u8; 6], Vec<u8>) {
    let list = [&[0; 4], page].concat();
    ([0x15, 0x10, 0, 0, list.len() as u8, 0], list)
}

const CONTROL: [u8; 12] = [0x0A, 0x0A, 0, 0x10, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0];

#[tokio::test]
async fn pages_come_with_a_header_and_a_block_descriptor() {
    let nexus = alone().await;
    let caching = [0x08, 0x12, 0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let exceptions = [0x1C, 0x0A, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let pages = [&caching[..], &CONTROL, &exceptions].concat();
    let short = [&[55, 0, 0x10, 8][..], &[0, 1, 0, 0, 0, 0, 2, 0], &pages].concat();
    assert_eq!(good(&nexus, &[0x1A, 0, 0x3F, 0, 255, 0], b"").await, short);
    assert_eq!(good(&nexus, &[0x1A, 0, 0x3F, 0, 4, 0], b"").await, short[..4]);
    // LLBAA: the long descriptor.
    let long = [&[0, 66, 0, 0x10, 1, 0, 0, 16][..], &[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0], &pages].concat();
    assert_eq!(good(&nexus, &cdb10(0x5A, 0x10, 0x3F00_0000, 255), b"").await, long);
    assert_eq!(good(&nexus, &sense6(0, 0x0A), b"").await, [&[15, 0, 0x10, 0][..], &CONTROL].concat());
    // Changeable: WCE; D_SENSE and SWP.
    assert_eq!(good(&nexus, &sense6(1, 0x08), b"").await[4..8], [0x08, 0x12, 0x04, 0]);
    assert_eq!(good(&nexus, &sense6(1, 0x0A), b"").await[4..], [0x0A, 0x0A, 4, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bad(&nexus, &sense6(3, 0x0A), b"").await, (5, 0x3900));
    assert_eq!(bad(&nexus, &sense6(0, 0x02), b"").await, INVALID_CDB);
    assert_eq!(nexus.transfer(0, &command(0, &cdb10(0x5A, 0, 0, 300), b"").cdb), Transfer::In(300));
}

#[tokio::test]
async fn software_write_protection_refuses_all_changes() {
    let target: std::sync::Arc<Target> = target();
    let (nexus, other) = (connect(&target, "a").await, connect(&target, "b").await);
    let mut page = CONTROL;
    page[4] = 0x08;
    let (cdb, list) = select6(&page);
    assert_eq!(nexus.transfer(0, &command(0, &cdb, b"").cdb), Transfer::Out(16));
    good(&nexus, &cdb, &list).await;
    // All others are told.
    assert_eq!(bad(&other, &[0; 6], b"").await, (6, 0x2A01));
    good(&other, &[0; 6], b"").await;
    let writes: [(&[u8], usize); 9] = [
        (&cdb10(0x2A, 0, 0, 1), 512),
        (&cdb10(0x2E, 0, 0, 1), 512),
        (&cdb10(0x41, 0, 0, 1), 512),
        (&cdb10(0x42, 0, 0, 8), 8),
        (&cdb10(0x48, 0x02, 0, 0), 0),
        (&cdb16(0x89, 0, 0, 1), 1024),
        (&cdb16(0x8B, 0, 0, 1), 512),
        (&cdb16(0x93, 0x01, 0, 1), 0),
        (&cdb16(0x9C, 0, 0, 0), 0),
    ];
    for (cdb, len) in writes {
        assert_eq!(bad(&other, cdb, &vec![0; len]).await, (7, 0x2702), "{cdb:02x?}");
    }
    good(&other, &cdb10(0x28, 0, 0, 1), b"").await;
    assert_eq!(good(&other, &sense6(0, 0x0A), b"").await[2], 0x90);
    let (cdb, list) = select6(&CONTROL);
    good(&other, &cdb, &list).await;
    assert_eq!(bad(&nexus, &cdb10(0x2A, 0, 0, 1), &[0; 512]).await, (6, 0x2A01));
    good(&nexus, &cdb10(0x2A, 0, 0, 1), &[0; 512]).await;
}

#[tokio::test]
async fn descriptor_sense_has_room_for_large_places() {
    let nexus = alone().await;
    let mut page = CONTROL;
    page[2] = 0x04;
    let (cdb, list) = select6(&page);
    good(&nexus, &cdb, &list).await;
    let reply = run(&nexus, 0, &cdb16(0x88, 0, 1 << 40, 1), b"").await;
    assert_eq!(reply.sense[..], [0x72, 5, 0x21, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    let reply = run(&nexus, 0, &cdb10(0x28, 0x20, 0, 1), b"").await;
    assert_eq!(reply.sense[..], [0x72, 5, 0x24, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0xCF, 0, 1, 0]);
}

#[tokio::test]
async fn the_write_cache_can_be_turned_off() {
    let nexus = alone().await;
    let mut page = vec![0; 20];
    (page[0], page[1]) = (0x08, 0x12);
    let (cdb, list) = select6(&page);
    good(&nexus, &cdb, &list).await;
    assert_eq!(good(&nexus, &sense6(0, 0x08), b"").await[6], 0);
    assert_eq!(good(&nexus, &sense6(2, 0x08), b"").await[6], 4);
    good(&nexus, &cdb10(0x2A, 0, 0, 1), &[1; 512]).await;
}

#[tokio::test]
async fn wrong_mode_parameters_change_nothing() {
    let nexus = alone().await;
    let parameter = (5, 0x2600);
    let mut fixed = CONTROL;
    fixed[3] = 0;
    let (cdb, list) = select6(&fixed);
    let reply = run(&nexus, 0, &cdb, &list).await;
    // Byte 7 of the parameter list.
    assert_eq!((sense(&reply), &reply.sense[15..18]), (parameter, &[0x80, 0, 7][..]));
    let (cdb, list) = select6(&[0x19, 2, 0, 0]);
    assert_eq!(bad(&nexus, &cdb, &list).await, parameter);
    let (cdb, list) = select6(&CONTROL[..6]);
    assert_eq!(bad(&nexus, &cdb, &list).await, (5, 0x1A00));
    let (mut cdb, list) = select6(&CONTROL);
    // SP, and no PF.
    (cdb[1], cdb[4]) = (0x11, 16);
    assert_eq!(bad(&nexus, &cdb, &list).await, INVALID_CDB);
    cdb[1] = 0;
    assert_eq!(bad(&nexus, &cdb, &list).await, INVALID_CDB);
    // A block descriptor of another length.
    let list = [&[0, 0, 0, 8][..], &[0, 0, 0, 0, 0, 0, 0x10, 0], &CONTROL].concat();
    assert_eq!(bad(&nexus, &[0x15, 0x10, 0, 0, list.len() as u8, 0], &list).await, parameter);
    good(&nexus, &[0x15, 0x10, 0, 0, 0, 0], b"").await;
}
