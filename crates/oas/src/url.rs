//! Names of targets: `iscsi://[user%secret@]HOST[:PORT]/IQN/LUN`, or a device node.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use skytether_common::{Error, Result};

/// The port of iSCSI targets (RFC 7143).
const PORT: u16 = 3260;

/// How a target is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Url {
    /// Over TCP, by our own initiator.
    Iscsi(Iscsi),
    /// Through the node of a disk of the kernel's: `/dev/sdb`.
    Node(PathBuf),
}

/// A logical unit of an iSCSI target.
#[derive(Clone, PartialEq, Eq)]
pub struct Iscsi {
    /// A name or an address; that of IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The target's name.
    pub target: String,
    /// The logical unit's number.
    pub lun: u16,
    /// Name and secret for CHAP.
    pub login: Option<(String, String)>,
}

impl fmt::Debug for Iscsi {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Iscsi {
    /// Without name and secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        write!(f, "iscsi://{host}:{}/{}/{}", self.port, self.target, self.lun)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iscsi(iscsi) => iscsi.fmt(f),
            Self::Node(node) => node.display().fmt(f),
        }
    }
}

impl FromStr for Url {
    type Err = Error;

    /// The form is that of libiscsi, so that a secret may contain all but `@` and `/`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("the target's URL is wrong: {why}; its form is iscsi://[user%secret@]HOST[:PORT]/IQN/LUN or /dev/NODE"));
        if text.starts_with("/dev/") {
            return Ok(Self::Node(text.into()));
        }
        let rest = text.strip_prefix("iscsi://").ok_or_else(|| wrong("it begins with neither iscsi:// nor /dev/"))?;
        let (authority, path) = rest.split_once('/').ok_or_else(|| wrong("it has no target"))?;
        let (target, lun) = path.split_once('/').ok_or_else(|| wrong("it has no logical unit"))?;
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => (Some(login.split_once('%').ok_or_else(|| wrong("a user has no secret"))?), place),
            None => (None, authority),
        };
        let (host, port) = match place.strip_prefix('[').map(|rest| rest.split_once(']').ok_or_else(|| wrong("a bracket is open"))).transpose()? {
            Some((host, rest)) => (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("")).ok_or_else(|| wrong("a port is wrong"))?),
            None => place.split_once(':').unwrap_or((place, "")),
        };
        let port = if port.is_empty() { PORT } else { port.parse().map_err(|_| wrong("a port is wrong"))? };
        if host.is_empty() || target.is_empty() || target.len() > 223 || target.bytes().any(|byte| byte <= b' ') {
            return Err(wrong("the host or the target's name is missing or wrong"));
        }
        // The addressing methods use fourteen bits (SAM-5, 4.7).
        let lun = lun.parse().ok().filter(|lun| *lun < 1 << 14).ok_or_else(|| wrong("the logical unit is no number below 16384"))?;
        let login = login.map(|(user, secret)| (user.to_owned(), secret.to_owned()));
        Ok(Self::Iscsi(Iscsi { host: host.to_owned(), port, target: target.to_owned(), lun, login }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_url_is_found() {
        let url: Url = "iscsi://me%s3%cret@[::1]:3261/iqn.2026-01.net:a.b/3".parse().unwrap();
        let expected = Iscsi { host: "::1".into(), port: 3261, target: "iqn.2026-01.net:a.b".into(), lun: 3, login: Some(("me".into(), "s3%cret".into())) };
        assert_eq!(url, Url::Iscsi(expected));
        assert_eq!(url.to_string(), "iscsi://[::1]:3261/iqn.2026-01.net:a.b/3");
        assert!(!format!("{url:?}").contains("cret"));
        assert_eq!("iscsi://host/t/0".parse::<Url>().unwrap().to_string(), "iscsi://host:3260/t/0");
        assert_eq!("/dev/sdb".parse::<Url>().unwrap(), Url::Node("/dev/sdb".into()));
    }

    #[test]
    fn wrong_urls_are_told_without_their_secret() {
        for text in [
            "http://a/b/0",
            "iscsi://a",
            "iscsi://a/b",
            "iscsi://a/b/x",
            "iscsi:///b/0",
            "iscsi://a:b/t/0",
            "iscsi://[::1/t/0",
            "iscsi://u@a/t/0",
            "iscsi://u%top@a/t/-1",
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.kind() == skytether_common::Kind::Invalid && !error.mentions("top"), "{text}: {error}");
        }
    }
}
