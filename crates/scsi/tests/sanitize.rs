//! SANITIZE.

use std::time::Duration;

use skytether_scsi::{Management, ManagementReply, Nexus, Options, Target};

use crate::bench::{BLOCKS, alone, bad, cdb10, connect, good, options, run, sense, unit};

const INVALID_CDB: (u8, u16) = (5, 0x2400);

/// OVERWRITE with a pattern.
fn overwrite(flags: u8, header: u8, pattern: &[u8]) -> ([u8; 10], Vec<u8>) {
    let list = [&[header, 0][..], &(pattern.len() as u16).to_be_bytes(), pattern].concat();
    (cdb10(0x48, flags | 1, 0, list.len() as u16), list)
}

#[tokio::test]
async fn overwrite_repeats_its_pattern_in_each_block() {
    let nexus = alone().await;
    let (cdb, list) = overwrite(0, 1, &[1, 2, 3]);
    good(&nexus, &cdb, &list).await;
    let last = good(&nexus, &cdb10(0x28, 0, BLOCKS as u32 - 2, 2), b"").await;
    assert_eq!((&last[..5], &last[510..515]), (&[1, 2, 3, 1, 2][..], &[1, 2, 1, 2, 3][..]));
    // INVERT: the second pass writes the complement.
    let (cdb, list) = overwrite(0, 0x82, &[0x0F]);
    good(&nexus, &cdb, &list).await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 0, 1), b"").await, [0xF0; 512][..]);
}

#[tokio::test]
async fn erased_blocks_are_unmapped() {
    let nexus = alone().await;
    good(&nexus, &cdb10(0x2A, 0, 5, 1), &[9; 512]).await;
    good(&nexus, &cdb10(0x48, 2, 0, 0), b"").await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 5, 1), b"").await, [0; 512][..]);
    let status = good(&nexus, &crate::bench::cdb16(0x9E, 0x12, 0, 64), b"").await;
    assert_eq!(status[..], [0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0]);
}

#[tokio::test]
async fn wrong_sanitize_parameters_are_refused() {
    let nexus = alone().await;
    let (cdb, list) = overwrite(0, 0, &[1]);
    assert_eq!(bad(&nexus, &cdb, &list).await, (5, 0x2600));
    let (cdb, list) = overwrite(0, 1, &[1; 513]);
    assert_eq!(bad(&nexus, &cdb, &list).await, INVALID_CDB);
    let (cdb, list) = overwrite(0, 1, &[]);
    assert_eq!(bad(&nexus, &cdb, &list).await, INVALID_CDB);
    let (mut cdb, list) = overwrite(0x40, 1, &[1]);
    assert_eq!(bad(&nexus, &cdb, &list).await, INVALID_CDB);
    (cdb[1], cdb[4]) = (1, 1);
    assert_eq!(bad(&nexus, &cdb, &list).await, INVALID_CDB);
    assert_eq!(bad(&nexus, &cdb10(0x48, 2, 0, 8), &[0; 8]).await, INVALID_CDB);
    good(&nexus, &cdb10(0x48, 0x1F, 0, 0), b"").await;
}

/// It goes on when its command is aborted and the unit is reset; meanwhile the unit tells how far it is.
#[tokio::test]
async fn a_sanitize_outlives_its_command() {
    let paced = Options { sanitize_time: Duration::from_secs(8), ..options() };
    let target = Target::new(vec![unit(0)], paced);
    let nexus = connect(&target, "a").await;
    let (cdb, list) = overwrite(0, 1, &[7]);
    let (of, command) = (nexus.clone(), crate::bench::command(0, &cdb, &list));
    let running = tokio::spawn(async move { of.execute(skytether_scsi::Command { tag: 77, ..command }).await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    let reply = run(&nexus, 0, &[0; 6], b"").await;
    assert_eq!((sense(&reply), reply.sense[15]), ((2, 0x041B), 0x80));
    let half = u16::from_be_bytes([reply.sense[16], reply.sense[17]]);
    assert!((8_000..60_000).contains(&half), "{half}");
    for cdb in [cdb10(0x28, 0, 0, 1), cdb10(0x48, 2, 0, 0), cdb10(0x2A, 0, 0, 0)] {
        assert_eq!(bad(&nexus, &cdb, b"").await, (2, 0x041B));
    }
    assert_eq!(bad(&nexus, &[0x1B, 0, 0, 0, 1, 0], b"").await, (2, 0x041B));
    good(&nexus, &[0x12, 0, 0, 0, 36, 0], b"").await;
    assert_eq!(nexus.manage(Management::AbortTask { lun: 0, tag: 77 }).await, ManagementReply::Complete);
    assert!(running.await.unwrap().is_aborted());
    assert_eq!(nexus.manage(Management::LunReset { lun: 0 }).await, ManagementReply::Complete);
    assert_eq!(bad(&nexus, &[0; 6], b"").await, (6, 0x2903));
    assert_eq!(bad(&nexus, &[0; 6], b"").await, (2, 0x041B));
    ready(&nexus).await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, BLOCKS as u32 - 1, 1), b"").await, [7; 512][..]);
}

/// Waits until the unit is.
async fn ready(nexus: &Nexus) {
    let waits = async {
        while run(nexus, 0, &[0; 6], b"").await.status != 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.expect("the sanitize does not end");
}

#[tokio::test]
async fn an_immediate_sanitize_replies_before_it_ends() {
    let paced = Options { sanitize_time: Duration::from_secs(4), ..options() };
    let nexus = connect(&Target::new(vec![unit(0)], paced), "a").await;
    let (cdb, list) = overwrite(0x80, 1, &[7]);
    good(&nexus, &cdb, &list).await;
    let sensed = good(&nexus, &[0x03, 0, 0, 0, 18, 0], b"").await;
    assert_eq!((sensed[2], &sensed[12..14]), (2, &[0x04, 0x1B][..]));
    ready(&nexus).await;
}
