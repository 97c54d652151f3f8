//! A connection from its greeting to its end, as bytes written by hand.

use bytes::Bytes;
use skytether_kinetic_protocol::command::{Body, Header, KeyValue};
use skytether_kinetic_protocol::frame::{encode_head, encode_into};
use skytether_kinetic_protocol::kinds::{Algorithm, Synchronization};
use skytether_kinetic_protocol::response::{Greeting, check_response, respond};
use skytether_kinetic_protocol::{Authentication, Command, Frame, FrameDecoder, FrameLimits, HmacKey, Limits, Message, MessageType, Status, StatusCode};

/// The drive's first frame: cluster version 0, connection 77, {vendor "S", port 8123}, the limits of a real drive.
const GREETING: &[u8] = &[
    b'F', 0, 0, 0, 72, 0, 0, 0, 0, // no value
    0x20, 0x03, 0x3a, 0x44, // unsolicited
    0x0a, 0x04, 0x08, 0x00, 0x18, 77, // header
    0x12, 0x38, 0x32, 0x36, // body, log
    0x2a, 0x06, 0x2a, 0x01, b'S', 0x50, 0xbb, 0x3f, // configuration
    0x42, 0x2c, // limits
    0x08, 0x80, 0x08, // key 1024
    0x10, 0x80, 0x80, 0x40, // value 1 MiB
    0x18, 0x80, 0x10, // version 2048
    0x20, 0x80, 0x01, // tag 128
    0x28, 100, // connections
    0x30, 30, 0x38, 20, // reads, writes
    0x40, 0x80, 0x80, 0x40, // message 1 MiB
    0x48, 0xa0, 0x06, // 800 keys
    0x50, 0xe8, 0x07, // 1000 identities
    0x58, 32, // PIN
    0x60, 0, 0x68, 0, // operations and batches: not told
    0x70, 0x80, 0x80, 0x80, 0x20, // batch 64 MiB
    0x78, 0xc0, 0xbb, 0x01, // 24,000 deletes
    0x1a, 0x02, 0x08, 0x01, // status
];

/// The command of a put of protocol 3.0.6: connection 77, sequence 1, type 4, priority 5; new version "2", key "key",
/// version "1", tag "t" of SHA-1, write-back.
const PUT: &[u8] = &[
    0x0a, 0x0a, 0x08, 0x00, 0x18, 77, 0x20, 1, 0x38, 4, 0x60, 5, // header
    0x12, 0x14, 0x0a, 0x12, // body, key and value
    0x12, 0x01, b'2', 0x1a, 0x03, b'k', b'e', b'y', 0x22, 0x01, b'1', 0x2a, 0x01, b't', 0x30, 1, 0x48, 2,
];

/// The answer: connection 77, acknowledged sequence 1, type 3; status 8 with a text.
const MISMATCH: &[u8] = &[
    0x0a, 0x06, 0x18, 77, 0x30, 1, 0x38, 3, // header
    0x1a, 0x06, 0x08, 8, 0x12, 0x02, b'n', b'o', // status
];

/// A frame with the HMAC of identity 1, which is computed, around these bytes.
fn signed(command: &[u8], value: &[u8]) -> Vec<u8> {
    let hmac = HmacKey::new(b"asdfasdf").sign(command);
    let message = [&[0x20, 0x01, 0x2a, 0x18, 0x08, 0x01, 0x12, 0x14][..], &hmac, &[0x3a, command.len() as u8], command].concat();
    let header = [b'F', 0, 0, 0, message.len() as u8, 0, 0, 0, value.len() as u8];
    [&header[..], &message, value].concat()
}

fn frames(bytes: &[u8]) -> Vec<Frame> {
    let mut decoder = FrameDecoder::new(FrameLimits::of(&Limits::DRIVE));
    let mut frames = Vec::new();
    for piece in bytes.chunks(7) {
        assert_eq!(decoder.feed(piece), piece.len());
        while let Some(frame) = decoder.next_frame().unwrap() {
            frames.push(frame);
        }
    }
    decoder.finish().unwrap();
    frames
}

#[test]
fn greeting_is_read_from_bytes() {
    let [frame] = &frames(GREETING)[..] else { panic!("one frame") };
    let message = Message::parse(frame.message.clone()).unwrap();
    assert_eq!(message.authentication(), Ok(Authentication::Unsolicited));
    let greeting = Greeting::read(&message).unwrap();
    assert_eq!((greeting.connection_id, greeting.cluster_version), (77, 0));
    assert_eq!((greeting.configuration.vendor(), greeting.configuration.port()), ("S", 8123));
    assert_eq!(greeting.limits, Limits::DRIVE);
    assert_eq!(&encode_head(&message, 0).unwrap()[..], GREETING);
}

#[test]
fn put_and_its_answer_are_read_and_written() {
    let key = HmacKey::new(b"asdfasdf");
    let stream = [signed(PUT, b"the value"), signed(MISMATCH, b"")].concat();
    let [put, answer] = &frames(&stream)[..] else { panic!("two frames") };

    let message = Message::parse(put.message.clone()).unwrap();
    assert!(message.is_signed_by(&key));
    let command = message.command().unwrap();
    let header = Header {
        cluster_version: Some(0),
        connection_id: Some(77),
        sequence: Some(1),
        message_type: Some(MessageType::Put.into()),
        priority: Some(5),
        ..Header::default()
    };
    let key_value = KeyValue {
        new_version: Some("2".into()),
        key: Some("key".into()),
        db_version: Some("1".into()),
        tag: Some("t".into()),
        algorithm: Some(Algorithm::Sha1.into()),
        synchronization: Some(Synchronization::WriteBack.into()),
        ..KeyValue::default()
    };
    let body = Body { key_value: Some(key_value), ..Body::default() };
    assert_eq!(command, Command { header: Some(header.clone()), body: Some(body), status: None });
    assert_eq!(put.value, "the value");

    let response = Message::parse(answer.message.clone()).unwrap().command().unwrap();
    let refusal = check_response(&header, &response).unwrap_err();
    assert_eq!((refusal.code, refusal.text.as_str()), (StatusCode::VersionMismatch, "no"));

    // The same bytes are written.
    let status = Status { status_message: Some("no".into()), ..Status::of(StatusCode::VersionMismatch) };
    let mut written = bytes::BytesMut::new();
    encode_into(&Message::signed(1, &key, &command), &put.value, &mut written).unwrap();
    encode_into(&Message::signed(1, &key, &respond(&header, status)), b"", &mut written).unwrap();
    assert_eq!(written, stream);
}

#[test]
fn changed_command_has_the_wrong_hmac() {
    for bit in 0..8 * PUT.len() {
        let mut stream = signed(PUT, b"");
        let at = stream.len() - PUT.len() + bit / 8;
        stream[at] ^= 1 << (bit % 8);
        let message = Message::parse(frames(&stream)[0].message.clone()).unwrap();
        assert!(!message.is_signed_by(&HmacKey::new(b"asdfasdf")), "bit {bit}");
    }
}

#[test]
fn fields_of_a_command_share_its_frame() {
    let frame = frames(&signed(PUT, b"the value")).remove(0);
    let command = Message::parse(frame.message.clone()).unwrap().command().unwrap();
    let key: Bytes = command.body.unwrap().key_value.unwrap().key.unwrap();
    assert!(frame.message.as_ptr_range().contains(&key.as_ptr()));
}
