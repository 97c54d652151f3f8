//! eBPF programs in the values of keys, run by the drive.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_common::Key;
use skytether_kinetic::{ClientOptions, Connection, Execution, Identity, Put};
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::kinds::{AppletType, Language, Permission};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::security::{Acl, Scope};
use skytether_kinetic_protocol::{HmacKey, StatusCode};
use skytether_kinetic_server::Profile;
use skytether_store::{Expect, Op, SliceStore};

use crate::{Served, open, put, serve};

const PATIENCE: Duration = Duration::from_secs(60);
const WORDS: &[u8] = include_bytes!("../../ebpf/tests/objects/words.o");
const ENDLESS: &[u8] = include_bytes!("../../ebpf/tests/objects/endless.o");
const FILTER: &[u8] = include_bytes!("../../ebpf/tests/objects/filter.o");

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn program(key: &'static str, arguments: &[&'static str]) -> Execution {
    Execution { arguments: arguments.iter().map(|text| b(text)).collect(), ..Execution::new(Language::Ebpf, vec![b(key)]) }
}

async fn put_bytes(on: &Connection, key: &'static str, value: Bytes) {
    on.put(Put::new(b(key), value, None, Bytes::new())).await.unwrap();
}

async fn with_words(dir: &std::path::Path) -> (Served, Connection) {
    let served = serve(dir, Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    put_bytes(&on, "words", Bytes::from_static(WORDS)).await;
    (served, on)
}

#[tokio::test(flavor = "multi_thread")]
async fn program_counts_words_of_a_key_and_of_a_slice() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_words(dir.path()).await;
    on.put(put("text", "to be or not to be")).await.unwrap();
    let slice = Key::new("a/b/slice;00000000").unwrap();
    served.slices.apply(vec![Op::Put { key: slice, value: "in a slice".into(), expect: Expect::Absent }]).unwrap();
    for (key, words) in [("text", "6\n"), ("a/b/slice;00000000", "3\n")] {
        let ended = on.execute(program("words", &[key]), PATIENCE).await.unwrap();
        assert_eq!((ended.result.exit_code, ended.result.signal, &ended.result.output[..]), (0, 0, words.as_bytes()));
    }
    let absent = on.execute(program("words", &["absent"]), PATIENCE).await.unwrap();
    assert_eq!((absent.result.exit_code, &absent.result.output[..]), (1, &b"no such key\n"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn program_of_several_keys_writes_its_output_key() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    let (first, second) = FILTER.split_at(300);
    put_bytes(&on, "filter.0000", Bytes::copy_from_slice(first)).await;
    put_bytes(&on, "filter.0001", Bytes::copy_from_slice(second)).await;
    let record = |energy: f32| [&[7; 44][..], &energy.to_le_bytes()[..]].concat();
    let particles: Vec<u8> = [0.5, 2.5, 1.0, 9.0].into_iter().flat_map(record).collect();
    put_bytes(&on, "particles", particles.into()).await;
    let run = Execution {
        arguments: vec![b("particles"), Bytes::copy_from_slice(&1.5_f64.to_le_bytes())],
        output_key: Some(b("found")),
        output_in_response: true,
        ..Execution::new(Language::Ebpf, vec![b("filter.0000"), b("filter.0001")])
    };
    let ended = on.execute(run, PATIENCE).await.unwrap();
    assert_eq!(ended.result.exit_code, 0, "{ended:?}");
    assert_eq!(ended.value, [record(2.5), record(9.0)].concat());
    assert_eq!(on.get(b("found"), false).await.unwrap().value, ended.value);
}

#[tokio::test(flavor = "multi_thread")]
async fn program_has_no_more_rights_than_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_words(dir.path()).await;
    for key in ["ours/text", "theirs/text"] {
        on.put(put(key, "one two")).await.unwrap();
    }
    let scope = |value: &'static str, permission: &[Permission]| Scope {
        value: Some(b(value)),
        permission: permission.iter().map(|permission| i32::from(*permission)).collect(),
        ..Scope::default()
    };
    let scopes = vec![scope("ours/", &[Permission::Read]), scope("words", &[Permission::Read]), scope("", &[Permission::ManageApplet])];
    let narrow = Acl { identity: Some(2), key: Some(b("narrow")), scope: scopes, ..default_identity() };
    open(&served.tls, &served.options).await.set_identities(vec![default_identity(), narrow]).await.unwrap();
    let identity = Identity { number: 2, key: HmacKey::new(b"narrow") };
    let user = open(&served.plain, &Arc::new(ClientOptions { identity, ..served.options.as_ref().clone() })).await;
    let ours = user.execute(program("words", &["ours/text"]), PATIENCE).await.unwrap();
    assert_eq!((ours.result.exit_code, &ours.result.output[..]), (0, &b"2\n"[..]));
    let theirs = user.execute(program("words", &["theirs/text"]), PATIENCE).await.unwrap();
    assert!(theirs.result.exit_code != 0 && theirs.result.message.contains("READ"), "{theirs:?}");
    // Nor may it name an output key that its caller may not write.
    let writes = Execution { output_key: Some(b("ours/out")), ..program("words", &["ours/text"]) };
    assert_eq!(user.execute(writes, PATIENCE).await.unwrap_err().code(), Some(StatusCode::NotAuthorized));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_program_is_refused_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_words(dir.path()).await;
    on.put(put("text", "no program")).await.unwrap();
    put_bytes(&on, "maps", Bytes::from_static(include_bytes!("../../ebpf/tests/objects/refused_maps.o"))).await;
    for (key, code) in [("text", StatusCode::InvalidExecute), ("maps", StatusCode::InvalidExecute), ("absent", StatusCode::NotFound)] {
        assert_eq!(on.execute(program(key, &[]), PATIENCE).await.unwrap_err().code(), Some(code), "{key}");
    }
    let native = Execution::new(Language::Native, vec![b("text")]);
    let refused = on.execute(native, PATIENCE).await.unwrap_err();
    assert!(refused.to_string().contains("native programs are off"), "{refused}");
    let install = ManageApplet { manage_applet_type: Some(AppletType::Install.into()), lang: Some(Language::Ebpf.into()), ..ManageApplet::default() };
    on.manage(ManageApplet { program_key: vec![b("words")], ..install.clone() }, PATIENCE).await.unwrap();
    assert_eq!(on.manage(ManageApplet { program_key: vec![b("maps")], ..install }, PATIENCE).await.unwrap_err().code(), Some(StatusCode::InvalidExecute));
    assert_eq!(on.programs(Vec::new()).await.unwrap(), []);
    assert_eq!(on.abort_program(vec![b("words")]).await.unwrap_err().code(), Some(StatusCode::NotFound));
    // Nor is there a debugger, or a number that means nothing.
    for (what, name) in [(i32::from(AppletType::Debug), "DEBUG"), (77, "INVALID")] {
        let applet = ManageApplet { manage_applet_type: Some(what), program_key: vec![b("words")], ..ManageApplet::default() };
        let refused = on.manage(applet, PATIENCE).await.unwrap_err();
        assert!(refused.code() == Some(StatusCode::InvalidExecute) && refused.to_string().contains(&format!("does not do {name}")), "{refused}");
    }
}

/// Its bytes are checked when it is installed or updated, and a new value under its key is what runs from then on.
#[tokio::test(flavor = "multi_thread")]
async fn program_is_installed_updated_and_uninstalled() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_words(dir.path()).await;
    on.put(put("text", "to be or not to be")).await.unwrap();
    let manage = |what: AppletType, key: &'static str| {
        let asked =
            ManageApplet { manage_applet_type: Some(what.into()), lang: Some(Language::Ebpf.into()), program_key: vec![b(key)], ..ManageApplet::default() };
        on.manage(asked, PATIENCE)
    };
    manage(AppletType::Install, "words").await.unwrap();
    assert_eq!(&on.execute(program("words", &["text"]), PATIENCE).await.unwrap().result.output[..], b"6\n");

    // An update that is no program is refused by name; one that is replaces what runs.
    on.put(put("words", "no program")).await.unwrap();
    let refused = manage(AppletType::Update, "words").await.unwrap_err();
    assert!(refused.code() == Some(StatusCode::InvalidExecute) && refused.to_string().contains("no ELF object"), "{refused}");
    put_bytes(&on, "words", Bytes::from_static(ENDLESS)).await;
    manage(AppletType::Update, "words").await.unwrap();
    let stopped = on.execute(Execution { most: Some(Duration::from_millis(50)), ..program("words", &["text"]) }, PATIENCE).await.unwrap();
    assert!(stopped.result.signal != 0, "{stopped:?}");

    // Uninstalling frees what is loaded. The program's bytes are a value of its key, which stays until it is deleted.
    manage(AppletType::Uninstall, "words").await.unwrap();
    put_bytes(&on, "words", Bytes::from_static(WORDS)).await;
    assert_eq!(&on.execute(program("words", &["text"]), PATIENCE).await.unwrap().result.output[..], b"6\n");
    manage(AppletType::Uninstall, "words").await.unwrap();
    for what in [AppletType::Install, AppletType::Update, AppletType::Uninstall] {
        assert_eq!(manage(what, "absent").await.unwrap_err().code(), Some(StatusCode::NotFound), "{what}");
    }
    assert_eq!(on.programs(Vec::new()).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn program_ends_when_its_caller_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_words(dir.path()).await;
    put_bytes(&on, "endless", Bytes::from_static(ENDLESS)).await;
    let caller = open(&served.plain, &served.options).await;
    let waiting = tokio::spawn(async move { caller.execute(program("endless", &[]), PATIENCE).await });
    while on.programs(Vec::new()).await.unwrap().is_empty() {}
    waiting.abort();
    while !on.programs(Vec::new()).await.unwrap().is_empty() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_program_leaves_its_output_key_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_words(dir.path()).await;
    put_bytes(&on, "endless", Bytes::from_static(ENDLESS)).await;
    on.put(put("result", "of yesterday")).await.unwrap();
    let run = Execution { output_key: Some(b("result")), most: Some(Duration::from_millis(100)), ..program("endless", &[]) };
    let ended = on.execute(run, PATIENCE).await.unwrap();
    assert!(ended.result.signal != 0, "{ended:?}");
    assert_eq!(on.get(b("result"), false).await.unwrap().value, "of yesterday");
}
