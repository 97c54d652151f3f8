//! CHAP: proofs of a secret that is not sent (RFC 1994; RFC 7143, section 12.1.3). Pure.

use md5::Md5;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// How a proof is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Number 5. What all initiators have.
    Md5,
    /// Number 7.
    Sha256,
}

impl Algorithm {
    /// The first of the initiator's list `value` that this target has.
    #[must_use]
    pub fn choose(value: &str) -> Option<Self> {
        value.split(',').find_map(|number| match number {
            "5" => Some(Self::Md5),
            "7" => Some(Self::Sha256),
            _ => None,
        })
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Md5 => 5,
            Self::Sha256 => 7,
        }
    }

    /// The length of a proof and of a challenge in bytes.
    #[must_use]
    pub fn length(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha256 => 32,
        }
    }

    /// The proof for `challenge` with the identifier `id`.
    #[must_use]
    pub fn respond(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        fn hash<D: Digest>(id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
            D::new().chain_update([id]).chain_update(secret).chain_update(challenge).finalize().to_vec()
        }
        match self {
            Self::Md5 => hash::<Md5>(id, secret, challenge),
            Self::Sha256 => hash::<Sha256>(id, secret, challenge),
        }
    }

    /// Whether `proof` is that for `challenge`. The time does not depend on where they differ.
    #[must_use]
    pub fn verify(self, id: u8, secret: &[u8], challenge: &[u8], proof: &[u8]) -> bool {
        self.respond(id, secret, challenge).ct_eq(proof).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_those_of_other_implementations() {
        // `printf '\x01secretchallenge' | md5sum`, and sha256sum.
        let md5 = Algorithm::Md5.respond(1, b"secret", b"challenge");
        let hex = |bytes: &[u8]| crate::text::hexadecimal(bytes);
        assert_eq!(hex(&md5), "0x46e47770030e2b4e26a0db72a7efec00");
        let sha = Algorithm::Sha256.respond(1, b"secret", b"challenge");
        assert_eq!(hex(&sha), "0x2dfa0526f4764864b7c3c5bc6596bcead3d8dbd984f4fc1d9f330299f0beced4");
        assert!(Algorithm::Md5.verify(1, b"secret", b"challenge", &md5));
        assert!(!Algorithm::Md5.verify(2, b"secret", b"challenge", &md5) && !Algorithm::Sha256.verify(1, b"secret", b"challenge", &md5));
    }

    #[test]
    fn the_first_known_algorithm_of_a_list_is_taken() {
        assert_eq!(Algorithm::choose("6,7,5"), Some(Algorithm::Sha256));
        assert_eq!(Algorithm::choose("56"), None);
        assert_eq!(Algorithm::choose(""), None);
    }
}
