//! Connections: their order of writes, and those that say nothing, too little, or do not listen.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use skytether_kinetic::{Connection, Put};
use skytether_kinetic_protocol::command::Body;
use skytether_kinetic_protocol::kinds::Synchronization;
use skytether_kinetic_protocol::{MessageType, StatusCode};
use skytether_kinetic_server::{Options, Profile};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::limits::status;
use crate::raw::{Raw, of};
use crate::{Served, open, put, serve, serve_as};

/// Two connections, so that values of 1 MiB fill the store's queue while small ones are on their way.
#[tokio::test(flavor = "multi_thread")]
async fn writes_of_one_connection_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Java).await;
    let write = |connection: usize, number: usize| {
        let length = if number.is_multiple_of(3) { 1 << 20 } else { 8 };
        let mut value = vec![0; length];
        value[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let key = Bytes::from(format!("key-{connection}"));
        Put { synchronization: Synchronization::WriteBack, ..Put::new(key, value.into(), None, Bytes::new()) }
    };
    let of_one = |connection: usize| {
        let served = &served;
        async move {
            let on = open(&served.plain, &served.options).await;
            // The client sends them in this order.
            let all = join_all((0..150).map(|number| on.put(write(connection, number)))).await;
            all.into_iter().for_each(|done| done.unwrap());
            let last = on.get(Bytes::from(format!("key-{connection}")), false).await.unwrap().value;
            u64::from_be_bytes(last[..8].try_into().unwrap())
        }
    };
    assert_eq!(join_all([of_one(0), of_one(1)]).await, [149, 149]);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_without_a_request_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let mut silent = TcpStream::connect(served.plain.authority()).await.unwrap();
    let busy = open(&served.plain, &served.options).await;
    busy.put(put("a", "1")).await.unwrap();
    let mut said = Vec::new();
    silent.read_to_end(&mut said).await.unwrap();
    let why = b"came in time";
    assert!(said.windows(why.len()).any(|text| text == why), "{said:?}");
    // One that has asked for something may be idle as long as it likes.
    busy.put(put("a", "2")).await.unwrap();
}

/// A drive that waits for clients as briefly as a test likes; by default it is 60 s.
async fn serve_impatiently(dir: &std::path::Path) -> (Served, Connection) {
    assert_eq!(Options::default().patience, Duration::from_secs(60));
    let served = serve_as(dir, Options { patience: Duration::from_millis(500), ..Options::default() }, false).await;
    let on = open(&served.plain, &served.options).await;
    on.put(put("a", "1")).await.unwrap();
    (served, on)
}

/// A connection that has had an answer.
async fn used(served: &Served) -> Raw {
    let mut raw = Raw::open(&served.plain).await;
    noop(&mut raw).await;
    raw
}

async fn noop(raw: &mut Raw) {
    raw.add(of(MessageType::Noop), Body::default(), b"");
    raw.send().await;
    assert_eq!(raw.receive().await.0.status_code(), StatusCode::Success);
}

/// One sends a part of a frame and no more of it, one sends it byte by byte and never comes to its end. Both are told
/// why they must go. One that is idle between two frames stays.
#[tokio::test(flavor = "multi_thread")]
async fn frame_that_does_not_end_in_time_ends_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = serve_impatiently(dir.path()).await;
    let (mut idle, mut stops, mut drips) = (used(&served).await, used(&served).await, used(&served).await);
    stops.add_put("never");
    let begun = stops.take();
    stops.send_bytes(&begun[..begun.len() - 1]).await.unwrap();
    let dripping = tokio::spawn(async move {
        drips.add(of(MessageType::Put), Body::default(), &[b'x'; 100_000]);
        for byte in drips.take().iter() {
            if drips.send_bytes(&[*byte]).await.is_err() {
                return true;
            }
            // Far more often than the drive's patience ends; 100,000 of them take longer than any test may.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    });
    let (farewell, _) = stops.receive().await;
    let said = farewell.status.unwrap();
    assert!(said.code() == StatusCode::ConnectionTerminated && said.text().contains("no more of it"), "{said:?}");
    stops.ended().await;
    assert!(dripping.await.unwrap(), "the drive took all bytes");
    while status(&on, "connections").await > 2 {}
    noop(&mut idle).await;
    assert!(on.get(Bytes::from_static(b"never"), false).await.is_err());
}

/// Answers of 256 MiB are more than the buffers of any socket hold.
#[tokio::test(flavor = "multi_thread")]
async fn reader_that_takes_nothing_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = serve_impatiently(dir.path()).await;
    on.put(Put::new(Bytes::from_static(b"large"), vec![7; 1 << 20].into(), None, Bytes::new())).await.unwrap();
    let mut deaf = used(&served).await;
    for _ in 0..256 {
        deaf.add_get("large", 0);
    }
    deaf.send().await;
    while status(&on, "connections").await > 1 {}
    // What the buffers held is there, and then the connection is at its end.
    deaf.ended().await;
    on.put(put("a", "2")).await.unwrap();
}
