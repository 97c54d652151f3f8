//! WebAssembly programs in the values of keys, run by the drive.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic::{ClientOptions, Connection, Execution, Identity, Put};
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::kinds::{AppletType, Language, Permission};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::security::{Acl, Scope};
use skytether_kinetic_protocol::{HmacKey, StatusCode};
use skytether_kinetic_server::Profile;

use crate::{open, put, serve};

const PATIENCE: Duration = Duration::from_secs(60);
const WORDS: &[u8] = include_bytes!("../../wasm/tests/modules/words.wasm");
const FILTER: &[u8] = include_bytes!("../../wasm/tests/modules/filter.wasm");
/// `(module (memory (export "memory") 1) (func (export "main") (result i32) (loop (br 0)) i32.const 0))`
const ENDLESS: &[u8] = b"\0asm\x01\0\0\0\x01\x05\x01\x60\0\x01\x7f\x03\x02\x01\0\x05\x03\x01\0\x01\
    \x07\x11\x02\x06memory\x02\0\x04main\0\0\x0a\x0b\x01\x09\0\x03\x40\x0c\0\x0b\x41\0\x0b";
/// A module that imports `env.malloc`.
const FOREIGN: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x02\x0e\x01\x03env\x06malloc\0\0";

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn program(language: Language, key: &'static str, arguments: &[&'static str]) -> Execution {
    Execution { arguments: arguments.iter().map(|text| b(text)).collect(), ..Execution::new(language, vec![b(key)]) }
}

async fn put_bytes(on: &Connection, key: &'static str, value: &[u8]) {
    on.put(Put::new(b(key), Bytes::copy_from_slice(value), None, Bytes::new())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn module_runs_whatever_its_language_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    put_bytes(&on, "words", WORDS).await;
    on.put(put("text", "to be or not to be")).await.unwrap();
    for language in [Language::Ebpf, Language::Native, Language::Llvm, Language::Java] {
        let ended = on.execute(program(language, "words", &["text"]), PATIENCE).await.unwrap();
        assert_eq!((ended.result.exit_code, ended.result.signal, &ended.result.output[..]), (0, 0, &b"6\n"[..]), "{language:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn module_writes_its_output_key() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    let (first, second) = FILTER.split_at(300);
    put_bytes(&on, "filter.0000", first).await;
    put_bytes(&on, "filter.0001", second).await;
    let record = |energy: f32| [&[7; 44][..], &energy.to_le_bytes()[..]].concat();
    let particles: Vec<u8> = [0.5, 2.5, 1.0, 9.0].into_iter().flat_map(record).collect();
    put_bytes(&on, "particles", &particles).await;
    let run = Execution {
        arguments: vec![b("particles"), Bytes::copy_from_slice(&1.5_f64.to_le_bytes())],
        output_key: Some(b("found")),
        output_in_response: true,
        ..Execution::new(Language::Ebpf, vec![b("filter.0000"), b("filter.0001")])
    };
    let ended = on.execute(run, PATIENCE).await.unwrap();
    assert_eq!((ended.result.exit_code, &ended.value[..]), (0, &[record(2.5), record(9.0)].concat()[..]));
    assert_eq!(on.get(b("found"), false).await.unwrap().value, ended.value);
}

#[tokio::test(flavor = "multi_thread")]
async fn module_has_no_more_rights_than_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    put_bytes(&on, "words", WORDS).await;
    for key in ["ours/text", "theirs/text"] {
        on.put(put(key, "one two")).await.unwrap();
    }
    let scope = |value: &'static str, permission: Permission| Scope { value: Some(b(value)), permission: vec![permission.into()], ..Scope::default() };
    let scopes = vec![scope("ours/", Permission::Read), scope("words", Permission::Read), scope("", Permission::ManageApplet)];
    let narrow = Acl { identity: Some(2), key: Some(b("narrow")), scope: scopes, ..default_identity() };
    open(&served.tls, &served.options).await.set_identities(vec![default_identity(), narrow]).await.unwrap();
    let identity = Identity { number: 2, key: HmacKey::new(b"narrow") };
    let user = open(&served.plain, &Arc::new(ClientOptions { identity, ..served.options.as_ref().clone() })).await;
    let ours = user.execute(program(Language::Ebpf, "words", &["ours/text"]), PATIENCE).await.unwrap();
    assert_eq!((ours.result.exit_code, &ours.result.output[..]), (0, &b"2\n"[..]));
    let theirs = user.execute(program(Language::Ebpf, "words", &["theirs/text"]), PATIENCE).await.unwrap();
    assert!(theirs.result.exit_code != 0 && theirs.result.message.contains("READ") && theirs.result.output.is_empty(), "{theirs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_module_ends_at_abort_and_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    put_bytes(&on, "endless", ENDLESS).await;
    let run = Execution { most: Some(Duration::from_millis(50)), ..program(Language::Ebpf, "endless", &[]) };
    let ended = on.execute(run, PATIENCE).await.unwrap();
    assert!([14, 24].contains(&ended.result.signal) && ended.value.is_empty(), "{ended:?}");
    let caller = open(&served.plain, &served.options).await;
    let waiting = tokio::spawn(async move { caller.execute(program(Language::Ebpf, "endless", &[]), PATIENCE).await });
    while on.programs(Vec::new()).await.unwrap().is_empty() {}
    // It may have come to the end of its instructions.
    let aborted = on.abort_program(vec![b("endless")]).await.is_ok();
    let ended = waiting.await.unwrap().unwrap();
    assert!(ended.result.signal == 24 || aborted && ended.result.signal == 9, "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn install_refuses_a_module_and_names_its_import() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    for (key, bytes) in [("words", WORDS), ("foreign", FOREIGN), ("broken", &WORDS[..200])] {
        put_bytes(&on, key, bytes).await;
    }
    let install = ManageApplet { manage_applet_type: Some(AppletType::Install.into()), lang: Some(Language::Native.into()), ..ManageApplet::default() };
    on.manage(ManageApplet { program_key: vec![b("words")], ..install.clone() }, PATIENCE).await.unwrap();
    for (key, part) in [("foreign", "env.malloc"), ("broken", "WebAssembly program")] {
        let refused = on.manage(ManageApplet { program_key: vec![b(key)], ..install.clone() }, PATIENCE).await.unwrap_err();
        assert_eq!(refused.code(), Some(StatusCode::InvalidExecute));
        assert!(refused.to_string().contains(part), "{refused}");
    }
}
