//! `xl.meta`: the versions of an object, and the places of their data on this drive.
//!
//! The file is `XL2 `, the format's number, the metadata with a checksum, and data of small versions by their ids:
//!
//! | bytes | content |
//! |---|---|
//! | 4 | `XL2 ` |
//! | 2 + 2 | format, little-endian: 1, and 3 |
//! | MessagePack bytes | metadata: two numbers of formats, the number of versions, head and body of each as bytes |
//! | MessagePack number | the low 32 bits of the metadata's XXH64 |
//! | 1 + MessagePack map | 1, then the data of versions, each a row of frames; absent where no version is small |
//!
//! A body is a map: `Type` (1 is an object, 2 a delete marker, 3 an object of older servers), and `V2Obj` for type 1.

use std::hash::Hasher;

use bytes::Bytes;
use skytether_common::{Error, Result};
use twox_hash::XxHash64;
use uuid::Uuid;

use super::msgpack::Reader;

/// Bytes of a frame's digest.
pub const DIGEST: u64 = 32;

/// The key of a version's entry that says that its data was moved to another tier.
const TIER_STATUS: &[u8] = b"X-Minio-Internal-transition-status";

/// All versions of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XlMeta {
    /// The newest first.
    pub versions: Vec<Version>,
    /// Data of small versions, by their ids in text, or `null`.
    inline: Vec<(String, Bytes)>,
}

/// A version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    /// An object with data.
    Object(Object),
    /// A mark that the object was deleted, or its data is in another tier. A copy that was fetched from there for a
    /// time is not looked for.
    Empty,
    /// A version in the form of servers before 2020, which this library does not read.
    Older,
}

/// Where the data of a version is, and how it is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The version; `None` for that of a bucket without versions.
    pub id: Option<Uuid>,
    /// The directory of its part files.
    pub data_dir: Uuid,
    /// Shards with data.
    pub data: u64,
    /// Bytes of an object that are coded together.
    pub block: u64,
    /// The parts, in their order.
    pub parts: Vec<Part>,
}

/// A part of an object: of an upload in parts, or all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its number, as in the name of its file.
    pub number: u64,
    /// Its bytes in the object.
    pub size: u64,
}

impl Object {
    /// Bytes of a whole frame, without its digest.
    #[must_use]
    pub fn frame(&self) -> u64 {
        self.block.div_ceil(self.data)
    }

    /// Bytes of a part's file: its shard, and a digest for each frame.
    #[must_use]
    pub fn file_size(&self, part: &Part) -> u64 {
        let shard = (part.size / self.block).saturating_mul(self.frame()).saturating_add((part.size % self.block).div_ceil(self.data));
        shard.saturating_add(shard.div_ceil(self.frame()).saturating_mul(DIGEST))
    }

    /// The version as MinIO writes it.
    #[must_use]
    pub fn id_text(&self) -> String {
        self.id.map_or_else(|| "null".to_owned(), |id| id.to_string())
    }
}

fn wrong(what: &str) -> Error {
    Error::corrupt(format!("no xl.meta: {what}"))
}

impl XlMeta {
    /// Reads a file.
    ///
    /// # Errors
    /// `Corrupt` where the bytes are not those that a server wrote, by their form or their checksum; `Unsupported` for
    /// a format that this library does not know.
    pub fn parse(file: &Bytes) -> Result<Self> {
        let body = file.strip_prefix(b"XL2 ").ok_or_else(|| wrong("it does not begin with `XL2 `"))?;
        let (format, body) = body.split_first_chunk::<4>().ok_or_else(|| wrong("it ends too early"))?;
        let [major, minor] = [[format[0], format[1]], [format[2], format[3]]].map(u16::from_le_bytes);
        // The first format has text there.
        if (major, minor) != (1, 3) {
            let text = String::from_utf8_lossy(format).trim().to_owned();
            let number = if text.chars().all(|c| c.is_ascii_graphic()) && !text.is_empty() { text } else { format!("{major}.{minor}") };
            return Err(Error::unsupported(format!("xl.meta of format {number}, not 1.3: let a newer MinIO write it again")));
        }
        let mut reader = Reader::new(body);
        let metadata = reader.bytes()?;
        let expected = reader.number()?;
        let mut hasher = XxHash64::with_seed(0);
        hasher.write(metadata);
        if hasher.finish() & 0xFFFF_FFFF != expected {
            return Err(wrong("its checksum is another one"));
        }
        Ok(Self { versions: versions(metadata)?, inline: inline(file, reader.rest())? })
    }

    /// The data of a version, where it is inside the file.
    #[must_use]
    pub fn inline(&self, object: &Object) -> Option<&Bytes> {
        let id = object.id_text();
        self.inline.iter().find(|(of, _)| *of == id).map(|(_, data)| data)
    }
}

/// The versions in the metadata of a file, without its checksum.
///
/// # Errors
/// As [`XlMeta::parse`].
pub fn versions(metadata: &[u8]) -> Result<Vec<Version>> {
    let mut reader = Reader::new(metadata);
    let (head, body) = (reader.number()?, reader.number()?);
    if head > 3 || body > 3 {
        return Err(Error::unsupported(format!("xl.meta with versions of format {head}.{body}, newer than 3.3")));
    }
    let count = reader.number()?;
    let mut found = Vec::new();
    for _ in 0..count {
        reader.bytes()?;
        found.push(version(reader.bytes()?)?);
    }
    Ok(found)
}

fn version(body: &[u8]) -> Result<Version> {
    let mut reader = Reader::new(body);
    let (mut kind, mut object) = (0, None);
    for _ in 0..reader.map()? {
        match reader.bytes()? {
            b"Type" => kind = reader.number()?,
            // Absent for the other types, or nil.
            b"V2Obj" if reader.rest().first() != Some(&0xC0) => object = Some(read_object(&mut reader)?),
            _ => reader.skip()?,
        }
    }
    match (kind, object) {
        (1, Some(version)) => Ok(version),
        (2, _) => Ok(Version::Empty),
        (3, _) => Ok(Version::Older),
        _ => Err(wrong("a version is of no known type")),
    }
}

fn read_object(reader: &mut Reader<'_>) -> Result<Version> {
    let (mut id, mut data_dir, mut algorithm, mut digest, mut data, mut block) = (Uuid::nil(), Uuid::nil(), 0, 0, 0, 0);
    let (mut numbers, mut sizes, mut moved) = (Vec::new(), Vec::new(), false);
    let uuid = |bytes: &[u8]| Uuid::from_slice(bytes).map_err(|_| wrong("an id has not 16 bytes"));
    for _ in 0..reader.map()? {
        match reader.bytes()? {
            b"ID" => id = uuid(reader.bytes()?)?,
            b"DDir" => data_dir = uuid(reader.bytes()?)?,
            b"EcAlgo" => algorithm = reader.number()?,
            b"EcM" => data = reader.number()?,
            b"EcBSize" => block = reader.number()?,
            b"CSumAlgo" => digest = reader.number()?,
            b"PartNums" => numbers = read_numbers(reader)?,
            b"PartSizes" => sizes = read_numbers(reader)?,
            b"MetaSys" => {
                for _ in 0..reader.map()? {
                    let (key, value) = (reader.bytes()?, reader.bytes()?);
                    moved |= key.eq_ignore_ascii_case(TIER_STATUS) && value == b"complete";
                }
            }
            _ => reader.skip()?,
        }
    }
    if moved {
        return Ok(Version::Empty);
    }
    if (algorithm, digest) != (1, 1) {
        return Err(Error::unsupported(format!("a version has the erasure code {algorithm} and the checksum {digest}, not 1 and 1")));
    }
    if data == 0 || data > 256 || block == 0 || block > 1 << 40 || numbers.len() != sizes.len() {
        return Err(wrong("a version has impossible numbers"));
    }
    let parts = numbers.into_iter().zip(sizes).map(|(number, size)| Part { number, size }).collect();
    Ok(Version::Object(Object { id: Some(id).filter(|id| !id.is_nil()), data_dir, data, block, parts }))
}

fn read_numbers(reader: &mut Reader<'_>) -> Result<Vec<u64>> {
    (0..reader.array()?).map(|_| reader.number()).collect()
}

fn inline(file: &Bytes, bytes: &[u8]) -> Result<Vec<(String, Bytes)>> {
    let Some((version, bytes)) = bytes.split_first() else { return Ok(Vec::new()) };
    if *version != 1 {
        return Err(Error::unsupported(format!("xl.meta with data of format {version}, not 1")));
    }
    let mut reader = Reader::new(bytes);
    let mut found = Vec::new();
    for _ in 0..reader.map()? {
        let id = String::from_utf8_lossy(reader.bytes()?).into_owned();
        found.push((id, file.slice_ref(reader.bytes()?)));
    }
    Ok(found)
}
