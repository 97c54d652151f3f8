//! The announced numbers of connections and of writes under way are kept.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use skytether_common::Kind;
use skytether_kinetic::Connection;
use skytether_kinetic_protocol::{Limits, StatusCode};
use skytether_kinetic_server::Profile;

use crate::raw::{Raw, serve_gated};
use crate::{open, put, serve};

/// A number of the drive's own log.
pub(crate) async fn status(on: &Connection, name: &str) -> u64 {
    let log = on.get_device_log(Bytes::from_static(b"skytether/status")).await.unwrap();
    serde_json::from_slice::<serde_json::Value>(&log).unwrap()[name].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_announced_are_turned_away() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let most = Limits::DRIVE.max_connections.unwrap() as usize;
    let mut all = Vec::new();
    for number in 0..most {
        // Both doors count.
        let at = if number % 10 == 0 { &served.tls } else { &served.plain };
        all.push(open(at, &served.options).await);
    }
    assert_eq!(status(&all[0], "connections").await, most as u64);
    for at in [&served.plain, &served.tls] {
        let refused = Connection::open(at, Arc::clone(&served.options)).await.unwrap_err();
        assert!(refused.kind() == Kind::Unavailable && refused.message().contains("100 connections"), "{refused}");
    }
    for on in &all[..3] {
        on.put(put("a", "1")).await.unwrap();
    }
    // A place that is given back is taken again.
    drop(all.pop());
    while status(&all[0], "connections").await == most as u64 {}
    open(&served.plain, &served.options).await.put(put("a", "2")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_beyond_the_announced_depth_are_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (gated, served) = serve_gated(dir.path()).await;
    let (mut raw, other) = (Raw::open(&served.plain).await, open(&served.plain, &served.options).await);
    let most = u64::from(Limits::DRIVE.max_outstanding_write_requests.unwrap());
    gated.shut();
    let mut sent: BTreeSet<u64> = (0..60).map(|number| raw.add_put(&format!("k{number}"))).collect();
    raw.send().await;
    while status(&other, "waiting_writes").await < most {}
    for _ in 0..200 {
        assert_eq!(status(&other, "waiting_writes").await, most);
    }
    gated.open();
    // Writes that wait together are answered as they end: a later one may be answered first.
    while !sent.is_empty() {
        let (answer, _) = raw.receive().await;
        assert_eq!(answer.status_code(), StatusCode::Success);
        assert!(sent.remove(&answer.header.unwrap().ack_sequence()));
    }
    assert_eq!(status(&other, "waiting_writes").await, 0);
}
