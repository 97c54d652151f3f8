//! Identities, their scopes, and PINs: the messages of `SECURITY`. [`crate::access`] has the rules for them.

use std::fmt;

use bytes::Bytes;

use crate::kinds::{HmacAlgorithm, Permission, SecurityOpType};
use crate::status::Refusal;

/// New identities, or a new PIN. Its `Debug` shows neither keys nor PINs.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub struct Security {
    /// Identities; one of each.
    #[prost(message, repeated, tag = "2")]
    pub acl: Vec<Acl>,
    /// The PIN that permits to lock and unlock, as it is now.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub old_lock_pin: Option<Bytes>,
    /// The PIN that shall permit to lock and unlock; empty: none.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub new_lock_pin: Option<Bytes>,
    /// The PIN that permits to erase, as it is now.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub old_erase_pin: Option<Bytes>,
    /// The PIN that shall permit to erase; empty: none.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub new_erase_pin: Option<Bytes>,
    /// Since protocol 4.0: what the command sets.
    #[prost(enumeration = "SecurityOpType", optional, tag = "7")]
    pub security_op_type: Option<i32>,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Security").field("acl", &self.acl).field("security_op_type", &self.security_op_type).finish_non_exhaustive()
    }
}

/// What a `SECURITY` command changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SecurityChange {
    /// Nothing.
    Nothing,
    /// Identities.
    Identities,
    /// The PIN that permits to erase.
    ErasePin,
    /// The PIN that permits to lock and unlock.
    LockPin,
}

impl Security {
    /// What the command changes, by the fields that it has.
    ///
    /// # Errors
    /// [`crate::StatusCode::InvalidRequest`] if it changes more than one thing.
    pub fn change(&self) -> Result<SecurityChange, Refusal> {
        let erase = self.old_erase_pin.is_some() || self.new_erase_pin.is_some();
        let lock = self.old_lock_pin.is_some() || self.new_lock_pin.is_some();
        match (!self.acl.is_empty(), erase, lock) {
            (false, false, false) => Ok(SecurityChange::Nothing),
            (true, false, false) => Ok(SecurityChange::Identities),
            (false, true, false) => Ok(SecurityChange::ErasePin),
            (false, false, true) => Ok(SecurityChange::LockPin),
            _ => Err(Refusal::invalid("the command sets more than one of identities, erase PIN and lock PIN; send one command for each")),
        }
    }
}

/// An identity and what it may do. Its `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
#[prost(skip_debug)]
pub struct Acl {
    /// The identity's number.
    #[prost(int64, optional, tag = "1")]
    pub identity: Option<i64>,
    /// The key of its HMACs.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub key: Option<Bytes>,
    /// How its HMACs are made.
    #[prost(enumeration = "HmacAlgorithm", optional, tag = "3")]
    pub hmac_algorithm: Option<i32>,
    /// What it may do: one scope that permits an operation is enough.
    #[prost(message, repeated, tag = "4")]
    pub scope: Vec<Scope>,
    /// The highest priority of its commands.
    #[prost(int32, optional, tag = "5")]
    pub max_priority: Option<i32>,
}

impl fmt::Debug for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Acl");
        shown.field("identity", &self.identity).field("hmac_algorithm", &self.hmac_algorithm).field("scope", &self.scope);
        shown.field("max_priority", &self.max_priority).finish_non_exhaustive()
    }
}

/// Permissions, and the keys for which they hold.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Scope {
    /// Where in a key `value` must be, in bytes. Negative offsets are refused: protocol 3.0.6 has signed ones.
    #[prost(int64, optional, tag = "1")]
    pub offset: Option<i64>,
    /// What a key must have there; empty: any key.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub value: Option<Bytes>,
    /// What the scope permits.
    #[prost(enumeration = "Permission", repeated, packed = "false", tag = "3")]
    pub permission: Vec<i32>,
    /// Whether it does so over TLS only.
    #[prost(bool, optional, tag = "4")]
    pub tls_required: Option<bool>,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// By hand: {identity 1, key "k", algorithm 1, scope {offset 3, value "ab", permissions 0 and 8, TLS}, priority 9}.
    const ACL: &[u8] = &[
        0x12, 0x17, 0x08, 0x01, 0x12, 0x01, b'k', 0x18, 0x01, // identity, key, algorithm
        0x22, 0x0c, 0x08, 0x03, 0x12, 0x02, b'a', b'b', 0x18, 0x00, 0x18, 0x08, 0x20, 0x01, // scope
        0x28, 0x09, // priority
    ];

    #[test]
    fn acl_has_scopes_with_permissions() {
        let security = Security::decode(ACL).unwrap();
        let acl = &security.acl[0];
        assert_eq!((acl.identity(), acl.key(), acl.hmac_algorithm(), acl.max_priority()), (1, &b"k"[..], HmacAlgorithm::HmacSha1, 9));
        let scope = &acl.scope[0];
        assert_eq!((scope.offset(), scope.value(), scope.tls_required()), (3, &b"ab"[..], true));
        assert_eq!(scope.permission().collect::<Vec<_>>(), [Permission::Read, Permission::Security]);
        assert_eq!(security.encode_to_vec(), ACL);
    }

    #[test]
    fn debug_shows_neither_keys_nor_pins() {
        let secret = || Some(Bytes::from_static(b"secret"));
        let acl = vec![Acl { key: secret(), ..Acl::default() }];
        let security =
            Security { acl, old_lock_pin: secret(), new_lock_pin: secret(), old_erase_pin: secret(), new_erase_pin: secret(), security_op_type: None };
        assert!(!format!("{security:?}").contains("secret"));
    }

    #[test]
    fn command_changes_one_thing() {
        let pin = || Some(Bytes::from_static(b"123"));
        let acl = || vec![Acl::default()];
        assert_eq!(Security::default().change(), Ok(SecurityChange::Nothing));
        assert_eq!(Security { acl: acl(), ..Security::default() }.change(), Ok(SecurityChange::Identities));
        assert_eq!(Security { new_erase_pin: pin(), old_erase_pin: pin(), ..Security::default() }.change(), Ok(SecurityChange::ErasePin));
        assert_eq!(Security { old_lock_pin: pin(), ..Security::default() }.change(), Ok(SecurityChange::LockPin));
        let two = Security { new_erase_pin: pin(), new_lock_pin: pin(), ..Security::default() };
        assert_eq!(two.change().unwrap_err().code, crate::StatusCode::InvalidRequest);
        assert!(Security { acl: acl(), new_lock_pin: pin(), ..Security::default() }.change().is_err());
    }
}
