//! PINs: a wrong one costs time, and changes nothing.

use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_kinetic::{Connection, Outcome};
use skytether_kinetic_protocol::StatusCode;
use skytether_kinetic_protocol::kinds::PinOpType;
use skytether_kinetic_server::Profile;

use crate::{Served, open, put, serve};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a wrong PIN costs.
const PENALTY: Duration = Duration::from_secs(1);

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn refused(outcome: Outcome<()>) -> bool {
    outcome.is_err_and(|failure| failure.code() == Some(StatusCode::NotAuthorized))
}

async fn with_pin(dir: &std::path::Path) -> (Served, Connection) {
    let served = serve(dir, Profile::Drive).await;
    let on = open(&served.tls, &served.options).await;
    on.set_lock_pin(Bytes::new(), b("right")).await.unwrap();
    (served, on)
}

/// All connections together have one guess in that time, and the right PIN waits, too.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_pins_keep_all_others_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_pin(dir.path()).await;
    let other = open(&served.tls, &served.options).await;
    other.noop().await.unwrap();
    let begun = Instant::now();
    let lock = async |on: &Connection, pin| on.pin_operation(PinOpType::Lock, pin, PATIENCE).await;
    let (one, two) = futures::join!(lock(&on, b("wrong")), lock(&other, b("left")));
    assert!(refused(one) && refused(two) && begun.elapsed() >= 2 * PENALTY, "{:?}", begun.elapsed());
    on.put(put("a", "1")).await.unwrap();
    // Both orders of arrival: the right one is done at once, or after the wrong one.
    let (wrong, right) = futures::join!(lock(&on, b("wrong")), lock(&other, b("right")));
    assert!(refused(wrong) && right.is_ok());
    assert_eq!(on.put(put("a", "1")).await.unwrap_err().code(), Some(StatusCode::DeviceLocked));
    let begun = Instant::now();
    assert!(refused(on.pin_operation(PinOpType::Unlock, b("wrong"), PATIENCE).await) && begun.elapsed() >= PENALTY);
    on.pin_operation(PinOpType::Unlock, b("right"), PATIENCE).await.unwrap();
    on.put(put("a", "2")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_pin_changes_for_those_who_know_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_pin(dir.path()).await;
    for wrong in ["wrong", "", "righ", "right\0"] {
        let begun = Instant::now();
        assert!(refused(on.set_lock_pin(b(wrong), b("mine")).await) && begun.elapsed() >= PENALTY, "{wrong:?}");
    }
    // It is what it was.
    assert!(refused(on.pin_operation(PinOpType::Lock, b("mine"), PATIENCE).await));
    on.set_lock_pin(b("right"), b("new")).await.unwrap();
    assert!(refused(on.pin_operation(PinOpType::Lock, b("right"), PATIENCE).await));
    on.pin_operation(PinOpType::Lock, b("new"), PATIENCE).await.unwrap();
    on.pin_operation(PinOpType::Unlock, b("new"), PATIENCE).await.unwrap();
    // Without a PIN again, the drive does not lock.
    on.set_lock_pin(b("new"), Bytes::new()).await.unwrap();
    assert!(refused(on.pin_operation(PinOpType::Lock, Bytes::new(), PATIENCE).await));
    on.put(put("a", "1")).await.unwrap();
}
