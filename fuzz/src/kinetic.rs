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
use skytether_kinetic_protocol::security::{Acl, Scope, Security};
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

pub(crate) fn identities() -> Vec<Vec<u8>> {
    let scope = |offset, value: &'static [u8], permissions: &[Permission], tls| Scope {
        offset,
        value: Some(Bytes::from_static(value)),
        permission: permissions.iter().map(|permission| i32::from(*permission)).collect(),
        tls_required: tls,
    };
    let of = |number, scope| Acl { identity: Some(number), scope, ..access::default_identity() };
    let some = of(2, vec![scope(None, b"ours/", &[Permission::Read, Permission::Range], None), scope(Some(5), b"new", &[Permission::Write], Some(true))]);
    let sets = [vec![access::default_identity()], vec![some.clone(), access::default_identity()], vec![some; 3]];
    let commands =
        sets.into_iter().map(|acl| request(MessageType::Security, Body { security: Some(Security { acl, ..Security::default() }), ..Body::default() }));
    commands.map(|command| command.to_bytes().to_vec()).collect()
}

/// Whether the scope has the key, byte by byte, as the rule says.
fn covers(scope: &Scope, key: &[u8]) -> bool {
    let value = scope.value();
    let at = |n: usize| key.get(usize::try_from(scope.offset()).ok()?.checked_add(n)?);
    // A key that ends before the offset is in no scope, whatever its value.
    (scope.offset() == 0 || usize::try_from(scope.offset()).is_ok_and(|offset| offset <= key.len()))
        && value.iter().enumerate().all(|(n, byte)| at(n) == Some(byte))
}

/// Identities of a `SECURITY` command: refused whole as invalid, or what each may do is what its scopes say.
pub(crate) fn access_check(data: &[u8]) -> bool {
    let Ok(command) = Command::parse(Bytes::copy_from_slice(data)) else { return false };
    let Some(security) = command.body.and_then(|body| body.security) else { return false };
    if let Err(refusal) = access::check_identities(&security.acl, &Limits::DRIVE) {
        assert!(matches!(refusal.code, StatusCode::InvalidRequest | StatusCode::NoSuchHmacAlgorithm), "{refusal}");
        return false;
    }
    for acl in &security.acl {
        // Keys at the edges of its scopes, and others.
        let mut keys: Vec<Vec<u8>> = vec![Vec::new(), b"key".to_vec(), vec![0xff; 40]];
        for scope in acl.scope.iter().take(8) {
            let mut key = vec![b'x'; usize::try_from(scope.offset()).unwrap_or(0).min(64)];
            keys.push(key.clone());
            key.extend_from_slice(scope.value());
            keys.push(key.clone());
            keys.push(key.iter().copied().take(key.len().saturating_sub(1)).collect());
            key.push(0);
            keys.push(key);
        }
        for permission in Permission::ALL {
            for tls in [false, true] {
                let granting = || acl.scope.iter().filter(|scope| (tls || !scope.tls_required()) && scope.permission.contains(&i32::from(*permission)));
                let permits = |target| access::permits(acl, *permission, target, tls);
                let valid = *permission != Permission::Invalid;
                assert_eq!(permits(Target::Drive), valid && granting().any(|scope| scope.value().is_empty()), "{permission:?}: {acl:?}");
                for key in &keys {
                    let expected = valid && granting().any(|scope| covers(scope, key));
                    assert_eq!(permits(Target::Key(key)), expected, "{permission:?} of {key:?}: {acl:?}");
                    // A range is no wider than its ends.
                    assert_eq!(permits(Target::Keys(key, b"key")), expected && permits(Target::Key(b"key")), "{permission:?} from {key:?}: {acl:?}");
                }
            }
        }
    }
    true
}
