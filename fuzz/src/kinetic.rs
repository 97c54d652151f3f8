//! Targets for the protocol of Kinetic drives: frames, messages and commands.

use bytes::{Bytes, BytesMut};
use skytether_kinetic_protocol::access::{self, Target};
use skytether_kinetic_protocol::command::{Batch, Body, Header, KeyValue, Operation, P2pOperation, Peer, Range};
use skytether_kinetic_protocol::decoder::BLOCK;
use skytether_kinetic_protocol::frame::encode_into;
use skytether_kinetic_protocol::kinds::{AppletType, Language, LogType};
use skytether_kinetic_protocol::log::{Configuration, GetLog, Statistics, Utilization};
use skytether_kinetic_protocol::program::{ManageApplet, ProgramResult};
use skytether_kinetic_protocol::range::KeyRange;
use skytether_kinetic_protocol::response::{Greeting, check_response, greeting, respond};
use skytether_kinetic_protocol::security::Security;
use skytether_kinetic_protocol::{
    Command, Frame, FrameDecoder, FrameError, FrameLimits, HmacKey, Limits, Message, MessageType, Permission, Status, StatusCode,
};

/// Small enough that a few kilobytes reach them. Values of up to 6,000 bytes are dropped.
const LIMITS: FrameLimits = FrameLimits { message: 2000, value: 4000, dropped_value: 6000 };

fn header(message_type: MessageType) -> Header {
    Header { connection_id: Some(77), sequence: Some(5), message_type: Some(message_type.into()), priority: Some(5), ..Header::default() }
}

fn request(message_type: MessageType, body: Body) -> Command {
    Command { header: Some(header(message_type)), body: Some(body), status: None }
}

fn bodies() -> Vec<(MessageType, Body)> {
    let key = || Some(Bytes::from_static(b"key"));
    let key_value = KeyValue { key: key(), new_version: key(), tag: key(), force: Some(true), synchronization: Some(1), ..KeyValue::default() };
    let range =
        Range { start_key: key(), end_key: key(), start_key_inclusive: Some(true), max_returned: Some(10), keys: vec![Bytes::new(); 3], ..Range::default() };
    let pushed = P2pOperation { operation: vec![Operation { key: key(), ..Operation::default() }], ..P2pOperation::default() };
    let peer = Some(Peer { hostname: Some("host".into()), port: Some(8123), tls: Some(false) });
    let push = P2pOperation { peer, operation: vec![Operation { p2pop: Some(pushed), ..Operation::default() }; 2], ..P2pOperation::default() };
    let log = GetLog {
        types: LogType::ALL.iter().map(|of| i32::from(*of)).collect(),
        utilizations: vec![Utilization { name: Some("CPU".into()), value: Some(0.5) }],
        statistics: vec![Statistics { count: Some(1 << 40), ..Statistics::default() }; 3],
        ..GetLog::default()
    };
    let security = Security { acl: vec![access::default_identity(); 2], ..Security::default() };
    let batch = Batch { count: Some(3), sequence: vec![1, 2, 1 << 40], ..Batch::default() };
    let applet = ManageApplet {
        manage_applet_type: Some(AppletType::Execute.into()),
        lang: Some(Language::Ebpf.into()),
        program_key: vec![Bytes::from_static(b"program.0000"); 2],
        program_param: vec![Bytes::from_static(b"x")],
        ..ManageApplet::default()
    };
    vec![
        (MessageType::Put, Body { key_value: Some(key_value), ..Body::default() }),
        (MessageType::GetKeyRange, Body { range: Some(range), ..Body::default() }),
        (MessageType::PeerToPeerPush, Body { p2p_operation: Some(push), ..Body::default() }),
        (MessageType::GetLog, Body { get_log: Some(log), ..Body::default() }),
        (MessageType::Security, Body { security: Some(security), ..Body::default() }),
        (MessageType::EndBatch, Body { batch: Some(batch), ..Body::default() }),
        (MessageType::ManageApplet, Body { manage_applet: Some(applet), ..Body::default() }),
    ]
}

pub(crate) fn commands() -> Vec<Vec<u8>> {
    let result = ProgramResult { exit_code: 0, signal: 0, message: "done".into(), output: Bytes::from_static(b"rows") };
    let status = Status { detailed_message: Some(result.to_bytes()), ..Status::of(StatusCode::Success) };
    let requests = bodies().into_iter().map(|(message_type, body)| request(message_type, body));
    requests.chain([respond(&header(MessageType::ManageApplet), status)]).map(|command| command.to_bytes().to_vec()).collect()
}

/// A command: refused as invalid, or one that means the same when it is written again, and that can be used.
pub(crate) fn command_decode(data: &[u8]) -> bool {
    match Command::parse(Bytes::copy_from_slice(data)) {
        Ok(command) => use_command(&command),
        Err(refusal) => {
            assert_eq!(refusal.code, StatusCode::InvalidRequest, "{refusal}");
            return false;
        }
    }
    true
}

/// What a server or a client does with a command.
fn use_command(command: &Command) {
    let written = command.to_bytes();
    // Floats may be no numbers, which differ from themselves: bytes are compared.
    assert_eq!(Command::parse(written.clone()).map(|again| again.to_bytes()), Ok(written));
    let header = command.header.clone().unwrap_or_default();
    let response = respond(&header, Status::of(StatusCode::Success));
    let is_request = header.message_type().is_request();
    assert_eq!(check_response(&header, &response).is_ok(), is_request, "{header:?}");
    let detail = command.status.as_ref().and_then(|status| status.detailed_message.clone()).unwrap_or_default();
    if let Ok(result) = ProgramResult::parse(&detail) {
        assert!(result.output.len() < detail.len());
    }
    let Some(body) = &command.body else { return };
    if let Some(range) = &body.range {
        let range = KeyRange::of(range, &Limits::DRIVE).unwrap_or_else(|_| KeyRange::unlimited(range));
        assert!(range.bounds().is_some() || !range.contains(b"key"));
    }
    if let Some(security) = &body.security {
        assert!(!security.acl.is_empty() || security.change().is_ok() || security.new_lock_pin.is_some() || security.old_lock_pin.is_some());
        if access::check_identities(&security.acl, &Limits::DRIVE).is_ok() {
            assert!(security.acl.iter().all(|acl| acl.scope.iter().all(|scope| scope.offset() >= 0 && !scope.permission.is_empty())));
        }
        for acl in &security.acl {
            let permits = |target| access::permits(acl, Permission::Read, target, true);
            // Who may read all keys up to the end may read each.
            assert!(!permits(Target::Keys(b"", b"")) || permits(Target::Key(b"key")) || acl.scope.iter().any(|scope| scope.offset() > 0));
        }
    }
}

pub(crate) fn streams() -> Vec<Vec<u8>> {
    let key = HmacKey::new(b"asdfasdf");
    let stream = |messages: &[(Message, &[u8])]| {
        let mut bytes = BytesMut::new();
        messages.iter().try_for_each(|(message, value)| encode_into(message, value, &mut bytes)).ok()?;
        Some(bytes.to_vec())
    };
    let requests: Vec<Message> = bodies().into_iter().map(|(message_type, body)| Message::signed(1, &key, &request(message_type, body))).collect();
    let pin = Message::with_pin(Bytes::from_static(b"123"), &request(MessageType::PinOp, Body::default()));
    let configuration = Configuration { vendor: Some("vendor".into()), port: Some(8123), ..Configuration::default() };
    let hello = greeting(77, 0, configuration, Limits::DRIVE);
    let all: Vec<(Message, &[u8])> = requests.iter().map(|message| (message.clone(), &b"value"[..])).collect();
    let [first, second, ..] = &requests[..] else { return vec![] };
    let some = [stream(&all), stream(&[(hello, b""), (pin, b"")]), stream(&[(first.clone(), &[7; 4000]), (second.clone(), &[7; 5000])])];
    some.into_iter().flatten().collect()
}

/// The frames of a stream in pieces of `length` bytes, and how it ended. A decoder holds no more than the limits.
fn frames(data: &[u8], length: usize) -> (Vec<Frame>, Result<(), FrameError>) {
    let (mut decoder, mut frames) = (FrameDecoder::new(LIMITS), Vec::new());
    for mut piece in data.chunks(length) {
        while !piece.is_empty() {
            let fed = decoder.feed(piece);
            assert!(fed > 0 && decoder.memory() <= BLOCK, "{fed}, {}", decoder.memory());
            piece = piece.split_at(fed).1;
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(error) => return (frames, Err(error)),
                }
            }
        }
    }
    (frames, decoder.finish())
}

/// A stream: the same frames, and the same end, in any pieces. Their messages are refused or read.
pub(crate) fn stream_decode(data: &[u8]) -> bool {
    let whole = frames(data, data.len().max(1));
    for length in [1, 7, 100] {
        assert_eq!(frames(data, length), whole, "{length}");
    }
    let (frames, end) = whole;
    let key = HmacKey::new(b"asdfasdf");
    for frame in &frames {
        assert!(frame.message.len() <= LIMITS.message as usize && frame.value.len() <= LIMITS.value as usize);
        let Ok(message) = Message::parse(frame.message.clone()) else { continue };
        let _ = (message.authentication().is_ok(), message.is_signed_by(&key), Greeting::read(&message).is_ok());
        if let Ok(command) = message.command() {
            use_command(&command);
        }
    }
    !frames.is_empty() && end.is_ok()
}
