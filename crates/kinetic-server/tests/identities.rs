//! Identities over TLS, and a drive that demands authentication.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic::{Change, ClientOptions, Identity};
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::kinds::{Permission, PinOpType};
use skytether_kinetic_protocol::security::{Acl, Scope};
use skytether_kinetic_protocol::{HmacKey, StatusCode};
use skytether_kinetic_server::Profile;

use crate::{open, put, serve_with};

/// With the profile `java`, identities are added to those that are there.
#[tokio::test(flavor = "multi_thread")]
async fn identities_of_a_demanding_drive_replace_known_keys() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve_with(dir.path(), Profile::Java, true).await;
    let secure = open(&served.tls, &served.options).await;
    let known = default_identity();
    assert_eq!(secure.set_identities(vec![known.clone()]).await.unwrap_err().code(), Some(StatusCode::InvalidRequest));
    assert_eq!(secure.set_erase_pin(Bytes::new(), Bytes::from_static(b"mine")).await.unwrap_err().code(), Some(StatusCode::NotAuthorized));
    secure.set_identities(vec![Acl { identity: Some(5), key: Some(Bytes::from_static(b"ours")), ..known.clone() }]).await.unwrap();
    let again = open(&served.tls, &served.options).await.set_identities(vec![Acl { identity: Some(6), ..known }]).await;
    assert_eq!(again.unwrap_err().code(), Some(StatusCode::HmacFailure));
}

#[tokio::test(flavor = "multi_thread")]
async fn member_that_may_not_be_written_fails_its_batch() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve_with(dir.path(), Profile::Drive, false).await;
    let scope = Scope { value: Some(Bytes::from_static(b"ours/")), permission: vec![Permission::Write.into(), Permission::Read.into()], ..Scope::default() };
    let narrow = Acl { identity: Some(2), key: Some(Bytes::from_static(b"narrow")), scope: vec![scope], ..default_identity() };
    open(&served.tls, &served.options).await.set_identities(vec![default_identity(), narrow]).await.unwrap();
    let identity = Identity { number: 2, key: HmacKey::new(b"narrow") };
    let user = open(&served.plain, &Arc::new(ClientOptions { identity, ..served.options.as_ref().clone() })).await;
    let refused = user.batch(vec![Change::Put(put("ours/a", "1")), Change::Put(put("theirs/a", "1")), Change::Put(put("ours/b", "1"))]).await;
    assert_eq!(refused.unwrap_err().code(), Some(StatusCode::InvalidBatch));
    assert_eq!(user.get(Bytes::from_static(b"ours/a"), false).await.unwrap_err().code(), Some(StatusCode::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn demanding_drive_refuses_the_key_that_all_know() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve_with(dir.path(), Profile::Drive, true).await;
    let secure = open(&served.tls, &served.options).await;
    let refused = |outcome: Result<(), skytether_kinetic::Failure>| outcome.unwrap_err().code() == Some(StatusCode::NotAuthorized);
    assert!(refused(secure.put(put("a", "1")).await));
    assert!(refused(secure.pin_operation(PinOpType::Erase, Bytes::new(), Duration::from_secs(20)).await));
    let ours = Acl { identity: Some(5), key: Some(Bytes::from_static(b"a key of our own")), ..default_identity() };
    secure.set_identities(vec![ours]).await.unwrap();
    // The new identities replace the old ones.
    assert_eq!(secure.put(put("a", "1")).await.unwrap_err().code(), Some(StatusCode::HmacFailure));
    let identity = Identity { number: 5, key: HmacKey::new(b"a key of our own") };
    let options = Arc::new(ClientOptions { identity, ..served.options.as_ref().clone() });
    for at in [&served.plain, &served.tls] {
        open(at, &options).await.put(put("a", "1")).await.unwrap();
    }
}
