//! Programs that go from key to key: the list ends where the caller's scope does.

use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic::{Connection, Execution, Put};
use skytether_kinetic_protocol::kinds::{Language, Permission};
use skytether_kinetic_server::Profile;

use crate::rights::{connect, narrow, set};
use crate::{Served, open, serve};

/// Emits the particles above a threshold, of all values whose keys begin with a prefix.
const PARTICLES: &[u8] = include_bytes!("../../ebpf/tests/objects/particles.o");

/// Emits each key behind its argument.
const KEYS: &str = r#"(module
    (import "skytether" "arg" (func $arg (param i32 i32 i32) (result i64)))
    (import "skytether" "next" (func $next (param i32 i32 i32 i32) (result i64)))
    (import "skytether" "emit" (func $emit (param i32 i32)))
    (memory (export "memory") 1)
    (func (export "main") (result i32) (local $length i64)
        (local.set $length (call $arg (i32.const 0) (i32.const 0) (i32.const 1024)))
        (loop $further
            (local.set $length (call $next (i32.const 0) (i32.wrap_i64 (local.get $length)) (i32.const 0) (i32.const 1024)))
            (if (i64.ge_s (local.get $length) (i64.const 0)) (then
                (call $emit (i32.const 0) (i32.wrap_i64 (local.get $length)))
                (br $further))))
        i32.const 0))"#;

async fn output(on: &Connection, program: &'static str, arguments: Vec<Bytes>) -> Bytes {
    let run = Execution { arguments, output_in_response: true, ..Execution::new(Language::Ebpf, vec![program.into()]) };
    let ended = on.execute(run, Duration::from_secs(60)).await.unwrap();
    assert_eq!((ended.result.exit_code, ended.result.signal), (0, 0), "{ended:?}");
    ended.value
}

/// The letters of the keys `p/a` to `p/d` whose particles the eBPF program finds.
async fn by_ebpf(on: &Connection) -> String {
    let particles = output(on, "programs/particles", vec!["p/".into(), Bytes::copy_from_slice(&0.5_f64.to_le_bytes())]).await;
    particles.chunks(48).map(|particle| char::from(particle[0])).collect()
}

/// Likewise, of the keys that the WebAssembly program finds. It also finds what is behind.
async fn by_wasm(on: &Connection) -> String {
    let keys = output(on, "programs/keys", vec!["p/".into()]).await;
    String::from_utf8(keys.to_vec()).unwrap().replace("p/", "")
}

async fn with_programs(dir: &std::path::Path) -> (Served, Connection) {
    let served = serve(dir, Profile::Drive).await;
    let on = open(&served.plain, &served.options).await;
    let put = async |key: &'static str, value: Bytes| on.put(Put::new(key.into(), value, None, Bytes::new())).await.unwrap();
    for key in ["p/a", "p/b", "p/c", "p/d"] {
        put(key, [&[key.as_bytes()[2]; 44][..], &1_f32.to_le_bytes()[..]].concat().into()).await;
    }
    put("programs/particles", PARTICLES.into()).await;
    put("programs/keys", wat::parse_str(KEYS).unwrap().into()).await;
    (served, on)
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_list_keys_to_the_end_of_their_scope() {
    let dir = tempfile::tempdir().unwrap();
    let (served, on) = with_programs(dir.path()).await;
    let runs: (&'static str, &[Permission]) = ("", &[Permission::ManageApplet]);
    let own: (&'static str, &[Permission]) = ("programs/", &[Permission::Read]);
    let read: (&'static str, &[Permission]) = ("p/", &[Permission::Read]);
    let both: &[Permission] = &[Permission::Read, Permission::Range];
    set(
        &served,
        [
            narrow(2, &[runs, own, ("p/", both)]),
            narrow(3, &[runs, own, read, ("p/a", both), ("p/b", both)]),
            // The list ends before the first key that is outside, and does not go on behind it.
            narrow(4, &[runs, own, read, ("p/a", both), ("p/c", both)]),
            narrow(5, &[runs, own, read]),
        ],
    )
    .await;
    assert_eq!((by_ebpf(&on).await, by_wasm(&on).await), ("abcd".to_owned(), "abcdprograms/keysprograms/particles".to_owned()));
    for (number, letters) in [(2, "abcd"), (3, "ab"), (4, "a"), (5, "")] {
        let user = connect(&served, &served.plain, number).await;
        assert_eq!((by_ebpf(&user).await.as_str(), by_wasm(&user).await.as_str()), (letters, letters), "identity {number}");
    }
}

/// A key that may be listed need not be one that may be read.
#[tokio::test(flavor = "multi_thread")]
async fn listed_key_is_not_read_without_read() {
    let dir = tempfile::tempdir().unwrap();
    let (served, _on) = with_programs(dir.path()).await;
    set(&served, [narrow(2, &[("", &[Permission::ManageApplet]), ("programs/", &[Permission::Read]), ("p/", &[Permission::Range])])]).await;
    let user = connect(&served, &served.plain, 2).await;
    assert_eq!(by_wasm(&user).await, "abcd");
    let arguments = vec!["p/".into(), Bytes::copy_from_slice(&0.5_f64.to_le_bytes())];
    let run = Execution { arguments, ..Execution::new(Language::Ebpf, vec!["programs/particles".into()]) };
    let result = user.execute(run, Duration::from_secs(60)).await.unwrap().result;
    assert!(result.exit_code == -1 && result.message.contains("READ"), "{result:?}");
}
