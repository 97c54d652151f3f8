//! READ, WRITE and their relatives.

use skytether_scsi::Transfer;

use crate::bench::{BLOCKS, alone, bad, cdb10, cdb16, good, run, sense};

const OUT_OF_RANGE: (u8, u16) = (5, 0x2100);
const INVALID_CDB: (u8, u16) = (5, 0x2400);

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 + 1).collect()
}

#[tokio::test]
async fn blocks_that_were_written_are_read() {
    let nexus = alone().await;
    let data = pattern(1024);
    let writes: [&[u8]; 4] = [&[0x0A, 0, 0, 7, 2, 0], &cdb10(0x2A, 0, 9, 2), &[0xAA, 0, 0, 0, 0, 11, 0, 0, 0, 2, 0, 0], &cdb16(0x8A, 0x08, 13, 2)];
    for cdb in writes {
        assert_eq!(nexus.transfer(0, &crate::bench::command(0, cdb, b"").cdb), Transfer::Out(1024));
        good(&nexus, cdb, &data).await;
    }
    let all = data.repeat(4);
    let reads: [&[u8]; 4] = [&[0x08, 0, 0, 7, 8, 0], &cdb10(0x28, 0, 7, 8), &[0xA8, 0, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0], &cdb16(0x88, 0x08, 7, 8)];
    for cdb in reads {
        assert_eq!(nexus.transfer(0, &crate::bench::command(0, cdb, b"").cdb), Transfer::In(4096));
        assert_eq!(good(&nexus, cdb, b"").await, all);
    }
    // READ(6) of zero blocks is one of 256; of the others, of none.
    assert_eq!(good(&nexus, &[0x08, 0, 0, 0, 0, 0], b"").await.len(), 256 * 512);
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 0, 0), b"").await.len(), 0);
}

#[tokio::test]
async fn places_beyond_the_end_are_out_of_range() {
    let nexus = alone().await;
    for code in [0x28, 0x2A, 0x2E, 0x2F, 0x34, 0x35] {
        assert_eq!(bad(&nexus, &cdb10(code, 0, BLOCKS as u32 - 1, 2), &[0; 1024]).await, OUT_OF_RANGE, "{code:02x}");
        assert_eq!(bad(&nexus, &cdb10(code, 0, BLOCKS as u32 + 1, 0), b"").await, OUT_OF_RANGE, "{code:02x}");
        good(&nexus, &cdb10(code, 0, BLOCKS as u32, 0), b"").await;
    }
    for code in [0x88, 0x8A, 0x8B, 0x8E, 0x8F, 0x90, 0x91] {
        assert_eq!(bad(&nexus, &cdb16(code, 0, u64::MAX, 1), &[0; 512]).await, OUT_OF_RANGE, "{code:02x}");
    }
    // The first block that does not exist is the information.
    let reply = run(&nexus, 0, &cdb10(0x28, 0, BLOCKS as u32 - 1, 2), b"").await;
    assert_eq!(reply.sense[..], [0xF0, 0, 5, 0, 1, 0, 0, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0]);
}

#[tokio::test]
async fn protection_information_is_no_field() {
    let nexus = alone().await;
    for code in [0x28, 0x2A, 0x2E, 0x2F, 0x41] {
        let reply = run(&nexus, 0, &cdb10(code, 0x20, 0, 1), &[0; 512]).await;
        assert_eq!(sense(&reply), INVALID_CDB, "{code:02x}");
        // Byte 1 of the CDB, bit 7.
        assert_eq!(reply.sense[15..18], [0xCF, 0, 1], "{code:02x}");
    }
}

#[tokio::test]
async fn more_blocks_than_a_command_may_move_are_refused() {
    let nexus = alone().await;
    let too_many = cdb16(0x88, 0, 0, (8 << 20) / 512 + 1);
    assert_eq!(bad(&nexus, &too_many, b"").await, INVALID_CDB);
    assert_eq!(nexus.transfer(0, &too_many), Transfer::In((8 << 20) + 512));
}

/// An initiator may expect to send less, or more, than the CDB says.
#[tokio::test]
async fn only_blocks_that_came_whole_are_written() {
    let nexus = alone().await;
    good(&nexus, &cdb10(0x2A, 0, 0, 2), &[b'a'; 1024]).await;
    good(&nexus, &cdb10(0x2A, 0, 0, 2), &[b'b'; 700]).await;
    let there = good(&nexus, &cdb10(0x28, 0, 0, 2), b"").await;
    assert_eq!(there, [[b'b'; 512], [b'a'; 512]].concat());
    good(&nexus, &cdb10(0x2A, 0, 0, 1), &[b'c'; 1024]).await;
    let there = good(&nexus, &cdb10(0x28, 0, 0, 2), b"").await;
    assert_eq!(there, [[b'c'; 512], [b'a'; 512]].concat());
}

#[tokio::test]
async fn verify_compares_bytes_when_asked_to() {
    let nexus = alone().await;
    let data = pattern(1024);
    good(&nexus, &cdb10(0x2E, 0x02, 4, 2), &data).await;
    assert_eq!(nexus.transfer(0, &crate::bench::command(0, &cdb10(0x2F, 0, 4, 2), b"").cdb), Transfer::None);
    good(&nexus, &cdb10(0x2F, 0, 4, 2), b"").await;
    good(&nexus, &cdb10(0x2F, 0x02, 4, 2), &data).await;
    let mut other = data.clone();
    other[700] ^= 1;
    let reply = run(&nexus, 0, &cdb10(0x2F, 0x02, 4, 2), &other).await;
    assert_eq!(sense(&reply), (0xE, 0x1D00));
    assert_eq!(reply.sense[..7], [0xF0, 0, 0xE, 0, 0, 2, 188]);
    // BYTCHK 3: one block is that of each; 2 is reserved.
    assert_eq!(nexus.transfer(0, &crate::bench::command(0, &cdb10(0x2F, 0x06, 4, 2), b"").cdb), Transfer::Out(512));
    assert_eq!(bad(&nexus, &cdb10(0x2F, 0x06, 4, 2), &data[..512]).await, (0xE, 0x1D00));
    good(&nexus, &cdb10(0x2A, 0, 5, 1), &data[..512]).await;
    good(&nexus, &cdb10(0x2F, 0x06, 4, 2), &data[..512]).await;
    assert_eq!(bad(&nexus, &cdb10(0x2F, 0x04, 4, 2), b"").await, INVALID_CDB);
}

#[tokio::test]
async fn compare_and_write_writes_what_was_expected() {
    let nexus = alone().await;
    let cdb = cdb16(0x89, 0, 3, 1);
    assert_eq!(nexus.transfer(0, &cdb), Transfer::Out(1024));
    let both = |expected, new| [[expected; 512], [new; 512]].concat();
    good(&nexus, &cdb, &both(0, b'x')).await;
    let mut wrong = both(b'x', b'y');
    wrong[300] = 0;
    let reply = run(&nexus, 0, &cdb, &wrong).await;
    assert_eq!((sense(&reply), &reply.sense[3..7]), ((0xE, 0x1D00), &[0, 0, 1, 44][..]));
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 3, 1), b"").await, [b'x'; 512][..]);
    good(&nexus, &cdb, &both(b'x', b'y')).await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 3, 1), b"").await, [b'y'; 512][..]);
    // The data has to be twice the blocks, and what the initiator meant to send.
    assert_eq!(bad(&nexus, &cdb, &[0; 512]).await, INVALID_CDB);
    let reply = nexus.execute_expecting(crate::bench::command(0, &cdb, &both(b'y', b'z')), 2048).await;
    assert_eq!(sense(&reply), INVALID_CDB);
    good(&nexus, &cdb16(0x89, 0, 3, 0), b"").await;
}

#[tokio::test]
async fn or_write_sets_bits() {
    let nexus = alone().await;
    good(&nexus, &cdb16(0x8A, 0, 0, 1), &[0x0F; 512]).await;
    good(&nexus, &cdb16(0x8B, 0, 0, 2), &[0xA0; 1024]).await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 0, 2), b"").await, [[0xAF; 512], [0xA0; 512]].concat());
}

#[tokio::test]
async fn atomic_writes_are_of_whole_physical_blocks() {
    let nexus = alone().await;
    let cdb = |lba: u64, boundary: u16, count: u16| {
        let mut cdb = cdb16(0x9C, 0, lba, 0);
        cdb[10..12].copy_from_slice(&boundary.to_be_bytes());
        cdb[12..14].copy_from_slice(&count.to_be_bytes());
        cdb
    };
    good(&nexus, &cdb(8, 0, 256), &[7; 256 * 512]).await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 263, 1), b"").await, [7; 512][..]);
    for wrong in [cdb(1, 0, 8), cdb(0, 0, 7), cdb(0, 8, 8), cdb(0, 0, 264)] {
        assert_eq!(bad(&nexus, &wrong, &[0; 264 * 512]).await, INVALID_CDB, "{wrong:?}");
    }
    // Never in part.
    assert_eq!(bad(&nexus, &cdb(8, 0, 16), &[8; 8 * 512]).await, (5, 0x2600));
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 8, 1), b"").await, [7; 512][..]);
    assert_eq!(bad(&nexus, &cdb(BLOCKS - 8, 0, 512), b"").await, OUT_OF_RANGE);
}

#[tokio::test]
async fn the_capacity_is_that_of_the_device() {
    let nexus = alone().await;
    assert_eq!(good(&nexus, &cdb10(0x25, 0, 0, 0), b"").await[..], [0, 0, 0xFF, 0xFF, 0, 0, 2, 0]);
    let mut cdb = cdb16(0x9E, 0x10, 0, 32);
    let long = good(&nexus, &cdb, b"").await;
    // LBPME and LBPRZ in byte 14.
    assert_eq!(long[..16], [0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0, 2, 0, 0, 0, 0xC0, 0]);
    assert_eq!(long[16..], [0; 16]);
    cdb[13] = 12;
    assert_eq!(good(&nexus, &cdb, b"").await, long[..12]);
    assert_eq!(bad(&nexus, &cdb10(0x25, 0, 1, 0), b"").await, INVALID_CDB);
}
