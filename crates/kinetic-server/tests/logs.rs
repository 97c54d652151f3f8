//! What a drive says of itself is true.

use bytes::Bytes;
use futures::future::join_all;
use skytether_kinetic_protocol::kinds::LogType;
use skytether_kinetic_protocol::{Limits, MessageType};
use skytether_kinetic_server::{Options, Profile};

use crate::{open, put, serve_as};

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
