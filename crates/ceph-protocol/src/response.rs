//! Rows or a refusal, with a receipt.
//!
//! ```text
//! "STCR", version u16, outcome u8, osd u32, engine, rows u64, bytes read u64, microseconds u64, peak memory u64,
//! annotation (JSON), body: an Arrow IPC stream, the reason in words, or keys with a line each
//! ```

use std::time::Duration;

use crate::VERSION;
use crate::fields::{Decoded, Reader, Writer, wrong};

/// The first bytes of a response.
pub const MAGIC: [u8; 4] = *b"STCR";

/// The most bytes of a response: the rows, and what is around them.
pub const MAX_RESPONSE: usize = crate::request::MAX_OUTPUT as usize + (2 << 20);

const MAX_TEXT: usize = 1 << 20;

/// Why a class or an engine did not do what it was asked for. The client can do all of it above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The engine has enough to do: ask later, or do it above.
    Busy,
    /// The engine does not do such a thing, or the class can't read here (erasure-coded pools).
    Unsupported,
    /// The request is wrong: no engine can run it.
    Invalid,
    /// It takes more memory or gives more rows than it may.
    Exhausted,
    /// It takes longer than it may.
    Late,
    /// The object's bytes are not those that are due.
    Corrupt,
    /// The object, or what a plan names, is not there.
    Absent,
    /// No engine is there, or it went away in the middle.
    NoEngine,
    /// A defect.
    Internal,
}

const REFUSALS: [Refusal; 9] = [
    Refusal::Busy,
    Refusal::Unsupported,
    Refusal::Invalid,
    Refusal::Exhausted,
    Refusal::Late,
    Refusal::Corrupt,
    Refusal::Absent,
    Refusal::NoEngine,
    Refusal::Internal,
];

/// The outcome's number of [`Outcome::Wants`].
const WANTS: u8 = 10;

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// An Arrow IPC stream.
    Rows(Vec<u8>),
    /// Nothing: the engine needs the values of these keys first. The client asks again, and sends them along.
    Wants(Vec<String>),
    /// Nothing, and why.
    Refused(Refusal, String),
}

/// Who did what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The OSD's number; `None` where a class does not know it.
    pub osd: Option<u32>,
    /// The engine's version; empty where there was none.
    pub engine: String,
    /// Rows that went out.
    pub rows: u64,
    /// Bytes of the object that were read.
    pub bytes_read: u64,
    /// From the arrival at the engine on.
    pub time: Duration,
    /// Highest number of bytes that the memory pool had granted.
    pub peak_memory: u64,
    /// The engine's annotation as JSON, for `explain --analyze`; empty where there is none.
    pub annotation: Vec<u8>,
}

impl Receipt {
    /// The OSD's name, `osd.N`.
    #[must_use]
    pub fn name(&self) -> String {
        self.osd.map_or_else(|| "osd.?".to_owned(), |number| format!("osd.{number}"))
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Who did what.
    pub receipt: Receipt,
    /// What came of it.
    pub outcome: Outcome,
}

impl Response {
    /// A refusal by `osd`.
    #[must_use]
    pub fn refused(osd: Option<u32>, why: Refusal, reason: impl Into<String>) -> Self {
        Self { receipt: Receipt { osd, ..Receipt::default() }, outcome: Outcome::Refused(why, reason.into()) }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let lines;
        let (code, body) = match &self.outcome {
            Outcome::Rows(rows) => (0, rows.as_slice()),
            Outcome::Wants(keys) => {
                lines = keys.join("\n");
                (WANTS, lines.as_bytes())
            }
            Outcome::Refused(why, reason) => {
                let at = REFUSALS.iter().position(|one| one == why).unwrap_or(REFUSALS.len() - 1);
                (at as u8 + 1, reason.as_bytes())
            }
        };
        let own = &self.receipt;
        let mut writer = Writer(Vec::with_capacity(body.len() + own.annotation.len() + 128));
        writer.raw(&MAGIC).u16(VERSION).u8(code).u32(own.osd.unwrap_or(u32::MAX)).blob(own.engine.as_bytes());
        let time = u64::try_from(own.time.as_micros()).unwrap_or(u64::MAX);
        writer.u64(own.rows).u64(own.bytes_read).u64(time).u64(own.peak_memory).blob(&own.annotation).blob(body);
        writer.0
    }

    /// Reads a response, which may be any bytes.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new("response", bytes);
        if reader.raw(4)? != MAGIC {
            return wrong("these bytes are no response");
        }
        match reader.u16()? {
            VERSION => {}
            other => return wrong(format!("a response of version {other}; this client knows version {VERSION}")),
        }
        let code = reader.u8()?;
        let osd = Some(reader.u32()?).filter(|number| *number != u32::MAX);
        let engine = reader.text(MAX_TEXT)?;
        let (rows, bytes_read, micros, peak_memory) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let annotation = reader.blob()?;
        if annotation.len() > MAX_TEXT {
            return wrong(format!("a response with an annotation of {} bytes", annotation.len()));
        }
        let receipt = Receipt { osd, engine, rows, bytes_read, time: Duration::from_micros(micros), peak_memory, annotation: annotation.to_vec() };
        let outcome = match code.checked_sub(1).filter(|_| code != WANTS).map(|at| REFUSALS.get(usize::from(at))) {
            None if code == WANTS => Outcome::Wants(reader.text(MAX_TEXT)?.split('\n').map(str::to_owned).collect()),
            None => Outcome::Rows(reader.blob()?.to_vec()),
            Some(Some(why)) => Outcome::Refused(*why, reader.text(MAX_TEXT)?),
            Some(None) => return wrong(format!("a response with outcome {code}, which this version does not know")),
        };
        reader.end()?;
        Ok(Self { receipt, outcome })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn responses_come_back_as_they_were() {
        let receipt = Receipt {
            osd: Some(2),
            engine: "1.0".to_owned(),
            rows: 7,
            bytes_read: 8,
            time: Duration::from_micros(9),
            peak_memory: 10,
            annotation: b"{}".to_vec(),
        };
        let refused = REFUSALS.map(|why| Outcome::Refused(why, "because".to_owned()));
        for outcome in refused.into_iter().chain([Outcome::Rows(vec![1, 2, 3]), Outcome::Wants(vec!["a".to_owned(), "b;00000001".to_owned()])]) {
            let own = Response { receipt: receipt.clone(), outcome };
            let bytes = own.encode();
            assert_eq!(Response::decode(&bytes).unwrap(), own);
            for cut in 0..bytes.len() {
                Response::decode(&bytes[..cut]).unwrap_err();
            }
        }
        assert_eq!((receipt.name().as_str(), Receipt::default().name().as_str()), ("osd.2", "osd.?"));
    }
}
