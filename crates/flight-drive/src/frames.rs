//! Byte layouts of tickets and actions. Pure: bytes in, values out; everything that comes in is checked. Deliveries
//! have [a module of their own](super::deliveries).

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Key, Result};
use skytether_device::cse::CseInfo;
use skytether_device::ticket::{framed, unframed};
pub(super) use skytether_device::ticket::{from_json, json};
use skytether_store::{Expect, MAX_VALUE, Op};

use crate::consts::{MAX_MESSAGE, PROTOCOL};

pub use skytether_device::ticket::{MAX_HEADER, decode_ticket, encode_ticket};

/// The most changes in one batch.
pub const MAX_CHANGES: usize = 16_384;

/// The most entries that one `list` call answers; a client asks again for more.
pub const LIST_PAGE: usize = 4096;

/// What `info` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Hello {
    protocol: u32,
    cse: CseInfo,
}

/// The answer to `info`.
///
/// # Errors
/// Internal only.
pub fn encode_info(info: &CseInfo) -> Result<Bytes> {
    Ok(json("a CSE's description", &Hello { protocol: PROTOCOL, cse: info.clone() })?.into())
}

/// Reads the answer to `info`.
///
/// # Errors
/// Unsupported, with both numbers, where the other side speaks another protocol; Invalid where this is no such
/// answer.
pub fn decode_info(bytes: &[u8]) -> Result<CseInfo> {
    // The number first: a later version may describe itself in another way.
    #[derive(Deserialize)]
    struct Number {
        protocol: u32,
    }
    let Number { protocol } = from_json("the answer to `info`", bytes)?;
    if protocol != PROTOCOL {
        return Err(Error::unsupported(format!("it speaks protocol {protocol}, this program speaks {PROTOCOL}: run the same version on both sides")));
    }
    let cse = from_json::<Hello>("the answer to `info`", bytes)?.cse;
    if let Some(profile) = cse.profile {
        profile.checked(&format!("of {}", cse.name)).map_err(|e| Error::invalid("the answer to `info` tells of no device").with_source(e))?;
    }
    Ok(cse)
}

/// What `list` asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    /// Keys that begin with this,
    pub prefix: String,
    /// and come after this,
    pub after: Option<Key>,
    /// The most entries to return.
    pub limit: usize,
}

/// What `get` and `stat` ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// The key.
    pub key: Key,
}

/// The bytes of a protobuf message, for the crates that have no prost of their own.
#[must_use]
pub fn encode_message<M: prost::Message>(message: &M) -> Bytes {
    message.encode_to_vec().into()
}

/// Reads a protobuf message called `what`.
///
/// # Errors
/// Invalid for bytes that are no such message.
pub fn decode_message<M: prost::Message + Default>(what: &str, bytes: &[u8]) -> Result<M> {
    M::decode(bytes).map_err(|e| Error::invalid(format!("{what} is no such protobuf message")).with_source(e))
}

/// Any JSON request or answer, as bytes.
///
/// # Errors
/// Internal only.
pub fn encode_json<T: Serialize>(value: &T) -> Result<Bytes> {
    Ok(json("a message", value)?.into())
}

/// Any JSON request or answer, read back.
///
/// # Errors
/// Invalid, naming `what`.
pub fn decode_json<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T> {
    from_json(what, bytes)
}

/// The answer to `get`: checksum and value.
#[must_use]
pub fn encode_value(value: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(4 + value.len());
    out.put_u32_le(crc32c(value));
    out.put_slice(value);
    out.freeze()
}

/// Reads the answer to `get`.
///
/// # Errors
/// Corrupt where the value's checksum differs.
pub fn decode_value(bytes: &Bytes) -> Result<Bytes> {
    let Some(sum) = bytes.first_chunk::<4>() else {
        return Err(Error::corrupt("the value came cut off"));
    };
    let value = bytes.slice(4..);
    if crc32c(&value) != u32::from_le_bytes(*sum) {
        return Err(Error::corrupt("the value's checksum is wrong: it was changed on the way"));
    }
    Ok(value)
}

/// What `get_ranges` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangesRequest {
    /// The key.
    pub key: Key,
    /// From the start of each to before its end.
    pub ranges: Vec<Range<u64>>,
}

/// The most ranges of one request: more than any slice has sections.
pub const MAX_RANGES: usize = 65_536;

/// The bytes of `ranges` together.
///
/// # Errors
/// Invalid where a range ends before it begins, there are too many, or they have more bytes than a value can have.
pub fn check_ranges(ranges: &[Range<u64>]) -> Result<usize> {
    if ranges.len() > MAX_RANGES {
        return Err(Error::invalid(format!("{} ranges are too many: at most {MAX_RANGES}", ranges.len())));
    }
    let mut all = 0u64;
    for range in ranges {
        let len = range.end.checked_sub(range.start).ok_or_else(|| Error::invalid(format!("range {} to {} ends before it begins", range.start, range.end)))?;
        all = all.saturating_add(len);
    }
    match usize::try_from(all) {
        Ok(all) if all <= MAX_VALUE => Ok(all),
        _ => Err(Error::invalid(format!("ranges of {all} bytes together are too long: at most {MAX_VALUE}"))),
    }
}

/// The answer to `get_ranges`: checksum, then the parts one after the other.
#[must_use]
pub fn encode_ranges(parts: &[Bytes]) -> Bytes {
    let mut all = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| all.put_slice(part));
    encode_value(&all.freeze())
}

/// Reads the answer to `get_ranges` for `ranges`.
///
/// # Errors
/// Corrupt where a checksum differs, or the answer does not fit `ranges`.
pub fn decode_ranges(bytes: &Bytes, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let mut all = decode_value(bytes)?;
    let due = check_ranges(ranges)?;
    if all.len() != due {
        return Err(Error::corrupt(format!("{} bytes came where {due} were asked for", all.len())));
    }
    // Each is no longer than all of them, which fit.
    Ok(ranges.iter().map(|range| all.split_to(usize::try_from(range.end - range.start).unwrap_or(0))).collect())
}

/// A change as the header of `apply` describes it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Change {
    Put { key: Key, expect: Expect, len: usize, crc32c: u32 },
    Delete { key: Key, expect: Expect },
    Check { key: Key, expect: Expect },
    Link { key: Key, from: Key, len: u64, crc32c: u32, expect: Expect },
}

/// The body of `apply`.
///
/// # Errors
/// Invalid where there are too many changes; Exhausted where they are too long for one message.
pub fn encode_batch(batch: &[Op]) -> Result<Bytes> {
    if batch.len() > MAX_CHANGES {
        return Err(Error::invalid(format!("{} changes are too many for one batch: at most {MAX_CHANGES}", batch.len())));
    }
    let changes: Vec<Change> = batch
        .iter()
        .map(|op| match op {
            Op::Put { key, value, expect } => Change::Put { key: key.clone(), expect: *expect, len: value.len(), crc32c: crc32c(value) },
            Op::Delete { key, expect } => Change::Delete { key: key.clone(), expect: *expect },
            Op::Check { key, expect } => Change::Check { key: key.clone(), expect: *expect },
            Op::Link { key, from, len, crc32c, expect } => Change::Link { key: key.clone(), from: from.clone(), len: *len, crc32c: *crc32c, expect: *expect },
        })
        .collect();
    let header = json("a batch of changes", &changes)?;
    let values: usize = batch.iter().map(|op| if let Op::Put { value, .. } = op { value.len() } else { 0 }).sum();
    // Some bytes for the frames around it.
    if 4 + header.len() + values > MAX_MESSAGE - 4096 {
        return Err(Error::exhausted(format!("a batch of {} bytes is too long for one message: at most {}", header.len() + values, MAX_MESSAGE - 4096)));
    }
    let mut out = framed(&header, values)?;
    for op in batch {
        if let Op::Put { value, .. } = op {
            out.put_slice(value);
        }
    }
    Ok(out.freeze())
}

/// Reads the body of `apply`.
///
/// # Errors
/// Invalid where lengths and bytes do not fit together; Corrupt where a value's checksum is wrong.
pub fn decode_batch(bytes: &Bytes) -> Result<Vec<Op>> {
    let (header, mut values) = unframed("a batch of changes", bytes)?;
    let changes: Vec<Change> = from_json("the header of a batch of changes", &header)?;
    if changes.len() > MAX_CHANGES {
        return Err(Error::invalid(format!("{} changes are too many for one batch: at most {MAX_CHANGES}", changes.len())));
    }
    let mut batch = Vec::with_capacity(changes.len());
    for change in changes {
        batch.push(match change {
            Change::Delete { key, expect } => Op::Delete { key, expect },
            Change::Check { key, expect } => Op::Check { key, expect },
            Change::Link { key, from, len, crc32c, expect } => Op::Link { key, from, len, crc32c, expect },
            Change::Put { key, expect, len, crc32c: sum } => {
                if len > MAX_VALUE {
                    return Err(Error::invalid(format!("the value of {key} has {len} bytes: at most {MAX_VALUE}")));
                }
                if len > values.len() {
                    return Err(Error::invalid(format!("a batch of changes is cut off in the value of {key}")));
                }
                let value = values.split_to(len);
                if crc32c(&value) != sum {
                    return Err(Error::corrupt(format!("the value of {key} was changed on the way: its checksum is wrong")));
                }
                Op::Put { key, value, expect }
            }
        });
    }
    if !values.is_empty() {
        return Err(Error::invalid(format!("a batch of changes has {} bytes too many", values.len())));
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use skytether_common::{Generation, Kind, PartitionName};
    use skytether_device::subplan::MAX_PLAN;
    use skytether_device::{Capabilities, Program, SubPlan};
    use uuid::Uuid;

    fn plan() -> SubPlan {
        let partition = PartitionName { dataset: "a.b".parse().unwrap(), generation: Generation(3), table: "layer_ü".into(), slot: 1 };
        let other = PartitionName { dataset: "a.c".parse().unwrap(), generation: Generation(4), table: "data".into(), slot: 2 };
        SubPlan {
            query: Uuid::from_u128(1),
            dataset: partition.dataset.clone(),
            partitions: BTreeMap::from([(partition.table.clone(), partition)]),
            with: BTreeMap::from([(other.dataset.clone(), BTreeMap::from([(other.table.clone(), other)]))]),
            rung: skytether_device::PushdownLevel::Filter,
            program: Program::Substrait(Bytes::from_static(b"substrait")),
            filters: BTreeMap::from([("k0".into(), Bytes::from_static(b"one")), ("k1".into(), Bytes::from_static(b"another"))]),
            tables: BTreeMap::from([("__shipped_0".into(), Bytes::from_static(b"rows"))]),
            batch_rows: 77,
            keep: true,
        }
    }

    #[test]
    fn tickets_survive_and_every_cut_is_an_error() {
        let ticket = encode_ticket(&plan()).unwrap();
        assert_eq!(decode_ticket(&ticket).unwrap(), plan());
        for n in 0..ticket.len() {
            assert_eq!(decode_ticket(&ticket.slice(..n)).unwrap_err().kind(), Kind::Invalid, "{n}");
        }
        let long = SubPlan { program: Program::Substrait(Bytes::from(vec![0; MAX_PLAN + 1])), ..plan() };
        assert_eq!(encode_ticket(&long).unwrap_err().kind(), Kind::Invalid);
    }

    /// Older drives read tickets of Substrait plans, so these have no field for the kind of the program.
    #[test]
    fn native_tickets_survive_and_substrait_ones_add_no_field() {
        let text = |plan: &SubPlan| String::from_utf8_lossy(&encode_ticket(plan).unwrap()).into_owned();
        assert!(!text(&plan()).contains("\"program\""), "an older drive reads what it always did");
        let native = SubPlan { program: Program::Native { name: "count-bytes".into(), arguments: Bytes::from_static(b"{}") }, ..plan() };
        assert_eq!(decode_ticket(&encode_ticket(&native).unwrap()).unwrap(), native);
        let unknown = text(&native).replace("\"native\"", "\"nativf\"");
        assert_eq!(decode_ticket(&unknown.into_bytes().into()).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn batches_of_changes_survive_and_every_cut_is_an_error() {
        let key = |k: &str| Key::new(k).unwrap();
        let batch = vec![
            Op::Put { key: key("a/b"), value: Bytes::from_static(b"one"), expect: Expect::Absent },
            Op::Delete { key: key("c"), expect: Expect::Version(7) },
            Op::Link { key: key("d"), from: key("e"), len: 5, crc32c: 9, expect: Expect::Absent },
            Op::Put { key: key("d"), value: Bytes::new(), expect: Expect::Any },
            Op::Put { key: key("e"), value: Bytes::from_static(&[0, 255]), expect: Expect::Version(u64::MAX) },
            Op::Check { key: key("f"), expect: Expect::Version(3) },
        ];
        let bytes = encode_batch(&batch).unwrap();
        assert_eq!(decode_batch(&bytes).unwrap(), batch);
        for n in 0..bytes.len() {
            assert!(decode_batch(&bytes.slice(..n)).is_err(), "{n}");
        }
        let mut flipped = bytes.to_vec();
        *flipped.last_mut().unwrap() ^= 4;
        assert_eq!(decode_batch(&flipped.into()).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn value_changed_in_transit_is_found() {
        let mut bytes = encode_value(&Bytes::from_static(b"value")).to_vec();
        assert_eq!(decode_value(&bytes.clone().into()).unwrap(), "value");
        bytes[6] ^= 1;
        assert_eq!(decode_value(&bytes.into()).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(decode_value(&Bytes::from_static(b"123")).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn another_protocol_is_refused_with_both_numbers() {
        let info = CseInfo {
            id: Uuid::from_u128(4),
            name: "drive-0".into(),
            format: 1,
            memory_limit: 5,
            profile: None,
            device: None,
            capabilities: Capabilities::default(),
        };
        let bytes = encode_info(&info).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("profile") && !text.contains("capabilities"), "drives of today's kind say what they have always said: {text}");
        assert_eq!(decode_info(&bytes).unwrap(), info);
        let stores = CseInfo { capabilities: Capabilities::storage_only(), ..info.clone() };
        assert_eq!(decode_info(&encode_info(&stores).unwrap()).unwrap(), stores);
        let slow = CseInfo { profile: Some(skytether_scheduler::profile::Profile::shipped("envoy").unwrap()), ..info };
        assert_eq!(decode_info(&encode_info(&slow).unwrap()).unwrap(), slow);
        let odd = CseInfo { profile: slow.profile.map(|p| skytether_scheduler::profile::Profile { cores: 0, ..p }), ..slow };
        let error = decode_info(&encode_info(&odd).unwrap()).unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.report().contains("drive-0: cores is 0"), "{error}");
        let error = decode_info(br#"{"protocol": 4711, "greeting": "from the future"}"#).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("4711") && error.to_string().contains(&PROTOCOL.to_string()), "{error}");
        assert_eq!(decode_info(b"220 mail").unwrap_err().kind(), Kind::Invalid);
    }
}
