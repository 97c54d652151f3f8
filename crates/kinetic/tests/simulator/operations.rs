//! The operations of a connection.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use skytether_common::Kind;
use skytether_kinetic::{Change, Client, ClientOptions, Delete, Failure, Identity, Keys, Put};
use skytether_kinetic_protocol::command::{Operation, P2pOperation, Peer};
use skytether_kinetic_protocol::kinds::{Language, LogType, Synchronization};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::{HmacKey, StatusCode};

use super::{at, with_simulator};

const BRIEF: Duration = Duration::from_secs(20);

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn put(key: &'static str, value: &'static str, expected: Option<&'static str>, version: &'static str) -> Put {
    Put::new(b(key), b(value), expected.map(b), b(version))
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Failure>) -> Option<StatusCode> {
    outcome.unwrap_err().code()
}

#[test]
fn operations_on_values_do_what_they_say() {
    with_simulator("simulator::operations::operations_on_values_do_what_they_say", |simulator| async move {
        let on = simulator.ready().await;
        on.noop().await.unwrap();
        on.put(put("a", "1", Some(""), "v1")).await.unwrap();
        assert_eq!(code(on.put(put("a", "2", Some(""), "v2")).await), Some(StatusCode::VersionMismatch));
        assert_eq!(code(on.put(put("a", "2", Some("v0"), "v2")).await), Some(StatusCode::VersionMismatch));
        on.put(Put { synchronization: Synchronization::WriteBack, ..put("a", "2", Some("v1"), "v2") }).await.unwrap();
        on.put(Put { synchronization: Synchronization::Flush, ..put("c", "3", None, "v3") }).await.unwrap();
        on.flush().await.unwrap();
        let a = on.get(b("a"), false).await.unwrap();
        assert_eq!((a.value, a.version, a.tag.len(), a.algorithm), (b("2"), b("v2"), 4, Some(4)));
        assert_eq!(on.get(b("a"), true).await.unwrap().value, "");
        assert_eq!(code(on.get(b("b"), false).await), Some(StatusCode::NotFound));
        assert_eq!((on.get_version(b("a")).await.unwrap(), on.get_version(b("b")).await.unwrap()), (Some(b("v2")), None));
        let (next, previous) = (on.get_next(b("a")).await.unwrap(), on.get_previous(b("c")).await.unwrap());
        assert_eq!((next.key, next.value, previous.key, previous.value), (b("c"), b("3"), b("a"), b("2")));
        assert_eq!(code(on.get_next(b("c")).await), Some(StatusCode::NotFound));
        assert_eq!(code(on.get_previous(b("a")).await), Some(StatusCode::NotFound));
        let range = |reverse, most| Keys { start: (b("a"), true), end: (b("c"), true), most, reverse };
        assert_eq!(on.get_key_range(range(false, 10)).await.unwrap(), ["a", "c"]);
        assert_eq!(on.get_key_range(range(true, 10)).await.unwrap(), ["c", "a"]);
        assert_eq!(on.get_key_range(range(false, 1)).await.unwrap(), ["a"]);
        assert_eq!(code(on.delete(Delete::new(b("a"), Some(b("v1")))).await), Some(StatusCode::VersionMismatch));
        on.delete(Delete::new(b("a"), Some(b("v2")))).await.unwrap();
        assert_eq!(code(on.delete(Delete::new(b("a"), Some(b("v2")))).await), Some(StatusCode::NotFound));
        on.delete(Delete::new(b("a"), None)).await.unwrap();
    });
}

#[test]
fn requests_are_pipelined_and_answers_matched() {
    with_simulator("simulator::operations::requests_are_pipelined_and_answers_matched", |simulator| async move {
        let on = simulator.ready().await;
        let key = |i: u32| Bytes::from(format!("k{i:04}"));
        let value = |i: u32| Bytes::from(i.to_string().repeat(1 + i as usize % 7000));
        let puts = (0..300).map(|i| on.put(Put { synchronization: Synchronization::WriteBack, ..Put::new(key(i), value(i), None, b("1")) }));
        for done in join_all(puts).await {
            done.unwrap();
        }
        for (i, got) in join_all((0..300).map(|i| on.get(key(i), false))).await.into_iter().enumerate() {
            assert!(got.unwrap().value == value(i as u32), "{i}");
        }
    });
}

#[test]
fn batch_is_done_whole_or_not_at_all() {
    with_simulator("simulator::operations::batch_is_done_whole_or_not_at_all", |simulator| async move {
        let on = simulator.ready().await;
        on.put(put("c", "0", None, "v")).await.unwrap();
        let some = |expected| {
            vec![Change::Put(put("a", "1", Some(""), "1")), Change::Put(put("b", "2", Some(""), "1")), Change::Delete(Delete::new(b("c"), Some(expected)))]
        };
        let failed = on.batch(some(b("w"))).await.unwrap_err();
        assert!(matches!(failed.code(), Some(StatusCode::VersionMismatch | StatusCode::InvalidBatch)), "{failed}");
        assert_eq!((on.get_version(b("a")).await.unwrap(), on.get_version(b("c")).await.unwrap()), (None, Some(b("v"))));
        on.batch(some(b("v"))).await.unwrap();
        assert_eq!((on.get_version(b("a")).await.unwrap(), on.get_version(b("c")).await.unwrap()), (Some(b("1")), None));
        on.abort_batch().await.unwrap();
        let many = |count: u32| (0..count).map(|i| Change::Put(Put::new(Bytes::from(format!("m{i}")), Bytes::new(), None, b("1")))).collect::<Vec<_>>();
        on.batch(many(15)).await.unwrap();
        assert!(matches!(on.batch(many(16)).await, Err(Failure::Lost { kind: Kind::Invalid, sent: false, .. })));
        // More at a time than the simulator takes: they wait for each other.
        for done in join_all((0..12).map(|_| on.batch(many(3)))).await {
            done.unwrap();
        }
    });
}

#[test]
fn logs_setup_and_media_are_answered() {
    with_simulator("simulator::operations::logs_setup_and_media_are_answered", |simulator| async move {
        let on = simulator.ready().await;
        let log = on
            .get_log(&[LogType::Utilizations, LogType::Temperatures, LogType::Capacities, LogType::Configuration, LogType::Statistics, LogType::Limits])
            .await
            .unwrap();
        assert!(!log.utilizations.is_empty() && !log.temperatures.is_empty() && !log.statistics.is_empty() && log.configuration.is_some());
        assert!(log.capacity.unwrap().nominal_capacity_in_bytes() > 0);
        assert_eq!(log.limits.unwrap().max_operation_count_per_batch, Some(15));
        assert_eq!(code(on.get_device_log(b("none")).await), Some(StatusCode::NotFound));
        let all = || Keys { start: (b("a"), true), end: (b("z"), true), most: 100, reverse: false };
        assert_eq!(on.media_scan(all(), BRIEF).await.unwrap(), Vec::<Bytes>::new());
        on.media_optimize(all(), BRIEF).await.unwrap();
        // Over TLS only.
        assert!(on.set_erase_pin(b(""), b("1")).await.is_err());
        // The simulator is of a protocol without programs.
        let failed = on.manage(ManageApplet { lang: Some(Language::Ebpf.into()), ..ManageApplet::default() }, BRIEF).await.unwrap_err();
        assert!(matches!(failed, Failure::Lost { kind: Kind::Unsupported, .. }), "{failed}");
    });
}

#[test]
fn copies_go_to_the_drive_that_is_named() {
    with_simulator("simulator::operations::copies_go_to_the_drive_that_is_named", |simulator| async move {
        let on = simulator.ready().await;
        on.put(put("a", "1", None, "v")).await.unwrap();
        let push = |port| P2pOperation {
            peer: Some(Peer { hostname: Some("127.0.0.1".into()), port: Some(port), tls: Some(false) }),
            operation: vec![Operation { key: Some(b("a")), new_key: Some(b("copy")), force: Some(true), ..Operation::default() }],
            ..P2pOperation::default()
        };
        let pushed = on.push(push(8123), BRIEF).await.unwrap();
        assert_eq!(pushed.operation[0].status.as_ref().unwrap().code(), StatusCode::Success);
        assert_eq!(on.get(b("copy"), false).await.unwrap().value, "1");
        assert!(on.push(push(1), BRIEF).await.is_err());
    });
}

/// Another cluster version fences clients that have the former one; a client that takes the drive's connects again.
#[test]
fn cluster_version_is_a_fence() {
    with_simulator("simulator::operations::cluster_version_is_a_fence", |simulator| async move {
        let on = simulator.ready().await;
        let client = Client::connect(&at(), ClientOptions::default()).await.unwrap();
        let fixed = Client::connect(&at(), ClientOptions { cluster_version: Some(0), ..ClientOptions::default() }).await.unwrap();
        fixed.write(|on| async move { on.put(put("a", "1", None, "v")).await }).await.unwrap();
        on.set_cluster_version(5).await.unwrap();
        assert_eq!(code(on.get(b("a"), false).await), Some(StatusCode::VersionFailure));
        assert_eq!(code(fixed.read(|on| async move { on.noop().await.and(on.get(b("a"), false).await.map(drop)) }).await), Some(StatusCode::VersionFailure));
        assert_eq!(client.read(|on| async move { on.get(b("a"), false).await }).await.unwrap().value, "1");
        assert_eq!(client.connection().await.unwrap().greeting().cluster_version, 5);
    });
}

#[test]
fn wrong_key_or_identity_is_invalid() {
    with_simulator("simulator::operations::wrong_key_or_identity_is_invalid", |simulator| async move {
        simulator.ready().await;
        for identity in [Identity { number: 1, key: HmacKey::new(b"wrong") }, Identity { number: 99, key: HmacKey::new(b"asdfasdf") }] {
            let client = Client::connect(&at(), ClientOptions { identity, ..ClientOptions::default() }).await.unwrap();
            let failed = client.read(|on| async move { on.get(b("a"), false).await }).await.unwrap_err();
            assert!(matches!(failed.code(), Some(StatusCode::HmacFailure | StatusCode::NotAuthorized)), "{failed}");
            assert_eq!(skytether_common::Error::from(failed).kind(), Kind::Invalid);
        }
    });
}
