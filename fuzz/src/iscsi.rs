//! Targets for iSCSI: the login of an initiator, and all units of a session, which a real door serves.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use skytether_iscsi::chap::Algorithm;
use skytether_iscsi::decoder::{Broken, Decoder, Digests, Space};
use skytether_iscsi::login::{Established, Login, MAX_LOGIN_SEGMENT, MAX_NAME, Reply, Step, TargetIdentity};
use skytether_iscsi::parameters::{MAX_FIRST_BURST, MAX_SEGMENT};
use skytether_iscsi::pdu::{Header, NO_TAG, flag, opcode, padding};
use skytether_iscsi::{Iscsi, Options, Secrets, text};
use skytether_volume::BlockDevice;
use skytether_volume::memory::MemoryDevice;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::scsi;
use crate::waiting::wait;

const NAME: &str = "iqn.2024-01.io.skytether:d";
const SECRET: &str = "0123456789ab";
/// In the place of a proof: the harness writes the right one there.
const PROOF: &[u8] = b"CHAP_R=?";

/// A unit as it travels, without digests.
fn unit(mut header: Header, data: &[u8]) -> Vec<u8> {
    header.set_data_length(data.len());
    let mut bytes = header.0.to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len() + padding(data.len()), 0);
    bytes
}

fn login(flags: u8, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut header = Header::new(opcode::LOGIN | 0x40);
    header.0[1] = flags;
    header.0[8..14].copy_from_slice(&[0x80, 0, 0, 1, 0, 0]);
    header.set_u32(24, 7);
    let mut data = Vec::new();
    pairs.iter().for_each(|(key, value)| text::put(&mut data, key, value));
    unit(header, &data)
}

const WHO: [(&str, &str); 3] = [("InitiatorName", "iqn.2024-01.test:i"), ("TargetName", NAME), ("SessionType", "Normal")];
const OFFERS: [(&str, &str); 12] = [
    ("HeaderDigest", "None,CRC32C"),
    ("DataDigest", "None"),
    ("InitialR2T", "No"),
    ("ImmediateData", "Yes"),
    ("MaxBurstLength", "262144"),
    ("FirstBurstLength", "0x10000"),
    ("MaxConnections", "4"),
    ("MaxOutstandingR2T", "8"),
    ("MaxRecvDataSegmentLength", "262144"),
    ("DefaultTime2Wait", "2"),
    ("TaskReporting", "RFC3720,ResponseFence"),
    ("X-org.example", "1"),
];

pub(crate) fn logins() -> Vec<Vec<u8>> {
    let offers = login(0x87, &[&WHO[..], &OFFERS].concat());
    let discovery = login(0x87, &[("InitiatorName", "iqn.2024-01.test:i"), ("SessionType", "Discovery"), ("MaxBurstLength", "512")]);
    let stages = [login(0x81, &[&WHO[..], &[("AuthMethod", "None")]].concat()), login(0x47, &OFFERS[..4]), login(0x87, &OFFERS[4..])].concat();
    let chap = |algorithm: &str, proof: &[(&str, &str)]| {
        let keys = [&WHO[..], &[("AuthMethod", "CHAP,None")]].concat();
        [login(0x81, &keys), login(0x01, &[("CHAP_A", algorithm)]), login(0x81, proof), login(0x87, &OFFERS)].concat()
    };
    let mutual = [("CHAP_N", "alice"), ("CHAP_R", "?"), ("CHAP_I", "17"), ("CHAP_C", "0x0123456789abcdef")];
    let seed = |mode: u8, said: &[u8]| [&[mode][..], said].concat();
    vec![seed(0, &offers), seed(0, &discovery), seed(0, &stages), seed(1, &chap("7,5", &mutual[..2])), seed(1, &chap("5", &mutual))]
}

/// The next unit of a stream, or how it ends.
fn next(decoder: &mut Decoder, rest: &mut &[u8]) -> Result<Option<(Header, BytesMut)>, Broken> {
    let mut header = None;
    loop {
        if header.is_none() {
            header = decoder.header()?;
            match header {
                Some(header) if header.data_length() == 0 => return Ok(Some((header, BytesMut::new()))),
                Some(_) => decoder.receive(BytesMut::new()),
                None => {}
            }
        }
        if let Some(data) = decoder.data() {
            return Ok(header.map(|header| (header, data.bytes)));
        }
        if rest.is_empty() {
            return Ok(None);
        }
        let (taken, into_data) = match decoder.space() {
            Space::Buffer(space) => {
                let n = space.len().min(rest.len());
                space[..n].copy_from_slice(&rest[..n]);
                (n, false)
            }
            Space::Data(mut space) => {
                let n = space.remaining_mut().min(rest.len());
                space.put_slice(&rest[..n]);
                (n, true)
            }
        };
        decoder.filled(taken, into_data);
        *rest = &rest[taken..];
    }
}

/// `data` with the proof that the last response asks for, where it has the sign for one.
fn proved(data: &[u8], challenge: &Option<Reply>) -> Vec<u8> {
    let answer = || {
        let text = text::pairs(&challenge.as_ref()?.text).ok()?;
        let value = |key: &str| text.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        let algorithm = Algorithm::choose(value("CHAP_A")?)?;
        let (id, challenge) = (text::number(value("CHAP_I")?)? as u8, text::binary(value("CHAP_C")?)?);
        Some(text::hexadecimal(&algorithm.respond(id, SECRET.as_bytes(), &challenge)))
    };
    let at = data.windows(PROOF.len()).position(|part| part == PROOF);
    match (at, answer()) {
        (Some(at), Some(proof)) => [&data[..at + PROOF.len() - 1], proof.as_bytes(), &data[at + PROOF.len()..]].concat(),
        _ => data.to_vec(),
    }
}

/// A connection up to the end of its login, and units after it. Whether the login was complete.
pub(crate) fn login_read(data: &[u8]) -> bool {
    let Some((mode, mut rest)) = data.split_first() else { return false };
    let asks = mode & 1 == 1;
    let secrets = if asks { Secrets::parse(&format!("initiator alice {SECRET}\ntarget d ba9876543210")).ok() } else { None };
    assert_eq!(secrets.is_some(), asks);
    let mut login = Login::new(Arc::new(TargetIdentity { name: NAME.to_owned(), alias: "d".to_owned(), secrets }));
    let mut decoder = Decoder::new(MAX_LOGIN_SEGMENT);
    let mut last = None;
    let mut is_proved = !asks;
    while let Ok(Some((header, data))) = next(&mut decoder, &mut rest) {
        assert!(data.len() == header.data_length() && data.len() <= MAX_LOGIN_SEGMENT);
        let data = proved(&data, &last);
        is_proved |= data.windows(9).any(|part| part == b"CHAP_R=0x");
        match login.step(&header, &data) {
            Step::Continue(reply) => {
                check(&reply);
                last = Some(reply);
            }
            Step::Complete(reply, established) => {
                check(&reply);
                assert!(is_proved, "a login without a proof is complete");
                check_established(&established);
                decoder.set(established.parameters.digests, MAX_SEGMENT as usize);
                while let Ok(Some((header, data))) = next(&mut decoder, &mut rest) {
                    assert!(data.len() == header.data_length() && data.len() <= MAX_SEGMENT as usize);
                }
                return true;
            }
            Step::Refuse(reply) => {
                assert!(reply.text.is_empty() && reply.header.u16(36) >= 0x0200);
                return false;
            }
        }
    }
    false
}

fn check(reply: &Reply) {
    assert!(reply.header.opcode() == opcode::LOGIN_RESPONSE && reply.header.u16(36) == 0);
    // A reply to 64 KiB of keys that are not known is longer than they are, but by a constant factor.
    assert!(reply.text.len() <= 1 << 20 && text::pairs(&reply.text).is_ok());
}

fn check_established(login: &Established) {
    let name = &login.initiator;
    assert!(!name.is_empty() && name.len() <= MAX_NAME && *name == name.to_ascii_lowercase());
    let parameters = &login.parameters;
    assert!((512..=0x00ff_ffff).contains(&parameters.segment));
    assert!((512..=1 << 20).contains(&parameters.burst) && (1..=4).contains(&parameters.ready));
    assert!(parameters.first_burst <= MAX_FIRST_BURST && parameters.first_burst <= parameters.burst);
}

/// A command of number `sn` that moves `expected` bytes.
fn command(sn: u32, lun: u8, flags: u8, expected: u32, cdb: &[u8], data: &[u8]) -> Vec<u8> {
    let mut header = Header::new(opcode::COMMAND);
    header.0[1] = flags;
    header.0[9] = lun;
    header.set_u32(16, sn);
    header.set_u32(20, expected);
    header.set_u32(24, sn);
    header.0[32..32 + cdb.len()].copy_from_slice(cdb);
    unit(header, data)
}

fn request(code: u8, sn: u32, words: &[(usize, u32)], data: &[u8]) -> Vec<u8> {
    let mut header = Header::new(code);
    header.set_u32(16, sn);
    header.set_u32(20, NO_TAG);
    header.set_u32(24, sn);
    words.iter().for_each(|(at, word)| header.set_u32(*at, *word));
    unit(header, data)
}

pub(crate) fn sessions() -> Vec<Vec<u8>> {
    let write = |sn: u32, flags: u8, expected: u32, data: &[u8]| command(sn, 1, flags, expected, &scsi::cdb10(0x2a, 0, 8, (expected / 512) as u16), data);
    let read = command(9, 1, 0xc0, 4096, &scsi::cdb10(0x28, 0, 8, 8), &[]);
    let inquiry = command(7, 1, 0xc0, 255, &[0x12, 0, 0, 0, 255, 0], &[]);
    let out = |sn: u32, tag: u32, number: u32, at: u32, data: &[u8]| request(opcode::DATA_OUT, sn, &[(16, tag), (36, number), (40, at)], data);
    let whole = [inquiry.clone(), write(8, 0xa0, 4096, &[5; 4096]), read.clone()].concat();
    // Unasked data after the command, in two parts.
    let unasked = [inquiry.clone(), write(8, 0x20, 8192, &[1; 512]), out(8, 8, 0, 512, &[2; 4096]), out(8, 8, 1, 4608, &[3; 3584]), read.clone()].concat();
    let manage = |function: u8, sn: u32| {
        let mut bytes = request(opcode::TASK_MANAGEMENT | 0x40, sn, &[(20, 8), (32, 8)], &[]);
        (bytes[1], bytes[9]) = (0x80 | function, 1);
        bytes
    };
    let managed = [inquiry.clone(), write(8, 0x20, 65_536, &[1; 512]), manage(1, 9), manage(2, 9), manage(5, 9), command(9, 1, 0x80, 0, &[0; 6], &[])].concat();
    let texts = [
        request(opcode::NOP_OUT, 7, &[], b"ping"),
        request(opcode::TEXT, 8, &[], b"SendTargets=All\0"),
        request(opcode::TEXT, 9, &[], b"SendTargets=\0X=1\0"),
        request(opcode::NOP_OUT | 0x40, 10, &[(16, NO_TAG)], &[]),
        request(opcode::SNACK, 10, &[], &[]),
        request(opcode::LOGOUT | 0x40, 10, &[], &[]),
    ];
    let reports = [inquiry, command(8, 0, 0xc0, 256, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]), read, texts[5].clone()].concat();
    let exec = {
        let data = scsi::descriptor();
        let mut out = [0; 16];
        (out[0], out[5], out[13]) = (0xc0, 9, data.len() as u8);
        let mut fetch = [0; 16];
        (fetch[0], fetch[5], fetch[13]) = (0xc1, 9, 200);
        let first = command(7, 1, 0xc0, 255, &[0x12, 1, 0xc0, 0, 255, 0], &[]);
        [first, command(8, 1, 0xa0, data.len() as u32, &out, &data), command(9, 1, 0xc0, 200, &fetch, &[])].concat()
    };
    [whole, unasked, managed, texts.concat(), reports, exec].iter().flat_map(|seed| [[&[0][..], seed].concat(), [&[2][..], seed].concat()]).collect()
}

/// A session to its end, over a door with one volume. Whether a command had status GOOD.
pub(crate) fn session_serve(data: &[u8]) -> bool {
    let Some((mode, units)) = data.split_first() else { return false };
    // What was agreed on: whether data comes with commands, and without being asked.
    let offers = [("InitialR2T", ["No", "Yes"]), ("ImmediateData", ["Yes", "No"]), ("DataDigest", ["None", "CRC32C"])];
    let agreed: Vec<(&str, &str)> = offers.iter().enumerate().map(|(bit, (key, values))| (*key, values[usize::from(mode >> (bit + 1) & 1)])).collect();
    let said = [login(0x87, &[&WHO[..], &agreed, &[("MaxRecvDataSegmentLength", "262144")]].concat()), units.to_vec()].concat();
    let digests = Digests { header: false, data: agreed.contains(&("DataDigest", "CRC32C")) };
    let volume: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("v", 256 << 10));
    let made = Iscsi::new(vec![("v".to_owned(), volume)], Some(scsi::exec()), Options::default());
    assert!(made.is_ok());
    let Ok(door) = made else { return false };
    let answered = wait(Duration::from_secs(60), async move {
        let (here, there) = tokio::io::duplex(1 << 20);
        let (mut reader, mut writer) = tokio::io::split(here);
        let serve = async move { assert!(door.converse("d", there).await.is_ok()) };
        let talk = async move {
            // The target may have closed the connection.
            let _ = writer.write_all(&said).await;
            let _ = writer.shutdown().await;
        };
        let mut answers = Vec::new();
        let (read, ..) = tokio::join!(reader.read_to_end(&mut answers), serve, talk);
        assert!(read.is_ok());
        answers
    });
    // A command of 48 bytes reads the whole volume at most.
    assert!(answered.len() <= (data.len() / 48 + 2) * (300 << 10), "{} bytes for {}", answered.len(), data.len());
    let mut decoder = Decoder::new(MAX_SEGMENT as usize);
    let (mut rest, mut good) = (&answered[..], false);
    let first = next(&mut decoder, &mut rest);
    assert!(matches!(&first, Ok(Some((header, _))) if header.opcode() == opcode::LOGIN_RESPONSE && header.u16(36) == 0), "{first:?}");
    decoder.set(digests, MAX_SEGMENT as usize);
    loop {
        match next(&mut decoder, &mut rest) {
            Ok(Some((header, _))) => {
                assert!(header.opcode() >= opcode::NOP_IN, "{header:?}");
                good |= header.opcode() == opcode::RESPONSE && header.0[3] == 0;
                good |= header.opcode() == opcode::DATA_IN && header.has(flag::STATUS) && header.0[3] == 0;
            }
            // What the target sends is whole, but for the unit that a closed connection cut.
            Ok(None) => return good,
            Err(broken) => unreachable!("the target's answers can't be read: {broken:?}"),
        }
    }
}
