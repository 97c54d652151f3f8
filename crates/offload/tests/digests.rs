//! Digests equal those of the system's tools, and reference vectors.

use fastrand::Rng;
use skytether_common::Kind;
use skytether_offload::codes::{item_flag, opcode, tag};
use skytether_offload::operations::digests::{Algorithm, MINIO_KEY};
use skytether_offload::{Descriptor, Object};

use crate::util::{Disk, exec, hex, text, tool, wait};

/// MinIO's key.
const KEY: &str = "4be734fa8e238acd263e83e6bb968552040f935da39f441497e09d1322de36a0";

fn key() -> Vec<u8> {
    (0..32).map(|at| u8::from_str_radix(&KEY[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn ask(algorithm: Algorithm) -> Descriptor {
    let descriptor = Descriptor::new(algorithm.opcode());
    if algorithm == Algorithm::Highway256 { descriptor.bytes(tag::KEY, key()) } else { descriptor }
}

fn digest(algorithm: Algorithm, bytes: &[u8]) -> String {
    let key: [u8; 32] = key().try_into().unwrap();
    let mut hasher = algorithm.start(key);
    hasher.update(bytes);
    hex(&hasher.finish())
}

/// Check values of the catalogue of CRCs, of RFC 1321, FIPS 180-2 and of BLAKE3's own vectors.
#[test]
fn digests_of_reference_vectors_are_theirs() {
    let check = b"123456789";
    let found = Algorithm::ALL.map(|algorithm| digest(algorithm, check));
    assert_eq!(found[0], "e3069283");
    assert_eq!(found[1], "cbf43926");
    assert_eq!(found[2], "ae8b14860a799888");
    assert_eq!(digest(Algorithm::Md5, b"abc"), "900150983cd24fb0d6963f7d28e17f72");
    assert_eq!(digest(Algorithm::Sha256, b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(digest(Algorithm::Blake3, b""), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
    let vector: Vec<u8> = (0..102_400u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(digest(Algorithm::Blake3, &vector), "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085");
}

/// MinIO's own self-test of its bitrot algorithms (`bitrotSelfTest`): digests of digests.
#[test]
fn highwayhash_with_minios_key_passes_minios_self_test() {
    let key: [u8; 32] = key().try_into().unwrap();
    assert_eq!(key, MINIO_KEY);
    let (mut message, mut sum) = (Vec::new(), Vec::new());
    for _ in (0..32 * 32).step_by(32) {
        let mut hasher = Algorithm::Highway256.start(key);
        hasher.update(&message);
        sum = hasher.finish();
        message.extend_from_slice(&sum);
    }
    assert_eq!(hex(&sum), "39c0407ed3f01b18d22c85db4aeff11e060ca5f43131b0126731ca197cd42313");
}

#[test]
fn sums_equal_those_of_the_systems_tools() {
    let mut rng = Rng::with_seed(1);
    let bytes = text(&mut rng, 100_001);
    for (algorithm, command) in [(Algorithm::Md5, "md5sum"), (Algorithm::Sha256, "sha256sum"), (Algorithm::Blake3, "b3sum")] {
        let Some(printed) = tool(&[command], &bytes) else { continue };
        let expected = String::from_utf8(printed).unwrap();
        let found = wait(async {
            let mut disk = Disk::new(1 << 20);
            let object = disk.scatter(&bytes, &mut rng).await;
            disk.items(&exec(), &ask(algorithm).input(object)).await[0].data.clone()
        });
        assert_eq!(expected.split(' ').next().unwrap(), hex(&found), "{command}");
    }
}

/// Random extents, holes and begins: the same digest as that of the bytes in one piece.
#[test]
fn scattered_objects_have_the_digests_of_their_bytes() {
    wait(async {
        let exec = exec();
        for seed in 0..150 {
            let mut rng = Rng::with_seed(seed);
            let mut disk = Disk::new(16 << 20);
            let mut objects = Vec::new();
            for _ in 0..rng.usize(1..8) {
                let len = rng.usize(0..30_000);
                let bytes = text(&mut rng, len);
                let begin = if rng.bool() { rng.usize(0..=bytes.len()) } else { 0 };
                objects.push((disk.scatter(&bytes, &mut rng).await.beginning_at(begin as u64), bytes[begin..].to_vec()));
            }
            let algorithm = Algorithm::ALL[rng.usize(..7)];
            let descriptor = objects.iter().fold(ask(algorithm), |descriptor, (object, _)| descriptor.input(object.clone()));
            let items = disk.items(&exec, &descriptor).await;
            let found: Vec<String> = items.iter().map(|item| hex(&item.data)).collect();
            let expected: Vec<String> = objects.iter().map(|(_, bytes)| digest(algorithm, bytes)).collect();
            assert_eq!(found, expected, "seed {seed}, {algorithm:?}");
        }
    });
}

fn frames(data: &[u8], frame: usize, algorithm: Algorithm) -> Vec<u8> {
    let key: [u8; 32] = key().try_into().unwrap();
    let mut bytes = Vec::new();
    for block in data.chunks(frame) {
        let mut hasher = algorithm.start(key);
        hasher.update(block);
        bytes.extend(hasher.finish());
        bytes.extend_from_slice(block);
    }
    bytes
}

fn verify(algorithm: Algorithm, frame: usize) -> Descriptor {
    let descriptor = Descriptor::new(opcode::VERIFY_FRAMED).number(tag::ALGORITHM, algorithm.opcode().into()).number(tag::FRAME, frame as u64);
    if algorithm == Algorithm::Highway256 { descriptor.bytes(tag::KEY, key()) } else { descriptor }
}

/// Each flipped bit is found in its frame, by a batch of right and wrong objects; right ones take 16 bytes.
#[test]
fn verify_framed_names_the_first_bad_frame() {
    wait(async {
        let exec = exec();
        for seed in 0..60 {
            let mut rng = Rng::with_seed(seed);
            let mut disk = Disk::new(16 << 20);
            let algorithm = Algorithm::ALL[rng.usize(..7)];
            let frame = rng.usize(1..9000);
            let mut descriptor = verify(algorithm, frame);
            let mut expected = Vec::new();
            for _ in 0..5 {
                let len = rng.usize(0..40_000);
                let mut bytes = frames(&text(&mut rng, len), frame, algorithm);
                let bad = (!bytes.is_empty() && rng.bool()).then(|| rng.usize(..bytes.len()));
                if let Some(at) = bad {
                    bytes[at] ^= 1 << rng.u8(..8);
                }
                expected.push(bad.map(|at| (at / (frame + algorithm.length())) as u64));
                descriptor = descriptor.input(disk.scatter(&bytes, &mut rng).await);
            }
            let items = disk.items(&exec, &descriptor).await;
            for (item, expected) in items.iter().zip(expected) {
                assert_eq!(item.has(item_flag::BAD_FRAME).then(|| item.values[0]), expected, "seed {seed}");
                assert_eq!(item.encoded_length(), if expected.is_some() { 24 } else { 16 });
            }
        }
    });
}

#[test]
fn an_object_cut_in_a_frame_is_bad() {
    wait(async {
        let mut disk = Disk::new(1 << 20);
        let bytes = frames(&[7; 1000], 300, Algorithm::Highway256);
        for len in 0..bytes.len() {
            let object = disk.put(&bytes[..len]).await;
            let item = disk.items(&exec(), &verify(Algorithm::Highway256, 300).input(object)).await.remove(0);
            // A cut at the end of a frame can't be seen from the object alone.
            assert_eq!(item.flags == 0, len % 332 == 0, "{len}");
        }
    });
}

#[test]
fn digests_refuse_keys_of_wrong_length_and_chunks() {
    wait(async {
        let disk = Disk::new(1 << 20);
        let object = Object::default();
        for (descriptor, kind) in [
            (Descriptor::new(opcode::HIGHWAY256).input(object.clone()), Kind::Invalid),
            (Descriptor::new(opcode::HIGHWAY256).bytes(tag::KEY, vec![1; 31]).input(object.clone()), Kind::Invalid),
            (Descriptor::new(opcode::MD5).bytes(tag::KEY, key()).input(object.clone()), Kind::Unsupported),
            (Descriptor::new(opcode::MD5).input(object.clone().chunk(0, true, false)), Kind::Invalid),
            (verify(Algorithm::Md5, 0).input(object.clone()), Kind::Invalid),
            (Descriptor::new(opcode::VERIFY_FRAMED).number(tag::ALGORITHM, 0x100).number(tag::FRAME, 9).input(object.clone()), Kind::Unsupported),
        ] {
            let failure = disk.exec(&exec(), &descriptor).await.failure.unwrap();
            assert_eq!(failure.kind, kind, "{}", failure.text);
        }
    });
}
