//! What Kinetic clients see of the drive's own values.

use bytes::Bytes;
use skytether_common::Key;
use skytether_kinetic::{Delete, Keys};
use skytether_kinetic_protocol::StatusCode;
use skytether_kinetic_server::Profile;
use skytether_store::{Expect, Op, SliceStore};

use crate::{open, put, serve};

const SLICE: &str = "blood/pbmc/0000000000000001.data.0;00000000";

#[tokio::test(flavor = "multi_thread")]
async fn slice_is_read_by_its_name_and_never_changed() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let (key, name) = (Key::new(SLICE).unwrap(), Bytes::from_static(SLICE.as_bytes()));
    served.slices.apply(vec![Op::Put { key: key.clone(), value: "bytes".into(), expect: Expect::Absent }]).unwrap();
    let on = open(&served.plain, &served.options).await;
    let got = on.get(name.clone(), false).await.unwrap();
    assert_eq!((got.value, got.tag.len()), (Bytes::from_static(b"bytes"), 4));
    assert_eq!(on.get(name.clone(), true).await.unwrap().value, "");

    // A client's key of the same name is another one.
    on.put(put(SLICE, "theirs")).await.unwrap();
    assert_eq!(served.slices.get(&key).unwrap(), "bytes");
    assert_eq!(on.get(name.clone(), false).await.unwrap().value, "theirs");
    on.delete(Delete::new(name.clone(), None)).await.unwrap();
    on.delete(Delete::new(name.clone(), None)).await.unwrap();
    served.keys.erase(true).await.unwrap();
    assert_eq!((served.slices.get(&key).unwrap(), on.get(name, false).await.unwrap().value), ("bytes".into(), Bytes::from_static(b"bytes")));
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_have_keys_of_clients_only() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    served.slices.apply(vec![Op::Put { key: Key::new(SLICE).unwrap(), value: "bytes".into(), expect: Expect::Absent }]).unwrap();
    let on = open(&served.plain, &served.options).await;
    on.put(put("a", "1")).await.unwrap();
    let all = Keys { start: (Bytes::new(), true), end: (Bytes::from_static(b"zzz"), true), most: 10, reverse: false };
    assert_eq!(on.get_key_range(all).await.unwrap(), ["a"]);
    let absent = on.get(Bytes::from_static(b"blood/absent"), false).await.unwrap_err();
    assert_eq!(absent.code(), Some(StatusCode::NotFound));
}
