//! Pushes from drive to drive.

use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic_protocol::StatusCode;
use skytether_kinetic_protocol::command::{Operation, P2pOperation, Peer};
use skytether_kinetic_server::Profile;
use skytether_transport::Endpoint;

use crate::{open, put, serve};

const PATIENCE: Duration = Duration::from_secs(20);

fn peer(at: &Endpoint, tls: bool) -> Option<Peer> {
    let (host, port) = at.socket().unwrap();
    Some(Peer { hostname: Some(host.to_owned()), port: Some(port.into()), tls: Some(tls) })
}

fn copy(key: &'static str) -> Operation {
    Operation { key: Some(Bytes::from_static(key.as_bytes())), force: Some(true), ..Operation::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn push_copies_values_and_tells_of_each_failure() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (one, two) = (serve(dirs[0].path(), Profile::Drive).await, serve(dirs[1].path(), Profile::Drive).await);
    let on = open(&one.plain, &one.options).await;
    for (key, value) in [("a", "1"), ("b", "2")] {
        on.put(put(key, value)).await.unwrap();
    }
    let renamed = Operation { new_key: Some(Bytes::from_static(b"c")), ..copy("b") };
    let push = P2pOperation { peer: peer(&two.plain, false), operation: vec![copy("a"), renamed, copy("absent")], ..P2pOperation::default() };
    let pushed = on.push(push, PATIENCE).await.unwrap();
    let codes: Vec<_> = pushed.operation.iter().map(|operation| operation.status.as_ref().unwrap().code()).collect();
    assert_eq!(codes, [StatusCode::Success, StatusCode::Success, StatusCode::NotFound]);
    assert!(!pushed.all_child_operations_succeeded());
    let there = open(&two.plain, &two.options).await;
    for (key, value) in [("a", "1"), ("c", "2")] {
        let got = there.get(Bytes::from_static(key.as_bytes()), false).await.unwrap();
        assert_eq!((got.value, got.version), (Bytes::from_static(value.as_bytes()), Bytes::from_static(b"v1")));
    }
}

/// The peer is the drive itself, whose authority it trusts.
#[tokio::test(flavor = "multi_thread")]
async fn push_over_tls_reaches_a_peer_of_a_known_authority() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    on.put(put("a", "1")).await.unwrap();
    let renamed = Operation { new_key: Some(Bytes::from_static(b"c")), ..copy("a") };
    let pushed = on.push(P2pOperation { peer: peer(&served.tls, true), operation: vec![renamed], ..P2pOperation::default() }, PATIENCE).await.unwrap();
    assert!(pushed.all_child_operations_succeeded(), "{pushed:?}");
    assert_eq!(on.get(Bytes::from_static(b"c"), false).await.unwrap().value, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn push_goes_on_from_drive_to_drive() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut drives = Vec::new();
    for dir in &dirs {
        drives.push(serve(dir.path(), Profile::Drive).await);
    }
    let on = open(&drives[0].plain, &drives[0].options).await;
    on.put(put("a", "1")).await.unwrap();
    let further = P2pOperation { peer: peer(&drives[2].plain, false), operation: vec![copy("a")], ..P2pOperation::default() };
    let operation = Operation { p2pop: Some(further), ..copy("a") };
    let pushed = on.push(P2pOperation { peer: peer(&drives[1].plain, false), operation: vec![operation], ..P2pOperation::default() }, PATIENCE).await.unwrap();
    assert!(pushed.all_child_operations_succeeded(), "{pushed:?}");
    for drive in &drives[1..] {
        let got = open(&drive.plain, &drive.options).await.get(Bytes::from_static(b"a"), false).await.unwrap();
        assert_eq!(got.value, "1");
    }
}
