//! What is computed: an operation and its arguments.

use bytes::Bytes;
use skytether_common::{Error, Result};
use skytether_offload::codes::{MOST_ARGUMENT_BYTES, format, mode, opcode, tag};
use skytether_offload::operations::digests::Algorithm;
use skytether_offload::{Argument, Descriptor, Value};

pub use skytether_offload::operations::compress::Codec;
pub use skytether_offload::operations::query::Format;

/// Digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// CRC-32C (iSCSI).
    Crc32c,
    /// CRC-32 (zlib).
    Crc32,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// MD5.
    Md5,
    /// SHA-256.
    Sha256,
    /// BLAKE3.
    Blake3,
    /// HighwayHash-256, with its key.
    Highway256([u8; 32]),
}

impl Digest {
    fn algorithm(self) -> Algorithm {
        match self {
            Self::Crc32c => Algorithm::Crc32c,
            Self::Crc32 => Algorithm::Crc32,
            Self::Crc64Nvme => Algorithm::Crc64Nvme,
            Self::Md5 => Algorithm::Md5,
            Self::Sha256 => Algorithm::Sha256,
            Self::Blake3 => Algorithm::Blake3,
            Self::Highway256(_) => Algorithm::Highway256,
        }
    }

    /// The operation's number.
    #[must_use]
    pub fn opcode(self) -> u16 {
        self.algorithm().opcode()
    }

    /// The digest's length in bytes.
    #[must_use]
    pub fn length(self) -> usize {
        self.algorithm().length()
    }

    fn key(self) -> Option<[u8; 32]> {
        match self {
            Self::Highway256(key) => Some(key),
            _ => None,
        }
    }
}

/// What a search looks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Fixed strings, or one regular expression.
    pub what: What,
    /// Upper and lower case are equal.
    pub ignore_case: bool,
    /// Bytes are characters of UTF-8, as in `LC_ALL=C.UTF-8`; otherwise each is one, as in `LC_ALL=C`.
    pub utf8: bool,
}

/// Strings or an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Fixed strings (`grep -F`), at least one, none empty.
    Strings(Vec<Vec<u8>>),
    /// A regular expression (`grep -E`, in the syntax of Rust's crate regex).
    Regex(String),
}

impl Pattern {
    /// A regular expression, in UTF-8.
    #[must_use]
    pub fn regex(expression: impl Into<String>) -> Self {
        Self { what: What::Regex(expression.into()), ignore_case: false, utf8: true }
    }

    /// A fixed string.
    #[must_use]
    pub fn string(string: impl Into<Vec<u8>>) -> Self {
        Self { what: What::Strings(vec![string.into()]), ignore_case: false, utf8: true }
    }
}

/// What a search answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// How many matches there are.
    Matches,
    /// How many lines have one (`grep -c`).
    Lines,
    /// Where they are.
    Offsets,
    /// Where they are, and their bytes (`grep -o -b`).
    Texts,
}

impl Answer {
    pub(crate) fn mode(self) -> u64 {
        match self {
            Self::Matches => mode::COUNT_MATCHES,
            Self::Lines => mode::COUNT_LINES,
            Self::Offsets => mode::OFFSETS,
            Self::Texts => mode::TEXTS,
        }
    }
}

/// What is sorted or merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elements {
    /// Lines, in the order of their bytes.
    Lines,
    /// Records of `length` bytes, in the order of the `key_length` bytes from `key_at` on.
    Records {
        /// Bytes of a record.
        length: u64,
        /// The key's first byte in a record.
        key_at: u64,
        /// The key's bytes.
        key_length: u64,
    },
}

/// The order of a sort or merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Of what.
    pub elements: Elements,
    /// The greatest first.
    pub reverse: bool,
    /// Of equal elements, the first only.
    pub unique: bool,
}

impl Order {
    /// Lines, as `LC_ALL=C sort` has them.
    pub const LINES: Self = Self { elements: Elements::Lines, reverse: false, unique: false };
}

/// An operation and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub(crate) opcode: u16,
    pub(crate) arguments: Vec<Argument>,
}

impl Request {
    /// Any operation, also one that others added.
    #[must_use]
    pub fn new(opcode: u16) -> Self {
        Self { opcode, arguments: Vec::new() }
    }

    /// With a further argument.
    #[must_use]
    pub fn with(mut self, tag: u16, value: Value) -> Self {
        self.arguments.push(Argument { tag, value });
        self
    }

    fn number(self, tag: u16, number: u64) -> Self {
        self.with(tag, Value::Number(number))
    }

    fn flag(self, tag: u16, is: bool) -> Self {
        if is { self.number(tag, 1) } else { self }
    }

    fn key(self, digest: Digest) -> Self {
        match digest.key() {
            Some(key) => self.with(tag::KEY, Value::Bytes(Bytes::copy_from_slice(&key))),
            None => self,
        }
    }

    /// The digest of each input.
    #[must_use]
    pub fn digest(digest: Digest) -> Self {
        Self::new(digest.opcode()).key(digest)
    }

    /// Whether the digests inside each input are right, in front of blocks of `block` bytes.
    #[must_use]
    pub fn verify_framed(digest: Digest, block: u64) -> Self {
        Self::new(opcode::VERIFY_FRAMED).key(digest).number(tag::ALGORITHM, digest.opcode().into()).number(tag::FRAME, block)
    }

    /// A search of each input.
    #[must_use]
    pub fn search(pattern: &Pattern, answer: Answer) -> Self {
        let mut request = Self::new(opcode::SEARCH);
        match &pattern.what {
            What::Strings(strings) => {
                for string in strings {
                    request = request.with(tag::STRING, Value::Bytes(string.clone().into()));
                }
            }
            What::Regex(expression) => request = request.with(tag::REGEX, Value::Text(expression.clone())),
        }
        let request = request.flag(tag::IGNORE_CASE, pattern.ignore_case).number(tag::LOCALE, pattern.utf8.into());
        request.number(tag::MODE, answer.mode())
    }

    /// Lines, words, characters and bytes of each input.
    #[must_use]
    pub fn word_count(utf8: bool) -> Self {
        Self::new(opcode::WORD_COUNT).number(tag::LOCALE, utf8.into())
    }

    fn ordered(lines: u16, records: u16, order: &Order) -> Self {
        let request = match order.elements {
            Elements::Lines => Self::new(lines),
            Elements::Records { length, key_at, key_length } => {
                Self::new(records).number(tag::RECORD, length).number(tag::KEY_AT, key_at).number(tag::KEY_LENGTH, key_length)
            }
        };
        request.flag(tag::REVERSE, order.reverse).flag(tag::UNIQUE, order.unique)
    }

    /// A sort of all inputs together.
    #[must_use]
    pub fn sort(order: &Order) -> Self {
        Self::ordered(opcode::SORT_LINES, opcode::SORT_RECORDS, order)
    }

    /// A merge of inputs that are sorted.
    #[must_use]
    pub fn merge(order: &Order) -> Self {
        Self::ordered(opcode::MERGE_LINES, opcode::MERGE_RECORDS, order)
    }

    /// A frame of each input, at the codec's usual level or another one.
    #[must_use]
    pub fn compress(codec: Codec, level: Option<u64>) -> Self {
        let request = Self::new(match codec {
            Codec::Zstd => opcode::COMPRESS_ZSTD,
            Codec::Lz4 => opcode::COMPRESS_LZ4,
        });
        match level {
            Some(level) => request.number(tag::LEVEL, level),
            None => request,
        }
    }

    /// The content of each input's frames.
    #[must_use]
    pub fn decompress(codec: Codec) -> Self {
        Self::new(match codec {
            Codec::Zstd => opcode::DECOMPRESS_ZSTD,
            Codec::Lz4 => opcode::DECOMPRESS_LZ4,
        })
    }

    /// A Substrait `plan` over all inputs; `tables` has the name of each input's table, or one for all.
    #[must_use]
    pub fn query(format: Format, plan: Bytes, tables: &[String]) -> Self {
        let number = match format {
            Format::Csv => format::CSV,
            Format::Json => format::JSON,
            Format::Parquet => format::PARQUET,
        };
        let request = Self::new(opcode::QUERY).number(tag::FORMAT, number).with(tag::PLAN, Value::Bytes(plan));
        tables.iter().fold(request, |request, table| request.with(tag::TABLE, Value::Text(table.clone())))
    }

    /// The operation's number.
    #[must_use]
    pub fn opcode(&self) -> u16 {
        self.opcode
    }

    /// Its arguments.
    #[must_use]
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// A descriptor without objects.
    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor { opcode: self.opcode, arguments: self.arguments.clone(), ..Descriptor::default() }
    }

    /// # Errors
    /// `Invalid` where the arguments don't fit into a descriptor.
    pub(crate) fn check(&self) -> Result<()> {
        let length = self.descriptor().encoded_length();
        if length > MOST_ARGUMENT_BYTES { Err(Error::invalid(format!("the arguments of an operation have {length} bytes, which is too long"))) } else { Ok(()) }
    }
}
