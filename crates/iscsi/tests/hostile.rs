//! Random bytes for each parser: none of them panics, and none takes more than its bounds.

use std::sync::Arc;

use skytether_iscsi::decoder::{Digests, decode_all};
use skytether_iscsi::login::{Login, Step, TargetIdentity};
use skytether_iscsi::pdu::{Header, opcode};
use skytether_iscsi::{Secrets, text};

use crate::serving::NAME;

/// Inputs of each parser.
const RUNS: usize = 100_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n) as usize
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.below(256) as u8).collect()
    }
}

#[test]
fn random_streams_are_units_or_refused() {
    let mut random = Random(1);
    let mut units = 0;
    for _ in 0..RUNS {
        let mut stream = random.bytes(200);
        // Half of the streams have short data segments, so that more than one unit comes.
        if random.below(2) == 0 && stream.len() > 8 {
            (stream[4], stream[5], stream[6], stream[7]) = (0, 0, 0, random.below(40) as u8);
        }
        let digests = Digests { header: random.below(8) == 0, data: random.below(2) == 0 };
        for (header, data) in decode_all(&stream, digests, 8192).into_iter().flatten() {
            assert_eq!(header.data_length(), data.map_or(0, |data| data.bytes.len()));
            units += 1;
        }
    }
    assert!(units > RUNS / 10, "{units} units");
}

#[test]
fn random_logins_never_succeed_without_a_proof() {
    let keys =
        ["InitiatorName", "TargetName", "SessionType", "AuthMethod", "CHAP_A", "CHAP_N", "CHAP_R", "CHAP_I", "CHAP_C", "MaxBurstLength", "HeaderDigest", "X"];
    let values =
        [NAME, "iqn.2024-01.test:i", "Normal", "Discovery", "CHAP,None", "None", "5", "7,5", "alice", "0x00", "0bAA==", "262144", "CRC32C", "", "\u{e4}"];
    let secrets = Some(Secrets::parse("initiator alice 0123456789ab").unwrap());
    let target = Arc::new(TargetIdentity { name: NAME.to_owned(), alias: String::new(), secrets });
    let mut random = Random(2);
    let (mut answered, mut challenged) = (0, 0);
    for _ in 0..RUNS / 4 {
        let mut login = Login::new(Arc::clone(&target));
        for step in 0..4 {
            let mut header = Header::new(opcode::LOGIN | 0x40);
            header.0[1] = [0x81, 0x01, 0x87, 0x00, 0x04, 0x40, 0x83, random.below(256) as u8][random.below(8)];
            let mut data = Vec::new();
            if step == 0 {
                text::put(&mut data, "InitiatorName", "iqn.2024-01.test:i");
                text::put(&mut data, "TargetName", NAME);
            }
            // Every second login goes this far as it should.
            let right = [("AuthMethod", "CHAP"), ("CHAP_A", "5"), ("CHAP_N", "alice"), ("X", "")][step];
            if random.below(2) == 0 {
                header.0[1] = 0x81;
                text::put(&mut data, right.0, right.1);
            }
            for _ in 0..random.below(4) {
                text::put(&mut data, keys[random.below(keys.len() as u64)], values[random.below(values.len() as u64)]);
            }
            if random.below(8) == 0 {
                data.extend(random.bytes(50));
            }
            match login.step(&header, &data) {
                Step::Continue(reply) => {
                    answered += 1;
                    challenged += usize::from(reply.text.windows(7).any(|at| at == b"CHAP_C="));
                }
                Step::Complete(..) => panic!("a login without a proof is complete"),
                Step::Refuse(_) => break,
            }
        }
    }
    assert!(answered > RUNS / 10 && challenged > 100, "{answered} answers, {challenged} challenges");
}

#[test]
fn random_text_is_pairs_or_refused() {
    let mut random = Random(3);
    let mut found = 0;
    for _ in 0..RUNS {
        let mut text = random.bytes(60);
        for byte in &mut text {
            *byte = [*byte, b'=', 0, b'A', b'0', b'x', b'b'][random.below(7)];
        }
        for (key, value) in text::pairs(&text).into_iter().flatten() {
            assert!(!key.is_empty() && key.len() <= 63);
            let _ = (text::number(value), text::binary(value));
            found += 1;
        }
    }
    assert!(found > 1000, "{found} pairs");
}
