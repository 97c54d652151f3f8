//! How a client connects to a drive, and as whom.

use std::time::Duration;

use skytether_common::{Error, Result};
use skytether_doors::ConnectOptions;
use skytether_kinetic_protocol::HmacKey;
use skytether_transport::Credentials;

/// The variable of the environment with the number of the identity.
pub const IDENTITY_VARIABLE: &str = "SKYTETHER_KINETIC_IDENTITY";

/// The variable of the environment with the key of that identity.
pub const KEY_VARIABLE: &str = "SKYTETHER_KINETIC_KEY";

/// The identity and the key that a drive has when it is new.
const FACTORY: (i64, &str) = (1, "asdfasdf");

/// Who a client is. Its `Debug` does not show the key.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The identity's number.
    pub number: i64,
    /// The key that signs its commands.
    pub key: HmacKey,
}

impl Identity {
    /// That of [`IDENTITY_VARIABLE`] and [`KEY_VARIABLE`]. A variable that is absent or empty has the value that a new
    /// drive knows: 1, `asdfasdf`.
    ///
    /// # Errors
    /// `Invalid` where the number is none.
    pub fn from_environment() -> Result<Identity> {
        Identity::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(value_of: impl Fn(&str) -> Option<String>) -> Result<Identity> {
        let variable = |name: &str| value_of(name).filter(|value| !value.is_empty());
        let number = match variable(IDENTITY_VARIABLE) {
            None => FACTORY.0,
            Some(text) => text
                .trim()
                .parse()
                .map_err(|e| Error::invalid(format!("{IDENTITY_VARIABLE} is {text:?}; set it to the number of an identity")).with_source(e))?,
        };
        let key = variable(KEY_VARIABLE).unwrap_or_else(|| FACTORY.1.to_owned());
        Ok(Identity { number, key: HmacKey::new(key.as_bytes()) })
    }
}

impl Default for Identity {
    fn default() -> Self {
        Identity { number: FACTORY.0, key: HmacKey::new(FACTORY.1.as_bytes()) }
    }
}

/// How a client connects.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// As whom.
    pub identity: Identity,
    /// The cluster version of its requests; if `None`, the one that the drive tells.
    pub cluster_version: Option<i64>,
    /// How patient it is, and which certificates it trusts. A token is not sent: Kinetic has none.
    pub connect: ConnectOptions,
}

impl ClientOptions {
    /// As `identity`, trusting the authorities in `tls_ca`, or those that the environment names.
    #[must_use]
    pub fn of(identity: Identity, tls_ca: Option<std::path::PathBuf>) -> ClientOptions {
        let credentials = Credentials { tls_ca, ..Credentials::default() }.or_environment();
        ClientOptions { identity, cluster_version: None, connect: ConnectOptions { credentials, ..ConnectOptions::default() } }
    }

    /// How long a request and its answer may take, with `bytes` on the way (allowing 1 MiB/s).
    pub(crate) fn patience(&self, bytes: usize) -> Duration {
        self.connect.idle_timeout + Duration::from_secs((bytes >> 20) as u64)
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.connect.credentials
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_common::Kind;

    #[test]
    fn identity_is_that_of_a_new_drive_unless_set() {
        let of = |number: Option<&str>, key: Option<&str>| {
            let (number, key) = (number.map(str::to_owned), key.map(str::to_owned));
            Identity::from_variables(|name| if name == IDENTITY_VARIABLE { number.clone() } else { key.clone() })
        };
        let signed = |identity: &Identity, key: &str| HmacKey::new(key.as_bytes()).verify(b"x", &identity.key.sign(b"x"));
        for identity in [of(None, None).unwrap(), of(Some(""), Some("")).unwrap(), Identity::default()] {
            assert!(identity.number == 1 && signed(&identity, "asdfasdf"));
        }
        let other = of(Some("-7"), Some("secret")).unwrap();
        assert!(other.number == -7 && signed(&other, "secret") && !format!("{other:?}").contains("secret"));
        assert_eq!(of(Some("one"), None).unwrap_err().kind(), Kind::Invalid);
    }
}
