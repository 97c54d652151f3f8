//! Native programs in the values of keys, compiled from C by these tests and run by the drive.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic::{ClientOptions, Connection, Execution, Identity, Noticed, Put, Watched};
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::kinds::{AppletType, Language, Permission, PinOpType};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::security::{Acl, Scope};
use skytether_kinetic_protocol::{HmacKey, StatusCode};
use skytether_kinetic_server::Options;

use crate::{Served, open, put, serve_as};

const PATIENCE: Duration = Duration::from_secs(60);

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn compiled(dir: &Path, linked: &str) -> Bytes {
    let (file, here) = (dir.join("keys"), env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-s", "-Wall", "-Werror", linked, "-I"]).arg(format!("{here}/../native/include"));
    let compiling = compiler.arg("-o").arg(&file).arg(format!("{here}/tests/native/keys.c")).output().expect("cc is needed to build the workspace, too");
    assert!(compiling.status.success(), "{}", String::from_utf8_lossy(&compiling.stderr));
    std::fs::read(file).unwrap().into()
}

fn program(arguments: &[&'static str]) -> Execution {
    Execution { arguments: arguments.iter().map(|text| b(text)).collect(), ..Execution::new(Language::Native, vec![b("keys")]) }
}

/// A drive that runs native programs, with one under `keys`.
async fn with_program(dir: &Path) -> (Served, Connection) {
    // Before the connection: one without a request ends after 2 s, and a compiler may take longer on a busy machine.
    let program = compiled(dir, "-static");
    let served = serve_as(dir, Options { native_programs: true, ..Options::default() }, false).await;
    let on = open(&served.plain, &served.options).await;
    on.put(Put::new(b("keys"), program, None, Bytes::new())).await.unwrap();
    (served, on)
}

/// Sets identity 2 with these permissions on keys that begin with the texts, and connects as it.
async fn as_user(served: &Served, scopes: &[(&'static str, &[Permission])]) -> Connection {
    let scope = |(value, permission): &(&'static str, &[Permission])| Scope {
        value: Some(b(value)),
        permission: permission.iter().map(|permission| i32::from(*permission)).collect(),
        ..Scope::default()
    };
    let user = Acl { identity: Some(2), key: Some(b("narrow")), scope: scopes.iter().map(scope).collect(), ..default_identity() };
    open(&served.tls, &served.options).await.set_identities(vec![default_identity(), user]).await.unwrap();
    let identity = Identity { number: 2, key: HmacKey::new(b"narrow") };
    open(&served.plain, &std::sync::Arc::new(ClientOptions { identity, ..served.options.as_ref().clone() })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn program_reads_and_writes_keys_over_its_socket() {
    if !contains() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_program(dir.path()).await;
    on.put(put("text", "to be or not to be")).await.unwrap();
    let ended = on.execute(program(&["upper", "text", "loud"]), PATIENCE).await.unwrap();
    assert_eq!((ended.result.exit_code, ended.result.signal, &ended.result.output[..]), (0, 0, &b"TO BE OR NOT TO BE"[..]), "{ended:?}");
    assert_eq!(on.get(b("loud"), false).await.unwrap().value, "TO BE OR NOT TO BE");
    let listed = on.execute(program(&["list"]), PATIENCE).await.unwrap();
    assert_eq!(listed.result.output, "keys loud text ");
    assert_eq!(on.execute(program(&["delete", "loud"]), PATIENCE).await.unwrap().result.exit_code, 0);
    assert!(on.get(b("loud"), false).await.is_err());
    // The program's own status: there is no such key.
    assert_eq!(on.execute(program(&["upper", "absent", "loud"]), PATIENCE).await.unwrap().result.exit_code, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn native_program_has_no_more_rights_than_its_caller() {
    if !contains() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_program(dir.path()).await;
    for key in ["ours/text", "theirs/text"] {
        on.put(put(key, "words")).await.unwrap();
    }
    let both = &[Permission::Read, Permission::Write][..];
    let user = as_user(&served, &[("ours/", both), ("keys", &[Permission::Read]), ("", &[Permission::ManageApplet])]).await;
    for (from, to, exit_code) in [("ours/text", "ours/loud", 0), ("theirs/text", "ours/loud", 3), ("ours/text", "theirs/loud", 3)] {
        let ended = user.execute(program(&["upper", from, to]), PATIENCE).await.unwrap();
        assert_eq!(ended.result.exit_code, exit_code, "{from} {to}: {ended:?}");
    }
    assert!(on.get(b("theirs/loud"), false).await.is_err());
    assert_eq!(user.execute(program(&["delete", "ours/loud"]), PATIENCE).await.unwrap().result.exit_code, 3);
}

/// Whatever its caller may do, a program can't administer the drive, start programs, or be somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn program_neither_administers_nor_starts_programs() {
    if !contains() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_program(dir.path()).await;
    let ended = on.execute(program(&["forbidden"]), PATIENCE).await.unwrap();
    assert_eq!(ended.result.output, "setup -3\nsecurity -3\npush -3\nscan -3\npower -3\nprogram -3\nnoop 0\n");
    let forged = on.execute(program(&["forge"]), PATIENCE).await.unwrap();
    assert_eq!(forged.result.output, "wrong key -2\nother identity -2\n");
}

/// The program reads the changed key, and writes the key `PUT`, which is in the scope as well.
#[tokio::test(flavor = "multi_thread")]
async fn watched_native_program_does_not_start_itself() {
    if !contains() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_program(dir.path()).await;
    let mut says = on.notifications();
    on.watch(program(&["upper"]), Watched::keys(Bytes::new(), Bytes::new()), true).await.unwrap();
    for (key, value) in [("one", "first"), ("two", "second")] {
        on.put(put(key, value)).await.unwrap();
        let said = tokio::time::timeout(PATIENCE, says.recv()).await.unwrap().unwrap();
        let Noticed { key: changed, ended, .. } = Noticed::read(&said).unwrap().unwrap();
        assert_eq!((&changed[..], ended.unwrap().output), (key.as_bytes(), value.to_uppercase().into()));
        assert_eq!(on.get(b("PUT"), false).await.unwrap().value, value.to_uppercase());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_goes_to_its_key_if_the_program_returns() {
    if !contains() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_program(dir.path()).await;
    let run = |arguments| Execution { output_key: Some(b("result")), output_in_response: true, ..program(arguments) };
    // Whatever it returns.
    let ended = on.execute(run(&["emit", "of today", "5"]), PATIENCE).await.unwrap();
    assert_eq!((ended.result.exit_code, &ended.value[..]), (5, &b"of today"[..]));
    assert_eq!(on.get(b("result"), false).await.unwrap().value, "of today");
    let stopped = Execution { most: Some(Duration::from_millis(300)), ..run(&["write", "counter"]) };
    let ended = on.execute(stopped, PATIENCE).await.unwrap();
    assert_eq!((ended.result.exit_code, ended.result.signal), (-1, 14), "{ended:?}");
    assert_eq!(on.get(b("result"), false).await.unwrap().value, "of today");
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_error_is_in_the_message() {
    if !contains() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_program(dir.path()).await;
    let ended = on.execute(program(&["fail"]), PATIENCE).await.unwrap();
    assert_eq!((ended.result.exit_code, ended.result.signal), (3, 0));
    assert_eq!(ended.result.message, "finished; its standard error; it went wrong; badly");
}

#[tokio::test(flavor = "multi_thread")]
async fn abort_and_erasure_end_a_native_program() {
    if !contains() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_program(dir.path()).await;
    let begin = || {
        let (plain, options) = (served.plain.clone(), served.options.clone());
        tokio::spawn(async move { open(&plain, &options).await.execute(program(&["write", "counter"]), PATIENCE).await })
    };
    let running = begin();
    while on.get(b("counter"), false).await.is_err() {}
    on.abort_program(vec![b("keys")]).await.unwrap();
    let ended = running.await.unwrap().unwrap();
    assert_eq!((ended.result.exit_code, ended.result.signal), (-1, 9), "{ended:?}");
    assert_eq!(on.execute(program(&["delete", "counter"]), PATIENCE).await.unwrap().result.exit_code, 0);
    let running = begin();
    while on.get(b("counter"), false).await.is_err() {}
    open(&served.tls, &served.options).await.pin_operation(PinOpType::Erase, Bytes::new(), PATIENCE).await.unwrap();
    let ended = running.await.unwrap().unwrap();
    assert_eq!(ended.result.signal, 9, "{ended:?}");
    // It wrote nothing to the erased drive.
    assert_eq!(served.keys.keys(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded, false, 10).unwrap(), Vec::<Bytes>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_drive_can_run_is_refused_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_program(dir.path()).await;
    on.put(Put::new(b("dynamic"), compiled(dir.path(), "-rdynamic"), None, Bytes::new())).await.unwrap();
    let mut foreign = compiled(dir.path(), "-static").to_vec();
    foreign[18] = 183;
    on.put(Put::new(b("foreign"), foreign.into(), None, Bytes::new())).await.unwrap();
    on.put(put("text", "#!/bin/sh")).await.unwrap();
    for (key, text) in [("dynamic", "dynamically linked"), ("foreign", "another machine (ELF number 183)"), ("text", "no ELF file")] {
        let refused = on.execute(Execution::new(Language::Native, vec![b(key)]), PATIENCE).await.unwrap_err();
        assert!(refused.code() == Some(StatusCode::InvalidExecute) && refused.to_string().contains(text), "{refused}");
        let install = ManageApplet { manage_applet_type: Some(AppletType::Install.into()), lang: Some(Language::Native.into()), ..ManageApplet::default() };
        let install = |key: &'static str| ManageApplet { program_key: vec![b(key)], ..install.clone() };
        assert!(on.manage(install(key), PATIENCE).await.unwrap_err().to_string().contains(text));
        on.manage(install("keys"), PATIENCE).await.unwrap();
    }
    // Objects of eBPF run as before.
    on.put(Put::new(b("words"), Bytes::from_static(include_bytes!("../../ebpf/tests/objects/words.o")), None, Bytes::new())).await.unwrap();
    let words = Execution { arguments: vec![b("text")], ..Execution::new(Language::Native, vec![b("words")]) };
    assert_eq!(on.execute(words, PATIENCE).await.unwrap().result.output, "1\n");
}

/// Whether this kernel contains programs. Where it does not (a container without CAP_SYS_ADMIN, a `chroot`), tests of
/// native programs say why and end; with SKYTETHER_NATIVE=required they fail.
fn contains() -> bool {
    static PROBED: OnceLock<Result<(), String>> = OnceLock::new();
    match PROBED.get_or_init(|| skytether_kinetic_server::Options { native_programs: true, ..Default::default() }.check().map_err(|e| e.to_string())) {
        Ok(()) => true,
        Err(why) => {
            assert!(std::env::var("SKYTETHER_NATIVE").as_deref() != Ok("required"), "{why}");
            eprintln!("skipped: {why}");
            false
        }
    }
}
