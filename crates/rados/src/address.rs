//! Addresses of fleets in Ceph: `rados://POOL[/NAMESPACE]?conf=PATH&user=NAME&data=POOL&timeout=SECONDS&lossy=allow
//! &osds=auto`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use skytether_common::{Error, Result};
use skytether_transport::Endpoint;

/// The scheme of these addresses.
pub const SCHEME: &str = "rados";

/// The time for one call, unless the address says otherwise. A cluster takes some 25 s to notice a lost machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const MAX_TIMEOUT: u64 = 3600;

/// The parameters that an address may have.
const KNOWN: [&str; 6] = ["conf", "user", "data", "timeout", "lossy", "osds"];

/// Where a fleet is in a Ceph cluster, and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The pool of the fleet's record and of its indexes.
    pub pool: String,
    /// The namespace within the pools; empty: the default one.
    pub namespace: String,
    /// Ceph's configuration file; `None`: where Ceph looks for it.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`.
    pub user: String,
    /// The pool of the values, where it is another one.
    pub data: Option<String>,
    /// The longest that one call may take.
    pub timeout: Duration,
    /// Whether pools that keep one copy are taken.
    pub lossy: bool,
    /// Whether sub-plans run at the OSDs.
    pub osds: AtOsds,
}

/// Whether sub-plans run at the OSDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtOsds {
    /// Where the OSDs can do it.
    Auto,
    /// Never.
    Never,
    /// A fleet whose OSDs can't do it is not opened.
    Required,
}

impl Address {
    /// Parses an address.
    ///
    /// # Errors
    /// `Invalid`, with the parameters that are known.
    pub fn parse(text: &str) -> Result<Self> {
        let endpoint: Endpoint = text.parse()?;
        let wrong =
            |what: String| Error::invalid(format!("{text:?} {what}: write rados://POOL[/NAMESPACE]?conf=PATH, with {} as needed", KNOWN[1..].join(", ")));
        if endpoint.scheme() != SCHEME {
            return Err(wrong("is no address of a fleet in Ceph".to_owned()));
        }
        let decoded = |part: &str| decoded(part, &wrong);
        let (path, query) = endpoint.rest().split_once('?').unwrap_or((endpoint.rest(), ""));
        let mut given = parameters(query, &KNOWN, &wrong)?;
        let timeout = timeout(&given, &wrong)?;
        let lossy = match given.get("lossy").map(String::as_str) {
            None => false,
            Some("allow") => true,
            Some(_) => return Err(wrong("has a value for lossy other than \"allow\"".to_owned())),
        };
        let osds = match given.get("osds").map(String::as_str) {
            None | Some("auto") => AtOsds::Auto,
            Some("never") => AtOsds::Never,
            Some("required") => AtOsds::Required,
            Some(_) => return Err(wrong("has a value for osds other than auto, never or required".to_owned())),
        };
        Ok(Self {
            pool: decoded(endpoint.authority())?,
            namespace: decoded(path.trim_matches('/'))?,
            conf: given.remove("conf").map(PathBuf::from),
            user: given.remove("user").unwrap_or_else(|| "admin".to_owned()),
            data: given.remove("data"),
            timeout,
            lossy,
            osds,
        })
    }

    /// The fleet's name in messages.
    #[must_use]
    pub fn name(&self) -> String {
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        format!("{SCHEME}://{}{slash}{}", self.pool, self.namespace)
    }
}

/// A part of an address without its escapes.
pub(crate) fn decoded(part: &str, wrong: &dyn Fn(String) -> Error) -> Result<String> {
    percent_decode_str(part).decode_utf8().map(|text| text.into_owned()).map_err(|_| wrong(format!("has {part:?}, which is not UTF-8")))
}

/// The parameters of an address, all of them `known`.
pub(crate) fn parameters<'a>(query: &'a str, known: &[&str], wrong: &dyn Fn(String) -> Error) -> Result<BTreeMap<&'a str, String>> {
    let mut given = BTreeMap::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        if !known.contains(&name) {
            return Err(wrong(format!("has the parameter {name:?}, which is not known")));
        }
        if value.is_empty() || given.insert(name, decoded(value, wrong)?).is_some() {
            return Err(wrong(format!("has {name} without a value, or twice")));
        }
    }
    Ok(given)
}

/// The longest that one call may take.
pub(crate) fn timeout(given: &BTreeMap<&str, String>, wrong: &dyn Fn(String) -> Error) -> Result<Duration> {
    match given.get("timeout").map(|text| text.parse::<u64>()) {
        None => Ok(TIMEOUT),
        Some(Ok(seconds @ 1..=MAX_TIMEOUT)) => Ok(Duration::from_secs(seconds)),
        Some(_) => Err(wrong(format!("has a timeout that is no number of seconds from 1 to {MAX_TIMEOUT}"))),
    }
}

/// Whether `text` is an address of a fleet in Ceph.
#[must_use]
pub fn is_address(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_pools_and_parameters() {
        let all = Address::parse("rados://index/lab%201?conf=/etc/a%20b.conf&user=sky&data=coded&timeout=5&lossy=allow").unwrap();
        assert_eq!((all.pool.as_str(), all.namespace.as_str(), all.user.as_str()), ("index", "lab 1", "sky"));
        assert_eq!((all.conf, all.data, all.timeout, all.lossy), (Some("/etc/a b.conf".into()), Some("coded".into()), Duration::from_secs(5), true));
        let least = Address::parse("RADOS://p").unwrap();
        assert_eq!((least.name().as_str(), least.user.as_str(), least.conf, least.lossy), ("rados://p", "admin", None, false));
    }

    #[test]
    fn wrong_addresses_are_refused_by_what_is_wrong() {
        for (text, what) in [
            ("rados://p?pool=x", "\"pool\""),
            ("rados://p?timeout=0", "timeout"),
            ("rados://p?timeout=x", "timeout"),
            ("rados://p?conf=", "conf"),
            ("rados://p?user=a&user=b", "user"),
            ("rados://p?lossy=yes", "lossy"),
            ("rados://p?osds=maybe", "osds"),
            ("grpc://p", "no address"),
        ] {
            let error = Address::parse(text).unwrap_err();
            assert!(error.to_string().contains(what), "{text}: {error}");
        }
        assert!(is_address("rados://a") && !is_address("rados") && !is_address("grpc://a"));
    }
}
