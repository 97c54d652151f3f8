//! INQUIRY, and the commands that report what a target and its units are.

use std::collections::BTreeSet;

use skytether_scsi::Transfer;

use crate::bench::{alone, bad, cdb10, command, connect, good, run, sense, target};

const INVALID_CDB: (u8, u16) = (5, 0x2400);

#[tokio::test]
async fn inquiry_tells_standard_data() {
    let nexus = alone().await;
    let data = good(&nexus, &[0x12, 0, 0, 1, 0, 0], b"").await;
    assert_eq!(data[..8], [0, 0, 6, 2, 91, 0x18, 0x10, 2]);
    assert_eq!(data[8..36], *b"SKYTETHRVOLUME          0001");
    assert_eq!((data.len(), &data[58..66]), (96, &[0, 0xA0, 4, 0x60, 4, 0xC0, 0, 0][..]));
    assert_eq!(good(&nexus, &[0x12, 0, 0, 0, 5, 0], b"").await, data[..5]);
    assert_eq!(nexus.transfer(0, &command(0, &[0x12, 0, 0, 1, 4, 0], b"").cdb), Transfer::In(260));
    // A page without EVPD.
    assert_eq!(bad(&nexus, &[0x12, 0, 0x80, 1, 0, 0], b"").await, INVALID_CDB);
    assert_eq!(bad(&nexus, &[0x12, 1, 0x77, 1, 0, 0], b"").await, INVALID_CDB);
}

#[tokio::test]
async fn each_page_of_vital_data_can_be_read() {
    let nexus = alone().await;
    let pages = good(&nexus, &[0x12, 1, 0, 1, 0, 0], b"").await;
    assert_eq!(pages[..], [0, 0, 0, 8, 0x00, 0x80, 0x83, 0x86, 0x8F, 0xB0, 0xB1, 0xB2]);
    for &page in &pages[4..] {
        let data = good(&nexus, &[0x12, 1, page, 1, 0, 0], b"").await;
        assert_eq!((data[1], usize::from(data[2]) << 8 | usize::from(data[3])), (page, data.len() - 4));
    }
    let limits = good(&nexus, &[0x12, 1, 0xB0, 1, 0, 0], b"").await;
    let expected: [u8; 64] = [
        0, 0xB0, 0, 0x3C, 1, 0xFF, 0, 8, 0, 0, 0x40, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 4, 0, 0, 0, 0, 8, 0x80, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0xFF, 0xFF, 0, 0, 1, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(limits[..], expected);
    assert_eq!(good(&nexus, &[0x12, 1, 0xB2, 1, 0, 0], b"").await[..], [0, 0xB2, 0, 4, 0, 0xE6, 2, 0]);
}

#[tokio::test]
async fn a_unit_is_identified_by_the_volume_and_the_port() {
    let nexus = alone().await;
    let data = good(&nexus, &[0x12, 1, 0x83, 1, 0, 0], b"").await;
    let (mut at, mut kinds) = (4, Vec::new());
    while at < data.len() {
        kinds.push((data[at + 1] >> 4 & 3, data[at + 1] & 0x0F, data[at + 3]));
        at += 4 + usize::from(data[at + 3]);
    }
    // Of the unit: NAA, EUI-64, T10 and UUID; of the port: its number, group and name; of the target: its name.
    assert_eq!(kinds, [(0, 3, 8), (0, 2, 8), (0, 1, 40), (0, 10, 18), (1, 4, 4), (1, 5, 4), (1, 8, 36), (2, 8, 28)]);
    assert_eq!((data[4..8].to_vec(), data[8] >> 4), (vec![1, 3, 0, 8], 3));
    assert!(data.windows(34).any(|text| text == b"iqn.2026-11.com.example:t,t,0x0001"));
}

#[tokio::test]
async fn a_unit_that_does_not_exist_says_so() {
    let nexus = alone().await;
    let absent = run(&nexus, 9, &[0x12, 0, 0, 1, 0, 0], b"").await;
    assert_eq!((absent.status, absent.data[0]), (0, 0x7F));
    let sense_data = run(&nexus, 9, &[0x03, 0, 0, 0, 18, 0], b"").await;
    assert_eq!((sense_data.status, sense_data.data[2], sense_data.data[12]), (0, 5, 0x25));
    assert_eq!(sense(&run(&nexus, 9, &[0; 6], b"").await), (5, 0x2500));
    assert_eq!(sense(&run(&nexus, 9, &[0xEE; 6], b"").await), (5, 0x2500));
}

#[tokio::test]
async fn luns_are_reported_at_each_address() {
    let nexus = alone().await;
    let cdb = |select, len| [0xA0, 0, select, 0, 0, 0, 0, 0, 0, len, 0, 0];
    let luns = good(&nexus, &cdb(0, 64), b"").await;
    assert_eq!(luns[..], [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let mut known = command(0, &cdb(1, 64), b"");
    known.lun = 0xC101 << 48;
    assert_eq!(nexus.execute(known).await.data[..], [0, 0, 0, 8, 0, 0, 0, 0, 0xC1, 1, 0, 0, 0, 0, 0, 0]);
    // Flat space addressing.
    let mut flat = command(0, &[0; 6], b"");
    flat.lun = 0x4001 << 48;
    assert_eq!(nexus.execute(flat).await.status, 0);
    assert_eq!(bad(&nexus, &cdb(0, 15), b"").await, INVALID_CDB);
    assert_eq!(bad(&nexus, &cdb(3, 64), b"").await, INVALID_CDB);
}

/// What is reported is carried out, has the length of its CDB, and moves what its fields say.
#[tokio::test]
async fn reported_operations_are_those_that_exist() {
    let nexus = alone().await;
    let all = good(&nexus, &[0xA3, 0x0C, 0x80, 0, 0, 0, 0, 0, 0x40, 0, 0, 0], b"").await;
    assert_eq!(u32::from_be_bytes(all[..4].try_into().unwrap()) as usize, all.len() - 4);
    let mut reported = BTreeSet::new();
    for entry in all[4..].chunks(20) {
        let (code, action, flags, length) = (entry[0], entry[3], entry[5], usize::from(entry[7]));
        assert_eq!(flags & 2, 2);
        assert_eq!(entry[8..12], [0, 0x0A, 0, 0]);
        let option = if flags & 1 == 1 { 2 } else { 1 };
        assert!(reported.insert((code, action)));
        let one = good(&nexus, &[0xA3, 0x0C, option, code, 0, action, 0, 0, 1, 0, 0, 0], b"").await;
        assert_eq!((one[1], usize::from(one[3]), one.len()), (3, length, 4 + length), "{code:02x}");
        assert_eq!(one[4], code);
        assert!(flags & 1 == 0 || one[5] & 0x1F == action, "{code:02x} {action}");
        let by_group = [6, 10, 10, 16, 16, 12, 16, 16][usize::from(code >> 5)];
        assert_eq!(length, by_group, "{code:02x}");
        // The control byte has NACA, which is refused.
        assert_eq!(one[4 + length - 1], 0x04, "{code:02x}");
        // Without and with a service action, against what there is.
        let wrong = [0xA3, 0x0C, 3 - option, code, 0, action, 0, 0, 1, 0, 0, 0];
        assert_eq!(bad(&nexus, &wrong, b"").await, INVALID_CDB, "{code:02x}");
        let either = good(&nexus, &[0xA3, 0x0C, 3, code, 0, action, 0, 0, 1, 0, 0, 0], b"").await;
        assert_eq!(either, one);
    }
    for code in 0..=255 {
        if !reported.iter().any(|(known, _)| *known == code) {
            assert_eq!(bad(&nexus, &[code; 16], b"").await, (5, 0x2000), "{code:02x}");
            assert_eq!(good(&nexus, &[0xA3, 0x0C, 1, code, 0, 0, 0, 0, 1, 0, 0, 0], b"").await[..], [0, 1, 0, 0]);
        }
    }
    assert_eq!(reported.len(), 66);
}

#[tokio::test]
async fn service_actions_that_do_not_exist_are_fields() {
    let nexus = alone().await;
    for cdb in [[0x9E, 0x11], [0x5E, 0x04], [0x48, 0x03], [0x83, 0x02], [0xA3, 0x00]] {
        let reply = run(&nexus, 0, &cdb, b"").await;
        assert_eq!((sense(&reply), &reply.sense[15..18]), (INVALID_CDB, &[0xCC, 0, 1][..]), "{cdb:02x?}");
    }
}

#[tokio::test]
async fn task_management_and_port_groups_are_reported() {
    let nexus = alone().await;
    let functions = |long, len| [0xA3, 0x0D, long, 0, 0, 0, 0, 0, 0, len, 0, 0];
    assert_eq!(good(&nexus, &functions(0, 16), b"").await[..], [0xDA, 0, 0, 0]);
    assert_eq!(good(&nexus, &functions(0x80, 16), b"").await[..4], [0xDA, 0, 0, 12]);
    assert_eq!(bad(&nexus, &functions(0, 3), b"").await, INVALID_CDB);
    let groups = good(&nexus, &[0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], b"").await;
    assert_eq!(groups[..], [0, 0, 0, 16, 0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
    let extended = good(&nexus, &[0xA3, 0x2A, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], b"").await;
    assert_eq!((extended.len(), &extended[..8]), (24, &[0, 0, 0, 20, 0x10, 0, 0, 0][..]));
}

#[tokio::test]
async fn a_new_nexus_gets_a_unit_attention_once() {
    let target = target();
    let first = connect(&target, "a").await;
    let second = target.connect(skytether_scsi::InitiatorPort { name: "b".into(), target_port: 2 });
    // These report none, and leave it.
    assert_eq!(run(&second, 0, &[0x12, 0, 0, 0, 36, 0], b"").await.status, 0);
    assert_eq!(run(&second, 0, &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], b"").await.status, 0);
    // REQUEST SENSE does, as data.
    let sensed = run(&second, 0, &[0x03, 0, 0, 0, 18, 0], b"").await;
    assert_eq!((sensed.status, sensed.data[2], &sensed.data[12..14]), (0, 6, &[0x29, 0][..]));
    let sensed = run(&second, 0, &[0x03, 1, 0, 0, 18, 0], b"").await;
    assert_eq!(sensed.data[..], [0x72, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(run(&second, 0, &[0; 6], b"").await.status, 0);
    assert_eq!(sense(&run(&second, 1, &[0; 6], b"").await), (6, 0x2900));
    assert_eq!(run(&first, 0, &[0; 6], b"").await.status, 0);
}

#[tokio::test]
async fn defects_and_logs_are_empty() {
    let nexus = alone().await;
    assert_eq!(good(&nexus, &[0x37, 0, 0x1D, 0, 0, 0, 0, 0, 32, 0], b"").await[..], [0, 0x1D, 0, 0]);
    assert_eq!(good(&nexus, &[0xB7, 0x1D, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], b"").await[..], [0, 0x1D, 0, 0, 0, 0, 0, 0]);
    assert_eq!(good(&nexus, &[0x4D, 0, 0x40, 0, 0, 0, 0, 0, 32, 0], b"").await[..], [0, 0, 0, 2, 0, 0x2F]);
    assert_eq!(good(&nexus, &[0x4D, 0, 0x6F, 0, 0, 0, 0, 0, 32, 0], b"").await[..], [0x2F, 0, 0, 8, 0, 0, 3, 4, 0, 0, 0xFF, 0]);
    assert_eq!(bad(&nexus, &[0x4D, 0, 0x42, 0, 0, 0, 0, 0, 32, 0], b"").await, INVALID_CDB);
}

#[tokio::test]
async fn a_stopped_unit_is_not_ready_until_it_starts() {
    let nexus = alone().await;
    good(&nexus, &[0x1B, 0, 0, 0, 0, 0], b"").await;
    assert_eq!(bad(&nexus, &[0; 6], b"").await, (2, 0x0402));
    assert_eq!(bad(&nexus, &cdb10(0x28, 0, 0, 1), b"").await, (2, 0x0402));
    assert_eq!(good(&nexus, &[0x03, 0, 0, 0, 18, 0], b"").await[2], 2);
    good(&nexus, &[0x1B, 0, 0, 0, 1, 0], b"").await;
    good(&nexus, &[0; 6], b"").await;
    // LOEJ: nothing can be ejected. PREVENT changes nothing.
    assert_eq!(bad(&nexus, &[0x1B, 0, 0, 0, 2, 0], b"").await, INVALID_CDB);
    good(&nexus, &[0x1E, 0, 0, 0, 1, 0], b"").await;
}
