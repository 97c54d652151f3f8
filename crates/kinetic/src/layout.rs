//! How values lie on a Kinetic drive: the versions and the keys that only we know.
//!
//! A store's key is the Kinetic key, byte by byte. Its Kinetic version is a [`Stamp`]. A value that is longer than the
//! drive takes lies in stripes under keys of our own, and the key itself has an empty value.
//!
//! | key | value | version |
//! |---|---|---|
//! | of the store | the value, or nothing | [`Stamp`] |
//! | `~skytether-stripe/` version, nonce, `/`, number | a part of a value | `SKYs`, version, the value's key |
//! | `~skytether-intent/` version, nonce | changes of a batch that are to be done | [`Stamp`] |
//! | `~skytether-drive` | the drive's identity, JSON | [`Stamp`] |
//! | `~skytether-plan/` time, nonce, `.`, number | a part of a sub-plan that is longer than a value | |
//! | `~skytether-rows/` time, nonce, `.`, number | a part of the rows of a sub-plan | |

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Key, Result};
use skytether_store::Version;

/// What all keys of our own begin with. No store's key does.
pub const OWN: &str = "~skytether-";

/// The first key behind all keys of our own.
pub(crate) const BEHIND_OWN: &str = "~skytether.";

/// The key of the drive's identity.
pub(crate) const IDENTITY: &str = "~skytether-drive";

/// What the keys of stripes begin with.
pub(crate) const STRIPES: &str = "~skytether-stripe/";

/// What the keys of intents begin with.
pub(crate) const INTENTS: &str = "~skytether-intent/";

/// What the keys of sub-plans begin with.
pub(crate) const PLANS: &str = "~skytether-plan/";

/// What the keys of a sub-plan's rows begin with.
pub(crate) const ROWS: &str = "~skytether-rows/";

/// What a stamp begins with. The last byte is the format.
const MAGIC: &[u8; 4] = b"SKY1";

/// What the version of a stripe begins with.
const STRIPE_MAGIC: &[u8; 4] = b"SKYs";

/// The length of a stamp.
const STAMP_BYTES: usize = 37;

/// The longest version that a drive must take, in bytes: that of a stripe.
pub(crate) const LONGEST_VERSION: usize = 12 + Key::MAX;

/// The most stripes of a value: drives take values of 4 KiB at least.
const MOST_STRIPES: u64 = (skytether_store::MAX_VALUE as u64).div_ceil(4096);

/// Versions are below this.
const VERSIONS: u64 = 1 << 63;

/// Bits of a version that are random; those above are microseconds since [`FIRST`].
const RANDOM_BITS: u32 = 12;

/// The beginning of 2020, in microseconds since 1970: 51 bits of microseconds reach to 2091.
const FIRST: u64 = 1_577_836_800_000_000;

/// The Kinetic version of a key that we wrote: what a store knows about a value without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The version for a store.
    pub version: Version,
    /// The value's length in bytes.
    pub len: u64,
    /// The value's checksum.
    pub crc32c: u32,
    /// Random: no two stamps are the same, of all clients.
    pub nonce: u64,
    /// Bytes of a stripe; 0: the value is not striped.
    pub stripe: u32,
    /// Whether the key is absent for a store, and this only holds its place while a batch requires that it is absent.
    pub absent: bool,
}

impl Stamp {
    /// The stamp as bytes.
    #[must_use]
    pub fn to_bytes(self) -> Bytes {
        let mut to = BytesMut::with_capacity(STAMP_BYTES);
        to.put_slice(MAGIC);
        to.put_u8(u8::from(self.absent));
        to.put_u64(self.version);
        to.put_u64(self.len);
        to.put_u32(self.crc32c);
        to.put_u64(self.nonce);
        to.put_u32(self.stripe);
        to.freeze()
    }

    /// The stamp of these bytes; `None` if it is not one of ours.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Stamp> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (absent, rest) = rest.split_first()?;
        let (version, rest) = rest.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let (crc32c, rest) = rest.split_first_chunk::<4>()?;
        let (nonce, rest) = rest.split_first_chunk::<8>()?;
        let (stripe, rest) = rest.split_first_chunk::<4>()?;
        let stamp = Stamp {
            version: u64::from_be_bytes(*version),
            len: u64::from_be_bytes(*len),
            crc32c: u32::from_be_bytes(*crc32c),
            nonce: u64::from_be_bytes(*nonce),
            stripe: u32::from_be_bytes(*stripe),
            absent: *absent == 1,
        };
        // Any client can write such bytes: they must not make a reader ask for millions of stripes.
        let sound =
            rest.is_empty() && *absent <= 1 && stamp.version < VERSIONS && stamp.len <= skytether_store::MAX_VALUE as u64 && stamp.stripes() <= MOST_STRIPES;
        sound.then_some(stamp)
    }

    /// How many stripes its value has.
    #[must_use]
    pub fn stripes(&self) -> u64 {
        if self.stripe == 0 { 0 } else { self.len.div_ceil(u64::from(self.stripe)) }
    }

    /// The key of stripe `number`.
    #[must_use]
    pub fn stripe_key(&self, number: u64) -> Bytes {
        format!("{}{number:08}", self.stripes_prefix()).into()
    }

    /// What the keys of its stripes begin with.
    pub(crate) fn stripes_prefix(&self) -> String {
        format!("{STRIPES}{:016x}{:016x}/", self.version, self.nonce)
    }

    /// The key of the intent with this stamp.
    pub(crate) fn intent_key(&self) -> Bytes {
        format!("{INTENTS}{:016x}{:016x}", self.version, self.nonce).into()
    }

    /// Checks a value against it; `what` names the value.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check(&self, what: &str, value: &[u8]) -> Result<()> {
        if value.len() as u64 != self.len {
            return Err(Error::corrupt(format!("the value of {what} has {} bytes, and {} were put", value.len(), self.len)));
        }
        let found = crc32c(value);
        if found != self.crc32c {
            return Err(Error::corrupt(format!("the value of {what} has CRC-32C {found:08x}, and {:08x} was put", self.crc32c)));
        }
        Ok(())
    }
}

/// The version of a stripe: which key it belongs to, so that stripes without their key are found.
pub(crate) fn stripe_version(version: Version, key: &[u8]) -> Bytes {
    let mut to = BytesMut::with_capacity(12 + key.len());
    to.put_slice(STRIPE_MAGIC);
    to.put_u64(version);
    to.put_slice(key);
    to.freeze()
}

/// The store's version and the key in the version of a stripe.
pub(crate) fn parse_stripe_version(bytes: &Bytes) -> Option<(Version, Bytes)> {
    let rest = bytes.strip_prefix(STRIPE_MAGIC)?;
    let (version, key) = rest.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*version), bytes.slice_ref(key)))
}

/// Gives versions that no one used before.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    /// A version above all that this clock gave or has seen.
    pub(crate) fn next(&self) -> Result<Version> {
        let [random, _] = random()?;
        let own = (micros().saturating_sub(FIRST) << RANDOM_BITS) | (random >> (64 - RANDOM_BITS));
        let last = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some((last + 1).max(own)));
        let version = last.map_or(own, |last| (last + 1).max(own));
        if version >= VERSIONS {
            return Err(Error::unsupported("the drive has versions of the far future; set the clocks of all hosts right"));
        }
        Ok(version)
    }

    /// Notes a version that another writer gave.
    pub(crate) fn seen(&self, version: Version) {
        self.0.fetch_max(version, Ordering::SeqCst);
    }

    /// A new stamp of a value, striped by `stripe` bytes.
    pub(crate) fn stamp(&self, value: &[u8], stripe: u32) -> Result<Stamp> {
        let version = self.next()?;
        let [nonce, _] = random()?;
        Ok(Stamp { version, len: value.len() as u64, crc32c: crc32c(value), nonce, stripe, absent: false })
    }
}

/// When a version was given, in microseconds since 1970.
pub(crate) fn given_at(version: Version) -> u64 {
    (version >> RANDOM_BITS) + FIRST
}

/// Microseconds since 1970.
pub(crate) fn micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
}

/// Two random numbers.
pub(crate) fn random() -> Result<[u64; 2]> {
    let (mut first, mut second) = ([0; 8], [0; 8]);
    getrandom::fill(&mut first)
        .and_then(|()| getrandom::fill(&mut second))
        .map_err(|e| Error::unavailable("the system gives no random numbers").with_source(e))?;
    Ok([u64::from_ne_bytes(first), u64::from_ne_bytes(second)])
}

/// A new name below `prefix` for values of the moment. It begins with the time, so that a collector knows how old they
/// are.
pub(crate) fn passing_name(prefix: &str) -> Result<String> {
    let [nonce, _] = random()?;
    Ok(format!("{prefix}{:016x}{nonce:016x}", micros()))
}

/// When a name of [`passing_name`] was made, in microseconds since 1970.
pub(crate) fn passing_since(prefix: &str, key: &[u8]) -> Option<u64> {
    let digits = key.strip_prefix(prefix.as_bytes())?.get(..16)?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Refuses keys that are our own.
pub(crate) fn check_key(key: &Key) -> Result<()> {
    if key.as_str().starts_with(OWN) {
        return Err(Error::invalid(format!("the key {key} begins with {OWN:?}, as keys of a Kinetic drive's own do; use another one")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_reads_back_and_nothing_else_is_one() {
        let stamp = Clock::default().stamp(b"123456789", 4).unwrap();
        let bytes = stamp.to_bytes();
        assert_eq!((bytes.len(), Stamp::parse(&bytes), stamp.crc32c, stamp.stripes()), (STAMP_BYTES, Some(stamp), 0xe306_9283, 3));
        for wrong in [&b""[..], b"SKY1", b"1", &bytes[..36], &[&bytes[..], &[0]].concat(), &bytes[1..]] {
            assert_eq!(Stamp::parse(wrong), None, "{wrong:?}");
        }
        for (at, to) in [(3, b'2'), (4, 2), (5, 0x80), (13, 1)] {
            let mut other = bytes.to_vec();
            other[at] = to;
            assert_eq!(Stamp::parse(&other), None, "byte {at}");
        }
        let place = Stamp { absent: true, ..stamp };
        assert_eq!(Stamp::parse(&place.to_bytes()), Some(place));
    }

    #[test]
    fn versions_grow_also_behind_seen_ones() {
        let clock = Clock::default();
        let (first, second) = (clock.next().unwrap(), clock.next().unwrap());
        assert!(second > first && micros() - given_at(first) < 60_000_000);
        let ahead = second + ((3600 * 1_000_000) << RANDOM_BITS);
        clock.seen(ahead);
        assert_eq!(clock.next().unwrap(), ahead + 1);
        clock.seen(VERSIONS - 1);
        assert!(clock.next().is_err());
    }

    #[test]
    fn stripe_names_its_key() {
        let version = stripe_version(7, b"a/b");
        assert_eq!(parse_stripe_version(&version), Some((7, Bytes::from_static(b"a/b"))));
        assert_eq!(parse_stripe_version(&Bytes::from_static(b"SKYs123")), None);
        assert_eq!(stripe_version(1, &[b'k'; Key::MAX]).len(), LONGEST_VERSION);
        assert!(OWN < BEHIND_OWN && [IDENTITY, STRIPES, INTENTS].iter().all(|key| key.starts_with(OWN) && *key < BEHIND_OWN));
    }

    #[test]
    fn other_value_is_corrupt_and_named() {
        let stamp = Clock::default().stamp(b"abc", 0).unwrap();
        stamp.check("a/b", b"abc").unwrap();
        for other in [&b"abd"[..], b"ab"] {
            let error = stamp.check("a/b", other).unwrap_err();
            assert!(error.kind() == skytether_common::Kind::Corrupt && error.message().contains("a/b"), "{error}");
        }
    }
}
