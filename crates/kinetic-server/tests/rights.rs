//! Identities with few rights: what each permission opens, and that it opens nothing else.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic::{ClientOptions, Connection, Delete, Execution, Identity, Keys, Outcome, Watched};
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::command::{Operation, P2pOperation, Peer};
use skytether_kinetic_protocol::kinds::{AppletType, Language, LogType, Permission, PowerLevel};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::security::{Acl, Scope};
use skytether_kinetic_protocol::{HmacKey, StatusCode};
use skytether_kinetic_server::Profile;
use skytether_transport::Endpoint;

use crate::{Served, open, put, serve};

const PATIENCE: Duration = Duration::from_secs(60);

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// An identity with these permissions on keys that begin with the texts. Its key is `narrow`.
pub(crate) fn narrow(number: i64, scopes: &[(&'static str, &[Permission])]) -> Acl {
    let scope = |(value, permission): &(&'static str, &[Permission])| Scope {
        value: Some(b(value)),
        permission: permission.iter().map(|permission| i32::from(*permission)).collect(),
        ..Scope::default()
    };
    Acl { identity: Some(number), key: Some(b("narrow")), scope: scopes.iter().map(scope).collect(), ..default_identity() }
}

/// Sets these identities in addition to the first one.
pub(crate) async fn set(served: &Served, narrow: impl IntoIterator<Item = Acl>) {
    let all = std::iter::once(default_identity()).chain(narrow).collect();
    open(&served.tls, &served.options).await.set_identities(all).await.unwrap();
}

/// A connection as one of them.
pub(crate) async fn connect(served: &Served, at: &Endpoint, number: i64) -> Connection {
    let on = as_one_of_them(served, at, number).await;
    on.noop().await.unwrap();
    on
}

async fn as_one_of_them(served: &Served, at: &Endpoint, number: i64) -> Connection {
    let identity = Identity { number, key: HmacKey::new(b"narrow") };
    open(at, &Arc::new(ClientOptions { identity, ..served.options.as_ref().clone() })).await
}

/// The status of a refusal; `None`: it was done.
fn code<T>(outcome: Outcome<T>) -> Option<StatusCode> {
    outcome.err().map(|failure| failure.code().unwrap_or_else(|| panic!("{failure}")))
}

fn range(first: &'static str, last: &'static str) -> Keys {
    Keys { start: (b(first), true), end: (b(last), true), most: 10, reverse: false }
}

fn copy(peer: &Endpoint, key: &'static str, new_key: &'static str) -> P2pOperation {
    let (host, port) = peer.socket().unwrap();
    let operation = Operation { key: Some(b(key)), new_key: Some(b(new_key)), force: Some(true), ..Operation::default() };
    P2pOperation {
        peer: Some(Peer { hostname: Some(host.to_owned()), port: Some(port.into()), tls: Some(false) }),
        operation: vec![operation],
        ..P2pOperation::default()
    }
}

fn install(key: &'static str) -> ManageApplet {
    let (manage_applet_type, lang) = (Some(AppletType::Install.into()), Some(Language::Ebpf.into()));
    ManageApplet { manage_applet_type, lang, program_key: vec![b(key)], ..ManageApplet::default() }
}

/// What requests that need this permission, and no other one, come to.
async fn all_of(permission: Permission, served: &Served, on: &Connection) -> Vec<Option<StatusCode>> {
    let a = || b("a");
    match permission {
        Permission::Read => vec![
            code(on.get(a(), false).await),
            code(on.get(a(), true).await),
            code(on.get_version(a()).await),
            code(on.get_next(b("A")).await),
            code(on.get_previous(b("a0")).await),
        ],
        Permission::Write => vec![code(on.put(put("a", "1")).await)],
        Permission::Delete => vec![code(on.delete(Delete::new(b("z"), None)).await)],
        Permission::Range => vec![
            code(on.get_key_range(range("a", "z")).await),
            code(on.media_scan(range("a", "z"), PATIENCE).await),
            code(on.media_optimize(range("a", "z"), PATIENCE).await),
        ],
        Permission::Setup => vec![code(on.set_cluster_version(0).await)],
        // No copies: a copy needs READ, too.
        Permission::PeerToPeer => vec![code(on.push(P2pOperation { operation: Vec::new(), ..copy(&served.plain, "a", "c") }, PATIENCE).await)],
        Permission::GetLog => vec![code(on.get_log(&[LogType::Limits]).await), code(on.get_device_log(b("skytether/status")).await)],
        Permission::Security => vec![code(on.set_erase_pin(Bytes::new(), Bytes::new()).await), code(on.set_lock_pin(Bytes::new(), Bytes::new()).await)],
        Permission::ManageApplet => vec![code(on.programs(Vec::new()).await)],
        Permission::PowerManagement => vec![code(on.set_power_level(PowerLevel::Operational).await)],
        Permission::Invalid => Vec::new(),
    }
}

/// One identity has all permissions but one, and another one has that one only. Both are asked over TLS, which no
/// permission is refused for.
#[tokio::test(flavor = "multi_thread")]
async fn each_permission_opens_its_operations_only() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    open(&served.plain, &served.options).await.put(put("a", "1")).await.unwrap();
    let all: Vec<Permission> = Permission::ALL.to_vec();
    assert_eq!(all.len(), 10);
    let without = |one: Permission| all.iter().copied().filter(|other| *other != one).collect::<Vec<_>>();
    let numbered = all.iter().zip(2..);
    let pairs = numbered.flat_map(|(one, number)| [narrow(number, &[("", &without(*one)[..])]), narrow(100 + number, &[("", &[*one][..])])]);
    set(&served, pairs.collect::<Vec<_>>()).await;
    for (permission, number) in all.iter().copied().zip(2..) {
        let (others, only) = (connect(&served, &served.tls, number).await, connect(&served, &served.tls, 100 + number).await);
        let refused = all_of(permission, &served, &others).await;
        assert!(!refused.is_empty() && refused.iter().all(|code| *code == Some(StatusCode::NotAuthorized)), "without {permission}: {refused:?}");
        let done = all_of(permission, &served, &only).await;
        assert!(done.iter().all(Option::is_none), "with {permission} only: {done:?}");
        for other in all.iter().copied().filter(|other| *other != permission) {
            let refused = all_of(other, &served, &only).await;
            assert!(refused.iter().all(|code| *code == Some(StatusCode::NotAuthorized)), "{other} with {permission} only: {refused:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_are_refused_without_manage_applet() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    on.put(skytether_kinetic::Put::new(b("words"), Bytes::from_static(include_bytes!("../../ebpf/tests/objects/words.o")), None, Bytes::new())).await.unwrap();
    let all_else: Vec<Permission> = Permission::ALL.iter().copied().filter(|one| *one != Permission::ManageApplet).collect();
    // A scope of some keys only does not do: a program may name any.
    set(&served, [narrow(2, &[("", &all_else[..]), ("words", &[Permission::ManageApplet])]), narrow(3, &[("", &[Permission::ManageApplet])])]).await;
    let words = || Execution::new(Language::Ebpf, vec![b("words")]);
    let (without, blind) = (connect(&served, &served.plain, 2).await, connect(&served, &served.plain, 3).await);
    let refused = Some(StatusCode::NotAuthorized);
    for on in [&without, &blind] {
        // The second may not read the program.
        assert_eq!(code(on.execute(words(), PATIENCE).await), refused);
        assert_eq!(code(on.start_program(words(), false).await), refused);
        assert_eq!(code(on.manage(install("words"), PATIENCE).await), refused);
        assert_eq!(code(on.watch(words(), Watched::keys(b("a"), b("b")), false).await), refused);
    }
    assert_eq!(code(without.abort_program(vec![b("words")]).await), refused);
    assert_eq!(code(without.unwatch(vec![b("words")], None).await), refused);
    assert_eq!(code(without.programs(Vec::new()).await), refused);
    assert_eq!(code(blind.abort_program(vec![b("words")]).await), Some(StatusCode::NotFound));
    assert_eq!(code(on.execute(words(), PATIENCE).await), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn pushed_keys_are_those_that_the_caller_may_read() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    for key in ["ours/a", "theirs/a"] {
        on.put(put(key, "1")).await.unwrap();
    }
    let rights: &[(&'static str, &[Permission])] = &[("", &[Permission::PeerToPeer]), ("ours/", &[Permission::Read]), ("copies/", &[Permission::Write])];
    set(&served, [narrow(2, rights)]).await;
    let user = connect(&served, &served.plain, 2).await;
    // The drive pushes to itself, as this identity.
    let pushed = user.push(copy(&served.plain, "ours/a", "copies/a"), PATIENCE).await.unwrap();
    assert!(pushed.all_child_operations_succeeded(), "{pushed:?}");
    assert_eq!(on.get(b("copies/a"), false).await.unwrap().value, "1");
    // One that it may not read, alone and behind one that it may: nothing is copied.
    let theirs = copy(&served.plain, "theirs/a", "copies/b");
    assert_eq!(code(user.push(theirs.clone(), PATIENCE).await), Some(StatusCode::NotAuthorized));
    let mut both = copy(&served.plain, "ours/a", "copies/c");
    both.operation.extend(theirs.operation);
    assert_eq!(code(user.push(both, PATIENCE).await), Some(StatusCode::NotAuthorized));
    // At the other drive it has its rights there.
    let elsewhere = user.push(copy(&served.plain, "ours/a", "others/a"), PATIENCE).await.unwrap();
    assert_eq!(elsewhere.operation[0].status.as_ref().unwrap().code(), StatusCode::NotAuthorized);
    assert_eq!(on.get_key_range(range("copies/", "others~")).await.unwrap(), ["copies/a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_need_range_of_both_ends_and_optimising_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    for key in ["ours/a", "theirs/a"] {
        on.put(put(key, "1")).await.unwrap();
    }
    set(&served, [narrow(2, &[("ours/", &[Permission::Range]), ("theirs/", &[Permission::Read])])]).await;
    let user = connect(&served, &served.plain, 2).await;
    assert_eq!(user.media_scan(range("ours/", "ours/z"), PATIENCE).await.unwrap(), Vec::<Bytes>::new());
    let refused = Some(StatusCode::NotAuthorized);
    for (first, last) in [("ours/", "theirs/"), ("", "ours/z"), ("theirs/", "theirs/z"), ("ours/", "")] {
        assert_eq!(code(user.media_scan(range(first, last), PATIENCE).await), refused, "{first} to {last}");
    }
    // It rewrites the whole store.
    assert_eq!(code(user.media_optimize(range("ours/", "ours/z"), PATIENCE).await), refused);
    on.media_optimize(range("ours/", "ours/z"), PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn security_is_refused_without_its_permission_or_tls() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let all_else: Vec<Permission> = Permission::ALL.iter().copied().filter(|one| *one != Permission::Security).collect();
    set(&served, [narrow(2, &[("", &all_else[..]), ("a", &[Permission::Security])])]).await;
    let more = || vec![default_identity(), narrow(9, &[("", Permission::ALL)])];
    let user = connect(&served, &served.tls, 2).await;
    assert_eq!(code(user.set_identities(more()).await), Some(StatusCode::NotAuthorized));
    assert_eq!(code(user.set_lock_pin(Bytes::new(), b("1")).await), Some(StatusCode::NotAuthorized));
    assert_eq!(code(user.set_erase_pin(Bytes::new(), b("1")).await), Some(StatusCode::NotAuthorized));
    let plain = open(&served.plain, &served.options).await;
    assert_eq!(code(plain.set_identities(more()).await), Some(StatusCode::InvalidRequest));
    assert_eq!(code(plain.set_lock_pin(Bytes::new(), b("1")).await), Some(StatusCode::InvalidRequest));
    // Nothing changed: no PIN is set, and there is no identity 9.
    let admin = open(&served.tls, &served.options).await;
    admin.set_erase_pin(b("any"), b("2")).await.unwrap();
    let unknown = as_one_of_them(&served, &served.plain, 9).await.noop().await;
    assert_eq!(code(unknown), Some(StatusCode::HmacFailure));
}
