//! What Kinetic clients see of the drive's own values.

use std::time::Duration;

use bytes::Bytes;
use skytether_common::Key;
use skytether_kinetic::{Connection, Delete, Execution, Keys, Put};
use skytether_kinetic_protocol::StatusCode;
use skytether_kinetic_protocol::kinds::{Language, Permission};
use skytether_kinetic_server::Profile;
use skytether_store::{Expect, Op, SliceStore};

use crate::rights::{connect, narrow, set};
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

/// What an identity gets of a slice: the length of its value, whether it has a version and metadata, and what programs
/// of eBPF and WebAssembly print that count its words.
type Found = Result<(usize, bool, usize, Vec<Bytes>), Vec<Option<StatusCode>>>;

async fn read(on: &Connection, slice: &'static str) -> Found {
    let name = || Bytes::from_static(slice.as_bytes());
    let (value, version, metadata) = (on.get(name(), false).await, on.get_version(name()).await, on.get(name(), true).await);
    let mut printed = Vec::new();
    let mut refused = Vec::new();
    for program in ["words.o", "words.wasm"] {
        let run = Execution { arguments: vec![name()], ..Execution::new(Language::Ebpf, vec![program.into()]) };
        let result = on.execute(run, Duration::from_secs(60)).await.unwrap().result;
        let is_refused = result.exit_code == -1 && result.message.contains("no scope with the permission READ") && result.output.is_empty();
        assert!(is_refused || result.exit_code == 0, "{result:?}");
        refused.extend(is_refused.then_some(Some(StatusCode::NotAuthorized)));
        printed.push(result.output);
    }
    refused.extend([value.as_ref().err(), version.as_ref().err(), metadata.as_ref().err()].into_iter().flatten().map(|failure| failure.code()));
    if !refused.is_empty() {
        return Err(refused);
    }
    Ok((value.unwrap().value.len(), version.unwrap().is_some(), metadata.unwrap().tag.len(), printed))
}

#[tokio::test(flavor = "multi_thread")]
async fn slice_is_read_by_those_who_may_read_its_name() {
    const OTHER: &str = "brain/pbmc/0000000000000001.data.0;00000000";
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    for slice in [SLICE, OTHER] {
        served.slices.apply(vec![Op::Put { key: Key::new(slice).unwrap(), value: "to be or".into(), expect: Expect::Absent }]).unwrap();
    }
    let on = open(&served.plain, &served.options).await;
    let programs: [(&'static str, &'static [u8]); 2] =
        [("words.o", include_bytes!("../../ebpf/tests/objects/words.o")), ("words.wasm", include_bytes!("../../wasm/tests/modules/words.wasm"))];
    for (key, program) in programs {
        on.put(Put::new(key.into(), Bytes::from_static(program), None, Bytes::new())).await.unwrap();
    }
    let all: Found = Ok((8, true, 4, vec![Bytes::from_static(b"3\n"); 2]));
    let runs: (&'static str, &[Permission]) = ("", &[Permission::ManageApplet]);
    let read_words: (&'static str, &[Permission]) = ("words.", &[Permission::Read]);
    let others: Vec<Permission> = Permission::ALL.iter().copied().filter(|one| *one != Permission::Read).collect();
    // The second may do all but read the slices.
    set(&served, [narrow(2, &[runs, read_words, ("blood/", &[Permission::Read])]), narrow(3, &[("", &others[..]), read_words])]).await;
    let (reader, blind) = (connect(&served, &served.plain, 2).await, connect(&served, &served.plain, 3).await);
    assert_eq!((read(&on, SLICE).await, read(&on, OTHER).await), (all.clone(), all.clone()));
    assert_eq!(read(&reader, SLICE).await, all);
    let none: Found = Err(vec![Some(StatusCode::NotAuthorized); 5]);
    assert_eq!((read(&reader, OTHER).await, read(&blind, SLICE).await, read(&blind, OTHER).await), (none.clone(), none.clone(), none));
    // Nor does one learn whether there is a slice.
    let absent = blind.get(Bytes::from_static(b"blood/absent"), false).await.unwrap_err();
    assert_eq!(absent.code(), Some(StatusCode::NotAuthorized));
}
