//! Scans find what is damaged, and name it.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic::{Keys, Put};
use skytether_kinetic_protocol::StatusCode;
use skytether_kinetic_server::Options;
use skytether_kv::KeyValues;
use skytether_kv::backend::{Backend, Space, Step};
use skytether_kv::memory::Memory;

use crate::{open, serve_over};

const PATIENCE: Duration = Duration::from_secs(60);

/// The stored bytes of `key`, as the backend has them, and the key that it has them under.
fn stored(in_memory: &Memory, key: &[u8]) -> (Bytes, Vec<u8>) {
    let view = in_memory.view().unwrap();
    let mut all = view.range(Bound::Unbounded, Bound::Unbounded, false).map(Result::unwrap);
    let (key, record) = all.find(|(stored, _)| stored.len() == key.len() + 1 && stored.ends_with(key)).unwrap();
    (key, record.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn scan_names_the_keys_of_damaged_values() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Memory::default();
    let keys = KeyValues::over(Arc::new(disk.clone()), "damaged".to_owned(), &skytether_kv::Options::default()).unwrap();
    let served = serve_over(dir.path(), keys, Options::default(), false).await;
    let on = open(&served.plain, &served.options).await;
    for number in 0..10 {
        let (key, value) = (Bytes::from(format!("k{number}")), Bytes::from(format!("value {number}").repeat(40)));
        on.put(Put::new(key, value, None, Bytes::from_static(b"1"))).await.unwrap();
    }
    let range = |from: &'static str, to: &'static str| Keys {
        start: (Bytes::from_static(from.as_bytes()), true),
        end: (Bytes::from_static(to.as_bytes()), true),
        most: 100,
        reverse: false,
    };
    assert_eq!(on.media_scan(range("a", "z"), PATIENCE).await.unwrap(), Vec::<Bytes>::new());
    // One bit of two values, below the store.
    for key in ["k3", "k7"] {
        let (stored, mut record) = stored(&disk, key.as_bytes());
        *record.last_mut().unwrap() ^= 4;
        disk.commit(vec![Step::Put(Space::Records, stored, record.into())], u64::MAX, true).unwrap();
    }
    assert_eq!(on.media_scan(range("a", "z"), PATIENCE).await.unwrap(), ["k3", "k7"]);
    assert_eq!(on.media_scan(range("k4", "k9"), PATIENCE).await.unwrap(), ["k7"]);
    assert_eq!(on.media_scan(range("k4", "k6"), PATIENCE).await.unwrap(), Vec::<Bytes>::new());
    // A read of it fails, and its neighbours are there. A new value mends it.
    assert_eq!(on.get(Bytes::from_static(b"k3"), false).await.unwrap_err().code(), Some(StatusCode::PermDataError));
    on.get(Bytes::from_static(b"k4"), false).await.unwrap();
    on.put(Put::new(Bytes::from_static(b"k3"), Bytes::from_static(b"again"), None, Bytes::from_static(b"2"))).await.unwrap();
    assert_eq!(on.media_scan(range("a", "z"), PATIENCE).await.unwrap(), ["k7"]);
    let log = on.get_log(&[skytether_kinetic_protocol::kinds::LogType::Messages]).await.unwrap();
    let text = String::from_utf8(log.messages.unwrap().to_vec()).unwrap();
    assert!(text.contains("a media scan found 2 damaged values"), "{text}");
}
