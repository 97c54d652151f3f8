//! A sub-plan as a program inside a Kinetic drive: the bytes that client and server exchange.
//!
//! The program is [`MAGIC`] and a ticket ([`skytether_device::ticket`]). It is the value of the request, if the request
//! names no keys, or lies under the keys that it names, as all programs do. Its rows are an Arrow IPC stream. What the
//! program prints is a [`Report`], as JSON.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use skytether_common::{Detail, Error, Kind, Result};
use skytether_device::{Annotation, SubPlan, ticket};
use skytether_kinetic_protocol::kinds::Synchronization;

use crate::connection::Connection;
use crate::failure::Outcome;
use crate::values::Put;

/// What a program for the query engine begins with.
pub const MAGIC: &[u8; 8] = b"SKYPLAN1";

/// The argument by which the output key gets only rows that do not fit into the response.
pub const SPILL: &str = "--spill";

/// The vendor's log that describes the drive's query engine: a [`skytether_device::CseInfo`] as JSON.
pub const ENGINE_LOG: &str = "skytether/engine";

/// What the query engine prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The sub-plan was run.
    Done {
        /// What happened.
        annotation: Box<Annotation>,
        /// The length of the rows, in bytes.
        bytes: u64,
        /// The number of keys that have them; 0: they are one value.
        parts: u32,
    },
    /// The sub-plan failed.
    Failed {
        /// The kind of the error.
        kind: Kind,
        /// Its text.
        text: String,
        /// What programs can know of it.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "ticket::known_detail")]
        detail: Option<Detail>,
    },
}

impl Report {
    /// The report of a failure.
    #[must_use]
    pub fn failed(error: &Error) -> Report {
        Report::Failed { kind: error.kind(), text: error.report(), detail: error.detail().cloned() }
    }

    /// The report as bytes.
    ///
    /// # Errors
    /// Internal only.
    pub fn to_bytes(&self) -> Result<Bytes> {
        Ok(ticket::json("a sub-plan's report", self)?.into())
    }

    /// Reads a report.
    ///
    /// # Errors
    /// Corrupt for anything else.
    pub fn parse(bytes: &[u8]) -> Result<Report> {
        serde_json::from_slice(bytes).map_err(|e| Error::corrupt("the query engine's report can't be read").with_source(e))
    }
}

/// A sub-plan as a program.
///
/// # Errors
/// As [`ticket::encode_ticket`].
pub fn to_program(plan: &SubPlan) -> Result<Bytes> {
    let ticket = ticket::encode_ticket(plan)?;
    let mut program = BytesMut::with_capacity(MAGIC.len() + ticket.len());
    program.put_slice(MAGIC);
    program.put_slice(&ticket);
    Ok(program.freeze())
}

/// The sub-plan in a program.
///
/// # Errors
/// Invalid for anything else.
pub fn of_program(program: &Bytes) -> Result<SubPlan> {
    if !program.starts_with(MAGIC) {
        return Err(Error::invalid("this is no program for the query engine: it does not begin with SKYPLAN1"));
    }
    ticket::decode_ticket(&program.slice(MAGIC.len()..))
}

/// The key of part `number` of what is longer than a value.
#[must_use]
pub fn part_key(of: &[u8], number: u32) -> Bytes {
    let mut key = BytesMut::with_capacity(of.len() + 9);
    key.put_slice(of);
    key.put_slice(format!(".{number:08}").as_bytes());
    key.freeze()
}

impl Connection {
    /// How many values of the drive take this number of bytes.
    pub(crate) fn parts(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(self.longest_value().max(1))).unwrap_or(u32::MAX)
    }

    /// Puts `bytes` under keys with numbers below `of`; the keys. They are not durable yet.
    pub(crate) async fn put_parts(&self, of: &str, bytes: &Bytes) -> Outcome<Vec<Bytes>> {
        let mut keys = Vec::new();
        for (part, number) in bytes.chunks(self.longest_value().max(1)).zip(0..) {
            let key = part_key(of.as_bytes(), number);
            keys.push(key.clone());
            let put = Put::new(key, bytes.slice_ref(part), None, Bytes::new());
            self.put(Put { synchronization: Synchronization::WriteBack, ..put }).await?;
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_read_back_and_unknown_details_are_none() {
        let done = Report::Done { annotation: Box::new(Annotation { cse: "drive-1".into(), ..Annotation::default() }), bytes: 7, parts: 0 };
        let failed = Report::failed(&Error::not_found("no such column").with_detail(Detail::MissingColumn { column: "x".into() }));
        for report in [done, failed] {
            assert_eq!(Report::parse(&report.to_bytes().unwrap()).unwrap(), report);
        }
        let newer = br#"{"failed": {"kind": "conflict", "text": "t", "detail": {"type": "of_a_newer_version"}}}"#;
        assert_eq!(Report::parse(newer).unwrap(), Report::Failed { kind: Kind::Conflict, text: "t".into(), detail: None });
        assert_eq!(Report::parse(b"{}").unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn parts_of_a_key_are_in_the_order_of_their_numbers() {
        assert_eq!(part_key(b"rows", 12), Bytes::from_static(b"rows.00000012"));
    }
}
