//! Numbers of the format: operations, tags of arguments, flags, bounds.
//!
//! `docs/internals/formats/exec-descriptor.md` lists them for clients. A number that was given once is never reused.

use skytether_common::Kind;

/// The version of descriptors, results and capabilities that this crate writes and reads.
pub const VERSION: u8 = 1;

/// The longest descriptor, in bytes.
pub const MOST_DESCRIPTOR: usize = 2 << 20;
/// The longest result that a client accepts, in bytes. A target may promise less.
pub const MOST_RESULT: usize = 64 << 20;
/// The most input objects, and the most output objects, of a descriptor.
pub const MOST_OBJECTS: usize = 4096;
/// The most extents of all objects of a descriptor together.
pub const MOST_EXTENTS: usize = 65_536;
/// The most arguments of a descriptor.
pub const MOST_ARGUMENTS: usize = 1024;
/// The most bytes of all arguments of a descriptor together, with their headers.
pub const MOST_ARGUMENT_BYTES: usize = 512 << 10;
/// The longest object, in bytes: places and lengths stay positive in signed numbers.
pub const MOST_LENGTH: u64 = i64::MAX as u64;
/// The most bytes of an error's text.
pub const MOST_TEXT: usize = 512;
/// The most values of an item.
pub const MOST_VALUES: usize = 16;

/// The place of an extent that reads as zeros and lies nowhere.
pub const HOLE: u64 = u64::MAX;

macro_rules! numbers {
    ($(#[$outer:meta])* $module:ident: $of:ty { $($(#[$doc:meta])* $name:ident = $value:expr;)* }) => {
        $(#[$outer])*
        pub mod $module {
            $($(#[$doc])* pub const $name: $of = $value;)*
        }
    };
}

numbers! {
    /// Operations. From [`opcode::OTHERS`] on, numbers belong to operations that others add.
    opcode: u16 {
        /// CRC-32C (iSCSI), 4 bytes, the most significant first.
        CRC32C = 0x0001;
        /// CRC-32 (ISO-HDLC: zlib, PNG), 4 bytes, the most significant first.
        CRC32 = 0x0002;
        /// CRC-64/NVME, 8 bytes, the most significant first.
        CRC64_NVME = 0x0003;
        /// MD5, 16 bytes.
        MD5 = 0x0010;
        /// SHA-256, 32 bytes.
        SHA256 = 0x0011;
        /// BLAKE3, 32 bytes.
        BLAKE3 = 0x0012;
        /// HighwayHash-256, 32 bytes.
        HIGHWAY256 = 0x0013;
        /// Digests inside the object, in front of each block.
        VERIFY_FRAMED = 0x0020;
        /// Fixed strings or a regular expression.
        SEARCH = 0x0100;
        /// Lines, words, characters and bytes.
        WORD_COUNT = 0x0101;
        /// Lines of all inputs, in the order of their bytes.
        SORT_LINES = 0x0200;
        /// Records of a fixed size of all inputs, in the order of their keys.
        SORT_RECORDS = 0x0201;
        /// Lines of sorted inputs.
        MERGE_LINES = 0x0202;
        /// Records of sorted inputs.
        MERGE_RECORDS = 0x0203;
        /// Each input as a zstd frame.
        COMPRESS_ZSTD = 0x0300;
        /// The content of each input's zstd frames.
        DECOMPRESS_ZSTD = 0x0301;
        /// Each input as an LZ4 frame.
        COMPRESS_LZ4 = 0x0302;
        /// The content of each input's LZ4 frames.
        DECOMPRESS_LZ4 = 0x0303;
        /// A Substrait plan over files in a table's format.
        QUERY = 0x0400;
        /// The first number of operations that others add.
        OTHERS = 0x8000;
    }
}

numbers! {
    /// What an argument says. From [`tag::OTHERS`] on, tags belong to operations that others add.
    tag: u16 {
        /// Bytes: the key of a digest.
        KEY = 1;
        /// Number: the operation that computes the digests of frames.
        ALGORITHM = 2;
        /// Number: bytes of data in a frame.
        FRAME = 3;
        /// Bytes: a fixed string. May occur several times.
        STRING = 4;
        /// Text: a regular expression.
        REGEX = 5;
        /// Number: what a search answers, see [`super::mode`].
        MODE = 6;
        /// Number: the most results of each object.
        MOST = 7;
        /// Number, 0 or 1: upper and lower case are equal.
        IGNORE_CASE = 8;
        /// Number: 0 bytes are characters (`LC_ALL=C`), 1 UTF-8 (`LC_ALL=C.UTF-8`).
        LOCALE = 9;
        /// Number: bytes of a record.
        RECORD = 10;
        /// Number: the key's first byte in a record.
        KEY_AT = 11;
        /// Number: the key's length in bytes.
        KEY_LENGTH = 12;
        /// Number, 0 or 1: the greatest first.
        REVERSE = 13;
        /// Number, 0 or 1: of equal elements, the first only.
        UNIQUE = 14;
        /// Number: the compression level.
        LEVEL = 15;
        /// Number: a table's format, see [`super::format`].
        FORMAT = 16;
        /// Bytes: a Substrait plan.
        PLAN = 17;
        /// Text: the table that an input is a file of. Once, or once for each input.
        TABLE = 18;
        /// The first tag of operations that others add.
        OTHERS = 0x8000;
    }
}

numbers! {
    /// What a search answers.
    mode: u64 {
        /// How many matches there are (`grep -o | wc -l`).
        COUNT_MATCHES = 0;
        /// How many lines have a match (`grep -c`).
        COUNT_LINES = 1;
        /// The offset of each match: 8 bytes.
        OFFSETS = 2;
        /// The offset (8 bytes) and length (4 bytes) of each match.
        SPANS = 3;
        /// The offset (8 bytes), length (4 bytes) and bytes of each match.
        TEXTS = 4;
    }
}

numbers! {
    /// Formats of tables.
    format: u64 {
        /// Comma-separated values.
        CSV = 1;
        /// JSON lines.
        JSON = 2;
        /// Parquet.
        PARQUET = 3;
    }
}

numbers! {
    /// Flags of a descriptor.
    descriptor_flag: u32 {
        /// The data of item n goes to output object n.
        TO_OUTPUT = 1;
        /// The device is flushed before the result is given.
        DURABLE = 2;
        /// Every flag of this version.
        ALL = 3;
    }
}

numbers! {
    /// Flags of an object.
    object_flag: u32 {
        /// The object is a chunk, and others come before it: its first element may have begun there.
        PRECEDED = 1;
        /// The object is a chunk, and others follow it: its last element may end there.
        FOLLOWED = 2;
        /// Every flag of this version.
        ALL = 3;
    }
}

numbers! {
    /// Flags of an item of a result.
    item_flag: u16 {
        /// There is more: go on with the next descriptor, at the places that the values name.
        MORE = 1;
        /// The chunk has no boundary between elements: all of it is in the item's head.
        NO_BREAK = 2;
        /// A frame's digest is not that of its data. Value 0 is the frame's number, from 0.
        BAD_FRAME = 4;
        /// The data is in the output object of the item's number.
        IN_OUTPUT = 8;
        /// Every flag of this version.
        ALL = 15;
    }
}

/// The number of an error's kind in results. 0 is success.
#[must_use]
pub fn number_of(kind: Kind) -> u8 {
    match kind {
        Kind::Invalid => 1,
        Kind::NotFound => 2,
        Kind::Conflict => 3,
        Kind::Corrupt => 4,
        Kind::Unavailable => 5,
        Kind::Exhausted => 6,
        Kind::Unsupported => 7,
        Kind::Internal => 8,
    }
}

/// The kind of that number.
#[must_use]
pub fn kind_of(number: u8) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| number_of(*kind) == number)
}
