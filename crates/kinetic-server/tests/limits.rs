//! The announced limits are kept: numbers of connections and of requests under way, and lengths.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use skytether_common::Kind;
use skytether_kinetic::{Connection, Outcome, Put};
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::command::{Batch, Body, Header, KeyValue};
use skytether_kinetic_protocol::kinds::{AcknowledgeMode, AppletType, Language, Synchronization};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::security::Acl;
use skytether_kinetic_protocol::{Limits, MessageType, StatusCode};
use skytether_kinetic_server::Profile;

use crate::raw::{Raw, of, serve_gated};
use crate::{open, put, receipt, serve};

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

/// Programs count as reads do: they don't hold up what comes behind them, until there are too many.
#[tokio::test(flavor = "multi_thread")]
async fn reads_beyond_the_announced_depth_are_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (gated, served) = serve_gated(dir.path()).await;
    let (mut raw, other) = (Raw::open(&served.plain).await, open(&served.plain, &served.options).await);
    receipt::put_programs(&other).await;
    let most = Limits::DRIVE.max_outstanding_read_requests.unwrap() as usize;
    gated.shut();
    let slow = ManageApplet {
        manage_applet_type: Some(AppletType::Execute.into()),
        lang: Some(Language::Ebpf.into()),
        program_key: vec![Bytes::from_static(b"slow")],
        acknowledge_mode: Some(AcknowledgeMode::OnCompletion.into()),
        ..ManageApplet::default()
    };
    let mut sent: BTreeSet<u64> =
        (0..50).map(|_| raw.add(of(MessageType::ManageApplet), Body { manage_applet: Some(slow.clone()), ..Body::default() }, b"")).collect();
    raw.send().await;
    let running = async || other.programs(Vec::new()).await.unwrap().len();
    while running().await < most {}
    for _ in 0..200 {
        assert_eq!(running().await, most);
    }
    gated.open();
    while !sent.is_empty() {
        let (answer, _) = raw.receive().await;
        assert_eq!(answer.status_code(), StatusCode::Success);
        assert!(sent.remove(&answer.header.unwrap().ack_sequence()));
    }
}

fn code<T>(outcome: Outcome<T>) -> Option<StatusCode> {
    outcome.err().and_then(|failure| failure.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn lengths_beyond_the_announced_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.tls, &served.options).await;
    let bytes = |length: usize| Bytes::from(vec![b'x'; length]);
    let limit = |field: Option<u32>| field.unwrap() as usize;
    let told = *on.limits();
    let refused = Some(StatusCode::InvalidRequest);
    for (more, expected) in [(0, None), (1, refused)] {
        let plain = || Put::new(Bytes::from_static(b"k"), bytes(1), None, bytes(1));
        assert_eq!(code(on.put(Put { key: bytes(limit(told.max_key_size) + more), ..plain() }).await), expected, "key");
        assert_eq!(code(on.put(Put { value: bytes(limit(told.max_value_size) + more), ..plain() }).await), expected, "value");
        assert_eq!(code(on.put(Put { version: bytes(limit(told.max_version_size) + more), ..plain() }).await), expected, "version");
        assert_eq!(code(on.put(Put { tag: (bytes(limit(told.max_tag_size) + more), 1), ..plain() }).await), expected, "tag");
        let pin = || bytes(limit(told.max_pin_size) + more);
        assert_eq!(code(on.set_erase_pin(Bytes::new(), pin()).await), expected, "erase PIN");
        assert_eq!(code(on.set_lock_pin(Bytes::new(), pin()).await), expected, "lock PIN");
        // The first one stays.
        let others = 2..=(limit(told.max_identity_count) + more) as i64;
        let others = others.map(|number| Acl { identity: Some(number), ..default_identity() });
        let all = std::iter::once(default_identity()).chain(others).collect();
        assert_eq!(code(on.set_identities(all).await), expected, "identities");
        // The PINs, to set them again.
        on.set_erase_pin(bytes(limit(told.max_pin_size)), Bytes::new()).await.unwrap();
        on.set_lock_pin(bytes(limit(told.max_pin_size)), Bytes::new()).await.unwrap();
    }
}

/// Adds members of batch 1, and sends them: a put for each of these lengths, or deletes.
async fn fill(raw: &mut Raw, kind: MessageType, lengths: impl Iterator<Item = usize>) {
    raw.add(Header { batch_id: Some(1), ..of(MessageType::StartBatch) }, Body::default(), b"");
    for (number, length) in lengths.enumerate() {
        let member = KeyValue {
            key: Some(Bytes::from(format!("k{number}"))),
            force: Some(true),
            synchronization: Some(Synchronization::WriteBack.into()),
            ..KeyValue::default()
        };
        raw.add(Header { batch_id: Some(1), ..of(kind) }, Body { key_value: Some(member), ..Body::default() }, &vec![b'x'; length]);
        if length > 0 {
            raw.send().await;
        }
    }
    raw.send().await;
    assert_eq!(raw.receive().await.0.status_code(), StatusCode::Success);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_beyond_the_announced_size_end_their_connection() {
    const MIB: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let bytes = Limits::DRIVE.max_batch_size.unwrap() as usize;
    let deletes = Limits::DRIVE.max_deletes_per_batch.unwrap() as usize;
    let values = |more: Option<usize>| std::iter::repeat_n(MIB, bytes / MIB).chain(more);
    let mut raw = Raw::open(&served.plain).await;
    // As much as is announced, twice.
    for (kind, lengths) in [(MessageType::Put, values(None).collect::<Vec<_>>()), (MessageType::Delete, vec![0; deletes])] {
        let members = lengths.len();
        fill(&mut raw, kind, lengths.into_iter()).await;
        raw.add(Header { batch_id: Some(1), ..of(MessageType::EndBatch) }, Body { batch: Some(Batch::default()), ..Body::default() }, b"");
        raw.send().await;
        let (answer, _) = raw.receive().await;
        assert_eq!(answer.status_code(), StatusCode::Success);
        assert_eq!(answer.body.unwrap().batch.unwrap().sequence.len(), members);
    }
    for (kind, lengths, name) in [(MessageType::Put, values(Some(1)).collect::<Vec<_>>(), "bytes"), (MessageType::Delete, vec![0; deletes + 1], "deletes")] {
        let mut raw = Raw::open(&served.plain).await;
        fill(&mut raw, kind, lengths.into_iter()).await;
        let (farewell, _) = raw.receive().await;
        let status = farewell.status.unwrap();
        assert!(status.code() == StatusCode::InvalidRequest && status.text().contains(name), "{status:?}");
        raw.ended().await;
    }
    // Nothing of these was done.
    let on = open(&served.plain, &served.options).await;
    assert_eq!(status(&on, "keys").await, 0);
}
