//! What a listener can do to a client: every case ends with an error of the right kind within the deadline.

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_common::{Error, Key, Kind};
use skytether_device::Storage;
use skytether_doors::ConnectOptions;
use skytether_kinetic::{Client, ClientOptions, Failure, Identity, KineticDrive, Put};
use skytether_kinetic_protocol::command::{Command, Header};
use skytether_kinetic_protocol::frame::{FrameLimits, encode_head, header};
use skytether_kinetic_protocol::log::Configuration;
use skytether_kinetic_protocol::response::{farewell, greeting, respond};
use skytether_kinetic_protocol::status::Status;
use skytether_kinetic_protocol::{FrameDecoder, HmacKey, Limits, Message, MessageType, Refusal, StatusCode};
use skytether_store::{Expect, Op};
use skytether_transport::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How patient clients of these tests are.
const PATIENCE: Duration = Duration::from_millis(400);

fn options() -> ClientOptions {
    let connect = ConnectOptions { connect_timeout: PATIENCE, idle_timeout: PATIENCE, keepalive: None, ..ConnectOptions::default() };
    ClientOptions { connect, ..ClientOptions::default() }
}

/// Listens, and lets `serve` have each connection.
async fn listen<F: Future<Output = ()> + Send + 'static>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("kinetic://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    at
}

fn framed(message: &Message, value: &[u8]) -> Vec<u8> {
    [&encode_head(message, value.len()).unwrap()[..], value].concat()
}

fn hello() -> Vec<u8> {
    framed(&greeting(7, 3, Configuration::default(), Limits::DRIVE), &[])
}

/// The next request of a client; `None` when it has closed the connection.
async fn request(from: &mut TcpStream, decoder: &mut FrameDecoder) -> Option<Command> {
    loop {
        if let Some(frame) = decoder.next_frame().unwrap() {
            return Some(Message::parse(frame.message).unwrap().command().unwrap());
        }
        if from.read_buf(&mut decoder.space()).await.ok()? == 0 {
            return None;
        }
    }
}

/// Greets, and answers each request with the bytes of `answer`; none of them: silence.
async fn answer_with(mut stream: TcpStream, answer: impl Fn(&Header) -> Vec<u8>) {
    let mut decoder = FrameDecoder::new(FrameLimits::of(&Limits::DRIVE));
    stream.write_all(&hello()).await.unwrap();
    while let Some(command) = request(&mut stream, &mut decoder).await {
        if stream.write_all(&answer(command.require_header().unwrap())).await.is_err() {
            return;
        }
    }
}

fn signed(command: &Command) -> Message {
    Message::signed(1, &HmacKey::new(b"asdfasdf"), command)
}

/// Connects, and says what went wrong and how long it took.
async fn refused(at: &Endpoint) -> Error {
    let begun = Instant::now();
    let error = Client::connect(at, options()).await.expect_err("no connection");
    assert!(begun.elapsed() < 20 * PATIENCE, "{:?}: {error}", begun.elapsed());
    assert!(error.message().contains("127.0.0.1"), "{error}");
    error
}

/// Every greeting that is none ends the attempt.
#[tokio::test]
async fn greeting_that_is_none_is_refused_in_time() {
    let cases: [(&str, Vec<u8>, Kind); 8] = [
        ("silence", vec![], Kind::Unavailable),
        ("another protocol", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), Kind::Unsupported),
        ("half a header", vec![b'F', 0, 0], Kind::Unavailable),
        ("a long message", header(u32::MAX, 0).to_vec(), Kind::Corrupt),
        ("a long value", header(4, u32::MAX).to_vec(), Kind::Corrupt),
        ("no message", [&header(4, 0)[..], &[0xff; 4]].concat(), Kind::Corrupt),
        ("no limits", framed(&Message::unsolicited(&Command { status: Some(Status::of(StatusCode::Success)), ..Command::default() }), &[]), Kind::Corrupt),
        ("a refusal", framed(&farewell(1, &Refusal::new(StatusCode::ServiceBusy, "too many connections")), &[]), Kind::Unavailable),
    ];
    for (name, bytes, kind) in cases {
        let at = listen(move |mut stream| {
            let bytes = bytes.clone();
            async move {
                stream.write_all(&bytes).await.unwrap();
                tokio::time::sleep(10 * PATIENCE).await;
            }
        })
        .await;
        let error = refused(&at).await;
        assert_eq!(error.kind(), kind, "{name}: {error}");
    }
}

#[tokio::test]
async fn closed_port_and_closed_connection_are_unavailable() {
    let closed: Endpoint = "kinetic://127.0.0.1:1".parse().unwrap();
    assert_eq!(refused(&closed).await.kind(), Kind::Unavailable);
    let at = listen(|stream| async move { drop(stream) }).await;
    let error = refused(&at).await;
    assert!(error.kind() == Kind::Unavailable && error.message().contains("before its greeting"), "{error}");
    for wrong in ["kinetic://127.0.0.1", "kinetic://127.0.0.1:1/x"] {
        assert_eq!(Client::connect(&wrong.parse().unwrap(), options()).await.unwrap_err().kind(), Kind::Invalid, "{wrong}");
    }
    let grpc: Endpoint = "grpc://127.0.0.1:1".parse().unwrap();
    assert_eq!(Client::connect(&grpc, options()).await.unwrap_err().kind(), Kind::Unsupported);
}

/// The client speaks TLS; the drive does not.
#[tokio::test]
async fn tls_with_a_plain_drive_is_refused_with_advice() {
    let at = listen(|stream| answer_with(stream, |_| Vec::new())).await;
    let dir = tempfile::tempdir().unwrap();
    let (ca, key) = (dir.path().join("ca.pem"), Identity::default());
    std::fs::write(&ca, include_str!("ca.pem")).unwrap();
    let mut tls = ClientOptions { identity: key, ..options() };
    tls.connect.credentials.tls_ca = Some(ca);
    let error = Client::connect(&Endpoint::new("kinetics", at.authority()), tls).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.report().contains("kinetic://"), "{error}");
}

/// How an answer can be wrong: what a read and a write of it give.
#[tokio::test]
async fn wrong_answer_is_corrupt_and_a_write_unknown() {
    type Answer = fn(&Header) -> Vec<u8>;
    let cases: [(&str, Answer); 8] = [
        ("garbage", |_| vec![0; 64]),
        ("wrong HMAC", |request| framed(&Message::signed(1, &HmacKey::new(b"other"), &respond(request, Status::of(StatusCode::Success))), &[])),
        ("other identity", |request| framed(&Message::signed(2, &HmacKey::new(b"asdfasdf"), &respond(request, Status::of(StatusCode::Success))), &[])),
        ("no HMAC", |request| framed(&Message::pin_response(&respond(request, Status::of(StatusCode::Success))), &[])),
        ("wrong sequence", |request| {
            framed(&signed(&respond(&Header { sequence: Some(request.sequence() + 1), ..request.clone() }, Status::of(StatusCode::Success))), &[])
        }),
        ("wrong type", |request| {
            framed(&signed(&respond(&Header { message_type: Some(MessageType::Delete.into()), ..request.clone() }, Status::of(StatusCode::Success))), &[])
        }),
        ("long message", |_| header(u32::MAX, 1).to_vec()),
        ("long value", |_| header(9, (1 << 20) + 1).to_vec()),
    ];
    for (name, answer) in cases {
        let at = listen(move |stream| answer_with(stream, answer)).await;
        let client = Client::connect(&at, options()).await.unwrap();
        let begun = Instant::now();
        let read = client.read(|on| async move { on.noop().await }).await.unwrap_err();
        assert!(matches!(&read, Failure::Lost { kind: Kind::Corrupt, sent: true, .. }), "{name}: {read:?}");
        let put = || Put::new(Bytes::from_static(b"k"), Bytes::new(), None, Bytes::from_static(b"v"));
        let write = client.write(|on| async move { on.put(put()).await }).await.unwrap_err();
        assert!(write.is_unknown(), "{name}: {write:?}");
        assert!(begun.elapsed() < 20 * PATIENCE, "{name}");
    }
}

/// A refusal with its status is no loss of the connection.
#[tokio::test]
async fn refusal_of_the_drive_has_its_kind() {
    for (code, kind) in [(StatusCode::NoSpace, Kind::Exhausted), (StatusCode::DeviceLocked, Kind::Unavailable), (StatusCode::NotAuthorized, Kind::Invalid)] {
        let at = listen(move |stream| answer_with(stream, move |request| framed(&signed(&respond(request, Status::of(code))), &[]))).await;
        let client = Client::connect(&at, options()).await.unwrap();
        let connection = client.connection().await.unwrap();
        let failure = connection.noop().await.unwrap_err();
        assert_eq!((failure.code(), Error::from(failure).kind()), (Some(code), kind));
        assert!(!connection.is_ended());
    }
    // A drive that does not know the identity can't sign its answer.
    let at = listen(|stream| answer_with(stream, |request| framed(&Message::pin_response(&respond(request, Status::of(StatusCode::HmacFailure))), &[]))).await;
    let error = KineticDrive::connect(&at, options()).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.message().contains("HMAC_FAILURE"), "{error}");
}

#[tokio::test]
async fn silence_ends_all_calls_in_time() {
    let at = listen(|stream| answer_with(stream, |_| Vec::new())).await;
    let client = Client::connect(&at, options()).await.unwrap();
    let connection = client.connection().await.unwrap();
    let begun = Instant::now();
    // More calls than the drive's queue has places.
    let calls = (0..100).map(|_| connection.noop());
    for answer in futures::future::join_all(calls).await {
        assert!(matches!(answer, Err(Failure::Lost { kind: Kind::Unavailable, .. })), "{answer:?}");
    }
    assert!(connection.is_ended() && begun.elapsed() < 20 * PATIENCE);
}

/// A client that stops reading its socket is the drive's problem, and one that stops taking requests is ours.
#[tokio::test]
async fn drive_that_takes_no_bytes_ends_writes_in_time() {
    let at = listen(|mut stream| async move {
        stream.write_all(&hello()).await.unwrap();
        tokio::time::sleep(100 * PATIENCE).await;
    })
    .await;
    let client = Client::connect(&at, options()).await.unwrap();
    let connection = client.connection().await.unwrap();
    let begun = Instant::now();
    let value = Bytes::from(vec![0; 1 << 20]);
    let put = |i: u8| Put::new(Bytes::copy_from_slice(&[i]), value.clone(), None, Bytes::from_static(b"v"));
    for answer in futures::future::join_all((0..20).map(|i| connection.put(put(i)))).await {
        assert!(answer.unwrap_err().is_lost());
    }
    // One second more for each MiB.
    assert!(begun.elapsed() < 20 * PATIENCE + Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn farewell_explains_why_the_connection_ended() {
    let at = listen(|mut stream| async move {
        let mut decoder = FrameDecoder::new(FrameLimits::of(&Limits::DRIVE));
        stream.write_all(&hello()).await.unwrap();
        request(&mut stream, &mut decoder).await;
        stream.write_all(&framed(&farewell(7, &Refusal::invalid("one batch too many")), &[])).await.unwrap();
    })
    .await;
    let client = Client::connect(&at, options()).await.unwrap();
    let failure = client.connection().await.unwrap().flush().await.unwrap_err();
    assert!(failure.is_unknown() && failure.to_string().contains("one batch too many"), "{failure}");
}

/// The same address, another drive: nothing is asked of it.
#[tokio::test]
async fn other_drive_at_the_address_is_refused() {
    let at = listen(|stream| answer_with(stream, |request| framed(&signed(&respond(request, Status::of(StatusCode::Success))), b"another identity"))).await;
    let client = Client::connect(&at, options()).await.unwrap();
    client.expect(Bytes::from_static(b"who"), Bytes::from_static(b"identity"));
    drop(client.read(|on| async move { Err::<(), _>(Failure::Refused(Refusal::new(StatusCode::ConnectionTerminated, format!("{on:?}")))) }).await);
    let failure = client.connection().await.unwrap_err();
    assert!(failure.to_string().contains("another drive answers"), "{failure}");
}

/// Hostile answers to what a store asks.
#[tokio::test]
async fn identity_that_is_none_is_corrupt() {
    let at = listen(|stream| answer_with(stream, |request| framed(&signed(&respond(request, Status::of(StatusCode::Success))), b"{\"format\":"))).await;
    let error = KineticDrive::connect(&at, options()).await.unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.message().contains("127.0.0.1"), "{error}");
}

/// A drive that is away while a store is used: the errors name it, and it is found again.
#[tokio::test]
async fn lost_drive_is_unavailable_by_name() {
    let identity = br#"{"format":1,"id":"00000000-0000-0000-0000-000000000001","name":"kinetic-0"}"#;
    let at = listen(move |mut stream| async move {
        let mut decoder = FrameDecoder::new(FrameLimits::of(&Limits::DRIVE));
        stream.write_all(&hello()).await.unwrap();
        while let Some(command) = request(&mut stream, &mut decoder).await {
            let header = command.require_header().unwrap();
            let value = match header.message_type() {
                MessageType::Get if command.body.as_ref().unwrap().key_value.as_ref().unwrap().key() == b"~skytether-drive" => &identity[..],
                MessageType::GetKeyRange => &[],
                _ => return,
            };
            stream.write_all(&framed(&signed(&respond(header, Status::of(StatusCode::Success))), value)).await.unwrap();
        }
    })
    .await;
    let drive = KineticDrive::connect(&at, options()).await.unwrap();
    assert_eq!((drive.info().name.as_str(), drive.capabilities().remote), ("kinetic-0", true));
    let key = Key::new("a").unwrap();
    for error in [drive.get(&key).await.unwrap_err(), drive.apply(vec![Op::Put { key, value: Bytes::new(), expect: Expect::Any }]).await.unwrap_err()] {
        assert!(error.kind() == Kind::Unavailable && error.message().starts_with("drive kinetic-0 at 127.0.0.1"), "{error}");
    }
    let own = Key::new("~skytether-drive").unwrap();
    assert_eq!(drive.apply(vec![Op::Put { key: own, value: Bytes::new(), expect: Expect::Any }]).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(drive.list("", None, 10).await.unwrap(), []);
}
