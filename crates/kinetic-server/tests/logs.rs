//! What a drive says of itself is true.

use bytes::Bytes;
use futures::future::join_all;
use skytether_kinetic::{Change, Connection, Delete, Put};
use skytether_kinetic_protocol::command::{Batch, Body, Header, KeyValue};
use skytether_kinetic_protocol::kinds::{LogType, Synchronization};
use skytether_kinetic_protocol::{Limits, MessageType};
use skytether_kinetic_server::{Options, Profile};

use crate::raw::{Raw, of};
use crate::{open, put, serve, serve_as};

/// How many requests of a type the drive counts, and how many bytes of values.
async fn counted(on: &Connection, kind: MessageType) -> (u64, u64) {
    let log = on.get_log(&[LogType::Statistics]).await.unwrap();
    let found = log.statistics.iter().find(|one| one.message_type == Some(kind.into())).unwrap();
    (found.count(), found.bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_tell_what_was_done_and_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { directory: Some(dir.path().to_owned()), profile: Profile::Java, ..Options::default() };
    let served = serve_as(dir.path(), options, false).await;
    let on = open(&served.plain, &served.options).await;
    let keys = ["a", "b", "c", "d", "e"];
    join_all(keys.map(|key| on.put(put(key, "12345678")))).await.into_iter().for_each(|done| done.unwrap());
    for key in ["a", "b"] {
        assert_eq!(on.get(Bytes::from_static(key.as_bytes()), false).await.unwrap().value.len(), 8);
    }
    assert!(on.get(Bytes::from_static(b"absent"), false).await.is_err());
    on.delete(skytether_kinetic::Delete::new(Bytes::from_static(b"e"), None)).await.unwrap();

    let all = [LogType::Statistics, LogType::Capacities, LogType::Configuration, LogType::Limits, LogType::Utilizations, LogType::Temperatures];
    let before = rustix::fs::statvfs(dir.path()).unwrap();
    let log = on.get_log(&all).await.unwrap();
    let after = rustix::fs::statvfs(dir.path()).unwrap();

    let of = |kind: MessageType| log.statistics.iter().find(|one| one.message_type == Some(kind.into())).map(|one| (one.count(), one.bytes()));
    assert_eq!((of(MessageType::Put), of(MessageType::Get), of(MessageType::Delete)), (Some((5, 40)), Some((3, 16)), Some((1, 0))));
    assert_eq!((of(MessageType::Noop), of(MessageType::StartBatch)), (Some((0, 0)), Some((0, 0))));
    let slowest = log.statistics.iter().find(|one| one.message_type == Some(MessageType::Put.into())).unwrap().max_latency();
    assert!(slowest > 0, "a put takes a microsecond or more");

    // The size is the file system's, and what is free lies between what was free before and after, as others write too.
    let capacity = log.capacity.unwrap();
    assert_eq!(capacity.nominal_capacity_in_bytes(), before.f_blocks * before.f_frsize);
    let full = |disk: &rustix::fs::StatVfs| 1.0 - (disk.f_bavail as f64) / (disk.f_blocks as f64);
    let (low, high) = (full(&before).min(full(&after)) as f32, full(&before).max(full(&after)) as f32);
    assert!((low - 0.01..=high + 0.01).contains(&capacity.portion_full()), "{capacity:?}: {low} to {high}");

    let told = log.configuration.unwrap();
    let port = |at: &skytether_transport::Endpoint| at.authority().rsplit(':').next().unwrap().parse::<u32>().unwrap();
    assert_eq!((told.port, told.tls_port), (Some(port(&served.plain)), Some(port(&served.tls))));
    assert_eq!((told.vendor(), told.model()), ("Skytether", "drive-7"));
    assert_eq!(told.interface[0].ipv4_address.as_deref(), Some(&b"127.0.0.1"[..]));
    assert_eq!(log.limits, Some(Limits::JAVA));
    assert!(log.utilizations.iter().any(|part| part.name() == "CPU") && log.utilizations.iter().all(|part| (0.0..=1.0).contains(&part.value())));
    // Sensors say what is plausible for a machine that runs, or nothing.
    assert!(log.temperatures.iter().all(|sensor| sensor.current.is_none_or(|now| (-60.0..=150.0).contains(&now))), "{:?}", log.temperatures);

    let status = on.get_device_log(Bytes::from_static(b"skytether/status")).await.unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!((&status["keys"], &status["value_bytes"], &status["connections"]), (&4.into(), &32.into(), &1.into()));
    let messages = on.get_log(&[LogType::Messages]).await.unwrap().messages.unwrap();
    assert!(String::from_utf8_lossy(&messages).contains("opened"));
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_batches_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    let delete = |key: &'static str| Change::Delete(Delete::new(Bytes::from_static(key.as_bytes()), None));
    on.batch(vec![Change::Put(put("a", "12345678")), Change::Put(put("b", "1234")), Change::Put(put("c", "")), delete("d")]).await.unwrap();
    assert_eq!((counted(&on, MessageType::Put).await, counted(&on, MessageType::Delete).await), ((3, 12), (1, 0)));
    assert_eq!((counted(&on, MessageType::StartBatch).await, counted(&on, MessageType::EndBatch).await), ((1, 0), (1, 0)));
    // As puts that are refused, members of a batch that does nothing were handled, too.
    let wrong = Put { expected: Some(Bytes::from_static(b"v9")), ..put("a", "12") };
    assert!(on.batch(vec![Change::Put(put("e", "123")), Change::Put(wrong.clone()), delete("b")]).await.is_err());
    assert_eq!((counted(&on, MessageType::Put).await, counted(&on, MessageType::Delete).await), ((5, 17), (2, 0)));
    assert!(on.put(wrong).await.is_err());
    on.put(put("f", "1")).await.unwrap();
    assert_eq!((counted(&on, MessageType::Put).await, counted(&on, MessageType::EndBatch).await), ((7, 20), (2, 0)));
    // Before its end, too: a batch that is aborted had them all the same.
    let mut raw = Raw::open(&served.plain).await;
    let batch = |kind| Header { batch_id: Some(7), ..of(kind) };
    let member = KeyValue { key: Some(Bytes::from_static(b"g")), synchronization: Some(Synchronization::WriteBack.into()), ..KeyValue::default() };
    raw.add(batch(MessageType::StartBatch), Body::default(), b"");
    raw.add(batch(MessageType::Put), Body { key_value: Some(member), ..Body::default() }, b"12345");
    raw.add(batch(MessageType::AbortBatch), Body { batch: Some(Batch::default()), ..Body::default() }, b"");
    raw.send().await;
    for _ in 0..2 {
        assert_eq!(raw.receive().await.0.status_code(), skytether_kinetic_protocol::StatusCode::Success);
    }
    assert_eq!((counted(&on, MessageType::Put).await, counted(&on, MessageType::AbortBatch).await), ((8, 25), (1, 0)));
}

/// The time that this process had of the processors, and that of all of them, idle or not, in ticks: proc(5).
fn ticks() -> (u64, u64) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let sum = |columns: &str, from: usize, count: usize| -> u64 {
        columns.split_whitespace().skip(from).take(count).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    };
    let (own, all) = (read("/proc/self/stat"), read("/proc/stat"));
    // The name in brackets may have spaces.
    (sum(own.rsplit_once(')').unwrap().1, 11, 2), sum(all.lines().next().unwrap(), 1, 8))
}

/// Other work of the machine counts as well, so this process' own time is what the share is at least.
#[tokio::test(flavor = "multi_thread")]
async fn utilization_of_processors_rises_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    let busy = async || {
        let log = on.get_log(&[LogType::Utilizations]).await.unwrap();
        log.utilizations.iter().find(|part| part.name() == "CPU").unwrap().value()
    };
    busy().await;
    let load = tokio::task::spawn_blocking(|| {
        let begun = ticks();
        while ticks().0 < begun.0 + 50 {}
        let (own, all) = ticks();
        ((own - begun.0) as f32) / ((all - begun.1) as f32)
    });
    let own = load.await.unwrap();
    let told = busy().await;
    // Half, as the drive's own time is a little longer.
    assert!(own > 0.0 && told >= own / 2.0 && told <= 1.0, "{told} of the processors' time, and the test alone had {own}");
}
