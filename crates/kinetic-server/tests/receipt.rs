//! Programs that are answered on receipt: their ends are told, or are not; with the connection or after it.

use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic::{Connection, Execution, ProgramResult, Put};
use skytether_kinetic_protocol::command::{Body, Command};
use skytether_kinetic_protocol::kinds::{AcknowledgeMode, AppletType, Language};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::{MessageType, StatusCode};

use crate::limits::status;
use crate::open;
use crate::raw::{Gated, Raw, of, serve_gated};

/// Puts a value, then emits and prints `done` and returns 7.
const SLOW: &str = r#"(module
    (import "skytether" "put" (func $put (param i32 i32 i32 i32)))
    (import "skytether" "emit" (func $emit (param i32 i32)))
    (import "skytether" "print" (func $print (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "wentdone")
    (func (export "main") (result i32)
        (call $put (i32.const 0) (i32.const 4) (i32.const 4) (i32.const 4))
        (call $emit (i32.const 4) (i32.const 4))
        (call $print (i32.const 4) (i32.const 4))
        i32.const 7))"#;

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// A program under `slow` that waits for the store, and under `broken` what is none.
pub(crate) async fn put_programs(on: &Connection) {
    for (key, program) in [("slow", Bytes::from(wat::parse_str(SLOW).unwrap())), ("broken", b("no program"))] {
        on.put(Put::new(b(key), program, None, Bytes::new())).await.unwrap();
    }
}

/// Asks for a run of a program whose output goes to the key `out` and into the message about its end; the sequence of
/// the request.
async fn begin(raw: &mut Raw, key: &'static str) -> u64 {
    let applet = ManageApplet {
        manage_applet_type: Some(AppletType::Execute.into()),
        lang: Some(Language::Ebpf.into()),
        program_key: vec![b(key)],
        acknowledge_mode: Some(AcknowledgeMode::OnReceipt.into()),
        notify_on_completion: Some(true),
        output_key: Some(b("out")),
        set_value_in_response: Some(true),
        ..ManageApplet::default()
    };
    let sequence = raw.add(of(MessageType::ManageApplet), Body { manage_applet: Some(applet), ..Body::default() }, b"");
    raw.send().await;
    sequence
}

fn acknowledges(command: &Command) -> u64 {
    command.header.as_ref().unwrap().ack_sequence()
}

/// The store takes no writes before the answer and that of a later request are there, so the program still runs then.
#[tokio::test(flavor = "multi_thread")]
async fn run_is_answered_on_receipt_and_its_end_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (gated, served) = serve_gated(dir.path()).await;
    let on = open(&served.plain, &served.options).await;
    put_programs(&on).await;
    gated.shut();
    let mut raw = Raw::open(&served.plain).await;
    let sequence = begin(&mut raw, "slow").await;
    let (answer, value) = raw.receive().await;
    assert_eq!((acknowledges(&answer), answer.status_code(), value), (sequence, StatusCode::Success, Bytes::new()));
    assert_eq!(answer.header.unwrap().message_type(), MessageType::ManageAppletResponse);
    let later = raw.add(of(MessageType::Noop), Body::default(), b"");
    raw.send().await;
    assert_eq!(acknowledges(&raw.receive().await.0), later);
    while on.programs(vec![b("slow")]).await.unwrap().is_empty() {}
    gated.open();
    let (told, value) = raw.receive().await;
    assert_eq!((acknowledges(&told), told.status_code(), &value[..]), (sequence, StatusCode::ExecuteComplete, &b"done"[..]));
    let result = ProgramResult::parse(&told.status.unwrap().detailed_message.unwrap()).unwrap();
    assert_eq!((result.exit_code, result.signal, &result.output[..]), (7, 0, &b"done"[..]));
    assert_eq!(on.get(b("out"), false).await.unwrap().value, "done");
    // What can't be run is found after the answer, and the message says so.
    let sequence = begin(&mut raw, "broken").await;
    assert_eq!(raw.receive().await.0.status_code(), StatusCode::Success);
    let (told, value) = raw.receive().await;
    assert_eq!((acknowledges(&told), told.status_code(), value), (sequence, StatusCode::InvalidExecute, Bytes::new()));
    // A program that is not there is refused at once.
    begin(&mut raw, "absent").await;
    assert_eq!(raw.receive().await.0.status_code(), StatusCode::NotFound);
    raw.add(of(MessageType::Noop), Body::default(), b"");
    raw.send().await;
    assert_eq!(raw.receive().await.0.header.unwrap().message_type(), MessageType::NoopResponse);
}

/// Starts a run on a connection that ends while the program waits for the store. What is under the output key then.
async fn output_after_its_connection(notify: bool) -> Option<Bytes> {
    let dir = tempfile::tempdir().unwrap();
    let (gated, served): (Gated, _) = serve_gated(dir.path()).await;
    let on = open(&served.plain, &served.options).await;
    put_programs(&on).await;
    gated.shut();
    let leaves = open(&served.plain, &served.options).await;
    let run = Execution { output_key: Some(b("out")), ..Execution::new(Language::Ebpf, vec![b("slow")]) };
    leaves.start_program(run, notify).await.unwrap();
    assert_eq!(on.programs(vec![b("slow")]).await.unwrap().len(), 1);
    drop(leaves);
    while status(&on, "connections").await > 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    gated.open();
    while !on.programs(Vec::new()).await.unwrap().is_empty() {}
    // The output is put after the program has left the list, unless nothing waits for it any more.
    for _ in 0..100 {
        if let Ok(found) = on.get(b("out"), false).await {
            return Some(found.value);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn run_without_a_message_outlives_its_connection() {
    assert_eq!(output_after_its_connection(false).await, Some(b("done")));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_with_a_message_ends_with_its_connection() {
    assert_eq!(output_after_its_connection(true).await, None);
}
