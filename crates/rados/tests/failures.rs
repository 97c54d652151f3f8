//! OSDs that die in the middle of writes and reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use skytether_common::Kind;
use skytether_store::SliceStore;

use crate::cluster::{key, put, store, with_cluster};

#[test]
fn an_osd_killed_amid_writes_and_reads_costs_nothing() {
    with_cluster("failures::an_osd_killed_amid_writes_and_reads_costs_nothing", |cluster| {
        let fleet = cluster.fleet("index");
        let drive = store(&fleet);
        let value = |round: u32| round.to_le_bytes().repeat(5000);
        let names = ["x", "y", "z"];
        drive.apply(names.iter().map(|name| put(name, value(0))).collect()).unwrap();
        let done = AtomicBool::new(false);
        let rounds = std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut round = 0;
                while !done.load(Ordering::Acquire) || round < 50 {
                    round += 1;
                    drive.apply(names.iter().map(|name| put(name, value(round))).collect()).unwrap();
                }
                round
            });
            let reading = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let listed = drive.list("", None, 10).unwrap();
                    assert!(listed.len() == 3 && listed.iter().all(|entry| entry.crc32c == listed[0].crc32c), "{listed:?}");
                    for name in names {
                        let got = drive.get(&key(name)).unwrap();
                        assert_eq!(got, value(u32::from_le_bytes(got[..4].try_into().unwrap())));
                    }
                }
            });
            cluster.tell("kill 0");
            cluster.tell("start 0");
            cluster.tell("kill 1");
            done.store(true, Ordering::Release);
            reading.join().unwrap();
            writing.join().unwrap()
        });
        for name in names {
            assert_eq!(drive.get(&key(name)).unwrap(), value(rounds));
        }
        assert_eq!(drive.usage().unwrap().keys, 3);
        cluster.tell("start 1");
        drop((drive, fleet));
        let again = cluster.fleet("index");
        assert_eq!(store(&again).get(&key("y")).unwrap(), value(rounds));
        assert_eq!(cluster.values("index"), 3, "{:?}", cluster.objects("index"));
    });
}

#[test]
fn osds_that_do_not_answer_are_an_error_and_come_back() {
    with_cluster("failures::osds_that_do_not_answer_are_an_error_and_come_back", |cluster| {
        let fleet = skytether_rados::open(&cluster.address("index", "&timeout=3"), Some(1)).unwrap();
        let drive = store(&fleet);
        drive.apply(vec![put("a", "1")]).unwrap();
        for osd in 0..3 {
            cluster.tell(&format!("pause {osd}"));
        }
        let begun = Instant::now();
        for error in [drive.get(&key("a")).unwrap_err(), drive.apply(vec![put("a", "2")]).unwrap_err(), drive.list("", None, 10).unwrap_err()] {
            assert!(error.kind() == Kind::Unavailable && error.to_string().contains("no answer within 3 s"), "{error}");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        for osd in 0..3 {
            cluster.tell(&format!("resume {osd}"));
        }
        let value = crate::cluster::eventually(|| drive.get(&key("a")));
        assert!(value.as_ref() == b"1" || value.as_ref() == b"2", "{value:?}");
        crate::cluster::eventually(|| drive.apply(vec![put("a", "3")]));
        assert_eq!(crate::cluster::eventually(|| drive.get(&key("a"))).as_ref(), b"3");
    });
}
