//! EXTENDED COPY and RECEIVE COPY RESULTS.

use skytether_scsi::{Nexus, Transfer};

use crate::bench::{BLOCKS, alone, bad, cdb10, connect, good, run, sense, target};

/// The identification descriptor of a unit, from its NAA designator.
async fn target_descriptor(nexus: &Nexus, lun: u8) -> Vec<u8> {
    let page = run(nexus, lun, &[0x12, 1, 0x83, 1, 0, 0], b"").await.data;
    let mut descriptor = vec![0; 32];
    descriptor[0] = 0xE4;
    descriptor[4..16].copy_from_slice(&page[4..16]);
    descriptor[29..].copy_from_slice(&[0, 2, 0]);
    descriptor
}

fn segment(from: u8, to: u8, count: u16, source: u64, destination: u64) -> Vec<u8> {
    let mut descriptor = vec![0x02, 0, 0, 24, 0, from, 0, to, 0, 0];
    descriptor.extend_from_slice(&count.to_be_bytes());
    descriptor.extend_from_slice(&source.to_be_bytes());
    descriptor.extend_from_slice(&destination.to_be_bytes());
    descriptor
}

/// LID1 with list identifier 5.
fn list(targets: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (targets, segments) = (targets.concat(), segments.concat());
    let mut list = vec![5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    list[2..4].copy_from_slice(&(targets.len() as u16).to_be_bytes());
    list[8..12].copy_from_slice(&(segments.len() as u32).to_be_bytes());
    [list, targets, segments].concat()
}

/// The CDB of a command with a length in bytes 10 to 13.
fn cdb(code: u8, action: u8, len: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (code, action);
    cdb[10..14].copy_from_slice(&(len as u32).to_be_bytes());
    cdb
}

async fn copied(nexus: &Nexus, list: &[u8]) -> (u8, u16) {
    bad(nexus, &cdb(0x83, 0, list.len()), list).await
}

#[tokio::test]
async fn blocks_are_copied_between_units() {
    let nexus = alone().await;
    let (zero, one) = (target_descriptor(&nexus, 0).await, target_descriptor(&nexus, 1).await);
    good(&nexus, &cdb10(0x2A, 0, 3, 2), &[[1; 512], [2; 512]].concat()).await;
    let list = list(&[zero, one], &[segment(0, 1, 2, 3, 9), segment(1, 0, 1, 10, 100)]);
    assert_eq!(nexus.transfer(0, &cdb(0x83, 0, list.len())), Transfer::Out(list.len() as u64));
    good(&nexus, &cdb(0x83, 0, list.len()), &list).await;
    let there = run(&nexus, 1, &cdb10(0x28, 0, 9, 2), b"").await.data;
    assert_eq!(there, [[1; 512], [2; 512]].concat());
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 100, 1), b"").await, [2; 512][..]);
    // COPY STATUS: without errors, two segments, one KiB and a half.
    let mut status = cdb(0x84, 0, 64);
    status[2] = 5;
    assert_eq!(good(&nexus, &status, b"").await[..], [0, 0, 0, 8, 1, 0, 2, 1, 0, 0, 0, 1]);
    status[2] = 6;
    assert_eq!(bad(&nexus, &status, b"").await, (5, 0x2400));
}

#[tokio::test]
async fn long_identifiers_copy_as_well() {
    let nexus = alone().await;
    good(&nexus, &cdb10(0x2A, 0, 3, 1), &[7; 512]).await;
    let (target, mut offset) = (target_descriptor(&nexus, 0).await, vec![0x0A, 0, 0, 28, 0, 0, 0, 0, 0, 0, 2, 0]);
    offset.extend_from_slice(&3_u64.to_be_bytes());
    offset.extend_from_slice(&50_u64.to_be_bytes());
    offset.extend_from_slice(&[0; 4]);
    let mut list = vec![0; 48];
    (list[0], list[3], list[16], list[22], list[43], list[45]) = (1, 0x20, 0xFF, 9, 32, 32);
    let list = [list, target, offset].concat();
    good(&nexus, &cdb(0x83, 1, list.len()), &list).await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 50, 1), b"").await, [7; 512][..]);
    let mut status = cdb(0x84, 5, 64);
    status[4] = 9;
    let status = good(&nexus, &status, b"").await;
    assert_eq!((status.len(), &status[..6], &status[16..26]), (32, &[0, 0, 0, 28, 1, 1][..], &[0, 0, 0, 0, 0, 0, 2, 0, 0, 1][..]));
}

#[tokio::test]
async fn wrong_copies_say_what_is_wrong() {
    let nexus = alone().await;
    let unit = target_descriptor(&nexus, 0).await;
    let good_segment = segment(0, 0, 8, 0, 8);
    // No parameters are no error; a list that is cut is.
    good(&nexus, &cdb(0x83, 0, 0), b"").await;
    let (one_unit, one_segment) = (std::slice::from_ref(&unit), std::slice::from_ref(&good_segment));
    let whole = list(one_unit, one_segment);
    assert_eq!(bad(&nexus, &cdb(0x83, 0, 47), &whole[..47]).await, (5, 0x1A00));
    assert_eq!(bad(&nexus, &cdb(0x83, 0, 75), &whole[..75]).await, (5, 0x1A00));
    assert_eq!(copied(&nexus, &list(&vec![unit.clone(); 17], one_segment)).await, (5, 0x2606));
    assert_eq!(copied(&nexus, &list(one_unit, &vec![good_segment.clone(); 65])).await, (5, 0x2608));
    assert_eq!(copied(&nexus, &list(one_unit, &vec![good_segment.clone(); 150])).await, (5, 0x1A00));
    let of_type = |at: usize, kind| {
        let mut list = whole.clone();
        list[at] = kind;
        list
    };
    assert_eq!(copied(&nexus, &of_type(16, 0xE0)).await, (5, 0x2607));
    assert_eq!(copied(&nexus, &of_type(48, 0x03)).await, (5, 0x2609));
    assert_eq!(copied(&nexus, &of_type(12, 1)).await, (5, 0x2600));
    // Another device, an index without a descriptor, and places beyond the end.
    assert_eq!(copied(&nexus, &of_type(31, 0x55)).await, (0xA, 0x0D02));
    assert_eq!(copied(&nexus, &list(one_unit, &[segment(0, 1, 8, 0, 8)])).await, (0xA, 0x0804));
    assert_eq!(copied(&nexus, &list(one_unit, &[segment(0, 0, 8, 0, BLOCKS - 1)])).await, (0xA, 0x0000));
    // The last one failed, and its sense data is kept.
    let mut details = cdb(0x84, 4, 128);
    details[2] = 5;
    let details = good(&nexus, &details, b"").await;
    assert_eq!((details.len(), details[56], details[59], details[62]), (78, 2, 18, 0xA));
}

#[tokio::test]
async fn a_copy_may_not_do_more_than_its_nexus() {
    let target = target();
    let (nexus, other) = (connect(&target, "a").await, connect(&target, "b").await);
    assert_eq!(run(&other, 1, &[0x16, 0, 0, 0, 0, 0], b"").await.status, 0);
    let (zero, one) = (target_descriptor(&nexus, 0).await, target_descriptor(&nexus, 1).await);
    let list = list(&[zero, one], &[segment(0, 1, 8, 0, 0)]);
    assert_eq!(run(&nexus, 0, &cdb(0x83, 0, list.len()), &list).await.status, 0x18);
}

#[tokio::test]
async fn operating_parameters_are_the_limits() {
    let nexus = alone().await;
    let parameters = good(&nexus, &cdb(0x84, 3, 1024), b"").await;
    let expected = [
        0, 0, 0, 43, 1, 0, 0, 0, 0, 16, 0, 64, 0, 0, 0x10, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 9, 0, 0, 0, 0, 0, 3, 2, 0x0A,
        0xE4,
    ];
    assert_eq!(parameters[..], expected);
    assert_eq!(sense(&run(&nexus, 0, &cdb(0x84, 7, 64), b"").await), (5, 0x2400));
}
