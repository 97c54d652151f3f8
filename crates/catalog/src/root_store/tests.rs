use crate::records::bounds::Bounds;
use skytether_partitioning::Placement;
use std::collections::BTreeMap;

use super::*;
use crate::records::partition::PartitionRecord;
use crate::records::root::DatasetKind;
use crate::records::root::ROOT_FORMAT;
use crate::records::root::RootRecord;
use crate::records::root::TableRecord;

fn record() -> RootRecord {
    let part = PartitionRecord { drive: Uuid::from_u128(7), slot: 0, rows: 3, slices: 1, bytes: 100, bounds: Bounds::default() };
    let table = TableRecord {
        generation: None,
        placement: Placement::Spread,
        rows: 3,
        matrix: None,
        part: None,
        memory_bytes: None,
        partitioned_by: None,
        partitions: vec![part],
        redundancy: None,
    };
    RootRecord {
        format: ROOT_FORMAT,
        name: "a.b".parse().unwrap(),
        kind: DatasetKind::Table,
        generation: Generation(u64::MAX),
        content: None,
        change: 0,
        tables: BTreeMap::from([("data".to_owned(), table)]),
        indexes: Vec::new(),
        application: BTreeMap::new(),
        superseded: Vec::new(),
    }
}

#[test]
fn a_root_record_survives_its_bytes() {
    let bytes = record().encode().unwrap();
    assert_eq!(RootRecord::decode(&record().name, &bytes).unwrap(), record());
}

#[test]
fn a_newer_or_foreign_or_broken_record_is_refused_by_kind() {
    let name: DatasetName = "a.b".parse().unwrap();
    let text = format!(r#"{{"format": {}, "surprise": true}}"#, ROOT_FORMAT + 1);
    let newer = RootRecord::decode(&name, text.as_bytes()).unwrap_err();
    assert_eq!(newer.kind(), Kind::Unsupported);
    assert!(newer.to_string().contains("a.b") && newer.to_string().contains("newer"), "{newer}");
    let bytes = record().encode().unwrap();
    assert_eq!(RootRecord::decode(&"a.c".parse().unwrap(), &bytes).unwrap_err().kind(), Kind::Corrupt);
    for cut in 0..bytes.len() {
        assert_eq!(RootRecord::decode(&name, &bytes[..cut]).unwrap_err().kind(), Kind::Corrupt, "cut at {cut}");
    }
}

#[test]
fn rendezvous_moves_only_the_names_of_the_drive_that_left() {
    let ids: Vec<_> = (0..5).map(Uuid::from_u128).collect();
    let names: Vec<_> = (0..500).map(|i| format!("domain/set{i}")).collect();
    let mut counts = [0; 5];
    for name in &names {
        let home = rendezvous(name, ids.iter()).unwrap();
        counts[home] += 1;
        if home != 4 {
            assert_eq!(rendezvous(name, ids[..4].iter()), Some(home));
        }
    }
    assert!(counts.iter().all(|c| (60..140).contains(c)), "{counts:?}");
}
