//! What the administrator sets: identities, PINs and the cluster version. It survives restarts; an erasure resets it.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use prost::Message;
use skytether_common::{Error, Result};
use skytether_kinetic_protocol::HmacKey;
use skytether_kinetic_protocol::access::default_identity;
use skytether_kinetic_protocol::security::Acl;
use subtle::ConstantTimeEq;

/// The key of a new drive's identity, which all know.
pub(crate) const DEFAULT_KEY: &[u8] = b"asdfasdf";

/// The first field of a stored record; a later format has another number.
const FORMAT: u32 = 1;

/// Settings of a drive. A changed copy replaces it as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) cluster_version: i64,
    identities: BTreeMap<i64, Identity>,
    erase_pin: Pin,
    lock_pin: Pin,
}

/// An identity and its prepared key.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) acl: Acl,
    pub(crate) key: HmacKey,
}

/// A PIN; empty: none is set. Its `Debug` does not show it.
#[derive(Clone, Default)]
pub(crate) struct Pin(Bytes);

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "Pin(..)" } else { "Pin()" })
    }
}

impl Pin {
    /// A copy of these bytes.
    pub(crate) fn new(pin: &[u8]) -> Pin {
        Pin(Bytes::copy_from_slice(pin))
    }

    /// Whether there is one.
    pub(crate) fn is_set(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether the other PIN is this one. The time that this takes depends on the length only.
    pub(crate) fn is(&self, other: &Pin) -> bool {
        self.is_bytes(&other.0)
    }

    /// As [`Self::is`].
    pub(crate) fn is_bytes(&self, pin: &[u8]) -> bool {
        self.0.ct_eq(pin).into()
    }
}

/// Settings as they are stored.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
struct Stored {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(int64, tag = "2")]
    cluster_version: i64,
    #[prost(message, repeated, tag = "3")]
    acl: Vec<Acl>,
    #[prost(bytes = "bytes", tag = "4")]
    erase_pin: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    lock_pin: Bytes,
}

impl Default for Settings {
    /// A new drive: identity 1 may do everything, and no PIN is set.
    fn default() -> Self {
        Settings::of_one(default_identity())
    }
}

impl Settings {
    /// Settings that are not stored: one identity, and no PIN.
    pub(crate) fn of_one(acl: Acl) -> Settings {
        let mut settings = Settings { cluster_version: 0, identities: BTreeMap::new(), erase_pin: Pin::default(), lock_pin: Pin::default() };
        settings.add(vec![acl]);
        settings
    }

    /// The settings of a stored record; those of a new drive where there is none.
    ///
    /// # Errors
    /// `Corrupt` where the record is damaged, `Unsupported` where a newer version wrote it.
    pub(crate) fn read(stored: Option<Bytes>) -> Result<Settings> {
        let Some(bytes) = stored else { return Ok(Settings::default()) };
        let stored = Stored::decode(bytes)
            .map_err(|e| Error::corrupt("the identities and PINs of this drive's Kinetic store are damaged: erase its directory `kinetic`").with_source(e))?;
        if stored.format != FORMAT {
            return Err(Error::unsupported(format!("a newer version wrote the Kinetic settings of this drive (format {}); update this one", stored.format)));
        }
        let mut settings =
            Settings { cluster_version: stored.cluster_version, identities: BTreeMap::new(), erase_pin: Pin(stored.erase_pin), lock_pin: Pin(stored.lock_pin) };
        settings.add(stored.acl);
        Ok(settings)
    }

    /// The record of these settings.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let acl = self.identities.values().map(|identity| identity.acl.clone()).collect();
        let (erase_pin, lock_pin) = (self.erase_pin.0.clone(), self.lock_pin.0.clone());
        Stored { format: FORMAT, cluster_version: self.cluster_version, acl, erase_pin, lock_pin }.encode_to_vec().into()
    }

    /// The identity of that number.
    pub(crate) fn identity(&self, number: i64) -> Option<&Identity> {
        self.identities.get(&number)
    }

    /// How many identities there are, with those of `more`.
    pub(crate) fn identities_with(&self, more: &[Acl]) -> u64 {
        let new = more.iter().filter_map(|acl| acl.identity).filter(|number| !self.identities.contains_key(number));
        (self.identities.len() + new.collect::<std::collections::BTreeSet<_>>().len()) as u64
    }

    /// Adds identities; one of the same number is replaced. They must have been checked.
    pub(crate) fn add(&mut self, acls: Vec<Acl>) {
        for acl in acls {
            let acl = detached(&acl);
            let key = HmacKey::new(acl.key());
            self.identities.insert(acl.identity(), Identity { acl, key });
        }
    }

    /// Whether there is one identity, and its key is that of all new drives.
    pub(crate) fn is_as_made(&self) -> bool {
        self.identities.len() == 1 && self.identities.values().all(|identity| identity.acl.key() == DEFAULT_KEY)
    }

    /// Removes all identities.
    pub(crate) fn clear_identities(&mut self) {
        self.identities.clear();
    }

    /// Removes identities whose key all know.
    pub(crate) fn drop_known_keys(&mut self) {
        self.identities.retain(|_, identity| identity.acl.key() != DEFAULT_KEY);
    }

    pub(crate) fn erase_pin(&self) -> &Pin {
        &self.erase_pin
    }

    pub(crate) fn lock_pin(&self) -> &Pin {
        &self.lock_pin
    }

    pub(crate) fn set_erase_pin(&mut self, pin: &[u8]) {
        self.erase_pin = Pin::new(pin);
    }

    pub(crate) fn set_lock_pin(&mut self, pin: &[u8]) {
        self.lock_pin = Pin::new(pin);
    }
}

/// A copy that does not keep the frame in memory which it came in.
fn detached(acl: &Acl) -> Acl {
    let copy = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
    let mut acl = acl.clone();
    acl.key = acl.key.as_ref().map(copy);
    for scope in &mut acl.scope {
        scope.value = scope.value.as_ref().map(copy);
    }
    acl
}

#[cfg(test)]
mod tests {
    use skytether_common::Kind;

    use super::*;

    #[test]
    fn settings_come_back_as_they_were_stored() {
        let mut settings = Settings { cluster_version: 7, ..Settings::default() };
        settings.add(vec![Acl { identity: Some(9), key: Some(Bytes::from_static(b"other")), ..default_identity() }]);
        settings.set_erase_pin(b"erase");
        settings.set_lock_pin(b"\0lock");
        let read = Settings::read(Some(settings.to_bytes())).unwrap();
        assert_eq!((read.cluster_version, read.identities_with(&[])), (7, 2));
        assert!(read.erase_pin().is_bytes(b"erase") && read.lock_pin().is_bytes(b"\0lock") && !read.lock_pin().is_bytes(b"lock"));
        assert_eq!(read.identity(9).unwrap().acl, settings.identity(9).unwrap().acl);
        assert_eq!(read.identity(9).unwrap().key.sign(b"x"), HmacKey::new(b"other").sign(b"x"));
    }

    #[test]
    fn damaged_or_newer_settings_are_refused() {
        assert_eq!(Settings::read(Some(Bytes::from_static(b"\xff\xff"))).unwrap_err().kind(), Kind::Corrupt);
        let newer = Stored { format: 2, cluster_version: 0, acl: vec![], erase_pin: Bytes::new(), lock_pin: Bytes::new() };
        assert_eq!(Settings::read(Some(newer.encode_to_vec().into())).unwrap_err().kind(), Kind::Unsupported);
    }

    #[test]
    fn secrets_are_not_shown_by_debug() {
        let mut settings = Settings::default();
        settings.set_lock_pin(b"secret-pin");
        let shown = format!("{settings:?}");
        assert!(!shown.contains("secret-pin") && !shown.contains("asdfasdf"), "{shown}");
    }
}
