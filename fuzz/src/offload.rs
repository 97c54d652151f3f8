//! Targets for EXEC: descriptors and results.

use bytes::Bytes;
use skytether_common::Kind;
use skytether_offload::codes::descriptor_flag::TO_OUTPUT;
use skytether_offload::codes::{MOST_ARGUMENTS, MOST_EXTENTS, MOST_LENGTH, MOST_OBJECTS, MOST_TEXT, MOST_VALUES, mode, opcode, tag};
use skytether_offload::result::Failure;
use skytether_offload::wire::seal;
use skytether_offload::{Descriptor, ExecResult, Extent, Item, Object, chunks, descriptor, result};

pub(crate) fn descriptors() -> Vec<Vec<u8>> {
    let object = Object::new(9000, vec![Extent::new(4096, 8192), Extent::hole(4096)]);
    let search = Descriptor::new(opcode::SEARCH).bytes(tag::STRING, &b"needle"[..]).number(tag::MODE, mode::TEXTS).input(object.clone().chunk(7, true, true));
    let sort = Descriptor::new(opcode::SORT_LINES).with(TO_OUTPUT).input(object.clone()).output(Object::new(9001, vec![Extent::new(1 << 20, 9216)]));
    let query = Descriptor::new(opcode::QUERY).number(tag::FORMAT, 1).bytes(tag::PLAN, vec![1; 33]).text(tag::TABLE, "table").input(object.beginning_at(100));
    let many = (0..20).fold(Descriptor::new(opcode::MD5), |ask, at| ask.input(Object::new(1, vec![Extent::new(at * 512, 512); 3])));
    [search, sort, query, many].iter().filter_map(|ask| ask.encode().ok()).map(|bytes| bytes.to_vec()).collect()
}

/// A descriptor: refused as invalid or unsupported, or within its bounds, and the same bytes when it is written again.
pub(crate) fn descriptor_decode(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    // Otherwise hardly any change would get past the checksum.
    seal(&mut bytes, descriptor::CHECKSUM);
    let bytes = Bytes::from(bytes);
    match Descriptor::decode(&bytes) {
        Ok(ask) => {
            assert!(ask.arguments.len() <= MOST_ARGUMENTS && ask.inputs.len() <= MOST_OBJECTS && ask.outputs.len() <= MOST_OBJECTS);
            let mut extents = 0;
            for object in ask.inputs.iter().chain(&ask.outputs) {
                let covered = object.extents.iter().map(|extent| extent.length).sum::<u64>();
                assert!(object.begin <= object.length && object.length <= covered && covered <= MOST_LENGTH);
                extents += object.extents.len();
            }
            assert!(extents <= MOST_EXTENTS && ask.outputs.iter().all(|object| !object.extents.iter().any(Extent::is_hole)));
            assert!(ask.encode().is_ok_and(|again| again == bytes));
            true
        }
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "{error}");
            false
        }
    }
}

pub(crate) fn results() -> Vec<Vec<u8>> {
    let failure = Some(Failure { kind: Kind::Corrupt, text: "damage at 4096".into() });
    let failed = Item { failure: failure.clone(), ..Item::default() };
    let chunk = Item { flags: 1, values: vec![3, 1 << 40, 5], data: vec![1; 24].into(), head: vec![2; 9].into(), tail: vec![3; 7].into(), ..Item::default() };
    let all = [
        ExecResult { opcode: opcode::MD5, items: vec![Item::of_data(vec![7; 16]), failed], ..ExecResult::default() },
        ExecResult { opcode: opcode::SEARCH, items: vec![chunk; 3], outputs: vec![1, 2, 3], ..ExecResult::default() },
        ExecResult { opcode: opcode::QUERY, failure, ..ExecResult::default() },
    ];
    all.iter().filter_map(|result| result.encode().ok()).map(|bytes| bytes.to_vec()).collect()
}

/// A result: refused, or within its bounds, and the same when it is written again.
pub(crate) fn result_decode(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    let length = data.get(8..12).and_then(|field| field.try_into().ok()).map_or(0, u32::from_le_bytes) as usize;
    let end = length.min(bytes.len());
    seal(&mut bytes[..end], result::CHECKSUM);
    match ExecResult::decode(&bytes.into()) {
        Ok(found) => {
            assert!(found.failure.iter().chain(found.items.iter().filter_map(|item| item.failure.as_ref())).all(|failure| failure.text.len() <= MOST_TEXT));
            assert!(found.items.iter().all(|item| item.values.len() <= MOST_VALUES));
            assert!(found.encoded_length() == length);
            let again = found.encode().and_then(|bytes| ExecResult::decode(&bytes));
            assert!(again.is_ok_and(|again| again == found));
            // What a client does with chunks: bounded by what came.
            let chunks = found.items.iter().map(|item| (u64::from(u32::MAX), 1 << 33, item));
            let bytes: usize = chunks::straddling(chunks).iter().map(|straddle| straddle.bytes.len()).sum();
            assert!(bytes <= length);
            true
        }
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "{error}");
            false
        }
    }
}
