//! The HMAC that proves which identity sent a command: HMAC-SHA1 over the command's length, as four bytes (big-endian),
//! and the command.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha1::{Digest, Sha1};

/// The length of an HMAC, in bytes.
pub const HMAC_BYTES: usize = 20;

/// The key of an identity, prepared for signatures. Its `Debug` does not show it.
#[derive(Clone)]
pub struct HmacKey(Hmac<Sha1>);

impl HmacKey {
    /// The key of these bytes; any number of them.
    #[must_use]
    pub fn new(key: &[u8]) -> HmacKey {
        // RFC 2104: a key longer than a block is replaced by its hash; zeros follow up to the block's end.
        let mut block = hmac::digest::Key::<Hmac<Sha1>>::default();
        let hash = (key.len() > block.len()).then(|| Sha1::digest(key));
        let bytes = hash.as_ref().map_or(key, |hash| &hash[..]);
        block.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        HmacKey(Hmac::new(&block))
    }

    /// The HMAC of a command.
    #[must_use]
    pub fn sign(&self, command: &[u8]) -> [u8; HMAC_BYTES] {
        self.over(command).finalize().into_bytes().into()
    }

    /// Whether `hmac` is that of the command. The time that this takes does not depend on how much of it is right.
    #[must_use]
    pub fn verify(&self, command: &[u8], hmac: &[u8]) -> bool {
        self.over(command).verify_slice(hmac).is_ok()
    }

    fn over(&self, command: &[u8]) -> Hmac<Sha1> {
        let mut mac = self.0.clone();
        // A frame cannot hold a longer command.
        let length = u32::try_from(command.len()).unwrap_or(u32::MAX);
        mac.update(&length.to_be_bytes());
        mac.update(command);
        mac
    }
}

impl fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmacKey(..)")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A command that a Java client of protocol 3.0.6 sent.
    pub(crate) const COMMAND: &[u8] = &[
        0x0a, 0x0c, 0x08, 0x00, 0x18, 0x80, 0xdd, 0xce, 0xae, 0x04, 0x20, 0x00, 0x38, 0x18, 0x12, 0x10, 0x32, 0x0e, 0x08, 0x00, 0x08, 0x01, 0x08, 0x02, 0x08,
        0x03, 0x08, 0x04, 0x08, 0x05, 0x08, 0x06,
    ];
    /// Its HMAC with the key `asdfasdf`.
    pub(crate) const HMAC: [u8; 20] = [0x78, 0x7c, 0x3c, 0x91, 0xd4, 0x0b, 0x9d, 0x26, 0x83, 0x5a, 0x8b, 0x55, 0xce, 0x3d, 0x51, 0xa2, 0x79, 0xfd, 0xad, 0x63];

    #[test]
    fn hmac_of_a_real_client_is_ours() {
        let key = HmacKey::new(b"asdfasdf");
        assert_eq!((COMMAND.len(), key.sign(COMMAND)), (32, HMAC));
        assert!(key.verify(COMMAND, &HMAC));
    }

    #[test]
    fn any_other_key_command_or_hmac_is_refused() {
        let key = HmacKey::new(b"asdfasdf");
        assert!(!HmacKey::new(b"asdfasdg").verify(COMMAND, &HMAC));
        assert!(!key.verify(&COMMAND[1..], &HMAC));
        for bit in 0..8 * HMAC_BYTES {
            let mut hmac = HMAC;
            hmac[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.verify(COMMAND, &hmac), "bit {bit}");
        }
        for part in [&HMAC[..19], &HMAC[..10], &[]] {
            assert!(!key.verify(COMMAND, part), "{} bytes", part.len());
        }
        assert!(!key.verify(COMMAND, &[&HMAC[..], &[0]].concat()));
    }

    #[test]
    fn keys_of_any_length_sign() {
        for length in [0, 1, 20, 63, 64, 65, 1000] {
            let (bytes, key) = (vec![7; length], HmacKey::new(&vec![7; length]));
            assert!(key.verify(b"x", &key.sign(b"x")), "{length} bytes");
            let mut other = Hmac::<Sha1>::new_from_slice(&bytes).unwrap();
            other.update(b"\0\0\0\x01x");
            assert_eq!(key.sign(b"x"), <[u8; 20]>::from(other.finalize().into_bytes()), "{length} bytes");
        }
        assert_eq!(format!("{:?}", HmacKey::new(b"secret")), "HmacKey(..)");
    }
}
