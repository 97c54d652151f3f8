//! Watches: programs that the drive runs after changes of keys.
//!
//! The program `note` puts the kind of the change under `<first argument>/<changed key>`, and prints it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic::{Change, ClientOptions, Connection, Delete, Execution, Identity, Noticed, Put, Watched};
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::command::{Command, Operation, P2pOperation, Peer};
use skytether_kinetic_protocol::kinds::{Language, LogType, Permission, PinOpType};
use skytether_kinetic_protocol::security::{Acl, Scope};
use skytether_kinetic_protocol::{HmacKey, MessageType, StatusCode};
use skytether_kinetic_server::Profile;
use tokio::sync::broadcast::Receiver;

use crate::{Served, open, put, serve};

const PATIENCE: Duration = Duration::from_secs(60);
const NOTE: &[u8] = include_bytes!("../../ebpf/tests/objects/note.o");
const ENDLESS: &[u8] = include_bytes!("../../ebpf/tests/objects/endless.o");

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn note(under: &'static str) -> Execution {
    Execution { arguments: vec![b(under)], ..Execution::new(Language::Ebpf, vec![b("note")]) }
}

fn keys(first: &'static str, last: &'static str) -> Watched {
    Watched::keys(b(first), b(last))
}

async fn with_note(dir: &Path) -> (Served, Connection) {
    let served = serve(dir, Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    on.put(Put::new(b("note"), Bytes::from_static(NOTE), None, Bytes::new())).await.unwrap();
    (served, on)
}

/// Whatever is stored.
async fn write(on: &Connection, key: &'static str) {
    on.put(Put { expected: None, ..put(key, "1") }).await.unwrap();
}

async fn delete(on: &Connection, key: &'static str) {
    on.delete(Delete::new(b(key), None)).await.unwrap();
}

/// What the drive counts of its watches.
async fn counted(on: &Connection, what: &str) -> u64 {
    let log = on.get_device_log(b("skytether/status")).await.unwrap();
    let status: serde_json::Value = serde_json::from_slice(&log).unwrap();
    status[what].as_u64().unwrap()
}

/// The next message about a watch: the changed key, its kind, and what the program printed or why it did not run.
async fn noticed(from: &mut Receiver<Command>) -> (Bytes, MessageType, Result<Bytes, StatusCode>) {
    loop {
        let said = tokio::time::timeout(PATIENCE, from.recv()).await.expect("the drive tells of each run").unwrap();
        if let Some(Noticed { key, kind, ended, .. }) = Noticed::read(&said).unwrap() {
            return (key, kind, ended.map(|result| result.output).map_err(|why| why.code));
        }
    }
}

async fn value(on: &Connection, key: &'static str) -> Option<Bytes> {
    on.get(b(key), false).await.ok().map(|found| found.value)
}

fn told(key: &'static str, kind: MessageType) -> (Bytes, MessageType, Result<Bytes, StatusCode>) {
    (b(key), kind, Ok(if kind == MessageType::Put { b("PUT") } else { b("DELETE") }))
}

/// An identity with these permissions on keys that begin with the texts.
fn user(scopes: &[(&'static str, &[Permission])]) -> Acl {
    let scope = |(value, permission): &(&'static str, &[Permission])| Scope {
        value: Some(b(value)),
        permission: permission.iter().map(|permission| i32::from(*permission)).collect(),
        ..Scope::default()
    };
    Acl { identity: Some(2), key: Some(b("narrow")), scope: scopes.iter().map(scope).collect(), ..default_identity() }
}

async fn as_user(served: &Served) -> Connection {
    let identity = Identity { number: 2, key: HmacKey::new(b"narrow") };
    open(&served.plain, &Arc::new(ClientOptions { identity, ..served.options.as_ref().clone() })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_in_scope_run_the_program_and_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_note(dir.path()).await;
    let mut says = on.notifications();
    on.watch(note("seen"), keys("a", "c"), true).await.unwrap();
    write(&on, "Z").await;
    write(&on, "b").await;
    assert_eq!(noticed(&mut says).await, told("b", MessageType::Put));
    assert_eq!(value(&on, "seen/b").await, Some(b("PUT")));
    write(&on, "c0").await;
    delete(&on, "b").await;
    assert_eq!(noticed(&mut says).await, told("b", MessageType::Delete));
    assert_eq!(value(&on, "seen/b").await, Some(b("DELETE")));
    // Both ends are in the scope. A forced delete of nothing is acknowledged, too; a refused one is not.
    write(&on, "c").await;
    assert_eq!(noticed(&mut says).await, told("c", MessageType::Put));
    assert_eq!(on.delete(Delete::new(b("aa"), Some(b("v9")))).await.unwrap_err().code(), Some(StatusCode::NotFound));
    delete(&on, "a").await;
    assert_eq!(noticed(&mut says).await, told("a", MessageType::Delete));
    assert_eq!((value(&on, "seen/Z").await, value(&on, "seen/c0").await), (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_one_kind_sees_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_note(dir.path()).await;
    let mut says = on.notifications();
    on.watch(note("seen"), Watched { kinds: vec![MessageType::Delete], ..keys("a", "c") }, true).await.unwrap();
    write(&on, "a").await;
    delete(&on, "b").await;
    assert_eq!(noticed(&mut says).await, told("b", MessageType::Delete));
    assert_eq!(value(&on, "seen/a").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_batch_count_once_each_when_committed() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_note(dir.path()).await;
    let mut says = on.notifications();
    on.watch(note("seen"), keys("a", "c"), true).await.unwrap();
    let change = |key| Change::Put(put(key, "1"));
    on.batch(vec![change("a"), change("z"), Change::Delete(Delete::new(b("b"), None))]).await.unwrap();
    assert_eq!(noticed(&mut says).await, told("a", MessageType::Put));
    assert_eq!(noticed(&mut says).await, told("b", MessageType::Delete));
    // The version of one is wrong, so none is done.
    let wrong = Change::Put(Put { expected: Some(b("v9")), ..put("a", "2") });
    assert!(on.batch(vec![change("b"), wrong]).await.is_err());
    write(&on, "c").await;
    assert_eq!(noticed(&mut says).await, told("c", MessageType::Put));
}

#[tokio::test(flavor = "multi_thread")]
async fn values_pushed_by_another_drive_are_puts() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (served, on) = with_note(dirs[0].path()).await;
    let other = serve(dirs[1].path(), Profile::Drive).await;
    let from = open(&other.plain, &other.options).await;
    write(&from, "a").await;
    let mut says = on.notifications();
    on.watch(note("seen"), keys("a", "c"), true).await.unwrap();
    let (host, port) = served.plain.socket().unwrap();
    let peer = Some(Peer { hostname: Some(host.to_owned()), port: Some(port.into()), tls: Some(false) });
    let copy = Operation { key: Some(b("a")), force: Some(true), ..Operation::default() };
    let pushed = from.push(P2pOperation { peer, operation: vec![copy], ..P2pOperation::default() }, PATIENCE).await.unwrap();
    assert!(pushed.all_child_operations_succeeded(), "{pushed:?}");
    assert_eq!(noticed(&mut says).await, told("a", MessageType::Put));
}

#[tokio::test(flavor = "multi_thread")]
async fn watched_program_has_the_rights_of_the_watcher() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_note(dir.path()).await;
    let rights: &[(&'static str, &[Permission])] = &[
        ("ours/", &[Permission::Range]),
        ("ours/read", &[Permission::Read]),
        ("note", &[Permission::Read]),
        ("seen/", &[Permission::Write]),
        ("", &[Permission::ManageApplet]),
    ];
    let admin = open(&served.tls, &served.options).await;
    admin.set_identities(vec![default_identity(), user(rights)]).await.unwrap();
    let narrow = as_user(&served).await;
    let mut says = narrow.notifications();
    let not_listed = narrow.watch(note("seen"), keys("ours/", "theirs/"), true).await.unwrap_err();
    assert_eq!(not_listed.code(), Some(StatusCode::NotAuthorized));
    let output = Execution { output_key: Some(b("ours/out")), ..note("seen") };
    assert_eq!(narrow.watch(output, keys("ours/a", "ours/z"), true).await.unwrap_err().code(), Some(StatusCode::NotAuthorized));
    narrow.watch(note("seen"), keys("ours/a", "ours/z"), true).await.unwrap();
    // It may not read the first, and so does not learn of it.
    write(&on, "ours/quiet").await;
    write(&on, "ours/read").await;
    assert_eq!(noticed(&mut says).await, told("ours/read", MessageType::Put));
    // Another scope of the same program, which writes where the watcher may not.
    narrow.unwatch(vec![b("note")], None).await.unwrap();
    narrow.watch(note("elsewhere"), keys("ours/a", "ours/z"), true).await.unwrap();
    write(&on, "ours/read").await;
    assert_eq!(noticed(&mut says).await, (b("ours/read"), MessageType::Put, Ok(Bytes::new())));
    assert_eq!((value(&on, "seen/ours/quiet").await, value(&on, "elsewhere/ours/read").await), (None, None));
    // Rights are those of now: it may read the other key, and write there.
    let wider: &[(&'static str, &[Permission])] =
        &[("", &[Permission::ManageApplet]), ("ours/", &[Permission::Range, Permission::Read]), ("note", &[Permission::Read]), ("else", &[Permission::Write])];
    admin.set_identities(vec![default_identity(), user(wider)]).await.unwrap();
    write(&on, "ours/quiet").await;
    assert_eq!(noticed(&mut says).await, told("ours/quiet", MessageType::Put));
    assert_eq!(value(&on, "elsewhere/ours/quiet").await, Some(b("PUT")));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_ends_with_its_identity() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_note(dir.path()).await;
    let all = user(&[("", &[Permission::ManageApplet, Permission::Read, Permission::Range])]);
    let admin = open(&served.tls, &served.options).await;
    admin.set_identities(vec![default_identity(), all.clone()]).await.unwrap();
    as_user(&served).await.watch(note("seen"), keys("a", "c"), false).await.unwrap();
    assert_eq!(counted(&on, "watches").await, 1);
    // An identity with another key is another one.
    admin.set_identities(vec![default_identity(), Acl { key: Some(b("another")), ..all }]).await.unwrap();
    assert_eq!(counted(&on, "watches").await, 0);
    assert_eq!(on.unwatch(vec![b("note")], None).await.unwrap_err().code(), Some(StatusCode::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_goes_on_after_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_note(dir.path()).await;
    let leaves = open(&served.plain, &served.options).await;
    leaves.watch(note("seen"), keys("a", "c"), true).await.unwrap();
    drop(leaves);
    write(&on, "b").await;
    while value(&on, "seen/b").await.is_none() {}
    // A watch of the same program and scope replaces it, and tells this connection.
    let mut says = on.notifications();
    on.watch(note("then"), keys("a", "c"), true).await.unwrap();
    assert_eq!(counted(&on, "watches").await, 1);
    write(&on, "a").await;
    assert_eq!(noticed(&mut says).await, told("a", MessageType::Put));
    assert_eq!((value(&on, "seen/a").await, value(&on, "then/a").await), (None, Some(b("PUT"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn unwatch_ends_the_watches_of_a_program_and_scope() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_note(dir.path()).await;
    let mut says = on.notifications();
    for (under, scope) in [("one", keys("a", "b")), ("two", keys("a", "c")), ("three", keys("c", "d"))] {
        on.watch(note(under), scope, true).await.unwrap();
    }
    let note_key = || vec![b("note")];
    assert_eq!(on.unwatch(note_key(), Some(keys("a", "z"))).await.unwrap_err().code(), Some(StatusCode::NotFound));
    assert_eq!(on.unwatch(vec![b("other")], None).await.unwrap_err().code(), Some(StatusCode::NotFound));
    on.unwatch(note_key(), Some(keys("a", "b"))).await.unwrap();
    write(&on, "a").await;
    assert_eq!(noticed(&mut says).await, told("a", MessageType::Put));
    assert_eq!((value(&on, "one/a").await, value(&on, "two/a").await), (None, Some(b("PUT"))));
    on.unwatch(note_key(), None).await.unwrap();
    assert_eq!(counted(&on, "watches").await, 0);
    assert_eq!(on.unwatch(note_key(), None).await.unwrap_err().code(), Some(StatusCode::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn erasure_ends_watches_and_their_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_note(dir.path()).await;
    on.put(Put::new(b("endless"), Bytes::from_static(ENDLESS), None, Bytes::new())).await.unwrap();
    on.watch(note("seen"), keys("a", "c"), true).await.unwrap();
    on.watch(Execution::new(Language::Ebpf, vec![b("endless")]), keys("d", "e"), false).await.unwrap();
    write(&on, "d").await;
    while on.programs(vec![b("endless")]).await.unwrap().is_empty() {}
    open(&served.tls, &served.options).await.pin_operation(PinOpType::Erase, Bytes::new(), PATIENCE).await.unwrap();
    while !on.programs(Vec::new()).await.unwrap().is_empty() {}
    assert_eq!(counted(&on, "watches").await, 0);
    on.put(Put::new(b("note"), Bytes::from_static(NOTE), None, Bytes::new())).await.unwrap();
    write(&on, "a").await;
    // A watch of now is told of changes of now.
    let mut says = on.notifications();
    on.watch(note("seen"), keys("b", "c"), true).await.unwrap();
    write(&on, "b").await;
    assert_eq!(noticed(&mut says).await, told("b", MessageType::Put));
    assert_eq!(value(&on, "seen/a").await, None);
}

/// Each of two watches writes into the scope of the other, and one of them into its own as well.
#[tokio::test(flavor = "multi_thread")]
async fn runs_do_not_start_the_watches_that_led_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_note(dir.path()).await;
    let mut says = on.notifications();
    on.watch(note("x"), keys("x", "y~"), true).await.unwrap();
    on.watch(note("y"), keys("x", "x~"), true).await.unwrap();
    for key in ["x1", "x2"] {
        write(&on, key).await;
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(String::from_utf8(noticed(&mut says).await.0.to_vec()).unwrap());
        }
        seen.sort();
        // The change, twice; x/x1 by the first watch, seen by the second; y/x1 by the second, seen by the first.
        assert_eq!(seen, [format!("x/{key}"), key.to_owned(), key.to_owned(), format!("y/{key}")]);
    }
    assert_eq!(counted(&on, "watch_runs").await, 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_of_changes_is_bounded_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_note(dir.path()).await;
    on.put(Put::new(b("endless"), Bytes::from_static(ENDLESS), None, Bytes::new())).await.unwrap();
    on.watch(Execution::new(Language::Ebpf, vec![b("endless")]), keys("k", "l"), false).await.unwrap();
    write(&on, "k").await;
    while on.programs(Vec::new()).await.unwrap().is_empty() {}
    let flood = |from: usize| (from..from + 600).map(|number| Change::Put(Put { key: format!("k{number:05}").into(), expected: None, ..put("", "1") }));
    for from in [0, 600, 0] {
        on.batch(flood(from).collect()).await.unwrap();
    }
    // 1,024 wait. The last batch had the keys of the first, which wait already.
    assert_eq!(counted(&on, "watch_missed").await, 1200 - 1024);
    assert_eq!(on.programs(Vec::new()).await.unwrap().len(), 1);
    // One turn is left for others.
    on.execute(Execution { arguments: vec![b("own"), b("key"), b("PUT")], ..note("own") }, PATIENCE).await.unwrap();
    on.unwatch(vec![b("endless")], None).await.unwrap();
    on.abort_program(vec![b("endless")]).await.unwrap();
    while !on.programs(Vec::new()).await.unwrap().is_empty() {}
    write(&on, "k").await;
    assert_eq!(on.programs(Vec::new()).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn program_that_is_gone_is_told_with_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_note(dir.path()).await;
    let mut says = on.notifications();
    on.watch(note("seen"), keys("a", "c"), true).await.unwrap();
    delete(&on, "note").await;
    write(&on, "a").await;
    assert_eq!(noticed(&mut says).await, (b("a"), MessageType::Put, Err(StatusCode::NotFound)));
    let log = on.get_log(&[LogType::Messages]).await.unwrap().messages.unwrap();
    assert!(String::from_utf8_lossy(&log).contains("the watched program note does not run"), "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_watches_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_served, on) = with_note(dir.path()).await;
    let refused = async |program: Execution, changes: Watched| on.watch(program, changes, false).await.unwrap_err().code();
    assert_eq!(refused(note("seen"), keys("b", "a")).await, Some(StatusCode::InvalidRequest));
    assert_eq!(refused(note("seen"), Watched { kinds: vec![MessageType::Get], ..keys("a", "b") }).await, Some(StatusCode::InvalidRequest));
    assert_eq!(refused(Execution { output_in_response: true, ..note("seen") }, keys("a", "b")).await, Some(StatusCode::InvalidRequest));
    let long = Execution { arguments: vec![vec![0; 64 << 10].into()], ..note("seen") };
    assert_eq!(refused(long, keys("a", "b")).await, Some(StatusCode::InvalidRequest));
    assert_eq!(refused(Execution::new(Language::Ebpf, vec![b("absent")]), keys("a", "b")).await, Some(StatusCode::NotFound));
    assert_eq!(refused(Execution::new(Language::Ebpf, Vec::new()), keys("a", "b")).await, Some(StatusCode::InvalidExecute));
    for number in 0..64 {
        on.watch(note("seen"), Watched::keys(Bytes::from(format!("a{number}")), b("b")), false).await.unwrap();
    }
    assert_eq!(refused(note("seen"), keys("a", "b")).await, Some(StatusCode::ServiceBusy));
}
