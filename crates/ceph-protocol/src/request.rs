//! A sub-plan for one object.
//!
//! ```text
//! "STCQ", version u16, deadline in ms u32, memory u64, output bytes u64,
//! object: kind u8 and its fields, domain, data set, table, Arrow schema, sub-plan, filters, tables
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use crate::VERSION;
use crate::fields::{Decoded, Reader, Writer, wrong};
use crate::limits::{MAX_ENTRIES, MAX_NAME};
pub use crate::limits::{MAX_OBJECT, MAX_REQUEST};
use crate::stripe::Stripe;

/// The first bytes of a request.
pub const MAGIC: [u8; 4] = *b"STCQ";

/// The longest that a class may keep a placement group waiting.
pub const MAX_DEADLINE: Duration = Duration::from_secs(2);

/// The most bytes of memory and of rows that a request may ask for.
pub const MAX_MEMORY: u64 = 4 << 30;
/// See [`MAX_MEMORY`].
pub const MAX_OUTPUT: u64 = 64 << 20;

const MAX_PIECES: usize = 1024;
const MAX_GROUPS: usize = 1 << 16;

/// What a plan may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From the arrival at the class on; at most [`MAX_DEADLINE`].
    pub deadline: Duration,
    /// Bytes of memory for groups, sorts and batches.
    pub memory: u64,
    /// Bytes of the rows.
    pub output: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { deadline: MAX_DEADLINE, memory: 256 << 20, output: MAX_OUTPUT }
    }
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// Comma-separated values with a line of names.
    Csv,
    /// A JSON object a line.
    Json,
    /// Parquet.
    Parquet,
    /// An Arrow IPC file (Feather).
    Arrow,
}

/// Bytes of a file that come with the request, since the object does not have them: a footer, for example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where they are in the file.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What the object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// The slice of a stripe of a fleet's table.
    Stripe(Box<Stripe>),
    /// A file, or the part of a file that lies in this object.
    File {
        /// Its format.
        format: FileFormat,
        /// The length of the whole file.
        size: u64,
        /// Where in the file the object's first byte is.
        at: u64,
        /// How many bytes of the file the object has.
        len: u64,
        /// The row groups to read, of a Parquet file; `None`: all.
        groups: Option<Vec<u32>>,
        /// What else of the file is needed.
        pieces: Vec<Piece>,
    },
}

impl Object {
    /// How many bytes of the object are meant.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Stripe(stripe) => stripe.len,
            Self::File { len, .. } => *len,
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A sub-plan for one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What it may take.
    pub limits: Limits,
    /// What the object is.
    pub object: Object,
    /// Domain and name of the data set, and the table in it, as the plan names them. The object is that table's rows.
    pub table: [String; 3],
    /// An Arrow IPC stream without rows, whose columns are those of the table; empty where the object tells them.
    pub schema: Vec<u8>,
    /// The Substrait plan; empty to ask for the columns.
    pub plan: Vec<u8>,
    /// Join filters, by their names.
    pub filters: BTreeMap<String, Vec<u8>>,
    /// Tables of other parts of the query, by their names.
    pub tables: BTreeMap<String, Vec<u8>>,
}

/// The time that a request may take, which is all that the class reads of it.
///
/// # Errors
/// Bytes that do not begin as a request of this version, or one that is too long.
pub fn deadline(bytes: &[u8]) -> Decoded<Duration> {
    if bytes.len() > MAX_REQUEST {
        return wrong(format!("a request has {} bytes; at most {MAX_REQUEST} are taken", bytes.len()));
    }
    let mut reader = Reader::new("request", bytes);
    begin(&mut reader)
}

fn begin(reader: &mut Reader<'_>) -> Decoded<Duration> {
    if reader.raw(4)? != MAGIC {
        return wrong("these bytes are no request");
    }
    match reader.u16()? {
        VERSION => {}
        other => return wrong(format!("a request of version {other}; this class knows version {VERSION}")),
    }
    match Duration::from_millis(reader.u32()?.into()) {
        Duration::ZERO => wrong("a request without time"),
        time if time > MAX_DEADLINE => wrong(format!("a request for {} ms; at most {} are given", time.as_millis(), MAX_DEADLINE.as_millis())),
        time => Ok(time),
    }
}

/// The kind of a stripe; those of files are below it.
const STRIPE: u8 = 5;

const fn code(format: FileFormat) -> u8 {
    match format {
        FileFormat::Csv => 1,
        FileFormat::Json => 2,
        FileFormat::Parquet => 3,
        FileFormat::Arrow => 4,
    }
}

fn map(writer: &mut Writer, entries: &BTreeMap<String, Vec<u8>>) {
    writer.count(entries.len());
    for (name, bytes) in entries {
        writer.blob(name.as_bytes()).blob(bytes);
    }
}

fn read_map(reader: &mut Reader<'_>) -> Decoded<BTreeMap<String, Vec<u8>>> {
    let mut entries = BTreeMap::new();
    for _ in 0..reader.count(MAX_ENTRIES)? {
        let (name, bytes) = (reader.text(MAX_NAME)?, reader.blob()?);
        if entries.insert(name, bytes.to_vec()).is_some() {
            return wrong("a request names a filter or a table twice");
        }
    }
    Ok(entries)
}

impl Request {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let ms = u32::try_from(self.limits.deadline.as_millis()).unwrap_or(u32::MAX);
        writer.raw(&MAGIC).u16(VERSION).u32(ms).u64(self.limits.memory).u64(self.limits.output);
        match &self.object {
            Object::Stripe(stripe) => stripe.write(writer.u8(STRIPE)),
            Object::File { format, size, at, len, groups, pieces } => {
                writer.u8(code(*format)).u64(*size).u64(*at).u64(*len).u8(groups.is_some().into());
                writer.count(groups.as_ref().map_or(0, Vec::len));
                for group in groups.iter().flatten() {
                    writer.u32(*group);
                }
                writer.count(pieces.len());
                for piece in pieces {
                    writer.u64(piece.at).blob(&piece.bytes);
                }
            }
        }
        for name in &self.table {
            writer.blob(name.as_bytes());
        }
        writer.blob(&self.schema).blob(&self.plan);
        map(&mut writer, &self.filters);
        map(&mut writer, &self.tables);
        writer.0
    }

    /// Reads a request, which may be any bytes.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(bytes: &[u8]) -> Decoded<Self> {
        if bytes.len() > MAX_REQUEST {
            return wrong(format!("a request has {} bytes; at most {MAX_REQUEST} are taken", bytes.len()));
        }
        let mut reader = Reader::new("request", bytes);
        let deadline = begin(&mut reader)?;
        let limits = Limits { deadline, memory: reader.u64()?, output: reader.u64()? };
        if limits.memory > MAX_MEMORY || limits.output > MAX_OUTPUT {
            return wrong(format!(
                "a request for {} bytes of memory and {} of rows; at most {MAX_MEMORY} and {MAX_OUTPUT} are given",
                limits.memory, limits.output
            ));
        }
        let object = read_object(&mut reader)?;
        let table = [reader.text(MAX_NAME)?, reader.text(MAX_NAME)?, reader.text(MAX_NAME)?];
        let (schema, plan) = (reader.blob()?.to_vec(), reader.blob()?.to_vec());
        let (filters, tables) = (read_map(&mut reader)?, read_map(&mut reader)?);
        reader.end()?;
        Ok(Self { limits, object, table, schema, plan, filters, tables })
    }
}

fn read_object(reader: &mut Reader<'_>) -> Decoded<Object> {
    let format = match reader.u8()? {
        STRIPE => return Ok(Object::Stripe(Box::new(Stripe::read(reader)?))),
        1 => FileFormat::Csv,
        2 => FileFormat::Json,
        3 => FileFormat::Parquet,
        4 => FileFormat::Arrow,
        other => return wrong(format!("an object of kind {other}, which this version does not know")),
    };
    let (size, at, len) = (reader.u64()?, reader.u64()?, reader.u64()?);
    if len > MAX_OBJECT || at.checked_add(len).is_none_or(|end| end > size) {
        return wrong(format!("an object with {len} bytes from {at} on of a file of {size}"));
    }
    let has_groups = match reader.u8()? {
        0 => false,
        1 => true,
        other => return wrong(format!("{other} where 0 or 1 is due")),
    };
    let count = reader.count(MAX_GROUPS)?;
    let groups = (0..count).map(|_| reader.u32()).collect::<Decoded<Vec<_>>>()?;
    if !has_groups && !groups.is_empty() {
        return wrong("row groups in a request for all of them");
    }
    let mut pieces = Vec::new();
    for _ in 0..reader.count(MAX_PIECES)? {
        let (at, bytes) = (reader.u64()?, reader.blob()?);
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > size) {
            return wrong(format!("{} bytes from {at} on of a file of {size}", bytes.len()));
        }
        pieces.push(Piece { at, bytes: bytes.to_vec() });
    }
    Ok(Object::File { format, size, at, len, groups: has_groups.then_some(groups), pieces })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request(object: Object) -> Request {
        Request {
            limits: Limits { deadline: Duration::from_millis(250), memory: 1 << 20, output: 1000 },
            object,
            table: ["city", "rides", "data"].map(str::to_owned),
            schema: vec![1, 2],
            plan: vec![3; 100],
            filters: BTreeMap::from([("f".to_owned(), vec![4])]),
            tables: BTreeMap::from([("t".to_owned(), vec![])]),
        }
    }

    fn file() -> Object {
        let pieces = vec![Piece { at: 90, bytes: vec![7; 10] }];
        Object::File { format: FileFormat::Parquet, size: 100, at: 40, len: 40, groups: Some(vec![2, 3]), pieces }
    }

    #[test]
    fn requests_come_back_as_they_were() {
        for object in [Object::Stripe(Box::new(crate::stripe::tests::stripe())), file()] {
            let own = request(object);
            let bytes = own.encode();
            assert_eq!(Request::decode(&bytes).unwrap(), own);
            assert_eq!(deadline(&bytes).unwrap(), own.limits.deadline);
            for cut in 0..bytes.len() {
                Request::decode(&bytes[..cut]).unwrap_err();
            }
            Request::decode(&[bytes, vec![0]].concat()).unwrap_err();
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        let refused = |change: fn(&mut Request), what: &str| {
            let mut own = request(file());
            change(&mut own);
            let error = Request::decode(&own.encode()).unwrap_err();
            assert!(error.0.contains(what), "{error}");
        };
        refused(|own| own.limits.deadline = Duration::from_secs(3), "3000 ms");
        refused(|own| own.limits.deadline = Duration::ZERO, "without time");
        refused(|own| own.limits.memory = 10 << 30, "bytes of memory");
        refused(|own| own.table[0] = "x".repeat(2000), "1024 bytes");
        let mut other = request(file()).encode();
        other[4] = 9;
        assert!(deadline(&other).unwrap_err().0.contains("version 9"));
        assert!(deadline(b"GET / HTTP/1.1").unwrap_err().0.contains("no request"));
    }
}
