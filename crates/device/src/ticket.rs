//! A sub-plan as bytes, for the doors of drives. Pure: bytes in, values out; everything that comes in is checked.
//!
//! A ticket is `u32 LE length of a JSON header | header | program | filters | tables`; the header has the lengths.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Deserializer, Serialize};
use skytether_common::{Detail, Error, Result};

use crate::program::Program;
use crate::subplan::{MAX_PLAN, SubPlan};

/// The longest JSON header of a ticket or of a batch of changes.
pub const MAX_HEADER: usize = 4 << 20;

/// `header length | header | rest`, with room for the rest.
///
/// # Errors
/// Invalid where the header is too long.
pub fn framed(header: &[u8], rest_len: usize) -> Result<BytesMut> {
    if header.len() > MAX_HEADER {
        return Err(Error::invalid(format!("a header of {} bytes is too long: at most {MAX_HEADER}", header.len())));
    }
    let mut out = BytesMut::with_capacity(4 + header.len() + rest_len);
    out.put_u32_le(u32::try_from(header.len()).unwrap_or(u32::MAX));
    out.put_slice(header);
    Ok(out)
}

/// Takes `what` apart into header and rest.
///
/// # Errors
/// Invalid where it is cut off, or its header too long.
pub fn unframed(what: &str, bytes: &Bytes) -> Result<(Bytes, Bytes)> {
    let Some(length) = bytes.first_chunk::<4>() else {
        return Err(Error::invalid(format!("{what} of {} bytes is cut off: it has no header length", bytes.len())));
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_HEADER {
        return Err(Error::invalid(format!("{what} announces a header of {length} bytes: at most {MAX_HEADER}")));
    }
    if bytes.len() - 4 < length {
        return Err(Error::invalid(format!("{what} is cut off: its header has {length} bytes, {} are there", bytes.len() - 4)));
    }
    Ok((bytes.slice(4..4 + length), bytes.slice(4 + length..)))
}

/// `value` as JSON; `what` names it.
///
/// # Errors
/// Internal only.
pub fn json<T: Serialize>(what: &str, value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::internal(format!("cannot write {what} as JSON")).with_source(e))
}

/// Reads JSON; `what` names it.
///
/// # Errors
/// Invalid for anything else.
pub fn from_json<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::invalid(format!("{what} is no JSON of the expected form")).with_source(e))
}

/// Reads a field with a detail of an error; one of another version, which this one does not know, is `None`. It is a
/// function for serde's `deserialize_with`.
///
/// # Errors
/// Those of the reader; never for an unknown detail.
pub fn known_detail<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<Detail>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(from)?).ok())
}

/// A sub-plan as bytes: a *ticket*.
///
/// # Errors
/// Invalid where header or plan is too long.
pub fn encode_ticket(plan: &SubPlan) -> Result<Bytes> {
    if plan.bytes() > MAX_PLAN {
        return Err(Error::invalid(format!("a plan of {} bytes is too long: at most {MAX_PLAN}", plan.bytes())));
    }
    let lengths = |parts: &BTreeMap<String, Bytes>| parts.iter().map(|(name, part)| (name.clone(), part.len())).collect();
    let program = match &plan.program {
        Program::Substrait(_) => None,
        Program::Native { name, .. } => Some(ProgramHeader::Native { name: name.clone() }),
    };
    let plan_bytes = plan.program.bytes().len();
    let header = TicketHeader { plan: plan.clone(), plan_bytes, program, filters: lengths(&plan.filters), tables: lengths(&plan.tables) };
    let mut out = framed(&json("a sub-plan's header", &header)?, plan.bytes())?;
    out.put_slice(plan.program.bytes());
    plan.filters.values().chain(plan.tables.values()).for_each(|part| out.put_slice(part));
    Ok(out.freeze())
}

/// The header of a ticket; then come the bytes of the plan, of the filters and of the tables.
#[derive(Serialize, Deserialize)]
struct TicketHeader {
    #[serde(flatten)]
    plan: SubPlan,
    plan_bytes: usize,
    /// What the plan's bytes are, if no Substrait plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program: Option<ProgramHeader>,
    /// Names and lengths.
    filters: Vec<(String, usize)>,
    /// Likewise.
    #[serde(default)]
    tables: Vec<(String, usize)>,
}

/// A program without its bytes.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ProgramHeader {
    Native { name: String },
}

/// Reads a ticket.
///
/// # Errors
/// Invalid where it is cut off, too long or not of this form.
pub fn decode_ticket(ticket: &Bytes) -> Result<SubPlan> {
    let (header, rest) = unframed("a ticket", ticket)?;
    if rest.len() > MAX_PLAN {
        return Err(Error::invalid(format!("a ticket with a plan of {} bytes is too long: at most {MAX_PLAN}", rest.len())));
    }
    let TicketHeader { mut plan, plan_bytes, program, filters, tables } = from_json("a ticket's header", &header)?;
    let mut left = rest;
    let mut take = |len: usize| {
        if len > left.len() {
            return Err(Error::invalid(format!("a ticket is cut off: {len} bytes are due, {} are there", left.len())));
        }
        Ok(left.split_to(len))
    };
    let bytes = take(plan_bytes)?;
    plan.program = match program {
        None => Program::Substrait(bytes),
        Some(ProgramHeader::Native { name }) => Program::Native { name, arguments: bytes },
    };
    for (name, len) in filters {
        plan.filters.insert(name, take(len)?);
    }
    for (name, len) in tables {
        plan.tables.insert(name, take(len)?);
    }
    if !left.is_empty() {
        return Err(Error::invalid(format!("a ticket has {} bytes that belong to nothing", left.len())));
    }
    Ok(plan)
}
