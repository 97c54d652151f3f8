//! UNMAP, WRITE SAME and GET LBA STATUS.

use bytes::Bytes;
use skytether_scsi::{Nexus, Transfer};

use crate::bench::{BLOCKS, alone, bad, cdb10, cdb16, command, good};

const INVALID_CDB: (u8, u16) = (5, 0x2400);

fn unmap(ranges: &[(u64, u32)]) -> (Vec<u8>, Vec<u8>) {
    let descriptors = ranges.len() * 16;
    let mut list = vec![0, descriptors as u8 + 6, 0, descriptors as u8, 0, 0, 0, 0];
    for (lba, count) in ranges {
        list.extend_from_slice(&lba.to_be_bytes());
        list.extend_from_slice(&count.to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    (cdb10(0x42, 0, 0, list.len() as u16).to_vec(), list)
}

async fn status(nexus: &Nexus, lba: u64, allocation: u32) -> Bytes {
    good(nexus, &cdb16(0x9E, 0x12, lba, allocation), b"").await
}

#[tokio::test]
async fn unmapped_blocks_are_zeros_and_deallocated() {
    let nexus = alone().await;
    good(&nexus, &cdb10(0x2A, 0, 0, 32), &[0xFF; 32 * 512]).await;
    let (cdb, list) = unmap(&[(8, 8), (24, 0), (BLOCKS, 0)]);
    assert_eq!(nexus.transfer(0, &command(0, &cdb, b"").cdb), Transfer::Out(56));
    good(&nexus, &cdb, &list).await;
    let there = good(&nexus, &cdb10(0x28, 0, 0, 32), b"").await;
    assert_eq!((there[8 * 512 - 1], there[8 * 512], there[16 * 512 - 1], there[16 * 512]), (0xFF, 0, 0, 0xFF));
    let reported = status(&nexus, 0, 88).await;
    let expected: Vec<u8> = [(0_u64, 8_u32, 0_u8), (8, 8, 1), (16, 16, 0), (32, BLOCKS as u32 - 32, 1)]
        .iter()
        .flat_map(|(lba, count, state)| [&lba.to_be_bytes()[..], &count.to_be_bytes(), &[*state, 0, 0, 0]].concat())
        .collect();
    assert_eq!((&reported[..8], &reported[8..]), (&[0, 0, 0, 68, 0, 0, 0, 0][..], &expected[..]));
    // A descriptor begins where the question does.
    assert_eq!(status(&nexus, 9, 24).await[8..], [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 7, 1, 0, 0, 0]);
    assert_eq!(bad(&nexus, &cdb16(0x9E, 0x12, BLOCKS, 24), b"").await, (5, 0x2100));
}

#[tokio::test]
async fn an_unmap_with_a_wrong_list_changes_nothing() {
    let nexus = alone().await;
    good(&nexus, &cdb10(0x2A, 0, 0, 8), &[0xFF; 8 * 512]).await;
    let (cdb, list) = unmap(&[(0, 8), (BLOCKS - 1, 2)]);
    assert_eq!(bad(&nexus, &cdb, &list).await, (5, 0x2100));
    assert_eq!(bad(&nexus, &cdb, &list[..30]).await, (5, 0x1A00));
    assert_eq!(bad(&nexus, &cdb10(0x42, 0, 0, 7), &list[..7]).await, (5, 0x1A00));
    let mut longer = list.clone();
    longer[3] += 16;
    assert_eq!(bad(&nexus, &cdb, &longer).await, (5, 0x1A00));
    longer[3] -= 15;
    assert_eq!(bad(&nexus, &cdb, &longer).await, (5, 0x2600));
    good(&nexus, &cdb10(0x42, 0, 0, 0), b"").await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 0, 8), b"").await, [0xFF; 8 * 512][..]);
}

#[tokio::test]
async fn write_same_repeats_a_block_or_unmaps() {
    let nexus = alone().await;
    good(&nexus, &cdb10(0x41, 0, 8, 24), &[b'w'; 512]).await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 8, 24), b"").await, [b'w'; 24 * 512][..]);
    // UNMAP with a pattern that is not zeros: blocks that are unmapped would not read so.
    good(&nexus, &cdb10(0x41, 0x08, 8, 8), &[b'v'; 512]).await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 8, 8), b"").await, [b'v'; 8 * 512][..]);
    good(&nexus, &cdb10(0x41, 0x08, 8, 8), &[0; 512]).await;
    assert_eq!(status(&nexus, 8, 24).await[16..24], [0, 0, 0, 8, 1, 0, 0, 0]);
    // NDOB: no data, and zeros; ANCHOR keeps the places.
    let no_data = cdb16(0x93, 0x19, 16, 8);
    assert_eq!(nexus.transfer(0, &no_data), Transfer::None);
    good(&nexus, &no_data, b"").await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 16, 8), b"").await, [0; 8 * 512][..]);
    assert_eq!(status(&nexus, 16, 24).await[16..24], [0, 0, 0, 16, 0, 0, 0, 0]);
}

#[tokio::test]
async fn write_same_with_wrong_fields_is_refused() {
    let nexus = alone().await;
    // ANCHOR without UNMAP, no blocks, too many, and an initiator that means to send two blocks.
    assert_eq!(bad(&nexus, &cdb10(0x41, 0x10, 0, 1), &[0; 512]).await, INVALID_CDB);
    assert_eq!(bad(&nexus, &cdb10(0x41, 0, 0, 0), &[0; 512]).await, INVALID_CDB);
    assert_eq!(bad(&nexus, &cdb16(0x93, 0, 0, 65_536), &[0; 512]).await, INVALID_CDB);
    assert_eq!(bad(&nexus, &cdb10(0x41, 0, 0, 1), &[0; 1024]).await, INVALID_CDB);
    assert_eq!(bad(&nexus, &cdb10(0x41, 0, BLOCKS as u32 - 1, 2), &[0; 512]).await, (5, 0x2100));
}
