//! Digests of whole objects.

use highway::{HighwayHash, HighwayHasher, Key};
use md5::Md5;
use sha2::{Digest as _, Sha256};
use skytether_common::Result;

use crate::codes::opcode;
use crate::descriptor::Descriptor;
use crate::job::Input;
use crate::operation::{Arguments, ObjectWork, Operation, Plan};
use crate::output::Sink;
use crate::result::Item;

/// The key of HighwayHash-256 with which MinIO writes its frames: the hash of the first 100 decimals of pi, with a key
/// of zeros. Source: `magicHighwayHash256Key` of MinIO.
pub const MINIO_KEY: [u8; 32] = [
    0x4b, 0xe7, 0x34, 0xfa, 0x8e, 0x23, 0x8a, 0xcd, 0x26, 0x3e, 0x83, 0xe6, 0xbb, 0x96, 0x85, 0x52, 0x04, 0x0f, 0x93, 0x5d, 0xa3, 0x9f, 0x44, 0x14, 0x97, 0xe0,
    0x9d, 0x13, 0x22, 0xde, 0x36, 0xa0,
];

/// A digest's algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// CRC-32C (iSCSI).
    Crc32c,
    /// CRC-32 (ISO-HDLC).
    Crc32,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// MD5.
    Md5,
    /// SHA-256.
    Sha256,
    /// BLAKE3.
    Blake3,
    /// HighwayHash-256, which has a key.
    Highway256,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 7] = [Self::Crc32c, Self::Crc32, Self::Crc64Nvme, Self::Md5, Self::Sha256, Self::Blake3, Self::Highway256];

    /// The number of the operation.
    #[must_use]
    pub fn opcode(self) -> u16 {
        match self {
            Self::Crc32c => opcode::CRC32C,
            Self::Crc32 => opcode::CRC32,
            Self::Crc64Nvme => opcode::CRC64_NVME,
            Self::Md5 => opcode::MD5,
            Self::Sha256 => opcode::SHA256,
            Self::Blake3 => opcode::BLAKE3,
            Self::Highway256 => opcode::HIGHWAY256,
        }
    }

    /// Its name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Crc32 => "crc32",
            Self::Crc64Nvme => "crc64nvme",
            Self::Md5 => "md5",
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
            Self::Highway256 => "highwayhash256",
        }
    }

    /// Bytes of a digest.
    #[must_use]
    pub fn length(self) -> usize {
        match self {
            Self::Crc32c | Self::Crc32 => 4,
            Self::Crc64Nvme => 8,
            Self::Md5 => 16,
            Self::Sha256 | Self::Blake3 | Self::Highway256 => 32,
        }
    }

    /// Computes the digest of bytes that come in pieces. Only HighwayHash uses the key.
    #[must_use]
    pub fn start(self, key: [u8; 32]) -> Hasher {
        match self {
            Self::Crc32c => Hasher::Crc(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi), 4),
            Self::Crc32 => Hasher::Crc(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32IsoHdlc), 4),
            Self::Crc64Nvme => Hasher::Crc(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme), 8),
            Self::Md5 => Hasher::Md5(Md5::new()),
            Self::Sha256 => Hasher::Sha256(Sha256::new()),
            Self::Blake3 => Hasher::Blake3(Box::default()),
            Self::Highway256 => {
                let mut lanes = [0; 4];
                for (lane, bytes) in lanes.iter_mut().zip(key.as_chunks::<8>().0) {
                    *lane = u64::from_le_bytes(*bytes);
                }
                Hasher::Highway(Box::new(HighwayHasher::new(Key(lanes))))
            }
        }
    }

    /// The key of a descriptor's arguments: HighwayHash needs one, others have none.
    ///
    /// # Errors
    /// `Invalid` for a key of another length.
    pub fn key(self, arguments: &mut Arguments<'_>) -> Result<[u8; 32]> {
        if self == Self::Highway256 { arguments.key() } else { Ok([0; 32]) }
    }
}

/// A digest that is computed.
#[derive(Debug)]
pub enum Hasher {
    /// A CRC, and its length in bytes.
    Crc(crc_fast::Digest, usize),
    /// MD5.
    Md5(Md5),
    /// SHA-256.
    Sha256(Sha256),
    /// BLAKE3.
    Blake3(Box<blake3::Hasher>),
    /// HighwayHash-256.
    Highway(Box<HighwayHasher>),
}

impl Hasher {
    /// Takes further bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc(digest, _) => digest.update(bytes),
            Self::Md5(digest) => digest.update(bytes),
            Self::Sha256(digest) => digest.update(bytes),
            Self::Blake3(digest) => {
                digest.update(bytes);
            }
            Self::Highway(digest) => digest.append(bytes),
        }
    }

    /// The digest, in the order in which tools print it.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        match self {
            Self::Crc(digest, length) => digest.finalize().to_be_bytes()[8 - length..].to_vec(),
            Self::Md5(digest) => digest.finalize().to_vec(),
            Self::Sha256(digest) => digest.finalize().to_vec(),
            Self::Blake3(digest) => digest.finalize().as_bytes().to_vec(),
            Self::Highway(digest) => digest.finalize256().iter().flat_map(|lane| lane.to_le_bytes()).collect(),
        }
    }
}

/// The digest of each input.
#[derive(Debug)]
pub struct Sum(pub Algorithm);

struct Work {
    algorithm: Algorithm,
    key: [u8; 32],
}

impl Operation for Sum {
    fn opcode(&self) -> u16 {
        self.0.opcode()
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn plan(&self, arguments: &mut Arguments<'_>, _: &Descriptor) -> Result<Plan> {
        Ok(Plan::Objects(Box::new(Work { algorithm: self.0, key: self.0.key(arguments)? })))
    }
}

impl ObjectWork for Work {
    fn run(&mut self, input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Item> {
        let mut hasher = self.algorithm.start(self.key);
        while let Some(block) = input.next_block()? {
            hasher.update(&block);
        }
        sink.write(&hasher.finish())?;
        Ok(Item::default())
    }
}
