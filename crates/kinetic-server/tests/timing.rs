//! Timeouts of requests, early exits of scans, and the highest priority of an identity.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_kinetic::{ClientOptions, Put};
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::command::{Body, Header, Range};
use skytether_kinetic_protocol::kinds::Synchronization;
use skytether_kinetic_protocol::security::Acl;
use skytether_kinetic_protocol::{MessageType, StatusCode};
use skytether_kinetic_server::Profile;

use crate::limits::status;
use crate::raw::{Raw, of, serve_gated};
use crate::{Served, open, serve};

/// A read waits for the writes before it. One that waited longer than its timeout is not carried out.
#[tokio::test(flavor = "multi_thread")]
async fn request_that_waited_too_long_is_expired() {
    let dir = tempfile::tempdir().unwrap();
    let (gated, served) = serve_gated(dir.path()).await;
    let other = open(&served.plain, &served.options).await;
    let mut raw = Raw::open(&served.plain).await;
    // The drive reads the clock when it takes the read, and the test can't see when that is: some attempts may be too
    // early.
    for _ in 0..50 {
        gated.shut();
        let written = raw.add_put("k");
        let (brief, patient) = (raw.add_get("k", 1), raw.add_get("k", 60_000));
        raw.send().await;
        while status(&other, "waiting_writes").await == 0 {}
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(20) {
            status(&other, "waiting_writes").await;
        }
        gated.open();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let (answer, value) = raw.receive().await;
            answers.push((answer.header.as_ref().unwrap().ack_sequence(), answer.status_code(), value));
        }
        assert_eq!((answers[0].0, answers[0].1), (written, StatusCode::Success));
        assert_eq!(answers[2], (patient, StatusCode::Success, Bytes::from_static(b"value")));
        if answers[1] == (brief, StatusCode::Expired, Bytes::new()) {
            return;
        }
        assert_eq!(answers[1].1, StatusCode::Success);
    }
    panic!("no read expired");
}

/// What a scan of all keys within `timeout` says: its status and where it ended.
async fn scan(raw: &mut Raw, timeout: u64, early_exit: bool, after: Option<Bytes>) -> (StatusCode, Option<Bytes>) {
    let inclusive = Some(after.is_none());
    let range = Range { start_key: after, start_key_inclusive: inclusive, end_key: Some(Bytes::from_static(b"z")), ..Range::default() };
    let header = Header { timeout: Some(timeout), early_exit: Some(early_exit), ..of(MessageType::MediaScan) };
    raw.add(header, Body { range: Some(range), ..Body::default() }, b"");
    raw.send().await;
    let (answer, _) = raw.receive().await;
    let code = answer.status_code();
    (code, answer.body.and_then(|body| body.range).and_then(|range| range.end_key))
}

async fn fill(served: &Served) {
    let on = open(&served.plain, &served.options).await;
    let value = Bytes::from(vec![7; 1 << 20]);
    for number in 0..48 {
        let put = Put::new(Bytes::from(format!("k{number:02}")), value.clone(), None, Bytes::new());
        on.put(Put { synchronization: Synchronization::WriteBack, ..put }).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scan_that_is_too_slow_names_its_last_key() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    fill(&served).await;
    let mut raw = Raw::open(&served.plain).await;
    // Without an early exit the scan fails, and with one it is a success; both tell how far they came.
    let (code, last) = scan(&mut raw, 1, false, None).await;
    assert!(code == StatusCode::Expired && last.is_some(), "{code} {last:?}");
    let (code, last) = scan(&mut raw, 1, true, None).await;
    assert!(code == StatusCode::Success && last.is_some(), "{code} {last:?}");
    // Going on from there, it gets to the end, which has no last key.
    let mut after = last;
    let mut steps = 1;
    while let Some(last) = after {
        let (code, next) = scan(&mut raw, 1, true, Some(last.clone())).await;
        assert!(code == StatusCode::Success && next.as_ref().is_none_or(|next| *next > last), "{code} {last:?} {next:?}");
        (after, steps) = (next, steps + 1);
    }
    assert!((2..=49).contains(&steps), "{steps}");
    assert_eq!(scan(&mut raw, 0, false, None).await, (StatusCode::Success, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn priority_above_that_of_the_identity_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let bounded = Acl { max_priority: Some(6), ..default_identity() };
    open(&served.tls, &served.options).await.set_identities(vec![bounded]).await.unwrap();
    let mut raw = Raw::open(&served.plain).await;
    for (priority, expected) in [(9, StatusCode::NotAuthorized), (7, StatusCode::NotAuthorized), (6, StatusCode::Success), (1, StatusCode::Success)] {
        raw.add(Header { priority: Some(priority), ..of(MessageType::Noop) }, Body::default(), b"");
        raw.send().await;
        assert_eq!(raw.receive().await.0.status_code(), expected, "{priority}");
    }
    // A client of ours says no priority, which is the normal one.
    let options: Arc<ClientOptions> = Arc::clone(&served.options);
    open(&served.plain, &options).await.noop().await.unwrap();
}
