//! Descriptors, results and capabilities as bytes.

use bytes::Bytes;
use proptest::prelude::*;
use skytether_common::Kind;
use skytether_offload::codes::{HOLE, MOST_EXTENTS, MOST_OBJECTS, descriptor_flag, item_flag, kind_of, number_of, opcode, tag};
use skytether_offload::result::Failure;
use skytether_offload::wire::seal;
use skytether_offload::{Capabilities, Descriptor, ExecResult, Extent, Item, Object};
use skytether_volume::ExecLimits;

fn sample() -> Descriptor {
    Descriptor::new(opcode::SEARCH)
        .with(descriptor_flag::TO_OUTPUT)
        .bytes(tag::STRING, &b"needle"[..])
        .text(tag::REGEX, "a+")
        .number(tag::MODE, 2)
        .input(Object::new(5000, vec![Extent::new(4096, 4096), Extent::hole(4096)]).chunk(1 << 20, true, false).beginning_at(7))
        .input(Object::default())
        .output(Object::new(8192, vec![Extent::new(1 << 20, 8192)]))
}

/// The document's example, byte for byte.
#[test]
fn a_descriptor_has_the_bytes_of_the_document() {
    let descriptor = Descriptor::new(opcode::MD5).input(Object::new(5000, vec![Extent::new(0x10000, 0x2000)]));
    let bytes = descriptor.encode().unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&bytes[..12]), "4f415344010010007000".to_owned() + "0000");
    assert_eq!(hex(&bytes[16..56]), "00000000".to_owned() + "00000000" + "01000000" + "00000000" + &"00".repeat(24));
    assert_eq!(hex(&bytes[56..96]), "8813000000000000".to_owned() + &"00".repeat(24) + "01000000" + "00000000");
    assert_eq!(hex(&bytes[96..]), "0000010000000000".to_owned() + "0020000000000000");
    assert_eq!(Descriptor::decode(&bytes).unwrap(), descriptor);
}

#[test]
fn a_decoded_descriptor_encodes_to_the_same_bytes() {
    let bytes = sample().encode().unwrap();
    let decoded = Descriptor::decode(&bytes).unwrap();
    assert_eq!(decoded, sample());
    assert_eq!(decoded.encode().unwrap(), bytes);
    assert_eq!(bytes.len(), decoded.encoded_length());
}

#[test]
fn a_changed_byte_fails_the_checksum() {
    let bytes = sample().encode().unwrap();
    for at in 0..bytes.len() {
        let mut changed = bytes.to_vec();
        changed[at] ^= 1;
        let error = Descriptor::decode(&changed.into()).unwrap_err();
        assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "{error}");
    }
}

#[test]
fn a_newer_version_or_flag_is_unsupported() {
    for at in [4, 16 + 3] {
        let mut bytes = sample().encode().unwrap().to_vec();
        bytes[at] |= 0x40;
        seal(&mut bytes, 12);
        assert_eq!(Descriptor::decode(&bytes.into()).unwrap_err().kind(), Kind::Unsupported);
    }
}

#[test]
fn descriptors_beyond_a_bound_are_refused() {
    let object = |extents: usize| Object::new(0, vec![Extent::new(0, 512); extents]);
    let wrong = [
        Descriptor { inputs: vec![Object::default(); MOST_OBJECTS + 1], ..sample() },
        Descriptor { outputs: vec![Object::default(); MOST_OBJECTS + 1], ..sample() },
        sample().input(object(MOST_EXTENTS)),
        sample().bytes(tag::STRING, vec![0; 512 << 10]),
        (0..1100).fold(sample(), |descriptor, _| descriptor.number(1, 1)),
        sample().input(Object::new(513, vec![Extent::new(0, 512)])),
        sample().input(Object::new(0, vec![Extent::new(0, 0)])),
        sample().input(Object::new(1, vec![Extent::new(1, 512)])),
        sample().input(Object::new(1, vec![Extent::new(HOLE - 511, 512)])),
        sample().input(Object::new(1, vec![Extent::hole(1 << 63), Extent::hole(1 << 63)])),
        sample().input(Object::new(1, vec![Extent::hole(512)]).beginning_at(2)),
        sample().output(Object::new(1, vec![Extent::hole(512)])),
        sample().output(Object::new(1, vec![Extent::new(0, 512)]).chunk(0, true, false)),
    ];
    for descriptor in wrong {
        assert_eq!(descriptor.encode().unwrap_err().kind(), Kind::Invalid, "{}", descriptor.encoded_length());
    }
    assert!(Descriptor::new(1).input(object(MOST_EXTENTS)).encode().is_ok());
}

fn item() -> impl Strategy<Value = Item> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    let failure = (1u8..9, ".{0,60}").prop_map(|(kind, text)| Failure { kind: kind_of(kind).unwrap(), text });
    let done = (0..=item_flag::ALL, prop::collection::vec(any::<u64>(), 0..8), bytes(), bytes(), bytes()).prop_map(|(flags, values, data, head, tail)| Item {
        failure: None,
        flags,
        values,
        data,
        head,
        tail,
    });
    prop_oneof![done, failure.prop_map(|failure| Item { failure: Some(failure), ..Item::default() })]
}

proptest! {
    #[test]
    fn a_result_decodes_to_what_was_encoded(items in prop::collection::vec(item(), 0..6), outputs in prop::collection::vec(any::<u64>(), 0..3), zeros in 0usize..9) {
        let result = ExecResult { opcode: 3, failure: items.first().and_then(|item| item.failure.clone()), items, outputs };
        let mut bytes = result.encode().unwrap().to_vec();
        prop_assert_eq!(bytes.len(), result.encoded_length());
        bytes.resize(bytes.len() + zeros, 0);
        prop_assert_eq!(ExecResult::decode(&bytes.into()).unwrap(), result);
    }
}

#[test]
fn small_results_fit_into_sense_data() {
    // Linux passes on 96 bytes; the header of descriptor sense data and of its descriptor take 10.
    let result = |item: Item| ExecResult { opcode: 1, items: vec![item], ..ExecResult::default() }.encode().unwrap().len();
    assert_eq!(result(Item::of_data(vec![1; 32])), 72);
    assert_eq!(result(Item::default()), 40);
    assert_eq!(result(Item::of_values(&[1, 2, 3, 4])), 72);
}

#[test]
fn capabilities_decode_to_what_was_encoded() {
    let mut capabilities = Capabilities::new(ExecLimits { descriptor: 7, result: 9 });
    capabilities.operations = vec![1, 5, 0x8000];
    let mut bytes = capabilities.encode().to_vec();
    bytes.resize(2048, 0);
    let decoded = Capabilities::decode(&bytes.into()).unwrap();
    assert_eq!(decoded, capabilities);
    assert!(decoded.has(5) && !decoded.has(6));
}

#[test]
fn each_kind_of_error_has_its_number() {
    for kind in Kind::ALL {
        assert_eq!(kind_of(number_of(kind)), Some(kind));
    }
    assert_eq!((kind_of(0), kind_of(9)), (None, None));
}
